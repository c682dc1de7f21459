"""The reference engine, xprof: functions that run inside an engine process, on a session folder made ready for them.

A session folder is scratch space that ends in `plugins/profile/<name>/`, as xprof expects, with a link or an empty
placeholder `<host>.xplane.pb` per host and whatever derived files are already there. XProf writes its derived files
(`*.op_stats_v2.pb`, `*.SSTABLE`, `*.hlo_proto.pb`) beside them.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from xprof.convert import _pywrap_profiler_plugin, counter_extractor, raw_to_tool_data
from xprof.protobuf import op_stats_pb2

from loaders.engines.bridge import MapBridge
from loaders.engines.left_out import mention_left_out
from loaders.engines.tasks import (
    COMBINED_OP_STATS,
    ENGINE,
    HLO_SUFFIX,
    OP_STATS_FACTS,
    OP_STATS_SUFFIX,
    XPLANE_SUFFIX,
    Inspection,
    ToolTask,
)
from loaders.engines.tiny_xspace import tiny_xspace
from loaders.engines.trace_answers import bounded_answer, is_bounded
from loaders.engines.trace_blocks import cut_tables
from loaders.errors import BadParameter, DiskFull, EngineFailed, InvalidProfile, NotFound, ProfileError
from loaders.records import RecordHeader, record_bytes
from loaders.tools import ALL_HOSTS, INSPECTION, TOOLS, Family
from loaders.xspace_scan import scan_xspace, xspace_layout
from loaders.xspace_skeleton import may_have_requests, write_skeleton


def inspect(task: ToolTask) -> Inspection:
    """The tools that xprof offers for the folder's hosts; writes the programs' `*.hlo_proto.pb` beside them.

    xprof is asked about copies without events, which take the files' links' places in the folder.

    Raises:
        InvalidProfile: xprof finds nothing in the files, which it never says of a profile that it could read.
    """
    for host in task.hosts:
        _replace_by_skeleton(_path(task, host))
    try:
        raw, success = _pywrap_profiler_plugin.xspace_to_tools_data(_paths(task), INSPECTION.name)
    except RuntimeError as error:
        raise _failure(task, str(error)) from None
    names = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    if not success or not names:
        raise _failure(task, names)
    modules = sorted(path.name.removesuffix(HLO_SUFFIX) for path in task.folder.glob(f"*{HLO_SUFFIX}"))
    return Inspection(tuple(names.split(",")), tuple(modules))


def tool_data(task: ToolTask) -> RecordHeader:
    """Makes one tool's data and writes it, compressed, to `task.record`.

    Raises:
        InvalidProfile: a file is not a whole XSpace.
        NotFound: xprof has no data for this tool, module or node.
        EngineFailed: xprof says why it cannot answer.
    """
    started = time.monotonic()
    _scan(task)
    hidden = 0
    if task.tool == "trace_viewer@" and task.saved:
        cut_tables(task)
    if is_bounded(task):
        data, content_type, hidden = bounded_answer(task, _answer)
    else:
        if task.tool == "overview_page" and len(task.hosts) == 1:
            task = _spared_a_second_parse(task)
        data, content_type = _answer(task)
    if len(task.hosts) == 1 and TOOLS[task.tool].family is Family.OP_STATS:
        _note_op_stats_facts(task, task.folder / COMBINED_OP_STATS)
    data = mention_left_out(task.tool, data, dict(task.left_out))
    header = RecordHeader(
        content_type=content_type,
        size=len(data),
        engine=ENGINE,
        left_out=dict(task.left_out),
        seconds=time.monotonic() - started,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        hidden_events=hidden,
    )
    if task.record is not None:
        task.record.write_bytes(record_bytes(data, header))
    return header


def map_op_stats(task: ToolTask) -> None:
    """Makes one host's `<host>.op_stats_v2.pb`, the map that every op stats tool of a session reduces.

    It is what `kernel_stats` leaves of a session of that host alone; most other tools drop the first and last step. The
    same from xprof's own worker takes a third more memory, since its map works on a copy of the parsed file.

    Raises:
        InvalidProfile: the file is not a whole XSpace.
        EngineFailed: xprof says why it cannot answer.
    """
    _scan(task)
    [host] = task.hosts
    _convert(task, "kernel_stats")
    output = (task.folder / COMBINED_OP_STATS).rename(task.folder / f"{host}{OP_STATS_SUFFIX}")
    _note_op_stats_facts(task, output)


def self_test(folder: Path) -> int:
    """Parses a tiny XSpace made on the spot and returns the bytes of its trace, to show that the engine works here."""
    (folder / f"self-test{XPLANE_SUFFIX}").write_bytes(tiny_xspace())
    task = ToolTask("trace_viewer@", (("resolution", "8000"),), folder, ("self-test",), "self-test")
    data, _ = _convert(task)
    if b"self-test-event" not in data:
        raise EngineFailed("The engine's self-test failed: its trace lacks the event that was put in.")
    return len(data)


@cache
def _bridge() -> MapBridge:
    return MapBridge()


def _path(task: ToolTask, host: str) -> Path:
    return task.folder / f"{host}{XPLANE_SUFFIX}"


def _paths(task: ToolTask) -> list[Path]:
    return [_path(task, host) for host in task.hosts]


def _replace_by_skeleton(path: Path) -> None:
    skeleton = path.with_name(".skeleton")
    write_skeleton(path, xspace_layout(path), skeleton)
    skeleton.replace(path)


def _scan(task: ToolTask) -> None:
    for host in task.scan:
        scan_xspace(_path(task, host))


def _answer(task: ToolTask) -> tuple[bytes, str]:
    if len(task.hosts) < 2:
        return _convert(task)
    outputs = {_path(task, host): output for host, output in task.map_outputs.items()}
    with _bridge().offering(outputs):
        return _convert(task)


def _convert(task: ToolTask, tool: str | None = None) -> tuple[bytes, str]:
    """Calls xprof as its own server does, for the task's tool unless another is given, and tells its failures apart."""
    tool = tool or task.tool
    given = dict(task.parameters)
    if tool == "perf_counters" and given.get("names_only") == "1":
        return _counter_names(given.get("device_type")), "application/json"
    message = ""

    def call(paths: Sequence[Any], tool: str, options: Mapping[str, Any]) -> tuple[bytes, bool]:
        nonlocal message
        raw, success = _pywrap_profiler_plugin.xspace_to_tools_data(paths, tool, options)
        if not success:
            message = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
        return raw, success

    try:
        data, content_type = raw_to_tool_data.xspace_to_tool_data(_paths(task), tool, _options(task), call)
    except (ValueError, RuntimeError, AttributeError) as error:
        raise _failure(task, message or str(error)) from None
    if data is None:
        raise _failure(task, message)
    return (data.encode() if isinstance(data, str) else bytes(data)), content_type


def _options(task: ToolTask) -> dict[str, Any]:
    """The parameters in the shape in which xprof 2.24.2's `profile_plugin.data_impl` hands them over."""
    given = dict(task.parameters)
    options: dict[str, Any] = {
        "use_saved_result": task.saved,
        "hosts": list(task.hosts),
        "host": task.hosts[0] if len(task.hosts) == 1 else ALL_HOSTS,
        "module_name": given.get("module_name"),
        "program_id": given.get("program_id"),
        "memory_space": given.get("memory_space", "0"),
        "perfetto": given.get("perfetto") == "true",
    }
    if "group_by" in given:
        options["group_by"] = given["group_by"]
    if "view_memory_allocation_timeline" in given:
        options["view_memory_allocation_timeline"] = True
    if TOOLS[task.tool].name.startswith("trace_viewer"):
        trace: dict[str, Any] = dict(given)
        trace["full_dma"] = given.get("full_dma") == "true"
        if "search_prefix" not in given:
            trace.pop("search_metadata", None)
        elif "search_metadata" in trace:
            trace["search_metadata"] = given["search_metadata"] == "true"
        options["trace_viewer_options"] = trace
    if task.tool == "graph_viewer":
        options["graph_viewer_options"] = {
            "node_name": given.get("node_name"),
            "module_name": given.get("module_name"),
            "program_id": given.get("program_id"),
            "graph_width": int(given.get("graph_width", "3")),
            "show_metadata": int(given.get("show_metadata") == "true"),
            "merge_fusion": int(given.get("merge_fusion") == "true"),
            "format": given.get("format"),
            "type": given.get("type"),
        }
    return options


def _counter_names(device_type: str | None) -> bytes:
    if not device_type:
        raise BadParameter("The parameter 'device_type' is missing: counter names are kept per device type.")
    try:
        return json.dumps(counter_extractor.get_all_counters(device_type)).encode()
    except FileNotFoundError:
        return b"[]"
    except ValueError:
        raise BadParameter(f"There is no device type '{device_type}' with known counters.") from None


def _failure(task: ToolTask, message: str) -> Exception:
    """The error that fits xprof's own words, which it gives only as text."""
    hosts = ", ".join(task.hosts[:3]) + (", …" if len(task.hosts) > 3 else "")
    where = f"session '{task.session}' (host {hosts})" if hosts else f"session '{task.session}'"
    message = message.replace(f"{task.folder}/", "").strip()
    lowered = message.lower()
    if "no space left" in lowered:
        return DiskFull(
            f"The disk that holds the state folder filled up during {task.tool} of {where}. Free some space."
        )
    if ("parse" in lowered and ("xspace" in lowered or "proto" in lowered)) or task.tool == INSPECTION.name:
        return InvalidProfile(
            f"xprof cannot read the profile of {where}: {message or 'it finds no planes in it'}. The file is damaged "
            f"inside; copy it again from where it was captured."
        )
    if "couldn't find" in lowered or "not found" in lowered or "can not load hlo proto" in lowered:
        return NotFound(f"{task.tool} of {where}: {message}")
    if message and TOOLS[task.tool].family is Family.HLO:
        # What these tools refuse is a parameter; their files were read before.
        return BadParameter(f"{task.tool} of {where}: {message}")
    if message:
        return EngineFailed(f"xprof could not make {task.tool} of {where}: {message}")
    return NotFound(f"xprof has no data for {task.tool} in {where}.")


def _spared_a_second_parse(task: ToolTask) -> ToolTask:
    """The overview's task, changed so that xprof parses the host's file once, or never where its op stats are here.

    In one call xprof parses the file of a program that was not training twice: for op stats, then for the latency of
    inference requests. Where the file has none, the op stats are made by a tool that needs nothing else (and whose
    analysis the overview contains), and an empty placeholder takes the place of the file's link for the overview.
    """
    [host] = task.hosts
    path, op_stats = _path(task, host), task.folder / COMBINED_OP_STATS
    if may_have_requests(path, xspace_layout(path)):
        return task
    if not task.saved:
        # What goes wrong here goes wrong in the overview, too, and is told of there.
        with suppress(ProfileError):
            _convert(task, "input_pipeline_analyzer")
    if not op_stats.exists():
        return task
    _note_op_stats_facts(task, op_stats)
    path.unlink()
    path.touch()
    return replace(task, saved=True)


def _note_op_stats_facts(task: ToolTask, op_stats: Path) -> None:
    """Notes beside the fresh op stats of a host what decides whether its file is needed again for an overview."""
    facts = op_stats.parent / OP_STATS_FACTS
    if op_stats.exists() and not facts.exists():
        stats = op_stats_pb2.OpStats.FromString(op_stats.read_bytes())
        path = _path(task, task.hosts[0])
        noted = {
            "is_training": bool(stats.run_environment.is_training),
            "may_have_requests": may_have_requests(path, xspace_layout(path)),
        }
        facts.write_text(json.dumps(noted))
