"""Messages sent arrive, in order if requested, or fail with a helpful error."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from remoting.protocol.codes import ResponseCode
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import BrokerError, ConnectorError, UnknownTopicError
from spark_connector.limits import MAX_IN_FLIGHT_REQUESTS
from spark_connector.requests import Calls, NameServerCalls
from spark_connector.sink.dispatcher import ParcelDispatcher
from spark_connector.sink.encoder import Parcel
from spark_connector.sink.options import SinkOptions, sink_options
from spark_connector.sink.routes import WriteRoutes
from tests.unit.spark_connector.sink.brokers import DOWN, NAME_SERVER, SILENT, World


def options(**more: str) -> SinkOptions:
    return sink_options({"nameServer": NAME_SERVER, "topic": "flights", **more})


def dispatcher(world: World, **more: str) -> ParcelDispatcher:
    chosen = options(**more)
    times: Any = {"clock": world.clock, "sleep": world.sleep}
    calls = Calls(chosen.connection, lease=world.lease, sleep=world.sleep)
    routes = WriteRoutes(NameServerCalls(calls), chosen.default_queues, clock=world.clock)
    return ParcelDispatcher(chosen, routes, world.lease, now_ms=lambda: 1_000_000, **times)


def parcel(body: bytes, queue: int | None = None, broker: str = "a", **more: Any) -> Parcel:
    target = None if queue is None else MessageQueue("flights", broker, queue)
    return Parcel("flights", target, body, 1, 0, **more)


def run(made: ParcelDispatcher, *parcels: Parcel) -> None:
    for each in parcels:
        made.send(each)
    made.flush()
    made.close()


def bodies(world: World) -> list[bytes]:
    return [body for _, _, body in world.stored]


def test_several_requests_are_in_flight_and_take_turns_over_the_queues() -> None:
    world = World("a", "b")
    made = dispatcher(world)
    run(made, *(parcel(b"%d" % number) for number in range(8)))
    assert sorted(bodies(world)) == [b"%d" % number for number in range(8)]
    assert world.most_in_flight > 1
    assert len({(address, queue) for address, queue, _ in world.stored}) == 4
    assert made.counts.messages == made.counts.requests == 8


def test_no_more_is_in_flight_than_the_limit() -> None:
    world = World()
    run(dispatcher(world), *(parcel(b"x") for _ in range(3 * MAX_IN_FLIGHT_REQUESTS)))
    assert world.most_in_flight == MAX_IN_FLIGHT_REQUESTS


def test_an_ordered_queue_has_one_request_in_flight() -> None:
    world = World()
    world.outcomes["a:10911"].extend([0, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY, DOWN])
    run(dispatcher(world), *(parcel(b"%d" % number, queue=1) for number in range(5)))
    assert bodies(world) == [b"0", b"1", b"2", b"3", b"4"]
    assert world.most_in_flight == 1


def test_a_busy_broker_gets_growing_pauses_and_costs_no_attempt() -> None:
    world = World()
    world.outcomes["a:10911"].extend([ResponseCode.SYSTEM_BUSY] * 6)
    made = dispatcher(world, retries="1")
    run(made, parcel(b"x"))
    assert bodies(world) == [b"x"]
    assert made.counts.busy == 6
    assert len(world.slept) == 6
    assert world.slept[3] > world.slept[0]


def test_a_busy_broker_is_tried_again_at_the_time_it_named() -> None:
    world = World()
    world.wait_ms = 700
    world.outcomes["a:10911"].extend([ResponseCode.SYSTEM_BUSY] * 3)
    made = dispatcher(world, retries="1")
    run(made, parcel(b"x"), parcel(b"y"))
    assert sorted(bodies(world)) == [b"x", b"y"]
    assert made.counts.busy == 3
    assert 1001.3 < world.now < 1002.2, "refusals of the same moment wait together"


def test_a_broker_that_stays_busy_ends_at_the_deadline() -> None:
    world = World()
    world.outcomes["a:10911"].extend([ResponseCode.SYSTEM_BUSY] * 10_000)
    with pytest.raises(BrokerError, match=r"1 message for queue \d of topic flights at broker a "):
        run(dispatcher(world, sendTimeoutMs="20s"), parcel(b"x"))
    assert 1019 < world.now < 1022


def test_a_slow_disk_counts_as_stored_and_gets_a_pause() -> None:
    world = World()
    world.outcomes["a:10911"].append(ResponseCode.FLUSH_DISK_TIMEOUT)
    made = dispatcher(world)
    run(made, parcel(b"x"))
    assert bodies(world) == [b"x"]
    assert made.counts.unconfirmed == 1
    assert world.slept


@pytest.mark.parametrize("outcome", [DOWN, SILENT, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_a_request_that_fails_at_one_broker_is_stored_by_another_at_once(
    outcome: int | str,
) -> None:
    world = World("a", "b")
    for script in world.outcomes.values():
        script.append(outcome)
    made = dispatcher(world)
    run(made, parcel(b"x"))
    assert bodies(world) == [b"x"]
    assert made.counts.retries >= 1
    assert len(world.slept) <= 1


def test_all_requests_of_a_lost_connection_are_sent_again() -> None:
    world = World()
    world.outcomes["a:10911"].extend([0, DOWN])
    run(dispatcher(world), *(parcel(b"%d" % number) for number in range(6)))
    assert set(bodies(world)) == {b"%d" % number for number in range(6)}
    assert world.closed_after_error == 1


def test_a_connection_closed_while_idle_is_reopened_without_an_attempt() -> None:
    world = World()
    made = dispatcher(world, retries="0")
    made.send(parcel(b"before"))
    made.flush()
    world.lives += 1
    run(made, parcel(b"after"))
    assert bodies(world) == [b"before", b"after"]
    assert (made.counts.retries, world.slept) == (0, [])


def test_a_broker_that_comes_back_in_time_costs_no_attempt() -> None:
    world = World()
    world.unreachable.add("a:10911")

    def come_back() -> None:
        if len(world.slept) > 10:
            world.unreachable.clear()

    world.on_sleep = come_back
    run(dispatcher(world, retries="0"), parcel(b"x"))
    assert bodies(world) == [b"x"]


def test_after_the_last_attempt_the_brokers_error_is_raised() -> None:
    world = World()
    world.outcomes["a:10911"].extend([ResponseCode.SERVICE_NOT_AVAILABLE] * 10)
    with pytest.raises(BrokerError) as caught:
        run(dispatcher(world, retries="2"), parcel(b"x"))
    words = str(caught.value)
    assert "not stored after 3 attempts" in words
    assert "SERVICE_NOT_AVAILABLE: as scripted" in words
    assert "a:10911" in words


def test_a_missing_answer_leaves_the_outcome_unknown() -> None:
    world = World()
    world.outcomes["a:10911"].extend([SILENT] * 10)
    with pytest.raises(BrokerError, match="may or may not have been stored after 2 attempts"):
        run(dispatcher(world, retries="1"), parcel(b"x"))


def test_a_final_refusal_is_not_retried() -> None:
    world = World()
    world.outcomes["a:10911"].append(ResponseCode.MESSAGE_ILLEGAL)
    with pytest.raises(BrokerError, match="MESSAGE_ILLEGAL: as scripted"):
        run(dispatcher(world), parcel(b"x"))
    assert not world.slept


def test_after_a_failure_no_connection_is_used_again() -> None:
    world = World("a", "b")
    made = dispatcher(world)
    for number in range(4):
        made.send(parcel(b"%d" % number))
    made.close(RuntimeError("the task failed"))
    assert world.closed_after_error == 2


def test_oneway_sends_wait_for_nothing_and_reconnect() -> None:
    world = World()
    world.outcomes["a:10911"].append(DOWN)
    run(dispatcher(world, sendMode="oneway"), parcel(b"x"), parcel(b"y", queue=1))
    assert bodies(world) == [b"x", b"y"]
    assert world.most_in_flight == 0


def test_a_request_has_the_fields_of_a_producers() -> None:
    world = World()
    run(dispatcher(world, producerGroup="etl"), parcel(b"b"), parcel(b"s", properties="a\x01b"))
    batched, single = world.headers
    assert (batched.batch, batched.properties, batched.producer_group) == (True, None, "etl")
    assert (single.batch, single.properties, single.bname) == (False, "a\x01b", "a")
    assert batched.born_timestamp == 1_000_000


def test_a_missing_topic_is_created_by_the_brokers() -> None:
    world = World()
    world.topics = {}
    run(dispatcher(world), *(parcel(b"%d" % number) for number in range(20)))
    assert {queue for _, queue, _ in world.stored} == {0, 1, 2, 3}


def test_a_topic_that_no_broker_creates_is_an_error_with_the_nearest_names() -> None:
    world = World()
    world.topics, world.template = {"fligths": 1, "other": 1}, False
    with pytest.raises(UnknownTopicError, match=r"flights to write to does not .*mean fligths"):
        run(dispatcher(world), parcel(b"x"))


def test_without_brokers_the_error_says_so() -> None:
    world = World()
    world.topics, world.template, world.brokers = {}, False, []
    with pytest.raises(BrokerError, match="knows no broker"):
        run(dispatcher(world), parcel(b"x"))


def test_a_name_server_that_is_down_is_retried_a_few_times() -> None:
    world = World()
    world.unreachable.add(NAME_SERVER)
    with pytest.raises(BrokerError, match=r"no name server answers: names:9876 .* for the route"):
        run(dispatcher(world), parcel(b"x"))
    assert len(world.slept) == 3


def test_instants_need_a_broker_that_has_timers() -> None:
    late: dict[str, Any] = {"properties": "t", "deliver_ms": 2_000_000}
    world = World()
    with pytest.raises(ConnectorError, match=r"row 0 .*broker a \(a:10911\) has no timers"):
        run(dispatcher(world), parcel(b"x", **late))
    run(dispatcher(world), parcel(b"past", properties="t", deliver_ms=5))
    world.version = 453
    run(dispatcher(world), parcel(b"late", **late))
    world.version, world.recalls = 407, True
    run(dispatcher(world), parcel(b"ours", **late))
    assert bodies(world) == [b"past", b"late", b"ours"]


def test_a_queue_whose_broker_has_left_the_route_is_waited_for() -> None:
    world = World("a")

    def come_back() -> None:
        if len(world.slept) > 5:
            world.brokers = ["a", "b"]
            world.outcomes["b:10911"] = deque()

    world.on_sleep = come_back
    run(dispatcher(world, retries="0"), parcel(b"x", queue=0, broker="b"))
    assert world.stored == [("b:10911", 0, b"x")]


def test_a_broker_that_closes_during_the_version_query_is_queried_again() -> None:
    world = World()
    world.version = 453
    world.lost_requests = 1
    run(dispatcher(world), parcel(b"late", properties="t", deliver_ms=2_000_000))
    assert bodies(world) == [b"late"]
