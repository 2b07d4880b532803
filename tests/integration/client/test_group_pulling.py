"""Pull consumers that share queues with their group, at our broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import client
from client import blocking
from client.errors import GroupConflict
from client.events import QueueGained, QueueLost
from pocketmq import testing
from tests.support.waiting import until


async def fill(
    producer: client.Producer[bytes], count: int, first: int = 0, tag: str | None = None
) -> None:
    await producer.send_many(
        [client.Message("T", b"%d" % n, tag=tag) for n in range(first, first + count)]
    )


async def drain(consumer: client.PullConsumer[bytes], into: list[bytes]) -> None:
    while True:
        into += [message.body for message in await consumer.get_many(50)]
        await asyncio.sleep(0)


def queue(number: int) -> client.MessageQueue:
    return client.MessageQueue("T", "broker-a", number)


async def test_one_member_reads_everything_and_starts_at_once(cluster: Any, producer: Any):
    await fill(producer, 100)
    loop = asyncio.get_running_loop()
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        began = loop.time()
        await consumer.subscribe("T")
        got: list[bytes] = []
        while len(got) < 100:
            got += [message.body for message in await consumer.get_many(100, timeout=5)]
            assert loop.time() - began < 15
        assert consumer.assigned == [queue(number) for number in range(4)]
    assert sorted(got, key=int) == [b"%d" % number for number in range(100)]


async def test_members_share_the_queues_and_clean_joins_and_leaves_repeat_nothing(
    cluster: Any, producer: Any
):
    got: list[bytes] = []
    options = {"group": "g", "auto_commit": True, "auto_commit_period": 0.2}
    async with client.PullConsumer(cluster.nameserver, **options) as one:
        await one.subscribe("T")
        reading = [asyncio.create_task(drain(one, got))]
        await fill(producer, 500)
        async with client.PullConsumer(cluster.nameserver, **options) as two:
            await two.subscribe("T")
            reading.append(asyncio.create_task(drain(two, got)))
            await fill(producer, 500, 500)
            await until(lambda: (len(one.assigned), len(two.assigned)) == (2, 2))
            await fill(producer, 500, 1000)
            await until(lambda: len(got) >= 1500)
            reading[1].cancel()
            await asyncio.wait([reading[1]])
        await until(lambda: len(one.assigned) == 4)
        await fill(producer, 500, 1500)
        await until(lambda: len(got) >= 2000)
        reading[0].cancel()
        await asyncio.wait([reading[0]])
    assert sorted(got, key=int) == [b"%d" % number for number in range(2000)]


async def test_listeners_are_notified_of_queues_and_may_commit_before_losing_them(
    cluster: Any, producer: Any
):
    await fill(producer, 80)
    gained: list[client.MessageQueue] = []
    lost: list[client.MessageQueue] = []
    events: list[Any] = []

    async def commit(which: client.MessageQueue) -> None:
        await one.commit({which: await one.position(which)})
        lost.append(which)

    one = client.PullConsumer(
        cluster.nameserver,
        group="g",
        on_gained=gained.append,
        on_lost=commit,
        on_event=events.append,
    )
    async with one:
        await one.subscribe("T")
        got = 0
        while got < 80:
            got += len(await one.get_many(100, timeout=5))
        assert sorted(gained) == [queue(number) for number in range(4)]
        async with client.PullConsumer(cluster.nameserver, group="g") as two:
            await two.subscribe("T")
            await until(lambda: len(two.assigned) == 2)
            assert sorted(lost) == two.assigned
            assert await two.get_many(100, timeout=0.3) == []
            with pytest.raises(client.UsageError, match="another member"):
                await one.commit({lost[0]: 0})
    assert {event.queue for event in events if isinstance(event, QueueLost)} == set(gained)
    starts = [event.start.text for event in events if isinstance(event, QueueGained)]
    assert all(text.startswith("fallback 0: ") for text in starts[:4])


async def test_a_subscribe_that_is_cancelled_takes_no_queues(cluster: Any, admin: Any):
    await admin.create_topic("U", queues=4)
    options: dict[str, Any] = {"group": "g", "on_conflict": "allow"}
    async with client.PullConsumer(cluster.nameserver, **options) as one:
        await one.subscribe("T")
        subscribing = asyncio.create_task(one.subscribe("U"))
        await asyncio.sleep(0)
        subscribing.cancel()
        await asyncio.wait([subscribing])
        async with client.PullConsumer(cluster.nameserver, **options) as two:
            await two.subscribe("U")
            await until(lambda: len(two.assigned) == 4)
        assert {each.topic for each in one.assigned} == {"T"}


async def test_uncommitted_messages_are_delivered_again_to_the_next_owner(
    cluster: Any, producer: Any
):
    await fill(producer, 40)
    async with client.PullConsumer(cluster.nameserver, group="g") as one:
        await one.subscribe("T")
        assert await one.get_many(10, timeout=5)
    async with client.PullConsumer(cluster.nameserver, group="g") as two:
        await two.subscribe("T")
        got = 0
        while got < 40:
            batch = await two.get_many(100, timeout=5)
            assert batch
            got += len(batch)
        assert got == 40


async def test_changed_tags_apply_from_the_next_message_delivered(cluster: Any, producer: Any):
    await fill(producer, 20, tag="a")
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        await consumer.subscribe("T", "a")
        got = 0
        while got < 20:
            got += len(await consumer.get_many(100, timeout=5))
        await consumer.subscribe("T", "b")
        await fill(producer, 20, 20, tag="a")
        await fill(producer, 20, 40, tag="b")
        bodies: list[bytes] = []
        while len(bodies) < 20:
            batch = await consumer.get_many(100, timeout=5)
            assert batch
            bodies += [message.body for message in batch]
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(40, 60)]


async def test_unsubscribing_releases_the_queues_and_then_queues_can_be_assigned(
    cluster: Any, producer: Any
):
    await fill(producer, 20)
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        with pytest.raises(client.UsageError, match="not subscribed"):
            await consumer.unsubscribe("T")
        await consumer.subscribe("T")
        with pytest.raises(client.UsageError, match="shares its queues"):
            consumer.assign([queue(0)])
        await consumer.unsubscribe("T")
        assert consumer.assigned == []
        with pytest.raises(client.UsageError, match="nothing to read"):
            await consumer.get_many(10)
        broker = cluster.brokers["broker-a"]
        assert "g" not in broker.state.consumers.groups
        consumer.assign([queue(0)])
        with pytest.raises(client.UsageError, match="reads assigned queues"):
            await consumer.subscribe("T")


@pytest.mark.parametrize("topics", [["T"], ["T", "U"]])
async def test_unsubscribing_commits_what_was_returned_and_waits_until_the_queues_are_released(
    cluster: Any, producer: Any, admin: client.Admin, topics: list[str]
):
    await admin.create_topic("U", queues=1)
    consumer = client.PullConsumer(
        cluster.nameserver, group="g", auto_commit=True, handover_timeout=60
    )
    async with asyncio.timeout(20), consumer:
        for topic in topics:
            await consumer.subscribe(topic)
        for _ in range(2):
            await fill(producer, 20)
            got = 0
            while got < 20:
                got += len(await consumer.get_many(20))
            await consumer.unsubscribe("T")
            assert {each.topic for each in consumer.assigned} == {*topics} - {"T"}
            assert (await admin.lag("g", topic="T")).total == 0
            await consumer.subscribe("T")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"strategy": "STIKY"}, "did you mean 'STICKY'"),
        ({"on_conflict": "shout"}, "use reject, warn or allow"),
    ],
)
async def test_wrong_options_of_the_group_mode_are_named(cluster: Any, options: Any, sentence: str):
    with pytest.raises(client.UsageError, match=sentence):
        async with client.PullConsumer(cluster.nameserver, group="g", **options) as consumer:
            await consumer.subscribe("T")


async def test_members_with_other_tags_are_refused_by_name(cluster: Any):
    async with (
        client.Instance(cluster.nameserver) as here,
        client.Instance(cluster.nameserver) as there,
    ):
        one, two = here.pull_consumer(group="g"), there.pull_consumer(group="g")
        await one.subscribe("T", "a")
        with pytest.raises(GroupConflict) as raised:
            await two.subscribe("T", "b")
        assert set(raised.value.members) == {here.client_id, there.client_id}
        await two.subscribe("T", "a")


async def test_a_consumer_without_subscriptions_takes_no_queues(cluster: Any):
    async with (
        client.PullConsumer(cluster.nameserver, group="g") as one,
        client.PullConsumer(cluster.nameserver, group="g") as idle,
    ):
        await one.subscribe("T")
        await idle.queues("T")
        await idle.committed([queue(0)])
        await until(lambda: len(one.assigned) == 4)
        group = cluster.brokers["broker-a"].state.consumers.groups["g"]
        assert set(group.subscriptions) == {"T"}
        assert len(group.members) == 1


async def test_a_broker_restart_is_survived(cluster: Any, producer: Any):
    got: list[bytes] = []
    async with client.PullConsumer(cluster.nameserver, group="g", auto_commit=True) as consumer:
        await consumer.subscribe("T")
        reading = asyncio.create_task(drain(consumer, got))
        await fill(producer, 50)
        await until(lambda: len(got) == 50)
        await cluster.stop()
        await cluster.start()
        await fill(producer, 50, 50)
        await until(lambda: len(got) == 100, 30)
        await until(lambda: len(consumer.assigned) == 4)
        reading.cancel()
        await asyncio.wait([reading])
    assert sorted(got, key=int) == [b"%d" % number for number in range(100)]


async def test_sticky_members_agree_by_the_locks_at_the_broker(cluster: Any):
    events: list[Any] = []
    options = {"group": "g", "strategy": "STICKY"}
    async with client.PullConsumer(cluster.nameserver, on_event=events.append, **options) as one:
        await one.subscribe("T")
        await until(lambda: len(one.assigned) == 4)
        for _ in range(2):
            async with client.PullConsumer(cluster.nameserver, **options) as two:
                await two.subscribe("T")
                await until(lambda: (len(one.assigned), len(two.assigned)) == (2, 2))
            await until(lambda: len(one.assigned) == 4)
        lost = [event.queue for event in events if isinstance(event, QueueLost)]
        assert sorted(lost[:2]) == sorted(lost[2:4])


async def test_an_administrator_sees_what_a_member_reads(cluster: Any, producer: Any):
    await fill(producer, 40)
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        await consumer.subscribe("T")
        got = 0
        while got < 40:
            got += len(await consumer.get_many(100, timeout=5))
        async with client.Admin(cluster.nameserver) as admin:
            [member] = await admin.members("g")
            info = await admin.running_info("g", member.client_id)
        assert info.mq_table.keys() == set(consumer.assigned)
        assert sum(one.commit_offset for one in info.mq_table.values()) == 40
        assert all(one.locked for one in info.mq_table.values())


def test_the_blocking_consumer_subscribes_too():
    with testing.broker() as server, blocking.Producer(server.nameserver) as producer:
        producer.send("B", b"x")
        with blocking.PullConsumer(server.nameserver, group="g") as consumer:
            consumer.subscribe("B")
            [message] = consumer.get_many(10, timeout=5)
            assert message.body == b"x"
            consumer.unsubscribe("B")
            assert consumer.assigned == []


async def test_listeners_that_fail_or_hang_do_not_keep_a_queue(cluster: Any):
    def fail(which: client.MessageQueue) -> None:
        raise ValueError(which)

    async def hang(which: client.MessageQueue) -> None:
        await asyncio.Event().wait()

    one = client.PullConsumer(
        cluster.nameserver, group="g", on_gained=fail, on_lost=hang, handover_timeout=0.1
    )
    two = client.PullConsumer(cluster.nameserver, group="g", on_lost=fail)
    async with one, two:
        await one.subscribe("T")
        await until(lambda: len(one.assigned) == 4)
        await two.subscribe("T")
        await until(lambda: (len(one.assigned), len(two.assigned)) == (2, 2))
        await one.close(timeout=0.1)
        await until(lambda: len(two.assigned) == 4)


async def test_a_queue_that_moves_to_another_member_cannot_be_seeked(cluster: Any, producer: Any):
    await fill(producer, 40)
    going: list[client.MessageQueue] = []
    gone = asyncio.Event()

    async def wait(which: client.MessageQueue) -> None:
        going.append(which)
        await gone.wait()

    async with (
        client.PullConsumer(cluster.nameserver, group="g", on_lost=wait) as one,
        client.PullConsumer(cluster.nameserver, group="g") as two,
    ):
        await one.subscribe("T")
        await until(lambda: len(one.assigned) == 4)
        await two.subscribe("T")
        await until(lambda: len(going) == 2)
        with pytest.raises(client.UsageError, match="goes to another member"):
            await one.seek(going[0], client.BEGIN)
        with pytest.raises(client.UsageError, match="goes to another member"):
            one.pause(going)
        assert all(message.queue not in going for message in await one.get_many(100, timeout=1))
        await one.subscribe("T", "paid")
        gone.set()
        await until(lambda: sorted(going) == two.assigned)


async def test_automatic_commits_wait_for_unsettled_messages_when_a_queue_is_lost(
    cluster: Any, producer: Any
):
    for number in range(40):
        await producer.send("T", b"%d" % number, queue=queue(number % 4))
    options = {"group": "g", "auto_commit": True, "handover_timeout": 10.0}
    async with (
        client.PullConsumer(cluster.nameserver, **options) as one,
        client.PullConsumer(cluster.nameserver, **options) as two,
    ):
        await one.subscribe("T")
        waiting = one._reader.prefetch
        await until(lambda: sum(waiting(each).messages for each in one.assigned) == 40)
        assert len(await one.get_many(100)) == 40
        await two.subscribe("T")
        assert await two.get_many(1, timeout=0.3) == []
        assert two.assigned == []
        assert await one.get_many(1, timeout=0.1) == []
        await until(lambda: len(two.assigned) == 2)
        assert await two.get_many(1, timeout=0.3) == []
