"""Administration of topics, groups, offsets, brokers and accounts."""

from __future__ import annotations

from client.admin.access import AccessAdmin
from client.admin.base import sharing
from client.admin.browsing import BrowsingAdmin
from client.admin.cluster import ClusterAdmin
from client.admin.groups import Lag, QueueLag
from client.admin.messages import MessageAdmin
from client.admin.resets import ResetAdmin
from client.admin.traffic import TrafficAdmin
from client.network.context import ClientContext

__all__ = ["Admin", "Lag", "QueueLag"]


class Admin(ClusterAdmin, ResetAdmin, MessageAdmin, BrowsingAdmin, TrafficAdmin, AccessAdmin):
    """Administers a cluster; used as ``async with Admin("127.0.0.1:9876") as admin``.

    Every method may raise ``UsageError`` (the call is wrong), ``Unavailable`` (a name server or
    broker could not be reached; changes already made at others remain) and ``RemoteError`` (a
    broker or name server refused).

    Args:
        nameservers: ``host:port;host:port``; by default the environment variable NAMESRV_ADDR.
        options: see ``client.config.ClientOptions``.
    """


def shared_admin(context: ClientContext) -> Admin:
    """Return an admin that shares an open context."""
    return sharing(Admin, context)
