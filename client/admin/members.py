"""Who is in a group, who reads which queue, what is wrong with it."""

from __future__ import annotations

import asyncio

from client.admin.descriptions import (
    GroupDescription,
    Member,
    merged,
    of_apache,
    of_ours,
)
from client.admin.groups import GroupAdmin
from client.errors import NotOnline, NotSupported, RemoteError, Unavailable
from client.limits import RUNNING_INFO_TIMEOUT
from client.names import check_group
from client.places import instant
from remoting.protocol.bodies import description as wire
from remoting.protocol.bodies.clients import ConsumerConnection, ConsumerRunningInfo
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.group import (
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from remoting.protocol.own_codes import DescribeConsumerGroupRequestHeader, OwnRequestCode
from remoting.protocol.queue import MessageQueue


class MemberAdmin(GroupAdmin):
    """The part of ``Admin`` about a group's members."""

    async def describe_group(self, group: str) -> GroupDescription:
        """Members, queues and problems of a group, as all brokers see it together.

        A group that nobody consumes in has no members; one that no broker has looks the same.
        """
        check_group(group)
        masters = await self._masters()
        parts = await asyncio.gather(
            *(self._describe(name, address, group) for name, address in masters.items())
        )
        return merged(group, parts)

    async def members(self, group: str) -> list[Member]:
        """The consumers that are in a group now, sorted by client id."""
        return list((await self.describe_group(group)).members)

    async def owners(self, group: str) -> dict[MessageQueue, str]:
        """Which member, by its client id, reads which queue; queues without one are left out.

        Brokers of ours know. At Apache's the members themselves are asked, and those that don't
        answer are left out.
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

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """What a member says about itself: its settings, and what it holds of each queue.

        Raises:
            RemoteError: it isn't there, or doesn't answer the broker.
        """
        check_group(group)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id)
        failure: RemoteError | None = None
        for address in (await self._masters()).values():
            try:
                answer = await self._remote.call(
                    address, code, header, group=group, timeout=RUNNING_INFO_TIMEOUT
                )
            except RemoteError as error:
                failure = error
                continue
            return self._decode(ConsumerRunningInfo, answer, code, address)
        assert failure is not None
        raise failure

    async def _describe(self, broker: str, address: str, group: str) -> GroupDescription:
        own = DescribeConsumerGroupRequestHeader(consumer_group=group)
        code: int = OwnRequestCode.DESCRIBE_CONSUMER_GROUP
        try:
            answer = await self._remote.call(address, code, own, group=group)
        except NotSupported:
            return await self._connections(address, group)
        found = self._decode(wire.GroupDescription, answer, code, address)
        return of_ours(group, broker, found, instant(self._context.clock.now_ms()))

    async def _connections(self, address: str, group: str) -> GroupDescription:
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        try:
            answer = await self._remote.call(address, code, header, group=group)
        except NotOnline:
            return GroupDescription(group=group, complete=False)
        return of_apache(group, self._decode(ConsumerConnection, answer, code, address))
