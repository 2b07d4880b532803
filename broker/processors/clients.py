"""Clients and their groups (cf. ClientManageProcessor).

Handles LIST_CONNECTIONS and the codes 34, 35, 38 and 46.

A heartbeat registers a connection as a producer and consumer of groups. When the members or topics
of a consumer group change, all its members are notified, including the one that caused the change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Final

import structlog

from broker.errors import (
    RequestRefused,
    check_client_id,
    check_group,
    is_tag_type,
    remark_of,
    without_filter,
)
from broker.filters.expressions import SqlError
from broker.filters.table import compile_filter
from broker.group_monitor import GroupMonitor, GroupNotifier
from broker.groups.consumers import ConsumerMember, HeartbeatExtras, member_of
from broker.groups.health import conflicts_of_newcomer, same_id
from broker.groups.producers import ClientChannel
from broker.limits import MAX_CONNECTIONS_LISTED, MAX_HEARTBEAT_BYTES
from broker.processors.groups import retry_topic
from broker.state import BrokerState
from broker.traffic.quotas import AccountOf
from remoting.protocol import names
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.clients import BrokerConnection, ConnectionPage
from remoting.protocol.bodies.description import FindingKind, GroupFinding
from remoting.protocol.bodies.heartbeat import CheckClientRequestBody, ConsumerData, HeartbeatData
from remoting.protocol.bodies.stats import GetConsumerListByGroupResponseBody
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import PageRequestHeader
from remoting.protocol.headers.group import (
    ConsumerGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from remoting.protocol.limits import MAX_TOPIC_LENGTH
from remoting.protocol.own_codes import CONFLICT
from remoting.runtime.log import RateLimitedLog

if TYPE_CHECKING:
    from remoting.connection import Connection


_log = structlog.get_logger("broker")

_TOPICS_LOGGED: Final = 8

REJECT: Final = "reject"
"""The policy of consumers that ask to be refused if they contradict their group."""


class ClientProcessor:
    """Handles heartbeats and memberships."""

    __slots__ = ("_account_of", "_changes", "_monitor", "_notifier", "_refusals", "_state")

    def __init__(
        self,
        state: BrokerState,
        monitor: GroupMonitor,
        notifier: GroupNotifier,
        account_of: AccountOf | None = None,
    ) -> None:
        self._state = state
        self._account_of = account_of
        self._monitor = monitor
        self._notifier = notifier
        self._refusals = RateLimitedLog(state.clock, _log.warning, burst=1)
        self._changes = RateLimitedLog(state.clock, _log.info)
        state.consumers.on_change = self._log_change

    def heartbeat(self, command: Command, connection: Connection) -> Command | Awaitable[Command]:
        """Handle HEART_BEAT: register the client in its producer and consumer groups.

        The answer waits until name servers have the new retry topics of its groups: clients ask for
        their routes next, and the Node client does so only once.
        """
        _check_size(command)
        data = decode(HeartbeatData, command.body)
        check_client_id(data.client_id)
        channel = ClientChannel(
            connection=connection,
            client_id=data.client_id,
            address=connection.remote_text,
            language=None if command.language is None else command.language.name,
            version=command.version,
            last_update_ms=self._state.monotonic_ms,
            account=None if self._account_of is None else self._account_of(command, connection),
        )
        extras = HeartbeatExtras.of(command.fields)
        for consumer in data.consumer_data_set:
            check_group(consumer.group_name)
            finding = self._reason_to_refuse(consumer, channel, extras)
            if finding is not None:
                return self._refused(command, finding)
        wrong: SqlError | None = None
        for consumer in data.consumer_data_set:
            finding = self._register_consumer(consumer, channel, extras)
            if finding is not None:
                return self._refused(command, finding)
            error = self._state.filters.register(
                consumer.group_name, consumer.subscription_data_set, self._state.clock.now_ms()
            )
            if error is not None:
                # Pulls by it are refused with code 27.
                reason = remark_of(str(error))
                self._refusals.write("filter refused", group=consumer.group_name, reason=reason)
                wrong = wrong or error
        for producer in data.producer_data_set:
            check_group(producer.group_name)
            self._state.producers.register(producer.group_name, channel)
        if wrong is not None and extras.on_conflict:
            # RocketMQ doesn't tell here. A foreign client's heartbeat is about all its groups, and
            # if it is refused, the other groups may stop working.
            raise _unparsable(wrong)
        pending = {
            change
            for consumer in data.consumer_data_set
            if (change := self._state.changes.topic_pending(names.retry_topic(consumer.group_name)))
        }
        return _after(pending, command.reply()) if pending else command.reply()

    def unregister(self, command: Command, connection: Connection) -> Command:
        """Handle UNREGISTER_CLIENT: remove the connection from a producer and a consumer group."""
        header = command.read(UnregisterClientRequestHeader)
        if header.producer_group:
            self._state.producers.unregister(header.producer_group, connection)
        group = header.consumer_group
        if group and self._state.consumers.unregister(group, connection):
            self._members_left([group])
        return command.reply()

    def consumer_list(self, command: Command, connection: Connection) -> Command:
        """Handle GET_CONSUMER_LIST_BY_GROUP: return the client ids of a group's members.

        A PocketMQ member also gets the members' topics, if they differ.
        """
        header = command.read(ConsumerGroupRequestHeader)
        group = self._state.consumers.groups.get(header.consumer_group)
        if group is None:
            return command.reply(
                ResponseCode.SYSTEM_ERROR,
                f"no consumer for this group, {header.consumer_group}",
            )
        body = GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids())
        member = group.members.get(connection)
        if member is not None and member.ours:
            body.member_topics = group.topic_sets() or None
        return command.reply(body=encode(body))

    def check_config(self, command: Command, _: Connection) -> Command:
        """Handle CHECK_CLIENT_CONFIG: check that a subscription's filter is supported and valid."""
        _check_size(command)
        body = decode(CheckClientRequestBody, command.body)
        subscription = body.subscription_data
        if is_tag_type(subscription.expression_type):
            return command.reply()
        if not self._state.config.enable_property_filter:
            raise without_filter(subscription.expression_type)
        try:
            compile_filter(subscription.expression_type, subscription.sub_string)
        except SqlError as error:
            raise _unparsable(error) from None
        return command.reply()

    def list_connections(self, command: Command, _: Connection) -> Command:
        """Handle LIST_CONNECTIONS: return the next open connections, by their addresses."""
        header = command.read(PageRequestHeader)
        state = self._state
        every = {connection.remote_text: connection for connection in state.connections()}
        later = sorted(address for address in every if address > header.after)
        page = later[: min(max(header.limit, 0), MAX_CONNECTIONS_LISTED)]
        body = ConnectionPage(
            connections=[_described(state, every[address]) for address in page],
            total=len(every),
            next=page[-1] if page and len(page) < len(later) else None,
        )
        return command.reply(body=encode(body))

    def closed(self, connection: Connection) -> None:
        """Remove the parked pulls and memberships of a closed connection."""
        self._state.long_polls.forget(connection)
        self._state.producers.closed(connection)
        self._members_left(self._state.consumers.closed(connection))

    def scan(self) -> None:
        """Close connections whose last heartbeat is too old, and delete expired locks.

        Called periodically (cf. ClientHousekeepingService).
        """
        now_ms = self._state.monotonic_ms
        self._state.locks.sweep(now_ms)
        expired = self._state.producers.scan(now_ms)
        consumers, groups = self._state.consumers.scan(now_ms)
        for connection in {*expired, *consumers}:
            _log.warning("client expired", client=connection.remote_text)
            connection.close()
        self._members_left(groups)

    def _log_change(self, group: str, member: ConsumerMember, joined: bool) -> None:
        topics = sorted(member.subscriptions)
        self._changes.write(
            "member joined" if joined else "member left",
            group=group,
            topics=" ".join(topics[:_TOPICS_LOGGED]),
            more_topics=len(topics[_TOPICS_LOGGED:]),
            member=member.client_id,
            address=member.address,
        )

    def _members_left(self, groups: Iterable[str]) -> None:
        for group in groups:
            if group not in self._state.consumers.groups:
                self._state.filters.left(group, self._state.clock.now_ms())
            self._notifier.changed(group, left=True)

    def _register_consumer(
        self, consumer: ConsumerData, channel: ClientChannel, extras: HeartbeatExtras
    ) -> GroupFinding | None:
        """Register a consumer as a member; return the reason if it is refused, else None."""
        state, name = self._state, consumer.group_name
        config = state.group_config(name)
        # A group whose name is too long for a topic has no retry topic.
        if config is not None and len(names.retry_topic(name)) <= MAX_TOPIC_LENGTH:
            retry_topic(state, name, config.retry_queue_nums, unit=consumer.unit_mode)
        before = state.consumers.profile_of(name, channel.connection)
        changed = state.consumers.heartbeat(consumer, channel, state.monotonic_ms, extras)
        finding = self._contested(name, channel.connection, extras)
        if finding is not None:
            changed = state.consumers.unregister(name, channel.connection)
        if changed or before != state.consumers.profile_of(name, channel.connection):
            self._monitor.check_conflicts(name)
        if changed:
            self._notifier.changed(name)
        return finding

    # members that contradict each other

    def _reason_to_refuse(
        self, consumer: ConsumerData, channel: ClientChannel, extras: HeartbeatExtras
    ) -> GroupFinding | None:
        group = self._state.consumers.groups.get(consumer.group_name)
        if not extras.on_conflict or group is None or channel.connection in group.members:
            return None
        now_ms = self._state.monotonic_ms
        newcomer = member_of(consumer, channel, extras, None)
        for finding in conflicts_of_newcomer(group.name, newcomer, group.profiles, now_ms):
            if extras.on_conflict == REJECT or finding.kind == FindingKind.MESSAGE_MODEL:
                return finding
        if extras.on_conflict == REJECT and group.is_contested(newcomer.client_id, now_ms):
            return same_id(group.name, newcomer, group.of_id(newcomer.client_id)[0])
        return None

    def _contested(
        self, name: str, connection: Connection, extras: HeartbeatExtras
    ) -> GroupFinding | None:
        """Note if two members use one client id; return the reason if this one is refused for it.

        It is refused if its policy is ``REJECT`` and it joined after the other member.
        """
        group = self._state.consumers.groups[name]
        member = group.members[connection]
        rival = group.rival(member)
        if rival is None:
            return None
        was_contested = member.client_id in group.contested
        group.contested[member.client_id] = self._state.monotonic_ms
        if not was_contested:
            self._monitor.check_conflicts(name)
        refuse = extras.on_conflict == REJECT and group.of_id(member.client_id)[-1] is member
        return same_id(name, member, rival) if refuse else None

    def _refused(self, command: Command, finding: GroupFinding) -> Command:
        self._state.counters.members_refused += 1
        self._refusals.write(
            "consumer refused",
            finding=finding.kind,
            members=" ".join(finding.members),
            reason=finding.text,
            docs=finding.docs,
        )
        return command.reply(
            ResponseCode.SYSTEM_ERROR, finding.text, extra=((CONFLICT, encode(finding).decode()),)
        )


def _described(state: BrokerState, connection: Connection) -> BrokerConnection:
    producing = state.producers.joined(connection)
    consuming = state.consumers.joined(connection)
    channel = (
        state.producers.groups[producing[0]][connection]
        if producing
        else state.consumers.groups[consuming[0]].members[connection]
        if consuming
        else None
    )
    return BrokerConnection(
        address=connection.remote_text,
        tls=connection.is_tls,
        client_id=None if channel is None else channel.client_id,
        language=None if channel is None else channel.language,
        version=0 if channel is None else channel.version,
        producer_groups=producing,
        consumer_groups=consuming,
    )


async def _after(changes: Iterable[Awaitable[bool]], reply: Command) -> Command:
    for change in changes:
        await change
    return reply


def _check_size(command: Command) -> None:
    if len(command.body) > MAX_HEARTBEAT_BYTES:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"a heartbeat has at most {MAX_HEARTBEAT_BYTES} bytes, and so has the check of one: "
            "subscribe fewer topics or use several clients",
        )


def _unparsable(error: SqlError) -> RequestRefused:
    return RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark_of(str(error)))
