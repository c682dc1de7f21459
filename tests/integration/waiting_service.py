"""The service with a shard that never answers, and notes what becomes of the calls it gets.

python tests/integration/waiting_service.py --logdir … (the arguments of `xprof-hosting serve`); the notes are lines in
the file `notes` in the state folder.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from hosting import cli, serve
from hosting.embedded_ray import configure_ray
from hosting.replies import MapReply, RecordReply
from hosting.settings import Settings
from loaders.jobs import ToolJob


class WaitingShard:
    """Answers the self-test only."""

    def __init__(self, settings: Settings) -> None:
        self._notes = settings.state_dir / "notes"

    def record_replica_metadata(self) -> dict[str, Any]:
        return {"slot": 0}

    async def self_test(self) -> MapReply:
        return MapReply()

    async def call(self, identity: str, method: str, *args: Any) -> Any:
        return await getattr(self, method)(*args)

    async def works_on(self, identity: str) -> bool:
        return True

    async def tool_data(self, job: ToolJob, request: str, urgent: bool = True, helping: bool = False) -> RecordReply:
        self._note(f"{job.tool} began")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self._note(f"{job.tool} was cancelled")
            raise
        raise AssertionError("nobody waits that long")

    def _note(self, words: str) -> None:
        with self._notes.open("a") as file:
            file.write(f"{words}\n")


if __name__ == "__main__":
    # The application's module imports Ray, which takes from the environment what this sets.
    configure_ray()
    serve.configure_ray = lambda: None  # type: ignore[assignment]
    from hosting import application

    application.Shard = WaitingShard  # type: ignore[misc, assignment, attr-defined]
    sys.exit(cli.main(["serve", *sys.argv[1:]]))
