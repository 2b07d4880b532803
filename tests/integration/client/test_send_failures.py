"""Failing sends: peers that refuse, don't answer, die or come back."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import pytest

import client
from client.network.context import ClientContext
from remoting.connection import Connection
from remoting.errors import ConnectFailed
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageResponseHeader
from tests.integration.client.conftest import refusing
from tests.integration.client.contexts import FaultyConnection, producing
from tests.support.ports import free_port
from tests.support.waiting import until

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205])
async def test_a_refusal_that_may_be_local_is_retried_at_another_broker(fakes: Any, code: int):
    one, two = await fakes(2)
    one.on_send(refusing(code, 99, one.store))
    async with client.Producer(one.address) as producer:
        receipts = [await producer.send("T", b"%d" % number) for number in range(8)]
    assert {receipt.queue.broker_name for receipt in receipts} == {"fake-1"}
    assert len(two.bodies()) == 8


async def test_refusals_are_tried_three_times_in_all(fake: Any):
    fake.on_send(refusing(14, 2, fake.store))
    async with client.Producer(fake.address) as producer:
        await producer.send("T", b"third time")
    assert fake.bodies() == [b"third time"]
    fake.on_send(refusing(14, 3, fake.store))
    async with client.Producer(fake.address) as producer:
        with pytest.raises(client.ServiceNotAvailable) as caught:
            await producer.send("T", b"x")
    assert caught.value.queue is not None
    assert caught.value.code == 14


async def test_retries_can_be_switched_off(fake: Any):
    fake.on_send(refusing(14, 1, fake.store))
    async with client.Producer(fake.address, retries=0) as producer:
        with pytest.raises(client.ServiceNotAvailable):
            await producer.send("T", b"x")


async def test_a_final_refusal_is_not_tried_again(fake: Any):
    fake.on_send(refusing(13, 1, fake.store))
    async with client.Producer(fake.address) as producer:
        with pytest.raises(client.MessageIllegal):
            await producer.send("T", b"x")
    assert sum(command.code in SENDS for command in fake.seen) == 1


async def test_a_busy_broker_is_retried_until_it_accepts_the_message(fake: Any):
    fake.on_send(refusing(ResponseCode.SYSTEM_BUSY, 5, fake.store))
    async with client.Producer(fake.address, timeout=10.0) as producer:
        await producer.send("T", b"x")
    assert fake.bodies() == [b"x"]


async def test_a_broker_that_stays_busy_is_named_when_time_is_up(fake: Any):
    fake.on_send(refusing(ResponseCode.SYSTEM_BUSY, 10**6, fake.store))
    async with client.Producer(fake.address, timeout=1.0) as producer:
        with pytest.raises(client.SystemBusy, match="more slowly"):
            await producer.send("T", b"x")


async def test_no_answer_in_time_is_an_unknown_outcome(fake: Any):
    fake.on_send(lambda command, connection: None)
    async with client.Producer(fake.address, timeout=1.0) as producer:
        with pytest.raises(client.SendError) as caught:
            await producer.send("T", b"x")
        assert caught.value.outcome is client.Outcome.UNKNOWN
        fake.on_send(fake.store)
        await producer.send("T", b"later")
    assert fake.bodies() == [b"later"]


async def test_a_timeout_of_one_send_is_its_own(fake: Any):
    fake.on_send(lambda command, connection: None)
    async with client.Producer(fake.address, timeout=30.0) as producer:
        with pytest.raises(client.SendError):
            await producer.send("T", b"x", timeout=0.5)


async def test_without_a_name_server_each_send_has_its_own_timeout():
    async with client.Producer(f"127.0.0.1:{free_port()}") as producer:
        short = asyncio.ensure_future(producer.send("T", b"x", timeout=0.05))
        long = asyncio.ensure_future(producer.send("T", b"x", timeout=0.5))
        done, _ = await asyncio.wait({short, long}, return_when=asyncio.FIRST_COMPLETED)
        assert done == {short}
        for send in (short, long):
            with pytest.raises(client.NoNameServer):
                await send


async def test_a_silent_name_server_does_not_exceed_the_time_of_a_send(fake: Any) -> None:
    fake.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, answer=lambda command, connection: None)
    async with client.Producer(fake.address, timeout=30.0) as producer:
        with pytest.raises(client.NoNameServer, match=r"within 0\.\d+ s"):
            await producer.send("T", b"x", timeout=0.1)


async def test_without_a_name_server_the_outcome_is_not_sent(fake: Any):
    await_address = f"127.0.0.1:{free_port()}"
    async with client.Producer(await_address, timeout=0.3) as producer:
        with pytest.raises(client.NoNameServer, match="no name server answers") as caught:
            await producer.send("T", b"x")
        assert isinstance(caught.value, client.SendError)
        assert caught.value.outcome is client.Outcome.NOT_SENT
        with pytest.raises(client.NoNameServer) as oneway:
            await producer.send_oneway("T", b"x")
        assert isinstance(oneway.value, client.SendError)


async def test_a_name_server_without_brokers_is_no_route(empty_cluster: Any):
    async with client.Producer(empty_cluster.nameserver, timeout=1.0) as producer:
        with pytest.raises(client.NoRoute, match="start a broker") as caught:
            await producer.send("T", b"x")
        assert isinstance(caught.value, client.SendError)
        futures = [producer.send_nowait("T", b"x") for _ in range(2)]
        failures = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(failure, client.NoRoute) for failure in failures)
        assert failures[0] is not failures[1]


async def test_a_broker_that_cannot_be_reached_is_not_sent(fakes: Any):
    one, two = await fakes(2)
    await two.server.stop(drain_timeout=0.1)
    one.brokers = [two]
    async with client.Producer(one.address, timeout=1.0) as producer:
        with pytest.raises(client.SendError) as caught:
            await producer.send("T", b"x")
    assert caught.value.outcome is client.Outcome.NOT_SENT
    assert isinstance(caught.value, client.BrokerUnreachable)
    assert two.address in str(caught.value)


async def test_a_broker_given_as_name_server_is_recognized(cluster: Any):
    broker = f"127.0.0.1:{cluster.brokers['broker-a'].port}"
    text = re.escape(f"{broker} is a broker, not a name server")
    async with client.Producer(broker) as producer:
        with pytest.raises(client.UsageError, match=text) as caught:
            await producer.send("T", b"x")
        assert isinstance(caught.value, client.SendError)
    async with client.PullConsumer(broker, group="g") as puller:
        with pytest.raises(client.UsageError, match=text):
            await puller.queues("T")
    async with client.Admin(broker) as admin:
        with pytest.raises(client.UsageError, match=text):
            await admin.topics()
    with pytest.raises(client.UsageError, match=text):
        await client.PushConsumer(broker, group="g", subscribe={"T": "*"}).start()


async def test_a_dead_broker_is_avoided(fakes: Any):
    one, two, three = await fakes(3)
    one.brokers = [two, three]
    async with client.Producer(one.address) as producer:
        for number in range(4):
            await producer.send("T", b"%d" % number)
        await two.server.stop(drain_timeout=0.1)
        receipts = [await producer.send("T", b"%d" % number) for number in range(8)]
    assert {receipt.queue.broker_name for receipt in receipts} == {"fake-2"}


async def test_an_ordered_topic_without_a_master_is_tried_again_after_pauses(
    fake: Any, monkeypatch: pytest.MonkeyPatch
):
    slave_only = TopicRouteData(
        order_topic_conf="fake:4",
        queue_datas=[QueueData(broker_name="fake", read_queue_nums=4, write_queue_nums=4, perm=6)],
        broker_datas=[BrokerData(cluster="c", broker_name="fake", broker_addrs={1: "127.0.0.1:1"})],
    )
    body = encode(slave_only, standard=True)
    fake.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, answer=lambda command, _: command.reply(body=body))
    context = ClientContext(fake.address, {})
    async with producing(context, timeout=0.5) as producer:
        tries: list[str] = []
        monkeypatch.setattr(context.routes, "invalidate", tries.append)
        with pytest.raises(client.NoRoute):
            await producer.send("T", b"x")
    assert 1 < len(tries) < 20


async def test_a_connection_that_breaks_after_the_write_is_tried_again(fake: Any):
    broken = []

    def break_once(command: Any, connection: Any) -> Any:
        if not broken:
            broken.append(command)
            connection.abort("on purpose")
            return None
        return fake.store(command, connection)

    fake.on_send(break_once)
    async with client.Producer(fake.address) as producer:
        await producer.send("T", b"x")
    assert fake.bodies() == [b"x"]


async def test_a_connection_that_keeps_breaking_is_an_unknown_outcome(fake: Any):
    fake.on_send(lambda command, connection: connection.abort("on purpose"))
    async with client.Producer(fake.address) as producer:
        with pytest.raises(client.SendError) as caught:
            await producer.send("T", b"x")
    assert caught.value.outcome is client.Outcome.UNKNOWN


async def test_a_keyed_message_is_tried_again_on_its_own_queue_only(fakes: Any):
    one, two = await fakes(2)
    for peer in (one, two):
        peer.on_send(refusing(14, 2, peer.store))
    async with client.Producer(one.address) as producer:
        receipt = await producer.send("T", b"x", sharding_key="k")
        other = await producer.send("T", b"y", sharding_key="k")
    assert receipt.queue == other.queue
    assert {len(peer.bodies()) for peer in (one, two)} == {0, 2}


async def test_order_survives_retries_while_more_messages_come(fake: Any):
    fake.on_send(refusing(14, 2, fake.store))
    async with client.Producer(fake.address, max_batch_messages=3) as producer:
        queue = client.MessageQueue("T", "fake-0", 1)
        await asyncio.gather(
            *(producer.send("T", b"%d" % number, queue=queue) for number in range(20))
        )
    assert fake.bodies(1) == [b"%d" % number for number in range(20)]


async def test_one_batch_per_queue_is_in_flight(fake: Any):
    held: list[Any] = []

    def hold(command: Any, connection: Any) -> None:
        held.append((command, connection))

    fake.on_send(hold)
    async with client.Producer(fake.address) as producer:
        queue = client.MessageQueue("T", "fake-0", 1)
        futures = [producer.send_nowait("T", b"1", queue=queue)]
        await until(lambda: held)
        futures += [producer.send_nowait("T", b"%d" % n, queue=queue) for n in range(2, 5)]
        free = producer.send_nowait("T", b"free")
        await until(lambda: len(held) == 2)
        fake.on_send(fake.store)
        for command, connection in held:
            connection.send(fake.store(command, connection))
        await asyncio.gather(*futures, free)
    ordered = [bodies for number, bodies in fake.sent if b"free" not in bodies]
    assert ordered == [[b"1"], [b"2", b"3", b"4"]]


async def test_messages_behind_a_stuck_batch_fail_at_their_own_deadline(fake: Any):
    fake.on_send(lambda command, connection: None)
    async with client.Producer(fake.address, timeout=30.0) as producer:
        queue = client.MessageQueue("T", "fake-0", 1)
        stuck = producer.send_nowait("T", b"1", queue=queue)
        await until(lambda: any(command.code in SENDS for command in fake.seen))
        with pytest.raises(client.SendError) as caught:
            await producer.send("T", b"2", queue=queue, timeout=0.1)
        assert caught.value.outcome is client.Outcome.NOT_SENT
        stuck.cancel()
        await producer.close(timeout=0.1)


async def test_the_buffer_is_bounded_by_messages_and_by_bytes(fake: Any):
    fake.on_send(lambda command, connection: None)
    async with client.Producer(fake.address, max_in_flight=3, timeout=1.0) as producer:
        futures = [producer.send_nowait("T", b"x") for _ in range(3)]
        with pytest.raises(client.BufferFull, match="3 messages"):
            producer.send_nowait("T", b"x")
        with pytest.raises(client.BufferFull, match="left no room"):
            await producer.send("T", b"x", timeout=0.05)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(outcome, client.SendError) for outcome in outcomes)
        fake.on_send(fake.store)
        await producer.send("T", b"room again")
    async with client.Producer(fake.address, max_in_flight_bytes=1000) as producer:
        producer.send_nowait("T", b"x" * 900)
        with pytest.raises(client.BufferFull):
            producer.send_nowait("T", b"x" * 900)


async def test_sends_wait_for_room_in_order(fake: Any):
    held: list[Any] = []
    fake.on_send(lambda command, connection: held.append((command, connection)))
    async with client.Producer(fake.address, max_in_flight=1) as producer:
        first = asyncio.create_task(producer.send("T", b"0"))
        await until(lambda: held)
        others = [asyncio.create_task(producer.send("T", b"%d" % n)) for n in range(1, 5)]
        cancelled = others.pop(1)
        await asyncio.sleep(0)
        cancelled.cancel()
        fake.on_send(fake.store)
        command, connection = held[0]
        connection.send(fake.store(command, connection))
        await asyncio.gather(first, *others)
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert producer.send_nowait("T", b"5") is not None
    assert fake.bodies() == [b"0", b"1", b"3", b"4", b"5"]


async def test_cancelling_while_the_route_is_looked_up_leaves_nothing_behind(fake: Any):
    held: list[Any] = []
    route = fake.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC]
    fake.on(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        answer=lambda command, connection: held.append((command, connection)),
    )
    async with client.Producer(fake.address, max_in_flight=1) as producer:
        task = asyncio.create_task(producer.send("T", b"first"))
        await until(lambda: held)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fake.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, answer=route)
        command, connection = held[0]
        connection.send(route(command, connection))
        await producer.send("T", b"second")
    assert fake.bodies() == [b"first", b"second"]


async def test_closing_fails_unacknowledged_sends(fake: Any):
    fake.on_send(lambda command, connection: None)
    producer = client.Producer(fake.address, timeout=60.0)
    await producer.start()
    queue = client.MessageQueue("T", "fake-0", 1)
    written = producer.send_nowait("T", b"1", queue=queue)
    await until(lambda: any(command.code in SENDS for command in fake.seen))
    waiting = producer.send_nowait("T", b"2", queue=queue)
    await producer.close(timeout=0.05)
    with pytest.raises(client.SendError) as one:
        await written
    with pytest.raises(client.SendError) as two:
        await waiting
    assert one.value.outcome is client.Outcome.UNKNOWN
    assert two.value.outcome is client.Outcome.NOT_SENT


async def test_closing_fails_sends_that_are_being_retried(fake: Any):
    fake.on_send(refusing(ResponseCode.SYSTEM_BUSY, 10**6, fake.store))
    producer = client.Producer(fake.address, timeout=60.0)
    await producer.start()
    send = producer.send_nowait("T", b"x")
    await until(lambda: sum(command.code in SENDS for command in fake.seen) >= 2)
    await producer.close(timeout=0.05)
    with pytest.raises(client.SendError, match="SYSTEM_BUSY"):
        await send


class FaultyLater(ClientContext):
    """A context whose connections fail with an internal error, from the second one on."""

    made = 0

    async def connect(self, address: str, timeout: float) -> Connection:
        connection = await super().connect(address, timeout)
        self.made += 1
        if self.made == 1:
            return connection
        return cast(Connection, FaultyConnection(connection, b"x"))


async def test_a_fault_while_trying_again_settles_the_message(fake: Any):
    async with producing(FaultyLater(fake.address, {})) as producer:
        fake.on_send(refusing(14, 1, fake.store))
        with pytest.raises(client.SendError) as caught:
            await producer.send("T", b"x")
    assert caught.value.outcome is client.Outcome.UNKNOWN
    assert fake.bodies() == []


async def test_an_answer_that_cannot_be_read_is_an_unknown_outcome(fake: Any):
    fake.on_send(lambda command, connection: command.reply())
    async with client.Producer(fake.address) as producer:
        with pytest.raises(client.SendError) as caught:
            await producer.send("T", b"x")
    assert caught.value.outcome is client.Outcome.UNKNOWN


async def test_send_many_reports_each_failure_at_its_index(fake: Any):
    fake.on_send(refusing(13, 1, fake.store))
    messages = [client.Message("T", b"%d" % number) for number in range(4)]
    async with client.Producer(fake.address, max_batch_messages=1) as producer:
        results = await producer.send_many(messages)
    [failed] = [result for result in results if isinstance(result, client.SendError)]
    assert isinstance(failed, client.MessageIllegal)
    assert sum(isinstance(result, client.Receipt) for result in results) == 3


@pytest.mark.parametrize("ordered", [False, True])
async def test_of_messages_that_are_collected_only_the_illegal_one_fails(
    fake: Any, ordered: bool
) -> None:
    def refuse_large(command: Any, connection: Any) -> Any:
        if len(command.body) > 500:
            return command.reply(13)
        return fake.store(command, connection)

    fake.on_send(refuse_large)
    bodies = [b"%d" % number for number in range(40)]
    bodies[13] = b"x" * 600
    queue = client.MessageQueue("T", "fake-0", 1)
    async with client.Producer(fake.address) as producer:
        futures = [
            producer.send_nowait("T", body, queue=queue if ordered else None) for body in bodies
        ]
        await producer.flush()
        later = await producer.send("T", b"later", queue=queue)
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(results.pop(13), client.MessageIllegal)
    assert all(isinstance(result, client.Receipt) for result in results)
    stored = [*bodies[:13], *bodies[14:], b"later"]
    assert sorted(fake.bodies()) == sorted(stored)
    if ordered:
        assert fake.bodies(1) == stored
        assert later.offset == len(stored) - 1


async def test_a_batch_that_is_refused_fails_as_a_whole(fake: Any):
    fake.on_send(refusing(13, 1, fake.store))
    async with client.Producer(fake.address) as producer:
        with pytest.raises(client.MessageIllegal):
            await producer.send_batch([client.Message("T", b"1"), client.Message("T", b"2")])


async def test_a_broker_that_comes_back_is_found_within_the_sends_time(cluster: Any):
    async with client.Producer(cluster.nameserver, timeout=30.0) as producer:
        await producer.send("T", b"before")
        await cluster.stop()
        sending = asyncio.create_task(producer.send("T", b"during"))
        await asyncio.sleep(0.2)
        await cluster.start()
        await sending


async def test_sending_continues_while_the_name_server_is_away(cluster: Any):
    async with client.Producer(cluster.nameserver, route_refresh_period=0.05) as producer:
        await producer.send("T", b"before")
        await cluster.name_server.stop()
        await asyncio.sleep(0.2)
        await producer.send("T", b"during")


async def test_the_second_name_server_is_asked_when_the_first_is_dead(cluster: Any):
    addresses = f"127.0.0.1:{free_port()};{cluster.nameserver}"
    for _ in range(4):
        async with client.Producer(addresses) as producer:
            await producer.send("T", b"x")


async def test_a_silent_connection_is_detected_and_replaced(fake: Any):
    async with producing(ClientContext(fake.address, {}, heartbeat_timeout=0.1)) as producer:
        await producer.send("T", b"1")
        silent = fake.seen[-1]
        first = next(iter(fake.server.connections))
        fake.on_send(lambda command, connection: None)
        fake.on(RequestCode.HEART_BEAT, answer=lambda command, connection: None)
        with pytest.raises(client.SendError):
            await producer.send("T", b"2", timeout=0.2)
        await until(lambda: first.closed)
        fake.on_send(fake.store)
        fake.on(RequestCode.HEART_BEAT, answer=lambda command, connection: command.reply())
        await producer.send("T", b"3")
    assert silent is not None
    assert fake.bodies() == [b"1", b"3"]


async def test_a_silent_name_server_delays_only_the_first_request_of_a_client(fakes: Any):
    """Its process is stopped, or a firewall drops its packets."""
    silent, good = await fakes(2)
    silent.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, answer=lambda command, connection: None)
    good.brokers = [good]
    both = f"{silent.address};{good.address}"

    async def use() -> None:
        async with client.Producer(both, retries=0) as producer:
            await producer.send("T", b"x")
            asked = silent.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            await producer.send("U", b"x")
            assert silent.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == asked

    # Each producer begins with a name server that it chooses at random.
    for _ in range(12):
        await use()
    assert silent.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) > 0
    assert len(good.bodies()) == 24


@pytest.mark.parametrize(("queue_id", "offset"), [(-1, 0), (65_536, 0), (0, -1)])
async def test_an_acknowledgement_with_a_place_that_cannot_be_is_an_error(
    fake: Any, queue_id: int, offset: int
):
    def answer(command: Command, _: Connection) -> Command:
        header = SendMessageResponseHeader(msg_id="0", queue_id=queue_id, queue_offset=offset)
        return command.reply(header=header)

    fake.on_send(answer)
    async with client.Producer(fake.address) as producer:
        with pytest.raises(
            client.SendError, match=f"queue {queue_id} and offset {offset}"
        ) as error:
            await producer.send("T", b"x")
    assert error.value.outcome is client.Outcome.UNKNOWN


async def test_a_call_whose_time_is_up_names_no_negative_time(fake: Any):
    context = ClientContext(fake.address, {})
    await context.start()
    try:
        with pytest.raises(ConnectFailed, match="before the time was up"):
            await context.connect(fake.address, -1.2)
    finally:
        await context.close()
