"""Sessions that are warm before anybody asks for them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
import pytest

from hosting.service_process import ServiceProcess
from tests.session_folder import add_session

API = "data/plugin/profile/"


@pytest.mark.slow
def test_a_session_that_arrives_is_made_before_anybody_opens_it(cpu_session: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    hosts = {path.name.removesuffix(".xplane.pb"): path for path in sorted(cpu_session.glob("*.xplane.pb"))}
    arguments = ["--logdir", str(root), "--port", "0", "--state-dir", str(tmp_path / "state"), "--prewarm", "all"]
    with (
        ServiceProcess([*arguments, "--shards", "1"], log=tmp_path / "log") as service,
        httpx.Client(base_url=service.address, timeout=60) as client,
    ):
        add_session(root, "run", "new", hosts)
        deadline = time.monotonic() + 60
        # Its tools, an overview and a trace, at least.
        while _made(client) < 8:
            assert time.monotonic() < deadline, client.get("metrics").text
            time.sleep(0.3)
        tools = client.get(f"{API}run_tools", params={"run": "run/new"}).json()
        assert "overview_page" in tools
        overview = client.get(f"{API}data", params={"run": "run/new", "tag": "overview_page", "host": "ALL_HOSTS"})
        assert overview.status_code == 200
        metrics = client.get("metrics").text
        assert 'results_total{outcome="miss"' not in metrics.replace("xprof_hosting_", "")
        assert re.search(r'xprof_hosting_results_total{outcome="hit",.*tool="overview_page"} 1.0', metrics)


def _made(client: httpx.Client) -> float:
    found = re.findall(r'^xprof_hosting_prewarmed_total{outcome="done",.*} (\S+)', client.get("metrics").text, re.M)
    return sum(float(count) for count in found)
