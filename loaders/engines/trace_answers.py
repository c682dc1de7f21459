"""Answers for the trace viewer that no browser has to choke on: JSON of a bounded size, and a visible note when events
were left out to get there.

Where xprof's own merge of several hosts would be large, every host is converted by itself and thinned before the next
one, so that memory stays that of two hosts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from loaders.engines.tasks import TRACE_SUFFIXES, ToolTask
from loaders.engines.trace_thinning import Events, Trace, take_apart, thin

MAX_BYTES: Final = 64 << 20
"""The most JSON in one answer: some 270,000 events, which a browser parses and draws in a few seconds. Stock sends
403 MB for four hosts with 40 MB profiles, on which Chromium gives up."""

# Tables are a twentieth to an eighth of the JSON with all their events: no more than some 160 MB from these.
_MERGED_TABLES: Final = 8 << 20

_PIDS_PER_HOST: Final = 1000  # xprof numbers a host's processes so
_NOTE_PID: Final = 0  # below every process of xprof's
_NOTE_BYTES: Final = 2_000

Answer = Callable[[ToolTask], tuple[bytes, str]]
"""Makes the data of a task with xprof, and its content type."""


def is_bounded(task: ToolTask) -> bool:
    """Whether the answer to a task is a timeline in JSON. The newer viewer's protobuf is a few hundred KB for what is
    400 MB of JSON, and one event's details are small."""
    given = dict(task.parameters)
    return task.tool == "trace_viewer@" and given.get("format") != "pb" and "event_name" not in given


def bounded_answer(task: ToolTask, answer: Answer) -> tuple[bytes, str, int]:
    """The data of a task for which `is_bounded` holds, its content type, and how many events were left out."""
    tables = {host: task.folder / f"{host}{TRACE_SUFFIXES[0]}" for host in task.hosts}
    if len(task.hosts) == 1 or sum(table.stat().st_size for table in tables.values()) <= _MERGED_TABLES:
        data, content_type = answer(task)
        if len(data) <= MAX_BYTES:
            return data, content_type, 0
        trace = take_apart(data)
        events = thin(trace, MAX_BYTES - _NOTE_BYTES - (len(data) - trace.size))
        return _written(task, trace.head, [events]), content_type, events.hidden
    smallest_first = sorted(task.hosts, key=lambda host: tables[host].stat().st_size)
    room = MAX_BYTES - _NOTE_BYTES
    heads: dict[str, dict[str, Any]] = {}
    found: dict[str, Events] = {}
    for left, (host, trace) in enumerate(_each(task, smallest_first, answer)):
        number = task.hosts.index(host)
        head = _head_of(trace.head, number)
        # What a small host leaves of its share is for the larger ones after it.
        share = room // (len(task.hosts) - left)
        head_bytes = len(json.dumps(head))
        # From the tenth host on, process ids are a digit longer, in events of a hundred bytes and more.
        longer = (len(str(number + 1)) - 1) / 100
        events = thin(trace, max(int((share - head_bytes) * (1 - longer)), 0))
        events = replace(events, data=_renumbered(events.data, number))
        found[host], heads[host] = events, head
        room = max(room - head_bytes - len(events.data), 0)
    in_order = [found[host] for host in task.hosts]
    head = _merged([heads[host] for host in task.hosts])
    return _written(task, head, in_order), "application/json", sum(events.hidden for events in in_order)


def _each(task: ToolTask, hosts: Sequence[str], answer: Answer) -> Iterator[tuple[str, Trace]]:
    """Every host's own trace; xprof makes the next one while the last is thinned."""
    with ThreadPoolExecutor(1) as ahead:
        tasks = [replace(task, hosts=(host,), map_outputs={}) for host in hosts]
        coming = ahead.submit(answer, tasks[0])
        for number, host in enumerate(hosts):
            data, _ = coming.result()
            if number + 1 < len(hosts):
                coming = ahead.submit(answer, tasks[number + 1])
            yield host, take_apart(data)


def _renumbered(events: bytes, number: int) -> bytes:
    """One host's events under the process ids that they have among several hosts."""
    if number == 0:
        return events
    # Only an event begins after a comma: quotes in strings are escaped, arguments follow a colon.
    pids = {int(pid) for pid in re.findall(rb'(?:^|,)\{"pid":(\d+),', events)}
    events = b"," + events
    for pid in pids:
        events = events.replace(b',{"pid":%d,' % pid, b',{"pid":%d,' % (pid + number * _PIDS_PER_HOST))
    return events[1:]


def _head_of(head: dict[str, Any], number: int) -> dict[str, Any]:
    for event in head["traceEvents"]:
        event["pid"] += number * _PIDS_PER_HOST
        if event["name"] == "process_sort_index":
            event["args"]["sort_index"] += number * _PIDS_PER_HOST
    for item in head.get("tasks", []):
        item["host_id"] += number
    # Nothing refers to them: events carry their arguments only in the answer for one event.
    return {**head, "stackFrames": {}}


def _merged(heads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(heads[0])
    merged["details"] = list({item["name"]: item for head in heads for item in head.get("details", [])}.values())
    merged["returnedEventsSize"] = sum(head["returnedEventsSize"] for head in heads)
    merged["totalCounterEvents"] = sum(head["totalCounterEvents"] for head in heads)
    merged["showCounterMessage"] = next((text for head in heads if (text := head["showCounterMessage"])), "")
    spans = [head["fullTimespan"] for head in heads]
    merged["fullTimespan"] = [min(span[0] for span in spans), max(span[1] for span in spans)]
    if any("tasks" in head for head in heads):
        merged["tasks"] = [item for head in heads for item in head.get("tasks", [])]
    merged["traceEvents"] = [event for head in heads for event in head["traceEvents"]]
    return merged


def _written(task: ToolTask, head: dict[str, Any], parts: Sequence[Events]) -> bytes:
    """The answer's JSON, with a note in it when events were left out."""
    head = dict(head)
    metadata: list[dict[str, Any]] = head.pop("traceEvents")
    hidden = sum(part.hidden for part in parts)
    if hidden:
        head["returnedEventsSize"] -= hidden
        # Or else the viewer would not ask again when somebody zooms in.
        head["filteredByVisibility"] = True
        metadata = [*_note(task, head, hidden), *metadata]
    pieces = [json.dumps(event, separators=(",", ":")).encode() for event in metadata]
    pieces += [part.data for part in parts if part.data]
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join((text[:-1], b',"traceEvents":[', b",".join(pieces), b"]}"))


def _note(task: ToolTask, head: dict[str, Any], hidden: int) -> list[dict[str, Any]]:
    """A process above all others whose name, and one event over its whole length, say what is missing.

    The viewer keeps the first of these that it loads, so the text says of what time it speaks.
    """
    given = dict(task.parameters)
    where, remedy = "", "zoom in to see them"
    if "search_prefix" in given:
        where, remedy = " found", "search for more of the name"
    elif "start_time_ms" in given or "end_time_ms" in given:
        start, end = given.get("start_time_ms", head["fullTimespan"][0]), given.get("end_time_ms", "the end")
        where = f" between {start} and {end} ms"
    if len(task.hosts) > 1:
        remedy += ", or open fewer hosts"
    total = head["returnedEventsSize"] + hidden
    text = f"⚠ {hidden:,} of {total:,} events{where} are hidden: {remedy}"
    begin, end = (round(bound * 1000, 3) for bound in head["fullTimespan"])
    place = {"pid": _NOTE_PID, "tid": 0}
    return [
        {"args": {"name": text}, "name": "process_name", "ph": "M", "pid": _NOTE_PID, "thread_count": 1},
        {"args": {"sort_index": -1}, "name": "process_sort_index", "ph": "M", "pid": _NOTE_PID},
        {"args": {"name": "note"}, "name": "thread_name", "ph": "M", **place},
        {**place, "name": text, "ts": begin, "dur": max(end - begin, 0.001), "ph": "X", "args": {}},
    ]
