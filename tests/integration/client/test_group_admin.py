"""Inspecting and resetting groups: describe, lag, reset, skip, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

import client
from client import blocking
from client.admin.resets import Reset
from pocketmq import testing
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from remoting.protocol.message import properties
from remoting.protocol.message.compression import compress
from tests.support.waiting import until

DLQ = client.MessageQueue("%DLQ%g", "broker-a", 0)


@pytest.fixture
async def admin(cluster: Any) -> AsyncIterator[client.Admin]:
    async with client.Admin(cluster.nameserver) as made:
        await made.create_group("g")
        yield made


def queue(number: int) -> client.MessageQueue:
    return client.MessageQueue("T", "broker-a", number)


async def send(cluster: Any, count: int, *, number: int = 0) -> None:
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send_many(
            [client.Message("T", b"%d" % n, queue=queue(number)) for n in range(count)]
        )


def places(reset: Reset) -> dict[int, tuple[int | None, int]]:
    return {step.queue.queue_id: (step.before, step.after) for step in reset.steps}


async def test_a_group_without_consumers_has_no_members(admin: client.Admin):
    described = await admin.describe_group("g")
    assert (described.members, described.online) == ((), False)
    assert await admin.members("nobody") == []
    assert await admin.owners("g") == {}


async def test_a_reset_accepts_an_end_an_offset_or_a_time(cluster: Any, admin: client.Admin):
    await send(cluster, 5)
    await asyncio.sleep(0.002)  # store times have whole milliseconds
    between = datetime.now(UTC)
    await asyncio.sleep(0.002)
    await send(cluster, 5)
    await admin.commit("g", {queue(0): 3})
    for to, after in ((client.BEGIN, 0), (client.END, 10), (7, 7), (99, 10), (between, 5)):
        done = await admin.reset("g", "T", to=to)
        assert done.applied
        assert places(done)[0][1] == after
        assert (await admin.committed("g", "T"))[queue(0)] == after


async def test_a_dry_run_shows_the_plan_and_changes_nothing(cluster: Any, admin: client.Admin):
    await send(cluster, 5)
    await admin.commit("g", {queue(0): 3})
    planned = await admin.reset("g", "T", to=client.BEGIN, dry_run=True)
    assert not planned.applied
    assert places(planned) == {0: (3, 0), 1: (None, 0), 2: (None, 0), 3: (None, 0)}
    step = planned.steps[0]
    assert (step.changes, step.lag_before, step.lag_after) == (True, 2, 5)
    assert planned.steps[1].lag_before is None
    assert await admin.committed("g", "T") == {queue(0): 3, **{queue(n): None for n in (1, 2, 3)}}


async def test_only_queues_without_an_offset_can_be_reset(cluster: Any, admin: client.Admin):
    await send(cluster, 5, number=1)
    await admin.commit("g", {queue(0): 0})
    done = await admin.reset("g", "T", to=client.END, missing_only=True)
    assert places(done) == {1: (None, 5), 2: (None, 0), 3: (None, 0)}
    again = await admin.reset("g", "T", to=client.END, missing_only=True)
    assert again.steps == ()


async def test_a_reset_can_be_limited_to_some_queues(cluster: Any, admin: client.Admin):
    done = await admin.reset("g", "T", to=client.BEGIN, queues=[queue(2)])
    assert places(done) == {2: (None, 0)}
    with pytest.raises(client.UsageError, match="no such queue"):
        await admin.reset("g", "T", to=client.BEGIN, queues=[queue(9)])


async def test_a_reset_of_an_unknown_group_or_topic_is_refused(admin: client.Admin):
    with pytest.raises(client.GroupNotFound):
        await admin.reset("misspelt", "T", to=client.END)
    with pytest.raises(client.TopicNotFound):
        await admin.reset("g", "misspelt", to=client.END)
    with pytest.raises(client.UsageError, match="not a position"):
        await admin.reset("g", "T", to="end")  # type: ignore[arg-type] # what is tested


async def test_one_message_is_skipped(cluster: Any, admin: client.Admin):
    await send(cluster, 5)
    with pytest.raises(client.UsageError, match="committed nothing"):
        await admin.skip("g", queue(0))
    await admin.commit("g", {queue(0): 3})
    assert places(await admin.skip("g", queue(0), dry_run=True)) == {0: (3, 4)}
    assert places(await admin.skip("g", queue(0))) == {0: (3, 4)}
    assert places(await admin.skip("g", queue(0), messages=9)) == {0: (4, 5)}
    with pytest.raises(client.UsageError, match="queue ends at 5"):
        await admin.skip("g", queue(0))
    with pytest.raises(client.UsageError, match="messages can't be 0"):
        await admin.skip("g", queue(0), messages=0)


async def test_the_member_that_pulls_a_queue_owns_it(cluster: Any, admin: client.Admin):
    async with client.Instance(cluster.nameserver) as mq:
        consumer = mq.pull_consumer(group="g", start_from=client.FIRST)
        consumer.assign([queue(0), queue(1)])
        async with asyncio.timeout(10):
            await until(lambda: admin.members("g"))
            await send(cluster, 3)
            await send(cluster, 3, number=1)
            while await admin.owners("g") != dict.fromkeys([queue(0), queue(1)], mq.client_id):
                await consumer.get_many(10, timeout=0.1)
        await admin.commit("g", {queue(0): 1, queue(1): 1})
        lag = await admin.lag("g", owners=True)
        assert {place.queue_id: state.owner for place, state in lag.queues.items()} == {
            **dict.fromkeys([0, 1], mq.client_id),
            **dict.fromkeys([2, 3]),
        }
    assert await admin.owners("g") == {}


# Dead letters


async def store_dead_letter(
    admin: client.Admin,
    body: bytes,
    own: Mapping[str, str],
    *,
    sys_flag: int = 0,
    born_ms: int = 1_700_000_000_000,
) -> None:
    """Store a dead letter as a broker does."""
    header = SendMessageRequestHeaderV2(
        producer_group="g",
        topic=DLQ.topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=born_ms,
        flag=7,
        properties=properties.encode(own).decode(),
        reconsume_times=3,
    )
    [broker] = await admin.brokers()
    async with ConnectionPool() as pool:
        command = Command.request(RequestCode.SEND_MESSAGE_V2, header, body=body)
        await pool.request(broker.address, command, timeout=30)


def letter(number: int, **more: str) -> dict[str, str]:
    return {
        "UNIQ_KEY": f"id-{number}",
        "KEYS": f"k{number} all",
        "TAGS": "paid",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "first",
        "DELAY": "0",
        "REAL_TOPIC": "%RETRY%g",
        "TIMER_DELAY_SEC": "5",
        "TIMER_OUT_MS": "1700000005000",
        "colour": "blue",
        **more,
    }


@pytest.fixture
async def dead(admin: client.Admin) -> client.Admin:
    """Three dead letters of the group g."""
    await admin.create_topic(DLQ.topic, queues=1)
    for number in range(3):
        await store_dead_letter(admin, b"body %d" % number, letter(number))
    return admin


async def received(cluster: Any, topic: str, count: int) -> list[Any]:
    found: list[Any] = []
    async with client.PullConsumer(cluster.nameserver, group="reader") as consumer:
        consumer.assign(await consumer.queues(topic))
        for one in consumer.assigned:
            await consumer.seek(one, client.BEGIN)
        async with asyncio.timeout(10):
            while len(found) < count:
                found += await consumer.get_many(10, timeout=1.0)
    return found


async def test_a_group_without_dead_letters_has_none(admin: client.Admin):
    assert await admin.dead_letters("g") == []
    assert await admin.redrive("g") == (await admin.redrive("g", dry_run=True))


async def test_dead_letters_show_their_origin_and_reason(dead: client.Admin):
    letters = await dead.dead_letters("g")
    first = letters[0]
    assert [one.offset for one in letters] == [0, 1, 2]
    assert (first.queue, first.topic, first.id, first.origin_id) == (DLQ, "T", "id-0", "first")
    assert (first.tag, first.keys, first.body) == ("paid", ("k0", "all"), b"body 0")
    assert (first.retries, first.redriven) == (3, False)
    assert len(await dead.dead_letters("g", limit=2)) == 2


async def test_a_dead_letter_whose_birth_is_no_time_is_shown_and_sent_back(dead: client.Admin):
    await store_dead_letter(dead, b"odd", letter(3), born_ms=2**62)
    assert [one.born_at is None for one in await dead.dead_letters("g")] == [False] * 3 + [True]
    assert len((await dead.redrive("g")).sent) == 4


async def test_a_redrive_sends_them_back_as_they_were(cluster: Any, dead: client.Admin):
    done = await dead.redrive("g")
    assert [one.message.id for one in done.sent] == ["id-0", "id-1", "id-2"]
    assert done.left == 0
    back = sorted(await received(cluster, "T", 3), key=lambda message: message.id)
    for number, message in enumerate(back):
        assert (message.id, message.body) == (f"id-{number}", b"body %d" % number)
        assert (message.tag, message.keys) == ("paid", [f"k{number}", "all"])
        assert (message.flag, message.retries) == (7, 0)
        assert message.properties["colour"] == "blue"
        gone = {"DELAY", "TIMER_DELAY_SEC", "TIMER_OUT_MS", "REAL_TOPIC", "RETRY_TOPIC"}
        assert not gone & message.properties.keys()
    assert {(one.queue, one.offset) for one in done.sent} == {
        (message.queue, message.offset) for message in back
    }


async def test_what_was_sent_back_is_not_sent_again(cluster: Any, dead: client.Admin):
    assert len((await dead.redrive("g", dry_run=True)).sent) == 3
    done = await dead.redrive("g", limit=2)
    assert (len(done.sent), done.left) == (2, 1)
    assert [one.id for one in await dead.dead_letters("g")] == ["id-2"]
    assert [one.redriven for one in await dead.dead_letters("g", redriven=True)] == [
        *(True, True, False)
    ]
    assert len((await dead.redrive("g")).sent) == 1
    assert (await dead.redrive("g")).sent == ()
    assert len(await received(cluster, "T", 3)) == 3


async def test_chosen_letters_are_sent_back_once(cluster: Any, dead: client.Admin):
    planned = await dead.redrive("g", ids=["id-1"], dry_run=True)
    assert ([one.message.id for one in planned.sent], planned.left) == (["id-1"], 2)
    done = await dead.redrive("g", ids=["id-1"])
    assert ([one.message.id for one in done.sent], done.left) == (["id-1"], 2)
    assert (await dead.redrive("g", ids=["id-1", "unknown"])).sent == ()
    assert [one.id for one in await dead.dead_letters("g")] == ["id-0", "id-2"]
    assert [one.redriven for one in await dead.dead_letters("g", redriven=True)] == [
        *(False, True, False)
    ]
    # The letters before and after it go back once, in whatever order.
    assert [one.message.id for one in (await dead.redrive("g", ids=["id-0"])).sent] == ["id-0"]
    assert (await dead.committed("g", DLQ.topic))[DLQ] == 2
    assert [one.message.id for one in (await dead.redrive("g")).sent] == ["id-2"]
    assert (await dead.committed("g", DLQ.topic))[DLQ] == 3
    assert len(await received(cluster, "T", 3)) == 3
    with pytest.raises(client.UsageError, match="topics they came from"):
        await dead.redrive("g", ids=["id-1"], topic="T")


async def test_letters_chosen_in_any_order_are_all_done_in_the_end(dead: client.Admin):
    for chosen in ("id-2", "id-1", "id-0"):
        assert len((await dead.redrive("g", ids=[chosen])).sent) == 1
    assert (await dead.committed("g", DLQ.topic))[DLQ] == 3


async def test_a_letter_that_was_sent_back_but_not_committed_is_not_sent_again(
    cluster: Any, dead: client.Admin
):
    await dead.redrive("g", limit=2)
    await dead.commit("g", {DLQ: 0})  # as after a kill between the send and the commit
    assert [one.message.id for one in (await dead.redrive("g")).sent] == ["id-2"]
    # A copy that dies again is another letter.
    [copy, *_] = sorted(await received(cluster, "T", 3), key=lambda message: message.id)
    await store_dead_letter(dead, b"again", {**letter(0), **copy.properties})
    assert [one.message.body for one in (await dead.redrive("g")).sent] == [b"again"]


async def test_compressed_bodies_stay_as_they_are(cluster: Any, admin: client.Admin):
    await admin.create_topic(DLQ.topic, queues=1)
    body = b"again and " * 1000
    packed, sys_flag = compress(body, "zlib")
    await store_dead_letter(admin, packed, letter(0), sys_flag=sys_flag)
    assert (await admin.dead_letters("g"))[0].body == body
    await admin.redrive("g")
    assert [message.body for message in await received(cluster, "T", 1)] == [body]


async def test_messages_of_one_sharding_key_go_to_one_queue(admin: client.Admin):
    await admin.create_topic(DLQ.topic, queues=1)
    for number in range(4):
        await store_dead_letter(admin, b"x", letter(number, __SHARDINGKEY="user-7"))
    done = await admin.redrive("g")
    assert len({one.queue for one in done.sent}) == 1


async def test_a_dead_letter_without_an_origin_needs_a_topic(cluster: Any, admin: client.Admin):
    await admin.create_topic(DLQ.topic, queues=1)
    await store_dead_letter(admin, b"x", {"UNIQ_KEY": "lost"})
    assert (await admin.dead_letters("g"))[0].topic is None
    with pytest.raises(client.UsageError, match="which topic it came from"):
        await admin.redrive("g")
    assert len((await admin.redrive("g", topic="T")).sent) == 1
    assert [message.id for message in await received(cluster, "T", 1)] == ["lost"]


async def test_a_deleted_origin_topic_stops_the_redrive(dead: client.Admin):
    await store_dead_letter(dead, b"x", letter(3, RETRY_TOPIC="Gone"))
    with pytest.raises(client.TopicNotFound, match="Gone"):
        await dead.redrive("g")
    assert [one.topic for one in await dead.dead_letters("g")] == ["Gone"]


@pytest.mark.parametrize("text", ["no topic!", "é" * 200])
async def test_an_origin_that_is_no_topics_name_is_shown(admin: client.Admin, text: str):
    await admin.create_topic(DLQ.topic, queues=1)
    await store_dead_letter(admin, b"x", letter(0, RETRY_TOPIC=text))
    assert [one.topic for one in await admin.dead_letters("g")] == [text]
    with pytest.raises(client.PocketMQError):
        await admin.redrive("g")


def test_the_blocking_admin_does_the_same():
    with testing.broker() as server, blocking.Admin(server.nameserver) as admin:
        admin.create_topic("T", queues=1)
        admin.create_group("g")
        assert admin.reset("g", "T", to=client.END).applied
        assert admin.lag("g", owners=True).total == 0
        assert admin.dead_letters("g") == []
