"""The command line. Exit status: 0 done, 1 failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from hosting.cannot_serve import CannotServe
from hosting.serve import serve_forever
from hosting.settings import Settings, default_server, load_settings
from loaders.errors import BadParameter, ProfileError

_REQUEST_SECONDS: Final = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        status: int = given.run(given)
    except (BadParameter, FileNotFoundError) as error:
        print(f"xprof-hosting: {error}", file=sys.stderr)
        return 2
    except (CannotServe, ProfileError) as error:
        print(f"xprof-hosting: {error}", file=sys.stderr)
        return 1
    except ValidationError as error:
        for item in error.errors():
            name = "--" + str(item["loc"][0]).replace("_", "-") if item["loc"] else "settings"
            print(f"xprof-hosting: {name}: {item['msg']}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output has enough; Python would complain about the rest at its exit.
        sys.stdout = None
        return 1
    except KeyboardInterrupt:
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="xprof-hosting", description="XProf for many people and many profiles.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="start the service on this machine",
        description="Starts the service. Each flag is also an environment variable XPROF_HOSTING_<NAME> and a key of "
        "the settings file.",
    )
    serve.add_argument("--config", type=Path, help="Settings file (TOML).")
    for name, field in Settings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        if field.annotation is bool:
            serve.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=field.description)
        elif name == "logdir":
            serve.add_argument(flag, action="append", metavar="[NAME=]URI", help=field.description)
        else:
            serve.add_argument(flag, metavar=name.rsplit("_", 1)[-1].upper(), help=field.description)
    serve.set_defaults(run=_serve)

    demo = commands.add_parser("demo", help="train on two CPU hosts, capture them, and open the capture")
    demo.add_argument("--check", action="store_true", help="open every tool over HTTP, say what was seen, and end")
    demo.add_argument("--port", type=int, default=0, help="port to listen on; 0 picks a free one")
    demo.set_defaults(run=_demo)

    for name, what, run in (
        ("sessions", "list the sessions of a running service", _sessions),
        ("doctor", "say how a running service and its log roots are", _doctor),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("--server", default=None, help="the service's address")
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=run)
        if name == "sessions":
            command.add_argument("query", nargs="?", default="", help="only those whose name contains this")
    return parser


def _serve(given: argparse.Namespace) -> int:
    flags = {name: value for name in Settings.model_fields if (value := getattr(given, name)) is not None}
    return serve_forever(load_settings(flags, given.config))


def _demo(given: argparse.Namespace) -> int:
    from hosting.demo import run_demo

    return run_demo(given.check, port=given.port)


def _sessions(given: argparse.Namespace) -> int:
    found = _get(given.server, f"v1/sessions?q={urllib.parse.quote(given.query)}&limit=1000")
    if found is None:
        return 1
    if given.json:
        print(json.dumps(found, indent=2))
        return 0
    for session in found["sessions"]:
        size = session["bytes"] / 1e6
        print(f"{session['name']}  {len(session['hosts'])} hosts  {size:.1f} MB  {session['modified']}")
    if not found["sessions"]:
        for root in found["roots"]:
            print(f"{root['name']}: {root['message']}", file=sys.stderr)
    return 0


def _doctor(given: argparse.Namespace) -> int:
    found = _get(given.server, "v1/sessions?limit=1")
    if found is None:
        return 1
    if given.json:
        print(json.dumps(found["roots"], indent=2))
    else:
        print(f"{found['total']} sessions")
        for root in found["roots"]:
            print(f"{root['name']} ({root['uri']}): {root['status']}. {root['message']}")
    return 0 if all(root["status"] in ("ok", "empty") for root in found["roots"]) else 1


def _get(server: str | None, path: str) -> dict[str, Any] | None:
    address = f"{(server or default_server()).rstrip('/')}/{path}"
    try:
        with urllib.request.urlopen(address, timeout=_REQUEST_SECONDS) as answer:
            content: dict[str, Any] = json.load(answer)
            return content
    except urllib.error.HTTPError as error:
        print(f"xprof-hosting: {address} answered {error.code}: {error.read(500).decode()}", file=sys.stderr)
    except json.JSONDecodeError:
        print(f"xprof-hosting: {address} is no XProf hosting service: its answer is no JSON.", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"xprof-hosting: {address} does not answer: {error}. Is the service running?", file=sys.stderr)
    return None


if __name__ == "__main__":
    sys.exit(main())
