"""PocketMQ's client, for PocketMQ and for Apache RocketMQ 4.x and 5.x (remoting protocol).

    import client

    async with client.Producer("127.0.0.1:9876", group="orders") as producer:
        receipt = await producer.send("orders", b"...", tag="paid", keys=["o-1"])

    async with client.PushConsumer(
        "127.0.0.1:9876", group="billing", subscribe={"orders": "*"}, handler=bill
    ) as consumer:
        await consumer.run()

    async with client.PullConsumer("127.0.0.1:9876", group="audit") as consumer:
        consumer.assign(await consumer.queues("orders"))
        for message in await consumer.get_many(500, timeout=1.0):
            ...

``client.blocking`` has the same classes for programs without an event loop. Names are imported on
first use, so that ``import client`` is cheap; ``__init__.pyi``, written by ``scripts/stubs.py``,
lists them for type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = {
    "client.admin": "Admin",
    "client.admin.access": "AccessRules AccessVersion AccountInfo",
    "client.admin.base": "BrokerInfo",
    "client.admin.browsing": "BrowsePage",
    "client.admin.messages": "DeadMessage Redrive",
    "client.admin.descriptions": "GroupDescription Member",
    "client.admin.groups": "Lag QueueLag",
    "client.admin.resets": "Reset ResetStep",
    "client.admin.traffic": "LagPage PendingWork SpanRates TimeSpan TrafficRates",
    "client.consumer.options": "Orderly Sql Tags",
    "client.consumer.outcome": "COMMIT Decision ROLLBACK",
    "client.consumer.pull": "PullConsumer",
    "client.consumer.push": "PushConsumer",
    "client.consumer.received": "ReceivedMessage",
    "client.errors": """
        AccessDenied AlreadySettled BrokerUnreachable BufferFull ConsumerStopped DeadLetter
        GroupConflict GroupNotFound MessageIllegal NoNameServer NoPermission NoRoute NotDurable
        NotFound NotOnline NotSupported Outcome PocketMQError RemoteError RequestTimeout RetryLater
        SendError ServiceNotAvailable SubscriptionInvalid SystemBusy TopicNotFound Unavailable
        UnreadableMessage UsageError
    """,
    "client.events": """
        ConsumerFailed ConsumptionPaused Event GroupChanged GroupTrouble HandlerTimedOut LockLost
        LoopBlocked MembersDiffer MessageDeadLettered NoQueues OffsetMoved QueueBlocked
        QueueGained QueueLost QueueResumed QueueWaiting QueuesUnknown QueuesUnread
        RebalanceFailed Start SubscriptionUnstable TopicDeleted
    """,
    "client.instance": "Instance",
    "client.interceptors": "InterceptedPart Interceptor",
    "client.message": "Message OpenTransaction Receipt Reply SendStatus TransactionState",
    "client.tracing.otel": "OpenTelemetry",
    "client.positions": "BEGIN END FIRST LAST Place",
    "client.producer.producer": "Producer",
    "client.producer.transactions": "Transaction",
    "client.tracing.trace": "MessageTrace",
    "client.group.strategies": """
        Averagely AveragelyByCircle ByConfig ByMachineRoom ConsistentHash MachineRoomNearby Sticky
        Strategy
    """,
    "remoting.protocol.bodies.clients": """
        BrokerConnection ConnectionPage ConsumeMessageDirectlyResult
    """,
    "remoting.protocol.message.trace": "TraceRecord",
    "remoting.protocol.signing": "Credentials",
    "remoting.protocol.queue": "MessageQueue PhysicalOffset QueueOffset",
    "remoting.security.tls": "Tls",
}
_HOMES = {name: module for module, names in MODULES.items() for name in names.split()}
SUBMODULES = frozenset({"blocking", "serde"})

__all__ = sorted((*_HOMES, *SUBMODULES))  # noqa: PLE0605 - __init__.pyi lists them


def __getattr__(name: str) -> Any:
    if name in SUBMODULES:
        return import_module(f"client.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'client' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
