from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from hosting import service_process
from hosting.demo_check import check_session, table
from hosting.service_process import ServiceNotReady, ServiceProcess

ROOT = Path(__file__).parent.parent.parent
Answers = dict[str, tuple[int, str, bytes]]

GOOD: Answers = {
    "runs": (200, "application/json", b'["demo/s"]'),
    "run_tools": (200, "application/json", b'["trace_viewer@", "graph_viewer"]'),
    "hosts": (200, "application/json", b'[{"hostname": "a"}, {"hostname": "b"}]'),
    "module_list": (200, "text/plain", b"jit_other(1),jit_train_step(2)"),
    "trace_viewer@": (200, "application/json", b'{"traceEvents": [{}]}'),
    "graph_viewer": (200, "text/html", b"<html>"),
    "long_txt": (200, "application/octet-stream", b"ENTRY main { ROOT tuple.7 = f32[] tuple() }"),
}


@contextmanager
def server(answers: Answers, asked: list[dict[str, str]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            asked.append(query)
            route = url.path.rsplit("/", 1)[1]
            if route == "data":
                route = "long_txt" if query.get("type") == "long_txt" else query["tag"]
            status, kind, body = answers[route]
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def test_the_check_opens_every_tool_on_every_host_with_a_module_and_a_node() -> None:
    asked: list[dict[str, str]] = []
    with server(GOOD, asked) as address:
        answers = check_session(address, "demo/s")
    assert [(a.tool, a.host, a.problem) for a in answers] == [
        ("runs", "", None),
        ("run_tools", "", None),
        ("trace_viewer@", "a", None),
        ("trace_viewer@", "b", None),
        ("graph_viewer", "a", None),
        ("graph_viewer", "b", None),
    ]
    assert (asked[-1]["module_name"], asked[-1]["node_name"]) == ("jit_train_step(2)", "tuple.7")


@pytest.mark.parametrize(
    ("route", "answer", "problem"),
    [
        ("runs", (200, "application/json", b'["other"]'), "demo/s is not among the runs"),
        ("run_tools", (200, "application/json", b"[]"), "the list is empty"),
        ("hosts", (404, "text/plain", b"gone"), "404 gone"),
        ("module_list", (200, "text/plain", b""), "the answer is empty"),
        ("trace_viewer@", (200, "application/json", b'{"traceEvents": []}'), "the timeline has no events"),
        ("trace_viewer@", (200, "application/json", b"{"), "not JSON, although its type says so"),
        ("graph_viewer", (500, "text/plain", b"broken"), "500 broken"),
    ],
)
def test_the_check_fails_on_answers_that_a_viewer_cannot_use(
    route: str, answer: tuple[int, str, bytes], problem: str
) -> None:
    with server({**GOOD, route: answer}, []) as address:
        answers = check_session(address, "demo/s")
    problems = [a.problem for a in answers if a.problem]
    assert problems
    assert all(problem in each for each in problems)
    assert f"FAILED {next(a.tool for a in answers if a.problem)}" in table(answers)


def test_the_check_fails_on_a_service_that_does_not_answer() -> None:
    with server(GOOD, []) as address:
        pass
    answers = check_session(address, "demo/s")
    assert all(a.problem is not None and "no answer" in a.problem for a in answers)


def test_a_service_that_ends_at_its_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    process = ServiceProcess(["--no-such-flag"], log=tmp_path / "log")
    with pytest.raises(ServiceNotReady, match=r"ended with exit code 2(.|\n)*--no-such-flag"), process:
        pass


def test_a_service_that_is_never_ready_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = ServiceProcess([], log=tmp_path / "log", ready_within=0.2)
    monkeypatch.setattr(process, "_command", [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(service_process, "STOP_WITHIN", 5.0)
    with pytest.raises(ServiceNotReady, match=r"not ready within 0\.2 s"), process:
        pass
    assert process.wait() != 0


@pytest.mark.slow
def test_the_demo_captures_serves_and_checks_its_session() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hosting.cli", "demo", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 hosts" in done.stdout
    assert "0 failed" in done.stdout
    for tool in ("overview_page", "trace_viewer@", "graph_viewer", "memory_viewer", "op_profile"):
        assert tool in done.stdout
