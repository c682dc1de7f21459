"""One listening socket for all gateways of this machine, which the process that starts them holds.

Gateways fetch it when they start. While one is being replaced, connections wait for the next instead of being refused;
and what the socket is for, the address, is never free for another program to take.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)
DRAIN_SECONDS: Final = 10
"""What requests that are being answered get when their gateway stops."""
_BACKLOG: Final = 2048
_STOP: Final = b"stop"


class SocketLender:
    """Lends a bound socket to the processes that ask at a Unix socket, and takes it back from all of them."""

    def __init__(self, bound: socket.socket, path: Path) -> None:
        """
        Args:
            bound: bound to its address, not listening yet: whoever connects before there is a gateway is refused.
            path: where borrowers ask; at most 107 bytes long, in a folder that only this user can enter.
        """
        self._bound = bound
        self._borrowers: set[socket.socket] = set()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(str(path))
        self._door.listen()
        self._lending = threading.Thread(target=self._lend, name="socket-lender", daemon=True)
        self._lending.start()

    def take_back(self, within: float) -> None:
        """Has every borrower finish what it is answering and stop; returns once they have, or after so many seconds."""
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._lending.join(1)
        self._door.close()
        self._bound.close()
        deadline = time.monotonic() + within
        borrowers = list(self._borrowers)
        for borrower in borrowers:
            with suppress(OSError):
                borrower.sendall(_STOP)
        for borrower in borrowers:
            borrower.settimeout(max(0.01, deadline - time.monotonic()))
            with suppress(OSError):
                borrower.recv(1)
            borrower.close()

    def _lend(self) -> None:
        while True:
            try:
                borrower, _ = self._door.accept()
            except OSError:
                return
            self._borrowers.add(borrower)
            try:
                socket.send_fds(borrower, [b"socket"], [self._bound.fileno()])
            except OSError as error:
                _log.warning("a gateway did not take the socket", extra={"reason": str(error)})
                self._borrowers.discard(borrower)
                borrower.close()


class BorrowedSocket:
    """The socket as a gateway has it."""

    def __init__(self, path: Path) -> None:
        """Fetches the socket from the lender at this path, and listens.

        Raises:
            OSError: there is none, or it is stopping.
        """
        self._lender = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._lender.connect(str(path))
            _, descriptors, _, _ = socket.recv_fds(self._lender, 16, 1)
            if not descriptors:
                raise ConnectionError(f"the lender at {path} gave no socket; it is stopping")
        except OSError:
            self._lender.close()
            raise
        self.listening = socket.socket(fileno=descriptors[0])
        """Listens; other gateways may accept from it, too."""
        self.listening.set_inheritable(False)
        self.listening.listen(_BACKLOG)
        self.listening.setblocking(False)

    def wait_until_wanted_back(self) -> None:
        """Blocks until the lender wants the socket back, or is gone."""
        with suppress(OSError):
            self._lender.recv(len(_STOP))

    def give_back(self) -> None:
        """Tells the lender that nothing is being answered any more."""
        self.listening.close()
        # Also wakes who waits in `wait_until_wanted_back`.
        with suppress(OSError):
            self._lender.shutdown(socket.SHUT_RDWR)
        self._lender.close()
