"""The service behind Ray Serve's HAProxy."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from hosting.demo_check import check_session
from hosting.service_process import ServiceProcess
from tests.session_folder import add_session

API = "data/plugin/profile/"


def test_everything_answers_through_haproxy_and_ends_with_the_service(tmp_path: Path, cpu_session: Path) -> None:
    hosts = {path.name.removesuffix(".xplane.pb"): path for path in sorted(cpu_session.glob("*.xplane.pb"))}
    add_session(tmp_path / "logs", "run", "two", hosts)
    arguments = ["--logdir", str(tmp_path / "logs"), "--port", "0", "--state-dir", str(tmp_path / "state")]
    with ServiceProcess([*arguments, "--front", "haproxy"], log=tmp_path / "log") as service:
        family = psutil.Process(service.pid).children(recursive=True)
        # Two for a moment, when it takes up a gateway that has joined.
        proxies = [process for process in family if "haproxy" in _name(process)]
        assert proxies
        assert {found.laddr.ip for proxy in proxies for found in _connections(proxy)} == {"127.0.0.1"}
        answers = check_session(service.address, "run/two")
        assert [answer for answer in answers if answer.problem] == []
        assert len(answers) > 15
        with httpx.Client(base_url=service.address) as client:
            first = client.get(f"{API}data", params={"run": "run/two", "tag": "overview_page"})
            held = {"if-none-match": first.headers["etag"]}
            assert (
                client.get(f"{API}data", params={"run": "run/two", "tag": "overview_page"}, headers=held).status_code
                == 304
            )
            missing = client.get(f"{API}data", params={"run": "run/none", "tag": "overview_page"})
            assert missing.status_code == 404
            assert missing.headers.get_list("x-request-id")
            assert client.get(f"{service.address}//data/plugin/profile/runs").json() == ["run/two"]
    _, left = psutil.wait_procs(family, timeout=10)
    assert left == []


def test_what_a_dying_gateway_has_not_answered_is_asked_of_another(tmp_path: Path, cpu_session: Path) -> None:
    add_session(tmp_path / "logs", "run", "s", {"host": next(cpu_session.glob("*.xplane.pb"))})
    arguments = ["--logdir", str(tmp_path / "logs"), "--port", "0", "--state-dir", str(tmp_path / "state")]
    with ServiceProcess([*arguments, "--front", "haproxy"], log=tmp_path / "log") as service:
        family = psutil.Process(service.pid).children(recursive=True)
        gateways = [process for process in family if "gateway" in " ".join(process.cmdline())]
        assert len(gateways) == 2
        with ThreadPoolExecutor(6) as pool:
            tags = ("overview_page", "kernel_stats", "op_profile", "hlo_stats", "framework_op_stats", "roofline_model")
            query = {"run": "run/s", "host": "host"}
            asked = [
                pool.submit(httpx.get, f"{service.address}{API}data", params={**query, "tag": tag}, timeout=60)
                for tag in tags
            ]
            time.sleep(0.1)
            assert not any(answer.done() for answer in asked)
            gateways[0].kill()
            assert [answer.result().status_code for answer in asked] == [200] * len(tags)


def _connections(process: psutil.Process) -> list[Any]:
    try:
        return list(process.net_connections("tcp"))
    except psutil.Error:
        return []


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return ""
