"""Push consumers as members of their group."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import client
from client.events import QueueGained
from tests.integration.client.conftest import lose_offsets
from tests.integration.client.pushing import Bodies, collect, consumer, fill, lag, numbers, own
from tests.support.waiting import until


async def test_members_share_the_queues_and_a_clean_handover_repeats_nothing(
    cluster: Any, producer: Any
):
    first: Bodies = []
    second: Bodies = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.001)
        first.append(message.body)

    one = consumer(cluster, handle)
    await one.start()
    await until(lambda: len(own(one)) == 4)
    await fill(producer, 500)
    async with consumer(cluster, collect(second)) as other:
        await until(lambda: len(own(one)) == len(own(other)) == 2)
        await fill(producer, 500, first=500)
        await until(lambda: len(first) + len(second) >= 1000)
        await one.stop()
        await until(lambda: len(own(other)) == 4)
        await fill(producer, 100, first=1000)
        await until(lambda: len(first) + len(second) >= 1100)
    assert sorted(first + second, key=int) == numbers(1100)


async def test_an_offset_that_a_killed_broker_has_lost_is_committed_again(
    cluster: Any, producer: Any, admin: client.Admin, tmp_path: Path
):
    got: Bodies = []
    await fill(producer, 10)
    async with consumer(cluster, collect(got), commit_period=0.1):
        await until(lambda: len(got) == 10)

        async def is_committed() -> bool:
            queues = (await admin.lag("g")).queues.values()
            return sum(queue.committed or 0 for queue in queues) == 10

        await until(is_committed)
        await cluster.stop()
        lose_offsets(tmp_path)
        await cluster.start()
        await until(is_committed)
    assert len(got) == 10


async def test_an_orderly_handover_keeps_the_order_of_each_queue(cluster: Any, producer: Any):
    got: list[tuple[int, int]] = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0)
        got.append((message.queue.queue_id, message.offset))

    one = consumer(cluster, handle, order=client.Orderly())
    await one.start()
    await until(lambda: len(own(one)) == 4)
    await fill(producer, 400)
    async with consumer(cluster, handle, order=client.Orderly()) as other:
        await until(lambda: len(own(other)) == 2)
        await fill(producer, 400, first=400)
        await one.stop()
        await until(lambda: len(got) >= 800)
    for queue in range(4):
        offsets = [offset for number, offset in got if number == queue]
        assert offsets == list(range(len(offsets)))


async def test_tags_are_compared_exactly(cluster: Any, producer: Any):
    # Two tags with one hash: a broker can't distinguish them.
    for tag in ("Aa", "BB", "C"):
        await producer.send("T", tag.encode(), tag=tag)
    got: Bodies = []
    async with consumer(cluster, collect(got), subscribe={"T": client.Tags("BB", "C")}) as made:
        await until(lambda: len(got) == 2)
        await producer.send("T", b"last", tag="C")
        await until(lambda: len(got) == 3)
        assert made.group == "g"
    assert sorted(got) == [b"BB", b"C", b"last"]
    assert await lag(cluster) == 0


@pytest.mark.parametrize("anew", [False, True], ids=["changed", "unsubscribed and subscribed"])
async def test_topics_are_subscribed_and_unsubscribed(cluster: Any, producer: Any, anew: bool):
    async with client.Admin(cluster.nameserver) as admin:
        await admin.create_topic("U", queues=1)
    got: Bodies = []
    async with consumer(cluster, collect(got)) as made:
        made.subscribe("U", client.Tags("x"))
        await until(lambda: any(queue.topic == "U" for queue in made.assigned))
        await producer.send("U", b"no", tag="y")
        await producer.send("U", b"yes", tag="x")
        await until(lambda: got == [b"yes"])
        if anew:
            made.unsubscribe("U")
        made.subscribe("U")
        await producer.send("U", b"now", tag="y")
        await until(lambda: got == [b"yes", b"now"])
        made.unsubscribe("U")
        await until(lambda: not any(queue.topic == "U" for queue in made.assigned))


async def test_a_suspended_consumer_stays_a_member_and_continues_when_resumed(
    cluster: Any, producer: Any
):
    got: Bodies = []
    async with consumer(cluster, collect(got)) as made:
        await until(lambda: len(own(made)) == 4)
        made.suspend()
        await fill(producer, 10)
        await asyncio.sleep(0.1)
        assert got == []
        assert len(own(made)) == 4
        made.resume()
        await until(lambda: len(got) == 10)


async def test_broadcasting_delivers_all_to_each_member_and_continues_from_its_file(
    cluster: Any, producer: Any, tmp_path: Path
):
    await fill(producer, 50)
    got: list[Bodies] = [[], []]

    def broadcast(number: int) -> client.PushConsumer[bytes]:
        return consumer(
            cluster,
            collect(got[number]),
            model="broadcasting",
            local_offsets=tmp_path / f"{number}.json",
        )

    async with broadcast(0), broadcast(1):
        await until(lambda: [len(one) for one in got] == [50, 50])
    await fill(producer, 5, first=50)
    async with broadcast(0):
        await until(lambda: len(got[0]) == 55)
    assert sorted(got[0], key=int) == numbers(55)


async def test_a_damaged_broadcast_file_is_an_error_at_the_start(cluster: Any, tmp_path: Path):
    file = tmp_path / "offsets.json"
    file.write_text("{")
    made = consumer(cluster, collect([]), model="broadcasting", local_offsets=file)
    with pytest.raises(client.UsageError, match="damaged"):
        await made.start()


async def test_a_group_starts_at_the_end_with_exact(cluster: Any, producer: Any):
    await fill(producer, 10)
    got: Bodies = []
    events: list[Any] = []
    made = consumer(
        cluster, collect(got), start_from=client.LAST, exact=True, on_event=events.append
    )
    async with made:
        await until(lambda: len(own(made)) == 4)
        await producer.send("T", b"new")
        await until(lambda: got)
    assert got == [b"new"]
    starts = {e.start.reason for e in events if isinstance(e, QueueGained) and e.queue.topic == "T"}
    assert starts == {"end"}


async def test_the_start_offset_is_committed_without_messages(cluster: Any, producer: Any):
    await fill(producer, 10)
    got: Bodies = []
    async with consumer(cluster, collect(got), start_from=client.LAST, exact=True) as made:
        await until(lambda: len(own(made)) == 4)
    await fill(producer, 5, first=10)
    async with consumer(cluster, collect(got), start_from=client.LAST, exact=True):
        await until(lambda: len(got) == 5)
    assert sorted(got, key=int) == numbers(5, first=10)


async def test_a_broker_restart_loses_nothing(cluster: Any, producer: Any):
    got: Bodies = []
    async with consumer(cluster, collect(got)) as made:
        await until(lambda: len(own(made)) == 4)
        await fill(producer, 100)
        await until(lambda: len(got) == 100)
        await cluster.stop()
        await cluster.start()
        await fill(producer, 100, first=100)
        await until(lambda: len(set(got)) == 200, 30)


async def test_a_blocked_queue_is_reported_to_the_broker(cluster: Any, producer: Any):
    receipt = await producer.send("T", b"bad")
    events: list[Any] = []

    async def handle(_: Any) -> None:
        raise ValueError("never")

    order = client.Orderly(max_retries=None, suspend=0.01, max_suspend=0.01)
    blocked: list[Any] = []
    async with (
        client.Admin(cluster.nameserver) as admin,
        consumer(cluster, handle, order=order, on_event=events.append),
        asyncio.timeout(10),
    ):
        while not blocked:
            group = await admin.describe_group("g")
            blocked = [queue for queue in group.queues if queue.blocked is not None]
    [queue] = blocked
    assert (queue.queue, queue.blocked.message_id) == (receipt.queue, receipt.id)
    assert any(isinstance(event, client.QueueBlocked) for event in events)


async def test_members_that_subscribe_differently_are_an_error_that_names_both(cluster: Any):
    async with (
        consumer(cluster, collect([])) as one,
        client.Admin(cluster.nameserver) as admin,
    ):
        await until(lambda: len(own(one)) == 4)
        other = consumer(cluster, collect([]), subscribe={"T": "paid"})
        with pytest.raises(client.GroupConflict) as raised:
            await other.start()
        [member] = await admin.members("g")
        assert member.client_id in raised.value.members
        assert len(own(one)) == 4
