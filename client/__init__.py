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

``client.blocking`` has the same for programs without an event loop. Names are imported at their
first use, so that ``import client`` itself costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import client.blocking  # noqa: F401 - so that type checkers know it is there
    from client import serde
    from client.admin import Admin
    from client.admin.base import BrokerInfo
    from client.admin.dead_letters import DeadMessage, Redrive
    from client.admin.descriptions import GroupDescription, Member
    from client.admin.groups import Lag, QueueLag
    from client.admin.resets import Reset, ResetStep
    from client.consumer.options import Orderly, Tags
    from client.consumer.outcome import COMMIT, ROLLBACK, Decision
    from client.consumer.pull import PullConsumer
    from client.consumer.push import PushConsumer
    from client.consumer.received import ReceivedMessage
    from client.errors import (
        AlreadySettled,
        BrokerUnreachable,
        BufferFull,
        ConsumerStopped,
        DeadLetter,
        GroupConflict,
        GroupNotFound,
        MessageIllegal,
        NoNameServer,
        NoPermission,
        NoRoute,
        NotDurable,
        NotFound,
        NotOnline,
        NotSupported,
        Outcome,
        PocketMQError,
        RemoteError,
        RequestTimeout,
        RetryLater,
        SendError,
        ServiceNotAvailable,
        SubscriptionInvalid,
        SystemBusy,
        TopicNotFound,
        Unavailable,
        UnreadableMessage,
        UsageError,
    )
    from client.events import (
        ConsumerFailed,
        ConsumptionPaused,
        Event,
        GroupChanged,
        GroupTrouble,
        HandlerTimedOut,
        LockLost,
        LoopBlocked,
        MembersDiffer,
        MessageDeadLettered,
        NoQueues,
        OffsetMoved,
        QueueBlocked,
        QueueGained,
        QueueLost,
        QueueResumed,
        QueuesUnknown,
        QueueWaiting,
        RebalanceFailed,
        Start,
        SubscriptionUnstable,
    )
    from client.instance import Instance
    from client.interceptors import Interceptor
    from client.message import Message, Receipt, SendStatus
    from client.positions import BEGIN, END, FIRST, LAST, Place
    from client.producer.producer import Producer
    from client.rebalance.strategies import (
        Averagely,
        AveragelyByCircle,
        ByConfig,
        ByMachineRoom,
        ConsistentHash,
        MachineRoomNearby,
        Sticky,
        Strategy,
    )
    from remoting.protocol.queue import MessageQueue, PhysicalOffset, QueueOffset

_MODULES = {
    "client.admin": ("Admin",),
    "client.admin.base": ("BrokerInfo",),
    "client.admin.dead_letters": (
        "DeadMessage",
        "Redrive",
    ),
    "client.admin.descriptions": (
        "GroupDescription",
        "Member",
    ),
    "client.admin.groups": (
        "Lag",
        "QueueLag",
    ),
    "client.admin.resets": (
        "Reset",
        "ResetStep",
    ),
    "client.consumer.options": (
        "Orderly",
        "Tags",
    ),
    "client.consumer.outcome": (
        "COMMIT",
        "Decision",
        "ROLLBACK",
    ),
    "client.consumer.pull": ("PullConsumer",),
    "client.consumer.push": ("PushConsumer",),
    "client.consumer.received": ("ReceivedMessage",),
    "client.errors": (
        "AlreadySettled",
        "BrokerUnreachable",
        "BufferFull",
        "ConsumerStopped",
        "DeadLetter",
        "GroupConflict",
        "GroupNotFound",
        "MessageIllegal",
        "NoNameServer",
        "NoPermission",
        "NoRoute",
        "NotDurable",
        "NotFound",
        "NotOnline",
        "NotSupported",
        "Outcome",
        "PocketMQError",
        "RemoteError",
        "RequestTimeout",
        "RetryLater",
        "SendError",
        "ServiceNotAvailable",
        "SubscriptionInvalid",
        "SystemBusy",
        "TopicNotFound",
        "Unavailable",
        "UnreadableMessage",
        "UsageError",
    ),
    "client.events": (
        "Start",
        "ConsumerFailed",
        "ConsumptionPaused",
        "Event",
        "GroupChanged",
        "GroupTrouble",
        "HandlerTimedOut",
        "LockLost",
        "LoopBlocked",
        "MembersDiffer",
        "MessageDeadLettered",
        "NoQueues",
        "OffsetMoved",
        "QueueBlocked",
        "QueueGained",
        "QueueLost",
        "QueueResumed",
        "QueueWaiting",
        "QueuesUnknown",
        "RebalanceFailed",
        "SubscriptionUnstable",
    ),
    "client.instance": ("Instance",),
    "client.interceptors": ("Interceptor",),
    "client.message": (
        "Message",
        "Receipt",
        "SendStatus",
    ),
    "client.positions": (
        "BEGIN",
        "END",
        "FIRST",
        "LAST",
        "Place",
    ),
    "client.producer.producer": ("Producer",),
    "client.rebalance.strategies": (
        "Averagely",
        "AveragelyByCircle",
        "ByConfig",
        "ByMachineRoom",
        "ConsistentHash",
        "MachineRoomNearby",
        "Sticky",
        "Strategy",
    ),
    "remoting.protocol.queue": (
        "MessageQueue",
        "PhysicalOffset",
        "QueueOffset",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = frozenset({"blocking", "serde"})

__all__ = [
    "BEGIN",
    "COMMIT",
    "END",
    "FIRST",
    "LAST",
    "ROLLBACK",
    "Admin",
    "AlreadySettled",
    "Averagely",
    "AveragelyByCircle",
    "BrokerInfo",
    "BrokerUnreachable",
    "BufferFull",
    "ByConfig",
    "ByMachineRoom",
    "ConsistentHash",
    "ConsumerFailed",
    "ConsumerStopped",
    "ConsumptionPaused",
    "DeadLetter",
    "DeadMessage",
    "Decision",
    "Event",
    "GroupChanged",
    "GroupConflict",
    "GroupDescription",
    "GroupNotFound",
    "GroupTrouble",
    "HandlerTimedOut",
    "Instance",
    "Interceptor",
    "Lag",
    "LockLost",
    "LoopBlocked",
    "MachineRoomNearby",
    "Member",
    "MembersDiffer",
    "Message",
    "MessageDeadLettered",
    "MessageIllegal",
    "MessageQueue",
    "NoNameServer",
    "NoPermission",
    "NoQueues",
    "NoRoute",
    "NotDurable",
    "NotFound",
    "NotOnline",
    "NotSupported",
    "OffsetMoved",
    "Orderly",
    "Outcome",
    "PhysicalOffset",
    "Place",
    "PocketMQError",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "QueueBlocked",
    "QueueGained",
    "QueueLag",
    "QueueLost",
    "QueueOffset",
    "QueueResumed",
    "QueueWaiting",
    "QueuesUnknown",
    "RebalanceFailed",
    "Receipt",
    "ReceivedMessage",
    "Redrive",
    "RemoteError",
    "RequestTimeout",
    "Reset",
    "ResetStep",
    "RetryLater",
    "SendError",
    "SendStatus",
    "ServiceNotAvailable",
    "Start",
    "Sticky",
    "Strategy",
    "SubscriptionInvalid",
    "SubscriptionUnstable",
    "SystemBusy",
    "Tags",
    "TopicNotFound",
    "Unavailable",
    "UnreadableMessage",
    "UsageError",
    "blocking",
    "serde",
]


if not TYPE_CHECKING:  # A type checker that sees __getattr__ takes any name for one that is there.

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return import_module(f"client.{name}")
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'client' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
