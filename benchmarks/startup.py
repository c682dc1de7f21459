"""Measures how long `xprof-hosting serve` takes from the command to its ready line, and to its end after SIGTERM.

python -m benchmarks.startup [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.servers import hosting_server


def main() -> None:
    """Prints the minimum, median and maximum of both, in seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    starts, ends = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "logs").mkdir()
            began = time.monotonic()
            with hosting_server(Path(folder) / "logs", Path(folder) / "own"):
                starts.append(time.monotonic() - began)
                began = time.monotonic()
            ends.append(time.monotonic() - began)
    for name, seconds in (("ready", starts), ("ended", ends)):
        figures = min(seconds), statistics.median(seconds), max(seconds)
        print(f"{name}: min {figures[0]:.1f} s, median {figures[1]:.1f} s, max {figures[2]:.1f} s of {runs} runs")


if __name__ == "__main__":
    main()
