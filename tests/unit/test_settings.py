"""Settings: where they come from, which source wins, and what is said of values that make no sense."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from hosting.settings import Settings, load_settings, store_options
from loaders.errors import BadParameter


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text('port = 1111\nshards = 3\nlogdir = ["a=/x", "gs://bucket/p,q"]\nray_dashboard = true\n')
    return path


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings({}, config).port == 1111
    monkeypatch.setenv("XPROF_HOSTING_PORT", "2222")
    assert load_settings({}, config).port == 2222
    assert load_settings({"port": "3333"}, config).port == 3333
    # What only the file says, and what nobody says.
    found = load_settings({"port": "3333"}, config)
    assert (found.shards, found.ray_dashboard, found.engine_processes) == (3, True, 2)


def test_every_setting_can_come_from_the_environment_and_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, field in Settings.model_fields.items():
        if name in ("logdir", "log_level", "front", "engine", "prewarm") or field.annotation is bool:
            continue
        value = "7.5" if field.annotation is float else "7"
        with monkeypatch.context() as environment:
            environment.setenv(f"XPROF_HOSTING_{name.upper()}", value)
            from_environment = getattr(load_settings({}), name)
        path = tmp_path / "one.toml"
        numeric = field.annotation in (int, float)
        path.write_text(f"{name} = {value if numeric else repr(value)}\n")
        assert str(from_environment) == str(getattr(load_settings({}, path), name)) == value, name


def test_log_roots_come_repeated_as_a_list_and_separated_by_commas(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings({"logdir": ["a=/x", "/y,z"]}).logdir == ("a=/x", "/y,z")
    assert load_settings({}, config).logdir == ("a=/x", "gs://bucket/p,q")
    monkeypatch.setenv("XPROF_HOSTING_LOGDIR", "a=/x,gs://bucket/p")
    assert load_settings({}).logdir == ("a=/x", "gs://bucket/p")
    monkeypatch.setenv("XPROF_HOSTING_LOGDIR", '["a=/x,y", "/z"]')
    assert load_settings({}).logdir == ("a=/x,y", "/z")


def test_a_broken_list_of_log_roots_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPROF_HOSTING_LOGDIR", '["a=/x"')
    with pytest.raises(ValidationError, match="logdir"):
        load_settings({})


def test_the_settings_file_can_be_named_by_the_environment(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPROF_HOSTING_CONFIG", str(config))
    assert load_settings({}).port == 1111


def test_booleans_are_read_from_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPROF_HOSTING_INSECURE_NO_AUTH", "true")
    assert load_settings({}).insecure_no_auth
    assert not load_settings({"insecure_no_auth": False}).insecure_no_auth


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "65536"),
        ("port", "many"),
        ("shards", "0"),
        ("gateways", "1.5"),
        ("cache_gib", "0"),
        ("bucket_interval", "0"),
        ("bucket_interval", "inf"),
        ("local_interval", "nan"),
        ("log_level", "loud"),
        ("no_such_setting", "1"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_the_settings_name(name: str, value: str) -> None:
    with pytest.raises(ValidationError) as caught:
        load_settings({name: value})
    assert [error["loc"] for error in caught.value.errors()] == [(name,)]


def test_a_settings_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.toml"):
        load_settings({}, tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    for content in (b"port = \n", b"port = 1 2\n", b"\xff\xfe"):
        broken.write_bytes(content)
        with pytest.raises(BadParameter, match=r"broken\.toml can't be read"):
            load_settings({}, broken)
    broken.write_text("prot = 1\n")
    with pytest.raises(ValidationError, match="prot"):
        load_settings({}, broken)


def test_new_sessions_are_looked_for_often_enough_to_appear_in_the_promised_time() -> None:
    settings = load_settings({})
    # 10 s in a folder and 60 s in a bucket, of which a pass itself may take as long as the pause before it.
    assert 2 * settings.local_interval < 10
    assert 2 * settings.bucket_interval <= 60


def test_settings_reach_replicas_as_they_are_whatever_their_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = pickle.dumps(load_settings({"port": "3333"}, config))
    monkeypatch.setenv("XPROF_HOSTING_PORT", "4444")
    monkeypatch.setenv("XPROF_HOSTING_SHARDS", "9")
    received = pickle.loads(sent)
    assert (received.port, received.shards, received.logdir) == (3333, 3, ("a=/x", "gs://bucket/p,q"))
    assert type(received) is Settings


def test_stores_are_reached_as_their_own_tools_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "AWS_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    assert store_options().gcs_endpoint is None
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:2")
    monkeypatch.setenv("AWS_REGION", "")
    found = store_options()
    assert found.gcs_endpoint == "http://127.0.0.1:1"
    assert found.s3["AWS_ENDPOINT_URL"] == "http://127.0.0.1:2"
    assert "AWS_REGION" not in found.s3
