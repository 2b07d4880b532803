"""Our client sends to a real Apache RocketMQ and reads from it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

import client
from client import blocking
from tests.interop.apache import Apache, JavaClient, shown
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

QUEUES = 4


async def new_topic(there: Apache, name: str) -> str:
    async with client.Admin(there.nameserver) as admin:
        await admin.create_topic(name, queues=QUEUES)
    return name


async def read(there: Apache, topic: str, count: int) -> list[client.ReceivedMessage[bytes]]:
    """Read the first ``count`` messages of all queues."""
    messages: list[client.ReceivedMessage[bytes]] = []
    async with client.PullConsumer(there.nameserver, group="reader") as consumer:
        consumer.assign(await consumer.queues(topic))
        for queue in consumer.assigned:
            await consumer.seek(queue, client.BEGIN)
        async with asyncio.timeout(30):
            while len(messages) < count:
                messages += await consumer.get_many(count - len(messages), timeout=1.0)
    return messages


@pytest.mark.parametrize("codec", ["json", "rocketmq", "msgpack"])
async def test_sends_single_batched_and_oneway_with_each_codec(there: Apache, codec: str) -> None:
    topic = await new_topic(there, f"codec-{codec}")
    async with client.Producer(there.nameserver, group="writer", codec=codec) as producer:
        single = await producer.send(topic, b"single", tag="red", keys=["k1", "k2"])
        together = await asyncio.gather(
            *(producer.send(topic, f"together {n}".encode()) for n in range(100))
        )
        many = await producer.send_many([client.Message(topic, b"many %d" % n) for n in range(100)])
        await producer.send_oneway(topic, b"oneway")

    messages = await read(there, topic, 202)

    assert single.status is client.SendStatus.OK
    assert all(isinstance(receipt, client.Receipt) for receipt in (*together, *many))
    first = next(message for message in messages if message.body == b"single")
    assert (first.tag, first.keys, first.id) == ("red", ["k1", "k2"], single.id)
    assert (first.queue, first.offset) == (single.queue, single.offset)
    expected = [
        b"single",
        b"oneway",
        *(b"together %d" % n for n in range(100)),
        *(b"many %d" % n for n in range(100)),
    ]
    assert Counter(message.body for message in messages) == Counter(expected)


async def test_keeps_the_order_of_a_sharding_key(there: Apache) -> None:
    topic = await new_topic(there, "order")
    async with client.Producer(there.nameserver) as producer:
        await producer.send_many(
            [client.Message(topic, b"%d" % n, sharding_key=f"user-{n % 7}") for n in range(700)]
        )

    messages = await read(there, topic, 700)

    for user in range(7):
        numbers = [int(m.body) for m in messages if int(m.body) % 7 == user]
        assert numbers == sorted(numbers)
        assert len({m.queue for m in messages if int(m.body) % 7 == user}) == 1


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_compressed_bodies_are_read_by_both_clients(
    there: Apache, kind: str, tmp_path: Path
) -> None:
    topic = await new_topic(there, f"compressed-{kind}")
    body = b"compressible " * 10_000
    async with client.Producer(there.nameserver, compress=kind) as producer:
        await producer.send(topic, body, tag="large")

    (message,) = await read(there, topic, 1)
    facts = await asyncio.to_thread(
        JavaClient("4.9.7", "JSON", tmp_path).run, "read", there.nameserver, topic, "1"
    )

    assert message.body == body
    assert facts[0][-1] == f"bytes:{len(body)}"


async def test_reads_what_the_java_client_sent(there: Apache, tmp_path: Path) -> None:
    topic = await new_topic(there, "from-java")
    await asyncio.to_thread(
        JavaClient("4.9.7", "JSON", tmp_path).run, "send", there.nameserver, topic, "5"
    )

    messages = await read(there, topic, 21)

    kinds = Counter(message.body.split()[1] for message in messages if message.tag != "large")
    assert kinds == {b"sync": 5, b"async": 5, b"oneway": 5, b"batch": 5}
    assert [len(message.body) for message in messages if message.tag == "large"] == [100_000]
    for message in messages:
        assert message.tag == "large" or message.properties["number"] == str(message.flag)


async def test_filters_by_tag(there: Apache) -> None:
    topic = await new_topic(there, "tags")
    async with client.Producer(there.nameserver) as producer:
        await producer.send_many(
            [
                client.Message(topic, b"%d" % n, tag="even" if n % 2 == 0 else "odd")
                for n in range(100)
            ]
        )

    async with client.PullConsumer(there.nameserver, group="even-reader") as consumer:
        consumer.assign(await consumer.queues(topic), tags="even")
        numbers: list[int] = []
        async with asyncio.timeout(30):
            while len(numbers) < 50:
                numbers += [int(m.body) for m in await consumer.get_many(100, timeout=1.0)]

    assert sorted(numbers) == list(range(0, 100, 2))


async def test_seeks_by_time_and_continues_where_it_committed(there: Apache) -> None:
    topic = await new_topic(there, "places")
    async with client.Admin(there.nameserver) as admin:
        queue = (await admin.queues(topic))[0]
    async with client.Producer(there.nameserver) as producer:
        for n in range(3):
            await producer.send(client.Message(topic, b"old %d" % n, queue=queue))
        await asyncio.sleep(0.05)  # store times have whole milliseconds
        between = datetime.now(UTC)
        await asyncio.sleep(0.05)
        await producer.send(client.Message(topic, b"new", queue=queue))

    async with client.PullConsumer(there.nameserver, group="places") as consumer:
        consumer.assign([queue])
        await consumer.seek(queue, between)
        assert (await consumer.get_many(1, timeout=10.0))[0].offset in {2, 3}
        await consumer.commit({queue: 1})
    async with client.PullConsumer(there.nameserver, group="places") as consumer:
        consumer.assign([queue])
        assert (await consumer.get_many(1, timeout=10.0))[0].body == b"old 1"


async def test_a_long_poll_is_woken_by_a_message(there: Apache) -> None:
    topic = await new_topic(there, "wait")
    async with (
        client.Producer(there.nameserver) as producer,
        client.PullConsumer(there.nameserver, group="waiter") as consumer,
    ):
        consumer.assign(await consumer.queues(topic))
        waiting = asyncio.create_task(consumer.get_many(1, timeout=30.0))
        assert not (await asyncio.wait([waiting], timeout=0.5))[0]
        await producer.send(topic, b"wake up")

        assert [message.body for message in await waiting] == [b"wake up"]


async def test_the_admin_reads_topics_routes_and_statistics(there: Apache) -> None:
    topic = await new_topic(there, "figures")
    async with client.Producer(there.nameserver) as producer:
        await producer.send_many([client.Message(topic, b"x") for _ in range(10)])
    await shown(there.nameserver, topic, 10)

    async with client.Admin(there.nameserver) as admin:
        assert topic in await admin.topics()
        assert (
            sum(offsets.max_offset for offsets in (await admin.topic_stats(topic)).values()) == 10
        )
        await admin.delete_topic(topic)
        assert topic not in await admin.topics()


def test_the_blocking_client_works_too(there: Apache) -> None:
    with blocking.Admin(there.nameserver) as admin:
        admin.create_topic("blocking", queues=1)
    with blocking.Producer(there.nameserver) as producer:
        receipt = producer.send("blocking", b"plain")
    with blocking.PullConsumer(there.nameserver, group="plain") as consumer:
        consumer.assign(consumer.queues("blocking"))
        assert [m.body for m in consumer.get_many(1, timeout=10.0)] == [b"plain"]

    assert receipt.offset == 0


async def test_a_broker_given_as_name_server_is_recognized(there: Apache) -> None:
    async with client.Admin(there.nameserver) as admin:
        [broker] = [one.address for one in await admin.brokers()]
    async with client.Producer(broker) as producer:
        with pytest.raises(client.UsageError, match=f"{broker} is a broker, not a name server"):
            await producer.send("T", b"x")


async def test_lists_producers_clones_offsets_and_changes_settings(there: Apache) -> None:
    topic = await new_topic(there, "administered")
    async with (
        client.Admin(there.nameserver) as admin,
        client.Producer(there.nameserver, group="listed") as producer,
    ):
        receipt = await producer.send(topic, b"x")
        (listed,) = (await admin.producers())["listed"]
        assert listed.client_id == producer.client_id

        await admin.create_group("cloned")
        await admin.create_group("clone")
        await admin.commit("cloned", {receipt.queue: 1})
        await admin.clone_offsets("cloned", "clone", topic=topic)
        stats = await admin.consume_stats("clone", topic=topic)
        assert stats[receipt.queue].consumer_offset == 1

        (broker,) = await admin.brokers()
        await admin.update_broker_config(broker.address, {"fileReservedTime": "71"})
        assert (await admin.broker_config(broker.address))["fileReservedTime"] == "71"


async def test_tells_what_goes_on_reads_pages_and_has_a_message_handled(there: Apache) -> None:
    topic, group = await new_topic(there, "watched"), "watchers"
    handled = asyncio.Event()

    async def handle(_: client.ReceivedMessage[bytes]) -> None:
        handled.set()

    async with client.Instance(there.nameserver) as mq:
        admin, producer = mq.admin(), mq.producer(group="writer")
        await admin.create_group(group)
        for number in range(40):
            await producer.send(topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd")
        await shown(there.nameserver, topic, 40)
        first = await admin.browse(topic, limit=30)
        rest = await admin.browse(topic, first.cursor, limit=30)
        assert sorted(int(message.body) for message in [*first.messages, *rest.messages]) == [
            *range(40)
        ]
        assert rest.complete
        even = await admin.browse(topic, tags="even")
        assert {int(message.body) % 2 for message in even.messages} == {0}
        queues = await admin.queues(topic)
        await admin.commit(group, dict.fromkeys(queues, 4))
        lag = next(lag for lag in (await admin.lags()).groups if lag.group == group)
        assert {queue: one.messages for queue, one in lag.queues.items()} == {
            queue: one.messages for queue, one in (await admin.lag(group)).queues.items()
        }
        assert lag.total == 40 - 4 * QUEUES
        assert (await admin.rates(topic)).messages.day >= 0
        assert (await admin.rates(topic, group)).dead == client.SpanRates(0, 0, 0)
        spans = await admin.time_span(group, topic)
        assert all(span.oldest is not None for span in spans.values())
        [broker] = await admin.brokers()
        assert (await admin.pending(broker.address)).half == 0
        with pytest.raises(client.NotSupported):
            await admin.connections(broker.address)
        member = mq.push_consumer(
            group=group, subscribe={topic: "never"}, handler=handle, start_from=client.LAST
        )
        await member.start()
        chosen = first.messages[0]
        assert chosen.offset_id is not None
        done = await admin.consume_directly(group, mq.client_id, chosen.offset_id)
        assert (done.consume_result, handled.is_set()) == ("CR_SUCCESS", True)
        await member.stop()


async def test_sends_chosen_dead_letters_back_once(there: Apache) -> None:
    topic, group = await new_topic(there, "regretted"), "regretters"

    async def give_up(_: client.ReceivedMessage[bytes]) -> None:
        raise client.DeadLetter("no such account")

    async with client.Instance(there.nameserver) as mq:
        admin, producer = mq.admin(), mq.producer(group="writer")

        async def left(count: int) -> None:
            async def reached() -> bool:
                return len(await admin.dead_letters(group)) == count

            async with asyncio.timeout(60):
                await until(reached)

        ids = [(await producer.send(topic, b"%d" % number)).id for number in range(3)]
        member = mq.push_consumer(
            group=group, subscribe={topic: "*"}, handler=give_up, start_from=client.FIRST
        )
        await member.start()
        await left(3)
        await member.stop()
        done = await admin.redrive(group, ids=[ids[1]])
        assert [one.message.id for one in done.sent] == [ids[1]]
        await left(2)  # Apache's index lags behind
        assert {one.message.id for one in (await admin.redrive(group)).sent} == {ids[0], ids[2]}


async def test_a_broker_without_accounts_is_a_clear_error(there: Apache) -> None:
    async with client.Admin(there.nameserver, request_timeout=0.5) as admin:
        with pytest.raises((client.NotSupported, client.RequestTimeout)) as refused:
            await admin.access_rules(there.broker)
    is_5 = isinstance(refused.value, client.NotSupported)
    assert ("createUser" if is_5 else "without aclEnable=true") in str(refused.value)
