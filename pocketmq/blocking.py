"""``client.blocking``, the client without an event loop, under PocketMQ's name."""

from __future__ import annotations

import pocketmq.server.own_client  # noqa: F401 - first: it imports ours if a module hides it
from client.blocking import (
    Admin,
    Instance,
    Producer,
    PullConsumer,
    PushConsumer,
    Transaction,
)

__all__ = ["Admin", "Instance", "Producer", "PullConsumer", "PushConsumer", "Transaction"]
