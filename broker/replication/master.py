"""A master's replication port: each slave that connects gets the log, and acknowledges it.

Each connection has its own task, which waits for its slave alone, so a slow, silent or lying slave
holds up nobody. Parts of the log that may not be in memory are read by the store's threads first.
With ``SYNC_FLUSH`` only what is on the disk is sent: after a power cut, a slave must not have
messages that its master has lost.

The stream of Apache's slaves has no names and no signatures: of them an address decides. A slave of
ours asks for a token first, by an ordinary request, which an account may have to sign; it sends the
token on its next connection, which may come from any address.

In controller mode the stream is that of ``autoswitch``, and acknowledgements count for the replicas
in sync.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from broker.replication.autoswitch import AutoSwitchMaster
from broker.replication.in_sync import ReplicaLink
from broker.replication.stream import (
    REPORT,
    TRANSFER_BYTES,
    MasterStream,
    StreamError,
    first_offset,
)
from broker.store.engine import MessageStore
from broker.store.results import FileRange, StoreError
from remoting.addresses import address_text
from remoting.runtime.clock import Clock
from remoting.runtime.log import RateLimitedLog
from remoting.runtime.tasks import Supervisor
from remoting.server import bind_failed

if TYPE_CHECKING:
    from broker.replication.membership import GroupMembership

MAX_GAP_BYTES: Final = 256 * 1024 * 1024
"""A slave that lacks less than this counts as in sync (cf. haSlaveFallbehindMax)."""

MAX_SLAVES: Final = 16
"""Connections at the same time; further ones are closed.

So many more may wait for their tokens: for another one the oldest of them is closed.
"""

READ_BYTES: Final = 4096
"""Bytes of reports read at once."""

TURN_BYTES: Final = 8 * TRANSFER_BYTES
"""Bytes sent to one slave before others run."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a part that is read from the disk at once."""

REFUSAL_SECONDS: Final = 5.0
"""How long a refused connection stays open: Apache's slaves connect again at once."""

TOKEN_SECONDS: Final = 10.0
"""How long a token is valid, and how long a connection may take to send one."""

_MOST_TOKEN: Final = -1 << 63

_log = structlog.get_logger("replication")


async def check_port(host: str, port: int) -> None:
    """Raise ``BindFailed`` unless a server can listen on a port."""
    try:
        server = await asyncio.start_server(lambda *_: None, host, port)
    except OSError as error:
        raise bind_failed(address_text((host, port)), error) from error
    server.close()


class SlaveLink:
    """One connection of a slave.

    Attributes:
        address: of the slave, ``host:port``.
        stream: what was sent and acknowledged.
        connected_ms: when it connected, ms since the epoch.
        replica: what counts for the replicas in sync (controller mode); None before its handshake.
    """

    def __init__(
        self, address: str, stream: MasterStream, connected_ms: int, close: Callable[[], None]
    ) -> None:
        self.address = address
        self.stream = stream
        self.connected_ms = connected_ms
        self.close = close
        self.replica: ReplicaLink | None = None
        self.wake = asyncio.Event()


class ReplicationServer:
    """Sends the log of an open store to slaves.

    Attributes:
        links: the slaves that are connected.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        *,
        host: str,
        port: int,
        is_allowed: Callable[[str], bool] = lambda _: True,
        rate: Callable[[], int | None] = lambda: None,
        group: GroupMembership | None = None,
    ) -> None:
        """Create the server.

        Args:
            store: whose log is sent.
            clock: the time.
            host: to listen on.
            port: to listen on; 0 for a free one.
            is_allowed: returns whether a slave may connect from an address without a token.
            rate: returns the most bytes per second for each slave; None: no limit.
            group: of a broker in controller mode, which is its master.
        """
        self._store = store
        self._clock = clock
        self._host = host
        self._port = port
        self._is_allowed = is_allowed
        self._rate = rate
        self._group = group
        self._tokens: dict[int, float] = {}
        self._strangers: list[SlaveLink] = []
        self._refusals = RateLimitedLog(clock, _log.warning)
        self._server: asyncio.Server | None = None
        self._supervisor = Supervisor("replication")
        self.links: list[SlaveLink] = []

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._port

    def available(self, end_offset: int) -> bool:
        """Return whether a slave is connected that lacks little of the log up to an offset.

        A group's master has refused the message if it has too few replicas.
        """
        return self._group is not None or any(
            link.stream.request is not None and end_offset - link.stream.acked < MAX_GAP_BYTES
            for link in self.links
        )

    @property
    def replicated(self) -> int:
        """Physical offset up to which at least one connected slave, or the group, has the log."""
        if self._group is not None:
            return self._group.acknowledged(self._end)
        return max((link.stream.acked for link in self.links), default=0)

    def confirmed(self, end: int) -> int:
        """Return the confirm offset of a log that is safe here up to ``end``."""
        return end if self._group is None else self._group.advance(end)

    def new_token(self) -> bytes:
        """Return a token that lets one connection in, if it comes within ``TOKEN_SECONDS``."""
        while len(self._tokens) >= MAX_SLAVES:
            del self._tokens[next(iter(self._tokens))]
        token = _MOST_TOKEN + secrets.randbits(63)
        self._tokens[token] = self._clock.monotonic() + TOKEN_SECONDS
        return REPORT.pack(token)

    async def start(self) -> None:
        """Listen. Raises ``BindFailed``."""
        try:
            self._server = await asyncio.start_server(
                self._accept, self._host, self._port, start_serving=False
            )
            # Apart: cancelled here, ``start_server`` would leave a socket that listens.
            await self._server.start_serving()
        except OSError as error:
            raise bind_failed(address_text((self._host, self._port)), error) from error
        self._port = self._server.sockets[0].getsockname()[1]
        self._store.syncer.wait_for(self)

    async def stop(self) -> None:
        """Close all connections; may be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self._supervisor.close()

    # --- one connection

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: asyncio reports the cancellation of its tasks as an error.
        if self._supervisor.closed:
            writer.transport.abort()
        else:
            self._supervisor.spawn(self._serve(reader, writer), "slave")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port, *_ = writer.get_extra_info("peername")
        now = self._clock.monotonic()
        group = self._group
        stream = MasterStream(now) if group is None else AutoSwitchMaster(group.epochs, now)
        abort = writer.transport.abort
        link = SlaveLink(address_text((host, port)), stream, self._clock.now_ms(), abort)
        try:
            await self._admit(host, reader, link)
        except (StreamError, TimeoutError, OSError) as error:
            reason = str(error) or "it sent no token"
            self._refusals.write("slave refused", slave=link.address, reason=reason)
            writer.transport.abort()
            return
        except asyncio.CancelledError:  # the server stops
            writer.transport.abort()
            raise
        self.links.append(link)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(reader, writer, link))
                tasks.create_task(self._send(writer, link))
        except* (StreamError, StoreError, OSError) as errors:
            _log.warning("slave gone", slave=link.address, reason=str(errors.exceptions[0]))
        finally:
            self.links.remove(link)
            if group is not None and link.replica is not None:
                group.disconnected(link.replica)
            self._watch()
            self._store.syncer.replicated()
            writer.transport.abort()

    async def _admit(self, host: str, reader: asyncio.StreamReader, link: SlaveLink) -> None:
        """Raise unless a slave may connect from this address, or sends a valid token."""
        if len(self.links) >= MAX_SLAVES:
            raise StreamError(f"there are {MAX_SLAVES} connections, which is the most")
        if self._is_allowed(host):
            return
        stream, strangers = link.stream, self._strangers
        if len(strangers) >= MAX_SLAVES:
            # Who has a token sends it at once: those that are silent keep nobody out.
            strangers.pop(0).close()
        strangers.append(link)
        try:
            async with asyncio.timeout(TOKEN_SECONDS):
                while stream.token is None and not stream.has_begun:
                    if not (data := await reader.read(READ_BYTES)):
                        break
                    stream.receive(data, self._clock.monotonic())
        finally:
            with suppress(ValueError):  # another one has taken its place
                strangers.remove(link)
        valid_until = 0.0 if stream.token is None else self._tokens.pop(stream.token, 0.0)
        if self._clock.monotonic() > valid_until:
            raise StreamError(
                "its address is not in pocketmqSlaveAddresses, and it has no valid token: add the"
                " address, or give a slave of PocketMQ the pocketmqCredentials of an administrator"
            )

    async def _receive(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: SlaveLink
    ) -> None:
        stream = link.stream
        if self._group is not None:
            # The handshake may have come with the token.
            self._count(self._group, link, writer)
        while True:
            now = self._clock.monotonic()
            try:
                async with asyncio.timeout(max(stream.pause(now), 0.1)):
                    data = await reader.read(READ_BYTES)
            except TimeoutError:
                continue
            if not data:
                raise StreamError("it closed the connection")
            acked = stream.acked
            asked = stream.request
            stream.receive(data, self._clock.monotonic())
            if self._group is not None:
                self._count(self._group, link, writer)
            if asked is None and stream.request is not None:
                link.wake.set()
            if stream.acked > acked:
                self._store.syncer.replicated()

    def _count(self, group: GroupMembership, link: SlaveLink, writer: asyncio.StreamWriter) -> None:
        """Answer a slave's handshake, and count what it has acknowledged for the group."""
        stream, now = link.stream, self._clock.monotonic()
        assert isinstance(stream, AutoSwitchMaster)
        if link.replica is None:
            if stream.broker_id is None:
                return
            link.replica = group.connected(stream.broker_id, now, is_learner=stream.is_learner)
            writer.write(stream.handshake(self._store.log.end))
            for other in self.links:
                if other.replica is not None and other.replica.is_void:
                    other.close()
        if stream.request is not None:
            link.replica.count(stream.acked, self._end, now)

    async def _send(self, writer: asyncio.StreamWriter, link: SlaveLink) -> None:
        stream, store = link.stream, self._store
        while stream.request is None:
            await link.wake.wait()
            link.wake.clear()
        try:
            log = store.log
            if self._group is not None and stream.request == 0:
                stream.start(log.start)
            else:
                stream.start(first_offset(stream.request, log.start, log.end, log.file_size))
        except StreamError as error:
            _log.error("a slave can't be served", slave=link.address, reason=str(error))
            await asyncio.sleep(REFUSAL_SECONDS)
            raise
        _log.info("slave connected", slave=link.address, offset=stream.sent, end=self._end)
        self._watch()
        fetched = 0
        while True:
            link.wake.clear()
            now = self._clock.monotonic()
            rate = self._rate()
            room = TURN_BYTES if rate is None else stream.room(now, rate)
            if stream.sent < self._end and room:
                if fetched <= stream.sent < store.log.recent_from:
                    fetched = await self._fetch(link, stream.sent)
                self._write_turn(writer, stream, min(room, TURN_BYTES))
                await writer.drain()
                await asyncio.sleep(0)
                continue
            pause = stream.pause(now)
            if pause == 0:
                writer.write(stream.frame(0, store.syncer.known, now))
                await writer.drain()
                continue
            if not room:
                # Growth would wake it for nothing.
                await asyncio.sleep(min(pause, stream.refill(now)))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await link.wake.wait()

    @property
    def _end(self) -> int:
        return self._store.syncer.safe_end

    async def _fetch(self, link: SlaveLink, position: int) -> int:
        """Read a part of the log into memory, in a thread; return where it ends."""
        file = self._store.log.file_at(position)
        if file is None:
            raise StreamError(f"the log from {position} on has been deleted")
        size = min(FETCH_BYTES, file.start + file.size - position)
        await self._store.cold_reads.fetch(
            link, [FileRange(file, position - file.start, position - file.start + size)]
        )
        return position + size

    def _write_turn(self, writer: asyncio.StreamWriter, stream: MasterStream, most: int) -> None:
        log, now = self._store.log, self._clock.monotonic()
        stop = min(self._end, stream.sent + most)
        while stream.sent < stop:
            file = log.file_at(stream.sent)
            if file is None:
                raise StreamError(f"the log from {stream.sent} on has been deleted")
            size = min(stream.size(stop), file.start + file.size - stream.sent)
            at = stream.sent - file.start
            data = file.view[at : at + size]
            writer.writelines((stream.frame(size, self._store.syncer.known, now), data))

    # --- what happens at the store

    def _watch(self) -> None:
        """Let the store report its growth while there are slaves."""
        self._store.watch_growth(self._grown if self.links else None)

    def _grown(self) -> None:
        for link in self.links:
            link.wake.set()
