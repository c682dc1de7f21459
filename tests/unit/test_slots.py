"""Turns at the engine's processes: people first, nothing for those who have gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from loaders.engines.slots import Slots, Turn
from loaders.single_flight import SingleFlight
from loaders.tickets import Ticket, current_ticket


def asked(work: Callable[[], Awaitable[object]], ticket: Ticket) -> asyncio.Task[object]:
    """The work as a task under a ticket."""
    token = current_ticket.set(ticket)
    try:
        return asyncio.ensure_future(_await(work))
    finally:
        current_ticket.reset(token)


async def _await(work: Callable[[], Awaitable[object]]) -> object:
    return await work()


def person() -> Ticket:
    return Ticket(urgent=True, wanted=True)


def prewarm() -> Ticket:
    return Ticket(wanted=True)


class Desk:
    """Work that holds a turn until it is let go, and notes who had one."""

    def __init__(self, number: int) -> None:
        self.slots = Slots(number)
        self.served: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.preempted: list[str] = []

    def ask(self, name: str, ticket: Ticket) -> asyncio.Task[object]:
        self.gates[name] = asyncio.Event()

        async def work() -> None:
            while True:
                async with self.slots.turn() as turn:
                    self.served.append(name)
                    if await self._until_let_go(name, turn):
                        return

        return asked(work, ticket)

    async def _until_let_go(self, name: str, turn: Turn) -> bool:
        stopped = asyncio.Event()

        def preempt() -> None:
            self.preempted.append(name)
            stopped.set()

        turn.preempt = preempt
        waits = [asyncio.ensure_future(self.gates[name].wait()), asyncio.ensure_future(stopped.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        return not stopped.is_set()

    async def finish(self, *tasks: asyncio.Task[object]) -> None:
        for gate in self.gates.values():
            gate.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_person_comes_before_prewarming_that_waited_longer() -> None:
    desk = Desk(1)
    first = desk.ask("first", person())
    await settle()
    early, late = desk.ask("prewarm", prewarm()), desk.ask("person", person())
    await settle()
    desk.gates["first"].set()
    await settle()
    assert desk.served == ["first", "person"]
    await desk.finish(first, early, late)
    assert desk.served == ["first", "person", "prewarm"]


async def test_prewarming_leaves_a_slot_for_people() -> None:
    desk = Desk(2)
    warm = [desk.ask(f"warm-{i}", prewarm()) for i in range(3)]
    await settle()
    assert desk.served == ["warm-0"]
    somebody = desk.ask("person", person())
    await settle()
    assert desk.served == ["warm-0", "person"]
    assert desk.preempted == []
    await desk.finish(*warm, somebody)


async def test_prewarming_gives_its_slot_up_to_a_person_and_starts_again_later() -> None:
    desk = Desk(1)
    warm = desk.ask("warm", prewarm())
    await settle()
    somebody = desk.ask("person", person())
    await settle()
    assert desk.preempted == ["warm"]
    assert desk.served == ["warm", "person"]
    await desk.finish(warm, somebody)
    assert desk.served == ["warm", "person", "warm"]


async def test_only_as_much_is_stopped_as_people_need() -> None:
    desk = Desk(3)
    warm = [desk.ask(f"warm-{i}", prewarm()) for i in range(2)]
    await settle()
    people = [desk.ask(f"person-{i}", person()) for i in range(2)]
    await settle()
    assert desk.preempted == ["warm-1"]
    await desk.finish(*warm, *people)


async def test_waiting_work_whose_askers_have_gone_is_dropped() -> None:
    desk = Desk(1)
    first = desk.ask("first", person())
    await settle()
    gone = person()
    dropped = desk.ask("gone", gone)
    await settle()
    gone.give_up()
    with pytest.raises(asyncio.CancelledError):
        await dropped
    assert desk.slots.waiting == 0
    await desk.finish(first)
    assert desk.served == ["first"]


async def test_work_under_way_is_finished_when_its_asker_goes() -> None:
    desk = Desk(1)
    ticket = person()
    task = desk.ask("work", ticket)
    await settle()
    ticket.give_up()
    await settle()
    assert not task.done()
    await desk.finish(task)


async def test_a_person_who_joins_prewarming_makes_it_urgent() -> None:
    desk = Desk(1)
    flights: SingleFlight[object] = SingleFlight()
    first = desk.ask("first", person())
    await settle()
    desk.gates["shared"] = asyncio.Event()

    async def shared() -> object:
        async with desk.slots.turn() as turn:
            desk.served.append("shared")
            return await desk._until_let_go("shared", turn)

    warm = asked(lambda: flights.do("key", shared), prewarm())
    await settle()
    other = desk.ask("person", person())
    await settle()
    # Waits behind the other person, but no longer behind everybody.
    joined = asked(lambda: flights.do("key", shared), person())
    later = desk.ask("other prewarm", prewarm())
    await settle()
    await desk.finish(first, other, warm, joined, later)
    assert desk.served == ["first", "shared", "person", "other prewarm"]


async def test_nested_work_is_dropped_with_its_only_asker_and_kept_for_another() -> None:
    slots = Slots(1)
    inner: SingleFlight[str] = SingleFlight()
    outer: SingleFlight[str] = SingleFlight()
    gate = asyncio.Event()

    async def blocker() -> None:
        async with slots.turn():
            await gate.wait()

    async def mapped() -> str:
        async with slots.turn():
            return "mapped"

    blocking = asked(blocker, person())
    await settle()
    one, two = person(), person()
    first = asked(lambda: outer.do("a", lambda: inner.do("map", mapped)), one)
    second = asked(lambda: outer.do("b", lambda: inner.do("map", mapped)), two)
    await settle()
    one.give_up()
    await settle()
    assert slots.waiting == 1
    gate.set()
    assert await second == "mapped"
    with suppress(asyncio.CancelledError):
        await first
    await blocking


async def test_work_that_was_dropped_starts_again_for_who_comes_next() -> None:
    slots = Slots(1)
    flights: SingleFlight[str] = SingleFlight()
    gate = asyncio.Event()

    async def blocker() -> None:
        async with slots.turn():
            await gate.wait()

    async def work() -> str:
        async with slots.turn():
            return "made"

    blocking = asked(blocker, person())
    await settle()
    gone = person()
    dropped = asked(lambda: flights.do("key", work), gone)
    await settle()
    gone.give_up()
    again = asked(lambda: flights.do("key", work), person())
    await settle()
    gate.set()
    assert await asyncio.wait_for(again, 5) == "made"
    with pytest.raises(asyncio.CancelledError):
        await dropped
    await blocking


async def test_a_flight_that_cancels_ends_with_its_last_asker() -> None:
    flights: SingleFlight[str] = SingleFlight(cancels=True)
    ended = asyncio.Event()

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "never"

    one, two = (asked(lambda: flights.do("key", work), person()) for _ in range(2))
    await settle()
    one.cancel()
    await settle()
    assert not ended.is_set()
    two.cancel()
    await asyncio.wait_for(ended.wait(), 5)
    assert len(flights) == 0
