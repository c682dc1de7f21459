"""Opens everything in one session over HTTP, as the XProf UI would, and says what came back."""

from __future__ import annotations

import gzip
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

API = "data/plugin/profile/"
TIMEOUT = 120.0  # seconds for one answer
ALL_HOSTS = "ALL_HOSTS"
MODULE_TOOLS = ("graph_viewer", "memory_viewer")
ROOT_INSTRUCTION = re.compile(r"ROOT %?([^\s=]+) =")

# What the UI sends besides run, tag and host.
PARAMETERS: dict[str, dict[str, str]] = {
    "trace_viewer@": {"replace_model": "true", "new_backend": "false", "resolution": "3640"},
    "op_profile": {"group_by": "program"},
    "memory_profile": {"host_id": "0"},
    "memory_viewer": {"memory_space": "0"},
    "graph_viewer": {"graph_type": "xla", "type": "graph", "format": "html", "graph_width": "3"},
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One request and what it got. `problem` is a sentence when the answer is not what a viewer needs."""

    tool: str
    host: str
    status: int
    body: bytes
    seconds: float
    problem: str | None = None


def check_session(address: str, session: str) -> list[Answer]:
    """Asks the service at `address` for the session's tools, their hosts, and the data of every tool and host."""
    runs, problem = _names(address, "runs")
    if problem is None and session not in json.loads(runs.body):
        problem = f"{session} is not among the runs"
    answers = [_with(runs, problem)]
    tools, problem = _names(address, "run_tools", run=session)
    answers.append(_with(tools, problem))
    if problem is None:
        for tool in json.loads(tools.body):
            answers += _check_tool(address, session, tool)
    return answers


def table(answers: Sequence[Answer]) -> str:
    """The answers as aligned text, with the problems below."""
    width = max(len(answer.tool) for answer in answers)
    host_width = max(len("host"), *(len(answer.host) for answer in answers))
    lines = [f"{'tool':<{width}}  {'host':<{host_width}}  status      bytes  seconds"]
    lines += [
        f"{a.tool:<{width}}  {a.host:<{host_width}}  {a.status or '-':>6}  {len(a.body):>9,}  {a.seconds:>7.3f}"
        + ("  FAILED" if a.problem else "")
        for a in answers
    ]
    lines += [f"FAILED {a.tool} {a.host}: {a.problem}" for a in answers if a.problem]
    return "\n".join(lines)


def _check_tool(address: str, session: str, tool: str) -> list[Answer]:
    hosts, problem = _names(address, "hosts", run=session, tag=tool)
    if problem is not None:
        return [_with(hosts, problem)]
    answers = []
    for host in [entry["hostname"] for entry in json.loads(hosts.body)] or [""]:
        parameters = {"run": session, "tag": tool, "host": host, **PARAMETERS.get(tool, {})}
        if tool in MODULE_TOOLS:
            module = _fill_module(address, parameters)
            if module is not None:
                answers.append(module)
                continue
        answers.append(_data(address, parameters))
    return answers


def _fill_module(address: str, parameters: dict[str, str]) -> Answer | None:
    """Chooses an HLO module, and for the graph one of its instructions; the answer that failed, or None."""
    modules = _get(address, "module_list", {key: parameters[key] for key in ("run", "tag", "host")})
    names = [name for name in modules.body.decode(errors="replace").split(",") if name]
    if modules.status != 200 or not names:
        return _with(modules, _complaint(modules) or "no HLO module is listed")
    # The step that trains is what a person would look at; a foreign session has other names.
    parameters["module_name"] = next((name for name in names if "train_step" in name), names[0])
    if parameters["tag"] == "graph_viewer":
        text = _get(address, "data", {**parameters, "type": "long_txt"})
        roots = ROOT_INSTRUCTION.findall(text.body.decode(errors="replace"))
        if text.status != 200 or not roots:
            return _with(text, _complaint(text) or "the text of the HLO module has no ROOT instruction")
        parameters["node_name"] = roots[-1]
    return None


def _data(address: str, parameters: dict[str, str]) -> Answer:
    answer = _get(address, "data", parameters)
    problem = _complaint(answer)
    if problem is None and parameters["tag"] == "trace_viewer@" and not json.loads(answer.body).get("traceEvents"):
        problem = "the timeline has no events"
    return _with(answer, problem)


def _names(address: str, route: str, **parameters: str) -> tuple[Answer, str | None]:
    """A route that answers a JSON list, and what is wrong with the answer."""
    answer = _get(address, route, parameters)
    problem = _complaint(answer)
    if problem is None and json.loads(answer.body) == []:
        problem = "the list is empty"
    return answer, problem


def _get(address: str, route: str, parameters: dict[str, str]) -> Answer:
    query = f"?{urlencode(parameters)}" if parameters else ""
    tool = parameters.get("tag", route) if route == "data" else route
    # Loopback is asked directly, whatever proxy the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    started = time.perf_counter()
    status, body, problem, content_type = 0, b"", None, ""
    try:
        with opener.open(f"{address}{API}{route}{query}", timeout=TIMEOUT) as response:
            status, body, content_type = response.status, response.read(), response.headers.get("Content-Type", "")
            # Not asked for, but proxies, and the stock server, send it all the same.
            if response.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    except OSError as error:
        problem = f"no answer: {error}"
    seconds = time.perf_counter() - started
    if problem is None and status == 200 and content_type.startswith("application/json"):
        try:
            json.loads(body)
        except ValueError as error:
            problem = f"not JSON, although its type says so: {error}"
    return Answer(tool, parameters.get("host", ""), status, body, seconds, problem)


def _complaint(answer: Answer) -> str | None:
    if answer.problem is not None:
        return answer.problem
    if answer.status != 200:
        return f"{answer.status} {answer.body[:200].decode(errors='replace')}"
    return None if answer.body else "the answer is empty"


def _with(answer: Answer, problem: str | None) -> Answer:
    return Answer(answer.tool, answer.host, answer.status, answer.body, answer.seconds, problem)
