"""XProf's tools: what each needs, and the canonical form of a request for one.

The names, the hosts that a tool takes and its parameters are those of xprof 2.24.2's `profile_plugin.py` and
`convert/raw_to_tool_data.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from loaders.errors import BadParameter, NotFound
from loaders.trace_windows import exact_length, exact_time, shared_window

ALL_HOSTS: Final = "ALL_HOSTS"


class Family(Enum):
    """What a tool is made from, which is also what one host's map produces for it."""

    OP_STATS = "op_stats"
    """`<host>.op_stats_v2.pb`, combined over hosts."""
    TRACE = "trace"
    """`<host>.SSTABLE` and its metadata and trie tables."""
    HLO = "hlo"
    """The `<module>.hlo_proto.pb` files of the session's programs."""
    FILES = "files"
    """The XPlane files themselves; there is no map."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One XProf view and how a request for it is formed."""

    name: str
    family: Family
    hosts: Literal["each", "also_all", "only_all", "one"] = "each"
    """How hosts are offered: one by one, also ALL_HOSTS, only ALL_HOSTS, or never more than one at a time."""
    parameters: tuple[str, ...] = ()
    """The query parameters that change the answer; others are ignored."""


_TRACE_PARAMETERS = (
    "resolution",
    "full_dma",
    "start_time_ms",
    "end_time_ms",
    "event_name",
    "duration_ms",
    "unique_id",
    "search_prefix",
    "search_metadata",
    "format",
)
_GRAPH_PARAMETERS = (
    "node_name",
    "module_name",
    "program_id",
    "graph_width",
    "show_metadata",
    "merge_fusion",
    "format",
    "type",
)

TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool
    for tool in (
        Tool("overview_page", Family.OP_STATS, "only_all"),
        Tool("input_pipeline_analyzer", Family.OP_STATS, "also_all"),
        Tool("framework_op_stats", Family.OP_STATS, "also_all"),
        Tool("kernel_stats", Family.OP_STATS, "also_all"),
        Tool("pod_viewer", Family.OP_STATS, "only_all"),
        Tool("op_profile", Family.OP_STATS, parameters=("group_by",)),
        Tool("hlo_stats", Family.OP_STATS),
        Tool("roofline_model", Family.OP_STATS),
        Tool("trace_viewer@", Family.TRACE, parameters=_TRACE_PARAMETERS),
        Tool("graph_viewer", Family.HLO, parameters=_GRAPH_PARAMETERS),
        Tool(
            "memory_viewer",
            Family.HLO,
            parameters=("module_name", "program_id", "memory_space", "view_memory_allocation_timeline"),
        ),
        Tool("memory_profile", Family.FILES, "one"),
        Tool("trace_viewer", Family.FILES, "one", parameters=_TRACE_PARAMETERS),
        Tool("kernel_utilization", Family.FILES, "one", parameters=("module_name", "program_id")),
        Tool("inference_profile", Family.FILES),
        Tool("megascale_stats", Family.FILES, "also_all", parameters=("perfetto",)),
        Tool("perf_counters", Family.FILES, parameters=("names_only", "device_type")),
        Tool("utilization_viewer", Family.FILES),
        Tool("smart_suggestion", Family.FILES, "only_all"),
    )
}

INSPECTION: Final = Tool("tool_names", Family.HLO)
"""Not a view: what a session offers, its tools and modules, made and kept like one."""

_DEFAULTS: Final[Mapping[str, str]] = {
    "resolution": "8000",
    "full_dma": "false",
    "group_by": "program",
    "graph_width": "3",
    "show_metadata": "false",
    "merge_fusion": "false",
    "memory_space": "0",
    "perfetto": "false",
    "search_metadata": "false",
}
_BOOLEANS: Final = frozenset({"full_dma", "show_metadata", "merge_fusion", "perfetto", "search_metadata"})
_WINDOW: Final = frozenset({"resolution", "start_time_ms", "end_time_ms"})
_NUMBERS: Final = _WINDOW | {"duration_ms"}

# The order in which the stock server lists a session's tools; others follow by name.
_ORDER: Final = (
    "overview_page",
    "trace_viewer",
    "trace_viewer@",
    "graph_viewer",
    "op_profile",
    "hlo_op_profile",
    "input_pipeline_analyzer",
    "input_pipeline",
    "kernel_stats",
    "memory_profile",
    "memory_viewer",
    "roofline_model",
    "perf_counters",
    "pod_viewer",
    "framework_op_stats",
    "tensorflow_stats",
    "hlo_op_stats",
    "hlo_stats",
    "inference_profile",
    "megascale_stats",
)


def find_tool(tag: str | None) -> Tool:
    """The tool that a request's `tag` names (`^` at its end, an older spelling, is dropped).

    Raises:
        BadParameter: there is no tag.
        NotFound: no such tool.
    """
    if not tag:
        raise BadParameter("The parameter 'tag' is missing: it names the tool, as in tag=overview_page.")
    tool = TOOLS.get(tag.removesuffix("^"))
    if tool is None:
        raise NotFound(f"There is no tool named '{tag}'. Known tools: {', '.join(sorted(TOOLS))}.")
    return tool


def order_tools(names: Iterable[str]) -> list[str]:
    """The session's tool list as the stock server orders it, with `trace_viewer@` in place of `trace_viewer`."""
    found = set(names)
    if "trace_viewer@" in found:
        found.discard("trace_viewer")
    ordered = [name for name in _ORDER if name in found]
    return ordered + sorted(found.difference(ordered))


def listed_hosts(tool: Tool | None, hosts: Iterable[str]) -> list[str]:
    """The names that the UI offers for a tool: the hosts, `ALL_HOSTS`, or both. `hosts` are in order."""
    names = list(hosts)
    if len(names) > 1 and tool is not None:
        if tool.hosts == "only_all":
            return [ALL_HOSTS]
        if tool.hosts == "also_all":
            return sorted([ALL_HOSTS, *names])
    return names


def select_hosts(tool: Tool, known: Iterable[str], host: str | None, hosts: str | None, session: str) -> list[str]:
    """The hosts that a request selects, in the order the engine gets them.

    `hosts` (a comma list) counts for the trace viewer only. No host at all means all of them, or the first by name
    for a tool that takes one.

    Raises:
        NotFound: a named host is not in the session.
    """
    names = sorted(known)
    if hosts and tool.family is Family.TRACE:
        # A host's name may itself hold a comma: one that is known as a whole is not split.
        wanted = [hosts] if hosts in names else [part for part in hosts.split(",") if part] or names
    elif host and host != ALL_HOSTS:
        wanted = [host]
    elif tool.hosts == "one":
        wanted = names[:1]
    else:
        wanted = names
    for name in wanted:
        if name not in names:
            raise NotFound(
                f"There is no host '{name}' in session '{session}'. Its hosts: {', '.join(names[:20])}"
                f"{' and ' + str(len(names) - 20) + ' more' if len(names) > 20 else ''}."
            )
    return list(dict.fromkeys(wanted))


def canonical_parameters(tool: Tool, query: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The parameters that matter to the tool, with defaults filled in and spelled one way, sorted by name.

    Raises:
        BadParameter: a number that is none, or a name that reaches outside the session.
    """
    chosen: dict[str, str] = {}
    for name in tool.parameters:
        value = query.get(name)
        if name == "graph_width" and value is not None and not (value.isascii() and value.isdecimal()):
            value = None
        if value is None:
            value = _DEFAULTS.get(name)
        if value is None or (value == "" and name not in ("search_prefix", "event_name")):
            continue
        if name in _BOOLEANS:
            value = "true" if value.lower() == "true" else "false"
        elif name in _NUMBERS:
            value = _canonical_number(name, value)
        elif name == "unique_id":
            # Not through a float: these are 64-bit numbers.
            if not value.removeprefix("-").isdecimal() or not value.isascii():
                raise BadParameter(f"The parameter 'unique_id' must be a whole number, not '{value}'.")
        elif name in ("module_name", "device_type", "program_id"):
            _refuse_paths(name, value)
        chosen[name] = value
    if "event_name" in chosen and tool.family is Family.TRACE:
        chosen["format"] = "json"
        for name, exact in (("start_time_ms", exact_time), ("duration_ms", exact_length)):
            if name in chosen:
                chosen[name] = _spelled(exact(float(chosen[name])))
    elif tool.name == "trace_viewer@":
        window = {name: float(chosen[name]) for name in _WINDOW if name in chosen}
        chosen |= {name: _spelled(number) for name, number in shared_window(window).items()}
    if chosen.get("names_only") not in (None, "1"):
        del chosen["names_only"]
    if "view_memory_allocation_timeline" in chosen:
        chosen["view_memory_allocation_timeline"] = "true"
    return tuple(sorted(chosen.items()))


def _canonical_number(name: str, value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        raise BadParameter(f"The parameter '{name}' must be a number, not '{value}'.") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise BadParameter(f"The parameter '{name}' must be a finite number, not '{value}'.")
    if name == "resolution" and number < 0:
        raise BadParameter(f"The parameter 'resolution' must not be negative, as '{value}' is; 0 means everything.")
    return _spelled(number)


def _spelled(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(number)


def _refuse_paths(name: str, value: str) -> None:
    """A module's name becomes a file's name in the engine, so one that could leave its folder is refused here."""
    if "/" in value or "\\" in value or "\0" in value or value in (".", ".."):
        raise BadParameter(f"The parameter '{name}' is a plain name; '{value}' looks like a path.")
