"""Message trace: what our producers and consumers write, and what is found again."""

from __future__ import annotations

import asyncio
import threading
import zlib
from contextlib import suppress
from typing import Any

import pytest

import client
from client.limits import MAX_TRACE_RECORDS
from remoting.protocol.message.trace import TraceRecord, decode
from tests.integration.client.conftest import refusing
from tests.integration.client.pushing import consumer
from tests.support.waiting import until

TRACE = "RMQ_SYS_TRACE_TOPIC"
QUEUE = client.MessageQueue("T", "broker-a", 0)


async def traces(cluster: Any, message_id: str, count: int) -> list[TraceRecord]:
    """Return the records of a message once the index has ``count`` of them."""
    async with client.Admin(cluster.nameserver) as admin:
        found: list[TraceRecord] = []
        async with asyncio.timeout(10):
            while len(found) < count:
                await asyncio.sleep(0.05)
                with suppress(client.NotFound):
                    found = await admin.trace(message_id)
    assert len(found) == count
    return found


def fields(record: TraceRecord, *names: str) -> list[Any]:
    return [getattr(record, name) for name in names]


async def test_a_trace_leads_from_the_producer_through_the_store_to_the_consumers(cluster: Any):
    trace = client.MessageTrace()
    async with client.Producer(cluster.nameserver, group="shop", interceptors=[trace]) as producer:
        receipt = await producer.send("T", b"four", tag="paid", keys=iter(["o-1", "o-2"]))
    seen: list[int] = []

    async def bill(message: client.ReceivedMessage[bytes]) -> None:
        seen.append(message.retries)
        if not message.retries:
            raise client.RetryLater(1)

    async with consumer(cluster, bill, group="billing", interceptors=[trace]):
        await until(lambda: seen == [0, 1])
    sent, *handled = await traces(cluster, receipt.id, 5)
    assert fields(sent, "kind", "group", "topic", "tags", "keys") == [
        *("Pub", "shop", "T", "paid", "o-1 o-2"),
    ]
    assert fields(sent, "offset_id", "store_host", "region", "body_bytes", "success") == [
        *(receipt.offset_id, cluster.brokers["broker-a"].address, "DefaultRegion", 4, True),
    ]
    assert sent.client_host == "127.0.0.1"
    assert [fields(each, "kind", "group", "success", "result") for each in handled] == [
        ["SubBefore", "billing", True, 0],
        ["SubAfter", "billing", False, 4],
        ["SubBefore", "billing", True, 0],
        ["SubAfter", "billing", True, 0],
    ]
    assert [each.retries for each in handled] == [0, 0, 1, 0]
    first, _, second, _ = handled
    assert first.request_id != second.request_id
    assert [each.request_id for each in handled] == [first.request_id] * 2 + [second.request_id] * 2
    assert trace.dropped == 0


async def test_every_way_of_sending_leaves_a_record(cluster: Any):
    trace = client.MessageTrace()
    async with client.Producer(
        cluster.nameserver, interceptors=[trace], serde=client.serde.text
    ) as producer:
        receipts = [
            await producer.send("T", "bär", queue=QUEUE),
            await producer.send_nowait("T", "2", queue=QUEUE),
            await producer.send("T", "3", delay_level=1),
            await producer.send("T", "4", delay=1),
            *await producer.send_batch([client.Message("T", each) for each in "56"]),
        ]
        for each in await producer.send_many([client.Message("T", each) for each in "78"]):
            assert isinstance(each, client.Receipt)
            receipts.append(each)
        await producer.send_oneway("T", "no receipt, no record")
    kinds = []
    for receipt in receipts:
        [record] = await traces(cluster, receipt.id, 1)
        kinds.append((record.body_bytes, record.message_type))
        assert record.offset_id == receipt.offset_id
    assert kinds == [(4, 0), (1, 0), (1, 3), (1, 3), (1, 0), (1, 0), (1, 0), (1, 0)]


async def test_the_end_of_a_transaction_is_traced_whoever_ends_it(empty_cluster: Any):
    cluster = empty_cluster
    await cluster.start(transactionTimeOut="100", transactionCheckInterval="100")
    trace = client.MessageTrace()
    decided = asyncio.Event()

    async def decide(found: client.OpenTransaction[bytes]) -> client.TransactionState:
        decided.set()
        return client.TransactionState.COMMIT

    async with client.Producer(
        cluster.nameserver, group="shop", transaction_checker=decide, interceptors=[trace]
    ) as producer:
        async with producer.transaction("T", b"1", tag="a", keys=["k"]) as committed:
            pass
        with pytest.raises(RuntimeError):
            async with producer.transaction("T", b"2") as rolled_back:
                raise RuntimeError
        async with producer.transaction("T", b"3") as deferred:
            await deferred.defer()
        await decided.wait()
    half, ended = await traces(cluster, committed.id, 2)
    assert fields(half, "kind", "message_type") == ["Pub", 1]
    assert fields(ended, "kind", "group", "topic", "tags", "keys", "store_host") == [
        *("EndTransaction", "shop", "T", "a", "k", half.store_host)
    ]
    assert fields(ended, "state", "from_check", "transaction_id") == [
        *("COMMIT_MESSAGE", False, committed.id)
    ]
    ended = (await traces(cluster, rolled_back.id, 2))[1]
    assert fields(ended, "state", "from_check") == ["ROLLBACK_MESSAGE", False]
    ended = (await traces(cluster, deferred.id, 2))[1]
    assert fields(ended, "state", "from_check") == ["COMMIT_MESSAGE", True]


async def test_a_batch_of_a_handler_has_a_result_for_each_message(cluster: Any):
    trace = client.MessageTrace()
    async with client.Producer(cluster.nameserver) as producer:
        receipts = await producer.send_batch(
            [client.Message("T", each, queue=QUEUE) for each in (b"1", b"2", b"3")]
        )
    calls = []

    def handle(messages: list[client.ReceivedMessage[bytes]]) -> None:
        calls.append(len(messages))
        messages[0].ack()
        messages[1].dead_letter("of a test")

    async with consumer(cluster, handle, group="billing", batch_size=3, interceptors=[trace]):
        await until(lambda: calls == [3])
    requests = set()
    for receipt, success in zip(receipts, (True, False, True), strict=True):
        before, after = await traces(cluster, receipt.id, 2)
        assert fields(after, "kind", "success") == ["SubAfter", success]
        requests |= {before.request_id, after.request_id}
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("raised", "result"),
    [(ValueError("of a test"), 2), (client.DeadLetter("of a test"), 4)],
)
async def test_a_failed_handler_is_traced_with_how_it_failed(
    cluster: Any, raised: Exception, result: int
):
    async def fail(message: client.ReceivedMessage[bytes]) -> None:
        raise raised

    order = client.Orderly(max_retries=1, suspend=0.05)
    async with client.Producer(cluster.nameserver) as producer:
        receipt = await producer.send("T", b"1")
    events: list[Any] = []
    async with consumer(
        cluster, fail, order=order, interceptors=[client.MessageTrace()], on_event=events.append
    ):
        await until(lambda: client.MessageDeadLettered in map(type, events))
    records = await traces(cluster, receipt.id, 4 if result == 2 else 2)
    assert {(each.success, each.result) for each in records if each.kind == "SubAfter"} == {
        (False, result)
    }
    assert [each.retries for each in records if each.kind == "SubBefore"] == list(
        range(len(records) // 2)
    )


async def test_a_handler_that_takes_too_long_is_traced_as_timed_out(cluster: Any):
    events: list[Any] = []

    async def hang(message: client.ReceivedMessage[bytes]) -> None:
        await asyncio.Event().wait()

    async with client.Producer(cluster.nameserver) as producer:
        receipt = await producer.send("T", b"1")
    async with consumer(
        cluster,
        hang,
        consume_timeout=0.1,
        interceptors=[client.MessageTrace()],
        on_event=events.append,
    ):
        await until(lambda: client.HandlerTimedOut in map(type, events))
    _, after = await traces(cluster, receipt.id, 2)
    assert fields(after, "success", "result") == [False, 1]


async def test_messages_taken_without_a_handler_are_traced_as_received(cluster: Any):
    around: Any = {"interceptors": [client.MessageTrace()]}
    async with client.Producer(cluster.nameserver) as producer:
        receipt = await producer.send("T", b"1", queue=QUEUE)
    async with client.PullConsumer(cluster.nameserver, group="a", **around) as puller:
        puller.assign([QUEUE])
        assert await puller.get_many(10, timeout=5)
    records = await traces(cluster, receipt.id, 2)
    assert [fields(each, "kind", "group", "success") for each in records] == [
        [kind, "a", True] for kind in ("SubBefore", "SubAfter")
    ]


async def test_an_iteration_is_traced_with_the_outcome_of_each_message(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        receipt = await producer.send("T", b"1", queue=QUEUE)
    async with consumer(cluster, interceptors=[client.MessageTrace()]) as pushed:
        async with await anext(pushed):
            raise client.RetryLater(1)
        async with await anext(pushed):
            await asyncio.sleep(0.01)
    records = await traces(cluster, receipt.id, 4)
    assert [fields(each, "kind", "retries", "success", "result") for each in records] == [
        *(["SubBefore", 0, True, 0], ["SubAfter", 0, False, 4]),
        *(["SubBefore", 1, True, 0], ["SubAfter", 0, True, 0]),
    ]
    assert records[3].cost_ms >= 10
    assert records[2].request_id == records[3].request_id != records[1].request_id


async def test_the_blocking_classes_are_traced(cluster: Any):
    def work() -> str:
        trace = client.MessageTrace()
        with client.blocking.Producer(cluster.nameserver, interceptors=[trace]) as producer:
            receipt = producer.send("T", b"1")
        handled = threading.Event()
        with client.blocking.PushConsumer(
            cluster.nameserver,
            group="g",
            subscribe={"T": "*"},
            start_from=client.FIRST,
            handler=lambda _: handled.set(),
            interceptors=[trace],
        ):
            assert handled.wait(10)
        return receipt.id

    records = await traces(cluster, await asyncio.to_thread(work), 3)
    assert [record.kind for record in records] == ["Pub", "SubBefore", "SubAfter"]


# What isn't traced


@pytest.mark.parametrize("codec", ["json", "rocketmq", "msgpack"])
async def test_a_broker_with_trace_off_gets_no_trace_of_its_sends(cluster: Any, codec: Any):
    await cluster.start("broker-b", traceOn="false")
    async with client.Admin(cluster.nameserver) as admin:
        await admin.create_topic("T", queues=4)
    off = client.MessageQueue("T", "broker-b", 0)
    async with client.Producer(
        cluster.nameserver, interceptors=[client.MessageTrace()], codec=codec
    ) as producer:
        untraced = await producer.send("T", b"1", queue=off)
        traced = await producer.send("T", b"2", queue=QUEUE)
    assert len(await traces(cluster, traced.id, 1)) == 1
    async with client.Admin(cluster.nameserver) as admin:
        with pytest.raises(client.NotFound, match="there is no trace of"):
            await admin.trace(untraced.id)


async def test_trace_messages_are_not_traced(cluster: Any):
    trace = client.MessageTrace()
    async with client.Producer(cluster.nameserver, interceptors=[trace]) as producer:
        by_hand = await producer.send(TRACE, b"Pub")
        receipt = await producer.send("T", b"1")
    await traces(cluster, receipt.id, 1)
    got: list[bytes] = []

    async def note(message: client.ReceivedMessage[bytes]) -> None:
        got.append(message.body)

    async with consumer(cluster, note, subscribe={TRACE: "*"}, interceptors=[trace]):
        await until(lambda: len(got) == 2)
    async with client.Admin(cluster.nameserver) as admin:
        with pytest.raises(client.NotFound):
            await admin.trace(by_hand.id)
        assert sum([await admin.max_offset(queue) for queue in await admin.queues(TRACE)]) == 2


async def test_a_trace_topic_of_another_name_is_used(cluster: Any):
    trace = client.MessageTrace("MY_TRACE")
    async with client.Producer(cluster.nameserver, interceptors=[trace]) as producer:
        receipt = await producer.send("T", b"1")
    async with client.Admin(cluster.nameserver) as admin:
        with pytest.raises(client.NotFound, match="in topic RMQ_SYS_TRACE_TOPIC"):
            await admin.trace(receipt.id)
        assert [each.kind for each in await admin.trace(receipt.id, topic="MY_TRACE")] == ["Pub"]
    with pytest.raises(client.UsageError):
        client.MessageTrace("no topic")


# When the trace can't be sent


async def test_a_missing_trace_topic_costs_the_trace_and_nothing_else(
    empty_cluster: Any, caplog: pytest.LogCaptureFixture
):
    await empty_cluster.start(autoCreateTopicEnable="false")
    async with client.Admin(empty_cluster.nameserver) as admin:
        await admin.create_topic("T", queues=1)
    trace = client.MessageTrace()
    async with client.Producer(empty_cluster.nameserver, interceptors=[trace]) as producer:
        for _ in range(3):
            await producer.send("T", b"1")
    assert trace.dropped == 3
    assert "message trace is dropped" in caplog.text
    assert "traceTopicEnable=true" in caplog.text
    named = client.MessageTrace("MY_TRACE")
    caplog.clear()
    async with client.Producer(empty_cluster.nameserver, interceptors=[named]) as producer:
        await producer.send("T", b"1")
    assert "pocketmq topic create MY_TRACE" in caplog.text


async def test_brokers_create_the_trace_topic_at_their_start(empty_cluster: Any):
    await empty_cluster.start(autoCreateTopicEnable="false", traceTopicEnable="true")
    async with client.Admin(empty_cluster.nameserver) as admin:
        await admin.create_topic("T", queues=1)
    async with client.Producer(
        empty_cluster.nameserver, interceptors=[client.MessageTrace()]
    ) as producer:
        receipt = await producer.send("T", b"1")
    await traces(empty_cluster, receipt.id, 1)


async def test_a_full_queue_of_records_drops_further_ones(fake: Any):
    """A broker that doesn't answer trace messages holds up no send and no end."""
    trace = client.MessageTrace()
    answered = asyncio.Event()

    async def hang(command: Any, connection: Any) -> Any:
        await answered.wait()
        return fake.store(command, connection)

    def answer(command: Any, connection: Any) -> Any:
        return (hang if TRACE in command.fields.values() else fake.store)(command, connection)

    fake.on_send(answer)
    async with client.Producer(fake.address, interceptors=[trace]) as producer:
        count = MAX_TRACE_RECORDS + 10
        receipts = await producer.send_many([client.Message("T", b"1")] * count)
        assert all(isinstance(receipt, client.Receipt) for receipt in receipts)
        assert trace.dropped == 10
        answered.set()
    assert trace.dropped == 10
    sent = [zlib.decompress(body) for body in fake.bodies() if body != b"1"]
    assert sum(body.count(b"Pub") for body in sent) == MAX_TRACE_RECORDS


async def test_a_close_waits_a_limited_time_for_the_trace(fake: Any, monkeypatch: Any):
    monkeypatch.setattr("client.tracing.trace.TRACE_CLOSE_TIMEOUT", 0.2)
    trace = client.MessageTrace()
    never = asyncio.Event()

    def answer(command: Any, connection: Any) -> Any:
        if TRACE in command.fields.values():
            return never.wait()
        return fake.store(command, connection)

    fake.on_send(answer)
    async with client.Producer(fake.address, interceptors=[trace]) as producer:
        await producer.send("T", b"1")
    assert trace.dropped == 1
    never.set()


async def test_brokers_store_what_javas_consumers_need(empty_cluster: Any):
    """Those of 5.x write no trace of a message without a region."""
    await empty_cluster.start(traceOn="false", regionId="r")
    async with client.Admin(empty_cluster.nameserver) as admin:
        await admin.create_topic("T", queues=1)
    async with client.Producer(empty_cluster.nameserver, group="p") as producer:
        await producer.send("T", b"1", queue=QUEUE)
        await producer.send_batch([client.Message("T", b"2", queue=QUEUE)] * 2)
        await producer.send("T", b"3", delay_level=1, queue=QUEUE)
    async with client.PullConsumer(empty_cluster.nameserver, group="g") as consumer:
        consumer.assign([QUEUE])
        found: list[Any] = []
        while len(found) < 4:
            found += await consumer.get_many(4, timeout=5)
    added = {"CLUSTER": "DefaultCluster", "MSG_REGION": "r", "TRACE_ON": "false"}
    for message in found:
        assert {name: message.properties.get(name) for name in added} == added


async def test_a_body_that_is_serialized_only_once_costs_its_size(cluster: Any):
    class Once:
        used = False

        def dumps(self, value: bytes) -> bytes:
            if self.used:
                raise ValueError("of a test")
            self.used = True
            return value

        def loads(self, body: bytes) -> bytes:
            return body

    async with client.Producer(
        cluster.nameserver, serde=Once(), interceptors=[client.MessageTrace()]
    ) as producer:
        receipt = await producer.send("T", b"1")
    [record] = await traces(cluster, receipt.id, 1)
    assert record.body_bytes == 0


@pytest.mark.parametrize("strict", [False, True])
async def test_a_message_that_is_less_durable_than_configured_is_traced_as_no_success(
    fake: Any, strict: bool
):
    def answer(command: Any, connection: Any) -> Any:
        reply = fake.store(command, connection)
        reply.code = client.SendStatus.FLUSH_DISK_TIMEOUT
        return reply

    fake.on_send(answer)
    trace = client.MessageTrace()
    async with client.Producer(
        fake.address, interceptors=[trace], require_durable=strict
    ) as producer:
        if strict:
            with pytest.raises(client.NotDurable):
                await producer.send("T", b"1")
        else:
            await producer.send("T", b"1")
    [record] = decode(fake.bodies()[-1])
    assert fields(record, "kind", "success", "region") == ["Pub", False, "DefaultRegion"]
    assert trace.dropped == 0


async def test_an_answer_with_an_unknown_kind_of_id_is_traced_without_the_host(fake: Any):
    def answer(command: Any, connection: Any) -> Any:
        reply = fake.store(command, connection)
        reply.header.msg_id = "other"
        return reply

    fake.on_send(answer)
    async with client.Producer(fake.address, interceptors=[client.MessageTrace()]) as producer:
        await producer.send("T", b"1")
    [record] = decode(fake.bodies()[-1])
    assert fields(record, "offset_id", "store_host") == ["other", ""]


async def test_what_happens_after_the_close_is_not_traced(fake: Any):
    trace = client.MessageTrace()
    async with client.Producer(fake.address) as producer:
        bound = trace.bind(producer)
        await bound.close()
        receipt = await bound.send(client.Message("T", b"1"), producer.send)
    assert receipt.queue.topic == "T"
    assert trace.dropped == 1


async def test_a_refused_trace_message_is_dropped(fake: Any):
    trace = client.MessageTrace()
    refused = refusing(13, 1, fake.store)

    def answer(command: Any, connection: Any) -> Any:
        return (refused if TRACE in command.fields.values() else fake.store)(command, connection)

    fake.on_send(answer)
    async with client.Producer(fake.address, interceptors=[trace]) as producer:
        await producer.send("T", b"1")
    assert trace.dropped == 1
