"""From a request to its handler: one table for all that a name server does.

A handler gets the state, the request and the connection, and returns the answer, or an awaitable of
it when something has to be written to disk. cf. DefaultRequestProcessor; unlike that of 4.x, an
unknown code is answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from nameserver.broker_requests import (
    broker_heartbeat,
    get_broker_member_group,
    query_data_version,
    register_broker,
    register_topic,
    unregister_broker,
)
from nameserver.kv_requests import delete_kv, get_config, get_kv, get_kv_list, put_kv, update_config
from nameserver.route_requests import (
    add_write_permission,
    delete_topic,
    get_all_topics,
    get_cluster_info,
    get_route,
    get_system_topics,
    get_topics_of_cluster,
    get_unit_sub_topics,
    get_unit_sub_ununit_topics,
    get_unit_topics,
    subscribe_route,
    wipe_write_permission,
)
from nameserver.state import Peer, State
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import OwnRequestCode

Answer = Command | Awaitable[Command]

HANDLERS: Final[dict[int, Callable[[State, Command, Peer], Answer]]] = {
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
