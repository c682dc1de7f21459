"""The process between a shard and its accelerated engine, the server `xprof-rs`.

It enters the same confinement as every engine process, starts the server in it, and makes connections to it: over a
socket pair that it was started with, it hands out connected sockets. So the server may live in a network of its own,
where nobody else reaches it, and neither outlives the shard: the pair's end is the end of both.

    python -m loaders.engines.accelerated_launcher CONTROL_DESCRIPTOR BINARY LOGDIR

At its start it sends the server's process id in decimal. For every byte that it then gets it sends one byte with a
socket attached. It ends, and the server with it, when it can't.
"""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from loaders.engines.limits import die_with_parent, enter_child

START_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.002


def main(arguments: Sequence[str]) -> int:
    """Serves one shard; the exit status is 0 when the shard ended it, and 1 when the server did."""
    descriptor, binary, logdir = arguments
    control = socket.socket(fileno=int(descriptor))
    enter_child()
    port = _free_port()
    command = [binary, "--logdir", logdir, "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=partial(die_with_parent, ctypes.CDLL(None)),
    ) as server:
        try:
            _wait_until_ready(server, port)
            control.send(str(server.pid).encode())
            while control.recv(1):
                with socket.create_connection(("127.0.0.1", port), timeout=START_SECONDS) as connection:
                    socket.send_fds(control, [b"."], [connection.fileno()])
        except OSError as error:
            # The server is gone, or the shard.
            sys.stderr.write(f"no connection to {binary}: {error}\n")
            return 1
        finally:
            server.kill()
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    """Raises OSError when the server ends or takes too long."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=START_SECONDS).close()
            return
        except ConnectionRefusedError:
            if server.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
