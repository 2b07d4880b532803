"""From a request to its handler: one table for all that a name server does.

A handler gets the state, the request and the connection, and returns the answer, or an awaitable of
it when something has to be written to disk. cf. DefaultRequestProcessor; unlike that of 4.x, an
unknown code is answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from nameserver import broker_requests, kv_requests, route_requests
from nameserver.state import Peer, State
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import OwnRequestCode

Answer = Command | Awaitable[Command]

HANDLERS: Final[dict[int, Callable[[State, Command, Peer], Answer]]] = {
    RequestCode.REGISTER_BROKER: broker_requests.register_broker,
    RequestCode.UNREGISTER_BROKER: broker_requests.unregister_broker,
    RequestCode.QUERY_DATA_VERSION: broker_requests.query_data_version,
    RequestCode.BROKER_HEARTBEAT: broker_requests.broker_heartbeat,
    RequestCode.GET_BROKER_MEMBER_GROUP: broker_requests.get_broker_member_group,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: broker_requests.register_topic,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route_requests.get_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: route_requests.get_cluster_info,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: route_requests.get_all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: route_requests.get_topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: route_requests.get_system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: route_requests.get_unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: route_requests.get_unit_sub_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: route_requests.get_unit_sub_ununit_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: route_requests.delete_topic,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: route_requests.wipe_write_permission,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: route_requests.add_write_permission,
    OwnRequestCode.SUBSCRIBE_ROUTE: route_requests.subscribe_route,
    RequestCode.PUT_KV_CONFIG: kv_requests.put_kv,
    RequestCode.GET_KV_CONFIG: kv_requests.get_kv,
    RequestCode.DELETE_KV_CONFIG: kv_requests.delete_kv,
    RequestCode.GET_KVLIST_BY_NAMESPACE: kv_requests.get_kv_list,
    RequestCode.UPDATE_NAMESRV_CONFIG: kv_requests.update_config,
    RequestCode.GET_NAMESRV_CONFIG: kv_requests.get_config,
}


def process(state: State, request: Command, peer: Peer) -> Answer:
    """Answer one request.

    Raises:
        HeaderError, BodyError: the request can't be understood; the server answers code 1.
    """
    handler = HANDLERS.get(request.code)
    if handler is None:
        return request.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {request.code} not supported",
        )
    return handler(state, request, peer)
