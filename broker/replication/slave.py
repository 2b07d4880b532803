"""A slave's connection to its master: the log comes over it, byte for byte.

``LogReplica`` connects, compares the two logs, appends what arrives, and reports how far it is;
after a failure it tries again. The stream has no way to tell that two logs differ, so before the
first append the slave asks the master, by ordinary requests, where its log begins and ends, and for
the record that is the slave's last: unless the master has the same, nothing is appended.

In controller mode the stream tells by its epochs where the logs part (see ``autoswitch``); what is
behind that point here was never confirmed, and is cut before anything is appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import structlog

from broker.replication.autoswitch import AutoSwitchSlave
from broker.replication.stream import REPORT, SlaveStream, StreamError
from broker.store.engine import MessageStore
from broker.store.follow import LogDiffers
from broker.store.results import StoreError
from remoting.addresses import parse_address
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.headers.query import ViewMessageRequestHeader
from remoting.protocol.message.record import MAGIC_BLANK
from remoting.protocol.own_codes import OwnRequestCode
from remoting.runtime.clock import Clock

if TYPE_CHECKING:
    from broker.replication.membership import GroupMembership

READ_BYTES: Final = 256 * 1024
"""Bytes read at once; appending them takes about 1 ms of the loop."""

CONNECT_SECONDS: Final = 10.0
ASK_SECONDS: Final = 3.0
"""Time limit of a connection, and of a request to the master."""

RETRY_FIRST_SECONDS: Final = 0.5
RETRY_MAX_SECONDS: Final = 5.0
"""Pause after a failed connection, doubled after each further one (cf. HAClient)."""

DIFFERS_SECONDS: Final = 30.0
"""When a log that differs is compared again: the operator may have exchanged the master."""

LOOK_SECONDS: Final = 10.0
"""Between two looks at where the master's log ends, as between two copies of its tables."""

_BLANK: Final = MAGIC_BLANK.to_bytes(4, "big")

_log = structlog.get_logger("replication")


class Master(NamedTuple):
    """The addresses of a master, as ``host:port``."""

    requests: str
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """What a slave shows of itself.

    Attributes:
        master: its master; None while it is unknown.
        connected: whether the log comes over a connection now.
        master_end: physical offset where the master's log ended at the last look.
        master_newest_ms: store time of that log's last record, ms since the epoch; 0 if unknown:
            Apache's masters don't tell it.
        heard_at: when the master was heard last, monotonic seconds; None for never.
        problem: why nothing comes, as a sentence; None if there is no problem.
        differs: whether the problem is that the two logs differ, which does not pass by itself.
    """

    master: Master | None = None
    connected: bool = False
    master_end: int = 0
    master_newest_ms: int = 0
    heard_at: float | None = None
    problem: str | None = None
    differs: bool = False


class Request(Protocol):
    """Sends a request to an address, and returns the answer; raises ``RemotingError``."""

    def __call__(
        self, address: str, command: Command, *, timeout: float
    ) -> Coroutine[Any, Any, Command]:
        """Send the request."""
        ...


class NotFollowing(Exception):
    """The master can't be followed now."""


class LogReplica:
    """Keeps the store a copy of the master's.

    Attributes:
        state: for doctor, metrics and ``haStatus``.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        ask: Request,
        find_master: Callable[[], Awaitable[Master | None]],
        group: GroupMembership | None = None,
    ) -> None:
        """Create a replica of an open store.

        Args:
            store: gets the master's log.
            clock: the time.
            ask: sends requests to the master.
            find_master: looks up the master's addresses; None if they are unknown.
            group: of a broker in controller mode.
        """
        self._store = store
        self._clock = clock
        self._ask = ask
        self._find_master = find_master
        self._group = group
        self._on_news: Callable[[], None] = lambda: None
        self._grown = asyncio.Event()
        self.state = ReplicaState()

    @property
    def lag_bytes(self) -> int:
        """Bytes of the master's log that this one lacked at the last look."""
        return max(0, self.state.master_end - self._store.log.end)

    @property
    def lag_seconds(self) -> float | None:
        """How much older this log's last record is than the master's was at the last look.

        None if that is unknown: one of them has no record, or the master does not tell.
        """
        if not self.lag_bytes:
            return 0.0
        newest, own = self.state.master_newest_ms, self._store.writer.last_store_ms
        return max(0, newest - own) / 1000 if newest and own else None

    async def run(self, on_news: Callable[[], None] = lambda: None) -> None:
        """Follow the master until cancelled.

        ``on_news`` is called when the log begins to come, and when it has new queues.
        """
        self._on_news = on_news
        pause = RETRY_FIRST_SECONDS
        while True:
            begun = self._clock.monotonic()
            try:
                await self._follow()
            except LogDiffers as error:
                self._stopped(str(error), differs=True)
                await asyncio.sleep(DIFFERS_SECONDS)
                continue
            except (NotFollowing, StreamError, StoreError, RemotingError, OSError) as error:
                self._stopped(str(error) or repr(error), differs=False)
            if self._clock.monotonic() - begun > RETRY_MAX_SECONDS:
                pause = RETRY_FIRST_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_SECONDS)

    def _stopped(self, problem: str, *, differs: bool) -> None:
        before = self.state
        self.state = replace(before, connected=False, problem=problem, differs=differs)
        if problem != before.problem:
            write = _log.error if differs else _log.warning
            write("not replicating", reason=problem, master=before.master)

    # --- one connection

    async def _follow(self) -> None:
        # Each time: the one that has failed may have been replaced.
        master = await self._find_master()
        if master is None and self._group is not None:
            raise NotFollowing(self._group.why_no_master)
        if master is None:
            raise NotFollowing(
                "no name server has a master of this broker's name: start it, or set"
                " haMasterAddress"
            )
        self.state = replace(self.state, master=master)
        stream, hello = await self._open_stream(master)
        host, port = parse_address(master.stream)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(host, port, limit=READ_BYTES)
        except (TimeoutError, OSError) as error:
            raise NotFollowing(
                f"no connection to the master's replication port {master.stream}:"
                f" {str(error) or 'no answer'}"
            ) from error
        writer.write(hello)
        # No task group: it forgets that it was cancelled if one of its tasks fails meanwhile.
        work = self._receive(reader, stream, master), self._report(writer, stream)
        tasks = [asyncio.create_task(one) for one in (*work, self._keep_looking(master))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # What was received tells more than a connection that is lost.
            for task in tasks:
                if task.done():
                    await task  # raises why it ended
        finally:
            writer.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(
        self, reader: asyncio.StreamReader, stream: SlaveStream, master: Master
    ) -> None:
        while True:
            data = await reader.read(READ_BYTES)
            if not data:
                raise StreamError(f"the master {master.stream} closed the connection")
            stream.receive(data, self._clock.monotonic())
            if isinstance(stream, AutoSwitchSlave) and not await self._agree(stream):
                continue
            if not self.state.connected:
                # The first frame shows that the master sends what follows this log.
                self.state = replace(self.state, connected=True, problem=None, differs=False)
                _log.info("replicating", master=master.stream, offset=self._store.log.end)
                self._on_news()
            queues = len(self._store.queues)
            self._append(stream)
            self._grown.set()
            if len(self._store.queues) > queues:
                self._on_news()
            # Data that is there already would not let others run.
            await asyncio.sleep(0)

    def _append(self, stream: SlaveStream) -> None:
        store = self._store
        if stream.begin != store.log.end:
            store.follower.begin(stream.begin)
        known = self.state.master_end
        while stream.pending and (size := store.follower.append(stream.pending, known)):
            stream.appended(size)
        end = max(self.state.master_end, stream.end)
        self.state = replace(self.state, master_end=end, heard_at=self._clock.monotonic())
        if isinstance(stream, AutoSwitchSlave):
            store.syncer.confirm(stream.confirmed)
        if store.config.syncs:
            store.when_durable(store.log.end, lambda _: self._grown.set())

    async def _report(self, writer: asyncio.StreamWriter, stream: SlaveStream) -> None:
        store = self._store
        while True:
            self._grown.clear()
            now = self._clock.monotonic()
            if report := stream.report(store.syncer.safe_end, now):
                writer.write(report)
                await writer.drain()
            with suppress(TimeoutError):
                # No report is due before the handshake.
                async with asyncio.timeout(max(stream.pause(now), 0.1)):
                    await self._grown.wait()

    async def _keep_looking(self, master: Master) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            # The stream shows whether the master is there.
            with suppress(NotFollowing):
                await self._look(master)

    # --- before it

    async def _open_stream(self, master: Master) -> tuple[SlaveStream, bytes]:
        """Return the stream that continues this log, and what is sent first."""
        if self._group is None:
            return await self._compare(master), await self._token(master)
        store = self._store
        if store.log.end > store.log.start and not len(self._group.epochs):
            # Written outside of a group: only the last record can tell.
            await self._compare(master)
        else:
            await self._look(master)
        token = await self._token(master)
        stream = AutoSwitchSlave(
            self._group.broker_id,
            self._group.epochs,
            store.log.end,
            self._clock.monotonic(),
            confirmed=store.syncer.confirmed,
            # Apache's master drops an epoch that begins where the one before it has no byte.
            epoch=self._group.role.epoch if token else -1,
        )
        return stream, token + stream.hello

    async def _agree(self, stream: AutoSwitchSlave) -> bool:
        """Carry out what the master's epochs demand; return False before they are here.

        Raises:
            NotFollowing: the log has to be cut first, for which the store is closed.
        """
        group, store, plan = self._group, self._store, stream.plan
        assert group is not None
        if plan is None:
            return False
        if plan.epochs is group.epochs:
            return True
        if plan.point < store.log.end:
            if not await self._is_border(plan.point):
                raise LogDiffers(
                    f"the master's log parts from this one at offset {plan.point}, inside a record:"
                    " move this store away and start with an empty one"
                )
            group.cut_at(plan.point)
            raise NotFollowing(
                f"this log is cut at offset {plan.point}, where it parts from the master's"
            )
        group.save_epochs(plan.epochs)
        stream.accept(self._clock.monotonic())
        self._grown.set()
        return False

    async def _is_border(self, point: int) -> bool:
        """Return whether a record, a blank one or a file begins at an offset."""
        log = self._store.log
        head = log.slice(point, 8)
        if point % log.file_size == 0 or (head is not None and head[4:] == _BLANK):
            return True
        return await self._store.cold_reads.record_at(self, point) is not None

    async def _compare(self, master: Master) -> SlaveStream:
        """Compare the logs, and return the stream that continues this one.

        Raises:
            LogDiffers: they differ.
            NotFollowing: the master does not answer.
        """
        start, end = await self._look(master)
        store, now = self._store, self._clock.monotonic()
        own = store.log.end
        if own == store.log.start:
            if start:
                store.follower.begin(start)
                return SlaveStream(start, now)
            return SlaveStream(0, now, assumed=b"\0" if end else b"")
        if own > end:
            raise LogDiffers(
                f"this log ends at offset {own}, and that of the master {master.requests} at {end}:"
                " this one has messages that the master lacks. Move this store away and start with"
                " an empty one, or make this broker the master"
            )
        if own < start:
            raise LogDiffers(
                f"this log ends at offset {own}, and that of the master {master.requests} begins at"
                f" {start}: what is between has been deleted there. Start with an empty store"
            )
        last = store.follower.last
        if last >= start and not await self._has_same(master, last):
            raise LogDiffers(
                f"the record at offset {last}, this log's last, is another one at the master"
                f" {master.requests}: the stores differ. Move this store away and start with an"
                " empty one"
            )
        return SlaveStream(own, self._clock.monotonic())

    async def _token(self, master: Master) -> bytes:
        """Return what a master of ours lets this slave in with, and nothing for Apache's."""
        request = Command.request(OwnRequestCode.GET_REPLICATION_TOKEN)
        unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        reply = await self._request(master, request, codes=(unknown,))
        return bytes(reply.body) if len(reply.body) == REPORT.size else b""

    async def _look(self, master: Master) -> tuple[int, int]:
        """Return the physical offsets where the master's log begins and ends."""
        reply = await self._request(master, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        try:
            table = decode(KVTable, reply.body).table
            start, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
            newest_ms = int(table.get("pocketmqNewestMessageMs", "0"))
        except (ProtocolError, KeyError, ValueError) as error:
            raise NotFollowing(
                f"the master {master.requests} does not tell where its log begins: {error!r}"
            ) from error
        now = self._clock.monotonic()
        self.state = replace(self.state, master_end=end, master_newest_ms=newest_ms, heard_at=now)
        return start, end

    async def _has_same(self, master: Master, offset: int) -> bool:
        own = await self._store.cold_reads.record_at(self, offset)
        header = ViewMessageRequestHeader(offset=offset)
        request = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, header)
        reply = await self._request(master, request, codes=(ResponseCode.SYSTEM_ERROR,))
        return own is not None and reply.code == ResponseCode.SUCCESS and reply.body == bytes(own)

    async def _request(
        self, master: Master, command: Command, *, codes: tuple[int, ...] = ()
    ) -> Command:
        try:
            reply = await self._ask(master.requests, command, timeout=ASK_SECONDS)
        except RemotingError as error:
            raise NotFollowing(str(error)) from error
        if reply.code != ResponseCode.SUCCESS and reply.code not in codes:
            raise NotFollowing(
                f"the master {master.requests} answered code {reply.code}: {reply.remark}"
            )
        return reply
