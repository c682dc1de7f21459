"""Which requests the accelerated engine is trusted with."""

from __future__ import annotations

import json
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.parity import Comparison, verdicts
from benchmarks.same_answer import same_answer
from loaders.engines import tasks, trust
from loaders.engines.trust import TABLE, TrustTable, case_of, engine_key, trusted
from loaders.tools import TOOLS, Family

GPU = "GPU, one host"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the versions of the table were installed."""
    monkeypatch.setattr(trust, "accelerated_version", lambda: TrustTable.read().xprof_rs)


def test_the_packaged_table_is_of_the_reference_engine_that_is_installed() -> None:
    table = TrustTable.read()
    assert table.xprof == version("xprof")
    assert date.fromisoformat(table.date) >= date(2026, 12, 1)
    assert any(name.startswith("gpu/") for name in table.profiles)
    assert any(name.startswith("tpu/") for name in table.profiles)


def test_a_tool_is_trusted_only_in_the_cases_that_were_equal(installed: None) -> None:
    group = (("group_by", "program"),)
    assert trusted("op_profile", group, GPU)
    assert not trusted("op_profile", group, "GPU+TPU, one host")
    assert not trusted("overview_page", (), GPU)
    assert trusted("op_profile", group)
    assert not trusted("no_such_tool", ())


def test_parameters_that_were_not_compared_are_not_trusted(installed: None) -> None:
    assert trusted("op_profile", (("group_by", "category"),), GPU)
    assert not trusted("op_profile", (("group_by", "something"),), GPU)
    assert not trusted("kernel_stats", (("names_only", "1"),), GPU)


def test_tools_with_free_parameters_are_never_trusted(installed: None) -> None:
    free = [name for name, tool in TOOLS.items() if tool.family in (Family.HLO, Family.TRACE)]
    assert {"trace_viewer@", "graph_viewer", "memory_viewer"} <= set(free)
    table = TrustTable.read()
    for name in [*free, "trace_viewer"]:
        assert not any(verdict.trusted for verdict in table.tools.get(name, {}).values()), name


def test_nothing_is_trusted_with_other_versions(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trusted("kernel_stats", (), GPU)
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "ENGINE", "xprof 2.24.3")
        assert not trusted("kernel_stats", (), GPU)
    for other in ("0.1.4", None):
        monkeypatch.setattr(trust, "accelerated_version", lambda other=other: other)
        assert not trusted("kernel_stats", (), GPU)


def test_a_case_is_named_by_devices_and_by_whether_hosts_are_several() -> None:
    gpu, tpu, cpu = ("/device:GPU:0", "/device:GPU:1", "/host:CPU"), ("/device:TPU:0",), ("/host:CPU",)
    assert case_of([gpu]) == GPU
    assert case_of([gpu, gpu, cpu]) == "GPU, several hosts"
    assert case_of([gpu, tpu]) == "GPU+TPU, several hosts"
    assert case_of([cpu]) == "CPU, one host"


def test_results_are_kept_apart_only_where_the_accelerated_engine_is_preferred() -> None:
    assert engine_key("auto") == engine_key("xprof") == tasks.ENGINE
    assert engine_key("xprof-rs") != tasks.ENGINE


def test_a_verdict_wants_equal_answers_with_something_in_them() -> None:
    asked = Comparison("gpu/one", "kernel_stats", "host", (("a", "1"),), GPU)
    equal = Comparison("gpu/one", "kernel_stats", "host", (("a", "2"),), GPU, telling=True)
    other = Comparison("gpu/one", "kernel_stats", "host", (("a", "1"),), GPU, telling=True, difference=".x: 1 is not 2")
    refused = Comparison("gpu/one", "kernel_stats", "host", (("a", "3"),), GPU, refused=True)

    def verdict(*comparisons: Comparison) -> trust.Verdict:
        return verdicts(comparisons)["kernel_stats"][GPU]

    assert not verdict(asked).trusted
    assert not verdict(refused).trusted
    assert not verdict(equal, other).trusted
    found = verdict(asked, equal, refused)
    assert found.trusted
    assert (found.compared, found.telling, found.refused) == (2, 1, 1)
    assert found.parameters == {"a": ["1", "2"]}


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    copy = tmp_path / "table.json"
    copy.write_text(json.dumps(json.loads(TABLE.read_bytes())))
    assert TrustTable.read(copy) == TrustTable.read()


def test_rows_in_another_order_are_another_answer_where_order_counts() -> None:
    rows, turned = b'{"rows": [1, 2], "bind_id": 1}', b'{"rows": [2, 1], "bind_id": 2}'
    assert same_answer("kernel_stats", rows, turned) is None
    assert same_answer("kernel_stats", rows, turned, in_order=True) is not None
    assert same_answer("kernel_stats", rows, rows.replace(b": 1}", b": 3}"), in_order=True) is None
