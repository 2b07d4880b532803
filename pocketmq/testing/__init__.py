"""A real broker inside a test.

    from pocketmq import testing

    with testing.broker() as server:
        producer = client.Producer(server.nameserver)

The broker is a separate process (``pocketmq standalone``) on free ports, with a store that is
deleted afterwards. It ends with the process that started it, however that ends. The pytest fixtures
``pocketmq``, ``pocketmq_topic`` and ``pocketmq_group`` offer the same. ``FakeProducer`` is for
tests that need no broker.
"""

from __future__ import annotations

import pocketmq.server.own_client  # noqa: F401 - first: it imports ours if a module hides it
from pocketmq.testing.fake import FakeBlockingProducer, FakeProducer
from pocketmq.testing.processes import (
    LOGS_VARIABLE,
    SMALL_STORE,
    START_TIMEOUT,
    STOP_TIMEOUT,
    ServerError,
    ServerProcess,
)
from pocketmq.testing.standalone import AsyncServer, BrokerClock, StandaloneServer, broker

__all__ = [
    "LOGS_VARIABLE",
    "SMALL_STORE",
    "START_TIMEOUT",
    "STOP_TIMEOUT",
    "AsyncServer",
    "BrokerClock",
    "FakeBlockingProducer",
    "FakeProducer",
    "ServerError",
    "ServerProcess",
    "StandaloneServer",
    "broker",
]
