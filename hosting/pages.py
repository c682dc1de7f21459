"""Small HTML pages of our own, whole in one document: for dead links, for nothing to show, and for errors.

They load nothing, run no script and work offline. The caller chooses the status and sends `PAGE_HEADERS` along. Every
text is escaped here.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import heapq
import importlib.resources
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from loaders.sessions import RootState

_STYLE: Final = (importlib.resources.files("hosting") / "web" / "page.css").read_text(encoding="utf-8")
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

PAGE_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
        "Cache-Control": "no-store",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }
)
"""The headers that belong to every page of this module."""

_REFRESH_SECONDS: Final = 5
_LAYOUT: Final = "<log root>/…/plugins/profile/<session>/<host>.xplane.pb"
_CAPTURE: Final = """\
import jax
with jax.profiler.trace("/path/to/log-root"):
    train_step(...)"""
_EXAMPLES: Final = 10
_CANDIDATES: Final = 200
_VERDICTS: Final = {
    "listing": "still being listed",
    "ok": "listed",
    "empty": "nothing found",
    "forbidden": "access is denied",
    "unreachable": "cannot be reached",
    "missing": "does not exist",
}
_FAILED: Final = frozenset({"forbidden", "unreachable", "missing"})


def not_found_page(
    what: str,
    detail: str,
    suggestions: Sequence[tuple[str, str]] = (),
    *,
    home: str = "/",
    home_label: str = "All sessions",
) -> str:
    """The page for a link to something that is not there.

    Args:
        what: the missing thing with its name, as in `Session train/2025_01_01`; the title says that it does not exist.
        detail: a sentence that says where it was looked for, or what may have become of it.
        suggestions: label and address of what may have been meant; see `near_names`.
        home: the address of the link that is always there.
    """
    parts = [_paragraph(detail)]
    if suggestions:
        parts.append(f"<h2>Did you mean</h2>{_list(_link(label, href) for label, href in suggestions)}")
    parts.append(f"<p>{_link(home_label, home)}</p>")
    return _page(f"{what} does not exist", "".join(parts))


def near_names(wanted: str, names: Iterable[str], limit: int = 5) -> list[str]:
    """Up to `limit` of `names` that resemble `wanted`, the nearest first; fast for many thousands of names."""
    # The matcher takes some 20 µs a name, too long for all of them on an event loop.
    candidates = heapq.nlargest(_CANDIDATES, names, key=lambda name: _shared_ends(wanted, name))
    return difflib.get_close_matches(wanted, candidates, n=limit, cutoff=0.5)


def _shared_ends(one: str, other: str) -> int:
    return _shared_start(one, other) + _shared_start(reversed(one), reversed(other))


def _shared_start(one: Iterable[str], other: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def no_sessions_page(roots: Sequence[RootState], refreshing: bool) -> str:
    """The page for a service that has no session to show, telling apart why.

    Args:
        roots: the state of every log root.
        refreshing: a listing is under way; the page then reloads itself every 5 s, as it does while a root has not
            been listed yet.
    """
    listing = refreshing or any(root.status == "listing" for root in roots)
    if any(root.status == "listing" for root in roots):
        title = "Looking for profiles"
    elif roots and all(root.status in _FAILED for root in roots):
        title = "The log root cannot be read" if len(roots) == 1 else "No log root can be read"
    else:
        title = "No profiles found"
    parts = []
    if listing:
        parts.append(
            _paragraph(f"The log roots are being listed. This page looks again every {_REFRESH_SECONDS} seconds.")
        )
    else:
        parts.append(_paragraph("New sessions are found by themselves; reload this page to look again."))
    if not roots:
        parts.append(_paragraph("No log root is configured: start the service with --logdir."))
    parts += (_root_section(root) for root in roots)
    parts.append(
        f"<h2>What is looked for</h2><pre>{escape(_LAYOUT)}</pre>"
        "<p>One folder per session, at any depth below a log root, with one file per host.</p>"
        f"<h2>How to get one</h2><pre>{escape(_CAPTURE)}</pre>"
        "<p>TensorFlow (<code>tf.profiler.experimental</code>) and PyTorch/XLA write the same layout.</p>"
    )
    return _page(title, "".join(parts), refresh=_REFRESH_SECONDS if listing else None)


def _root_section(root: RootState) -> str:
    verdict = _VERDICTS.get(root.status, root.status)
    parts = [f"<h2>{escape(root.name)}: {escape(verdict)}</h2><p><code>{escape(root.uri)}</code></p>"]
    if root.message:
        parts.append(_paragraph(root.message))
    if root.status in ("ok", "empty", "listing"):
        objects = "1 object" if root.objects == 1 else f"{root.objects:,} objects"
        so_far = "so far" if root.status == "listing" else f"in {root.took:.1f} s"
        parts.append(f'<p class="soft">{objects} seen {so_far}.</p>')
    if root.skipped_counts:
        counts = sorted(root.skipped_counts.items(), key=lambda item: (-item[1], item[0]))
        parts.append(f"<p>Skipped:</p>{_list(escape(f'{count:,} × {kind}') for kind, count in counts)}")
    if root.skipped:
        # Those with a reason of their own first: it says how to open them all the same.
        examples = sorted(root.skipped, key=lambda item: item.reason in root.skipped_counts)[:_EXAMPLES]
        lines = (f"<code>{escape(item.uri)}</code> — {escape(item.reason)}" for item in examples)
        parts.append(f'<p class="soft">For example:</p>{_list(lines)}')
    return f'<section class="root {escape(root.status)}">{"".join(parts)}</section>'


def error_page(status: int, title: str, sentence: str, request_id: str, *, home: str = "/") -> str:
    """The page for a failed request.

    Args:
        status: the HTTP status that is sent with it.
        sentence: what happened and what to do, for people.
        request_id: what to quote to whoever runs the service; its logs have it.
        home: the address of the link to start over from.
    """
    return _page(
        title,
        f"{_paragraph(sentence)}<p>{_link('All sessions', home)}</p>"
        f'<p class="soft">Status {status}, request <code>{escape(request_id)}</code></p>',
    )


def _page(title: str, body: str, *, refresh: int | None = None) -> str:
    """A whole document; `body` is markup, `title` is text."""
    head = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{head}'
        f"<title>{escape(title)} – XProf hosting</title><style>{_STYLE}</style></head>"
        f"<body><main><header>XProf hosting</header><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def _link(label: str, href: str) -> str:
    # Only addresses of this origin: names come from file names, and `javascript:` or `//elsewhere` must stay text.
    if not href.startswith(("/", "?")) or href.startswith(("//", "/\\")):
        return escape(label)
    return f'<a href="{escape(href)}">{escape(label)}</a>'
