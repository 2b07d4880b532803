"""Groups of unmodified Java clients and ours, on our broker and on Apache's."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

import client
from pocketmq import testing
from remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from tests.chaos.group_check import check
from tests.chaos.group_log import Event, events
from tests.chaos.group_processes import MemberProcess, ours
from tests.interop.apache import JavaClient, apache
from tests.support.sizes import size
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(900)]

QUEUES = 8
RETRY_QUEUES = 4
MAX_RETRIES = 3
ALWAYS = MAX_RETRIES + 1
DELAYS = " ".join(["1s"] * 18)
"""Delay levels of one second for every retry."""
AGREED_WITHIN = 120.0
"""A Java member keeps a queue's lock 20 s for unsettled messages, and checks every 20 s."""
SOONER = size(
    ci=(
        "-Drocketmq.client.rebalance.waitInterval=2000",
        "-Drocketmq.client.rebalance.lockInterval=2000",
        "-Drocketmq.client.unlockDelayTimeMills=2000",
    ),
    soak=(),
)
"""Options of a Java member with which both times are 2 s."""
RATE = 200
WAIT_MS = 2
CHANGES = size(test=2, ci=4, soak=40)

Owned = set[tuple[str, client.MessageQueue]]
"""Client ids and queues."""

PAIRS = [("pocketmq", "4.9.7"), ("pocketmq", "5.3.3"), ("apache", "4.9.7")]


@pytest.fixture(scope="module", params=PAIRS, ids="-java-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The kind of broker, and the version of the Java client."""
    return request.param  # type: ignore[no-any-return]  # pytest has no types of parameters


@pytest.fixture(scope="module")
def nameserver(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker with short retry delays."""
    if pair[0] == "pocketmq":
        with testing.broker(settings={"messageDelayLevel": DELAYS}) as running:
            yield running.nameserver
        return
    home = tmp_path_factory.mktemp("apache")
    with apache(pair[1], home, settings=[f"messageDelayLevel={DELAYS}"]) as there:
        yield there.nameserver


@dataclass
class Group:
    """A group of members of both kinds.

    Attributes:
        queues: the topic's, sorted.
        live: those that are members now.
        everybody: those and the ones that have left.
    """

    nameserver: str
    name: str
    topic: str
    java: JavaClient
    ordered: bool
    admin: client.Admin
    queues: list[client.MessageQueue]
    live: list[MemberProcess]
    everybody: list[MemberProcess]

    async def join(self, kind: str) -> None:
        """Add a ``java`` or ``python`` member."""
        name = f"{kind}-{len(self.everybody)}"
        member = self._java(name) if kind == "java" else self._ours(name)
        self.everybody.append(member)
        await member.join()
        self.live.append(member)

    def _ours(self, name: str) -> MemberProcess:
        return ours(
            name,
            self.java.home,
            self.nameserver,
            self.name,
            self.topic,
            ordered=self.ordered,
            max_retries=MAX_RETRIES,
        )

    def _java(self, name: str) -> MemberProcess:
        file = self.java.home / name
        arguments = (
            *(self.nameserver, self.name, self.topic, str(file)),
            *("ordered" if self.ordered else "concurrent", str(MAX_RETRIES), name),
        )
        return MemberProcess(self.java.command(*arguments, program="GroupMember"), file, name)

    async def leave(self, kind: str) -> None:
        """Remove the oldest member of this kind."""
        await self._leave(next(one for one in self.live if one.name.startswith(kind)))

    async def _leave(self, member: MemberProcess) -> None:
        self.live.remove(member)
        await member.leave()

    async def agreed(self) -> None:
        """Wait until every member owns what the strategy assigns to it."""
        ids = sorted(member.client_id for member in self.live)
        strategy = client.Averagely()
        wanted = {
            one: {q.queue_id for q in strategy.allocate(one, self.queues, ids, group=self.name)}
            for one in ids
        }
        owned: dict[str, set[int]] = {}
        try:
            async with asyncio.timeout(AGREED_WITHIN):
                while owned != wanted:
                    await asyncio.sleep(0.1)
                    owned = {member.client_id: await member.owned() for member in self.live}
        except TimeoutError:
            pytest.fail(f"members own {owned}, the strategy says {wanted}")

    async def drained(self) -> None:
        """Wait until everything is committed, including retries."""
        async with asyncio.timeout(AGREED_WITHIN):
            while (await self.admin.lag(self.name)).total:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.2)

    async def end(self) -> None:
        """Remove all members."""
        for member in list(self.live):
            await self._leave(member)

    def events(self) -> list[Event]:
        """Return the events of all members in order."""
        return list(events({member.name: member.file for member in self.everybody}))

    async def stored(self, topic: str) -> dict[str, int]:
        """Return the number of messages of each queue of a topic."""
        stats = await self.admin.topic_stats(topic)
        return {f"{q.topic}:{q.queue_id}": offsets.max_offset for q, offsets in stats.items()}


@asynccontextmanager
async def group(
    nameserver: str, version: str, folder: Path, *, ordered: bool
) -> AsyncIterator[Group]:
    """A group without members and its topic; all members are stopped afterwards."""
    name = f"mixed{random.randrange(1 << 32)}"
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(f"of-{name}", queues=QUEUES)
        await admin.create_group(name, retry_queues=RETRY_QUEUES)
        java = JavaClient(version, "JSON", folder, SOONER)
        queues = sorted(await admin.queues(f"of-{name}"))
        made = Group(nameserver, name, f"of-{name}", java, ordered, admin, queues, [], [])
        try:
            yield made
        finally:
            for member in made.everybody:
                await member.close()


def message(mixed: Group, number: int, failures: int) -> client.Message[bytes]:
    """Return a message for the queue that follows from its number."""
    body = b"%d %d %d" % (number, failures, WAIT_MS)
    return client.Message(mixed.topic, body, queue=mixed.queues[number % QUEUES])


async def stream(producer: client.Producer[bytes], mixed: Group, enough: asyncio.Event) -> int:
    """Send at a rate until stopped; return the number of messages."""
    number, some = 0, RATE // 10
    while not enough.is_set():
        numbers = range(number, number + some)
        receipts = await producer.send_many(message(mixed, n, 0) for n in numbers)
        assert all(isinstance(receipt, client.Receipt) for receipt in receipts), receipts
        number += some
        await asyncio.sleep(some / RATE)
    return number


async def change(mixed: Group) -> None:
    """Add and remove one member of each kind; check the assignment after each step."""
    for kind in ("python", "java"):
        await mixed.join(kind)
        await mixed.agreed()
    for kind in ("java", "python"):
        await mixed.leave(kind)
        await mixed.agreed()


@pytest.mark.parametrize("ordered", [False, True], ids=["any", "ordered"])
async def test_members_that_join_and_leave_lose_no_message_and_no_order(
    pair: tuple[str, str], nameserver: str, tmp_path: Path, ordered: bool
) -> None:
    async with (
        group(nameserver, pair[1], tmp_path, ordered=ordered) as mixed,
        client.Producer(nameserver, group="stream") as producer,
    ):
        await asyncio.gather(mixed.join("java"), mixed.join("python"))
        await mixed.agreed()
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(stream(producer, mixed, enough))
            for _ in range(CHANGES // 4):
                await change(mixed)
            enough.set()
        await mixed.drained()
        await mixed.end()
        stored = await mixed.stored(mixed.topic)

    assert sum(stored.values()) == sending.result()
    assert {event.number for event in mixed.events()} == set(range(sending.result()))
    if ordered:
        foreign = {member.name for member in mixed.everybody if member.name.startswith("java")}
        assert check(mixed.events(), stored, ordered=True, foreign=foreign).problems == []


async def test_members_with_other_topics_leave_queues_unread_and_ours_name_them(
    pair: tuple[str, str], nameserver: str, tmp_path: Path
) -> None:
    """Java subscribes to one topic, one member of ours to another, one of ours to both."""
    warned: dict[str, client.QueuesUnread] = {}

    def note(event: client.Event) -> None:
        if isinstance(event, client.QueuesUnread):
            warned[event.topic] = event

    async with (
        group(nameserver, pair[1], tmp_path, ordered=False) as mixed,
        client.Instance(nameserver) as with_both,
        client.Instance(nameserver) as with_other,
    ):
        other = f"other-{mixed.name}"
        await mixed.admin.create_topic(other, queues=QUEUES)
        queues = {topic: sorted(await mixed.admin.queues(topic)) for topic in (mixed.topic, other)}
        await mixed.join("java")
        (java,) = mixed.live
        members = {
            instance.client_id: instance.push_consumer(
                group=mixed.name,
                subscribe=dict.fromkeys(topics, "*"),
                handler=lambda _: None,
                start_from=client.FIRST,
                on_conflict="warn",
                on_event=on_event,
            )
            for instance, topics, on_event in (
                (with_both, [mixed.topic, other], note),
                (with_other, [other], None),
            )
        }
        both, one = members.values()

        async def owned() -> Owned:
            """Return what each member reads."""
            found: Owned = {(name, q) for name, own in members.items() for q in own.assigned}
            if java in mixed.live:
                ids = await java.owned()
                found |= {(java.client_id, q) for q in queues[mixed.topic] if q.queue_id in ids}
            return {(name, q) for name, q in found if q.topic in queues}

        async def agreed(wanted: Owned) -> None:
            async with asyncio.timeout(AGREED_WITHIN):
                while await owned() != wanted:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.1)

        def shares(topic: str, *ids: str) -> Owned:
            strategy = client.Averagely()
            return {
                (name, queue)
                for name in ids
                for queue in strategy.allocate(name, queues[topic], sorted(ids), group=mixed.name)
            }

        async with both, one:
            everybody = shares(mixed.topic, java.client_id, *members)
            everybody |= shares(other, java.client_id, *members)
            unread = {
                (name, queue)
                for name, queue in everybody
                if (name, queue.topic)
                in {(java.client_id, other), (with_other.client_id, mixed.topic)}
            }
            await agreed(everybody - unread)
            if pair[0] == "pocketmq":
                lacking = {other: java.client_id, mixed.topic: with_other.client_id}
                assert warned == {
                    topic: client.QueuesUnread(
                        mixed.name,
                        topic,
                        (lacking[topic],),
                        (java.client_id,),
                        tuple(sorted(queue for _, queue in unread if queue.topic == topic)),
                    )
                    for topic in queues
                }
            else:
                assert warned == {}  # Apache's broker doesn't report the topics of each member.
            await mixed.leave("java")
            readers = [with_both.client_id] if pair[0] == "pocketmq" else [*members]
            of_both = {own for own in shares(mixed.topic, *readers) if own[0] in readers[:1]}
            await agreed(of_both | shares(other, *members))


def failures_of(number: int) -> int:
    """Return how often the handler fails for a message: most never, one in 25 always."""
    if number % 25 == 11:
        return ALWAYS
    return {3: 1, 12: 2, 17: 1}.get(number % 20, 0)


@pytest.mark.parametrize(("ordered", "count"), [(False, 400), (True, 100)], ids=["any", "ordered"])
async def test_retries_and_dead_letters_match_the_failed_calls(
    pair: tuple[str, str], nameserver: str, tmp_path: Path, ordered: bool, count: int
) -> None:
    async with (
        group(nameserver, pair[1], tmp_path, ordered=ordered) as mixed,
        client.Producer(nameserver, group="script") as producer,
    ):
        for kind in ("java", "python", "java", "python"):
            await mixed.join(kind)
            await mixed.agreed()
        await producer.send_many(message(mixed, n, failures_of(n)) for n in range(count))
        await all_settled(mixed, count)
        await mixed.end()
        retried = sum((await mixed.stored(RETRY_PREFIX + mixed.name)).values())
        dead = sum((await mixed.stored(DLQ_PREFIX + mixed.name)).values())

    calls = [event for event in mixed.events() if event.kind != "begin"]
    failed = Counter(event.number for event in calls if event.failed)
    assert failed == Counter({n: failures_of(n) for n in range(count) if failures_of(n)})
    buried = {n for n in range(count) if failures_of(n) == ALWAYS}
    handled = Counter(event.number for event in calls if not event.failed)
    assert handled == Counter(n for n in range(count) if n not in buried)
    assert dead == len(buried)
    assert retried == (0 if ordered else failed.total() - dead)
    assert {event.member.partition("-")[0] for event in calls if event.failed} == {"java", "python"}
    if ordered:
        assert_in_order(calls)


async def all_settled(mixed: Group, count: int) -> None:
    """Wait until each message was handled, or failed for the last time."""
    calls = sum(min(failures_of(n) + 1, ALWAYS) for n in range(count))
    await until(
        lambda: sum(event.kind != "begin" for event in mixed.events()) >= calls, AGREED_WITHIN
    )
    await mixed.drained()


def assert_in_order(calls: list[Event]) -> None:
    """Each queue continues only after its first message is settled."""
    for queue in {event.queue for event in calls}:
        offsets = [offset for offset, _ in groupby(e.offset for e in calls if e.queue == queue)]
        assert offsets == list(range(len(offsets)))
