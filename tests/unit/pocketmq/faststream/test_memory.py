"""FastStream's handlers run in a test without a server: ``TestPocketBroker``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from faststream import BaseMiddleware, Context
from faststream.exceptions import IncorrectState, SetupError, SubscriberNotFound
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from client.errors import UsageError
from pocketmq.faststream import (
    Orderly,
    PocketBroker,
    PocketMessage,
    PocketPublisher,
    PocketResponse,
    PocketRoute,
    PocketRouter,
    Sql,
    Tags,
    TestPocketBroker,
)
from remoting.protocol.message.properties import TIMER_DELIVER_MS

InContext = Annotated[PocketMessage, Context("message")]


class Order(BaseModel):
    user: str
    cups: int


class Bill(BaseModel):
    total: int


def a_broker(**options: Any) -> PocketBroker:
    return PocketBroker("127.0.0.1:1", logger=None, **options)


async def test_a_handler_gets_a_typed_value_and_its_result_is_published() -> None:
    broker = a_broker()

    @broker.subscriber("orders")
    @broker.publisher("bills", tag="new")
    async def bill(order: Order) -> Bill:
        return Bill(total=3 * order.cups)

    tags = []

    @broker.subscriber("bills")
    async def pay(bill: Bill, message: InContext) -> None:
        tags.append(message.raw_message.tag)

    async with TestPocketBroker(broker):
        await broker.publish(Order(user="ann", cups=2), "orders")
        bill.mock.assert_called_once_with({"user": "ann", "cups": 2})
        pay.mock.assert_called_once_with({"total": 6})
    assert tags == ["new"]


async def test_what_a_handler_raises_is_raised_by_the_publish() -> None:
    broker = a_broker()

    @broker.subscriber("orders")
    async def fail(body: str) -> None:
        raise LookupError(body)

    async with TestPocketBroker(broker):
        with pytest.raises(LookupError, match="tea"):
            await broker.publish("tea", "orders")


async def test_a_body_arrives_as_it_was_published() -> None:
    broker = a_broker()

    @broker.subscriber("orders")
    async def echo(body: Any) -> Any:
        return body

    async with TestPocketBroker(broker):
        for body in ("", b"", b"\0", "tea", b"tea", {"a": [1]}, 0):
            assert await (await broker.request(body, "orders")).decode() == body
        assert (await broker.request(None, "orders")).body == b""


async def test_options_and_headers_are_rocketmqs() -> None:
    broker = a_broker()
    got: list[PocketMessage] = []

    @broker.subscriber("orders")
    async def take(message: InContext) -> None:
        got.append(message)

    publisher = broker.publisher("orders", headers={"from": "shop", "n": 0}, tag="paid")
    due = datetime(2030, 1, 1, tzinfo=UTC)
    async with TestPocketBroker(broker):
        await broker.publish(
            "tea",
            "orders",
            headers={"n": 1, "empty": "", "none": None},
            correlation_id="c-1",
            tag="new",
            keys=["o-1", "o-2"],
        )
        await publisher.publish("tea", headers={"n": 2}, tag="sent", deliver_at=due)
    first, second = got
    assert first.headers == {"n": "1", "correlation_id": "c-1", "content-type": "text/plain"}
    assert (first.correlation_id, first.message_id) == ("c-1", first.raw_message.id)
    raw = first.raw_message
    assert (raw.tag, raw.keys) == ("new", ["o-1", "o-2"])
    assert {**second.headers, "from": "shop", "n": "2"} == second.headers
    assert second.raw_message.tag == "sent"
    assert int(second.raw_message.properties[TIMER_DELIVER_MS]) == due.timestamp() * 1000


async def test_a_response_overrides_the_options_of_its_publisher() -> None:
    broker = a_broker()
    got: list[PocketMessage] = []

    @broker.subscriber("orders")
    @broker.publisher("bills", headers={"a": "1", "b": "1"}, tag="old", keys=["k"])
    async def bill(body: str) -> PocketResponse:
        return PocketResponse(body, headers={"b": "2"}, correlation_id="mine", tag="new")

    @broker.subscriber("bills")
    async def take(message: InContext) -> None:
        got.append(message)

    async with TestPocketBroker(broker):
        await broker.publish("tea", "orders")
    [message] = got
    assert (message.headers["a"], message.headers["b"]) == ("1", "2")
    assert (message.raw_message.tag, message.raw_message.keys) == ("new", ["k"])
    assert message.correlation_id == "mine"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("*", ["a", "b", "c"]),
        ("paid", ["a"]),
        ("paid || sent", ["a", "b"]),
        (Tags("sent"), ["b"]),
        (Sql("cups > 1"), ["b", "c"]),
    ],
    ids=str,
)
async def test_a_subscriber_gets_the_messages_it_wants(wanted: Any, expected: list[str]) -> None:
    broker, got = a_broker(), []

    @broker.subscriber("orders", tags=wanted)
    async def take(body: str) -> None:
        got.append(body)

    async with TestPocketBroker(broker):
        await broker.publish("a", "orders", tag="paid", headers={"cups": 1})
        await broker.publish("b", "orders", tag="sent", headers={"cups": 2})
        await broker.publish("c", "orders", headers={"cups": 3})
    assert got == expected


async def test_each_group_gets_a_message_once() -> None:
    brokers, got = [a_broker(app="shop"), a_broker(app="shop")], []
    for broker, group in zip([*brokers, brokers[0]], (None, "shop-orders", "audit"), strict=True):

        @broker.subscriber("orders", group=group)
        async def take(body: str) -> None:
            got.append(body)

    assert {subscriber.group for subscriber in brokers[0].subscribers} == {"shop-orders", "audit"}
    async with TestPocketBroker(*brokers):
        await brokers[1].publish("tea", "orders")
    assert got == ["tea", "tea"]


@pytest.mark.parametrize("with_real", [False, True])
async def test_subscribers_of_one_broker_need_groups_of_their_own(with_real: bool) -> None:
    broker = a_broker(app="shop")
    broker.subscriber("orders", model="broadcasting")
    broker.subscriber("orders", tags="paid")
    broker.subscriber("orders", tags="sent")
    with pytest.raises(SetupError, match="two subscribers have the group shop-orders"):
        async with TestPocketBroker(broker, with_real=with_real):
            pass


async def test_an_empty_result_of_a_batch_publisher_publishes_nothing() -> None:
    broker, got = a_broker(), []

    @broker.subscriber("orders")
    @broker.publisher("bills", batch=True)
    async def bill(cups: int) -> list[int]:
        return [cups] * cups

    @broker.subscriber("bills")
    async def pay(total: int) -> None:
        got.append(total)

    async with TestPocketBroker(broker):
        await broker.publish(0, "orders")
        await broker.publish(2, "orders")
        with pytest.raises(UsageError, match="can't be sent as a batch"):
            await broker.publish_batch(1, 2, topic="orders", delay=5)
    assert got == [2, 2]


async def test_a_publisher_that_decorates_a_handler_has_its_timeout() -> None:
    timeouts = []

    class Timeouts(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            timeouts.append(cmd.timeout)
            return await call_next(cmd)

    broker = a_broker(middlewares=[Timeouts])

    @broker.subscriber("orders")
    @broker.publisher("bills", timeout=0.5)
    async def bill(body: str) -> str:
        return body

    async with TestPocketBroker(broker):
        await broker.publish("tea", "orders")
    assert timeouts == [None, 0.5]


async def test_a_batch_is_handled_and_published_as_a_list() -> None:
    broker = a_broker()

    @broker.subscriber("orders", batch=True)
    @broker.publisher("bills", batch=True)
    async def bill(orders: list[Order]) -> list[Bill]:
        return [Bill(total=order.cups) for order in orders]

    @broker.subscriber("bills", batch=True, batch_size=10)
    async def pay(bills: list[Bill], message: InContext) -> None:
        assert [headers["content-type"] for headers in message.batch_headers] == [
            "application/json"
        ] * 2

    async with TestPocketBroker(broker):
        receipts = await broker.publish_batch(
            Order(user="ann", cups=1), Order(user="bob", cups=2), topic="orders"
        )
        assert [receipt.queue.topic for receipt in receipts] == ["orders", "orders"]
        pay.mock.assert_called_once_with([{"total": 1}, {"total": 2}])


async def test_a_result_goes_to_the_topic_that_the_message_names() -> None:
    broker, got = a_broker(), []

    @broker.subscriber("orders")
    async def echo(body: str) -> str:
        return body.upper()

    @broker.subscriber("answers")
    async def take(body: str) -> None:
        got.append(body)

    async with TestPocketBroker(broker):
        await broker.publish("tea", "orders", reply_to="answers")
        await broker.publisher("orders", reply_to="answers").publish("milk")
    assert got == ["TEA", "MILK"]


async def test_a_request_needs_a_subscriber_that_answers_in_time() -> None:
    broker = a_broker()

    @broker.subscriber("slow")
    async def slow(body: str) -> None:
        await asyncio.Event().wait()

    async with TestPocketBroker(broker):
        with pytest.raises(SubscriberNotFound, match="nobody"):
            await broker.request("tea", "nobody")
        with pytest.raises(TimeoutError):
            await broker.request("tea", "slow", timeout=timedelta(milliseconds=1))


@pytest.mark.parametrize("options", [{"batch": True}, {"no_reply": True}])
async def test_a_handler_that_answers_no_requests_leaves_them_to_time_out(options: Any) -> None:
    broker = a_broker()

    @broker.subscriber("orders", **options)
    async def take(body: Any) -> Any:
        return body

    async with TestPocketBroker(broker):
        with pytest.raises(TimeoutError, match="orders"):
            await broker.request("tea", "orders")
        take.mock.assert_called_once()


async def test_a_batch_handler_gets_no_more_messages_than_it_wants() -> None:
    broker, sizes = a_broker(), []

    @broker.subscriber("orders", batch=True, batch_size=10)
    async def take(bodies: list[int]) -> None:
        sizes.append(len(bodies))

    async with TestPocketBroker(broker):
        await broker.publish_batch(*range(25), topic="orders")
    assert sizes == [10, 10, 5]


async def test_a_router_brings_handlers_prefix_and_middlewares() -> None:
    seen = []

    class Notes(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.append(msg.raw_message.topic)
            return await call_next(msg)

    async def bill(body: str) -> str:
        return body + "!"

    route = PocketRoute(bill, "orders", publishers=[PocketPublisher("bills")])
    router = PocketRouter("shop-", handlers=[route], middlewares=[Notes])
    broker = a_broker()
    broker.include_router(router)

    @broker.subscriber("shop-bills")
    async def pay(body: str) -> None: ...

    async with TestPocketBroker(broker):
        await broker.publish("tea", "shop-orders")
        pay.mock.assert_called_once_with("tea!")
    assert seen == ["shop-orders"]


def test_the_asyncapi_document_has_the_channels() -> None:
    broker = PocketBroker("one:9876;two:9876", description="orders and bills")

    @broker.subscriber("orders", description="what was ordered")
    @broker.publisher("bills", title="Bills")
    async def bill(order: Order) -> Bill: ...

    document = AsyncAPI(broker).to_specification().to_jsonable()
    assert {server["host"] for server in document["servers"].values()} == {"one:9876", "two:9876"}
    assert {server["protocol"] for server in document["servers"].values()} == {"rocketmq"}
    assert set(document["channels"]) == {"orders:Bill", "Bills"}
    assert {"Order", "Bill"} <= set(document["components"]["schemas"])


async def test_messages_are_checked_as_the_client_checks_them() -> None:
    broker = a_broker()
    async with TestPocketBroker(broker):
        with pytest.raises(UsageError, match="topic"):
            await broker.publish("tea", "no topic")
        with pytest.raises(UsageError, match="timeout can't be -1"):
            await broker.publish("tea", "orders", timeout=-1)
        with pytest.raises(UsageError, match="reserved"):
            await broker.publish("tea", "orders", headers={"KEYS": "1"})


async def test_a_broker_that_is_not_connected_says_so() -> None:
    broker = a_broker()
    assert await broker.ping() is False
    with pytest.raises(IncorrectState, match=r"await broker.connect\(\)"):
        await broker.publish("tea", "orders")
    with pytest.raises(IncorrectState, match=r"await broker.connect\(\)"):
        await broker.subscriber("orders").start()


def test_decisions_of_an_ordered_handler_are_refused() -> None:
    with pytest.raises(SetupError, match="AckPolicy"):
        a_broker().subscriber("orders", order=Orderly(auto_commit=False))
