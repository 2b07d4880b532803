"""The consumer group demo: shows rebalancing, a killed member and dead letters, and checks them.

    python -m examples.demo.group [COUNT]

In the first part flights are sent at a steady rate, and the group ``billing`` handles them
concurrently. Three members share four queues. Then there are five members, one of them idle. Then
one is killed, and another takes over its queues. Messages that the killed member had handled but
not committed are delivered again, and counted.

In the second part the group ``boarding`` reads the same messages from the start, each queue in
order, and its handler fails for one flight. The flight's queue is suspended twice, then the flight
becomes a dead letter and the queue continues. At the end every flight must have been handled, and
the flights to each destination in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import client
from examples.demo.flights import COUNT, DemoFailed, Flight, Sum, differences, flights
from examples.demo.journal import Journal
from examples.demo.member import MAX_RETRIES, MemberEvent, MemberSettings
from examples.demo.members import Member, Members
from examples.demo.stage import NOBODY, Row, Stage, stage
from examples.spark.send_flights import NoFlights
from pocketmq import output, testing

TOPIC: Final = "departures"
QUEUES: Final = 4
FIRST_MEMBERS: Final = 3
MORE_MEMBERS: Final = 2

PORTION: Final = 500
"""Messages in flight."""

FLIGHTS_PER_SECOND: Final = 30_000
"""The rate of sending, limited so that the group's state can be followed."""

PATIENCE: Final = 30.0
"""The most seconds for each step of the group."""

LOOK_PERIOD: Final = 0.25
"""Seconds between updates of the display."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The results of the demo; times in seconds.

    Attributes:
        handled: the number of distinct flights that ``billing`` has handled.
        duplicates: how often ``billing`` handled a flight again, because of the kill.
        duplicates_in_order: how often ``boarding`` did.
        takeover_seconds: the time from the kill until all queues had an owner.
        idle: the number of members that reported to be without a queue.
        dead_letters: the number of dead letters.
        destinations: the number of destinations whose order was checked.
        concurrent_seconds, orderly_seconds: the times of the two parts.
    """

    handled: int
    duplicates: int
    duplicates_in_order: int
    takeover_seconds: float
    idle: int
    dead_letters: int
    destinations: int
    concurrent_seconds: float
    orderly_seconds: float


class GroupDemo:
    """One run of the demo against a running broker.

    Args:
        nameserver: the name server, ``host:port``.
        limit: the number of flights, or None for all.
        directory: the directory for journals and logs.
        stage: the display.
    """

    def __init__(self, nameserver: str, limit: int | None, directory: Path, stage: Stage) -> None:
        self._nameserver = nameserver
        self._total = COUNT if limit is None else min(limit, COUNT)
        self._directory = directory
        self._stage = stage
        self._sent = Sum()
        self._sent_in_order = Sum()
        self._cancelled = next(islice(flights(), self._total // 2, None))
        self._idle: set[int] = set()
        self._dead = 0
        self._background: list[asyncio.Task[None]] = []

    async def run(self) -> GroupResult:
        """Run both parts and check the results.

        Raises:
            DemoFailed: a flight is missing or out of order, or a step timed out.
        """
        async with (
            client.Admin(self._nameserver) as admin,
            client.Producer(self._nameserver, group="departures") as producer,
        ):
            await admin.create_topic(TOPIC, queues=QUEUES)
            began = time.perf_counter()
            billing, takeover = await self._concurrent(admin, producer)
            middle = time.perf_counter()
            boarding = await self._orderly(admin)
            ended = time.perf_counter()
            dead = await self._check(admin, billing, boarding)
        return GroupResult(
            handled=billing.handled.count,
            duplicates=billing.duplicates,
            duplicates_in_order=boarding.duplicates,
            takeover_seconds=takeover,
            idle=len(self._idle),
            dead_letters=dead,
            destinations=len(boarding.handled.chains),
            concurrent_seconds=middle - began,
            orderly_seconds=ended - middle,
        )

    # The two parts

    async def _concurrent(
        self, admin: client.Admin, producer: client.Producer[bytes]
    ) -> tuple[Journal, float]:
        async with self._group(admin, "billing") as (members, journal):
            await members.join(FIRST_MEMBERS)
            await self._settled(members)
            self._begin(self._send(producer))
            await self._until(lambda: self._sent.count >= self._total // 4, members)
            await members.join(MORE_MEMBERS)
            await self._settled(members)
            await self._until(lambda: self._sent.count >= self._total // 2, members)
            takeover = await self._kill_one(members)
            await self._until(lambda: journal.read() >= self._total, members)
            await self._caught_up(admin, members)
        return journal, takeover

    async def _kill_one(self, members: Members) -> float:
        victim = next(member for member in members.alive if member.queues)
        queues = sorted(victim.queues)
        self._stage.tell(f"{victim}, which owns {_queues(queues)}, is killed")
        began = time.perf_counter()
        await members.kill(victim)
        await members.settled(QUEUES, PATIENCE)
        took = time.perf_counter() - began
        heirs = ", ".join(str(members.owners[queue]) for queue in queues)
        self._stage.tell(f"after {took:.1f} s {heirs} has taken over {_queues(queues)}")
        return took

    async def _orderly(self, admin: client.Admin) -> Journal:
        row = self._cancelled.line.decode()
        async with self._group(admin, "boarding", orderly=True, cancelled=row) as (
            members,
            journal,
        ):
            self._stage.tell(
                f"boarding reads the same flights, each queue in order; one of them to "
                f"{self._cancelled.destination} can't be handled"
            )
            await members.join(FIRST_MEMBERS)
            await self._settled(members)
            await self._until(lambda: journal.read() >= self._total - 1, members)
            await self._until(lambda: self._dead > 0, members)
        return journal

    @asynccontextmanager
    async def _group(
        self, admin: client.Admin, group: str, *, orderly: bool = False, cancelled: str = ""
    ) -> AsyncIterator[tuple[Members, Journal]]:
        directory = self._directory / group
        directory.mkdir()
        settings = MemberSettings(
            nameserver=self._nameserver,
            group=group,
            topic=TOPIC,
            journal=str(directory / "journal"),
            orderly=orderly,
            cancelled=cancelled,
        )
        journal = Journal(directory / "journal")
        members = Members(settings, directory, self._on_event)
        self._begin(self._watch(admin, group, members))
        try:
            yield members, journal
            self._end_background()
            await members.stop()
            journal.read()
        finally:
            self._end_background()
            await members.end()
            journal.close()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._background.append(asyncio.create_task(work))

    def _end_background(self) -> None:
        for task in self._background:
            task.cancel()
        self._background.clear()

    async def _send(self, producer: client.Producer[bytes]) -> None:
        began = time.perf_counter()
        rest = flights(self._total)
        while portion := list(islice(rest, PORTION)):
            futures = [
                producer.send_nowait(
                    TOPIC, flight.line, tag=flight.carrier, sharding_key=flight.destination
                )
                for flight in portion
            ]
            for future in futures:
                await future
            for flight in portion:
                self._note(flight)
            due = began + self._sent.count / FLIGHTS_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    def _note(self, flight: Flight) -> None:
        self._sent.add(flight.destination, flight.line)
        if flight.line != self._cancelled.line:
            self._sent_in_order.add(flight.destination, flight.line)

    # Watching

    async def _settled(self, members: Members) -> None:
        await members.settled(QUEUES, PATIENCE)
        shares = ", ".join(
            f"{member} {_queues(sorted(member.queues))}"
            for member in members.alive
            if member.queues
        )
        self._stage.tell(f"{len(members.alive)} members share {QUEUES} queues: {shares}")

    def _on_event(self, member: Member, event: MemberEvent) -> None:
        if event.what == "idle":
            self._idle.add(member.number)
            self._stage.tell(f"{member} is idle, for there are {event.text}")
        elif event.what == "dead":
            self._dead += 1
            self._stage.tell(
                f"{event.text} failed {MAX_RETRIES + 1} times: {member} has put it aside as a dead "
                "letter, and the queue goes on"
            )

    async def _watch(self, admin: client.Admin, group: str, members: Members) -> None:
        while True:
            lag = (await admin.lag(group, topic=TOPIC)).queues
            owners = members.owners
            rows = [
                Row(
                    queue.queue_id,
                    str(owners.get(queue.queue_id, NOBODY)),
                    figures.end,
                    figures.messages,
                )
                for queue, figures in sorted(lag.items())
            ]
            if rows:
                self._stage.show(group, rows)
            await asyncio.sleep(LOOK_PERIOD)

    async def _until(self, condition: Callable[[], bool], members: Members) -> None:
        began = time.perf_counter()
        while not condition():
            members.check()
            if time.perf_counter() - began > PATIENCE:
                raise DemoFailed(
                    f"after {PATIENCE:g} s the group had still not handled all flights"
                )
            await asyncio.sleep(LOOK_PERIOD / 5)

    async def _caught_up(self, admin: client.Admin, members: Members) -> None:
        """Wait until messages that the killed member had not committed are handled again."""
        began = time.perf_counter()
        while (await admin.lag("billing", topic=TOPIC)).total:
            members.check()
            if time.perf_counter() - began > PATIENCE:
                raise DemoFailed(
                    f"after {PATIENCE:g} s billing had still not committed all flights"
                )
            await asyncio.sleep(LOOK_PERIOD / 5)

    # Checks

    async def _check(self, admin: client.Admin, billing: Journal, boarding: Journal) -> int:
        """Check the results of both groups; return the number of dead letters.

        Raises:
            DemoFailed: a result is wrong.
        """
        # Concurrent handling does not keep the order, so ``chains`` are not compared.
        faults = differences(replace(self._sent, chains={}), replace(billing.handled, chains={}))
        faults += differences(self._sent_in_order, boarding.handled)
        dead = [message.body for message in await admin.dead_letters("boarding")]
        if dead != [self._cancelled.line]:
            faults.append(f"{len(dead)} dead letters, instead of the flight that can't be handled")
        for group in ("billing", "boarding"):
            if behind := (await admin.lag(group, topic=TOPIC)).total:
                faults.append(f"{group} is {behind} messages behind although all have left cleanly")
        if not self._idle:
            faults.append("of five members on four queues none said that it is idle")
        if faults:
            raise DemoFailed("; ".join(faults))
        return len(dead)


def _queues(ids: list[int]) -> str:
    return f"queue{'s' if len(ids) > 1 else ''} {' and '.join(map(str, ids))}"


async def _main(limit: int | None) -> None:
    with (
        testing.broker() as server,
        tempfile.TemporaryDirectory(prefix="pocketmq-demo-") as directory,
        stage(silent=False) as shown,
    ):
        result = await GroupDemo(server.nameserver, limit, Path(directory), shown).run()
    facts = {
        "billing": f"every flight was handled, {result.duplicates:,} of them twice; a queue whose "
        f"member was killed was taken over in {result.takeover_seconds:.1f} s",
        "boarding": f"order kept for {result.destinations} destinations, "
        f"{result.duplicates_in_order:,} flights handled twice, {result.dead_letters} dead letter",
    }
    output.show_facts(dict(facts), as_json=False)


if __name__ == "__main__":
    try:
        asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else None))
    except (DemoFailed, NoFlights) as problem:
        sys.exit(str(problem))
