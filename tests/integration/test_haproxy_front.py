"""The service behind Ray Serve's HAProxy instead of its Python proxy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

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
        assert any("haproxy" in name for name in _names(family))
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


def _names(processes: list[psutil.Process]) -> list[str]:
    names = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return names
