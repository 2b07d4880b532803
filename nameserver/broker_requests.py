"""What brokers ask: to be registered, to stay so, and to leave."""

from __future__ import annotations

from typing import Final

import structlog

from nameserver.kv import ORDER_TOPIC_NAMESPACE
from nameserver.limits import (
    BROKER_TIMEOUT_MS,
    MAX_BROKER_TIMEOUT_MS,
    MAX_FILTER_SERVERS,
    MAX_NAME_LENGTH,
    MAX_QUEUES,
)
from nameserver.route_events import Queues, Registered, Registration, RouteLimitError
from nameserver.state import Peer, State
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.registration import (
    RegisterBrokerBody,
    body_crc_matches,
    decode_registration,
)
from remoting.protocol.bodies.route import (
    BrokerMemberGroup,
    GetBrokerMemberGroupResponseBody,
    TopicRouteData,
)
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.bodies.topic import DataVersion, TopicConfig
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.registration import (
    BrokerHeartbeatRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicRequestHeader,
    UnRegisterBrokerRequestHeader,
)

_UNLIKELY: Final = frozenset("\0\r\n\t ")

_log = structlog.get_logger("nameserver")


def register_broker(state: State, request: Command, peer: Peer) -> Command:
    """REGISTER_BROKER: what a broker is and holds (cf. registerBrokerWithFilterServer)."""
    header = request.read(RegisterBrokerRequestHeader)
    if not body_crc_matches(request.body, header.body_crc32):
        return request.reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    problem = _name_problem(header.cluster_name, header.broker_name, header.broker_addr)
    if problem is not None or header.broker_id < 0:
        return request.reply(ResponseCode.SYSTEM_ERROR, problem or "a broker's id is 0 or more")
    body = _body_of(request, compressed=bool(header.compressed))
    try:
        done = state.routes.register(_registration(header, body, peer), state.now_ms)
    except RouteLimitError as error:
        _log.error("registration refused", broker=header.broker_name, why=str(error))
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    _log_registered(header, done, peer)
    state.apply(done.change, "it registered")
    reply = RegisterBrokerResponseHeader(
        ha_server_addr=done.ha_address, master_addr=done.master_address
    )
    return request.reply(header=reply, body=_order_topics(state))


def unregister_broker(state: State, request: Command, peer: Peer) -> Command:
    """UNREGISTER_BROKER: a broker stops in an orderly way."""
    header = request.read(UnRegisterBrokerRequestHeader)
    change = state.routes.unregister(header.broker_name, header.broker_id, header.broker_addr)
    state.apply(change, f"it said good-bye from {peer.remote_text}", expected=True)
    return request.reply()


def query_data_version(state: State, request: Command, _: Peer) -> Command:
    """QUERY_DATA_VERSION: whether a registration would tell anything new."""
    header = request.read(QueryDataVersionRequestHeader)
    version = decode(DataVersion, request.body) if request.body else DataVersion()
    changed, known = state.routes.compare_version(header.broker_addr, version, state.now_ms)
    return request.reply(
        header=QueryDataVersionResponseHeader(changed=changed),
        body=encode(known) if known is not None else b"",
    )


def broker_heartbeat(state: State, request: Command, _: Peer) -> Command:
    """BROKER_HEARTBEAT: 5.x brokers in between their registrations."""
    header = request.read(BrokerHeartbeatRequestHeader)
    timeout_ms = _timeout_ms(header.heartbeat_timeout_mills)
    state.routes.heard_of(header.broker_addr, state.now_ms, timeout_ms=timeout_ms)
    return request.reply()


def get_broker_member_group(state: State, request: Command, _: Peer) -> Command:
    """GET_BROKER_MEMBER_GROUP: the addresses under one broker name (5.x)."""
    header = request.read(GetBrokerMemberGroupRequestHeader)
    broker = state.routes.brokers().get(header.broker_name)
    addresses = dict(broker.addresses) if broker and broker.cluster == header.cluster_name else {}
    group = BrokerMemberGroup(header.cluster_name, header.broker_name, addresses)
    return request.reply(body=encode(GetBrokerMemberGroupResponseBody(group)))


def register_topic(state: State, request: Command, _: Peer) -> Command:
    """REGISTER_TOPIC_IN_NAMESRV: a topic's place by somebody else's word (5.x)."""
    topic = request.read(RegisterTopicRequestHeader).topic
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
    try:
        state.apply(state.routes.set_queues(topic, queues), "its topic was registered")
    except RouteLimitError as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    return request.reply()


def _body_of(request: Command, *, compressed: bool) -> RegisterBrokerBody:
    if not request.body:
        return RegisterBrokerBody()
    return decode_registration(request.body, compressed=compressed, version=request.version)


def _registration(
    header: RegisterBrokerRequestHeader, body: RegisterBrokerBody, peer: Peer
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
            "topics with impossible names left out",
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


def _order_topics(state: State) -> bytes:
    entries = state.kv.entries(ORDER_TOPIC_NAMESPACE)
    if not entries or not state.config.return_order_topic_config_to_broker:
        return b""
    return encode(KVTable(table=dict(entries)))


def _log_registered(header: RegisterBrokerRequestHeader, done: Registered, peer: Peer) -> None:
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
