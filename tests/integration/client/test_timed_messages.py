"""Messages with a time of delivery, and recalls, at our broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import client
from client import blocking
from client.errors import RemoteError, SendError, UsageError
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from remoting.protocol.message import properties
from remoting.protocol.message.recall_handle import RecallHandle
from tests.harness.cluster import Cluster

TOPIC = "T"


async def received(nameserver: str, count: int) -> list[client.ReceivedMessage[bytes]]:
    async with asyncio.timeout(20), client.PullConsumer(nameserver, group="reader") as consumer:
        queues = await consumer.queues(TOPIC)
        consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, client.BEGIN)
        found: list[client.ReceivedMessage[bytes]] = []
        while len(found) < count:
            found += await consumer.get_many(100, timeout=1.0)
        return found


async def test_a_message_is_delivered_at_its_time_and_not_before(cluster: Cluster) -> None:
    at = datetime.now(UTC) + timedelta(milliseconds=1234)
    async with client.Producer(cluster.nameserver) as producer:
        receipts = [
            await producer.send(TOPIC, b"at", deliver_at=at),
            await producer.send(TOPIC, b"after", delay=timedelta(milliseconds=700)),
            await producer.send(TOPIC, b"seconds", delay=0.9),
            await producer.send(client.Message(TOPIC, b"message", delay=1)),
            await producer.send_nowait(TOPIC, b"nowait", delay=1),
            *await producer.send_many([client.Message(TOPIC, b"many", delay=1)]),
        ]
        await producer.send_oneway(TOPIC, b"oneway", delay=1)
    assert all(isinstance(each, client.Receipt) and each.recall_handle for each in receipts)
    for message in await received(cluster.nameserver, 7):
        slot = int(message.properties["TIMER_OUT_MS"])
        assert slot < message.stored_at.timestamp() * 1000
        if message.body == b"at":
            assert message.stored_at >= at.replace(microsecond=at.microsecond // 1000 * 1000)


@pytest.mark.parametrize("delay", [0, timedelta(0)])
async def test_no_delay_and_a_time_in_the_past_are_delivered_at_once(
    cluster: Cluster, delay: Any
) -> None:
    async with client.Producer(cluster.nameserver) as producer:
        receipt = await producer.send(TOPIC, b"now", delay=delay)
        past = datetime(2000, 1, 1, tzinfo=UTC)
        assert receipt.recall_handle is None
        assert (await producer.send(TOPIC, b"past", deliver_at=past)).recall_handle is None
    assert len(await received(cluster.nameserver, 2)) == 2


async def test_a_recalled_message_is_not_delivered(cluster: Cluster) -> None:
    async with client.Producer(cluster.nameserver) as producer:
        kept = await producer.send(TOPIC, b"kept", delay=2)
        gone = await producer.send(TOPIC, b"gone", delay=2)
        assert gone.recall_handle is not None
        assert await producer.recall(gone.recall_handle) == gone.id
        await asyncio.sleep(2)
        await producer.send(TOPIC, b"end", delay=1)
    found = await received(cluster.nameserver, 2)
    assert {message.body for message in found} == {b"kept", b"end"}
    assert kept.id in {message.id for message in found}


async def test_the_blocking_producer_does_both(cluster: Cluster) -> None:
    def both() -> None:
        with blocking.Producer(cluster.nameserver) as producer:
            receipt = producer.send(TOPIC, b"later", delay=60)
            assert receipt.recall_handle is not None
            assert producer.recall(receipt.recall_handle) == receipt.id

    await asyncio.to_thread(both)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"delay": -1}, "can't be -1"),
        ({"delay": float("inf")}, "delay can't be inf"),
        ({"delay": "1s"}, "seconds or a timedelta"),
        ({"delay": 1, "delay_level": 3}, "one of deliver_at, delay and delay_level"),
        ({"delay": 1, "deliver_at": datetime.now(UTC)}, "one of deliver_at"),
        ({"deliver_at": datetime.now()}, "has no time zone"),  # noqa: DTZ005 - what is refused
    ],
)
async def test_a_wrong_time_is_a_usage_error(
    cluster: Cluster, given: dict[str, Any], why: str
) -> None:
    async with client.Producer(cluster.nameserver) as producer:
        with pytest.raises(UsageError, match=why):
            await producer.send(TOPIC, b"x", **given)
        with pytest.raises(UsageError, match="batch"):
            await producer.send_batch([client.Message(TOPIC, b"x", delay=1)] * 2)


async def test_the_brokers_limit_is_its_error(cluster: Cluster) -> None:
    async with client.Producer(cluster.nameserver) as producer:
        with pytest.raises(SendError, match="max delay 259200000ms") as caught:
            await producer.send(TOPIC, b"x", delay=timedelta(days=4))
        assert getattr(caught.value, "code", None) == 13
        assert str(caught.value).endswith("raise the broker's timerMaxDelaySec")
        with pytest.raises(UsageError, match="recall handle is invalid"):
            await producer.recall("nonsense")
        receipt = await producer.send(TOPIC, b"x", delay=0.05)
        await asyncio.sleep(1.1)
        assert receipt.recall_handle is not None
        with pytest.raises(RemoteError, match="timestamp invalid"):
            await producer.recall(receipt.recall_handle)


# --- brokers without timers


def without_timers(fake: Any) -> None:
    fake.on(
        RequestCode.RECALL_MESSAGE,
        answer=lambda command, _: command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no"),
    )


async def test_without_a_broker_the_send_fails_and_says_that_nothing_is_stored(
    cluster: Cluster,
) -> None:
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send(TOPIC, b"1", delay=1)
        await cluster.stop()
    async with client.Producer(cluster.nameserver, request_timeout=1.0, timeout=1.0) as producer:
        with pytest.raises(SendError) as raised:
            await producer.send(TOPIC, b"2", delay=1)
    assert raised.value.outcome is client.Outcome.NOT_SENT


async def test_a_broker_that_does_not_answer_leaves_the_messages_to_others(fakes: Any) -> None:
    silent, other = await fakes(2)
    silent.on(RequestCode.RECALL_MESSAGE, answer=lambda command, connection: None)
    async with client.Producer(silent.address, timeout=1.0) as producer:
        for number in range(9):
            await producer.send(TOPIC, b"%d" % number, delay=60)
        with pytest.raises(SendError, match="no answer to RECALL_MESSAGE"):
            await producer.send(
                TOPIC, b"x", delay=60, queue=client.MessageQueue(TOPIC, silent.name, 0)
            )
    assert silent.sent == []
    assert len(other.bodies()) == 9


async def test_an_old_broker_does_not_get_a_message_that_it_would_deliver_at_once(
    fake: Any,
) -> None:
    without_timers(fake)
    async with client.Producer(fake.address) as producer:
        for _ in range(2):
            with pytest.raises(SendError, match="no timers") as caught:
                await producer.send(TOPIC, b"x", delay=60)
    assert caught.value.outcome is client.Outcome.NOT_SENT
    assert fake.sent == []
    assert fake.count(RequestCode.RECALL_MESSAGE) == 1


@pytest.mark.parametrize(
    ("delay", "level"), [(1, "1"), (5.5, "3"), (7200, "18"), (timedelta(minutes=9.5), "14")]
)
async def test_by_option_an_old_broker_gets_the_next_delay_level(
    fake: Any, delay: Any, level: str
) -> None:
    without_timers(fake)
    async with client.Producer(fake.address, without_timers="delay_level") as producer:
        assert (await producer.send(TOPIC, b"x", delay=delay)).recall_handle is None
        with pytest.raises(UsageError, match="the longest delay level is 7200 s"):
            await producer.send(TOPIC, b"x", delay=7201)
        with pytest.raises(RemoteError, match="no"):
            await producer.recall(RecallHandle(TOPIC, fake.name, "1", "u").encode())
    [sent] = [one for one in fake.seen if one.code == RequestCode.SEND_MESSAGE_V2]
    text = sent.read(SendMessageRequestHeaderV2).properties or ""
    assert properties.decode(text.encode())["DELAY"] == level
    assert "TIMER_" not in text
