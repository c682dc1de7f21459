"""The trace viewer's answer for a small profile as if it were over its bound: python -m tests.thinned_trace FILE BYTES

Prints the JSON. A process of its own, since it takes the engine in.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from loaders.engines import tasks, trace_answers
from loaders.engines.pool import session_folder
from loaders.records import Record


def main() -> None:
    profile, max_bytes = Path(sys.argv[1]), int(sys.argv[2])
    trace_answers.MAX_BYTES = max_bytes  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as scratch:
        folder = session_folder(Path(scratch), "s")
        (folder / profile.name).symlink_to(profile)
        host = profile.name.removesuffix(tasks.XPLANE_SUFFIX)
        record = Path(scratch) / "record"
        tasks.tool_data(tasks.ToolTask("trace_viewer@", (("resolution", "4000"),), folder, (host,), "s", record))
        sys.stdout.buffer.write(Record(record.read_bytes()).body("identity"))


if __name__ == "__main__":
    main()
