"""A test sets the broker's clock forward, and what takes hours happens at once."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import client
from client import blocking
from pocketmq.testing import SMALL_STORE, ServerError, ServerProcess, StandaloneServer
from tests.support.sizes import size


@pytest.fixture
async def producer(pocketmq: StandaloneServer) -> AsyncIterator[client.Producer[bytes]]:
    async with client.Producer(pocketmq.nameserver, group="test") as producer:
        yield producer


def bodies(server: StandaloneServer, topic: str) -> list[bytes]:
    return [message.body for message in server.messages(topic)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - of the broker
            await asyncio.sleep(0.002)


async def test_a_message_is_dead_after_its_sixteenth_retry(
    pocketmq: StandaloneServer,
    producer: client.Producer[bytes],
    pocketmq_topic: str,
    pocketmq_group: str,
) -> None:
    tries: list[int] = []

    async def fail(message: client.ReceivedMessage[bytes]) -> None:
        tries.append(message.reconsume_times)
        raise ValueError("no tea")

    async with client.PushConsumer(
        pocketmq.nameserver,
        group=pocketmq_group,
        subscribe={pocketmq_topic: "*"},
        handler=fail,
        start_from=client.FIRST,
    ):
        await producer.send(pocketmq_topic, b"tea")
        while not (letters := await pocketmq.aio.dead_letters(pocketmq_group)):
            await pocketmq.aio.advance(hours=2)
    assert tries == list(range(17))
    assert [(letter.body, letter.exception) for letter in letters] == [(b"tea", "ValueError")]


async def test_a_delayed_message_comes_when_it_is_due_and_not_before(
    pocketmq: StandaloneServer, producer: client.Producer[bytes], pocketmq_topic: str
) -> None:
    await producer.send(pocketmq_topic, b"two hours", delay_level=18)
    await producer.send(pocketmq_topic, b"three hours", delay=timedelta(hours=3))
    due = pocketmq.clock.now() + timedelta(days=2, hours=12)
    await producer.send(pocketmq_topic, b"two days", deliver_at=due)
    seen = []
    # A minute is more than the test takes, and less than what is left.
    for minutes in (119, 2, 58, 2, 56 * 60 + 57, 4):
        pocketmq.clock.advance(minutes=minutes)
        seen.append(len(bodies(pocketmq, pocketmq_topic)))
    assert seen == [0, 1, 1, 2, 2, 3]
    assert bodies(pocketmq, pocketmq_topic) == [b"two hours", b"three hours", b"two days"]


async def test_a_transaction_that_is_left_open_is_checked(
    pocketmq: StandaloneServer, pocketmq_topic: str
) -> None:
    checks: list[int] = []

    def decide(transaction: client.OpenTransaction[Any]) -> client.TransactionState:
        checks.append(transaction.checks)
        done = transaction.checks == 3
        return client.TransactionState.COMMIT if done else client.TransactionState.UNKNOWN

    async with client.Producer(
        pocketmq.nameserver, group="shop", transaction_checker=decide
    ) as producer:
        async with producer.transaction(pocketmq_topic, b"tea") as transaction:
            await transaction.defer()
        for expected in (1, 2, 3):
            # No check before the interval of a minute.
            await pocketmq.aio.advance(seconds=1)
            assert len(checks) == expected - 1
            await pocketmq.aio.advance(minutes=1)
            await until(lambda expected=expected: len(checks) == expected)  # type: ignore[misc]
        await until(lambda: bodies(pocketmq, pocketmq_topic) == [b"tea"])
    assert checks == [1, 2, 3]


async def test_the_lock_of_a_queue_ends_when_nobody_refreshes_it(
    pocketmq: StandaloneServer, pocketmq_topic: str, pocketmq_group: str
) -> None:
    def owners() -> list[str | None]:
        queues = pocketmq.admin.describe_group(pocketmq_group).queues
        return [each.lock_owner for each in queues if each.queue.topic == pocketmq_topic]

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        """Consume it."""

    async with client.PushConsumer(
        pocketmq.nameserver,
        group=pocketmq_group,
        subscribe={pocketmq_topic: "*"},
        handler=handle,
        order=client.Orderly(),
    ) as consumer:
        await until(lambda: owners() == [consumer.client_id])
        pocketmq.clock.advance(seconds=61)
        assert owners() == [None]
        # The member is alive all the same: only its lock is old.
        assert len(pocketmq.admin.members(pocketmq_group)) == 1


@pytest.mark.pocketmq(settings={"mappedFileSizeCommitLog": str(1024 * 1024)})
async def test_old_messages_are_deleted(
    pocketmq: StandaloneServer, producer: client.Producer[bytes], pocketmq_topic: str
) -> None:
    for _ in range(5):
        await producer.send(pocketmq_topic, secrets.token_bytes(500_000))
    (queue,) = pocketmq.admin.queues(pocketmq_topic)
    pocketmq.clock.advance(hours=71)
    assert pocketmq.admin.min_offset(queue) == 0
    pocketmq.clock.advance(hours=2)
    await until(lambda: pocketmq.admin.min_offset(queue) > 0)
    assert pocketmq.admin.max_offset(queue) == 5


@pytest.mark.parametrize(
    "flush",
    [
        pytest.param(
            "ASYNC_FLUSH",
            marks=pytest.mark.pocketmq(settings={"flushDiskType": "ASYNC_FLUSH"}),
        ),
        pytest.param(
            "SYNC_FLUSH", marks=pytest.mark.pocketmq(settings={"flushDiskType": "SYNC_FLUSH"})
        ),
    ],
)
async def test_sends_in_flight_are_neither_lost_nor_reordered(
    pocketmq: StandaloneServer,
    producer: client.Producer[bytes],
    pocketmq_topic: str,
    pocketmq_group: str,
    flush: str,
) -> None:
    count = size(ci=3000, soak=300_000)
    handled: list[int] = []

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        handled.append(int(message.body))

    async def advance() -> None:
        while len(handled) < count:
            await pocketmq.aio.advance(hours=1)

    async with client.PushConsumer(
        pocketmq.nameserver,
        group=pocketmq_group,
        subscribe={pocketmq_topic: "*"},
        handler=handle,
        order=client.Orderly(),
        start_from=client.FIRST,
    ):
        advancing = asyncio.create_task(advance())
        futures = []
        for number in range(count):
            futures.append(producer.send_nowait(pocketmq_topic, b"%d" % number))
            if number % 50 == 0:
                await asyncio.sleep(0.001)
        receipts = await asyncio.gather(*futures)
        async with asyncio.timeout(60):
            await advancing
    assert {receipt.status for receipt in receipts} == {client.SendStatus.OK}
    assert [receipt.offset for receipt in receipts] == list(range(count))
    assert handled == list(range(count))
    stamps = [message.store_timestamp_ms for message in pocketmq.messages(pocketmq_topic)]
    assert stamps == sorted(stamps)
    assert stamps[-1] - stamps[0] >= 3_600_000


async def test_a_broker_that_is_killed_keeps_its_time(
    pocketmq: StandaloneServer, producer: client.Producer[bytes], pocketmq_topic: str
) -> None:
    await producer.send(pocketmq_topic, b"late", delay_level=18)
    pocketmq.clock.advance(hours=1)
    pocketmq.kill()
    with pytest.raises(ServerError, match="is not running"):
        pocketmq.clock.advance(hours=1)
    pocketmq.restart()
    pocketmq.clock.advance(minutes=58)
    assert bodies(pocketmq, pocketmq_topic) == []
    pocketmq.clock.advance(minutes=3)
    assert bodies(pocketmq, pocketmq_topic) == [b"late"]


def test_a_clock_does_not_go_back(pocketmq: StandaloneServer) -> None:
    with pytest.raises(ValueError, match="can't go back by 1:00:00"):
        pocketmq.clock.advance(hours=-1)


def test_a_test_begins_at_the_time_of_now(pocketmq: StandaloneServer) -> None:
    assert pocketmq.clock.ahead == timedelta()


def test_a_broker_that_the_kit_did_not_start_has_no_door(tmp_path: Path) -> None:
    ports = ["--nameserver-port=0", "--broker-port=0"]
    settings = [f"--set={key}={value}" for key, value in SMALL_STORE.items()]
    server = ServerProcess(["standalone", f"--store={tmp_path}", *ports, *settings])
    try:
        server.start()
        with blocking.Producer(server.addresses["nameserver"], group="test") as producer:
            producer.send("orders", b"late", delay_level=18)
        command = json.dumps({"do": "advance", "milliseconds": 10**8})
        (Path(f"/proc/{server.pid}/fd/0")).write_text(f"{command}\n")
        # It reads and drops the line; then it still stops at the end of its standard input.
        time.sleep(0.1)
        with blocking.PullConsumer(server.addresses["nameserver"], group="test") as consumer:
            consumer.assign(consumer.queues("orders"))
            assert consumer.get_many(1, timeout=0.3) == []
        loaded = Path(f"/proc/{server.pid}/cmdline").read_text()
        assert "server.door" not in loaded
        server.stop()
    finally:
        server.kill()
