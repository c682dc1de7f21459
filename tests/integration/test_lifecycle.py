"""Starting and stopping: what `xprof-hosting serve` says, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from hosting.free_ports import free_ports
from hosting.service_process import READY_LINE
from tests.session_folder import add_session

ROOT = Path(__file__).parent.parent.parent
API = "data/plugin/profile/"
MARK = "LIFECYCLE_TEST_MARK"
STARTS_WITHIN = 60.0  # seconds, on a busy machine
STOPS_WITHIN = 15.0
OVERVIEW = {"run": "demo/s1", "tag": "overview_page"}


@dataclass
class Serve:
    """One `xprof-hosting serve`, with a temporary folder of its own and a mark that all its descendants inherit."""

    process: subprocess.Popen[bytes]
    mark: str
    temporary: Path
    output: Path
    errors: Path
    address: str = ""

    def wait_until_ready(self) -> None:
        until(lambda: self.process.poll() is not None or READY_LINE.search(self.output.read_text()), STARTS_WITHIN)
        found = READY_LINE.search(self.output.read_text())
        assert found, f"exit status {self.process.poll()}: {self.errors.read_text()[-3000:]}"
        self.address = found[1]

    def get(self, path: str, **query: str) -> httpx.Response:
        return httpx.get(f"{self.address}{path}", params=query, timeout=60)

    def signal(self, number: signal.Signals) -> int:
        """Sends SIGTERM to it alone and SIGINT, as a terminal does, to its whole process group. The exit status."""
        (os.killpg if number == signal.SIGINT else os.kill)(self.process.pid, number)
        return self.process.wait(STOPS_WITHIN)

    def left(self) -> list[str]:
        """The command lines of its descendants that are still there, adopted ones included."""
        return [" ".join(process.cmdline()) for process in marked(self.mark) if process.pid != self.process.pid]


def until(condition: Callable[[], object], within: float) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {within:g} s"
        time.sleep(0.02)


def is_alive(process: psutil.Process) -> bool:
    """Neither gone nor dead and only waiting for its parent to notice."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked(mark: str) -> list[psutil.Process]:
    """The processes that have inherited a mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and is_alive(process):
                found.append(process)
    return found


@contextmanager
def serving(folder: Path, *arguments: str | Path, environment: Mapping[str, str] | None = None) -> Iterator[Serve]:
    """`serve` with these arguments, in a process group of its own; whatever is left of it is killed at the end."""
    mark = uuid.uuid4().hex
    # Short, as paths of Unix sockets have to be.
    temporary = Path(tempfile.mkdtemp(prefix="xh-", dir="/tmp"))
    output, errors = folder / f"{mark}.out", folder / f"{mark}.err"
    command = [sys.executable, "-m", "hosting.cli", "serve", *map(str, arguments)]
    variables = {**os.environ, MARK: mark, "TMPDIR": str(temporary), **(environment or {})}
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=variables, cwd=ROOT, start_new_session=True
        )
    try:
        yield Serve(process, mark, temporary, output, errors)
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOPS_WITHIN)
        kill(marked(mark))
        process.wait()
        shutil.rmtree(temporary, ignore_errors=True)


def kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def assert_nothing_left(serve: Serve, children: Sequence[psutil.Process] = ()) -> None:
    assert serve.left() == []
    assert [process for process in children if is_alive(process)] == []
    assert [path.name for path in serve.temporary.iterdir()] == []


def refused(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit status of a `serve` that does not start, and the one line that it says."""
    command = [sys.executable, "-m", "hosting.cli", "serve", *map(str, arguments)]
    variables = {**os.environ, **(environment or {})}
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=ROOT, timeout=60, check=False)
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lifecycle")


@pytest.fixture(scope="module")
def logs(folder: Path, cpu_session: Path) -> Path:
    """A log root with a session of one host."""
    add_session(folder / "logs", "demo", "s1", {"host": next(cpu_session.glob("*.xplane.pb"))})
    return folder / "logs"


@pytest.fixture(scope="module")
def neighbour(folder: Path, logs: Path) -> Iterator[Serve]:
    """An instance that runs beside all others."""
    with serving(folder, "--logdir", logs, "--port", "0", "--state-dir", folder / "neighbour") as serve:
        serve.wait_until_ready()
        yield serve


def test_one_line_on_standard_output_says_where_it_is_ready(neighbour: Serve) -> None:
    assert neighbour.get(f"{API}runs").json() == ["demo/s1"]
    assert re.fullmatch(r"XProf hosting is ready at http://127\.0\.0\.1:\d+/\n", neighbour.output.read_text())
    assert httpx.URL(neighbour.address).port not in (0, 8791, None)


def test_sigterm_leaves_nothing_behind_and_what_was_made_is_found_again_after_a_restart(
    folder: Path, logs: Path, neighbour: Serve
) -> None:
    state = folder / "restarted"
    arguments = ("--logdir", logs, "--port", "0", "--state-dir", state)
    with serving(folder, *arguments) as first:
        first.wait_until_ready()
        made = first.get(f"{API}data", **OVERVIEW)
        assert made.status_code == 200
        children = psutil.Process(first.process.pid).children(recursive=True)
        assert any("raylet" in child.name() for child in children)
        assert list(first.temporary.glob("xprof-hosting-ray-*"))
        assert first.signal(signal.SIGTERM) == 0
        assert_nothing_left(first, children)
        assert first.output.read_text().count("\n") == 1
    assert neighbour.get(f"{API}data", **OVERVIEW).status_code == 200

    log = state / "logs" / "xprof-hosting.jsonl"
    before = len(log.read_text().splitlines())
    with serving(folder, *arguments) as second:
        second.wait_until_ready()
        again = second.get(f"{API}data", **OVERVIEW)
        assert (again.status_code, again.headers["etag"], again.content) == (200, made.headers["etag"], made.content)
        hits = re.search(
            r'^xprof_hosting_results_total\{outcome="hit",.*tool="overview_page"\} 1\.0$',
            second.get("metrics").text,
            re.M,
        )
        assert hits
    lines = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    assert "ready" in {line["message"] for line in lines}
    assert not {"made a result", "mapped a host"} & {line["message"] for line in lines}


def test_a_service_without_sessions_says_where_it_looked_and_ctrl_c_stops_it(folder: Path, neighbour: Serve) -> None:
    (folder / "empty").mkdir()
    missing = folder / "nowhere"
    arguments = ("--logdir", folder / "empty", "--logdir", f"gone={missing}", "--port", "0")
    with serving(folder, *arguments, "--state-dir", folder / "sessionless") as serve:
        serve.wait_until_ready()
        page = serve.get("")
        assert page.status_code == 200
        for words in ("No profiles found", str(folder / "empty"), str(missing), "plugins/profile/", ".xplane.pb"):
            assert words in page.text
        assert "does not exist" in page.text
        assert serve.get(f"{API}runs").json() == []
        roots = {root["name"]: root for root in serve.get("v1/sessions").json()["roots"]}
        assert (roots["empty"]["status"], roots["gone"]["status"]) == ("empty", "missing")
        assert "does not exist" in roots["gone"]["message"]
        children = psutil.Process(serve.process.pid).children(recursive=True)
        assert serve.signal(signal.SIGINT) == 0
        assert_nothing_left(serve, children)
    assert neighbour.get(f"{API}runs").json() == ["demo/s1"]


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("instance.lock", signal.SIGTERM),
        ("raylet", signal.SIGINT),
        ("ServeController", signal.SIGTERM),
    ],
)
def test_a_signal_while_it_starts_leaves_nothing_behind(
    folder: Path, logs: Path, moment: str, number: signal.Signals
) -> None:
    state = Path(tempfile.mkdtemp(dir=folder))
    with serving(folder, "--logdir", logs, "--port", "0", "--state-dir", state) as serve:
        until(lambda: (state / moment).exists() or any(moment in line for line in serve.left()), STARTS_WITHIN)
        assert serve.signal(number) == 0, serve.errors.read_text()[-2000:]
        assert_nothing_left(serve)
        assert serve.output.read_text() == ""


def test_a_second_instance_on_the_same_state_folder_is_refused(folder: Path, logs: Path, neighbour: Serve) -> None:
    status, said = refused("--logdir", logs, "--port", "0", "--state-dir", folder / "neighbour")
    assert status == 1
    assert str(folder / "neighbour") in said
    assert "--state-dir" in said
    assert neighbour.get("healthz").status_code == 200


def test_a_taken_port_is_refused(folder: Path, logs: Path, neighbour: Serve) -> None:
    port = str(httpx.URL(neighbour.address).port)
    status, said = refused("--logdir", logs, "--port", port, "--state-dir", folder / "other")
    assert status == 1
    assert f"127.0.0.1:{port}" in said
    assert "--port" in said
    assert neighbour.get("healthz").status_code == 200


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--logdir", "/x", "--host", "0.0.0.0"], 2, ["0.0.0.0", "no authentication", "--insecure-no-auth"]),
        ([], 2, ["No log root", "--logdir"]),
        (["--logdir", "hdfs://name/x"], 2, ["hdfs://", "gs://", "s3://", "local folder"]),
        (["--logdir", "a=/x", "--logdir", "a=/y"], 2, ["'a'", "/x", "/y"]),
        (["--logdir", "/x", "--port", "many"], 2, ["--port"]),
        (["--logdir", "/x", "--shards", "0"], 2, ["--shards"]),
        (["--logdir", "/x", "--log-level", "loud"], 2, ["--log-level", "debug"]),
        (["--logdir", "/x", "--no-such-flag"], 2, ["--no-such-flag"]),
        (["--logdir", "/x", "--config", "/no/such/file.toml"], 2, ["/no/such/file.toml"]),
        (["--logdir", "/x", "--state-dir", "/proc/1/x"], 1, ["/proc/1/x", "--state-dir"]),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(
    folder: Path, arguments: Sequence[str], status: int, words: Sequence[str]
) -> None:
    state = [] if "--state-dir" in arguments else ["--state-dir", str(folder / "unused")]
    found, said = refused(*arguments, *state)
    assert found == status, said
    for word in words:
        assert word in said


def test_a_settings_file_that_cannot_be_read_is_refused_in_a_sentence(folder: Path) -> None:
    config = folder / "broken.toml"
    config.write_text("port = \n")
    status, said = refused("--config", config)
    assert status == 2
    assert str(config) in said
    assert "line 1" in said
    config.write_text("prot = 1\nlogdir = ['/x']\n")
    status, said = refused("--config", config)
    assert status == 2
    assert "prot" in said


@pytest.fixture
def cluster(folder: Path) -> Iterator[str]:
    """A Ray cluster of somebody else; its address."""
    mark = uuid.uuid4().hex
    temporary = Path(tempfile.mkdtemp(prefix="xr-", dir="/tmp"))
    [port] = free_ports(1)
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.2", "--include-dashboard=false", f"--temp-dir={temporary}", "--num-cpus=8"]
    command += ["--object-store-memory=200000000", "--dashboard-agent-listen-port=0", "--min-worker-port=0"]
    command += ["--max-worker-port=0", "--disable-usage-stats"]
    variables = {**os.environ, MARK: mark, "RAY_AUTH_MODE": "disabled"}
    with (folder / "cluster.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=variables, cwd=temporary, start_new_session=True
        )
    try:
        until(lambda: _accepts("127.0.0.2", port), STARTS_WITHIN)
        until(lambda: any(found.name() == "raylet" for found in marked(mark)), STARTS_WITHIN)
        yield f"127.0.0.2:{port}"
        assert process.poll() is None
    finally:
        kill(marked(mark))
        process.wait()
        shutil.rmtree(temporary, ignore_errors=True)


def _accepts(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def test_it_runs_on_an_existing_cluster_and_leaves_it_as_it_was(folder: Path, logs: Path, cluster: str) -> None:
    # Paths that mean something in our folder and not in the cluster's.
    ours = ("--ray-address", cluster, "--logdir", os.path.relpath(logs, ROOT), "--port", "0")
    # One after the other, each with another port and folder: nothing of the first is in the way of the second.
    for front in ("direct", "haproxy"):
        state = folder / f"guest-{front}"
        with serving(folder, *ours, "--front", front, "--state-dir", os.path.relpath(state, ROOT)) as serve:
            serve.wait_until_ready()
            assert serve.get(f"{API}data", **OVERVIEW).status_code == 200
            assert len(list((state / "results").glob("*/*"))) == 1
            if front == "direct":
                status, said = refused(*ours, "--state-dir", folder / "third")
                assert (status, "Ray Serve is running on this cluster already" in said) == (1, True)
                assert serve.get("healthz").status_code == 200
            assert serve.signal(signal.SIGTERM) == 0
            assert_nothing_left(serve)
            assert not _accepts("127.0.0.1", httpx.URL(serve.address).port or 0)


def test_a_cluster_that_is_not_there_is_refused(folder: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    status, said = refused("--ray-address", address, "--logdir", "/x", "--port", "0", "--state-dir", folder / "unused")
    assert status == 1
    assert f"No Ray cluster answers at {address}" in said
    assert "--ray-address" in said
