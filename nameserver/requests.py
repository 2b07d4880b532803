"""The request handlers of a name server, and their table by request code.

A handler is called with the state, the request and the connection. It returns the answer, or an
awaitable if something must be written to disk. Brokers register, send heartbeats and unregister;
clients and tools query routes and change them. cf. DefaultRequestProcessor; unlike that of 4.x,
unknown codes are answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from nameserver.config import (
    BROKER_TIMEOUT_MS,
    MAX_BROKER_TIMEOUT_MS,
    MAX_FILTER_SERVERS,
    MAX_NAME_LENGTH,
    MAX_QUEUES,
    LimitError,
)
from nameserver.kv import ORDER_TOPIC_NAMESPACE
from nameserver.routes import (
    EarlierMaster,
    Queues,
    Registered,
    RegisteredBroker,
    Registration,
)
from nameserver.state import SharedState, StateFileError
from remoting.connection import Connection
from remoting.protocol.bodies import decode, encode, properties_text
from remoting.protocol.bodies.registration import (
    RegisterBrokerBody,
    body_crc_matches,
    decode_registration,
)
from remoting.protocol.bodies.route import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from remoting.protocol.bodies.stats import KVTable, TopicList
from remoting.protocol.bodies.topic import DataVersion, TopicConfig
from remoting.protocol.codes import V4_9_4, RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import (
    AddWritePermOfBrokerResponseHeader,
    BrokerHeartbeatRequestHeader,
    BrokerNameRequestHeader,
    BrokerRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    KVKeyRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    TopicRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from remoting.protocol.own_codes import OwnRequestCode
from remoting.runtime.settings import ConfigError

_log = structlog.get_logger("nameserver")

_UNLIKELY: Final = frozenset("\0\r\n\t ")


def register_broker(state: SharedState, request: Command, peer: Connection) -> Command:
    """Handle REGISTER_BROKER: add a broker and its topics (cf. registerBrokerWithFilterServer)."""
    header = request.read(RegisterBrokerRequestHeader)
    if not body_crc_matches(request.body, header.body_crc32):
        return request.reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    problem = _name_problem(header.cluster_name, header.broker_name, header.broker_addr)
    if problem is not None or header.broker_id < 0:
        return request.reply(ResponseCode.SYSTEM_ERROR, problem or "a broker's id is 0 or more")
    body = RegisterBrokerBody()
    if request.body:
        body = decode_registration(
            request.body, compressed=bool(header.compressed), version=request.version
        )
    try:
        done = state.routes.register(_registration(header, body, peer), state.now_ms)
    except LimitError as error:
        _log.error("registration refused", broker=header.broker_name, why=str(error))
        raise
    except EarlierMaster as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    _log_registered(header, done, peer)
    state.apply(done.change, "it registered")
    reply = RegisterBrokerResponseHeader(
        ha_server_addr=done.ha_address, master_addr=done.master_address
    )
    order_topics = state.kv.entries(ORDER_TOPIC_NAMESPACE)
    if not order_topics or not state.config.return_order_topic_config_to_broker:
        return request.reply(header=reply)
    return request.reply(header=reply, body=encode(KVTable(table=dict(order_topics))))


def unregister_broker(state: SharedState, request: Command, peer: Connection) -> Command:
    """Handle UNREGISTER_BROKER: remove a broker that stops cleanly."""
    header = request.read(BrokerRequestHeader)
    change = state.routes.unregister(header.broker_name, header.broker_id, header.broker_addr)
    state.apply(change, f"it unregistered from {peer.remote_text}", expected=True)
    return request.reply()


def query_data_version(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle QUERY_DATA_VERSION: return whether the broker's topics have another version."""
    header = request.read(BrokerRequestHeader)
    version = decode(DataVersion, request.body) if request.body else DataVersion()
    changed, current = state.routes.compare_version(header.broker_addr, version, state.now_ms)
    return request.reply(
        header=QueryDataVersionResponseHeader(changed=changed),
        body=encode(current) if current is not None else b"",
    )


def broker_heartbeat(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle BROKER_HEARTBEAT, which 5.x brokers send between registrations."""
    header = request.read(BrokerHeartbeatRequestHeader)
    timeout_ms = _timeout_ms(header.heartbeat_timeout_mills)
    state.routes.heartbeat(header.broker_addr, state.now_ms, timeout_ms=timeout_ms)
    return request.reply()


def get_broker_member_group(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_BROKER_MEMBER_GROUP (5.x): return the addresses of one broker name."""
    header = request.read(GetBrokerMemberGroupRequestHeader)
    broker = state.routes.brokers().get(header.broker_name)
    addresses = dict(broker.addresses) if broker and broker.cluster == header.cluster_name else {}
    group = BrokerMemberGroup(header.cluster_name, header.broker_name, addresses)
    return request.reply(body=encode(GetBrokerMemberGroupResponseBody(group)))


def register_topic(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle REGISTER_TOPIC_IN_NAMESRV (5.x): set the queues of a topic at registered brokers."""
    topic = request.read(TopicRequestHeader).topic
    problem = _name_problem(topic)
    if problem is not None:
        return request.reply(ResponseCode.SYSTEM_ERROR, problem)
    route = decode(TopicRouteData, request.body)
    queues = {
        data.broker_name: _queues(
            data.read_queue_nums, data.write_queue_nums, data.perm, data.topic_sys_flag
        )
        for data in route.queue_datas
    }
    state.apply(state.routes.set_queues(topic, queues), "its topic was registered")
    return request.reply()


def _registration(
    header: RegisterBrokerRequestHeader, body: RegisterBrokerBody, peer: Connection
) -> Registration:
    wrapper = body.topic_config_serialize_wrapper
    return Registration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_addr,
        ha_address=header.ha_server_addr[:MAX_NAME_LENGTH],
        version=wrapper.data_version,
        topics=_topics(wrapper.topic_config_table, header.broker_name),
        filter_servers=tuple(
            server[:MAX_NAME_LENGTH] for server in body.filter_server_list[:MAX_FILTER_SERVERS]
        ),
        timeout_ms=_timeout_ms(header.heartbeat_timeout_millis) or BROKER_TIMEOUT_MS,
        enable_acting_master=header.enable_acting_master,
        connection=peer,
    )


def _topics(table: dict[str, TopicConfig], broker_name: str) -> dict[str, Queues]:
    topics = {
        name: _queues(
            topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
        )
        for name, topic in table.items()
        if _name_problem(name) is None
    }
    if len(topics) < len(table):
        _log.warning(
            "topics with invalid names ignored",
            broker=broker_name,
            count=len(table) - len(topics),
        )
    return topics


def _queues(read: int, write: int, perm: int, sys_flag: int) -> Queues:
    return Queues(min(max(read, 0), MAX_QUEUES), min(max(write, 0), MAX_QUEUES), perm, sys_flag)


def _timeout_ms(asked: int | None) -> int | None:
    return min(asked, MAX_BROKER_TIMEOUT_MS) if asked is not None and asked > 0 else None


def _name_problem(*names: str) -> str | None:
    for name in names:
        if not name or len(name) > MAX_NAME_LENGTH or not _UNLIKELY.isdisjoint(name):
            return (
                f"{name[:40]!r} can't be a name or an address: use 1 to {MAX_NAME_LENGTH} "
                "characters without white space"
            )
    return None


def _log_registered(
    header: RegisterBrokerRequestHeader, done: Registered, peer: Connection
) -> None:
    if done.is_new:
        _log.info(
            "broker registered",
            broker=header.broker_name,
            id=header.broker_id,
            address=header.broker_addr,
            cluster=header.cluster_name,
            peer=peer.remote_text,
        )
    if done.replaced_address is not None:
        _log.warning(
            "another address took over a broker's name; give every broker a name of its own "
            "unless it moved",
            broker=header.broker_name,
            id=header.broker_id,
            address=header.broker_addr,
            former_address=done.replaced_address,
        )


UNIT_FLAG: Final = 1
UNIT_SUB_FLAG: Final = 2


def get_route(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_ROUTEINFO_BY_TOPIC; the answer is in the JSON dialect that the client parses."""
    header = request.read(GetRouteInfoRequestHeader)
    route = state.routes.route(header.topic)
    if route is None:
        return request.reply(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {header.topic}\n"
            "No broker has registered it: create it, or check that its brokers run.",
        )
    body = TopicRouteData(
        queue_datas=[
            (QueueData(name, queues.read, queues.write, queues.perm, queues.sys_flag))
            for name, queues in route.queues.items()
        ],
        broker_datas=[_broker_data(broker) for broker in route.brokers],
        filter_server_table={a: list(servers) for a, servers in route.filter_servers.items()},
    )
    if state.config.order_message_enable:
        body.order_topic_conf = state.kv.get(ORDER_TOPIC_NAMESPACE, header.topic)
    standard = request.version >= V4_9_4 or bool(header.accept_standard_json_only)
    return request.reply(body=encode(body, standard=standard))


def get_cluster_info(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_BROKER_CLUSTER_INFO: return all brokers, by name and by cluster."""
    brokers = {name: _broker_data(broker) for name, broker in state.routes.brokers().items()}
    return request.reply(body=encode(ClusterInfo(brokers, state.routes.clusters())))


def get_all_topics(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    return request.reply(body=encode(TopicList(state.routes.topics())))


def get_topics_of_cluster(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_TOPICS_BY_CLUSTER."""
    cluster = request.read(GetTopicsByClusterRequestHeader).cluster
    return request.reply(body=encode(TopicList(state.routes.topics_of_cluster(cluster))))


def get_system_topics(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_SYSTEM_TOPIC_LIST_FROM_NS: return the names of clusters and brokers.

    Each is also the name of a topic.
    """
    clusters = state.routes.clusters()
    names = [name for cluster, brokers in clusters.items() for name in (cluster, *brokers)]
    broker = next(iter(state.routes.brokers().values()), None)
    address = next(iter(broker.addresses.values())) if broker is not None else None
    return request.reply(body=encode(TopicList(names, address)))


def get_unit_topics(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_UNIT_TOPIC_LIST."""
    return _topics_where(state, request, lambda flag: flag & UNIT_FLAG != 0)


def get_unit_sub_topics(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_HAS_UNIT_SUB_TOPIC_LIST."""
    return _topics_where(state, request, lambda flag: flag & UNIT_SUB_FLAG != 0)


def get_unit_sub_ununit_topics(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST."""
    return _topics_where(
        state, request, lambda flag: flag & (UNIT_FLAG | UNIT_SUB_FLAG) == UNIT_SUB_FLAG
    )


def delete_topic(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle DELETE_TOPIC_IN_NAMESRV: delete a topic's route until a broker registers it again."""
    header = request.read(DeleteTopicFromNamesrvRequestHeader)
    state.apply(
        state.routes.delete_topic(header.topic, header.cluster_name or None), "topic deleted"
    )
    return request.reply()


def wipe_write_permission(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle WIPE_WRITE_PERM_OF_BROKER: stop sends to a broker, such as before it is stopped."""
    name = request.read(BrokerNameRequestHeader).broker_name
    count, change = state.routes.wipe_write_permission(name)
    state.apply(change, "write permission wiped")
    return request.reply(header=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))


def add_write_permission(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle ADD_WRITE_PERM_OF_BROKER: allow sends to a broker again."""
    name = request.read(BrokerNameRequestHeader).broker_name
    count, change = state.routes.add_write_permission(name)
    state.apply(change, "write permission added")
    return request.reply(header=AddWritePermOfBrokerResponseHeader(add_topic_count=count))


def subscribe_route(state: SharedState, request: Command, peer: Connection) -> Command:
    """Handle SUBSCRIBE_ROUTE (PocketMQ's own): notify this client of route changes of topics."""
    state.watches.set(peer, decode(TopicList, request.body).topic_list)
    return request.reply()


def _topics_where(
    state: SharedState, request: Command, condition: Callable[[int], bool]
) -> Command:
    return request.reply(body=encode(TopicList(state.routes.topics_where(condition))))


def _broker_data(broker: RegisteredBroker) -> BrokerData:
    return BrokerData(
        broker.cluster, broker.name, dict(broker.addresses), broker.enable_acting_master
    )


Answer = Command | Awaitable[Command]

BLACK_LIST: Final = frozenset(
    {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
    | {"aclEnable", "pocketmqAclFile", "pocketmqAuditLog"}
)
"""Settings that no request may change: paths, and what protects the server; and all of TLS."""


async def put_kv(state: SharedState, request: Command, peer: Connection) -> Command:
    """Handle PUT_KV_CONFIG; answered when the entry is on disk."""
    header = request.read(PutKVConfigRequestHeader)
    return await _change_kv(state, request, peer, (header.namespace, header.key, header.value))


async def delete_kv(state: SharedState, request: Command, peer: Connection) -> Command:
    """Handle DELETE_KV_CONFIG; succeeds even if the entry doesn't exist."""
    header = request.read(KVKeyRequestHeader)
    return await _change_kv(state, request, peer, (header.namespace, header.key, None))


def get_kv(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_KV_CONFIG."""
    header = request.read(KVKeyRequestHeader)
    value = state.kv.get(header.namespace, header.key)
    if value is None:
        return request.reply(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace} Key: {header.key}",
        )
    return request.reply(header=GetKVConfigResponseHeader(value=value))


def get_kv_list(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_KVLIST_BY_NAMESPACE."""
    namespace = request.read(GetKVListByNamespaceRequestHeader).namespace
    entries = state.kv.entries(namespace)
    if not entries:
        return request.reply(
            ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
        )
    return request.reply(body=encode(KVTable(table=dict(entries))))


async def update_config(state: SharedState, request: Command, peer: Connection) -> Command:
    """Handle UPDATE_NAMESRV_CONFIG: change settings; unknown ones are ignored."""
    values = properties_text.parse(request.body)
    if forbidden := {key for key in values if key in BLACK_LIST or key.startswith("tls.")}:
        return request.reply(
            ResponseCode.NO_PERMISSION,
            f"Can not update config in black list: {', '.join(sorted(forbidden))}",
        )
    try:
        await state.change_config(values)
    except (ConfigError, StateFileError) as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    _log.info("settings changed", keys=sorted(values), peer=peer.remote_text)
    return request.reply()


def get_config(state: SharedState, request: Command, _: Connection) -> Command:
    """Handle GET_NAMESRV_CONFIG: return the settings as properties text."""
    return request.reply(body=state.config.as_text())


async def _change_kv(
    state: SharedState, request: Command, peer: Connection, entry: tuple[str, str, str | None]
) -> Command:
    namespace, key, value = entry
    try:
        await state.change_kv(
            lambda kv: (
                kv.without(namespace, key)
                if value is None
                else kv.with_value(namespace, key, value)
            )
        )
    except (LimitError, StateFileError) as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    _log.info("key-value entry changed", namespace=namespace, key=key, peer=peer.remote_text)
    return request.reply()


HANDLERS: Final[dict[int, Callable[[SharedState, Command, Connection], Answer]]] = {
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.BROKER_HEARTBEAT: broker_heartbeat,
    RequestCode.GET_BROKER_MEMBER_GROUP: get_broker_member_group,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: get_cluster_info,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: get_unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: get_unit_sub_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: get_unit_sub_ununit_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_permission,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_permission,
    OwnRequestCode.SUBSCRIBE_ROUTE: subscribe_route,
    RequestCode.PUT_KV_CONFIG: put_kv,
    RequestCode.GET_KV_CONFIG: get_kv,
    RequestCode.DELETE_KV_CONFIG: delete_kv,
    RequestCode.GET_KVLIST_BY_NAMESPACE: get_kv_list,
    RequestCode.UPDATE_NAMESRV_CONFIG: update_config,
    RequestCode.GET_NAMESRV_CONFIG: get_config,
}


def process(state: SharedState, request: Command, peer: Connection) -> Answer:
    """Answer one request.

    Raises:
        HeaderError, BodyError: the request is malformed; the server answers SYSTEM_ERROR.
    """
    handler = HANDLERS.get(request.code)
    if handler is None:
        return request.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {request.code} not supported",
        )
    try:
        return handler(state, request, peer)
    except LimitError as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
