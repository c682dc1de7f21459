"""The static files of the XProf UI, compressed once and served from memory.

Every file can be asked for by its plain name, as the stock server has it, and is revalidated by its entity tag. The
files themselves are changed in a few exact places so that they refer to each other with `?v=<version>`; asked for that
way, they may be kept by browsers and proxies for good.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import logging
import os
import tempfile
import time
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosting.encodings import compress, etag_for, matches, negotiate

_log = logging.getLogger(__name__)

PINNED_XPROF: Final = "2.24.2"
"""The release of xprof whose files the patches below are written for."""

INDEX: Final = "index.html"

CONTENT_SECURITY_POLICY: Final = ";".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-eval' 'unsafe-inline' https://www.gstatic.com",
        "object-src 'none'",
        "style-src 'self' 'unsafe-inline' https://fonts.googleapis.com https://www.gstatic.com",
        "font-src 'self' https://fonts.googleapis.com https://fonts.gstatic.com data:",
        "connect-src 'self' data: www.gstatic.com",
        "img-src 'self' blob: data:",
        "frame-src 'self' https://ui.perfetto.dev",
        "script-src-elem 'self' 'unsafe-inline' https://cdn.jsdelivr.net/npm/ https://www.gstatic.com",
        "frame-ancestors 'self'",
    )
)
"""What the UI's documents may load: the stock server's policy, and no embedding by other origins."""

_WHITELIST: Final = (
    "bundle.js",
    INDEX,
    "index.js",
    "material_symbols_outlined.woff2",
    "materialicons.woff2",
    "runtime.js",
    "styles.css",
    "trace_viewer_index.html",
    "trace_viewer_index.js",
    "trace_viewer_v2.js",
    "trace_viewer_v2.wasm",
    "zone.js",
)
_CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/svg+xml",
    ".js": "application/javascript; charset=utf-8",
    ".wasm": "application/wasm",  # streaming compilation takes no parameters here
    ".woff2": "font/woff2",
}
_COMPRESSED: Final = ("zstd", "gzip")  # but for fonts, which come compressed
_WORTHWHILE: Final = 0.95  # of the original size
_CRC_BYTES: Final = 4
_STALE_SECONDS: Final = 7 * 86400
_FOREVER: Final = "public, max-age=31536000, immutable"
_AN_HOUR: Final = "public, max-age=3600, must-revalidate"


class FrontendMismatch(RuntimeError):
    """The installed xprof is not the one whose UI this release can serve."""


@dataclass(frozen=True, slots=True)
class Patch:
    """An exact text in one of the UI's files and what takes its place; `{v}` there stands for the version."""

    file: str
    old: str
    new: str
    count: int
    """How often the text occurs in the pinned release."""


# trace_viewer_v2.wasm needs none: the bundle gives it the query of trace_viewer_v2.js.
PATCHES: Final = (
    Patch(INDEX, 'href="styles.css"', 'href="styles.css?v={v}"', 1),
    Patch(INDEX, 'src="zone.js"', 'src="zone.js?v={v}"', 1),
    Patch(INDEX, "src = 'runtime.js'", "src = 'runtime.js?v={v}'", 1),
    Patch(INDEX, "src = 'bundle.js'", "src = 'bundle.js?v={v}'", 2),
    Patch("bundle.js", '.src="trace_viewer_v2.js"', '.src="trace_viewer_v2.js?v={v}"', 1),
    Patch("styles.css", "url(materialicons.woff2)", "url(materialicons.woff2?v={v})", 1),
    Patch("styles.css", "url(material_symbols_outlined.woff2)", "url(material_symbols_outlined.woff2?v={v})", 2),
    # A link to one host of trace_viewer@ has `host` alone, which the UI drops for the first host; and within the UI the
    # value is a list, which it fails to split ("f.split is not a function").
    Patch("bundle.js", "f=s.hosts||a.hosts,", "f=String(s.hosts||a.hosts||p),", 1),
    Patch("trace_viewer_index.html", 'src="trace_viewer_index.js"', 'src="trace_viewer_index.js?v={v}"', 1),
)


@dataclass(frozen=True, slots=True)
class AssetAnswer:
    """An answer to a GET; for HEAD the same without the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Asset:
    """One file in every encoding that is worth sending."""

    name: str
    content_type: str
    digest: str
    version: str
    """The library's version, under which this file may be kept for good."""
    bodies: Mapping[str, bytes]
    """By encoding; `identity` is always there."""

    def etag(self, encoding: str = "identity") -> str:
        """The strong entity tag of this file in `encoding`."""
        return etag_for(self.digest, encoding)

    def cache_control(self, version: str | None) -> str:
        """How long the file may be kept when asked for with `?v=<version>`, or without (None)."""
        if self.name.endswith(".html"):
            return "no-cache"  # documents name the versions of everything else
        if version is None:
            return _AN_HOUR
        return _FOREVER if version == self.version else "no-cache"

    def answer(self, accept_encoding: str | None, if_none_match: str | None, version: str | None) -> AssetAnswer:
        """The answer, 200 or 304, to a request with these headers and this value of its `v` parameter."""
        encoding = negotiate(accept_encoding, self.bodies)
        etag = self.etag(encoding)
        headers = {"ETag": etag, "Cache-Control": self.cache_control(version)}
        if len(self.bodies) > 1:
            headers["Vary"] = "Accept-Encoding"
        if matches(if_none_match, etag):
            return AssetAnswer(304, headers, b"")
        headers |= {
            "Content-Type": self.content_type,
            "Content-Security-Policy": CONTENT_SECURITY_POLICY,
            "X-Content-Type-Options": "nosniff",
        }
        if encoding != "identity":
            headers["Content-Encoding"] = encoding
        return AssetAnswer(200, headers, self.bodies[encoding])


class AssetLibrary:
    """The UI's files by base name, whole in memory (some 26 MB)."""

    def __init__(self, assets: Iterable[Asset], version: str) -> None:
        self.version = version
        self._assets = {asset.name: asset for asset in assets}

    @property
    def names(self) -> tuple[str, ...]:
        """The base names that `get` knows."""
        return tuple(self._assets)

    def get(self, name: str) -> Asset | None:
        """The file of that base name, `favicon.ico` among them, or None. The name is never taken as a path."""
        return self._assets.get(name)

    @classmethod
    def prepare(cls, cache_dir: Path, *, static_dir: Path | None = None) -> AssetLibrary:
        """Reads the files, compressing those whose compressed form is not in `cache_dir` yet; blocks up to 2 s.

        Several processes may do this at once. A cache folder that cannot be written is logged and done without.

        Args:
            cache_dir: where compressed files are kept; made when missing.
            static_dir: the UI's files, those of the installed xprof by default.

        Raises:
            FrontendMismatch: a file is missing, or does not hold a text to be patched as often as it should.
        """
        sources = _read_sources(static_dir or _installed_static_dir())
        version = _version(sources)
        contents = _patched(sources, version)
        contents["favicon.ico"] = (importlib.resources.files("hosting") / "web" / "favicon.svg").read_bytes()
        with suppress(OSError):
            cache_dir.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:  # hashes and codecs release the GIL
            digests = dict(zip(contents, pool.map(_digest, contents.values()), strict=True))
            stored = {
                (name, encoding): cache_dir / f"{name}.{digests[name]}.{encoding}"
                for name in sorted(contents, key=lambda name: len(contents[name]), reverse=True)
                for encoding in _COMPRESSED
                if not name.endswith(".woff2")
            }
            jobs = {
                (name, encoding): pool.submit(_compressed, contents[name], encoding, path)
                for (name, encoding), path in stored.items()
            }
        bodies = {name: {"identity": content} for name, content in contents.items()}
        for (name, encoding), job in jobs.items():
            if len(job.result()) < _WORTHWHILE * len(contents[name]):
                bodies[name][encoding] = job.result()
        _remove_stale(cache_dir, stored.values())
        return cls(
            (Asset(name, _CONTENT_TYPES[Path(name).suffix], digests[name], version, bodies[name]) for name in contents),
            version,
        )


def _installed_static_dir() -> Path:
    try:
        folder = importlib.resources.files("xprof") / "static"  # imports the package's empty __init__ alone
    except ModuleNotFoundError:
        raise FrontendMismatch(f"xprof is not installed; the remedy: pip install xprof=={PINNED_XPROF}") from None
    return Path(str(folder))


def _read_sources(static_dir: Path) -> dict[str, bytes]:
    try:
        return {name: (static_dir / name).read_bytes() for name in _WHITELIST}
    except OSError as error:
        raise FrontendMismatch(f"The XProf UI is not whole: {error}. {_remedy()}") from error


def _remedy() -> str:
    try:
        installed = importlib.metadata.version("xprof")
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    return f"Served is the UI of xprof {PINNED_XPROF}, installed is {installed}: pip install xprof=={PINNED_XPROF}"


def _version(sources: Mapping[str, bytes]) -> str:
    """One version for all files, over their contents and the patches, as files refer to each other."""
    total = hashlib.sha256(repr(PATCHES).encode())
    for name, content in sources.items():
        total.update(f"{name} {len(content)} ".encode())
        total.update(content)
    return total.hexdigest()[:16]


def _patched(sources: Mapping[str, bytes], version: str) -> dict[str, bytes]:
    contents = dict(sources)
    for patch in PATCHES:
        old = patch.old.encode()
        found = contents[patch.file].count(old)
        if found != patch.count:
            raise FrontendMismatch(
                f"{patch.file} of the XProf UI holds {patch.old!r} {found} times instead of {patch.count}. {_remedy()}"
            )
        contents[patch.file] = contents[patch.file].replace(old, patch.new.replace("{v}", version).encode())
    return contents


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _compressed(content: bytes, encoding: str, path: Path) -> bytes:
    """The compressed content, from `path` if it is there and whole, else made and written there."""
    with suppress(OSError):
        kept = path.read_bytes()
        body = kept[_CRC_BYTES:]
        if kept[:_CRC_BYTES] == _crc(body):
            return body
    body = compress(content, encoding, dense=True)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
            try:
                file.write(_crc(body))
                file.write(body)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        _log.warning("The compressed UI file %s is not kept, the next start makes it again: %s", path, error)
    return body


def _crc(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(_CRC_BYTES, "little")


def _remove_stale(cache_dir: Path, in_use: Iterable[Path]) -> None:
    """Removes what other releases and broken-off starts left, unless it is recent: another process may run those."""
    keep = set(in_use)
    oldest = time.time() - _STALE_SECONDS
    with suppress(OSError):
        for path in cache_dir.iterdir():
            if path not in keep and path.stat().st_mtime < oldest:
                path.unlink()
