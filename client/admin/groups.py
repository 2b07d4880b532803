"""Groups: making and deleting them, and what brokers answer about them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from client.admin.base import AdminBase
from client.errors import NotFound, NotOnline, NotSupported, RemoteError, UsageError, remote_error
from client.names import check_group, check_topic_name
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.clients import Connection, ConsumerConnection, ProducerConnection
from remoting.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from remoting.protocol.bodies.stats import ConsumeStats, GroupList, OffsetWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.group import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from remoting.protocol.headers.query import (
    GetConsumeStatsRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from remoting.protocol.names import is_system_group, is_tool_group
from remoting.protocol.queue import MessageQueue


class GroupAdmin(AdminBase):
    """The part of ``Admin`` about groups."""

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
        """Make a consumer group, or change what is given of it, at every master broker.

        A setting that isn't given stays as it is where the group exists, and has the default value
        where it doesn't.

        Args:
            max_retries: deliveries again before a message is a dead letter; 16 by default.
            retry_queues: of its retry topic; 1 by default.
            consume: False: it may not consume.
            broadcast: it may consume in broadcasting mode, as it may by default.
            cluster, brokers: only at the masters of this cluster, or with these names.
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
            remove_offsets: also forget how far it has come.
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
        """The names of all consumer groups, sorted.

        Args:
            internal: also those that every broker has for itself, and those of the command line.
        """
        names: set[str] = set()
        for address in (await self._masters()).values():
            names |= (await self.group_configs(address)).keys()
        if not internal:
            names = {
                name for name in names if not is_system_group(name) and not is_tool_group(name)
            }
        return sorted(names)

    async def group_configs(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """The settings of all groups of one broker."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        answer = await self._remote.call(address, code)
        return self._decode(
            SubscriptionGroupWrapper, answer, code, address
        ).subscription_group_table

    async def group_config(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """The group's settings by name of each broker that has it."""
        check_group(group)
        found: dict[str, SubscriptionGroupConfig] = {}
        for name, address in (await self._masters()).items():
            config = await self._group_config(address, group)
            if config is not None:
                found[name] = config
        if not found:
            raise remote_error(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                "no broker has it",
                "its configuration",
                group=group,
            )
        return found

    async def _group_config(self, address: str, group: str) -> SubscriptionGroupConfig | None:
        code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
        try:
            answer = await self._remote.call(
                address, code, GetSubscriptionGroupConfigRequestHeader(group=group), group=group
            )
        except NotSupported:
            return (await self.group_configs(address)).get(group)
        except RemoteError as error:
            if error.code in {
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                ResponseCode.QUERY_NOT_FOUND,
            }:
                return None
            raise
        return self._decode(SubscriptionGroupConfig, answer, code, address)

    async def groups_of(self, topic: str) -> list[str]:
        """The groups that consume a topic, or have: those with offsets too; sorted."""
        check_topic_name(topic)
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        names: set[str] = set()
        for address in (await self._masters_of(topic)).values():
            answer = await self._remote.call(
                address, code, QueryTopicConsumeByWhoRequestHeader(topic=topic), topic=topic
            )
            names |= set(self._decode(GroupList, answer, code, address).group_list)
        return sorted(names)

    async def consumer_connections(self, group: str) -> ConsumerConnection:
        """Who consumes in a group, and what. Raises NotOnline when nobody does."""
        check_group(group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        merged: ConsumerConnection | None = None
        absent: NotOnline | None = None
        for address in (await self._masters()).values():
            try:
                answer = await self._remote.call(address, code, header, group=group)
            except NotOnline as error:
                absent = error
                continue
            found = self._decode(ConsumerConnection, answer, code, address)
            if merged is None:
                merged = found
            else:
                merged.connection_set = _merged(merged.connection_set, found.connection_set)
                merged.subscription_table |= found.subscription_table
        if merged is None:
            assert absent is not None
            raise absent
        return merged

    async def producer_connections(self, group: str) -> list[Connection]:
        """The clients that produce in a group; none when no broker knows it."""
        check_group(group)
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        found: list[Connection] = []
        for address in (await self._masters()).values():
            try:
                answer = await self._remote.call(address, code, header, group=group)
            except RemoteError as error:
                if error.code == ResponseCode.SYSTEM_ERROR:
                    continue
                raise
            listed = self._decode(ProducerConnection, answer, code, address)
            found = _merged(found, listed.connection_set)
        return found

    async def consume_stats(
        self, group: str, *, topic: str | None = None
    ) -> dict[MessageQueue, OffsetWrapper]:
        """End, committed offset and time of the last consumed message of each queue."""
        check_group(group)
        code = RequestCode.GET_CONSUME_STATS
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        masters = await (self._masters() if topic is None else self._masters_of(topic))
        found: dict[MessageQueue, OffsetWrapper] = {}
        for address in masters.values():
            try:
                answer = await self._remote.call(address, code, header, group=group, topic=topic)
            except NotFound:
                continue
            found |= self._decode(ConsumeStats, answer, code, address).offset_table
        return dict(sorted(found.items()))


def _merged(known: list[Connection], more: list[Connection]) -> list[Connection]:
    """Connections of several brokers: a client that is connected to each counts once."""
    ids = {connection.client_id for connection in known}
    return known + [connection for connection in more if connection.client_id not in ids]
