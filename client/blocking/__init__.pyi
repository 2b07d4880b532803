# Written by scripts/stubs.py.
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Generic, Self, TypeVar, Unpack, overload

from client.admin.access import AccessRules, AccessVersion
from client.admin.base import BrokerInfo
from client.admin.browsing import BrowsePage
from client.admin.descriptions import GroupDescription, Member
from client.admin.groups import Lag
from client.admin.messages import DeadMessage, Redrive
from client.admin.resets import Reset
from client.admin.traffic import LagPage, PendingWork, TimeSpan, TrafficRates
from client.config import Addresses, ClientArguments, ConsumerArguments, ProducerArguments
from client.consumer.options import Handler, PushArguments, Subscribe, Wanted
from client.consumer.received import ReceivedMessage
from client.errors import SendError
from client.events import ConsumptionPaused
from client.message import Message, Receipt, Reply
from client.positions import Duration, Position
from client.producer.producer import MessageArguments, SendArguments
from client.producer.requests import Answerable
from client.producer.transactions import Transactions
from client.serde import Serde
from remoting.protocol.bodies.clients import (
    ConnectionInfo,
    ConnectionPage,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerInfo,
)
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.bodies.route import ClusterInfo, TopicRouteData
from remoting.protocol.bodies.stats import OffsetWrapper, TopicOffset
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.message.trace import TraceRecord
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")
V = TypeVar("V")

class Admin:
    """See ``client.Admin``: every method is the same and blocks."""

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = ...,
        permission: str = "rw",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a topic, or change it to these settings, at every master broker.

        Args:
            queues: read queues and write queues, per broker.
            permission: ``rw``, ``r``, ``w`` or an empty string.
            order: mark it as an order topic: message order takes precedence over availability.
            attributes: ``{"+message.type": "FIFO"}`` sets an attribute, ``{"-message.type": ""}``
                removes it; others stay. Brokers before 5.0 have no attributes.
            cluster: only at the masters of this cluster.
            brokers: only at the masters with these names.
        """

    def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: str | None = None,
        order: bool | None = None,
        everywhere: bool = False,
        brokers: Collection[str] | None = None,
    ) -> None:
        """Change the given settings at every broker that has the topic; others stay.

        With ``brokers``, change them at these only, which have to have the topic.

        With ``everywhere``, also create it at the brokers that ``brokers_without`` returns, with
        the settings that the first of its brokers has then.

        A different number of write queues changes the queue of most sharding keys: until consumers
        have handled the messages already stored, a key's newer messages may overtake older ones.

        To reduce the queues without loss, lower ``write_queues`` first, and ``read_queues`` once
        the queues to be removed have been read to their end.
        """

    def brokers_without(self, topic: str) -> list[str]:
        """Return the masters that lack a topic which others of their cluster have.

        A send creates a topic only at the broker that it reaches.
        """

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages, at every broker and name server."""

    def topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted.

        Args:
            internal: include system, retry and dead-letter topics.
        """

    def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return the topic's settings by broker name."""

    def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """Return the settings of all topics of one broker."""

    def topic_route(self, topic: str) -> TopicRouteData:
        """Return the topic's route as the name server sends it to clients."""

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return first offset, next offset and time of the last message of each queue."""

    def system_topics(self, address: str) -> list[str]:
        """Return the system topics of a broker, sorted."""

    def broker_runtime(self, address: str) -> dict[str, str]:
        """Return a broker's runtime statistics (cf. mqadmin brokerStatus)."""

    def broker_config(self, address: str) -> dict[str, str]:
        """Return a broker's settings by RocketMQ's configuration keys."""

    def update_broker_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change a broker's settings while it runs; all of them or, if it refuses one, none.

        Args:
            settings: by RocketMQ's configuration keys.
        """

    def hand_over(self, master: str, slave: str, slave_id: int) -> None:
        """Make a slave the master, without loss; the old master becomes its slave.

        Returns when the new master serves. Only PocketMQ's brokers can do it.

        Args:
            master: the address of the master.
            slave: the address of the slave, as registered.
            slave_id: its broker id, which the old master gets.
        """

    def promote(self, broker: str, slave: str, *, force: bool = False) -> None:
        """Make a slave the master though the master is dead, which may lose messages.

        Args:
            broker: the broker's name.
            slave: the address of the slave.
            force: do it. Without, the error says how much would be lost.
        """

    def wipe_write_permission(self, broker: str) -> int:
        """Make producers stop using a broker, e.g. before maintenance.

        Returns:
            The number of topics changed: the maximum over the name servers.
        """

    def add_write_permission(self, broker: str) -> int:
        """Undo ``wipe_write_permission``."""

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a key of the key-value configuration at all name servers."""

    def get_kv(self, namespace: str, key: str) -> str | None:
        """Return a value of the name servers' key-value configuration, or None."""

    def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a key of the key-value configuration at all name servers."""

    def kv(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace."""

    def reset(
        self,
        group: str,
        topic: str,
        *,
        to: Position,
        queues: Collection[MessageQueue] | None = None,
        missing_only: bool = False,
        dry_run: bool = False,
    ) -> Reset:
        """Set a group's offsets in a topic, with or without members online.

        Args:
            to: an offset (clamped to the queue's range), ``BEGIN``, ``END``, or a datetime: the
                first message stored at or after it.
            queues: only these queues.
            missing_only: only queues in which the group has committed nothing.
            dry_run: change nothing and return the plan.

        Raises:
            GroupNotFound: no broker has the group.
            UsageError: members are online at an Apache broker that can't do this meanwhile.
        """

    def skip(
        self, group: str, queue: MessageQueue, *, messages: int = 1, dry_run: bool = False
    ) -> Reset:
        """Move a group past the next message of one queue, e.g. one that blocks it.

        Args:
            messages: how many to skip, at most to the queue's end.
            dry_run: change nothing and return the plan.

        Raises:
            UsageError: there is nothing to skip, or members are online at an Apache broker.
        """

    def create_group(
        self,
        group: str,
        *,
        max_retries: int | None = None,
        retry_queues: int | None = None,
        consume: bool | None = None,
        broadcast: bool | None = None,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a consumer group, or change the given settings, at every master broker.

        A setting that isn't given keeps its value in an existing group and gets its default in a
        new one.

        Args:
            max_retries: redeliveries before a message becomes a dead letter; 16 by default.
            retry_queues: number of queues of its retry topic; 1 by default.
            consume: whether it may consume.
            broadcast: whether it may consume in broadcasting mode; True by default.
            cluster: only at the masters of this cluster.
            brokers: only at the masters with these names.
        """

    def delete_group(
        self, group: str, *, remove_offsets: bool = False, cluster: str | None = None
    ) -> None:
        """Delete a consumer group at every broker.

        Args:
            remove_offsets: also delete its committed offsets.
        """

    def groups(self, *, internal: bool = False) -> list[str]:
        """Return the names of all consumer groups, sorted.

        Args:
            internal: include system groups and the groups of command-line tools.
        """

    def group_configs(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all groups of one broker."""

    def group_config(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """Return the group's settings by name of each broker that has it."""

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic or have offsets in it, sorted."""

    def consumer_connections(self, group: str) -> ConsumerConnection:
        """Return a group's consumers and subscriptions. Raises NotOnline if it has no consumer."""

    def producer_connections(self, group: str) -> list[ConnectionInfo]:
        """Return the clients of a producer group; an empty list if no broker has it."""

    def producers(self) -> dict[str, list[ProducerInfo]]:
        """Return the producers of all groups, as the brokers know them from heartbeats."""

    def consume_stats(
        self, group: str, *, topic: str | None = None
    ) -> dict[MessageQueue, OffsetWrapper]:
        """Return end, committed offset and time of the last consumed message of each queue."""

    def describe_group(self, group: str) -> GroupDescription:
        """Return the members, queues and problems of a group, merged from all brokers.

        A group that doesn't exist gives the same result as a group without consumers.
        """

    def members(self, group: str) -> list[Member]:
        """Return the consumers that are in a group now, sorted by client id."""

    def owners(self, group: str) -> dict[MessageQueue, str]:
        """Return the client id of the member that reads each queue; omit queues without one.

        PocketMQ brokers report owners. With Apache's brokers every member is asked, and those that
        don't answer are left out.
        """

    def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo:
        """Return a member's running info: its settings, and the state of each of its queues.

        Args:
            stacks: whether ``jstack`` is to have the stacks of its threads and tasks.

        Raises:
            RemoteError: it isn't connected, or doesn't answer the broker.
        """

    def lag(self, group: str, *, topic: str | None = None, owners: bool = False) -> Lag:
        """Return how far a group is behind (cf. mqadmin consumerProgress).

        Args:
            topic: only this topic.
            owners: also find the owner of each queue: one more request to each broker and, with
                Apache's brokers, one to each member.
        """

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted."""

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message that is not deleted."""

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""

    def search_offset(self, queue: MessageQueue, at: datetime) -> int:
        """Return the offset that the broker finds for a store time: one near it."""

    def earliest_stored_at(self, queue: MessageQueue) -> datetime | None:
        """Return when the oldest message was stored, in UTC; None for an empty queue."""

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the group's committed offset, or None, for each queue of a topic."""

    def clone_offsets(self, source: str, target: str, *, topic: str | None = None) -> None:
        """Copy a group's committed offsets to another group (cf. mqadmin cloneGroupOffset).

        The target's running consumers are not notified: they keep their positions, and commit them.

        Args:
            topic: only this topic.
        """

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set a group's committed offsets. Its running consumers are not notified."""

    def all_offsets(self, address: str) -> dict[str, dict[int, int]]:
        """Return all committed offsets of one broker: ``topic@group`` to queue id to offset."""

    def find_messages(
        self,
        topic: str,
        key: str,
        *,
        limit: int = ...,
        begin: datetime | None = None,
        end: datetime | None = None,
    ) -> list[ReceivedMessage[bytes]]:
        """Return the messages of a topic that have a key, the oldest first.

        Args:
            topic: the topic they are stored in.
            key: one of their keys, or the id their producer assigned.
            limit: if there are more, the newest are returned; a broker finds at most 64.
            begin: stored at this time or later.
            end: stored at this time or earlier.
        """

    def message(self, message_id: str, *, topic: str | None = None) -> ReceivedMessage[bytes]:
        """Return the message with an id.

        Args:
            message_id: the broker's offset id; if ``topic`` is given, also the producer's id. Of
                several messages with the producer's id, the newest is returned.
            topic: the topic it is stored in.

        Raises:
            NotFound: no broker has it.
            UsageError: ``topic`` isn't given, and the id doesn't contain the address of a
                registered broker.
        """

    def consume_directly(
        self, group: str, client_id: str, message_id: str, *, topic: str | None = None
    ) -> ConsumeMessageDirectlyResult:
        """Have a member of a group handle a message now, and return what became of it.

        Nothing is committed, and the message isn't retried, whatever the outcome.

        Args:
            client_id: the member's; see ``members``.
            message_id: as in ``message``.
            topic: the topic that the message is stored in.

        Raises:
            NotFound: no broker has the message.
            RemoteError: the member isn't connected to the message's broker, or doesn't answer it.
        """

    def trace(self, message_id: str, *, topic: str = ...) -> list[TraceRecord]:
        """Return what clients with message trace did with a message, by the time of their clocks.

        Args:
            message_id: the id its producer assigned.
            topic: the brokers' trace topic, of which each broker finds its 64 newest messages.

        Raises:
            NotFound: there is no trace of it.
        """

    def dead_letters(
        self, group: str, *, limit: int = 1000, redriven: bool = False
    ) -> list[DeadMessage]:
        """Return the dead letters of a group, the oldest of each queue first.

        Args:
            limit: the maximum number.
            redriven: include those that have been sent back already.

        Returns:
            An empty list for a group without a dead-letter topic.
        """

    def redrive(
        self,
        group: str,
        *,
        limit: int | None = None,
        topic: str | None = None,
        ids: Collection[str] | None = None,
        dry_run: bool = False,
    ) -> Redrive:
        """Send dead letters to the topics they came from, with the same body, tag, keys and id.

        Every group that subscribes to such a topic gets them, not only this one. None is sent
        twice, also if the caller is killed, as long as the broker's index has the copies that were
        sent: Apache's has them a moment later, and none does with ``messageIndexEnable=false``.

        Args:
            limit: the maximum number.
            topic: send all of them to this topic instead.
            ids: only the letters with these ids.
            dry_run: send nothing and return what would be sent.

        Raises:
            UsageError: a message doesn't contain its original topic, and ``topic`` isn't given; or
                ``ids`` are to go to another topic, where a later call wouldn't look for them.
            PocketMQError: a message could not be sent; those before it were sent.
        """

    def browse(
        self,
        topic: str,
        start: Position | str = ...,
        *,
        limit: int = 100,
        scan_limit: int = ...,
        tags: Wanted = "*",
        queues: Collection[MessageQueue] | None = None,
    ) -> BrowsePage:
        """Return a page of a topic's messages. It commits nothing, and no group is involved.

        The order goes on from page to page, except after a page that ``scan_limit`` ended.

        Args:
            start: the cursor of the page before. Or a position: an end, a time, an offset of each
                queue; a negative number: that many messages before each queue's end.
            limit: the most messages of the page.
            scan_limit: the most messages that brokers look at; with a filter, the last request may
                exceed it.
            tags: which messages, as in ``subscribe=``.
            queues: only these queues; by default all readable ones. A cursor has its own.

        Raises:
            UsageError: ``start`` is no position and no cursor, or a queue doesn't exist.
        """

    def lags(self, *, after: str = "", limit: int = ..., internal: bool = False) -> LagPage:
        """Return how far all groups are behind, with one request to each broker.

        Args:
            after: the name of a group: only those whose names come after it.
            limit: the most groups. There may be fewer, because a broker answers with the groups
                of about 20,000 queues at most.
            internal: include system groups and the groups of command-line tools.
        """

    def rates(self, topic: str, group: str | None = None) -> TrafficRates:
        """Return how much producers send to a topic or, with ``group``, how much the group gets.

        The brokers count since their start, and sample every 10 s, 10 min and 1 h.
        """

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets, sorted.

        Apache's brokers before 5.0 can't say it (NotSupported).
        """

    def time_span(self, group: str, topic: str) -> dict[MessageQueue, TimeSpan]:
        """Return when the messages of each queue were stored, and how long a group's wait."""

    def connections(self, address: str, *, after: str = "", limit: int = ...) -> ConnectionPage:
        """Return the open connections of one broker. Only PocketMQ's brokers list them.

        Args:
            address: the broker's.
            after: the address of a connection: only those whose addresses, as texts, come after it.
            limit: the most connections; a broker lists at most 1,000.
        """

    def pending(self, address: str) -> PendingWork:
        """Return what one broker still has to deliver: delayed, timed and half messages."""

    def access_rules(self, address: str) -> AccessRules:
        """Return the accounts and the white list of the broker at an address."""

    def put_account(
        self,
        address: str,
        access_key: str,
        *,
        secret_key: str | None = None,
        admin: bool | None = None,
        default_topic: str | None = None,
        default_group: str | None = None,
        topics: Mapping[str, str] | None = None,
        groups: Mapping[str, str] | None = None,
        white_address: str | None = None,
    ) -> None:
        """Create an account at a broker, or change what is given; see ``AccountInfo``.

        A new secret has effect at once: requests signed with the old one are denied.

        Args:
            secret_key: necessary for a new account.
            topics, groups: all its permissions. ``{}`` removes them, which Apache's brokers refuse.
        """

    def delete_account(self, address: str, access_key: str) -> None:
        """Delete an account at a broker."""

    def put_white_list(self, address: str, addresses: Iterable[str]) -> None:
        """Replace the white list of a broker.

        Args:
            addresses: patterns such as ``10.1.2.*``; see docs/security/accounts.md.
        """

    def access_versions(self, address: str) -> dict[str, AccessVersion]:
        """Return the versions of a broker's files of accounts by path; PocketMQ has one."""

    def __init__(
        self, nameservers: Addresses | None = None, **options: Unpack[ClientArguments]
    ) -> None: ...
    def close(self) -> None:
        """Close the connections, unless they belong to an instance."""

    def cluster(self) -> ClusterInfo:
        """Return all brokers registered at the name server, by cluster and name."""

    def brokers(
        self, *, cluster: str | None = None, names: Iterable[str] | None = None
    ) -> list[BrokerInfo]:
        """Return the brokers, sorted by cluster, name and id.

        Args:
            cluster: only the brokers of this cluster.
            names: only the brokers with these names.
        """

    @property
    def client_id(self) -> str:
        """The id under which brokers register its client, once it is started."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def start(self) -> None:
        """Start. Connections are opened when they are needed."""

class Instance(Generic[T]):
    """See ``client.Instance``: its producers, consumers and admins share one thread."""

    @overload
    def __init__(
        self: Instance[bytes],
        nameservers: Addresses | None = None,
        *,
        serde: None = None,
        **options: Unpack[ClientArguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        serde: Serde[T],
        **options: Unpack[ClientArguments],
    ) -> None: ...
    @property
    def client_id(self) -> str:
        """The id under which brokers register this client; empty before the start."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def start(self) -> None:
        """Start the background tasks. Connections are opened when they are needed."""

    def close(self) -> None:
        """Close the producers, consumers and admins created from it, then its connections.

        May be called twice. Called from a handler it only starts the close and returns, because it
        would wait for itself.
        """

    @overload
    def producer(
        self, *, group: str = ..., serde: None = None, **options: Unpack[ProducerArguments]
    ) -> Producer[T]:
        """Return a started producer that shares this instance and is closed with it."""

    @overload
    def producer(
        self, *, group: str = ..., serde: Serde[V], **options: Unpack[ProducerArguments]
    ) -> Producer[V]: ...
    @overload
    def pull_consumer(
        self, *, group: str, serde: None = None, **options: Unpack[ConsumerArguments]
    ) -> PullConsumer[T]:
        """Return a started pull consumer that shares this instance and is closed with it."""

    @overload
    def pull_consumer(
        self, *, group: str, serde: Serde[V], **options: Unpack[ConsumerArguments]
    ) -> PullConsumer[V]: ...
    @overload
    def push_consumer(
        self,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[T] | None = None,
        serde: None = None,
        **options: Unpack[PushArguments],
    ) -> PushConsumer[T]:
        """Return a push consumer that shares this instance; start it with ``async with``."""

    @overload
    def push_consumer(
        self,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[V] | None = None,
        serde: Serde[V],
        **options: Unpack[PushArguments],
    ) -> PushConsumer[V]: ...
    def admin(self) -> Admin:
        """Return an admin that shares this instance."""

class Producer(Generic[T]):
    """See ``client.Producer``: every method is the same and blocks."""

    @overload
    def __init__(
        self: Producer[bytes],
        nameservers: Addresses | None = None,
        *,
        group: str = ...,
        serde: None = None,
        **options: Unpack[ProducerArguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str = ...,
        serde: Serde[T],
        **options: Unpack[ProducerArguments],
    ) -> None: ...
    def close(self, timeout: Duration = ...) -> None:
        """Send all accepted messages, then close; messages not acknowledged in time fail.

        Args:
            timeout: seconds to wait for the messages in flight.
        """

    @overload
    def send(self, message: Message[T], /, *, timeout: Duration | None = None) -> Receipt:
        """Send a message and wait for its acknowledgement.

        Pass either a ``Message``, or topic, body and attributes. The call waits while the bound of
        messages in flight is reached. Cancelling it doesn't recall the message.

        Args:
            delay, deliver_at: see ``Message``; the message is due by the broker's clock.
            timeout: seconds for the whole call, including the wait for room. Without it, the
                producer's ``timeout`` applies from the moment there is room, and the wait for room
                ends when nothing is acknowledged for that long.

        Returns:
            Where the message is stored, and how durably.

        Raises:
            UsageError: the message is invalid.
            SendError: the message was not acknowledged; ``outcome`` says whether it may be stored
                nevertheless. Depending on the cause it is also a ``NoNameServer``, ``NoRoute``,
                ``BrokerUnreachable`` or ``BufferFull``, or the ``RemoteError`` with which a broker
                refused it.
        """

    @overload
    def send(self, topic: str, body: T, **arguments: Unpack[SendArguments]) -> Receipt: ...
    @overload
    def send_nowait(
        self, message: Message[T], /, *, timeout: Duration | None = None
    ) -> Future[Receipt]:
        """Accept a message without waiting; the returned future resolves as ``send`` would.

        This is the fastest method of sending.

        Raises:
            UsageError: the message is invalid, or the call is not made on the producer's event
                loop.
            BufferFull: the bound of messages or bytes in flight is reached.
        """

    @overload
    def send_nowait(
        self, topic: str, body: T, **arguments: Unpack[SendArguments]
    ) -> Future[Receipt]: ...
    @overload
    def send_oneway(self, message: Message[T], /, *, timeout: Duration | None = None) -> None:
        """Send a message that no broker acknowledges: it may be lost without an error.

        Raises:
            UsageError: the message is invalid.
            SendError: no connection to a broker could be made, or writing to it failed; see
                ``send``.
        """

    @overload
    def send_oneway(self, topic: str, body: T, **arguments: Unpack[SendArguments]) -> None: ...
    def send_batch(
        self, messages: Iterable[Message[T]], *, timeout: Duration | None = None
    ) -> list[Receipt]:
        """Send messages of one topic as one request: either all are stored, contiguously, or none.

        They go to the queue given by the ``queue`` or ``sharding_key`` of the first message, or
        to any queue if it has neither.

        Raises:
            UsageError: ``messages`` is empty or can't be one batch (topics, delays, size).
            SendError: the batch was not acknowledged; see ``send``.
        """

    def send_many(
        self, messages: Iterable[Message[T]], *, timeout: Duration | None = None
    ) -> list[Receipt | SendError]:
        """Send any number of messages, in batches, with many in flight, within the bounds.

        Returns:
            For each message, in order, its receipt or its error; errors of single messages are not
            raised.
        """

    @overload
    def transaction(
        self, message: Message[T], /, *, timeout: Duration | None = None
    ) -> Transaction[T]:
        """Return a transaction, whose message consumers get when it commits.

            async with producer.transaction("orders", b"...", keys=["o-1"]) as transaction:
                await database.save(order, transaction.id)

        The end of the block commits, an exception rolls back. After a crash the broker asks the
        ``transaction_checker`` of one of the group's producers.

        Args:
            timeout: seconds for sending the half message.

        Raises:
            UsageError: the producer has no ``transaction_checker``.
        """

    @overload
    def transaction(
        self, topic: str, body: T, **arguments: Unpack[MessageArguments]
    ) -> Transaction[T]: ...
    def recall(self, handle: str) -> str:
        """Recall a message before its time of delivery.

        The broker records the recall; its answer doesn't show whether the message is still
        pending. Recall a message at least a second before its time.

        Args:
            handle: ``Receipt.recall_handle`` of the message.

        Returns:
            The message's unique id.

        Raises:
            UsageError: it is no handle.
            NoRoute: the broker that has the message is not in the route.
            Unavailable: it can't be reached or doesn't answer.
            RemoteError: it refuses, for example because the time is over, or has no recalls.
        """

    @overload
    def request(self, message: Message[T], /, *, timeout: Duration | None = None) -> Reply[T]:
        """Send a message and wait for the reply of the consumer that gets it.

        Args:
            timeout: seconds for the send and the reply together; 3 without it.

        Raises:
            UsageError: it can't be sent as it is.
            SendError: it was not acknowledged; see ``send``.
            RequestTimeout: no reply came in time; the message may still be handled.
            UnreadableMessage: the reply can't be decompressed or deserialized.
        """

    @overload
    def request(self, topic: str, body: T, **arguments: Unpack[MessageArguments]) -> Reply[T]: ...
    def reply(
        self, request: Answerable, body: T, *, properties: Mapping[str, str] | None = None
    ) -> None:
        """Answer a message that was sent with ``request``, by any RocketMQ client.

        Args:
            request: as a consumer got it.
            properties: the application's own names and values, for the reply.

        Raises:
            UsageError: it is no request, or the reply can't be sent as it is.
            RemoteError: the broker refused the reply; the requester is gone, or waits no longer.
            Unavailable: no broker could be asked, or none answered in time.
        """

    def flush(self) -> None:
        """Wait until every message accepted before this call is acknowledged or has failed."""

    @property
    def client_id(self) -> str:
        """The id under which brokers register its client, once it is started."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def start(self) -> None:
        """Start. Connections are opened when they are needed."""

class PullConsumer(Generic[T]):
    """See ``client.PullConsumer``: every method is the same and blocks.

    ``get_many`` is much faster than iterating, because it switches threads once per batch instead
    of once per message.
    """

    @overload
    def __init__(
        self: PullConsumer[bytes],
        nameservers: Addresses | None = None,
        *,
        group: str,
        serde: None = None,
        **options: Unpack[ConsumerArguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str,
        serde: Serde[T],
        **options: Unpack[ConsumerArguments],
    ) -> None: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def close(self, timeout: Duration = ...) -> None:
        """Stop reading, commit if ``auto_commit``, leave the group.

        Args:
            timeout: seconds for the commits.
        """

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic, sorted.

        Raises:
            TopicNotFound: there is no such topic.
            NoNameServer: no name server could be reached.
        """

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that the consumer reads, sorted."""

    @property
    def cached(self) -> dict[MessageQueue, int]:
        """How many messages of each queue that it reads are read ahead."""

    def assign(self, queues: Iterable[MessageQueue], *, tags: Wanted = "*") -> None:
        """Read these queues from now on, and no others.

        A queue that is already read keeps its position, unless ``tags`` differs from before. A new
        one, and one with new tags, starts at the group's committed offset, or without one at
        ``start_from``. With ``auto_commit`` the application is done with the messages returned from
        queues that it gives up.

        Args:
            queues: the complete list of queues to read.
            tags: ``A || B`` for the messages with one of these tags, or ``Tags("A", "B")``; or
                ``Sql("amount > 100")``; ``*`` for all.

        Raises:
            UsageError: an argument is invalid, or topics are subscribed.
        """

    def subscribe(self, topic: str, tags: Wanted = "*") -> None:
        """Read this member's share of a topic's queues, which the members of the group divide.

        The share changes as members join and leave; ``on_gained`` and ``on_lost`` are called for
        each change. When this returns, the first rebalance is done; messages arrive once the
        previous owners have released the queues. Subscribing to a topic again changes its tags.

        Args:
            tags: ``A || B`` for the messages with one of these tags, or ``Tags("A", "B")``; or
                ``Sql("amount > 100")``; ``*`` for all.

        Raises:
            UsageError: ``topic`` or ``tags`` is invalid, or queues are assigned.
            SubscriptionInvalid: a broker refuses the expression.
            GroupConflict: another member of the group has settings that must be equal but differ.
            NoNameServer: no name server can be reached.
        """

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic and release its queues to the group.

        Raises:
            UsageError: the topic isn't subscribed.
        """

    def seek(self, queue: MessageQueue, to: Position) -> None:
        """Continue reading an assigned queue at another position; prefetched messages are dropped.

        Args:
            to: an offset, ``BEGIN``, ``END``, or a datetime for the first message stored at or
                after that time.

        Raises:
            UsageError: the queue isn't assigned, or ``to`` is no position.
            Unavailable, RemoteError: the broker did not return the offset.
        """

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until ``resume``. Raises UsageError."""

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of paused queues again. Raises UsageError."""

    def get_many(
        self, max_messages: int, *, timeout: Duration | None = None
    ) -> list[ReceivedMessage[T]]:
        """Wait for messages and return the next ones, in order within each queue.

        Args:
            max_messages: upper limit; fewer are returned if fewer are available.
            timeout: seconds to wait for the first message; None: without limit.

        Returns:
            The messages; an empty list if none arrived in time.

        Raises:
            ConsumerStopped: the consumer was closed, or a background task failed.
            RemoteError: a broker refuses the pulls (they are retried in the background).
            UsageError: nothing is assigned or subscribed.
        """

    def __iter__(self) -> Self: ...
    def __next__(self) -> ReceivedMessage[T]:
        """Return the next message; iteration ends when the consumer is closed.

        Raises:
            ConsumerStopped, RemoteError, UsageError: as ``get_many``.
        """

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message to be returned.

        Raises:
            UsageError: the queue isn't assigned.
            Unavailable, RemoteError: the broker did not return the start offset.
        """

    def committed(
        self, queues: Iterable[MessageQueue] | None = None
    ) -> dict[MessageQueue, int | None]:
        """Read the group's committed offsets from the brokers; None: nothing is committed.

        Args:
            queues: the queues; default: all assigned ones.
        """

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets; the brokers have stored them when this returns.

        Args:
            offsets: for each queue, the next offset to read; default: after all returned messages.

        Raises:
            UsageError: another member of the group owns a queue.
            Unavailable, RemoteError: a broker did not store an offset; others may have.
        """

    @property
    def client_id(self) -> str:
        """The id under which brokers register its client, once it is started."""

    def __enter__(self) -> Self: ...
    def start(self) -> None:
        """Start. Connections are opened when they are needed."""

class PushConsumer(Generic[T]):
    """See ``client.PushConsumer``: every method is the same and blocks.

    A handler that is a plain function runs in worker threads, so it may block. Without a handler,
    several threads may take messages with ``for message in consumer: with message: ...``.
    """

    @overload
    def __init__(
        self: PushConsumer[bytes],
        nameservers: Addresses | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[bytes] | None = None,
        serde: None = None,
        **options: Unpack[PushArguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[T] | None = None,
        serde: Serde[T],
        **options: Unpack[PushArguments],
    ) -> None: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def start(self) -> None:
        """Join the group; the handler may be called before this returns.

        Raises:
            GroupConflict: another member of the group has settings that must be equal but differ.
            Unavailable: no name server can be reached.
            UsageError: the local offsets file can't be used.
        """

    def run(self) -> None:
        """Run until ``stop``, SIGTERM, SIGINT or a failure.

        Signals for which the application has a handler are not intercepted. A second signal has
        its default effect.

        Raises:
            ConsumerStopped: a background task failed; ``__cause__`` is its exception.
        """

    def stop(self, timeout: Duration = ...) -> None:
        """Stop pulling, let handlers finish, commit, release the queues, leave the group.

        Messages not finished in time are delivered again to the next owner of the queue. Called
        from a handler it only starts the stop and returns, because it would wait for itself.

        Args:
            timeout: seconds for which running handlers may continue.
        """

    def close(self, timeout: Duration = ...) -> None:
        """Do the same as ``stop``.

        Args:
            timeout: seconds for which running handlers may continue.
        """

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues it currently owns, sorted; includes those of the group's retry topic."""

    @property
    def cached(self) -> dict[MessageQueue, int]:
        """How many messages of each of its queues are in memory, read ahead or being handled."""

    def subscribe(self, topic: str, tags: Wanted = "*") -> None:
        """Subscribe to a topic, or change its tags. All members of the group must do the same.

        Args:
            tags: which messages, as in ``subscribe=``.

        Raises:
            UsageError: ``topic`` is not a valid topic name, or ``tags`` is not a valid expression.
        """

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic."""

    def suspend(self) -> None:
        """Pull nothing and start no handler until ``resume``; the consumer stays in its group."""

    @property
    def paused(self) -> ConsumptionPaused | None:
        """The event of the circuit breaker that paused consumption; None: it isn't paused."""

    def resume(self) -> None:
        """Continue after ``suspend``, or after the circuit breaker paused consumption."""

    def get(self, timeout: Duration | None = None) -> ReceivedMessage[T] | None:
        """Wait for the next message, as the iteration does; return None if none arrives in time.

        Args:
            timeout: seconds; None: without limit.

        Raises:
            ConsumerStopped: the consumer was stopped, or a background task failed.
            UsageError: the consumer has a handler, or is not subscribed to any topic.
        """

    def __iter__(self) -> Self: ...
    def __next__(self) -> ReceivedMessage[T]:
        """Return the next message; iteration ends when the consumer is stopped.

        Raises:
            ConsumerStopped: a background task failed.
            UsageError: the consumer has a handler, or is not subscribed to any topic.
        """

    @property
    def client_id(self) -> str:
        """The id under which brokers register its client, once it is started."""

    def __enter__(self) -> Self: ...

class Transaction(Generic[T]):
    """See ``client.Transaction``: every method is the same and blocks."""

    def __init__(
        self,
        transactions: Transactions[T],
        message: Message[T],
        send: Callable[[], Awaitable[Receipt]],
    ) -> None:
        """Made by ``Producer.transaction``."""

    @property
    def id(self) -> str:
        """The message's unique id, by which a checker finds what became of the transaction.

        Raises UsageError before the half message is stored.
        """

    def start(self) -> None:
        """Send the half message.

        Raises:
            UsageError: it has been sent before.
            SendError: it was not stored, or not as safely as the broker is configured.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def commit(self) -> bool:
        """Let consumers get the message.

        Returns:
            Whether the broker has confirmed it. If not, consumers get the message after the
            broker's next check, if this producer or another one of its group answers it.

        Raises:
            UsageError: the transaction has not begun, or another decision was made.
        """

    def rollback(self) -> bool:
        """Drop the message. Returns and raises as ``commit`` does."""

    def defer(self) -> None:
        """Leave the decision to the checker, which the broker asks later. Raises as ``commit``."""
