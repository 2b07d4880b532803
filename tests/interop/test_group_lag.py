"""The lag and resets of a group, compared with those of Apache's own tool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import client
from client import blocking
from pocketmq import testing
from tests.interop.apache import Apache, mqadmin, shown
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

VERSION = "4.9.7"
QUEUES = 4


@dataclass(frozen=True)
class There:
    """A cluster, and a directory for the tool's files."""

    nameserver: str
    home: Path
    ours: bool


@pytest.fixture(scope="module", params=["pocketmq", "apache"])
def there(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shared_apache: Callable[[str], Apache],
) -> Iterator[There]:
    home = tmp_path_factory.mktemp("tool")
    if request.param == "pocketmq":
        with testing.broker() as server:
            yield There(server.nameserver, home, ours=True)
    else:
        yield There(shared_apache(VERSION).nameserver, home, ours=False)


async def produce(there: There, topic: str, counts: list[int]) -> list[client.MessageQueue]:
    """Create a topic with a number of messages in each queue."""
    async with client.Admin(there.nameserver) as admin:
        await admin.create_topic(topic, queues=QUEUES)
        queues = await admin.queues(topic)
    async with client.Producer(there.nameserver) as producer:
        await producer.send_many(
            [
                client.Message(topic, b"x", queue=queue)
                for queue, count in zip(queues, counts, strict=True)
                for _ in range(count)
            ]
        )
    await shown(there.nameserver, topic, sum(counts))
    return queues


async def join(there: There, group: str, topic: str) -> None:
    """Join the group briefly, so that brokers have it and its retry topic."""
    async with client.PullConsumer(there.nameserver, group=group) as consumer:
        consumer.assign(await consumer.queues(topic))
        async with client.Admin(there.nameserver) as admin, asyncio.timeout(20):
            while True:
                try:
                    await admin.topic_route(f"%RETRY%{group}")
                    await admin.consumer_connections(group)
                except (client.TopicNotFound, client.NotOnline):
                    await asyncio.sleep(0.05)
                else:
                    return


def progress(there: There, group: str) -> tuple[dict[tuple[str, int], tuple[int, int, int]], int]:
    """Apache's consumerProgress: (topic, queue) -> end, committed, difference; and the total."""
    printed = mqadmin(VERSION, there.home, there.nameserver, "consumerProgress", "-g", group)
    rows = {}
    total = -1
    for line in printed.splitlines():
        words = line.split()
        if line.startswith(("Consume Diff Total:", "Diff Total:")):
            total = int(words[-1])
        elif len(words) >= 6 and words[2].isdecimal():
            topic, _, queue, end, committed = words[:5]
            difference = next(int(word) for word in words[5:] if word.isdecimal())
            rows[topic, int(queue)] = (int(end), int(committed), difference)
    assert rows, printed
    return rows, total


async def test_the_lag_agrees_with_apaches_consumer_progress(there: There) -> None:
    queues = await produce(there, "lagging", [10, 5, 0, 3])
    await join(there, "billing", "lagging")
    async with client.Admin(there.nameserver) as admin:
        await admin.commit("billing", {queues[0]: 4, queues[1]: 5})
        ours = await admin.lag("billing", owners=True)
    theirs, total = await asyncio.to_thread(progress, there, "billing")
    assert {
        (queue.topic, queue.queue_id): (state.end, state.committed, state.messages)
        for queue, state in ours.queues.items()
    } == theirs
    assert ours.total == total == 9


async def test_apache_sees_what_we_reset(there: There) -> None:
    queues = await produce(there, "moved", [10, 5, 0, 3])
    await join(there, "mover", "moved")
    async with client.Admin(there.nameserver) as admin:
        await admin.commit("mover", {queues[0]: 4})
        planned = await admin.reset("mover", "moved", to=client.END, missing_only=True)
        assert [(step.before, step.after) for step in planned.steps] == [
            (None, 5),
            (None, 0),
            (None, 3),
        ]
        await admin.reset("mover", "moved", to=6, queues=[queues[0]])
        await admin.skip("mover", queues[0])
    theirs, total = await asyncio.to_thread(progress, there, "mover")
    assert theirs["moved", 0] == (10, 7, 3)
    assert total == 3


async def test_either_broker_lists_the_members_of_a_group(there: There) -> None:
    await produce(there, "seen", [1, 1, 1, 1])
    async with client.Instance(there.nameserver) as mq:
        consumer = mq.pull_consumer(group="watchers", start_from=client.FIRST)
        consumer.assign(await consumer.queues("seen"))
        assert await consumer.get_many(1, timeout=10.0)
        members = await until(lambda: mq.admin().members("watchers"), 20)
        assert [member.client_id for member in members] == [mq.client_id]
        assert members[0].subscriptions["seen"] == "*"
        assert members[0].language == "PYTHON"


async def test_either_broker_shows_the_owner_of_each_queue(there: There) -> None:
    queues = await produce(there, "owned", [1, 1, 1, 1])
    came = asyncio.Event()
    left = QUEUES

    async def handler(_: client.ReceivedMessage[bytes]) -> None:
        nonlocal left
        left -= 1
        if not left:
            came.set()

    async with client.PushConsumer(
        there.nameserver,
        group="owners",
        subscribe={"owned": "*"},
        handler=handler,
        start_from=client.FIRST,
    ):
        async with asyncio.timeout(30):
            await came.wait()
        async with client.Admin(there.nameserver) as admin:
            (member,) = await admin.members("owners")
            owners = await admin.owners("owners")
            assert {queue: owners[queue] for queue in queues} == dict.fromkeys(
                queues, member.client_id
            )
            status = await asyncio.to_thread(
                mqadmin, VERSION, there.home, there.nameserver, "consumerStatus", "-g", "owners"
            )
            assert member.client_id in status
            moved = await admin.reset("owners", "owned", to=client.BEGIN)
            left = QUEUES
            came.clear()
            async with asyncio.timeout(30):
                await came.wait()
            assert (moved.online, moved.unaware) == ((member.client_id,), ())


def test_an_online_group_is_reset_as_far_as_its_broker_can(there: There) -> None:
    with blocking.Instance(there.nameserver) as mq:
        mq.admin().create_topic("busy", queues=1)
        consumer = mq.pull_consumer(group="busy")
        consumer.assign(consumer.queues("busy"))
        consumer.get_many(1, timeout=1.0)
        to_the_end = mq.admin().reset("busy", "busy", to=client.END)
        assert to_the_end.online == (mq.client_id,)
        if there.ours:
            assert mq.admin().reset("busy", "busy", to=0).online == (mq.client_id,)
        else:
            with pytest.raises(client.UsageError, match="an Apache broker"):
                mq.admin().reset("busy", "busy", to=0, dry_run=True)
