"""Several objects on one instance, heartbeats, route changes, and the blocking client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import client
from client import blocking
from client.network.context import ClientContext
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.heartbeat import HeartbeatData
from remoting.protocol.codes import RequestCode, ResponseCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.headers.group import UnregisterClientRequestHeader
from tests.integration.client.contexts import producing
from tests.support.waiting import until


def heartbeats(fake: Any) -> list[HeartbeatData]:
    return [
        decode(HeartbeatData, command.body)
        for command in fake.seen
        if command.code == RequestCode.HEART_BEAT
    ]


async def test_parts_share_connections_and_close_with_their_instance(fake: Any):
    async with client.Instance(fake.address) as mq:
        producers = [mq.producer(group=f"p{number}") for number in range(5)]
        await asyncio.gather(*(producer.send("T", b"x") for producer in producers))
        consumer = mq.pull_consumer(group="c")
        await consumer.queues("T")
        assert len(fake.server.connections) == 1
        assert fake.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) <= 3
    with pytest.raises(client.UsageError, match="closed"):
        await producers[0].send("T", b"x")
    with pytest.raises(client.UsageError, match="closed"):
        mq.producer(group="late")
    gone = [c for c in fake.seen if c.code == RequestCode.UNREGISTER_CLIENT]
    groups = {c.read(UnregisterClientRequestHeader).producer_group for c in gone}
    assert groups == {"p0", "p1", "p2", "p3", "p4", None}


async def test_of_two_consumers_that_start_at_once_in_one_group_one_is_a_member(fake: Any):
    async with client.Instance(fake.address) as mq:
        consumers = [
            mq.push_consumer(group="g", subscribe={"T": "*"}, handler=print) for _ in range(2)
        ]
        starts = (consumer.start() for consumer in consumers)
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), client.UsageError]
        assert fake.count(RequestCode.UNREGISTER_CLIENT) == 0


@pytest.mark.parametrize(
    "make",
    [
        client.Instance,
        client.Producer,
        partial(client.PullConsumer, group="g"),
        partial(client.PushConsumer, group="g", subscribe={"T": "*"}, handler=print),
    ],
    ids=["instance", "producer", "pull", "push"],
)
async def test_two_starts_at_once_are_one(fake: Any, make: Any):
    before = asyncio.all_tasks()
    made = make(fake.address)
    async with asyncio.timeout(10):
        await asyncio.gather(made.start(), made.start())
        await made.close()
    assert not [task for task in asyncio.all_tasks() - before if "client" in task.get_name()]


async def test_the_first_request_to_a_broker_is_a_heartbeat(fake: Any):
    async with client.Producer(fake.address, group="orders") as producer:
        await producer.send("T", b"x")
    first = next(c for c in fake.seen if c.code != RequestCode.GET_ROUTEINFO_BY_TOPIC)
    if first.code > 20_000:
        first = next(c for c in fake.seen if c.code == RequestCode.HEART_BEAT)
    assert first.code == RequestCode.HEART_BEAT
    body = decode(HeartbeatData, first.body)
    assert [group.group_name for group in body.producer_data_set] == ["orders"]
    ip, _, rest = body.client_id.partition("@")
    assert ip == "127.0.0.1"
    assert "#" in rest


async def test_heartbeats_come_by_period_and_when_a_consumer_changes(fake: Any):
    async with client.Instance(fake.address, heartbeat_period=0.05) as mq:
        consumer = mq.pull_consumer(group="c")
        fake.on(RequestCode.PULL_MESSAGE, answer=lambda command, connection: None)
        consumer.assign(await consumer.queues("T"), tags="a")
        await until(lambda: len(heartbeats(fake)) > 4)
        [data] = heartbeats(fake)[-1].consumer_data_set
        [subscription] = data.subscription_data_set
        assert (subscription.topic, subscription.sub_string) == ("T", "a")
        assert subscription.code_set == [97]


async def test_heartbeats_to_a_busy_broker_are_repeated_until_accepted(fake: Any):
    taken: list[bool] = []

    def answer(command: Command, _: Any) -> Command:
        taken.append(len(taken) == 2)
        return command.reply(ResponseCode.SUCCESS if taken[-1] else ResponseCode.SYSTEM_BUSY)

    fake.on(RequestCode.HEART_BEAT, answer=answer)
    async with client.Producer(fake.address, group="orders") as producer:
        await producer.send("T", b"x")
        await until(lambda: any(taken))
    assert taken == [False, False, True]


async def test_clients_of_one_process_have_different_ids(fake: Any):
    async with client.Instance(fake.address) as one, client.Instance(fake.address) as two:
        assert one.client_id != two.client_id


async def test_an_address_can_be_given_for_ids(fake: Any):
    async with client.Instance(fake.address, ip="10.1.2.3") as mq:
        assert mq.client_id.startswith("10.1.2.3@")
        receipt = await mq.producer(group="p").send("T", b"x")
        assert receipt.id.startswith("0A010203")
    with pytest.raises(client.UsageError, match="numeric"):
        await client.Instance(fake.address, ip="my-host").start()


async def test_ids_have_the_parts_that_java_gives_them(fake: Any, monkeypatch: Any):
    async with client.Instance(fake.address, ip="10.1.2.3", instance_name="orders-1") as mq:
        assert mq.client_id == "10.1.2.3@orders-1"
    monkeypatch.setenv("POCKETMQ_CLIENT_UNIT_NAME", "blue")
    async with client.Instance(fake.address, instance_name="orders-1") as mq:
        assert mq.client_id == "127.0.0.1@orders-1@blue"
    async with client.Producer(fake.address, group="p", unit_name="green") as producer:
        await producer.send("T", b"x")
    assert any(b"@green" in c.body for c in fake.seen if c.code == RequestCode.HEART_BEAT)


async def test_the_environment_names_the_name_server(fake: Any, monkeypatch: Any):
    monkeypatch.setenv("NAMESRV_ADDR", fake.address)
    async with client.Producer() as producer:
        await producer.send("T", b"x")


async def test_msgpack_is_agreed_on_and_used(cluster: Any):
    context = ClientContext(cluster.nameserver, {"codec": "msgpack"})
    async with producing(context) as producer:
        for _ in range(5):
            await producer.send("T", b"x")
        address = next(iter(cluster.brokers.values())).address
        connection = context.connected(address)
        assert connection is not None
        answer = await connection.request(
            context.remote.request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout=5
        )
        assert answer.serialize is SerializeType.MSGPACK


async def test_a_peer_without_msgpack_gets_json(fake: Any):
    fake.server.endpoint.accept_msgpack = False
    async with client.Producer(fake.address, codec="msgpack") as producer:
        await producer.send("T", b"x")
        await producer.send("T", b"y")
    assert {command.serialize for command in fake.seen} == {SerializeType.JSON}


async def test_a_changed_route_is_used_before_the_refresh_period(cluster: Any):
    context = ClientContext(cluster.nameserver, {})
    async with client.Admin(cluster.nameserver) as admin, producing(context) as producer:
        await producer.send("T", b"x")
        routes = context.routes.table
        assert len(routes.get("T").writable) == 4
        await admin.update_topic("T", queues=9)
        await until(lambda: len(routes.get("T").writable) == 9)


async def test_a_new_topics_real_route_replaces_the_templates(cluster: Any):
    context = ClientContext(cluster.nameserver, {})
    async with producing(context, default_queues=4) as producer:
        await producer.send("Fresh", b"x")
        routes = context.routes.table
        await until(lambda: not routes.get("Fresh").fallback)
        assert len(routes.get("Fresh").readable) == 4


async def test_routes_of_a_failing_broker_are_refreshed(fakes: Any):
    one, two = await fakes(2)
    context = ClientContext(one.address, {})
    async with producing(context) as producer:
        for _ in range(8):
            await producer.send("T", b"x")
        asked = one.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        context.routes.table.asked("T", -1e9)
        await two.server.stop(drain_timeout=0.1)
        for _ in range(8):
            await producer.send("T", b"x")
        await until(lambda: one.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) > asked)


async def test_wrong_options_are_refused_at_construction(fake: Any):
    with pytest.raises(client.UsageError, match="did you mean 'linger'"):
        client.Producer(fake.address, lingre=1)  # type: ignore[call-arg] # what is tested
    with pytest.raises(client.UsageError, match="reserved"):
        client.PullConsumer(fake.address, group="DEFAULT_CONSUMER")
    with pytest.raises(client.UsageError, match="host:port"):
        client.Instance("nonsense")


async def test_unsupported_requests_of_a_server_are_answered(fake: Any):
    async with client.Producer(fake.address) as producer:
        await producer.send("T", b"x")
        [connection] = fake.server.connections
        answer = await connection.request(
            Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO), timeout=5
        )
        assert answer.code == 3
        connection.send_oneway(Command.request(20002, oneway=True))
        await producer.send("T", b"y")


def use_everything(nameserver: str) -> None:
    with blocking.Admin(nameserver) as admin:
        admin.create_topic("B", queues=2)
        assert "B" in admin.topics()
    with blocking.Instance(nameserver, serde=client.serde.json) as mq:
        producer = mq.producer(group="p")
        receipt = producer.send("B", {"n": 0}, sharding_key="k")
        later = producer.send_nowait("B", {"n": 1}, sharding_key="k")
        assert later.result(5).offset == receipt.offset + 1
        producer.send_oneway("B", {"n": 2}, sharding_key="k")
        results = producer.send_many([client.Message("B", {"n": 3}, sharding_key="k")])
        assert isinstance(results[0], client.Receipt)
        producer.send_batch([client.Message("B", {"n": 4}, sharding_key="k")])
        producer.flush()
        consumer = mq.pull_consumer(group="c")
        consumer.assign(consumer.queues("B"))
        assert len(consumer.assigned) == 2
        values = []
        for message in consumer:
            values.append(message.value["n"])
            if len(values) == 5:
                break
        assert values == [0, 1, 2, 3, 4]
        consumer.commit()
        assert mq.admin().lag("c").total == 0
        consumer.seek(receipt.queue, client.BEGIN)
        consumer.pause([receipt.queue])
        assert consumer.get_many(9, timeout=0.05) == []
        consumer.resume([receipt.queue])
        assert [m.value["n"] for m in consumer.get_many(9, timeout=5)] == values
        assert consumer.position(receipt.queue) == 5
        assert consumer.committed()[receipt.queue] == 5
        consumer.close()
        assert list(consumer) == []
    with pytest.raises(client.UsageError, match="closed"):
        producer.send("B", {"n": 9})
    assert "pocketmq-client" not in {thread.name for thread in threading.enumerate()}


async def test_the_blocking_client_does_the_same(cluster: Any):
    await asyncio.to_thread(use_everything, cluster.nameserver)


async def test_blocking_objects_work_alone_and_raise_the_same_errors(cluster: Any):
    def fail_while_reading() -> None:
        with blocking.PullConsumer(cluster.nameserver, group="g", auto_commit=True) as consumer:
            consumer.assign(consumer.queues("T"))
            assert len(consumer.get_many(1, timeout=5)) == 1
            raise ZeroDivisionError

    def use() -> None:
        producer = blocking.Producer(cluster.nameserver)
        with pytest.raises(client.UsageError, match="not started"):
            producer.send("T", b"x")
        with producer:
            with pytest.raises(client.UsageError, match="can't be empty"):
                producer.send("T", b"")
            with pytest.raises(client.UsageError, match="can't be empty"):
                producer.send_nowait("T", b"")
            producer.send(client.Message("T", b"x"))
        producer.close()
        with pytest.raises(ZeroDivisionError):
            fail_while_reading()
        with blocking.Admin(cluster.nameserver) as admin:
            assert set(admin.committed("g", "T").values()) == {None}

    await asyncio.to_thread(use)


async def test_a_generator_of_messages_runs_in_the_thread_of_its_caller(cluster: Any):
    threads: list[threading.Thread] = []

    def messages() -> Iterator[client.Message[bytes]]:
        for _ in range(2):
            threads.append(threading.current_thread())
            yield client.Message("T", b"x")

    def use() -> threading.Thread:
        with blocking.Producer(cluster.nameserver) as producer:
            assert len(producer.send_many(messages())) == 2
            assert len(producer.send_batch(messages())) == 2
        return threading.current_thread()

    caller = await asyncio.to_thread(use)
    assert threads == 4 * [caller]


async def test_a_blocking_call_in_the_clients_own_thread_is_refused(cluster: Any):
    caught: list[BaseException] = []

    def use() -> None:
        with blocking.PullConsumer(cluster.nameserver, group="g", on_event=event) as consumer:
            holder.append(consumer)
            [first, *_] = queues = consumer.queues("T")
            consumer.assign(queues)
            consumer.seek(first, 999)
            while not caught:
                consumer.get_many(1, timeout=0.05)

    def event(_: client.Event) -> None:
        try:
            holder[0].get_many(1)
        except client.UsageError as error:
            caught.append(error)

    holder: list[Any] = []
    await asyncio.to_thread(use)
    assert "wait for itself" in str(caught[0])
