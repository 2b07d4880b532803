"""Copying a master's tables: topics, groups, consumer offsets and the progress of delays.

A slave asks for them with the requests that Apache's slaves send (cf. SlaveSynchronize), from
either kind of master. A table is decoded completely before it replaces the slave's, so an answer
that is damaged or cut changes nothing.

Consumers that read from the slave commit there. Of each queue the newer offset counts: the master's
if it has changed since the last copy, and is not less than one committed here in the meantime; a
reset at the master, to a lower offset, always counts. Higher offsets of the slave are committed at
the master.

What the master has delivered, of delays and timers, counts here once the log has these deliveries:
otherwise a master that is lost takes them with it, and nobody delivers them again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Container
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from broker.delivery.transactions import GROUP
from broker.errors import LimitReached
from broker.replication.slave import ASK_SECONDS, Master, Request
from broker.saved_tables import REQUEST_MODES
from broker.store.os_files import Files
from broker.store.results import StoreError
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.body import Body
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    MessageRequestModeSerializeWrapper,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.bodies.topic import TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.disk import timer
from remoting.protocol.disk.timer import TimerCheck, decode_check, encode_check
from remoting.protocol.errors import ProtocolError
from remoting.protocol.headers.pull import UpdateConsumerOffsetRequestHeader

if TYPE_CHECKING:
    from broker.saved_tables import SavedTables
    from broker.state import BrokerState

SHORTEST_PAUSE_SECONDS: Final = 0.5
"""Between two copies, however much is new."""

COMMITS_AT_ONCE: Final = 1000
"""Most offsets that are committed at the master after one copy; the rest follows with the next."""

LOOK_SECONDS: Final = 0.05
"""Between two looks at whether the log has come."""

_EMPTY: Final = "the table has no rows, but every broker has topics and groups of its own"

BodyT = TypeVar("BodyT", bound=Body)
Offsets = dict[str, dict[int, int]]

_log = structlog.get_logger("replication")


class TableCopy:
    """Keeps a slave's tables a copy of its master's."""

    def __init__(self, state: BrokerState, saved: SavedTables, files: Files, ask: Request) -> None:
        """Create it.

        Args:
            state: whose tables are replaced.
            saved: writes them.
            files: the file system.
            ask: sends requests to the master.
        """
        self._state = state
        self._saved = saved
        self._files = files
        self._timers = TimerCheck()
        self._ask = ask
        self._wake = asyncio.Event()
        self._absent: set[str] = set()
        self._recreated: set[str] = set()
        state.store.follower.when_recreated(self._topic_recreated)
        # The master's offsets and this broker's, as of the last copy.
        self._at_master: Offsets = {}
        self._here: Offsets = {}
        self._problems: set[str] = set()
        self._copying = asyncio.Lock()

    def soon(self) -> None:
        """Copy the tables now."""
        self._wake.set()

    async def run(self, find_master: Callable[[], Master | None]) -> None:
        """Copy the tables periodically until cancelled."""
        # Elected again before the first copy, it must not go on with what it had as a master.
        with suppress(OSError):
            await asyncio.to_thread(self._remove_wheel)
        # Of what was saved before the start it isn't known whether the master has newer ones.
        self._here = {key: dict(queues) for key, queues in self._state.offsets.table.items()}
        seconds = self._state.config.limits.table_copy_seconds
        while True:
            await asyncio.sleep(min(seconds, SHORTEST_PAUSE_SECONDS))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            self._wake.clear()
            master = None
            # The replica says what is wrong with an address that a server gave.
            with suppress(RemotingError):
                master = find_master()
            if master is not None:
                await self.copy(master)

    async def copy(self, master: Master) -> set[str]:
        """Copy all tables once; a table that can't be copied is logged, and left as it is.

        Return the names of these.
        """
        async with self._copying:
            await self._copy(master)
            return self._problems.copy()

    def save_timers(self, progress: bytes) -> None:
        """Save what the master has delivered of the present second of timers; blocks.

        Raises:
            OSError: a file can't be written.
        """
        self._save_timers(timer.PROGRESS_NAME, progress)

    def _save_timers(self, name: str, data: bytes) -> None:
        self._remove_wheel()
        config = self._state.store.paths.root / "config"
        self._files.replace(config / name, data, backup=False)

    def _remove_wheel(self) -> None:
        """Remove the wheel of when this broker was the master, if there is one.

        It lacks what came since, and may have what was cut; it is built again.
        """
        root = self._state.store.paths.root
        self._files.remove(root / timer.WHEEL_NAME)
        for part in self._files.list(root / timer.LOG_NAME):
            self._files.remove(root / timer.LOG_NAME / part)

    async def _copy(self, master: Master) -> None:
        for name, step in (
            ("topics", self._copy_topics),
            ("groups", self._copy_groups),
            ("offsets", self._copy_offsets),
            ("delays", self._copy_delays),
            ("timers", self._copy_timers),
            ("request modes", self._copy_request_modes),
        ):
            try:
                await step(master)
            except (RemotingError, ProtocolError, StoreError, OSError) as error:
                if name not in self._problems:
                    _log.warning(
                        "a table of the master isn't copied", table=name, reason=str(error)
                    )
                self._problems.add(name)
            else:
                self._problems.discard(name)

    async def _get(self, master: Master, code: RequestCode, kind: type[BodyT]) -> BodyT:
        reply = await self._ask(master.requests, Command.request(code), timeout=ASK_SECONDS)
        if reply.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"{master.requests} answered code {reply.code}: {reply.remark}")
        # A table may have 100,000 rows.
        body = bytes(reply.body)
        return await asyncio.get_running_loop().run_in_executor(None, decode, kind, body)

    async def _copy_topics(self, master: Master) -> None:
        body = await self._get(
            master, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigSerializeWrapper
        )
        if not body.topic_config_table:
            raise ProtocolError(_EMPTY)
        topics = self._state.topics
        absent = topics.table.keys() - body.topic_config_table.keys() - topics.system
        # Absent twice: the log brings the messages of a topic that was deleted and created again
        # earlier than its settings.
        deleted, self._absent = absent & self._absent, absent
        if not self._follows:
            deleted = set()
        if body.data_version == topics.data_version and not deleted:
            return
        kept = {name: topics.table[name] for name in absent - deleted}
        topics.replace({**kept, **body.topic_config_table}, body.data_version)
        for name in deleted:
            self._state.store.delete_topic(name)
            self._forget(name)
            _log.info("topic deleted, as at the master", topic=name)
        await self._saved.topics_changed(None, paced=True)

    @property
    def _follows(self) -> bool:
        """Whether the log is the master's.

        Before the comparison the master may have lost its disk, and this be the last copy.
        """
        replica = self._state.replica
        return replica is None or replica.state.connected

    def _topic_recreated(self, name: str) -> None:
        self._recreated.add(name)
        self._forget(name)

    def _forget(self, topic: str) -> None:
        """Remove what groups have of a topic that was deleted."""
        for table in (self._state.offsets, self._state.locks, self._state.filters):
            table.remove_topic(topic)

    async def _copy_groups(self, master: Master) -> None:
        body = await self._get(
            master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupWrapper
        )
        if not body.subscription_group_table:
            raise ProtocolError(_EMPTY)
        groups = self._state.groups
        if body.data_version != groups.data_version:
            groups.replace(body.subscription_group_table, body.data_version, body.forbidden_table)
            await self._saved.groups_changed()

    async def _copy_offsets(self, master: Master) -> None:
        recreated = self._recreated.copy()
        body = await self._get(
            master, RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetSerializeWrapper
        )
        for topic in recreated:
            # Again: an answer from before may have brought back offsets of the old one.
            self._forget(topic)
        self._recreated -= recreated
        table = body.offset_table
        ended = {key: queues for key, queues in table.items() if key.endswith(f"@{GROUP}")}
        ahead = self._ahead(table)
        # Deleted, with its offsets: a new group of that name begins anew.
        for group in _groups(self._at_master) - _groups(table) if self._follows else ():
            self._state.offsets.remove_group(group)
        self._take({key: table[key] for key in table.keys() - ended.keys()}, ahead)
        self._at_master = table
        self._here = here = {
            key: {n: offset for n, offset in queues.items() if (key, n) not in ahead}
            for key, queues in self._state.offsets.table.items()
        }
        for (key, queue_id), offset in islice(ahead.items(), COMMITS_AT_ONCE):
            topic, _, group = key.partition("@")
            # Forward: a member may have committed a higher one at the master meanwhile.
            header = UpdateConsumerOffsetRequestHeader(
                consumer_group=group,
                topic=topic,
                queue_id=queue_id,
                commit_offset=offset,
                forward=True,
            )
            request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            reply = await self._ask(master.requests, request, timeout=ASK_SECONDS)
            if reply.code != ResponseCode.SUCCESS:
                continue  # as in a hand-over: the next copy tries again
            # A lower one from now on is a reset.
            table.setdefault(key, {})[queue_id] = here.setdefault(key, {})[queue_id] = offset
        if any(self._state.offsets.table.get(key) != queues for key, queues in ended.items()):
            # A transaction counts as ended once its end is here: else nobody asks about it.
            await self._catch_up(master)
            self._take(ended, {})

    def _take(self, table: Offsets, ahead: Container[tuple[str, int]]) -> None:
        for key, queues in table.items():
            topic, _, group = key.partition("@")
            for queue_id, offset in queues.items():
                if (key, queue_id) not in ahead:
                    with suppress(LimitReached, ValueError):
                        self._state.offsets.commit(group, topic, queue_id, offset)

    def _ahead(self, table: Offsets) -> dict[tuple[str, int], int]:
        """Return the offsets that were committed here since the last copy and are newer."""
        ahead: dict[tuple[str, int], int] = {}
        for key, queues in self._state.offsets.table.items():
            here, other = self._here.get(key, {}), table.get(key, {})
            before = self._at_master.get(key, {})
            for queue_id, offset in queues.items():
                if (
                    here.get(queue_id)
                    != offset
                    > other.get(queue_id, -1)
                    >= before.get(queue_id, -1)
                ):
                    ahead[key, queue_id] = offset
        return ahead

    async def _copy_delays(self, master: Master) -> None:
        body = await self._get(
            master, RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetSerializeWrapper
        )
        if body.offset_table and body.offset_table != self._saved.delay_offsets:
            await self._catch_up(master)
            self._saved.save_delay_offsets(body.offset_table)
            self._state.delay_offsets = body.offset_table

    async def _copy_timers(self, master: Master) -> None:
        """Save what the master has delivered, for the day when this broker is the master.

        It has no wheel, and builds it from the timer topic then, as after a copy of a store.
        """
        request = Command.request(RequestCode.GET_TIMER_CHECK_POINT)
        reply = await self._ask(master.requests, request, timeout=ASK_SECONDS)
        # 4.9 has no timers, and a broker of 5.x may have none.
        if reply.code != ResponseCode.SUCCESS:
            return
        check = decode_check(reply.body)._replace(log_end=0)
        if check != self._timers:
            await self._catch_up(master)
            text = encode_check(check, self._state.clock.now_ms(), 0)
            await asyncio.to_thread(self._save_timers, "timercheck", text)
            self._timers = check

    async def _copy_request_modes(self, master: Master) -> None:
        """Keep what an Apache slave of this broker would ask for when it is the master."""
        request = Command.request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        reply = await self._ask(master.requests, request, timeout=ASK_SECONDS)
        # 4.9 has no modes.
        if reply.code == ResponseCode.SUCCESS:
            body = decode(MessageRequestModeSerializeWrapper, reply.body)
            if body != self._state.request_modes:
                path = self._state.store.paths.root / "config" / REQUEST_MODES
                text = encode(body, pretty=True)
                await asyncio.to_thread(self._files.replace, path, text, backup=True)
                self._state.request_modes = body

    async def _catch_up(self, master: Master) -> None:
        """Wait until the log has what the master's has now, not longer than until the next copy.

        Raises:
            ProtocolError: it doesn't come.
        """
        body = await self._get(master, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable)
        try:
            end = int(body.table["commitLogMaxOffset"])
        except (KeyError, ValueError) as error:
            raise ProtocolError(
                f"{master.requests} does not tell where its log ends: {error!r}"
            ) from error
        log, seconds = self._state.store.log, self._state.config.limits.table_copy_seconds
        for _ in range(math.ceil(min(seconds, ASK_SECONDS) / LOOK_SECONDS)):
            if log.end >= end:
                return
            await asyncio.sleep(LOOK_SECONDS)
        raise ProtocolError(
            f"this log ends at offset {log.end}, and that of the master {master.requests} at {end}:"
            " what the master has delivered counts once the log is here"
        )


def _groups(table: Offsets) -> set[str]:
    return {key.partition("@")[2] for key in table}
