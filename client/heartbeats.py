"""Telling brokers who uses an instance: by period, at changes, and first on each new connection.

A heartbeat is also how a dead connection is found out: one that is not answered ends it. A broker
that is busy, as each is while it starts, is told again until it listens: to the others of a group,
who it doesn't know doesn't exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from client.errors import PocketMQError
from client.heartbeat import Heartbeat, Members, Membership, about
from client.limits import HEARTBEAT_RETRY, HEARTBEAT_TIMEOUT, UNREGISTER_TIMEOUT
from client.producer.queue_selector import FaultTable
from client.remote import Remote
from client.routes import MASTER_ID, RouteTable
from remoting.connection import Connection
from remoting.errors import ConnectFailed, RemotingError, RequestTimeout
from remoting.log import Log
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import UnregisterClientRequestHeader
from remoting.tasks import Supervisor

_log = Log("client")


class Heartbeats:
    """The heartbeats of one instance.

    Args:
        faults: hears of brokers that answer.
        period: seconds between rounds.
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
    ) -> None:
        self._client_id = client_id
        self._members = members
        self._remote = remote
        self._routes = routes
        self._faults = faults
        self._tasks = tasks
        self.period = period
        self._wake = asyncio.Event()
        self._doubted: set[str] = set()
        self._repeated: set[str] = set()
        self._reconnected_at: dict[str, float] = {}
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._under_way: dict[str, set[asyncio.Future[Command]]] = {}

    # Connections

    def connected(self, address: str) -> Connection | None:
        """The open connection to a broker that has had a heartbeat."""
        connection = self._remote.pool.connected(address)
        return connection if connection is not None and connection.context is self else None

    async def connect(self, address: str, timeout: float) -> Connection:
        """A connection to a broker; on a new one the heartbeat goes first.

        Raises:
            ConnectFailed: it can't be made within ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(max(timeout, 0.0)):
                connection = await self._remote.pool.get(address)
        except TimeoutError:
            raise ConnectFailed(address, f"no connection within {timeout:.1f} s") from None
        if connection.context is not self:
            connection.context = self
            again = address in self._reconnected_at
            now = asyncio.get_running_loop().time()
            self._reconnected_at[address] = now if again else float("-inf")
            if not self._members.empty:
                for future in self._send_all(connection, address):
                    future.add_done_callback(partial(self._heard, address))
            for member in self._members.memberships:
                member.connected(address)
        return connection

    def back_for(self, address: str) -> float:
        """Seconds since a broker was connected to again; infinity: there was no break."""
        now = asyncio.get_running_loop().time()
        return now - self._reconnected_at.get(address, float("-inf"))

    def _heard(self, address: str, future: asyncio.Future[Command]) -> None:
        """What became of a connection's first heartbeat."""
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, RequestTimeout) or (error is None and _is_busy(future.result())):
            self._repeat(address)

    def _repeat(self, address: str) -> None:
        """A broker didn't take a heartbeat: it gets another one soon."""
        if address not in self._repeated:
            self._repeated.add(address)
            self._tasks.spawn(self._beat_again(address), f"heartbeat again {address}")

    async def _beat_again(self, address: str) -> None:
        await asyncio.sleep(HEARTBEAT_RETRY)
        self._repeated.discard(address)
        if self.connected(address) is not None:
            await self.now(address)

    def doubt(self, address: str) -> None:
        """A request was not answered: a heartbeat finds out whether the connection is dead."""
        if self.connected(address) is not None and address not in self._doubted:
            self._doubted.add(address)
            task = self._tasks.spawn(self._beat_one(address, address), f"doubt {address}")
            task.add_done_callback(lambda _: self._doubted.discard(address))

    # Rounds

    def soon(self) -> None:
        """What heartbeats say has changed: tell the brokers now."""
        self._wake.set()

    async def run(self) -> None:
        """Heartbeats, for ever."""
        while True:
            try:
                async with asyncio.timeout(self.period):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            if not self._members.empty:
                await self._beat_all()

    async def _beat_all(self) -> None:
        await asyncio.gather(
            *(
                self._beat_one(name, address)
                for name, addresses in self._routes.brokers().items()
                for broker_id, address in addresses.items()
                if broker_id == MASTER_ID or self._members.consuming
            )
        )

    async def now(self, address: str) -> None:
        """A heartbeat for one broker at once; those who ask for it meanwhile share it."""
        task = self._beating.get(address)
        if task is None:
            task = self._tasks.spawn(self._beat_one(address, address), f"heartbeat {address}")
            self._beating[address] = task
            task.add_done_callback(lambda _: self._beating.pop(address, None))
        await asyncio.shield(task)

    async def _beat_one(self, broker: str, address: str) -> None:
        connection: Connection | None = None
        try:
            connection = await self.connect(address, HEARTBEAT_TIMEOUT)
            for answer in await asyncio.gather(*self._send_all(connection, address)):
                if _is_busy(answer):
                    self._repeat(address)
                elif answer.code != ResponseCode.SUCCESS:
                    _log.warning("heartbeat refused", broker=broker, remark=answer.remark)
        except RemotingError as error:
            if connection is not None and isinstance(error, RequestTimeout):
                connection.abort("no answer to a heartbeat")
            _log.warning("heartbeat failed", broker=broker, address=address, error=str(error))
            return
        self._faults.restored(broker)

    async def join(self, address: str, member: Membership) -> Command:
        """The heartbeat with which a member joins its group at one broker; the broker's answer.

        Raises:
            RemotingError: there is none.
        """
        connection = await self.connect(address, HEARTBEAT_TIMEOUT)
        heartbeat = about(self._client_id, member, member.on_conflict)
        return await self._send(connection, address, heartbeat)

    def _send_all(self, connection: Connection, address: str) -> list[asyncio.Future[Command]]:
        """All at once: of a member that leaves meanwhile nothing is said afterwards."""
        heartbeats = self._members.heartbeats(self._client_id)
        return [self._send(connection, address, heartbeat) for heartbeat in heartbeats]

    def _send(
        self, connection: Connection, address: str, heartbeat: Heartbeat
    ) -> asyncio.Future[Command]:
        request = self._remote.request(RequestCode.HEART_BEAT, body=heartbeat.body)
        request.pairs = heartbeat.fields or None
        future = connection.request_nowait(request, timeout=HEARTBEAT_TIMEOUT)
        under_way = self._under_way.setdefault(address, set())
        under_way.add(future)
        future.add_done_callback(partial(_ended, under_way))
        return future

    # Leaving

    async def say_goodbye(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Leave a group at every broker that has had a heartbeat."""
        header = UnregisterClientRequestHeader(
            client_id=self._client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        addresses = {address for ids in self._routes.brokers().values() for address in ids.values()}
        await self._unregister_all(addresses, header)

    async def _unregister_all(
        self, addresses: Iterable[str], header: UnregisterClientRequestHeader
    ) -> None:
        known = [address for address in addresses if self.connected(address) is not None]
        await asyncio.gather(*(self._unregister(address, header) for address in known))

    async def _unregister(self, address: str, header: UnregisterClientRequestHeader) -> None:
        if under_way := self._under_way.get(address):
            # Apache's brokers serve one connection with many threads: a heartbeat that came second
            # would be that of a member, which gets its share of the queues, for two minutes.
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
        # Read once: nobody may wait for it, if the next one could not be sent.
        future.exception()


def _is_busy(answer: Command) -> bool:
    return answer.code == ResponseCode.SYSTEM_BUSY
