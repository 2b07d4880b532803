"""Interceptors around sends, handlers and received messages."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import client
from tests.integration.client.conftest import refusing
from tests.integration.client.pushing import collect, consumer
from tests.support.waiting import until


class Tracing(client.Interceptor):
    """Adds a property to each message, and records the results."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Any] = []

    async def send(self, message: Any, proceed: Any) -> Any:
        message.properties = {**(message.properties or {}), self.name: "1"}
        try:
            receipt = await proceed(message)
        except client.PocketMQError as error:
            self.seen.append(type(error))
            raise
        self.seen.append(receipt.offset)
        return receipt

    async def send_oneway(self, message: Any, proceed: Any) -> None:
        message.properties = {**(message.properties or {}), self.name: "1"}
        await proceed(message)
        self.seen.append("one-way")

    async def handle(self, messages: Any, proceed: Any) -> None:
        self.seen.append([message.body for message in messages])
        await proceed()

    def receive(self, messages: Any) -> None:
        self.seen.append([message.body for message in messages])


def message(body: bytes, queue: client.MessageQueue) -> client.Message[bytes]:
    return client.Message("T", body, queue=queue)


async def test_every_send_method_passes_through_interceptors(cluster: Any):
    outer, inner = Tracing("outer"), Tracing("inner")
    queue = client.MessageQueue("T", "broker-a", 0)
    async with client.Producer(cluster.nameserver, interceptors=[outer, inner]) as producer:
        await producer.send("T", b"1", tag="a", queue=queue)
        await producer.send_nowait("T", b"2", queue=queue)
        [receipt] = await producer.send_many([client.Message("T", b"3", queue=queue)])
        assert isinstance(receipt, client.Receipt)
        receipts = await producer.send_batch([message(b"4", queue), message(b"5", queue)])
        assert [receipt.offset for receipt in receipts] == [3, 4]
        await producer.send_oneway("T", b"6", queue=queue)
    assert outer.seen == inner.seen == [0, 1, 2, 3, 4, "one-way"]
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign([queue])
        messages = []
        while len(messages) < 6:
            messages += await consumer.get_many(10, timeout=5)
    assert [message.body for message in messages] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert messages[0].tag == "a"
    assert all({"outer", "inner"} <= message.properties.keys() for message in messages)


async def test_interceptors_see_failures(cluster: Any):
    seen = Tracing("x")
    async with client.Producer(cluster.nameserver, interceptors=[seen]) as producer:
        with pytest.raises(client.UsageError):
            await producer.send("T", b"")
        [failed] = await producer.send_many([client.Message("T", b"")])
        assert isinstance(failed, client.SendError)
        future = producer.send_nowait("T", b"")
        with pytest.raises(client.UsageError):
            await future
        with pytest.raises(client.UsageError, match="has its body and attributes itself"):
            await producer.send(client.Message("T", b"x"), tag="a")  # type: ignore[call-overload] # refused
    assert seen.seen == [client.UsageError] * 3


async def test_an_interceptor_may_answer_instead_of_the_broker(cluster: Any):
    class Dry(client.Interceptor):
        async def send(self, message: Any, proceed: Any) -> Any:
            return client.Receipt(
                client.SendStatus.OK, client.MessageQueue("T", "none", 0), 0, "id", "id"
            )

    async with client.Producer(cluster.nameserver, interceptors=[Dry()]) as producer:
        receipt = await producer.send("T", b"x")
    assert receipt.queue.broker_name == "none"


class Bound(client.Interceptor):
    """Records what it is told, under its part's name."""

    def __init__(self, log: list[Any], part: client.InterceptedPart | None = None) -> None:
        self.log = log
        self.part = part

    def bind(self, part: client.InterceptedPart) -> Bound:
        return Bound(self.log, part)

    def note(self, *what: Any) -> None:
        assert self.part is not None
        self.log.append((self.part.group, self.part.client_id, *what))

    async def send(self, message: Any, proceed: Any) -> Any:
        self.note("send")
        return await proceed(message)

    async def send_half(self, message: Any, proceed: Any) -> Any:
        self.note("half")
        return await proceed(message)

    async def end_transaction(self, transaction: Any, state: Any, proceed: Any) -> bool:
        confirmed = await proceed()
        self.note(transaction.message.body, transaction.checks, state.name, confirmed)
        return bool(confirmed)

    async def handle(self, messages: Any, proceed: Any) -> None:
        await proceed()
        self.note(
            "handle", [message.outcome and message.outcome.verdict.name for message in messages]
        )

    def receive(self, messages: Any) -> None:
        self.note("receive")

    async def close(self) -> None:
        self.note("close")


async def test_an_interceptor_is_bound_to_each_part_and_closed_with_it(cluster: Any):
    log: list[Any] = []
    around: Any = {"interceptors": [Bound(log)]}

    def taken(part: Any, *expected: Any) -> None:
        assert log == [(part.group, part.client_id, *each) for each in expected]
        log.clear()

    sent = []
    async with client.Instance(cluster.nameserver) as mq:
        for group in ("p", "q"):
            producer = mq.producer(group=group, **around)
            assert producer.client_id == mq.client_id
            sent.append(await producer.send("T", b"1", queue=QUEUE))
            taken(producer, ["send"])
            await producer.close()
            taken(producer, ["close"])
        async with mq.push_consumer(
            group="c", subscribe={"T": "*"}, handler=lambda message: message.retry_later(), **around
        ) as consumer:
            await until(lambda: len(log) == 2)
        taken(consumer, *[("handle", ["RETRY"])] * 2, ["close"])
    async with client.PullConsumer(cluster.nameserver, group="d", **around) as puller:
        puller.assign([QUEUE])
        await anext(puller)
    taken(puller, ["receive"], ["close"])


@pytest.mark.parametrize(
    "make",
    [
        partial(client.Producer, group="g"),
        partial(client.PullConsumer, group="g"),
        partial(client.PushConsumer, group="g", subscribe={"T": "*"}, handler=print),
    ],
    ids=["producer", "pull", "push"],
)
async def test_a_part_whose_interceptor_cannot_be_bound_leaves_nothing_behind(fake: Any, make: Any):
    class Unbound(client.Interceptor):
        def bind(self, part: client.InterceptedPart) -> client.Interceptor:
            raise ZeroDivisionError

    before = asyncio.all_tasks()
    part = make(fake.address, interceptors=[Unbound()])
    with pytest.raises(ZeroDivisionError):
        await part.start()
    assert not [task for task in asyncio.all_tasks() - before if "client" in task.get_name()]
    await part.close()


async def test_interceptors_wrap_both_requests_of_a_transaction(cluster: Any):
    log: list[Any] = []
    async with client.Producer(
        cluster.nameserver,
        group="p",
        transaction_checker=lambda _: client.TransactionState.UNKNOWN,
        interceptors=[Bound(log)],
    ) as producer:
        async with producer.transaction("T", b"1"):
            pass
        async with producer.transaction("T", b"2") as transaction:
            await transaction.rollback()
    mine = ("p", producer.client_id)
    assert log == [
        (*mine, "half"),
        (*mine, b"1", 0, "COMMIT", True),
        (*mine, "half"),
        (*mine, b"2", 0, "ROLLBACK", True),
        (*mine, "close"),
    ]


async def test_an_interceptor_that_fails_to_close_does_not_keep_its_producer_open(
    cluster: Any, caplog: pytest.LogCaptureFixture
):
    class Broken(client.Interceptor):
        async def close(self) -> None:
            raise ValueError("of a test")

    async with client.Producer(cluster.nameserver, interceptors=[Broken()]) as producer:
        await producer.send("T", b"1")
    assert "an interceptor was not closed" in caplog.text
    with pytest.raises(client.UsageError, match="closed"):
        await producer.send("T", b"2")


class Refusing(client.Interceptor):
    """Refuses messages that begin with a minus."""

    async def send(self, message: Any, proceed: Any) -> Any:
        if message.body.startswith(b"-"):
            raise RuntimeError("not this one")
        if message.body.startswith(b"="):
            return client.Receipt(client.SendStatus.OK, QUEUE, -1, "", "")
        return await proceed(message)

    async def send_oneway(self, message: Any, call_next: Any) -> None:
        if not message.body.startswith(b"-"):
            await call_next(message)


QUEUE = client.MessageQueue("T", "broker-a", 0)


async def stored(cluster: Any, count: int) -> list[bytes]:
    async with client.PullConsumer(cluster.nameserver, group="look") as consumer:
        consumer.assign([QUEUE])
        bodies: list[bytes] = []
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.get_many(100, timeout=5)]
        assert await consumer.get_many(1, timeout=0) == []
        return bodies


async def test_a_batch_is_sent_whole_or_not_at_all(cluster: Any):
    seen = Tracing("x")
    async with client.Producer(cluster.nameserver, interceptors=[seen, Refusing()]) as producer:
        with pytest.raises(RuntimeError, match="not this one"):
            await producer.send_batch([message(body, QUEUE) for body in (b"1", b"-2", b"3")])
        assert seen.seen == [client.SendError] * 2
        # One that is answered in its place is left out.
        receipts = await producer.send_batch([message(body, QUEUE) for body in (b"4", b"=5", b"6")])
        assert [receipt.offset for receipt in receipts] == [0, -1, 1]
        [receipt] = await producer.send_batch([message(b"=7", QUEUE)])
        assert receipt.offset == -1
        with pytest.raises(client.UsageError, match="at least one"):
            await producer.send_batch([])
        with pytest.raises(client.UsageError, match="one topic only"):
            await producer.send_batch([message(b"8", QUEUE), client.Message("Other", b"9")])
        await producer.send_oneway("T", b"-10", queue=QUEUE)
        await producer.send_oneway("T", b"11", queue=QUEUE)
    assert await stored(cluster, 3) == [b"4", b"6", b"11"]


async def test_a_batch_that_the_broker_refuses_is_seen_as_refused(fake: Any):
    seen = Tracing("x")
    fake.on_send(refusing(13, 1, fake.store))
    queue = client.MessageQueue("T", "fake-0", 0)
    async with client.Producer(fake.address, interceptors=[seen]) as producer:
        with pytest.raises(client.MessageIllegal):
            await producer.send_batch([message(b"1", queue), message(b"2", queue)])
    assert all(issubclass(kind, client.MessageIllegal) for kind in seen.seen)
    assert len(seen.seen) == 2


async def test_an_abandoned_batch_leaves_no_task_behind(cluster: Any):
    class Waiting(client.Interceptor):
        async def send(self, message: Any, call_next: Any) -> Any:
            reached.set()
            await asyncio.Event().wait()

    reached = asyncio.Event()
    before = asyncio.all_tasks()
    async with client.Producer(cluster.nameserver, interceptors=[Waiting()]) as producer:
        sending = asyncio.create_task(producer.send_batch([message(b"1", QUEUE)]))
        await reached.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    assert asyncio.all_tasks() <= before


async def test_interceptors_see_every_receive_method(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send_batch([message(b"1", QUEUE), message(b"2", QUEUE)])
    one, two = Tracing("one"), Tracing("two")
    around: Any = {"interceptors": [one, two]}

    def told() -> Any:
        assert one.seen == two.seen
        seen, one.seen, two.seen = one.seen, [], []
        return seen

    async with client.PullConsumer(cluster.nameserver, group="a", **around) as puller:
        puller.assign([QUEUE])
        assert await puller.get_many(10, timeout=5)
        assert told() == [[b"1", b"2"]]
        assert await puller.get_many(10, timeout=0) == []
        await puller.seek(QUEUE, 0)
        await anext(puller)
        assert told() == [[b"1"]]
    async with consumer(cluster, group="b", **around) as pushed:
        for _ in range(2):
            (await anext(pushed)).ack()
        assert told() == [[b"1"], [b"2"]]
    for number, batch_size in enumerate((1, 2)):
        handler = collect([], lambda given: given)
        made = consumer(cluster, handler, group=f"c{number}", batch_size=batch_size, **around)
        async with made:
            await until(lambda: sum(map(len, one.seen)) == 2)
        assert told() == ([[b"1"], [b"2"]] if batch_size == 1 else [[b"1", b"2"]])


async def test_a_failing_interceptor_loses_no_message(
    cluster: Any, caplog: pytest.LogCaptureFixture
):
    class Broken(client.Interceptor):
        def receive(self, messages: Any) -> None:
            raise ValueError("of a test")

    async with client.Producer(cluster.nameserver) as producer:
        await producer.send("T", b"1", queue=QUEUE)
    async with client.PullConsumer(
        cluster.nameserver, group="a", interceptors=[Broken()]
    ) as puller:
        puller.assign([QUEUE])
        assert len(await puller.get_many(10, timeout=5)) == 1
    assert "an interceptor failed" in caplog.text


async def test_interceptors_see_the_outcomes_of_an_iteration(
    cluster: Any, caplog: pytest.LogCaptureFixture
):
    outcomes: list[Any] = []

    class Outcomes(client.Interceptor):
        def settled(self, message: Any) -> None:
            outcomes.append((message.body, message.outcome.verdict.name))
            if message.body == b"1":
                raise ValueError("of a test")

    async with client.Producer(cluster.nameserver) as producer:
        await producer.send_batch([message(body, QUEUE) for body in (b"1", b"2", b"3")])
    async with consumer(cluster, group="b", interceptors=[Outcomes()]) as pushed:
        (await anext(pushed)).ack()
        (await anext(pushed)).dead_letter("of a test")
        await asyncio.to_thread((await anext(pushed)).retry_later, 30)
    assert outcomes == [(b"1", "DONE"), (b"2", "DEAD_LETTER"), (b"3", "RETRY")]
    assert "an interceptor failed" in caplog.text


async def test_messages_accepted_without_waiting_are_sent_before_the_close(cluster: Any):
    seen = Tracing("x")
    async with client.Producer(cluster.nameserver, interceptors=[seen]) as producer:
        first = producer.send_nowait("T", b"1", queue=QUEUE)
        await producer.flush()
        assert first.done()
        second = producer.send_nowait("T", b"2", queue=QUEUE)
    assert [(await each).offset for each in (first, second)] == [0, 1]
    assert seen.seen == [0, 1]
    assert await stored(cluster, 2) == [b"1", b"2"]


async def test_messages_that_wait_in_interceptors_are_bounded(cluster: Any):
    class Waiting(client.Interceptor):
        async def send(self, message: Any, proceed: Any) -> Any:
            await asyncio.Event().wait()

    async with client.Producer(
        cluster.nameserver, interceptors=[Waiting()], max_in_flight=1
    ) as producer:
        future = producer.send_nowait("T", b"1")
        with pytest.raises(client.BufferFull, match="1 messages are in flight already"):
            producer.send_nowait("T", b"2")
        # The close waits for them as long as it is told to.
        await producer.close(0.1)
    assert future.cancelled()
