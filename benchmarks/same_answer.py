"""Whether two answers of a tool say the same, less what xprof itself leaves to chance between two processes.

What is evened out, and why (seen between two stock servers on the same files):
- objects' keys: a JSON object has no order;
- lists of rows and of trace events: xprof fills them from hash maps, so rows that compare equal come in any order;
- `bind_id` of trace events: numbered from an address;
- ids that only number what such a list holds, as `id` of a table row does.
- the graph's HTML: its nodes and edges are numbered, and its style rules written, in the order of a hash map;
- `memory_profile`: of samples with equal values it keeps any, so single snapshots and events around them differ.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_BY_CHANCE = frozenset({"bind_id"})
# Lists whose order carries meaning: a row's cells, a table's columns.
_ORDERED = frozenset({"c", "cols"})


def same_answer(tool: str, ours: bytes, theirs: bytes, *, in_order: bool = False) -> str | None:
    """None when the answers say the same, else where they first differ. With `in_order`, rows of the same rank must
    come in the same order, too."""
    if ours == theirs:
        return None
    if ours.lstrip().startswith(b"<"):
        return None if _even_html(ours) == _even_html(theirs) else "the HTML's parts differ"
    try:
        left, right = json.loads(ours), json.loads(theirs)
    except (ValueError, UnicodeDecodeError):
        return f"{len(ours)} bytes that are no JSON differ from {len(theirs)}"
    if tool == "memory_profile":
        left, right = _without_samples(left), _without_samples(right)
    difference = _difference(_even(left), _even(right), "")
    if difference is None and in_order:
        difference = _difference(_less_chance(left), _less_chance(right), "in order")
    return difference


def _less_chance(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _less_chance(item) for key, item in value.items() if key not in _BY_CHANCE}
    return [_less_chance(item) for item in value] if isinstance(value, list) else value


def _even(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _even(item, key) for key, item in value.items() if key not in _BY_CHANCE}
    if isinstance(value, list):
        items = [_even(item) for item in value]
        return items if name in _ORDERED else sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    return value


def _even_html(page: bytes) -> list[str]:
    """The page's rules, tags and statements in a settled order, without the numbers that only tell nodes apart."""
    text = re.sub(r"(node|edge|cluster|_)?\d+", "0", page.decode())
    return sorted(part.strip() for part in re.split(r"[;\n{}]", text) if part.strip())


def _without_samples(profile: Any) -> Any:
    """Reduces each host's memory profile to its summaries and how much it sampled."""
    for allocator in profile.get("memoryProfilePerAllocator", {}).values():
        for name in ("memoryProfileSnapshots", "sampledTimelineSnapshots", "activeAllocations", "specialAllocations"):
            if name in allocator:
                allocator[name] = len(allocator[name])
    return profile


def _difference(left: Any, right: Any, where: str) -> str | None:
    if type(left) is not type(right) and not (isinstance(left, int | float) and isinstance(right, int | float)):
        return f"{where}: {left!r:.200} is not {right!r:.200}"
    if isinstance(left, dict):
        if left.keys() != right.keys():
            return f"{where}: the keys {sorted(left.keys() ^ right.keys())} are in one only"
        return next((d for key in left if (d := _difference(left[key], right[key], f"{where}.{key}"))), None)
    if isinstance(left, list):
        if len(left) != len(right):
            return f"{where}: {len(left)} items, not {len(right)}"
        pairs = enumerate(zip(left, right, strict=True))
        return next((d for i, (a, b) in pairs if (d := _difference(a, b, f"{where}[{i}]"))), None)
    if isinstance(left, float) and isinstance(right, float):
        # Sums over hash maps round differently with their order.
        return None if math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12) else f"{where}: {left} is not {right}"
    return None if left == right else f"{where}: {left!r:.200} is not {right!r:.200}"
