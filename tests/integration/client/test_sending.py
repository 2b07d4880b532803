"""Sending to our broker."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

import client
from remoting.protocol.message.tags import java_hash


async def read_all(cluster: Any, topic: str, count: int) -> list[client.ReceivedMessage[bytes]]:
    async with client.PullConsumer(cluster.nameserver, group="reader") as consumer:
        consumer.assign(await consumer.queues(topic))
        got: list[client.ReceivedMessage[bytes]] = []
        while len(got) < count:
            batch = await consumer.get_many(1000, timeout=10)
            assert batch, f"only {len(got)} of {count} came"
            got += batch
        assert await consumer.get_many(1, timeout=0) == []
        return got


async def test_a_message_arrives_as_it_was_sent(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        receipt = await producer.send(
            "T", b"body", tag="paid", keys=["o-1", "o-2"], properties={"a": "b"}
        )
    [message] = await read_all(cluster, "T", 1)
    assert receipt.status is client.SendStatus.OK
    assert (receipt.queue, receipt.offset, receipt.id) == (
        message.queue,
        message.offset,
        message.id,
    )
    assert receipt.offset_id == message.offset_id
    assert (message.body, message.tag, message.keys) == (b"body", "paid", ["o-1", "o-2"])
    assert message.properties["a"] == "b"


async def test_a_key_with_a_tab_is_one_key_by_which_its_message_is_found(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send("T", b"body", keys=["a\tb", "c\u00a0d"])
    async with client.Admin(cluster.nameserver) as admin:
        for key in ("a\tb", "c\u00a0d"):
            assert [one.keys for one in await admin.find_messages("T", key)] == [
                ["a\tb", "c\u00a0d"]
            ]
        assert await admin.find_messages("T", "a") == []


class Hasty(client.Interceptor):
    """Fails by itself for one message."""

    async def send(self, message: Any, proceed: Any) -> Any:
        if message.body == b"odd":
            raise KeyError("own")
        return await proceed(message)


@pytest.mark.parametrize("interceptors", [(), (Hasty(),)], ids=["plain", "intercepted"])
async def test_send_many_returns_a_receipt_or_an_error_for_each_message(
    cluster: Any, interceptors: Any
):
    given: list[Any] = [
        client.Message("T", b"1"),
        client.Message("T", b"2", keys=["\udce9"]),
        client.Message("T", b"3", deliver_at=1.5),  # type: ignore[arg-type] # what is tested
        client.Message("T", b"odd", flag="x"),  # type: ignore[arg-type] # what is tested
        "no message",
        client.Message("T", b"4"),
    ]
    async with client.Producer(cluster.nameserver, interceptors=interceptors) as producer:
        results = await producer.send_many(given)
    kinds = [isinstance(result, client.Receipt) for result in results]
    assert kinds == [True, False, False, False, False, True]
    assert all(isinstance(result, client.SendError) for result in results[1:5])
    assert all(isinstance(result, client.UsageError) for result in results[1:3])


async def test_a_text_that_is_not_utf8_is_refused_by_every_request(cluster: Any):
    async def handle(_: Any) -> None: ...

    async with client.Admin(cluster.nameserver) as admin:
        with pytest.raises(client.UsageError, match="not UTF-8"):
            await admin.find_messages("T", "\udce9")
        with pytest.raises(client.UsageError, match="not UTF-8"):
            await admin.put_kv("n", "k", "\udce9")
    for wanted in ("\udce9", client.Sql("a = '\udce9'")):
        with pytest.raises(client.UsageError, match="not UTF-8"):
            client.PushConsumer(
                cluster.nameserver, group="g", subscribe={"T": wanted}, handler=handle
            )


async def test_a_message_object_and_arguments_do_not_mix(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        message = client.Message("T", b"x", tag="t")
        await producer.send(message, timeout=5)
        with pytest.raises(client.UsageError, match="either a Message"):
            await producer.send(message, tag="u")  # type: ignore[call-overload] # what is tested


async def test_sends_one_after_the_other_visit_all_queues(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        receipts = [await producer.send("T", b"x") for _ in range(8)]
    assert sorted(receipt.queue.queue_id for receipt in receipts) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_sharding_key_gives_one_queue_and_its_order(cluster: Any):
    keys = [f"user-{number}" for number in range(20)]
    async with client.Producer(cluster.nameserver) as producer:
        futures = [
            producer.send_nowait("T", f"{key}:{number}".encode(), sharding_key=key)
            for number in range(50)
            for key in keys
        ]
        receipts = await asyncio.gather(*futures)
    assert {r.queue.queue_id for r in receipts} == {abs(java_hash(key)) % 4 for key in keys}
    seen: dict[str, list[int]] = defaultdict(list)
    for message in await read_all(cluster, "T", 1000):
        key, number = message.body.decode().split(":")
        assert message.queue.queue_id == abs(java_hash(key)) % 4
        seen[key].append(int(number))
    assert all(numbers == list(range(50)) for numbers in seen.values())


async def test_a_chosen_queue_is_used(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        queue = client.MessageQueue("T", "broker-a", 2)
        receipts = await asyncio.gather(
            *(producer.send("T", b"%d" % number, queue=queue) for number in range(10))
        )
    assert [receipt.offset for receipt in receipts] == list(range(10))
    assert {receipt.queue for receipt in receipts} == {queue}
    assert [m.body for m in await read_all(cluster, "T", 10)] == [b"%d" % n for n in range(10)]


async def test_messages_of_one_loop_iteration_are_sent_together_and_each_has_its_receipt(
    cluster: Any,
):
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send("T", b"warm")
        receipts = await asyncio.gather(*(producer.send("T", b"%d" % n) for n in range(50)))
        assert len({receipt.queue for receipt in receipts}) == 1
        assert len({receipt.offset_id for receipt in receipts}) == 50
        first = receipts[0].offset
        assert [receipt.offset for receipt in receipts] == list(range(first, first + 50))
    messages = {m.id: m for m in await read_all(cluster, "T", 51)}
    for number, receipt in enumerate(receipts):
        assert messages[receipt.id].body == b"%d" % number
        assert messages[receipt.id].offset_id == receipt.offset_id


async def test_whatever_is_sent_to_one_queue_keeps_its_order(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        queue = (await producer.send("mixed", b"first")).queue
        sends = []
        for number in range(60):
            kind: dict[str, Any] = [{}, {"tag": "t"}, {"timeout": 9}, {"keys": iter(["k"])}][
                number % 4
            ]
            body = b"%d" % number * (2000 if number % 7 == 0 else 1)
            sends.append(producer.send_nowait("mixed", body, queue=queue, **kind))
            if number % 13 == 0:
                await asyncio.sleep(0)
        offsets = [(await send).offset for send in sends]
    assert offsets == list(range(1, 61))
    messages = await read_all(cluster, "mixed", 61)
    assert [message.keys for message in messages if message.keys] == [["k"]] * 15


async def test_an_iterator_of_keys_survives_a_topic_without_a_route(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        for _ in range(2):
            await producer.send("once", b"x", keys=(key for key in ("k1", "k2")))
    assert [one.keys for one in await read_all(cluster, "once", 2)] == [["k1", "k2"]] * 2


async def test_the_bound_of_messages_in_flight_counts_those_of_this_iteration(cluster: Any):
    async with client.Producer(cluster.nameserver, max_in_flight=3) as producer:
        await producer.send("bound", b"x")
        sends = [producer.send_nowait("bound", b"x") for _ in range(3)]
        with pytest.raises(client.BufferFull):
            producer.send_nowait("bound", b"x")
        late = asyncio.create_task(producer.send("bound", b"x"))
        for send in sends:
            await send
        await late
        await producer.send_nowait("bound", b"x")


async def test_flush_waits_for_what_was_sent_in_the_same_iteration(cluster: Any):
    async with client.Producer(cluster.nameserver, linger=60) as producer:
        send = producer.send_nowait("turn", b"x")
        await producer.flush()
        assert send.done()
        send = producer.send_nowait("turn", b"x")
        await producer.flush()
        assert send.done()


async def test_send_many_returns_results_in_order_and_errors_for_failures(cluster: Any):
    messages = [client.Message("T", b"%d" % number) for number in range(3000)]
    messages[7] = client.Message("T", b"")
    async with client.Producer(cluster.nameserver, max_in_flight=100) as producer:
        results = await producer.send_many(messages)
    bad = results.pop(7)
    assert isinstance(bad, client.SendError)
    assert bad.outcome is client.Outcome.NOT_SENT
    assert isinstance(bad.__cause__, client.UsageError)
    by_id = {m.id: m.body for m in await read_all(cluster, "T", 2999)}
    expected = [b"%d" % number for number in range(3000) if number != 7]
    assert [by_id[r.id] for r in results if isinstance(r, client.Receipt)] == expected


async def test_an_explicit_batch_is_contiguous_in_one_queue(cluster: Any):
    async with client.Producer(cluster.nameserver, max_batch_messages=3) as producer:
        receipts = await producer.send_batch(
            [client.Message("T", b"%d" % n, tag="t", sharding_key="k") for n in range(20)]
        )
        single = await producer.send_batch([client.Message("T", b"alone")])
    assert {r.queue.queue_id for r in receipts} == {abs(java_hash("k")) % 4}
    assert [r.offset for r in receipts] == list(range(20))
    assert len(single) == 1
    with pytest.raises(client.UsageError, match="closed"):
        await producer.send_batch([client.Message("T", b"x")])


async def test_oneway_messages_arrive(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        for number in range(10):
            await producer.send_oneway("T", b"%d" % number, sharding_key="k")
    assert [m.body for m in await read_all(cluster, "T", 10)] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_large_bodies_travel_compressed_and_arrive_whole(cluster: Any, kind: Any):
    body = b"The quick brown fox. " * 1000
    async with client.Producer(cluster.nameserver, compress=kind) as producer:
        await producer.send("T", body)
    [message] = await read_all(cluster, "T", 1)
    assert len(message.stored_body) < len(body) / 5
    assert message.body == body


async def test_a_send_creates_its_topic_with_the_requested_queues(cluster: Any):
    async with client.Producer(cluster.nameserver, default_queues=3) as producer:
        receipts = await asyncio.gather(
            *(producer.send("Fresh", b"x", sharding_key=str(n)) for n in range(30))
        )
    assert {receipt.queue.queue_id for receipt in receipts} == {0, 1, 2}
    async with client.Admin(cluster.nameserver) as admin:
        assert (await admin.topic_config("Fresh"))["broker-a"].write_queue_nums == 3


async def test_linger_collects_messages_of_several_loop_iterations(cluster: Any):
    async with client.Producer(cluster.nameserver, linger=1.0) as producer:
        await producer.send("T", b"warm")

        async def one(number: int) -> client.Receipt:
            for _ in range(number):
                await asyncio.sleep(0)
            return await producer.send("T", b"%d" % number)

        receipts = await asyncio.gather(*(one(number) for number in range(10)))
    assert len({receipt.queue for receipt in receipts}) == 1


async def test_flush_waits_for_what_was_accepted_before(cluster: Any):
    async with client.Producer(cluster.nameserver, linger=30.0, timeout=60.0) as producer:
        futures = [producer.send_nowait("T", b"%d" % number) for number in range(10)]
        await producer.flush()
        assert all(future.done() for future in futures)
        await producer.flush()


async def test_closing_sends_what_was_accepted(cluster: Any):
    async with client.Producer(cluster.nameserver, linger=30.0, timeout=60.0) as producer:
        futures = [producer.send_nowait("T", b"%d" % number) for number in range(10)]
    assert all(future.result().status is client.SendStatus.OK for future in futures)
    with pytest.raises(client.UsageError, match="closed"):
        await producer.send("T", b"x")
    await producer.close()


async def test_cancelling_a_send_does_not_revoke_it(cluster: Any):
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send("T", b"warm")
        task = asyncio.create_task(producer.send("T", b"cancelled"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert {m.body for m in await read_all(cluster, "T", 2)} == {b"warm", b"cancelled"}


async def test_use_before_the_start_says_what_to_do(cluster: Any):
    producer = client.Producer(cluster.nameserver)
    with pytest.raises(client.UsageError, match="async with"):
        await producer.send("T", b"x")
    await producer.close()


@pytest.mark.parametrize("codec", ["json", "rocketmq", "msgpack"])
async def test_every_codec_carries_everything(cluster: Any, codec: Any):
    async with client.Instance(cluster.nameserver, codec=codec) as mq:
        producer = mq.producer(group="p")
        for _ in range(3):
            await producer.send("T", "grüße".encode(), tag="ü", properties={"näme": "wört"})
        await producer.send_batch([client.Message("T", b"1"), client.Message("T", b"2")])
        consumer = mq.pull_consumer(group="c")
        consumer.assign(await consumer.queues("T"))
        got = 0
        while got < 5:
            got += len(await consumer.get_many(10, timeout=10))
        await consumer.commit()
        assert (await mq.admin().lag("c")).total == 0


async def test_values_go_through_the_serde(cluster: Any):
    async with client.Instance(cluster.nameserver, serde=client.serde.json) as mq:
        await mq.producer(group="p").send("T", {"a": 1})
        texts = mq.producer(group="p2", serde=client.serde.text)
        await texts.send("T", '"grüße"')
        consumer = mq.pull_consumer(group="c")
        consumer.assign(await consumer.queues("T"))
        values: list[Any] = []
        while len(values) < 2:
            values += [message.value for message in await consumer.get_many(10, timeout=10)]
    assert {"a": 1} in values
    assert "grüße" in values


async def test_a_topic_nobody_may_create_is_an_error(empty_cluster: Any):
    await empty_cluster.start(autoCreateTopicEnable="false")
    async with client.Producer(empty_cluster.nameserver, timeout=10.0) as producer:
        with pytest.raises(client.TopicNotFound, match="create_topic"):
            await producer.send("Nowhere", b"x")


async def test_require_durable_raises_for_less(fake: Any):
    def less(command: Any, connection: Any) -> Any:
        answer = fake.store(command, connection)
        answer.code = 10
        return answer

    fake.on_send(less)
    async with client.Producer(fake.address) as relaxed:
        assert (await relaxed.send("T", b"x")).status is client.SendStatus.FLUSH_DISK_TIMEOUT
    async with client.Producer(fake.address, require_durable=True) as strict:
        with pytest.raises(client.NotDurable) as caught:
            await strict.send("T", b"x")
    assert caught.value.receipt.status is client.SendStatus.FLUSH_DISK_TIMEOUT


async def test_sending_from_another_thread_or_loop_is_refused(fake: Any):
    async def elsewhere(producer: Any) -> None:
        with pytest.raises(client.UsageError, match="another thread or event loop"):
            producer.send_nowait("T", b"x")
        with pytest.raises(client.UsageError, match="another thread or event loop"):
            await producer.send("T", b"x")

    def without_loop(producer: Any) -> None:
        with pytest.raises(client.UsageError, match="call_soon_threadsafe"):
            producer.send_nowait("T", b"x")

    async with client.Producer(fake.address) as producer:
        await producer.send("T", b"first")
        await asyncio.to_thread(asyncio.run, elsewhere(producer))
        await asyncio.to_thread(without_loop, producer)
    assert fake.bodies() == [b"first"]


async def test_a_tag_that_no_subscription_can_name_is_refused_by_every_send_method(cluster: Any):
    message = client.Message("T", b"x", tag="a||b")
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send("T", b"x", tag="a")  # from here on there is a route
        for send in (producer.send, producer.send_nowait, producer.send_oneway):
            with pytest.raises(client.UsageError, match="one tag"):
                await send(message)
        with pytest.raises(client.UsageError, match="one tag"):
            await producer.send_batch([message])
        [failed] = await producer.send_many([message])
        assert isinstance(failed, client.UsageError)
