"""FastStream's handlers at a real broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any
from uuid import uuid4

import pytest
from faststream import BaseMiddleware, Context
from faststream.asgi import AsgiFastStream
from faststream.exceptions import StopConsume

from client import Admin
from client.errors import TopicNotFound
from pocketmq import testing
from pocketmq.faststream import (
    AckPolicy,
    Orderly,
    PocketBroker,
    PocketMessage,
    Sql,
    TestPocketBroker,
)
from tests.support.waiting import until

WITHIN = 30.0
"""Seconds for what takes a moment; a busy machine needs more."""


@pytest.fixture(scope="module")
def server() -> Iterator[testing.StandaloneServer]:
    with testing.broker(settings={"messageDelayLevel": "1s 1s 1s"}) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid4().hex}"


class Got:
    """What a handler got."""

    def __init__(self) -> None:
        self._queue = asyncio.Queue[Any]()

    def add(self, value: Any) -> None:
        self._queue.put_nowait(value)

    async def take(self, count: int) -> list[Any]:
        async with asyncio.timeout(WITHIN):
            return [await self._queue.get() for _ in range(count)]

    @property
    def empty(self) -> bool:
        return self._queue.empty()


def a_broker(server: testing.StandaloneServer, **options: Any) -> PocketBroker:
    return PocketBroker(server.nameserver, logger=None, **options)


async def test_messages_go_from_handler_to_handler(
    server: testing.StandaloneServer, topic: str
) -> None:
    broker, got = a_broker(server), Got()

    @broker.subscriber(topic, tags=Sql("cups > 1"))
    @broker.publisher(f"{topic}-bills")
    async def bill(cups: int) -> dict[str, int]:
        return {"total": 3 * cups}

    @broker.subscriber(f"{topic}-bills", batch=True)
    async def pay(bills: list[dict[str, int]]) -> None:
        for each in bills:
            got.add(each["total"])

    async with broker:
        await broker.start()
        assert await broker.ping()
        receipts = await broker.publish_batch(1, 2, topic=topic, headers={"cups": 2})
        for cups in (3, 3):
            receipts.append(
                await broker.publish(cups, topic, headers={"cups": cups}, sharding_key="ann")
            )
        assert receipts[-1].queue == receipts[-2].queue
        await broker.publish(4, topic, headers={"cups": 1})
        assert {receipt.queue.topic for receipt in receipts} == {topic}
        assert sorted(await got.take(4)) == [3, 6, 9, 9]
    assert await broker.ping() is False
    assert got.empty


async def test_a_delayed_messages_headers_can_be_passed_on_with_another_delay(
    server: testing.StandaloneServer, topic: str
) -> None:
    broker, got = a_broker(server), Got()

    @broker.subscriber(topic)
    async def job(body: str, message: Annotated[PocketMessage, Context()]) -> None:
        got.add(message.headers)
        receipt = await broker.publish(body, topic, delay=3600, headers=message.headers)
        got.add(receipt.recall_handle)

    async with broker:
        await broker.start()
        await broker.publish("x", topic, delay=0.001, headers={"n": "1"})
        headers, handle = await got.take(2)
    assert headers["n"] == "1"
    assert "TIMER_OUT_MS" not in headers
    assert handle


async def test_a_request_is_answered(server: testing.StandaloneServer, topic: str) -> None:
    broker = a_broker(server)

    @broker.subscriber(topic)
    async def double(body: Any) -> Any:
        return 2 * body

    lonely = broker.publisher(f"{topic}-nobody")
    async with broker:
        await broker.start()
        reply = await broker.request(4, topic, correlation_id="c-1", timeout=WITHIN)
        assert (await reply.decode(), reply.correlation_id) == (8, "c-1")
        assert await (await broker.request("", topic, timeout=WITHIN)).decode() == ""
        with pytest.raises(TimeoutError, match="no reply within"):
            await lonely.request(4, timeout=0.01)


async def test_a_reply_that_nobody_waits_for_is_no_failure(
    server: testing.StandaloneServer, topic: str
) -> None:
    broker, got, gone = a_broker(server), Got(), asyncio.Event()

    @broker.subscriber(topic, order=Orderly(suspend=0.01))
    async def answer(body: str) -> str:
        got.add(body)
        await gone.wait()
        return body

    async with broker:
        await broker.start()
        async with a_broker(server) as asking:
            with pytest.raises(TimeoutError):
                await asking.request("tea", topic, timeout=1)
            assert await got.take(1) == ["tea"]
        gone.set()
        await broker.publish("milk", topic)
        assert await got.take(1) == ["milk"]


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL])
async def test_what_a_middleware_loses_is_delivered_again(
    server: testing.StandaloneServer, topic: str, policy: AckPolicy
) -> None:
    got, failures = Got(), iter(range(2))

    class Failing(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            if next(failures, None) is not None:
                raise LookupError("the database is away")
            await call_next(msg)
            await msg.ack()

    broker = a_broker(server, middlewares=[Failing])

    @broker.subscriber(topic, order=Orderly(suspend=0.01), ack_policy=policy)
    async def take(body: str, message: Annotated[PocketMessage, Context()]) -> None:
        got.add((body, message.raw_message.retries))

    async with broker:
        await broker.start()
        await broker.publish("tea", topic)
        assert await got.take(1) == [("tea", 2)]


@pytest.mark.parametrize("fails", ["handler", "parser"])
async def test_what_is_rejected_is_among_the_dead_letters(
    server: testing.StandaloneServer, topic: str, fails: str
) -> None:
    def parser(_: Any) -> Any:
        raise LookupError("no parser")

    broker, group = a_broker(server, ack_policy=AckPolicy.REJECT_ON_ERROR), f"billing-{topic}"
    options = {"parser": parser} if fails == "parser" else {}

    @broker.subscriber(topic, group=group, **options)
    async def take(body: str) -> None:
        raise LookupError("no handler")

    async with broker, Admin(server.nameserver) as admin:
        await broker.start()
        await broker.publish("tea", topic)
        [letter] = await until(lambda: admin.dead_letters(group), WITHIN)
    assert letter.topic == topic
    assert letter.reason == f"LookupError('no {fails}')"


async def test_retries_end_among_the_dead_letters(
    server: testing.StandaloneServer, topic: str
) -> None:
    broker, got = a_broker(server), Got()

    @broker.subscriber(topic, group=f"billing-{topic}", max_retries=1)
    async def take(body: str, message: Annotated[PocketMessage, Context()]) -> None:
        got.add(message.raw_message.retries)
        raise LookupError

    async with broker, Admin(server.nameserver) as admin:
        await broker.start()
        await broker.publish("tea", topic)
        assert await got.take(2) == [0, 1]
        assert await until(lambda: admin.dead_letters(f"billing-{topic}"), WITHIN)


async def test_a_message_whose_handler_is_cut_off_is_handled_by_the_next_owner(
    server: testing.StandaloneServer, topic: str
) -> None:
    got = Got()
    first = a_broker(server, graceful_timeout=0.0)

    @first.subscriber(topic)
    async def hang(body: str) -> None:
        got.add(body)
        await asyncio.Event().wait()

    async with first:
        await first.start()
        await first.publish("tea", topic)
        assert await got.take(1) == ["tea"]
    second = a_broker(server)

    @second.subscriber(topic)
    async def take(body: str) -> None:
        got.add(body + " again")

    async with second:
        await second.start()
        assert await got.take(1) == ["tea again"]


async def test_a_running_handler_ends_before_the_stop(
    server: testing.StandaloneServer, topic: str
) -> None:
    broker, got, may_end = a_broker(server), Got(), asyncio.Event()

    @broker.subscriber(topic)
    async def take(body: str) -> None:
        got.add(body)
        await may_end.wait()
        got.add("done")

    async with broker:
        await broker.start()
        await broker.publish("tea", topic)
        assert await got.take(1) == ["tea"]
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0)
        may_end.set()
        await stopping
        assert await got.take(1) == ["done"]


async def test_a_handler_can_stop_its_subscriber(
    server: testing.StandaloneServer, topic: str
) -> None:
    broker, got = a_broker(server), Got()

    @broker.subscriber(topic, ack_policy=AckPolicy.ACK, concurrency=1)
    async def take(body: str) -> None:
        got.add(body)
        raise StopConsume

    async with broker:
        await broker.start()
        await broker.publish("tea", topic)
        assert await got.take(1) == ["tea"]
        await until(lambda: not broker.subscribers[0].running, WITHIN)
        await broker.publish("milk", topic)
    assert got.empty


async def test_messages_can_be_taken_one_by_one(
    server: testing.StandaloneServer, topic: str
) -> None:
    broker = a_broker(server)
    subscriber = broker.subscriber(topic, ack_policy=AckPolicy.ACK_FIRST)
    async with broker:
        await broker.start()
        assert await subscriber.get_one(timeout=0.01) is None
        await broker.publish("tea", topic)
        one = await subscriber.get_one(timeout=WITHIN)
        assert one is not None
        assert await one.decode() == "tea"
        assert one.raw_message.settled
        await broker.publish("milk", topic)
        async for message in subscriber:
            assert await message.decode() == "milk"
            break


async def test_a_message_that_the_parser_refuses_has_an_outcome(
    server: testing.StandaloneServer, topic: str
) -> None:
    async def parser(message: Any, original: Any) -> Any:
        if message.body == b"bad":
            raise LookupError("no parser")
        return await original(message)

    for found in ("tea", None):  # the second start has nothing left
        broker = a_broker(server, app=topic, ack_policy=AckPolicy.REJECT_ON_ERROR)
        subscriber = broker.subscriber(topic, parser=parser)
        async with broker, Admin(server.nameserver) as admin:
            await broker.start()
            if found:
                await broker.publish("bad", topic, sharding_key="one")
                await broker.publish(found, topic, sharding_key="one")
                with pytest.raises(LookupError, match="no parser"):
                    await subscriber.get_one(timeout=WITHIN)
                one = await subscriber.get_one(timeout=WITHIN)
                assert one is not None
                assert await one.decode() == found
                await one.ack()
                [letter] = await until(lambda: admin.dead_letters(f"{topic}-{topic}"), WITHIN)
                assert letter.reason == "LookupError('no parser')"
            else:
                assert await subscriber.get_one(timeout=1) is None


async def test_who_waits_for_a_message_is_told_that_the_broker_stops(
    server: testing.StandaloneServer, topic: str
) -> None:
    broker = a_broker(server)
    subscriber = broker.subscriber(topic)
    async with broker:
        await broker.start()
        waiting = asyncio.create_task(subscriber.get_one(timeout=WITHIN))
        await asyncio.sleep(0)
    assert await waiting is None


async def test_applications_have_groups_of_their_own(
    server: testing.StandaloneServer, topic: str
) -> None:
    got = Got()
    brokers = [a_broker(server, app=app) for app in ("shop", "shop", "audit")]
    for broker in brokers:

        @broker.subscriber(topic)
        async def take(body: str, broker: Annotated[PocketBroker, Context()]) -> None:
            got.add(broker.config.app)

    async with brokers[0], brokers[1], brokers[2]:
        for broker in brokers:
            await broker.start()
        await brokers[0].publish("tea", topic)
        assert sorted(await got.take(2)) == ["audit", "shop"]
    assert got.empty


async def test_topics_are_declared_at_the_start(
    server: testing.StandaloneServer, topic: str
) -> None:
    async with Admin(server.nameserver) as admin:
        async with a_broker(server, queues=3) as broker:
            broker.subscriber(topic)
            broker.publisher(f"{topic}-bills")
            broker.publisher("")
            await broker.start()
            assert len(await admin.topic_stats(topic)) == 3
            assert len(await admin.topic_stats(f"{topic}-bills")) == 3
        async with a_broker(server, queues=5) as broker:
            broker.subscriber(topic)
            await broker.start()
            assert len(await admin.topic_stats(topic)) == 3
        async with a_broker(server, declare=False) as broker:
            broker.publisher(f"{topic}-new")
            await broker.start()
            with pytest.raises(TopicNotFound):
                await admin.topic_route(f"{topic}-new")


async def test_topics_of_publishers_exist_before_a_handler_runs(
    server: testing.StandaloneServer, topic: str
) -> None:
    async with Admin(server.nameserver) as admin, a_broker(server) as broker:
        await admin.create_topic(topic, queues=1)
        await broker.connect()
        await broker.publish("tea", topic)
        found = Got()

        @broker.subscriber(topic)
        @broker.publisher(f"{topic}-bills")
        async def bill(body: str) -> str:
            found.add(f"{topic}-bills" in await admin.topics())
            return body

        broker.subscriber(f"{topic}-slow")
        server.delay("UPDATE_AND_CREATE_TOPIC", 0.2)
        await broker.start()
        server.clear_faults()
        assert await found.take(1) == [True]


async def test_a_test_can_use_the_real_broker(server: testing.StandaloneServer, topic: str) -> None:
    broker = a_broker(server)
    bills = broker.publisher(f"{topic}-bills")

    @broker.subscriber(topic)
    async def bill(body: str) -> None:
        await bills.publish(body)

    async with TestPocketBroker(broker, with_real=True):
        await broker.publish("tea", topic)
        await bill.wait_call(WITHIN)
        await until(lambda: bills.mock.called, WITHIN)
        bills.mock.assert_called_once_with("tea")


async def post(app: AsgiFastStream, path: str, form: dict[str, Any]) -> tuple[int, Any]:
    """Post a form to an ASGI application; return status and answer."""
    answer: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(form).encode()}

    async def send(part: Any) -> None:
        answer.append(part)

    head = {"query_string": b"", "headers": [(b"content-type", b"application/json")]}
    await app({"type": "http", "method": "POST", "path": path, **head}, receive, send)
    start, body = answer
    return start["status"], json.loads(body["body"])


async def test_a_message_can_be_tried_out_from_the_document_of_a_running_application(
    server: testing.StandaloneServer, topic: str
) -> None:
    broker, got = a_broker(server), Got()

    @broker.subscriber(topic, title="orders")
    async def handle(body: str) -> str:
        got.add(body)
        return f"{body} is billed"

    app = AsgiFastStream(broker, asyncapi_path="/docs")
    async with broker:
        await broker.start()
        form = {"channelName": topic, "message": {"message": "dry"}, "options": {}}
        assert await post(app, "/docs/try", form) == (200, "dry is billed")
        await broker.publish("tea", topic)
        assert await got.take(2) == ["dry", "tea"]


async def test_a_second_start_starts_what_was_added(
    server: testing.StandaloneServer, topic: str
) -> None:
    broker, got, added = a_broker(server), Got(), Got()
    subscriber = broker.subscriber(topic)
    subscriber(got.add)
    async with broker:
        await broker.start()
        broker.subscriber(f"{topic}-late")(added.add)
        await broker.start()
        await broker.publish("tea", topic)
        await broker.publish("milk", f"{topic}-late")
        assert (await got.take(1), await added.take(1)) == (["tea"], ["milk"])
        await subscriber.stop()
        await broker.publish("water", topic)
        await broker.publish("more milk", f"{topic}-late")
        assert await added.take(1) == ["more milk"]
        assert got.empty


IMPORTS = """
import sys
import pocketmq.__main__, pocketmq.cli, pocketmq.server.process, pocketmq.testing, pocketmq.bench
from pocketmq import Producer
from pocketmq.cli import COMMANDS
assert "faststream" not in sys.modules and "pydantic" not in sys.modules
sys.modules["faststream"] = None
import pocketmq.faststream
"""


def test_nothing_else_imports_it_and_it_says_what_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False
    )
    assert "pip install 'pocketmq[faststream]'" in done.stderr.splitlines()[-1]
