"""One listening socket that gateways borrow."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosting.serve import _claim
from hosting.shared_socket import BorrowedSocket, SocketLender


@pytest.fixture
def path() -> Iterator[Path]:
    # Not pytest's folders, whose paths may be too long for a Unix socket.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder) / "s"


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def accept(borrowed: BorrowedSocket) -> None:
    borrowed.listening.setblocking(True)
    borrowed.listening.settimeout(5)
    borrowed.listening.accept()[0].close()


def test_connections_wait_for_the_next_borrower_when_one_is_gone(path: Path) -> None:
    claimed = _claim("127.0.0.1", 0)
    port = claimed.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        connect(port)
    lender = SocketLender(claimed, path)
    first = BorrowedSocket(path)
    with connect(port):
        accept(first)
    first.give_back()
    with connect(port) as waits:
        second = BorrowedSocket(path)
        accept(second)
        assert waits.recv(1) == b""
    second.give_back()
    lender.take_back(5)
    with pytest.raises(ConnectionRefusedError):
        connect(port)


def test_taking_back_waits_for_every_borrower_to_finish_but_not_for_ever(path: Path) -> None:
    lender = SocketLender(_claim("127.0.0.1", 0), path)
    borrowed = [BorrowedSocket(path) for _ in range(2)]
    finished: list[float] = []

    def finish(one: BorrowedSocket) -> None:
        one.wait_until_wanted_back()
        time.sleep(0.3)
        finished.append(time.monotonic())
        one.give_back()

    threads = [threading.Thread(target=finish, args=(one,)) for one in borrowed]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    lender.take_back(5)
    assert len(finished) == 2
    assert 0.3 <= time.monotonic() - began < 3
    with pytest.raises(OSError, match=r"refused|stopping"):
        BorrowedSocket(path)


def test_a_borrower_that_does_not_finish_is_left(path: Path) -> None:
    lender = SocketLender(_claim("127.0.0.1", 0), path)
    stays = BorrowedSocket(path)
    began = time.monotonic()
    lender.take_back(0.2)
    assert 0.2 <= time.monotonic() - began < 2
    stays.give_back()


def test_a_claimed_port_is_nobody_elses_even_before_it_listens() -> None:
    with _claim("127.0.0.1", 0) as claimed, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(claimed.getsockname())
