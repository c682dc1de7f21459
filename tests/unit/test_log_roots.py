"""Log roots are read from `[NAME=]URI` without giving a meaning to what paths may contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaders.errors import BadParameter
from loaders.log_roots import LogRoot, parse_log_roots


def _pairs(*specs: str) -> list[tuple[str, str]]:
    return [(root.name, root.uri) for root in parse_log_roots(specs)]


def test_a_name_goes_before_the_first_equals_sign() -> None:
    assert _pairs("prod=gs://bucket/runs", "my-2.x_y=/data/logs") == [
        ("prod", "gs://bucket/runs"),
        ("my-2.x_y", "file:///data/logs"),
    ]
    assert parse_log_roots(["a=s3://b/k=1/"]) == (LogRoot("a", "s3://b/k=1"),)


@pytest.mark.parametrize(
    ("spec", "name", "uri"),
    [
        ("/data/lr=0.1", "lr-0.1", "file:///data/lr=0.1"),
        ("gs://bucket/lr=0.1/seed=3", "seed-3", "gs://bucket/lr=0.1/seed=3"),
        ("/data/2024-01-01T10:00:00", "2024-01-01T10-00-00", "file:///data/2024-01-01T10:00:00"),
        ("train:/data/logs", "logs", None),
        ("gs://bucket", "bucket", "gs://bucket"),
        ("gs://bucket/", "bucket", "gs://bucket"),
        ("/", "root", "file:///"),
        ("/data/läufe 1", "l-ufe-1", "file:///data/läufe 1"),
        ("/data/…", "root", "file:///data/…"),
        ("file:///data/logs/", "logs", "file:///data/logs"),
    ],
)
def test_paths_with_equals_signs_colons_and_odd_letters_keep_working(spec: str, name: str, uri: str | None) -> None:
    (root,) = parse_log_roots([spec])
    assert root == LogRoot(name, uri or f"file://{Path.cwd()}/train:/data/logs")


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _pairs("logs", "./lr=0.1") == [("logs", f"file://{tmp_path}/logs"), ("lr-0.1", f"file://{tmp_path}/lr=0.1")]


def test_an_existing_relative_path_with_an_equals_sign_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _pairs("lr=0.1") == [("lr", f"file://{tmp_path}/0.1")]
    (tmp_path / "lr=0.1").mkdir()
    assert _pairs("lr=0.1") == [("lr-0.1", f"file://{tmp_path}/lr=0.1")]


def test_default_names_are_unique_and_leave_given_names_alone() -> None:
    assert _pairs("/a/logs", "/b/logs", "logs=/c", "/d/logs", "/e/logs-3") == [
        ("logs-2", "file:///a/logs"),
        ("logs-3", "file:///b/logs"),
        ("logs", "file:///c"),
        ("logs-4", "file:///d/logs"),
        ("logs-3-2", "file:///e/logs-3"),
    ]


def test_a_root_given_twice_without_names_counts_once() -> None:
    assert _pairs("/a/logs", "/a/logs/", "x=/a/logs") == [("logs", "file:///a/logs"), ("x", "file:///a/logs")]


def test_names_of_dots_would_look_like_paths_and_are_read_as_such() -> None:
    (root,) = parse_log_roots(["..=x"])
    assert root.uri == f"file://{Path.cwd()}/..=x"


@pytest.mark.parametrize("spec", ["", "  ", "prod=", "ftp://host/x", "prod=hdfs://x/y"])
def test_what_names_no_supported_place_is_refused_with_the_remedy(spec: str) -> None:
    with pytest.raises(BadParameter, match="gs://bucket/prefix"):
        parse_log_roots([spec])


def test_a_name_given_twice_is_refused_naming_both_places() -> None:
    with pytest.raises(BadParameter, match=r"'a': file:///x and file:///y"):
        parse_log_roots(["a=/x", "a=/y"])


def test_no_specs_are_no_roots() -> None:
    assert parse_log_roots([]) == ()
