# Written by scripts/stubs.py.
from client import blocking as blocking
from client import serde as serde
from client.admin import Admin as Admin
from client.admin.access import AccessRules as AccessRules
from client.admin.access import AccessVersion as AccessVersion
from client.admin.access import AccountInfo as AccountInfo
from client.admin.base import BrokerInfo as BrokerInfo
from client.admin.browsing import BrowsePage as BrowsePage
from client.admin.descriptions import GroupDescription as GroupDescription
from client.admin.descriptions import Member as Member
from client.admin.groups import Lag as Lag
from client.admin.groups import QueueLag as QueueLag
from client.admin.messages import DeadMessage as DeadMessage
from client.admin.messages import Redrive as Redrive
from client.admin.resets import Reset as Reset
from client.admin.resets import ResetStep as ResetStep
from client.admin.traffic import LagPage as LagPage
from client.admin.traffic import PendingWork as PendingWork
from client.admin.traffic import SpanRates as SpanRates
from client.admin.traffic import TimeSpan as TimeSpan
from client.admin.traffic import TrafficRates as TrafficRates
from client.consumer.options import Orderly as Orderly
from client.consumer.options import Sql as Sql
from client.consumer.options import Tags as Tags
from client.consumer.outcome import COMMIT as COMMIT
from client.consumer.outcome import ROLLBACK as ROLLBACK
from client.consumer.outcome import Decision as Decision
from client.consumer.pull import PullConsumer as PullConsumer
from client.consumer.push import PushConsumer as PushConsumer
from client.consumer.received import ReceivedMessage as ReceivedMessage
from client.errors import AccessDenied as AccessDenied
from client.errors import AlreadySettled as AlreadySettled
from client.errors import BrokerUnreachable as BrokerUnreachable
from client.errors import BufferFull as BufferFull
from client.errors import ConsumerStopped as ConsumerStopped
from client.errors import DeadLetter as DeadLetter
from client.errors import GroupConflict as GroupConflict
from client.errors import GroupNotFound as GroupNotFound
from client.errors import MessageIllegal as MessageIllegal
from client.errors import NoNameServer as NoNameServer
from client.errors import NoPermission as NoPermission
from client.errors import NoRoute as NoRoute
from client.errors import NotDurable as NotDurable
from client.errors import NotFound as NotFound
from client.errors import NotOnline as NotOnline
from client.errors import NotSupported as NotSupported
from client.errors import Outcome as Outcome
from client.errors import PocketMQError as PocketMQError
from client.errors import RemoteError as RemoteError
from client.errors import RequestTimeout as RequestTimeout
from client.errors import RetryLater as RetryLater
from client.errors import SendError as SendError
from client.errors import ServiceNotAvailable as ServiceNotAvailable
from client.errors import SubscriptionInvalid as SubscriptionInvalid
from client.errors import SystemBusy as SystemBusy
from client.errors import TopicNotFound as TopicNotFound
from client.errors import Unavailable as Unavailable
from client.errors import UnreadableMessage as UnreadableMessage
from client.errors import UsageError as UsageError
from client.events import ConsumerFailed as ConsumerFailed
from client.events import ConsumptionPaused as ConsumptionPaused
from client.events import Event as Event
from client.events import GroupChanged as GroupChanged
from client.events import GroupTrouble as GroupTrouble
from client.events import HandlerTimedOut as HandlerTimedOut
from client.events import LockLost as LockLost
from client.events import LoopBlocked as LoopBlocked
from client.events import MembersDiffer as MembersDiffer
from client.events import MessageDeadLettered as MessageDeadLettered
from client.events import NoQueues as NoQueues
from client.events import OffsetMoved as OffsetMoved
from client.events import QueueBlocked as QueueBlocked
from client.events import QueueGained as QueueGained
from client.events import QueueLost as QueueLost
from client.events import QueueResumed as QueueResumed
from client.events import QueuesUnknown as QueuesUnknown
from client.events import QueuesUnread as QueuesUnread
from client.events import QueueWaiting as QueueWaiting
from client.events import RebalanceFailed as RebalanceFailed
from client.events import Start as Start
from client.events import SubscriptionUnstable as SubscriptionUnstable
from client.events import TopicDeleted as TopicDeleted
from client.group.strategies import Averagely as Averagely
from client.group.strategies import AveragelyByCircle as AveragelyByCircle
from client.group.strategies import ByConfig as ByConfig
from client.group.strategies import ByMachineRoom as ByMachineRoom
from client.group.strategies import ConsistentHash as ConsistentHash
from client.group.strategies import MachineRoomNearby as MachineRoomNearby
from client.group.strategies import Sticky as Sticky
from client.group.strategies import Strategy as Strategy
from client.instance import Instance as Instance
from client.interceptors import InterceptedPart as InterceptedPart
from client.interceptors import Interceptor as Interceptor
from client.message import Message as Message
from client.message import OpenTransaction as OpenTransaction
from client.message import Receipt as Receipt
from client.message import Reply as Reply
from client.message import SendStatus as SendStatus
from client.message import TransactionState as TransactionState
from client.positions import BEGIN as BEGIN
from client.positions import END as END
from client.positions import FIRST as FIRST
from client.positions import LAST as LAST
from client.positions import Place as Place
from client.producer.producer import Producer as Producer
from client.producer.transactions import Transaction as Transaction
from client.tracing.otel import OpenTelemetry as OpenTelemetry
from client.tracing.trace import MessageTrace as MessageTrace
from remoting.protocol.bodies.clients import BrokerConnection as BrokerConnection
from remoting.protocol.bodies.clients import ConnectionPage as ConnectionPage
from remoting.protocol.bodies.clients import (
    ConsumeMessageDirectlyResult as ConsumeMessageDirectlyResult,
)
from remoting.protocol.message.trace import TraceRecord as TraceRecord
from remoting.protocol.queue import MessageQueue as MessageQueue
from remoting.protocol.queue import PhysicalOffset as PhysicalOffset
from remoting.protocol.queue import QueueOffset as QueueOffset
from remoting.protocol.signing import Credentials as Credentials
from remoting.security.tls import Tls as Tls

__all__ = [
    "BEGIN",
    "COMMIT",
    "END",
    "FIRST",
    "LAST",
    "ROLLBACK",
    "AccessDenied",
    "AccessRules",
    "AccessVersion",
    "AccountInfo",
    "Admin",
    "AlreadySettled",
    "Averagely",
    "AveragelyByCircle",
    "BrokerConnection",
    "BrokerInfo",
    "BrokerUnreachable",
    "BrowsePage",
    "BufferFull",
    "ByConfig",
    "ByMachineRoom",
    "ConnectionPage",
    "ConsistentHash",
    "ConsumeMessageDirectlyResult",
    "ConsumerFailed",
    "ConsumerStopped",
    "ConsumptionPaused",
    "Credentials",
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
    "InterceptedPart",
    "Interceptor",
    "Lag",
    "LagPage",
    "LockLost",
    "LoopBlocked",
    "MachineRoomNearby",
    "Member",
    "MembersDiffer",
    "Message",
    "MessageDeadLettered",
    "MessageIllegal",
    "MessageQueue",
    "MessageTrace",
    "NoNameServer",
    "NoPermission",
    "NoQueues",
    "NoRoute",
    "NotDurable",
    "NotFound",
    "NotOnline",
    "NotSupported",
    "OffsetMoved",
    "OpenTelemetry",
    "OpenTransaction",
    "Orderly",
    "Outcome",
    "PendingWork",
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
    "QueuesUnread",
    "RebalanceFailed",
    "Receipt",
    "ReceivedMessage",
    "Redrive",
    "RemoteError",
    "Reply",
    "RequestTimeout",
    "Reset",
    "ResetStep",
    "RetryLater",
    "SendError",
    "SendStatus",
    "ServiceNotAvailable",
    "SpanRates",
    "Sql",
    "Start",
    "Sticky",
    "Strategy",
    "SubscriptionInvalid",
    "SubscriptionUnstable",
    "SystemBusy",
    "Tags",
    "TimeSpan",
    "Tls",
    "TopicDeleted",
    "TopicNotFound",
    "TraceRecord",
    "TrafficRates",
    "Transaction",
    "TransactionState",
    "Unavailable",
    "UnreadableMessage",
    "UsageError",
    "blocking",
    "serde",
]
