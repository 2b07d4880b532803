"""Heartbeats of one client instance: their content, and sending them to brokers.

Heartbeats are sent periodically, when their content changes, and as the first request on each new
connection. A connection on which a heartbeat gets no answer is closed. A broker that answers
SYSTEM_BUSY, as every broker does while it starts, gets the heartbeat again until it accepts it:
until then the other members of the group don't see this one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, Protocol

from client.errors import PocketMQError, UsageError
from client.limits import HEARTBEAT_RETRY, HEARTBEAT_TIMEOUT, UNREGISTER_TIMEOUT
from client.network.remote import Remote
from client.network.routes import MASTER_ID, FaultTable, Route, RouteTable
from remoting.connection import Connection
from remoting.errors import AnswerTimeout, ConnectFailed, RemotingError
from remoting.protocol.bodies import encode, relaxed_json
from remoting.protocol.bodies.description import BlockedQueue
from remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import UnregisterClientRequestHeader
from remoting.protocol.own_codes import BLOCKED, ON_CONFLICT, STRATEGY
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor, wait_at_most

Subscriptions = Callable[[], list[SubscriptionData]]


class Membership(Protocol):
    """A consumer that shares its group's queues with the other members."""

    @property
    def group(self) -> str:
        """The consumer group."""

    @property
    def on_conflict(self) -> str:
        """What a PocketMQ broker does when this member joins and contradicts other members."""

    @property
    def strategy_name(self) -> str:
        """The name of its allocation strategy."""

    def consumer_data(self) -> ConsumerData:
        """Return its part of the heartbeat."""

    def blocked(self) -> list[BlockedQueue]:
        """Return the queues that are blocked by a failing message."""

    def asked(self, command: Command) -> Command | Awaitable[Command] | None:
        """Answer a broker's request to the group's members; None sends no answer."""

    def route_changed(self, topic: str) -> None:
        """Adapt to a topic whose queues or brokers have changed."""

    def connected(self, address: str) -> None:
        """Restore this member's state at a newly connected broker, which may have lost it."""


class Members:
    """The groups of one client's producers and consumers.

    Several consumers that choose their queues themselves may be in one group: the heartbeat names
    the group once, with all their subscriptions. Only one consumer that shares queues with other
    members may be in a group, because brokers identify members by the client id.
    """

    def __init__(self) -> None:
        self._producers: Counter[str] = Counter()
        self._consumers: dict[str, list[Subscriptions]] = {}
        self._memberships: dict[str, Membership] = {}

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send in a heartbeat."""
        return not self._producers and not self._consumers and not self._memberships

    @property
    def consuming(self) -> bool:
        """Whether there are consumers; heartbeats then go to slaves too."""
        return bool(self._consumers or self._memberships)

    @property
    def memberships(self) -> list[Membership]:
        """The consumers that share their groups' queues."""
        return list(self._memberships.values())

    def membership(self, group: str) -> Membership | None:
        """Return the member of a group, or None."""
        return self._memberships.get(group)

    def add_producer(self, group: str) -> None:
        """Count a producer of a group."""
        self._producers[group] += 1

    def remove_producer(self, group: str) -> bool:
        """Remove a producer; return True if it was its group's last."""
        self._producers[group] -= 1
        if self._producers[group] > 0:
            return False
        del self._producers[group]
        return True

    def add_consumer(self, group: str, subscriptions: Subscriptions) -> None:
        """Add a consumer; ``subscriptions`` returns its current subscriptions."""
        self._consumers.setdefault(group, []).append(subscriptions)

    def remove_consumer(self, group: str, subscriptions: Subscriptions) -> bool:
        """Remove a consumer; return True if it was its group's last."""
        members = self._consumers[group]
        members.remove(subscriptions)
        if members:
            return False
        del self._consumers[group]
        return group not in self._memberships

    def check_free(self, group: str) -> None:
        """Raise UsageError if the group already has a member here."""
        if group in self._memberships:
            raise UsageError(
                "this instance has a consumer that shares the group's queues already",
                group=group,
                hint="give the second one an instance of its own: brokers know members by the "
                "client id, which all parts of an instance have in common",
            )

    def join(self, member: Membership) -> None:
        """Add a member. Raises UsageError if the group already has one here."""
        self.check_free(member.group)
        self._memberships[member.group] = member

    def leave(self, member: Membership) -> None:
        """Remove a member."""
        if self._memberships.get(member.group) is member:
            del self._memberships[member.group]

    def route_changed(self, route: Route) -> None:
        """Pass a changed route to the members that share queues."""
        for member in self.memberships:
            member.route_changed(route.topic)

    def heartbeats(self, client_id: str) -> list[Heartbeat]:
        """Return one heartbeat per member that shares queues, and one for all others.

        Groups without subscriptions are left out: an empty subscription list would delete the
        subscriptions of the group's other members.
        """
        consumers = [
            ConsumerData(
                group_name=group,
                consume_type=ConsumeType.CONSUME_ACTIVELY,
                message_model=MessageModel.CLUSTERING,
                subscription_data_set=subscriptions,
            )
            for group, members in self._consumers.items()
            if group not in self._memberships and (subscriptions := _merged(members))
        ]
        # on_conflict applies to the heartbeat of a join; later heartbeats must not be refused.
        made = [
            member_heartbeat(client_id, member, "warn") for member in self._memberships.values()
        ]
        if self._producers or consumers or not made:
            data = HeartbeatData(
                client_id=client_id,
                producer_data_set=[ProducerData(group_name=group) for group in self._producers],
                consumer_data_set=consumers,
            )
            made.insert(0, Heartbeat(encode(data)))
        return made


class Heartbeat(NamedTuple):
    """The body of one heartbeat request, and ext fields that only PocketMQ brokers read."""

    body: bytes
    fields: tuple[tuple[str, str], ...] = ()


def member_heartbeat(client_id: str, member: Membership, on_conflict: str) -> Heartbeat:
    """Return the heartbeat of one member.

    Its ext fields describe a single member, so members that share queues get a heartbeat each.
    """
    fields = [(ON_CONFLICT, on_conflict), (STRATEGY, member.strategy_name)]
    blocked = member.blocked()
    if blocked:
        fields.append((BLOCKED, relaxed_json.dumps(blocked, standard=True).decode()))
    data = HeartbeatData(client_id=client_id, consumer_data_set=[member.consumer_data()])
    return Heartbeat(encode(data), tuple(fields))


def group_of(command: Command) -> str | None:
    """Return the group that a broker's request to a client concerns."""
    fields = command.fields
    return fields.get("consumerGroup") or fields.get("group")


GROUP_REQUESTS = frozenset(
    {
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    }
)
"""Request codes that brokers send to a group's members."""


def _merged(members: list[Subscriptions]) -> list[SubscriptionData]:
    """Return the subscriptions of all members, one per topic; the last one wins."""
    by_topic: dict[str, SubscriptionData] = {}
    for subscriptions in members:
        for subscription in subscriptions():
            by_topic[subscription.topic] = subscription
    return list(by_topic.values())


_log = Log("client")


class Heartbeats:
    """The heartbeats of one instance.

    Args:
        faults: its brokers become available again when they answer a heartbeat.
        period: seconds between rounds.
        timeout: seconds to wait for the answer to one heartbeat.
    """

    def __init__(
        self,
        client_id: str,
        members: Members,
        remote: Remote,
        routes: RouteTable,
        faults: FaultTable,
        tasks: Supervisor,
        period: float,
        timeout: float = HEARTBEAT_TIMEOUT,
    ) -> None:
        self._client_id = client_id
        self._members = members
        self._remote = remote
        self._routes = routes
        self._faults = faults
        self._tasks = tasks
        self.period = period
        self._timeout = timeout
        self._wake = asyncio.Event()
        self._probing: set[str] = set()
        self._repeated: set[str] = set()
        self._reconnected_at: dict[str, float] = {}
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._under_way: dict[str, set[asyncio.Future[Command]]] = {}

    # Connections

    def connected(self, address: str) -> Connection | None:
        """Return the open connection to a broker that has had a heartbeat, or None."""
        connection = self._remote.pool.connected(address)
        return connection if connection is not None and connection.context is self else None

    async def connect(self, address: str, timeout: float) -> Connection:
        """Return a connection to a broker; on a new one, send the heartbeats first.

        Raises:
            ConnectFailed: it can't be made within ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(max(timeout, 0.0)):
                connection = await self._remote.pool.get(address)
        except TimeoutError:
            within = f"within {timeout:.1f} s" if timeout > 0 else "before the time was up"
            raise ConnectFailed(address, f"no connection {within}") from None
        if connection.context is not self:
            connection.context = self
            again = address in self._reconnected_at
            now = asyncio.get_running_loop().time()
            self._reconnected_at[address] = now if again else float("-inf")
            if not self._members.empty:
                for future in self._send_all(connection, address):
                    future.add_done_callback(partial(self._first_answered, address))
            for member in self._members.memberships:
                member.connected(address)
        return connection

    def seconds_since_reconnect(self, address: str) -> float:
        """Return the seconds since the last reconnect to a broker; infinity without a reconnect."""
        now = asyncio.get_running_loop().time()
        return now - self._reconnected_at.get(address, float("-inf"))

    def _first_answered(self, address: str, future: asyncio.Future[Command]) -> None:
        """Repeat a connection's first heartbeat if the broker was busy or did not answer."""
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, AnswerTimeout) or (error is None and _is_busy(future.result())):
            self._repeat(address)

    def _repeat(self, address: str) -> None:
        """Send another heartbeat to a broker after HEARTBEAT_RETRY."""

        async def again() -> None:
            await asyncio.sleep(HEARTBEAT_RETRY)
            self._repeated.discard(address)
            if self.connected(address) is not None:
                await self.now(address)

        if address not in self._repeated:
            self._repeated.add(address)
            self._tasks.spawn(again(), f"heartbeat again {address}")

    def probe(self, address: str) -> None:
        """Send a heartbeat after an unanswered request, to detect a dead connection."""
        if self.connected(address) is not None and address not in self._probing:
            self._probing.add(address)
            task = self._tasks.spawn(self._beat_one(address, address), f"probe {address}")
            task.add_done_callback(lambda _: self._probing.discard(address))

    # Rounds

    def soon(self) -> None:
        """Send heartbeats without waiting for the period: their content has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await wait_at_most(self.period, self._wake)
            self._wake.clear()
            if not self._members.empty:
                await asyncio.gather(
                    *(
                        self._beat_one(name, address)
                        for name, addresses in self._routes.brokers().items()
                        for broker_id, address in addresses.items()
                        if broker_id == MASTER_ID or self._members.consuming
                    )
                )

    async def now(self, address: str) -> None:
        """Send a heartbeat to one broker; concurrent calls share one request."""
        task = self._beating.get(address)
        if task is None:
            task = self._tasks.spawn(self._beat_one(address, address), f"heartbeat {address}")
            self._beating[address] = task
            task.add_done_callback(lambda _: self._beating.pop(address, None))
        await asyncio.shield(task)

    async def _beat_one(self, broker: str, address: str) -> None:
        connection: Connection | None = None
        try:
            connection = await self.connect(address, self._timeout)
            for answer in await asyncio.gather(*self._send_all(connection, address)):
                if _is_busy(answer):
                    self._repeat(address)
                elif answer.code != ResponseCode.SUCCESS:
                    _log.warning("heartbeat refused", broker=broker, remark=answer.remark)
        except RemotingError as error:
            if connection is not None and isinstance(error, AnswerTimeout):
                connection.abort("no answer to a heartbeat")
            _log.warning("heartbeat failed", broker=broker, address=address, error=str(error))
            return
        self._faults.restored(broker)

    async def join(self, address: str, member: Membership) -> Command:
        """Send the heartbeat with which a member joins its group at one broker; return the answer.

        Raises:
            RemotingError: no connection, or no answer.
        """
        connection = await self.connect(address, self._timeout)
        heartbeat = member_heartbeat(self._client_id, member, member.on_conflict)
        return await self._send(connection, address, heartbeat)

    def _send_all(self, connection: Connection, address: str) -> list[asyncio.Future[Command]]:
        """Send all heartbeats without an await in between, so that no member leaves meanwhile."""
        heartbeats = self._members.heartbeats(self._client_id)
        return [self._send(connection, address, heartbeat) for heartbeat in heartbeats]

    def _send(
        self, connection: Connection, address: str, heartbeat: Heartbeat
    ) -> asyncio.Future[Command]:
        request = self._remote.request(RequestCode.HEART_BEAT, body=heartbeat.body)
        request.pairs = heartbeat.fields or None
        future = connection.request_nowait(request, timeout=self._timeout)
        under_way = self._under_way.setdefault(address, set())
        under_way.add(future)
        future.add_done_callback(partial(_ended, under_way))
        return future

    # Leaving

    async def unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Unregister from a group at every broker that has had a heartbeat."""
        header = UnregisterClientRequestHeader(
            client_id=self._client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        addresses = {address for ids in self._routes.brokers().values() for address in ids.values()}
        connected = [address for address in addresses if self.connected(address) is not None]
        await asyncio.gather(*(self._unregister_at(address, header) for address in connected))

    async def _unregister_at(self, address: str, header: UnregisterClientRequestHeader) -> None:
        if under_way := self._under_way.get(address):
            # Apache's brokers serve the requests of one connection with several threads. A
            # heartbeat served after the unregistration would register the client again and keep
            # queues allocated to it for two minutes.
            await asyncio.wait(under_way, timeout=UNREGISTER_TIMEOUT)
        try:
            await self._remote.call(
                address, RequestCode.UNREGISTER_CLIENT, header, timeout=UNREGISTER_TIMEOUT
            )
        except PocketMQError as error:
            _log.debug("not unregistered", address=address, error=str(error))


def _ended(under_way: set[asyncio.Future[Command]], future: asyncio.Future[Command]) -> None:
    under_way.discard(future)
    if not future.cancelled():
        # asyncio logs an exception that is never retrieved, and the caller may not be waiting
        # any more because the next heartbeat could not be sent.
        future.exception()


def _is_busy(answer: Command) -> bool:
    return answer.code == ResponseCode.SYSTEM_BUSY
