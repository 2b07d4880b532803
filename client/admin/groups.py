"""Consumer groups: creating and deleting them, their members, offsets and lag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from msgspec import structs

from client.admin.base import AdminBase, decoded
from client.admin.descriptions import (
    GroupDescription,
    Member,
    merged,
    of_apache,
    of_ours,
)
from client.errors import (
    NotFound,
    NotOnline,
    NotSupported,
    RemoteError,
    Unavailable,
    UsageError,
    remote_error,
)
from client.limits import RUNNING_INFO_TIMEOUT
from client.positions import check_group, check_topic_name, instant, known_instant, milliseconds
from remoting.protocol.bodies import description as wire
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.clients import (
    ConnectionInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.stats import ConsumeStats, GroupList, OffsetWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.admin import TopicRequestHeader
from remoting.protocol.headers.group import (
    ConsumerGroupRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetProducerConnectionListRequestHeader,
)
from remoting.protocol.headers.pull import (
    CloneGroupOffsetRequestHeader,
    ResetOffsetRequestHeader,
)
from remoting.protocol.headers.query import GetConsumeStatsRequestHeader
from remoting.protocol.names import is_system_group, is_tool_group
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueLag:
    """A group's progress in one queue.

    Attributes:
        end: the offset the next message will get.
        committed: the committed offset; 0 also if nothing is committed.
        owner: the client id of the member that reads it; None if there is none, or not asked for.
        consumed_at: when the last message before ``committed`` was stored, or None.
    """

    end: int
    committed: int
    owner: str | None = None
    consumed_at: datetime | None = None

    @property
    def messages(self) -> int:
        """The number of messages not consumed."""
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind, per queue and in total.

    Attributes:
        per_second: the messages that it gets per second, by the brokers' counts of the last minute;
            only ``Admin.lags`` finds it.
    """

    group: str
    queues: dict[MessageQueue, QueueLag] = field(default_factory=dict)
    per_second: float = 0.0

    @property
    def total(self) -> int:
        """The number of messages not consumed in all queues."""
        return sum(queue.messages for queue in self.queues.values())


class GroupAdmin(AdminBase):
    """The part of ``Admin`` about groups: settings, members, offsets and lag."""

    async def create_group(
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
        check_group(group)
        if min(max_retries or 0, retry_queues or 0) < 0:
            raise UsageError("max_retries and retry_queues can't be negative", group=group)
        settings = {
            "retry_max_times": max_retries,
            "retry_queue_nums": retry_queues,
            "consume_enable": consume,
            "consume_broadcast_enable": broadcast,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        for address in (await self._masters(cluster, brokers)).values():
            config = await self._group_config(address, group)
            if config is None:
                config = SubscriptionGroupConfig(group_name=group)
            await self._remote.call(
                address,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=encode(structs.replace(config, **given)),
                group=group,
            )

    async def delete_group(
        self, group: str, *, remove_offsets: bool = False, cluster: str | None = None
    ) -> None:
        """Delete a consumer group at every broker.

        Args:
            remove_offsets: also delete its committed offsets.
        """
        check_group(group)
        header = DeleteSubscriptionGroupRequestHeader(
            group_name=group, remove_offset=remove_offsets, clean_offset=remove_offsets
        )
        for address in (await self._masters(cluster)).values():
            await self._remote.call(
                address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header, group=group
            )

    async def groups(self, *, internal: bool = False) -> list[str]:
        """Return the names of all consumer groups, sorted.

        Args:
            internal: include system groups and the groups of command-line tools.
        """
        names: set[str] = set()
        for address in (await self._readers()).values():
            names |= (await self.group_configs(address)).keys()
        if not internal:
            names = {
                name for name in names if not is_system_group(name) and not is_tool_group(name)
            }
        return sorted(names)

    async def group_configs(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all groups of one broker."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return (await self._ask(SubscriptionGroupWrapper, address, code)).subscription_group_table

    async def group_config(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """Return the group's settings by name of each broker that has it."""
        check_group(group)
        configs: dict[str, SubscriptionGroupConfig] = {}
        for name, address in (await self._readers()).items():
            config = await self._group_config(address, group)
            if config is not None:
                configs[name] = config
        if not configs:
            raise remote_error(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                "no broker has it",
                "its configuration",
                group=group,
            )
        return configs

    async def _group_config(self, address: str, group: str) -> SubscriptionGroupConfig | None:
        # GET_SUBSCRIPTIONGROUP_CONFIG would create the group.
        return (await self.group_configs(address)).get(group)

    async def groups_of(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic or have offsets in it, sorted."""
        check_topic_name(topic)
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        header = TopicRequestHeader(topic=topic)
        names: set[str] = set()
        for address in (await self._readers(topic)).values():
            answer = await self._ask(GroupList, address, code, header, topic=topic)
            names |= set(answer.group_list)
        return sorted(names)

    async def consumer_connections(self, group: str) -> ConsumerConnection:
        """Return a group's consumers and subscriptions. Raises NotOnline if it has no consumer."""
        check_group(group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        header = ConsumerGroupRequestHeader(consumer_group=group)
        merged: ConsumerConnection | None = None
        absent: NotOnline | None = None
        for address in (await self._readers()).values():
            try:
                connection = await self._ask(ConsumerConnection, address, code, header, group=group)
            except NotOnline as error:
                absent = error
                continue
            if merged is None:
                merged = connection
            else:
                merged.connection_set = _merged(merged.connection_set, connection.connection_set)
                merged.subscription_table |= connection.subscription_table
        if merged is None:
            assert absent is not None
            raise absent
        return merged

    async def producer_connections(self, group: str) -> list[ConnectionInfo]:
        """Return the clients of a producer group; an empty list if no broker has it."""
        check_group(group)
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        connections: list[ConnectionInfo] = []
        for address in (await self._readers()).values():
            try:
                answer = await self._remote.call(address, code, header, group=group)
            except RemoteError as error:
                if error.code == ResponseCode.SYSTEM_ERROR:
                    continue
                raise
            listed = decoded(ProducerConnection, answer, code, address)
            connections = _merged(connections, listed.connection_set)
        return connections

    async def producers(self) -> dict[str, list[ProducerInfo]]:
        """Return the producers of all groups, as the brokers know them from heartbeats."""
        code = RequestCode.GET_ALL_PRODUCER_INFO
        producers: dict[str, dict[str, ProducerInfo]] = {}
        for address in (await self._readers()).values():
            for group, listed in (await self._ask(ProducerTableInfo, address, code)).data.items():
                by_client_id = producers.setdefault(group, {})
                for producer in listed:
                    by_client_id.setdefault(producer.client_id, producer)
        return {
            group: list(by_client_id.values()) for group, by_client_id in sorted(producers.items())
        }

    async def consume_stats(
        self, group: str, *, topic: str | None = None
    ) -> dict[MessageQueue, OffsetWrapper]:
        """Return end, committed offset and time of the last consumed message of each queue."""
        check_group(group)
        code = RequestCode.GET_CONSUME_STATS
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        brokers = await self._readers(topic)
        offsets: dict[MessageQueue, OffsetWrapper] = {}
        for address in brokers.values():
            try:
                stats = await self._ask(
                    ConsumeStats, address, code, header, group=group, topic=topic
                )
            except NotFound:
                continue
            offsets |= stats.offset_table
        return dict(sorted(offsets.items()))

    # Members

    async def describe_group(self, group: str) -> GroupDescription:
        """Return the members, queues and problems of a group, merged from all brokers.

        A group that doesn't exist gives the same result as a group without consumers.
        """
        check_group(group)
        brokers = await self._readers()
        parts = await asyncio.gather(
            *(self._describe(name, address, group) for name, address in brokers.items())
        )
        return merged(group, parts)

    async def members(self, group: str) -> list[Member]:
        """Return the consumers that are in a group now, sorted by client id."""
        return list((await self.describe_group(group)).members)

    async def owners(self, group: str) -> dict[MessageQueue, str]:
        """Return the client id of the member that reads each queue; omit queues without one.

        PocketMQ brokers report owners. With Apache's brokers every member is asked, and those that
        don't answer are left out.
        """
        description = await self.describe_group(group)
        owners = dict(description.owners)
        if not description.complete:
            asked = await asyncio.gather(
                *(self.running_info(group, member.client_id) for member in description.members),
                return_exceptions=True,
            )
            for member, answer in zip(description.members, asked, strict=True):
                if isinstance(answer, ConsumerRunningInfo):
                    owners |= dict.fromkeys(answer.mq_table, member.client_id)
                elif not isinstance(answer, RemoteError | Unavailable):
                    raise answer
        return owners

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo:
        """Return a member's running info: its settings, and the state of each of its queues.

        Args:
            stacks: whether ``jstack`` is to have the stacks of its threads and tasks.

        Raises:
            RemoteError: it isn't connected, or doesn't answer the broker.
        """
        check_group(group)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=stacks
        )
        failure: RemoteError | Unavailable | None = None
        for address in (await self._readers()).values():
            try:
                answer = await self._remote.call(
                    address, code, header, group=group, timeout=RUNNING_INFO_TIMEOUT
                )
            except (RemoteError, Unavailable) as error:
                failure = error
                continue
            return decoded(ConsumerRunningInfo, answer, code, address)
        assert failure is not None
        raise failure

    async def _describe(self, broker: str, address: str, group: str) -> GroupDescription:
        header = ConsumerGroupRequestHeader(consumer_group=group)
        code: int = OwnRequestCode.DESCRIBE_CONSUMER_GROUP
        try:
            body = await self._ask(wire.GroupDescriptionBody, address, code, header, group=group)
            return of_ours(group, broker, body, self._context.clock.now_ms())
        except NotSupported:
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        try:
            connected = await self._ask(ConsumerConnection, address, code, header, group=group)
        except NotOnline:
            return GroupDescription(group=group, complete=False)
        return of_apache(group, connected)

    async def lag(self, group: str, *, topic: str | None = None, owners: bool = False) -> Lag:
        """Return how far a group is behind (cf. mqadmin consumerProgress).

        Args:
            topic: only this topic.
            owners: also find the owner of each queue: one more request to each broker and, with
                Apache's brokers, one to each member.
        """
        if owners:
            stats, owner = await asyncio.gather(
                self.consume_stats(group, topic=topic), self.owners(group)
            )
        else:
            stats, owner = await self.consume_stats(group, topic=topic), {}
        return Lag(
            group,
            {
                queue: QueueLag(
                    end=offsets.broker_offset,
                    committed=offsets.consumer_offset,
                    owner=owner.get(queue),
                    consumed_at=known_instant(offsets.last_timestamp),
                )
                for queue, offsets in stats.items()
            },
        )

    # Offsets

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted."""
        return list((await self._routes.fresh(topic)).readable)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message that is not deleted."""
        self._life.check()
        return await self._offsets.minimum(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        self._life.check()
        return await self._offsets.maximum(queue)

    async def search_offset(self, queue: MessageQueue, at: datetime) -> int:
        """Return the offset that the broker finds for a store time: one near it."""
        self._life.check()
        return await self._offsets.search(queue, milliseconds(at))

    async def earliest_stored_at(self, queue: MessageQueue) -> datetime | None:
        """Return when the oldest message was stored, in UTC; None for an empty queue."""
        self._life.check()
        stored_ms = await self._offsets.earliest_store_time(queue)
        return instant(stored_ms) if stored_ms >= 0 else None

    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the group's committed offset, or None, for each queue of a topic."""
        check_group(group)
        queues = await self.queues(topic)
        offsets = await asyncio.gather(*(self._offsets.committed(queue, group) for queue in queues))
        return dict(zip(queues, offsets, strict=True))

    async def clone_offsets(self, source: str, target: str, *, topic: str | None = None) -> None:
        """Copy a group's committed offsets to another group (cf. mqadmin cloneGroupOffset).

        The target's running consumers are not notified: they keep their positions, and commit them.

        Args:
            topic: only this topic.
        """
        check_group(source)
        check_group(target)
        header = CloneGroupOffsetRequestHeader(
            src_group=source, dest_group=target, topic=topic, offline=True
        )
        masters = await (self._masters() if topic is None else self._masters_of(topic))
        for address in masters.values():
            await self._remote.call(
                address, RequestCode.CLONE_GROUP_OFFSET, header, topic=topic, group=target
            )

    async def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set a group's committed offsets. Its running consumers are not notified."""
        self._life.check()
        check_group(group)
        for queue, offset in offsets.items():
            if not await self._offsets.commit(queue, group, offset):
                await self._replace_reset(queue, group, offset)

    async def _replace_reset(self, queue: MessageQueue, group: str, offset: int) -> None:
        """Replace a reset that a broker of RocketMQ 5 keeps for the group's next pull."""
        header = ResetOffsetRequestHeader(
            topic=queue.topic,
            group=group,
            timestamp=0,
            is_force=True,
            queue_id=queue.queue_id,
            offset=offset,
        )
        address = (await self._masters_of(queue.topic))[queue.broker_name]
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        await self._remote.call(address, code, header, queue=queue, group=group)

    async def all_offsets(self, address: str) -> dict[str, dict[int, int]]:
        """Return all committed offsets of one broker: ``topic@group`` to queue id to offset."""
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        return (await self._ask(ConsumerOffsetSerializeWrapper, address, code)).offset_table


def _merged(known: list[ConnectionInfo], more: list[ConnectionInfo]) -> list[ConnectionInfo]:
    """Append connections whose client ids are not known yet."""
    ids = {connection.client_id for connection in known}
    return known + [connection for connection in more if connection.client_id not in ids]
