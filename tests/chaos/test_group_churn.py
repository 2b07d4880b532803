"""Members join, leave and are killed, and brokers restart, at 5,000 messages per second.

``group_check`` checks the members' logs: nothing is lost, clean joins and leaves repeat nothing,
and after a kill a queue restarts at the broker's committed offset, not before.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import client
from tests.chaos.group_check import Findings, Kill, check
from tests.chaos.group_log import events
from tests.chaos.group_processes import MemberProcess, ours
from tests.chaos.load import PATIENCE
from tests.harness.processes import Processes, processes
from tests.support.sizes import size

TOPIC, GROUP, QUEUES = "churned", "churners", 8
RATE = 5000
SECONDS = size(test=10, ci=12, soak=600)
LOCK_LIFE = 60.0
"""Seconds until a killed member's locks expire; an ordered queue waits for that."""
REST = LOCK_LIFE + size(ci=60.0, soak=10.0)
"""The same, plus the time that a waiting member needs to acquire them. In CI other tests write so
much that the disk may stop the broker for long."""
FEWEST, MOST = 2, 6
TICK = 0.02
MOST_BEHIND = 2000
WAIT_EACH, WAIT_MS = 97, 5
LONG_EACH, LONG_MS = 1999, 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS * 2 + 300)]


class Stream:
    """Numbers sent at a rate, in messages that control their handler.

    Attributes:
        acknowledged: the numbers the broker said yes to.
        failed: how many sends it did not, by what was said instead.
    """

    def __init__(self, producer: client.Producer[bytes]) -> None:
        self.acknowledged: set[int] = set()
        self.failed: Counter[str] = Counter()
        self._producer = producer

    async def run(self) -> None:
        """Send at the rate; after a broker's absence, catch up at once."""
        loop, total, sent = asyncio.get_running_loop(), RATE * SECONDS, 0
        begun = loop.time()
        async with asyncio.TaskGroup() as sends:
            while sent < total:
                due = min(total, int((loop.time() - begun) * RATE), sent + MOST_BEHIND)
                if due > sent:
                    sends.create_task(self._send(range(sent, due)))
                    sent = due
                await asyncio.sleep(TICK)

    async def _send(self, numbers: range) -> None:
        messages = [client.Message(TOPIC, b"%d 0 %d" % (n, _wait_ms(n))) for n in numbers]
        for number, result in zip(
            numbers, await self._producer.send_many(messages, timeout=30.0), strict=True
        ):
            if isinstance(result, client.Receipt):
                self.acknowledged.add(number)
            else:
                self.failed[type(result).__name__] += 1


def _wait_ms(number: int) -> int:
    if number % LONG_EACH == 0:
        return LONG_MS
    return WAIT_MS if number % WAIT_EACH == 0 else 0


class Churn:
    """Applies random changes to a group and its broker.

    Attributes:
        kills: what was killed when.
        done: how often it did what.
    """

    def __init__(
        self, running: Processes, admin: client.Admin, folder: Path, seed: int, *, ordered: bool
    ) -> None:
        self.kills: list[Kill] = []
        self.done: Counter[str] = Counter()
        self.everybody: list[MemberProcess] = []
        self._members: list[MemberProcess] = []
        self._running = running
        self._admin = admin
        self._folder = folder
        self._ordered = ordered
        self._chance = random.Random(seed)
        self._actions = {
            "join": (self.join, 4),
            "leave": (self.leave, 3),
            "kill": (self.kill, 1),
            "restart": (self.restart, 1),
        }

    async def run(self, enough: asyncio.Event) -> None:
        """Apply changes until stopped, beginning with one of each kind in random order."""
        first = list(self._actions)
        self._chance.shuffle(first)
        while first or not enough.is_set():
            await asyncio.sleep(self._chance.uniform(0.2, 2.5))
            weights = [weight for _, weight in self._actions.values()]
            name = first.pop() if first else self._chance.choices(list(self._actions), weights)[0]
            await self._actions[name][0]()
            self.done[name] += 1

    async def join(self) -> None:
        """Add a member; remove one if there are many."""
        if len(self._members) >= MOST:
            await self.leave()
        member = ours(
            f"m{len(self.everybody)}",
            self._folder,
            self._running.address,
            GROUP,
            TOPIC,
            ordered=self._ordered,
        )
        self.everybody.append(member)
        await member.join()
        self._members.append(member)

    async def leave(self) -> None:
        """Remove a member cleanly; first add one if there are few."""
        await (await self._chosen()).leave()

    async def kill(self) -> None:
        """Kill a member; first add one if there are few."""
        member = await self._chosen()
        committed = await self._committed()
        await member.kill()
        assert member.ended_at is not None
        self.kills.append(Kill(member.name, member.ended_at, committed))

    async def restart(self) -> None:
        """Restart the broker."""
        await asyncio.to_thread(self._running.broker.stop)
        await asyncio.to_thread(self._running.broker.start)

    async def end(self) -> None:
        """Make all members leave, one by one."""
        while self._members:
            await self._members.pop(0).leave()

    async def _chosen(self) -> MemberProcess:
        if len(self._members) <= FEWEST:
            await self.join()
        return self._members.pop(self._chance.randrange(len(self._members)))

    async def _committed(self) -> dict[str, int]:
        offsets = await self._admin.committed(GROUP, TOPIC)
        return {_name(queue): offset or 0 for queue, offset in offsets.items()}


def _name(queue: client.MessageQueue) -> str:
    return f"{queue.topic}:{queue.queue_id}"


@asynccontextmanager
async def churn(
    running: Processes, folder: Path, seed: int, *, ordered: bool
) -> AsyncIterator[tuple[Churn, client.Admin]]:
    """A group with the minimum number of members; all processes are stopped afterwards."""
    async with client.Admin(
        running.address, connect_timeout=PATIENCE, request_timeout=PATIENCE
    ) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
        made = Churn(running, admin, folder, seed, ordered=ordered)
        try:
            for _ in range(FEWEST):
                await made.join()
            yield made, admin
        finally:
            for member in made.everybody:
                await member.close()


async def drained(admin: client.Admin, within: float) -> None:
    """Wait until the group has committed everything there is."""
    async with asyncio.timeout(within):
        while (await admin.lag(GROUP, topic=TOPIC)).total:  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
async def test_churn_loses_nothing_and_only_kills_repeat(tmp_path: Path, ordered: bool) -> None:
    seed = random.randrange(1_000_000)
    with processes(tmp_path) as running:
        async with (
            churn(running, tmp_path, seed, ordered=ordered) as (group, admin),
            client.Producer(running.address, group="stream") as producer,
        ):
            stream = Stream(producer)
            enough, begun = asyncio.Event(), time.monotonic()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(group.run(enough))
                    await stream.run()
                    took = time.monotonic() - begun
                    enough.set()
            except BaseException as error:
                error.add_note(f"seed {seed}, the broker's log:\n{running.broker.log}")
                raise
            await drained(admin, within=LOCK_LIFE + SECONDS + 60)
            await group.end()
            stored = {_name(q): o.max_offset for q, o in (await admin.topic_stats(TOPIC)).items()}
            committed = await group._committed()

    findings = judged(group, stored, ordered=ordered)
    print(  # noqa: T201 - the figures of this run, shown by pytest -s
        f"seed {seed}: {len(stream.acknowledged)} messages in {took:.1f} s, {dict(group.done)}, "
        f"not acknowledged {dict(stream.failed)}, {findings.repeated} repeated, "
        f"longest rest {max(findings.rests.values()) / 1e9:.1f} s"
    )
    context = f"seed {seed}, {dict(group.done)}, files in {tmp_path}\n"
    assert findings.problems == [], context + "\n".join(findings.problems)
    assert stream.acknowledged <= findings.numbers, context
    assert committed == stored, context
    assert max(findings.rests.values()) <= REST * 1e9, context + str(findings.rests)
    assert set(group.done) == {"join", "leave", "kill", "restart"}, context


def judged(group: Churn, stored: dict[str, int], *, ordered: bool) -> Findings:
    """Check the members' logs."""
    files = {member.name: member.file for member in group.everybody}
    return check(events(files), stored, ordered=ordered, kills=group.kills)
