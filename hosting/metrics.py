"""What each process counts, and how `/metrics` brings the counts of all replicas together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

REGISTRY: Final = CollectorRegistry()

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

REQUESTS: Final = Counter(
    "xprof_hosting_requests", "HTTP requests by route, tool and status.", ("route", "tool", "status"), registry=REGISTRY
)
REQUEST_SECONDS: Final = Histogram(
    "xprof_hosting_request_seconds", "Time to answer an HTTP request.", ("route",), buckets=_SECONDS, registry=REGISTRY
)
RESULTS: Final = Counter(
    "xprof_hosting_results",
    "Tool data answered, by where it came from: hit (result store), miss (made now), not_modified (the client has it).",
    ("tool", "outcome"),
    registry=REGISTRY,
)
PARSES_IN_FLIGHT: Final = Gauge("xprof_hosting_parses_in_flight", "Results being made now.", registry=REGISTRY)
PARSE_SECONDS: Final = Histogram(
    "xprof_hosting_parse_seconds", "Time to make a result, by tool.", ("tool",), buckets=_SECONDS, registry=REGISTRY
)
PARSE_BYTES: Final = Counter(
    "xprof_hosting_parse_bytes", "Bytes of the XPlane files that results were made from.", ("tool",), registry=REGISTRY
)
PARSE_FAILURES: Final = Counter(
    "xprof_hosting_parse_failures", "Results that could not be made, by reason.", ("tool", "code"), registry=REGISTRY
)
ENGINE_RESULTS: Final = Counter(
    "xprof_hosting_engine_results",
    "Results asked of an engine, by outcome: answered, or for the accelerated one refused (it says no) or failed (it "
    "crashed, or went over a limit), after which the reference engine is asked.",
    ("engine", "outcome"),
    registry=REGISTRY,
)
MAPS: Final = Counter(
    "xprof_hosting_maps", "Maps of one host, by family and where they ran.", ("family", "where"), registry=REGISTRY
)
HOT_SESSIONS: Final = Gauge(
    "xprof_hosting_hot_sessions", "Sessions, or hosts of one, on which more than one shard works.", registry=REGISTRY
)
DELEGATED: Final = Counter(
    "xprof_hosting_delegated",
    "Results of hot sessions handed to another shard, by outcome.",
    ("outcome",),
    registry=REGISTRY,
)
PREWARMED: Final = Counter(
    "xprof_hosting_prewarmed",
    "Results that were there or made before a person asked, by outcome.",
    ("outcome",),
    registry=REGISTRY,
)
DROPPED: Final = Counter(
    "xprof_hosting_dropped", "Results not made because all who had asked went away.", ("tool",), registry=REGISTRY
)
DOWNLOADS: Final = Counter(
    "xprof_hosting_downloads", "Files brought from a store, by outcome.", ("outcome",), registry=REGISTRY
)
DOWNLOADS.labels("ok")  # there from the start, so that a rate over it is
DOWNLOAD_BYTES: Final = Counter("xprof_hosting_download_bytes", "Bytes read from stores.", registry=REGISTRY)
CACHE_BYTES: Final = Gauge("xprof_hosting_cache_bytes", "Bytes in the machine's file cache.", registry=REGISTRY)
SESSIONS: Final = Gauge("xprof_hosting_sessions", "Sessions in the catalog.", registry=REGISTRY)


def exposition() -> str:
    """This process's counts in Prometheus' text format."""
    return generate_latest(REGISTRY).decode()


def merge(texts: Mapping[str, str]) -> bytes:
    """One exposition of many replicas', by a label `replica`."""
    return generate_latest(_Merged(texts))


class _Merged:
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for replica, text in sorted(self._texts.items()):
            for family in _families(text):
                kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    kept.samples.append(sample._replace(labels={**sample.labels, "replica": replica}))
        yield from families.values()


def _families(text: str) -> Iterable[Metric]:
    return (family for family in text_string_to_metric_families(text) if not family.name.endswith("_created"))
