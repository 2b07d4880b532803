"""``client.serde``, conversion of values to message bodies, under PocketMQ's name."""

from __future__ import annotations

import pocketmq.server.own_client  # noqa: F401 - first: it imports ours if a module hides it
from client.serde import Serde, Typed, json, msgpack, raw, text, typed

__all__ = ["Serde", "Typed", "json", "msgpack", "raw", "text", "typed"]
