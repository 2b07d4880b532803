"""Administration: topics, groups, offsets, brokers, as far as brokers serve it."""

from __future__ import annotations

from client.admin.base import sharing
from client.admin.cluster import ClusterAdmin
from client.admin.groups import Lag, QueueLag
from client.admin.messages import MessageAdmin
from client.admin.resets import ResetAdmin
from client.context import ClientContext

__all__ = ["Admin", "Lag", "QueueLag"]


class Admin(ClusterAdmin, ResetAdmin, MessageAdmin):
    """Looks after a cluster; used as ``async with Admin("127.0.0.1:9876") as admin``.

    Every method may raise ``UsageError`` (the call is wrong), ``Unavailable`` (a name server or
    broker could not be reached; what was done at others stays done) and ``RemoteError`` (it
    refused).

    Args:
        nameservers: ``host:port;host:port``; without it the environment's NAMESRV_ADDR.
        options: see ``client.config.ClientOptions``.
    """


def shared_admin(context: ClientContext) -> Admin:
    """An admin that shares a context, which is open."""
    return sharing(Admin, context)
