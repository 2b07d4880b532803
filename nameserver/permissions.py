"""What each request code needs at a name server whose ACL is on.

RocketMQ's name server has no such check. Ours keeps the routes readable, because clients that only
have the name server's address start there; names of topics and settings need an account; everything
else, which brokers and administrators send, needs an administrator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from remoting.access.guard import Permissions, Resource
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import OwnRequestCode

_OPEN: Final = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    OwnRequestCode.SUBSCRIBE_ROUTE,
)
"""Where a topic's queues and the brokers are, and the notice that this has changed."""

_ACCOUNT_ONLY: Final = (
    RequestCode.GET_KV_CONFIG,
    RequestCode.GET_KVLIST_BY_NAMESPACE,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    RequestCode.GET_BROKER_MEMBER_GROUP,
    RequestCode.GET_NAMESRV_CONFIG,
)
"""Requests that read what a stranger has no use for."""


def _account(_: Mapping[str, str], __: Command) -> Iterable[Resource]:
    return ()


FROM_BROKERS: Final = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
    }
)
"""Requests that brokers send all the time; the audit log leaves them out."""


PERMISSIONS: Final = Permissions(
    needs=dict.fromkeys(_ACCOUNT_ONLY, _account), open=frozenset(_OPEN)
)
"""QUERY_DATA_VERSION needs an administrator as well: it renews a broker's timeout."""
