"""What clients and tools ask about routes, and how they change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nameserver.kv import ORDER_TOPIC_NAMESPACE
from nameserver.route_events import Broker, Queues, Route
from nameserver.state import Peer, State
from nameserver.watches import WatchLimitError
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)

V4_9_4: Final = 401
"""The first release whose clients read routes in standard JSON without asking for it."""

UNIT_FLAG: Final = 1
UNIT_SUB_FLAG: Final = 2


def get_route(state: State, request: Command, _: Peer) -> Command:
    """GET_ROUTEINFO_BY_TOPIC, in the JSON dialect that the client reads."""
    header = request.read(GetRouteInfoRequestHeader)
    route = state.routes.route(header.topic)
    if route is None:
        return request.reply(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {header.topic}\n"
            "No broker has registered it: create it, or check that its brokers run.",
        )
    body = _route_body(route)
    if state.config.order_message_enable:
        body.order_topic_conf = state.kv.get(ORDER_TOPIC_NAMESPACE, header.topic)
    standard = request.version >= V4_9_4 or bool(header.accept_standard_json_only)
    return request.reply(body=encode(body, standard=standard))


def get_cluster_info(state: State, request: Command, _: Peer) -> Command:
    """GET_BROKER_CLUSTER_INFO: all brokers, by name and by cluster."""
    brokers = {name: _broker_data(broker) for name, broker in state.routes.brokers().items()}
    return request.reply(body=encode(ClusterInfo(brokers, state.routes.clusters())))


def get_all_topics(state: State, request: Command, _: Peer) -> Command:
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    return request.reply(body=encode(TopicList(state.routes.topics())))


def get_topics_of_cluster(state: State, request: Command, _: Peer) -> Command:
    """GET_TOPICS_BY_CLUSTER."""
    cluster = request.read(GetTopicsByClusterRequestHeader).cluster
    return request.reply(body=encode(TopicList(state.routes.topics_of_cluster(cluster))))


def get_system_topics(state: State, request: Command, _: Peer) -> Command:
    """GET_SYSTEM_TOPIC_LIST_FROM_NS: the names of clusters and brokers, which are topics too."""
    clusters = state.routes.clusters()
    names = [name for cluster, brokers in clusters.items() for name in (cluster, *brokers)]
    broker = next(iter(state.routes.brokers().values()), None)
    address = next(iter(broker.addresses.values())) if broker is not None else None
    return request.reply(body=encode(TopicList(names, address)))


def get_unit_topics(state: State, request: Command, _: Peer) -> Command:
    """GET_UNIT_TOPIC_LIST."""
    return _topics_where(state, request, lambda flag: flag & UNIT_FLAG != 0)


def get_unit_sub_topics(state: State, request: Command, _: Peer) -> Command:
    """GET_HAS_UNIT_SUB_TOPIC_LIST."""
    return _topics_where(state, request, lambda flag: flag & UNIT_SUB_FLAG != 0)


def get_unit_sub_ununit_topics(state: State, request: Command, _: Peer) -> Command:
    """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST."""
    return _topics_where(
        state, request, lambda flag: flag & (UNIT_FLAG | UNIT_SUB_FLAG) == UNIT_SUB_FLAG
    )


def delete_topic(state: State, request: Command, _: Peer) -> Command:
    """DELETE_TOPIC_IN_NAMESRV: forget a topic's route until a broker registers it again."""
    header = request.read(DeleteTopicFromNamesrvRequestHeader)
    state.apply(
        state.routes.delete_topic(header.topic, header.cluster_name or None), "topic deleted"
    )
    return request.reply()


def wipe_write_permission(state: State, request: Command, _: Peer) -> Command:
    """WIPE_WRITE_PERM_OF_BROKER: clients send no more to a broker that is to be stopped."""
    name = request.read(WipeWritePermOfBrokerRequestHeader).broker_name
    count, change = state.routes.wipe_write_permission(name)
    state.apply(change, "write permission wiped")
    return request.reply(header=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))


def add_write_permission(state: State, request: Command, _: Peer) -> Command:
    """ADD_WRITE_PERM_OF_BROKER: and here they send again."""
    name = request.read(AddWritePermOfBrokerRequestHeader).broker_name
    count, change = state.routes.add_write_permission(name)
    state.apply(change, "write permission added")
    return request.reply(header=AddWritePermOfBrokerResponseHeader(add_topic_count=count))


def subscribe_route(state: State, request: Command, peer: Peer) -> Command:
    """SUBSCRIBE_ROUTE (ours): tell this client when the route of one of these topics changes."""
    topics = decode(TopicList, request.body).topic_list
    try:
        state.watches.set(peer, topics)
    except WatchLimitError as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    return request.reply()


def _topics_where(state: State, request: Command, condition: Callable[[int], bool]) -> Command:
    return request.reply(body=encode(TopicList(state.routes.topics_where(condition))))


def _route_body(route: Route) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=[_queue_data(name, queues) for name, queues in route.queues.items()],
        broker_datas=[_broker_data(broker) for broker in route.brokers],
        filter_server_table={a: list(servers) for a, servers in route.filter_servers.items()},
    )


def _queue_data(broker_name: str, queues: Queues) -> QueueData:
    return QueueData(broker_name, queues.read, queues.write, queues.perm, queues.sys_flag)


def _broker_data(broker: Broker) -> BrokerData:
    return BrokerData(
        broker.cluster, broker.name, dict(broker.addresses), broker.enable_acting_master
    )
