"""Our own HTML pages: they say what is the matter, load nothing, and never let a name become markup."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import pytest

from hosting.pages import PAGE_HEADERS, error_page, near_names, no_sessions_page, not_found_page

EVIL = "<script>alert(1)</script>\"'&"


@dataclass(frozen=True)
class Item:
    uri: str
    reason: str


@dataclass(frozen=True)
class Root:
    """Stands for the catalog's RootState."""

    name: str = "runs"
    uri: str = "gs://bucket/runs"
    status: str = "empty"
    message: str = ""
    objects: int = 0
    requests: int = 1
    skipped: tuple[Item, ...] = ()
    skipped_counts: dict[str, int] = field(default_factory=dict)
    listed_at: float = 0.0
    took: float = 0.25


class Outline(HTMLParser):
    """The tags, links and text of a document."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: dict[str, str] = {}
        self.metas: dict[str, str] = {}
        self.outside: list[str] = []
        self.text = ""
        self._href: str | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = {name: value or "" for name, value in attrs}
        self.outside += [f"{tag} {name}" for name in values if name in ("src", "srcset") or name.startswith("on")]
        self._href = values.get("href") if tag == "a" else None
        if "http-equiv" in values:
            self.metas[values["http-equiv"]] = values["content"]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] != "style":
            self.text += data
        if self._href is not None:
            self.links[data] = self._href
            self._href = None


def pages() -> dict[str, str]:
    root: Any = Root(EVIL, EVIL, "empty", EVIL, 3, 1, (Item(EVIL, EVIL),), {EVIL: 1})
    odd: Any = Root(status=EVIL)
    return {
        "not found": not_found_page(EVIL, EVIL, [(EVIL, f"/?run={EVIL}")], home=f"/{EVIL}", home_label=EVIL),
        "no sessions": no_sessions_page([root, odd], refreshing=True),
        "error": error_page(500, EVIL, EVIL, EVIL, home=f"/{EVIL}"),
    }


@pytest.mark.parametrize("kind", ["not found", "no sessions", "error"])
def test_names_and_messages_never_become_markup(kind: str) -> None:
    outline = Outline(pages()[kind])
    assert EVIL in outline.text
    assert "script" not in outline.tags
    assert outline.outside == []
    assert outline.tags.count("h1") == 1


@pytest.mark.parametrize("kind", ["not found", "no sessions", "error"])
def test_pages_load_nothing_and_their_policy_admits_only_their_own_style(kind: str) -> None:
    page = pages()[kind]
    assert set(Outline(page).tags) & {"link", "script", "img", "iframe", "object", "base"} == set()
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in PAGE_HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in PAGE_HEADERS["Content-Security-Policy"]
    assert PAGE_HEADERS["Cache-Control"] == "no-store"


def test_a_dead_link_is_named_with_near_names_and_a_way_home() -> None:
    page = not_found_page(
        "Session train/2025_01_02", "It may have been deleted.", [("train/2025_01_01", "/?run=train%2F2025_01_01")]
    )
    outline = Outline(page)
    assert "Session train/2025_01_02 does not exist" in outline.text
    assert "It may have been deleted." in outline.text
    assert outline.links == {"train/2025_01_01": "/?run=train%2F2025_01_01", "All sessions": "/"}
    assert "Did you mean" in outline.text
    assert "Did you mean" not in not_found_page("Host x", "")


@pytest.mark.parametrize(
    "href", ["javascript:alert(1)", "//evil.example/", "/\\evil.example", "https://evil.example", ""]
)
def test_links_leave_neither_the_origin_nor_run_script(href: str) -> None:
    outline = Outline(not_found_page("Run x", "", [("label", href)]))
    assert outline.links == {"All sessions": "/"}
    assert "label" in outline.text


def test_near_names_are_the_resembling_ones_nearest_first() -> None:
    names = ["train/2025_01_01_10_00_00", "train/2025_01_01_10_00_01", "eval/2024_07_03_09_00_00", "x"]
    assert set(near_names("train/2025_01_01_10_00_02", names)[:2]) == set(names[:2])
    assert near_names("trian/2025_01_01_10_00_01", names)[0] == names[1]
    assert near_names("something else", names) == []
    assert near_names("x", []) == []
    assert len(near_names("a1", [f"a{n}" for n in range(20)], limit=3)) == 3


def test_near_names_are_found_quickly_among_many() -> None:
    names = [f"team-{n % 50}/experiment-{n}/2025_06_01_12_00_{n % 60:02}" for n in range(10_000)]
    start = time.perf_counter()
    found = near_names("team-7/experiment-4057/2025_06_01_12_00_38", names)
    assert time.perf_counter() - start < 1.0
    assert found[0] == "team-7/experiment-4057/2025_06_01_12_00_37"


def show(*roots: Root, refreshing: bool = False) -> Outline:
    return Outline(no_sessions_page(roots, refreshing))  # type: ignore[arg-type]


def test_nothing_found_says_where_it_looked_how_much_and_what_it_skipped() -> None:
    outline = show(
        Root(
            objects=12345,
            message="No folder plugins/profile below gs://bucket/runs.",
            skipped_counts={"checkpoints": 2, "trace files": 1200},
            skipped=(
                Item("gs://bucket/runs/a.ckpt", "checkpoints"),
                Item("gs://bucket/runs/loose", "not in a session"),
            ),
        )
    )
    assert "No profiles found" in outline.text
    assert "runs: nothing found" in outline.text
    assert "gs://bucket/runs" in outline.text
    assert "12,345 objects seen in 0.2 s" in outline.text
    assert "No folder plugins/profile below" in outline.text
    assert outline.text.index("1,200 × trace files") < outline.text.index("2 × checkpoints")
    assert outline.text.index("loose — not in a session") < outline.text.index("a.ckpt — checkpoints")
    assert "…/plugins/profile/<session>/<host>.xplane.pb" in outline.text
    assert "jax.profiler.trace" in outline.text
    assert outline.metas == {}


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("forbidden", "access is denied"), ("unreachable", "cannot be reached"), ("missing", "does not exist")],
)
def test_a_root_that_cannot_be_read_is_told_from_an_empty_one(status: str, verdict: str) -> None:
    alone = show(Root(status=status, message="Why, and what to do."))
    assert "The log root cannot be read" in alone.text
    assert f"runs: {verdict}" in alone.text
    assert "Why, and what to do." in alone.text
    assert "objects seen" not in alone.text
    assert "No profiles found" not in alone.text
    beside = show(Root(status=status), Root(name="other"))
    assert "No profiles found" in beside.text
    assert f"runs: {verdict}" in beside.text
    assert "other: nothing found" in beside.text
    assert "No log root can be read" in show(Root(status=status), Root(status="missing")).text


def test_the_page_reloads_itself_only_while_roots_are_listed() -> None:
    listing = show(Root(status="listing", objects=1))
    assert listing.metas == {"refresh": "5"}
    assert "Looking for profiles" in listing.text
    assert "1 object seen so far" in listing.text
    assert show(Root(), refreshing=True).metas == {"refresh": "5"}
    assert "No profiles found" in show(Root(), refreshing=True).text
    assert show(Root(status="unreachable")).metas == {}


def test_no_log_root_at_all_is_said() -> None:
    assert "No log root is configured: start the service with --logdir." in show().text


def test_a_failure_has_its_sentence_status_and_request_id() -> None:
    outline = Outline(error_page(507, "Out of memory", "The engine was stopped.", "req-42", home="/s/token/"))
    assert "Out of memory" in outline.text
    assert "The engine was stopped." in outline.text
    assert "Status 507, request req-42" in outline.text
    assert outline.links == {"All sessions": "/s/token/"}
