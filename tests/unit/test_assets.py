"""The XProf UI's static files: what is served, how it is kept, and what happens with another xprof."""

from __future__ import annotations

import importlib.resources
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hosting import assets
from hosting.assets import PATCHES, AssetLibrary, FrontendMismatch
from hosting.encodings import decompress

INSTALLED = Path(str(importlib.resources.files("xprof") / "static"))
BROWSER = "gzip, deflate, br, zstd"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("assets")


@pytest.fixture(scope="module")
def library(cache: Path) -> AssetLibrary:
    return AssetLibrary.prepare(cache)


@pytest.fixture
def no_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise AssertionError("compressed again")

    monkeypatch.setattr(assets, "compress", refuse)


@contextmanager
def edited(static_dir: Path, name: str) -> Iterator[list[str]]:
    """The one text of a file, to be replaced in the block."""
    path = static_dir / name
    texts = [path.read_text()]
    yield texts
    path.chmod(0o644)
    path.write_text(texts[0])


@pytest.fixture
def static_copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(INSTALLED, tmp_path / "static"))


def test_every_file_of_the_stock_servers_list_is_served_and_nothing_else(library: AssetLibrary) -> None:
    source = (INSTALLED.parent / "profile_plugin.py").read_text()
    stock = set(re.findall(r"^[A-Z0-9_]+_ROUTE = '/([\w.]+\.\w+)'", source, re.MULTILINE))
    assert {"bundle.js", "trace_viewer_v2.wasm"} <= stock
    assert set(library.names) == stock | {"favicon.ico"}
    for path in ("../profile_plugin.py", "/etc/passwd", "", ".", "static/bundle.js"):
        assert library.get(path) is None


def test_every_encoding_holds_the_installed_file_but_for_the_patches(library: AssetLibrary) -> None:
    for name in library.names:
        asset = library.get(name)
        assert asset is not None
        for encoding, body in asset.bodies.items():
            assert decompress(body, encoding) == asset.bodies["identity"]
        if name != "favicon.ico":
            unpatched = asset.bodies["identity"]
            for patch in PATCHES:
                if patch.file == name:
                    new = patch.new.replace("{v}", library.version).encode()
                    assert unpatched.count(new) == patch.count
                    unpatched = unpatched.replace(new, patch.old.encode())
            assert unpatched == (INSTALLED / name).read_bytes(), name


def test_only_what_gets_smaller_is_sent_compressed(library: AssetLibrary) -> None:
    encodings = {name: set(asset.bodies) for name in library.names if (asset := library.get(name))}
    assert encodings["trace_viewer_v2.wasm"] == {"identity", "gzip", "zstd"}
    assert encodings["material_symbols_outlined.woff2"] == {"identity"}
    wasm = library.get("trace_viewer_v2.wasm")
    assert wasm is not None
    assert len(wasm.bodies["zstd"]) < len(wasm.bodies["gzip"]) < 2_700_000 < len(wasm.bodies["identity"])


def test_the_type_of_each_file_is_what_browsers_need(library: AssetLibrary) -> None:
    types = {name: asset.content_type for name in library.names if (asset := library.get(name))}
    assert types["index.html"] == "text/html; charset=utf-8"
    assert types["styles.css"] == "text/css; charset=utf-8"
    assert types["bundle.js"] == "application/javascript; charset=utf-8"
    assert types["trace_viewer_v2.wasm"] == "application/wasm"
    assert types["materialicons.woff2"] == "font/woff2"
    assert types["favicon.ico"] == "image/svg+xml"


def test_under_its_version_a_file_is_kept_for_good_and_else_revalidated(library: AssetLibrary) -> None:
    bundle = library.get("bundle.js")
    assert bundle is not None
    versioned = bundle.answer(BROWSER, None, library.version)
    assert versioned.status == 200
    assert versioned.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert versioned.headers["Content-Encoding"] == "zstd"
    assert versioned.headers["Vary"] == "Accept-Encoding"
    assert versioned.headers["X-Content-Type-Options"] == "nosniff"
    plain = bundle.answer(BROWSER, None, None)
    assert plain.headers["Cache-Control"] == "public, max-age=3600, must-revalidate"
    # Another replica may already be newer than the document that asked: never keep the answer under that name.
    assert bundle.answer(BROWSER, None, "0123456789abcdef").headers["Cache-Control"] == "no-cache"


def test_documents_are_always_revalidated_and_answered_304_when_known(library: AssetLibrary) -> None:
    for name in ("index.html", "trace_viewer_index.html"):
        document = library.get(name)
        assert document is not None
        first = document.answer(BROWSER, None, None)
        assert first.headers["Cache-Control"] == "no-cache"
        assert "frame-ancestors 'self'" in first.headers["Content-Security-Policy"]
        again = document.answer(BROWSER, first.headers["ETag"], None)
        assert (again.status, again.body) == (304, b"")
        assert again.headers["ETag"] == first.headers["ETag"]
        assert again.headers["Cache-Control"] == "no-cache"
        assert document.answer("gzip", first.headers["ETag"], None).status == 200, "a strong tag is of one encoding"


def test_the_policy_allows_what_the_stock_servers_policy_allows() -> None:
    from xprof.profile_plugin import respond

    stock = respond(b"", "text/html").headers["Content-Security-Policy"]
    assert stock + ";frame-ancestors 'self'" == assets.CONTENT_SECURITY_POLICY


def test_all_references_between_files_carry_the_version(library: AssetLibrary) -> None:
    index = library.get("index.html")
    assert index is not None
    text = index.bodies["identity"].decode()
    wanted = ["styles.css", "zone.js", "runtime.js", "bundle.js", "bundle.js"]
    assert re.findall(r"([\w.]+)\?v=(\w+)", text) == [(name, library.version) for name in wanted]
    assert sum(patch.count for patch in PATCHES if "?v={v}" in patch.new) == 10


def test_a_second_start_compresses_nothing_and_takes_little_time(
    library: AssetLibrary, cache: Path, no_compression: None
) -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        again = AssetLibrary.prepare(cache)
        times.append(time.perf_counter() - start)
    assert again.version == library.version
    assert [again.get(name) for name in again.names] == [library.get(name) for name in library.names]
    assert min(times) < 0.2, "typically 0.03 s; the bound leaves room for a busy machine"


def test_damaged_files_in_the_cache_are_made_again(library: AssetLibrary, cache: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(cache, tmp_path / "copy"))
    cut, emptied, flipped = sorted(copy.glob("*.zstd"))[:3]
    cut.write_bytes(cut.read_bytes()[:-1])
    emptied.write_bytes(b"")
    content = bytearray(flipped.read_bytes())
    content[-5] ^= 1
    flipped.write_bytes(content)
    again = AssetLibrary.prepare(copy)
    assert [again.get(name) for name in again.names] == [library.get(name) for name in library.names]
    for path in (cut, emptied, flipped):
        assert path.read_bytes() == (cache / path.name).read_bytes()


def test_several_processes_preparing_at_once_get_the_same_whole_files(library: AssetLibrary, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from hosting.assets import AssetLibrary\n"
        "library = AssetLibrary.prepare(Path(sys.argv[1]))\n"
        "print(library.version, *(len(library.get(n).bodies.get('zstd', b'')) for n in library.names))"
    )
    root = Path(assets.__file__).parents[1]
    folder = tmp_path / "shared"
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(folder)], cwd=root, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    sizes = [len(asset.bodies.get("zstd", b"")) for name in library.names if (asset := library.get(name))]
    assert outputs == [" ".join(map(str, [library.version, *sizes])) + "\n"] * 3
    assert not list(folder.glob(".new-*"))


def test_a_cache_folder_that_cannot_be_written_is_done_without(
    library: AssetLibrary, tmp_path: Path, caplog: pytest.LogCaptureFixture, static_copy: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    again = AssetLibrary.prepare(blocked, static_dir=static_copy)
    assert [again.get(name) for name in again.names] == [library.get(name) for name in library.names]
    assert "is not kept, the next start makes it again" in caplog.text
    assert blocked.read_text() == "not a folder"


def test_old_files_of_other_releases_go_and_recent_ones_stay(
    cache: Path, library: AssetLibrary, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(cache, tmp_path / "copy"))
    old, recent = copy / "bundle.js.00.gzip", copy / "bundle.js.11.gzip"
    for path in (old, recent):
        path.write_bytes(b"x")
    for path in [old, *copy.glob("*.zstd")]:
        os.utime(path, (0, 0))
    AssetLibrary.prepare(copy)
    assert {path.name for path in copy.iterdir()} == {path.name for path in cache.iterdir()} | {recent.name}


def test_another_ui_than_the_pinned_one_fails_loudly(static_copy: Path, tmp_path: Path) -> None:
    with edited(static_copy, "index.html") as texts:
        texts[0] = texts[0].replace("src = 'bundle.js'", "src = 'main.js'", 1)
    with pytest.raises(FrontendMismatch, match=r"index.html .* 1 times instead of 2\..* pip install xprof==2\.24\.2"):
        AssetLibrary.prepare(tmp_path / "cache", static_dir=static_copy)


def test_a_missing_file_of_the_ui_is_named(static_copy: Path, tmp_path: Path) -> None:
    (static_copy / "zone.js").unlink()
    with pytest.raises(FrontendMismatch, match=r"not whole: .*zone\.js"):
        AssetLibrary.prepare(tmp_path / "cache", static_dir=static_copy)


def test_a_changed_file_changes_the_version_of_all(library: AssetLibrary, static_copy: Path, cache: Path) -> None:
    with edited(static_copy, "zone.js") as texts:
        texts[0] += "\n// changed"
    changed = AssetLibrary.prepare(cache, static_dir=static_copy)
    assert changed.version != library.version
    index = changed.get("index.html")
    assert index is not None
    assert index.bodies["identity"].count(f"?v={changed.version}".encode()) == 5
