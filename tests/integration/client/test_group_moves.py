"""Resetting a group with running consumers, and sending its dead letters back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import client
from remoting.connection import Connection
from remoting.protocol.bodies.clients import ConsumeStatus
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import PullMessageResponseHeader
from tests.integration.client.pushing import own
from tests.support.waiting import until


class Seen:
    """A handler that records its messages, and fails for chosen ones."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.refused: set[bytes] = set()
        self.came = asyncio.Event()

    async def __call__(self, message: client.ReceivedMessage[bytes]) -> None:
        self.bodies.append(message.body)
        self.came.set()
        if message.body in self.refused:
            raise client.DeadLetter("no such account")

    async def until(self, count: int) -> list[bytes]:
        async with asyncio.timeout(15):
            while len(self.bodies) < count:
                self.came.clear()
                await self.came.wait()
        return self.bodies


@pytest.fixture
async def admin(cluster: Any) -> AsyncIterator[client.Admin]:
    async with client.Admin(cluster.nameserver) as made:
        await made.create_group("g")
        yield made


def queue(number: int = 0) -> client.MessageQueue:
    return client.MessageQueue("T", "broker-a", number)


def consumer(cluster: Any, seen: Any, **options: Any) -> client.PushConsumer[bytes]:
    return client.PushConsumer(
        cluster.nameserver,
        group="g",
        subscribe={"T": "*"},
        handler=seen,
        start_from=client.FIRST,
        **options,
    )


async def send(cluster: Any, first: int, last: int) -> None:
    async with client.Producer(cluster.nameserver) as producer:
        for number in range(first, last):
            await producer.send("T", b"%d" % number, queue=queue())


@pytest.mark.parametrize("order", [None, client.Orderly()], ids=["concurrent", "ordered"])
async def test_a_running_group_continues_where_it_was_reset_to(
    cluster: Any, admin: client.Admin, order: client.Orderly | None
):
    await send(cluster, 0, 10)
    seen = Seen()
    async with consumer(cluster, seen, order=order) as running:
        await seen.until(10)
        seen.bodies.clear()
        done = await admin.reset("g", "T", to=7, queues=[queue()])
        assert len(done.online) == 1
        assert done.unaware == ()
        assert sorted(await seen.until(3)) == [b"7", b"8", b"9"]
        seen.bodies.clear()
        await send(cluster, 10, 11)
        assert await seen.until(1) == [b"10"]
        assert (await admin.lag("g", owners=True)).queues[queue()].owner in done.online
        del running
    assert (await admin.committed("g", "T"))[queue()] == 11


def stuck_at_first(cluster: Any, seen: Seen) -> client.PushConsumer[bytes]:
    """Return a consumer whose handler of the message 0 ends when its queue is lost."""
    gate = asyncio.Event()

    async def stuck(message: client.ReceivedMessage[bytes]) -> None:
        await seen(message)
        if message.body == b"0":
            await gate.wait()

    def told(event: client.Event) -> None:
        if isinstance(event, client.QueueLost):
            gate.set()

    return client.PushConsumer(
        cluster.nameserver,
        group="g",
        subscribe={"T": "*"},
        handler=stuck,
        start_from=client.FIRST,
        concurrency=1,
        handover_timeout=0.1,
        on_event=told,
    )


async def test_a_running_group_is_moved_to_the_end(cluster: Any, admin: client.Admin):
    await send(cluster, 0, 3)
    seen = Seen()
    async with stuck_at_first(cluster, seen):
        await seen.until(1)
        await admin.reset("g", "T", to=client.END, queues=[queue()])
        await send(cluster, 3, 4)
        async with asyncio.timeout(10):
            while seen.bodies[-1] != b"3":
                seen.came.clear()
                await seen.came.wait()
        assert seen.bodies == [b"0", b"3"]
    assert (await admin.committed("g", "T"))[queue()] == 4


async def test_a_running_group_that_a_pull_tells_of_a_reset_drops_what_it_holds(
    cluster: Any, admin: client.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(cluster, 0, 3)
    seen, resets = Seen(), [3]
    request = Connection.request

    async def as_apaches_5(self: Connection, command: Command, *, timeout: float) -> Command:
        answer = await request(self, command, timeout=timeout)
        if command.code != RequestCode.PULL_MESSAGE or not seen.bodies or answer.code or not resets:
            return answer
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=resets.pop(), min_offset=0, max_offset=4
        )
        return command.reply(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", header=header)

    monkeypatch.setattr(Connection, "request", as_apaches_5)
    async with stuck_at_first(cluster, seen):
        await seen.until(1)
        await send(cluster, 3, 5)
        async with asyncio.timeout(10):
            while seen.bodies[-1] != b"4":
                seen.came.clear()
                await seen.came.wait()
        assert seen.bodies == [b"0", b"3", b"4"]
    assert (await admin.committed("g", "T"))[queue()] == 5


async def blocked(admin: client.Admin) -> list[Any]:
    states = (await admin.describe_group("g")).queues
    return [state.blocked for state in states if state.blocked is not None]


async def test_an_ordered_queue_is_moved_past_a_message_that_blocks_it(
    cluster: Any, admin: client.Admin
):
    await send(cluster, 0, 3)
    seen = Seen()

    async def handler(message: client.ReceivedMessage[bytes]) -> None:
        await seen(message)
        if message.body == b"1":
            raise ValueError("never")

    async with client.PushConsumer(
        cluster.nameserver,
        group="g",
        subscribe={"T": "*"},
        handler=handler,
        start_from=client.FIRST,
        order=client.Orderly(max_retries=None, suspend=0.05, max_suspend=0.05),
    ):
        (stop,) = await until(lambda: blocked(admin), 15)
        assert (stop.offset, "never" in stop.error) == (1, True)
        skipped = await admin.skip("g", queue())
        assert [step.after for step in skipped.steps] == [2]
        async with asyncio.timeout(15):
            while b"2" not in seen.bodies:
                seen.came.clear()
                await seen.came.wait()
        assert await blocked(admin) == []


async def test_a_dead_letter_goes_back_and_is_handled(cluster: Any, admin: client.Admin):
    seen = Seen()
    seen.refused.add(b"1")
    async with consumer(cluster, seen):
        await send(cluster, 0, 3)
        await seen.until(3)
        letters = await until(lambda: admin.dead_letters("g"), 15)
        assert [(one.topic, one.body, one.retries) for one in letters] == [("T", b"1", 1)]
        seen.refused.clear()
        done = await admin.redrive("g")
        assert [one.message.id for one in done.sent] == [letters[0].id]
        await seen.until(4)
        assert seen.bodies.count(b"1") == 2
    assert await admin.dead_letters("g") == []
    assert (await admin.redrive("g")).sent == ()


@pytest.mark.parametrize("retries", [3, None])
async def test_a_member_returns_its_running_info_through_its_broker(
    cluster: Any, admin: client.Admin, retries: int | None
):
    await send(cluster, 0, 1)
    seen = Seen()
    async with consumer(cluster, seen, order=client.Orderly(max_retries=retries)) as made:
        await seen.until(1)
        await until(lambda: len(own(made)) == 4)
        (member,) = await admin.members("g")
        info = await admin.running_info("g", member.client_id)
        with_stacks = await admin.running_info("g", member.client_id, stacks=True)
    assert info.jstack is None
    assert "GroupMember._run" in (with_stacks.jstack or "")
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.properties["maxReconsumeTimes"] == str(-1 if retries is None else retries)
    assert info.properties["PROP_NAMESERVER_ADDR"] == f"{cluster.nameserver};"
    assert {one.topic for one in info.subscription_set} == {"T", "%RETRY%g"}
    assert info.mq_table[queue()].locked
    assert info.mq_table.keys() >= {queue(number) for number in range(4)}
    # By a clock that may be adjusted while the test runs.
    for held in info.mq_table.values():
        assert abs(held.last_pull_timestamp - time.time() * 1000) < 60_000
        assert abs(held.last_consume_timestamp - time.time() * 1000) < 60_000


@pytest.mark.parametrize("kind", ["waiting", "at once", "batch", "orderly"])
async def test_running_info_has_the_rates_and_times_of_each_topic(
    cluster: Any, admin: client.Admin, kind: str
):
    """The message 7 fails once: with its batch, if there are batches."""
    await send(cluster, 0, 20)
    handled: list[bytes] = []
    failed_with: list[int] = []

    def at_once(given: Any) -> None:
        messages = given if kind == "batch" else [given]
        handled.extend(message.body for message in messages)
        if b"7" in [message.body for message in messages] and not failed_with:
            failed_with.append(len(messages))
            raise client.RetryLater(0)

    async def immediate(given: Any) -> None:
        at_once(given)

    async def waiting(given: Any) -> None:
        await asyncio.sleep(0.01)
        at_once(given)

    handler = immediate if kind == "at once" else waiting
    options: dict[str, Any] = {"orderly": {"order": client.Orderly()}, "batch": {"batch_size": 4}}
    async with consumer(cluster, handler, **options.get(kind, {})) as made:
        await until(lambda: failed_with and len(handled) == 20 + failed_with[0])
        await until(lambda: not any(made.cached.values()))
        info = await admin.running_info("g", made.client_id)
    status = info.status_table["T"]
    retried = info.status_table.get("%RETRY%g", ConsumeStatus())
    one = status.pull_tps / 20
    failed = failed_with[0]
    assert status.consume_failed_msgs == failed
    assert round(status.consume_failed_tps / one) == failed
    # An ordered message is handled again at once, the others come back from the retry topic.
    again = 0 if kind == "orderly" else failed
    assert round(status.consume_ok_tps / one) == 20 - again
    assert round(retried.consume_ok_tps / one) == round(retried.pull_tps / one) == again
    assert status.pull_rt > 0
    assert status.consume_rt > (10 / 20 if handler is waiting else 0)
