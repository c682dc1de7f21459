"""Which tools the accelerated engine is trusted with: those whose answers were found equal to the reference engine's.

The table beside this module is written by `python -m benchmarks.parity --write`, which compares the two engines on real
profiles, case by case: a tool that is right about one GPU host may be wrong about several, or about a TPU. It speaks of
two exact versions: with any other, nothing is trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Final

from loaders.engines import tasks

TABLE: Final = Path(__file__).with_name("trust.json")
_DISTRIBUTION: Final = "xprof-rs"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison of one tool in one case has shown."""

    trusted: bool
    compared: int
    """Answers that were compared."""
    telling: int
    """Those among them that say something: two empty tables are equal, but prove nothing."""
    refused: int
    """Answers that the accelerated engine did not give, which does not count against it."""
    parameters: Mapping[str, Sequence[str]]
    """The values of the tool's parameters that were compared; a request with any other is not trusted."""
    difference: str | None
    """Where the first unequal answer differs."""


@dataclass(frozen=True, slots=True)
class TrustTable:
    """The outcome of a parity run."""

    date: str
    xprof: str
    xprof_rs: str
    profiles: Sequence[str]
    """The sessions that were compared, in words."""
    tools: Mapping[str, Mapping[str, Verdict]]
    """By tool and case."""

    @classmethod
    def read(cls, path: Path = TABLE) -> TrustTable:
        """The table that is part of this package."""
        fields = json.loads(path.read_bytes())
        tools = {
            tool: {case: Verdict(**verdict) for case, verdict in cases.items()}
            for tool, cases in fields.pop("tools").items()
        }
        return cls(**fields, tools=tools)

    def trusts(self, tool: str, parameters: Sequence[tuple[str, str]], case: str | None = None) -> bool:
        """Whether answers to this request were compared and found equal; in any case at all when none is given."""
        cases = self.tools.get(tool, {})
        verdicts = cases.values() if case is None else [cases[case]] if case in cases else []
        return any(
            verdict.trusted and all(value in verdict.parameters.get(name, ()) for name, value in parameters)
            for verdict in verdicts
        )


def trusted(tool: str, parameters: Sequence[tuple[str, str]] = (), case: str | None = None) -> bool:
    """Whether the accelerated engine's answer may stand for the reference engine's, with the versions installed here.

    Args:
        tool: a tool's name.
        parameters: canonical ones, as a job has them.
        case: as `case_of` names it; None asks whether there is any case for which it may.
    """
    table = _table()
    current = (tasks.ENGINE.split()[-1], accelerated_version())
    return current == (table.xprof, table.xprof_rs) and table.trusts(tool, parameters, case)


def case_of(planes: Iterable[Iterable[str]]) -> str:
    """The case that hosts make, from the names of each one's planes: what devices there are, and whether one host or
    several, as in "GPU, one host". A host's own plane is no device."""
    hosts = list(planes)
    devices = {name.split(":")[1] for names in hosts for name in names if name.startswith("/device:")}
    return f"{'+'.join(sorted(devices)) or 'CPU'}, {'one host' if len(hosts) == 1 else 'several hosts'}"


@cache
def accelerated_version() -> str | None:
    """The version of xprof-rs that is installed here; None where it is not."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return None


@cache
def accelerated_binary() -> Path | None:
    """The program of the installed xprof-rs; None where it is not."""
    try:
        files = distribution(_DISTRIBUTION).files or []
    except PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.name == _DISTRIBUTION]
    return next((path.resolve() for path in found if path.is_file()), None)


def engine_key(choice: str) -> str:
    """The engine's part of every result's key: where the operator prefers the accelerated engine whether or not its
    answers are equal, results are kept apart from the reference engine's."""
    return f"{tasks.ENGINE} or xprof-rs {accelerated_version()}" if choice == "xprof-rs" else tasks.ENGINE


@cache
def _table() -> TrustTable:
    return TrustTable.read()
