"""Clients and their groups: codes 34, 35, 38 and 46 (cf. ClientManageProcessor).

A heartbeat registers a connection as producer and consumer of groups; a change of a consumer
group's members or topics is told to all its members at once, the one who caused it included.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from broker.errors import Refused
from broker.groups.producers import ClientChannel
from broker.limits import MAX_HEARTBEAT_BYTES
from broker.processors.remarks import NO_SQL, check_client_id, check_group, is_tag_type
from broker.state import BrokerState
from broker.topics import READ_WRITE, UNIT_SUB_FLAG
from remoting.errors import RemotingError
from remoting.protocol import names
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.heartbeat import CheckClientRequestBody, ConsumerData, HeartbeatData
from remoting.protocol.bodies.tables import GetConsumerListByGroupResponseBody
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import (
    GetConsumerListByGroupRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from remoting.protocol.limits import MAX_TOPIC_LENGTH

if TYPE_CHECKING:
    from remoting.connection import Connection

_log = structlog.get_logger("broker")


class ClientProcessor:
    """Serves heartbeats and what hangs on them."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def heartbeat(self, command: Command, connection: Connection) -> Command:
        """HEART_BEAT: who the client is, and which groups it produces and consumes for."""
        if len(command.body) > MAX_HEARTBEAT_BYTES:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"a heartbeat has at most {MAX_HEARTBEAT_BYTES} bytes: subscribe fewer topics or "
                "use several clients",
            )
        data = decode(HeartbeatData, command.body)
        check_client_id(data.client_id)
        channel = ClientChannel(
            connection=connection,
            client_id=data.client_id,
            address=connection.remote_text,
            language=None if command.language is None else command.language.name,
            version=command.version,
            last_update_ms=self._state.clock.now_ms(),
        )
        for consumer in data.consumer_data_set:
            self._register_consumer(consumer, channel)
        for producer in data.producer_data_set:
            check_group(producer.group_name)
            self._state.producers.register(producer.group_name, channel)
        return command.reply()

    def unregister(self, command: Command, connection: Connection) -> Command:
        """UNREGISTER_CLIENT: the connection leaves a producer and a consumer group."""
        header = command.read(UnregisterClientRequestHeader)
        if header.producer_group:
            self._state.producers.unregister(header.producer_group, connection)
        group = header.consumer_group
        if group and self._state.consumers.unregister(group, connection):
            self.notify([group])
        return command.reply()

    def consumer_list(self, command: Command, _: Connection) -> Command:
        """GET_CONSUMER_LIST_BY_GROUP: the client ids of a group's members."""
        header = command.read(GetConsumerListByGroupRequestHeader)
        group = self._state.consumers.groups.get(header.consumer_group)
        if group is None:
            return command.reply(
                ResponseCode.SYSTEM_ERROR,
                f"no consumer for this group, {header.consumer_group}",
            )
        body = GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids())
        return command.reply(body=encode(body))

    def check_config(self, command: Command, _: Connection) -> Command:
        """CHECK_CLIENT_CONFIG: whether a subscription's kind of filter is served."""
        body = decode(CheckClientRequestBody, command.body)
        subscription = body.subscription_data
        if is_tag_type(subscription.expression_type):
            return command.reply()
        return command.reply(ResponseCode.SYSTEM_ERROR, NO_SQL)

    def closed(self, connection: Connection) -> None:
        """A connection is gone: so are its memberships and its parked pulls."""
        self._state.long_polls.forget(connection)
        self._state.producers.closed(connection)
        self.notify(self._state.consumers.closed(connection))

    def scan(self) -> None:
        """Close connections whose last heartbeat is too old, and tell those who are left."""
        now_ms = self._state.clock.now_ms()
        expired = self._state.producers.scan(now_ms)
        consumers, groups = self._state.consumers.scan(now_ms)
        for connection in {*expired, *consumers}:
            _log.warning("client expired", client=connection.remote_text)
            connection.close()
        self.notify(groups)

    def notify(self, groups: Iterable[str]) -> None:
        """Tell all members of groups that something changed, where that is wanted."""
        if not self._state.config.notify_consumer_ids_changed_enable:
            return
        for group in groups:
            config = self._state.groups.get(group)
            if config is not None and not config.notify_consumer_ids_changed_enable:
                continue
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
            for connection in self._state.consumers.connections(group):
                _push(connection, header)

    def _register_consumer(self, consumer: ConsumerData, channel: ClientChannel) -> None:
        check_group(consumer.group_name)
        config = self._state.group_config(consumer.group_name)
        if config is not None:
            self._make_retry_topic(consumer, config.retry_queue_nums)
        if self._state.consumers.heartbeat(consumer, channel, self._state.clock.now_ms()):
            self.notify([consumer.group_name])

    def _make_retry_topic(self, consumer: ConsumerData, queue_nums: int) -> None:
        name = names.retry_topic(consumer.group_name)
        if len(name) > MAX_TOPIC_LENGTH:
            return
        _, made = self._state.topics.create_fixed(
            name,
            queue_nums,
            READ_WRITE,
            self._state.clock.now_ms(),
            sys_flag=UNIT_SUB_FLAG if consumer.unit_mode else 0,
        )
        if made:
            self._state.changes.topics_changed(None, oneway=True)


def _push(connection: Connection, header: NotifyConsumerIdsChangedRequestHeader) -> None:
    request = Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True)
    # A member that is gone or takes nothing finds out by its own rebalance timer.
    with suppress(RemotingError):
        connection.send_oneway(request)
