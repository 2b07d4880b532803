"""How a client interprets a route."""

from __future__ import annotations

from client.limits import FALLBACK_ROUTE_PERIOD, MAX_ROUTES
from client.network.routes import Route, RouteTable, fallback_route, route_of
from remoting.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from remoting.protocol.queue import MessageQueue


def data(
    *queues: tuple[str, int, int, int], slaves_only: tuple[str, ...] = (), order: str | None = None
) -> TopicRouteData:
    return TopicRouteData(
        order_topic_conf=order,
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)
            for name, read, write, perm in queues
        ],
        broker_datas=[
            BrokerData(
                cluster="c",
                broker_name=name,
                broker_addrs={1: f"{name}-1:1"}
                if name in slaves_only
                else {0: f"{name}:1", 1: f"{name}-1:1"},
            )
            for name, *_ in queues
        ],
    )


def names(queues: tuple[MessageQueue, ...]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


def test_producers_use_writable_queues_of_brokers_with_a_master_sorted_by_broker():
    route = route_of("T", data(("b", 2, 2, 6), ("a", 3, 1, 6), ("c", 4, 4, 4), ("d", 1, 1, 2)))
    assert names(route.writable) == ["a0", "b0", "b1", "d0"]
    assert names(route.readable) == ["a0", "a1", "a2", "b0", "b1", "c0", "c1", "c2", "c3"]


def test_a_broker_without_master_is_read_and_not_written():
    route = route_of("T", data(("a", 1, 1, 6), slaves_only=("a",)))
    assert route.writable == ()
    assert names(route.readable) == ["a0"]
    assert route.master("a") is None
    assert route.address("a") == "a-1:1"


def test_an_order_configuration_gives_its_queues_in_its_order():
    route = route_of("T", data(("a", 4, 4, 6), ("b", 4, 4, 6), order="b:2;a:1"))
    assert names(route.writable) == ["b0", "b1", "a0"]


def test_an_unreadable_order_configuration_counts_as_none():
    route = route_of("T", data(("a", 1, 1, 6), order="nonsense;:"))
    assert names(route.writable) == ["a0"]


def test_reading_prefers_the_suggested_broker_then_the_master():
    route = route_of("T", data(("a", 1, 1, 6)))
    assert route.address("a", 1) == "a-1:1"
    assert route.address("a", 7) == "a:1"
    assert route.address("nobody") is None


def test_a_new_topic_gets_at_most_the_queues_the_producer_wants():
    route = fallback_route("New", data(("a", 8, 8, 7), ("b", 2, 2, 7)), 4)
    assert names(route.writable) == ["a0", "a1", "a2", "a3", "b0", "b1"]
    assert {queue.topic for queue in route.writable} == {"New"}
    assert route.fallback
    assert route.readable == ()


def test_absurd_queue_numbers_do_not_fill_memory():
    assert len(route_of("T", data(("a", 2**31 - 1, 2**31 - 1, 6))).writable) == 65_536


def route(topic: str, *, fallback: bool = False) -> Route:
    return Route(topic, (), (), {"a": {0: "a:1"}}, {}, fallback)


def test_routes_are_due_after_their_period_and_new_topics_sooner():
    table = RouteTable(30.0)
    table.put(route("T"), now=100.0)
    assert table.due(129.9) == []
    assert table.due(130.0) == ["T"]
    assert table.next_due(110.0) == 20.0
    table.put(route("New", fallback=True), now=100.0)
    assert table.due(100.0 + FALLBACK_ROUTE_PERIOD) == ["New"]


def test_a_failed_refresh_keeps_the_route_and_waits_a_period():
    table = RouteTable(30.0)
    table.put(route("T"), now=0.0)
    table.asked("T", now=40.0)
    assert table.get("T") is not None
    assert table.due(69.0) == []
    assert table.age("T", 45.0) == 5.0


def test_an_unknown_topic_has_no_route_and_infinite_age():
    table = RouteTable()
    assert table.get("T") is None
    assert table.age("T", 1.0) == float("inf")
    table.put(route("T"), now=0.0)
    table.forget("T")
    assert list(table.routes()) == []


def test_the_table_is_bounded():
    table = RouteTable()
    for number in range(MAX_ROUTES + 5):
        table.put(route(str(number)), now=0.0)
    assert len(list(table.topics())) == MAX_ROUTES
    assert table.get("0") is None


def test_brokers_of_all_routes_are_merged():
    table = RouteTable()
    table.put(Route("A", (), (), {"a": {0: "a:1"}}), now=0.0)
    table.put(Route("B", (), (), {"a": {1: "s:1"}, "b": {0: "b:1"}}), now=0.0)
    assert table.brokers() == {"a": {0: "a:1", 1: "s:1"}, "b": {0: "b:1"}}
