"""The broker's tables in ``config/``: read at the start, written as they change.

========================  ======================================  ===========================
file                      content                                 written
========================  ======================================  ===========================
topics.json               topics                                  on every change
subscriptionGroup.json    settings of groups                      on every change
consumerOffset.json       committed offsets                       every 5 s if changed, at stop
queueLocks.json           queue locks of orderly consumers        every 5 s if changed, at stop
delayOffset.json          progress of the delay levels            every 10 s if changed, at stop
brokerName.json           the broker's name                       when it changes
========================  ======================================  ===========================

The formats are RocketMQ's, so either broker starts on the other's files; locks and name are ours
alone.

A changed table is copied on the loop's thread (its values are replaced, never altered), and turned
into text and written in a worker thread. While one write runs, all further changes wait for the
next, which has them all: a thousand topics created in a row cost two or three writes. A large file
waits after each write, so writing takes a bounded share of the time. A failed write is logged and
repeated by ``retry``; callers that wait for it get the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog

from broker.config import BrokerConfig
from broker.errors import StartError
from broker.groups.offsets import ConsumerOffsets
from broker.groups.queue_locks import LockTable, SavedLocks
from broker.groups.subscriptions import SubscriptionGroups
from broker.state_file import load_json, save_json
from broker.store.os_files import Files
from broker.topics import TopicTable
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.body import Body, MapParts
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.topic import (
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from remoting.settings import name as valid_name

BYTES_PER_SECOND: Final = 20 * 1024 * 1024
"""How fast a file is written over a longer time: 100,000 topics take 20 MB."""

SHORTEST_REST: Final = 0.005
"""Seconds; what is less isn't worth a timer."""

_log = structlog.get_logger("broker")


class SavedTable:
    """One file.

    Args:
        name: the file's, for the log.
        snapshot: copies the table, on the loop's thread; what it returns makes the file's text in
            a worker thread.
        write: puts the text on the disk, durably, in a worker thread. Raises ``OSError``.
        version: of the table, as the disk has it.
        bytes_per_second: how fast it is written over a longer time.
    """

    __slots__ = (
        *("_bytes_per_second", "_dirty", "_name", "_next", "_rest", "_snapshot", "_write"),
        *("_writing", "version"),
    )

    def __init__(
        self,
        name: str,
        snapshot: Callable[[], Callable[[], bytes]],
        write: Callable[[bytes], None],
        *,
        version: int = 0,
        bytes_per_second: int = BYTES_PER_SECOND,
    ) -> None:
        self.version = version
        self._name = name
        self._snapshot = snapshot
        self._write = write
        self._bytes_per_second = bytes_per_second
        self._dirty = False
        self._writing: asyncio.Future[bool] | None = None
        self._next: asyncio.Future[bool] | None = None
        self._rest: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> asyncio.Future[bool] | None:
        """Ends with the write of the newest change; None when nothing waits."""
        return self._next or self._writing

    def changed(self) -> asyncio.Future[bool]:
        """Write a change of the table; the future has whether it reached the disk."""
        if self._writing is None and self._rest is None:
            return self._begin(asyncio.get_running_loop().create_future())
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def update(self, version: int = 0) -> None:
        """Write the table if its version is new, or if the last write failed."""
        if self._dirty or version != self.version:
            self.version = version
            self.changed()

    async def flush(self) -> bool:
        """Write everything now and wait for it; False if the last attempt failed."""
        while self.pending is not None or self._rest is not None:
            if self._rest is not None:
                self._rest.cancel()
                self._rested()
            if self.pending is not None:
                await self.pending
        return not self._dirty

    def _begin(self, done: asyncio.Future[bool]) -> asyncio.Future[bool]:
        self._writing = done
        work = asyncio.get_running_loop().run_in_executor(None, self._save, self._snapshot())
        work.add_done_callback(self._ended)
        return done

    def _save(self, text: Callable[[], bytes]) -> int:
        content = text()
        self._write(content)
        return len(content)

    def _rested(self) -> None:
        self._rest = None
        waiting, self._next = self._next, None
        if waiting is not None:
            self._begin(waiting)

    def _ended(self, work: asyncio.Future[int]) -> None:
        error = work.exception()
        if error is not None:
            _log.error(
                "state file can't be written; it is tried again", file=self._name, reason=str(error)
            )
        self._dirty = error is not None
        done, self._writing = self._writing, None
        rest = 0.0 if error is not None else work.result() / self._bytes_per_second
        if rest < SHORTEST_REST:
            self._rested()
        else:
            self._rest = asyncio.get_running_loop().call_later(rest, self._rested)
        if done is not None and not done.done():
            done.set_result(error is None)


TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
LOCKS: Final = "queueLocks.json"
DELAY_OFFSETS: Final = "delayOffset.json"
BROKER_NAME: Final = "brokerName.json"

BodyT = TypeVar("BodyT", bound=msgspec.Struct)
OnTopics = Callable[[Sequence[str] | None, bool], Awaitable[object] | None]


class SavedName(Body):
    """The broker name of a store: part of the identity of its queues."""

    broker_name: str = ""


class SavedTables:
    """The tables with their files.

    Args:
        config: which topics and groups exist at boot, and how many there may be; the broker's
            name, if it is set.
        directory: ``config/`` of the store.
        files: the disk.
        now_ms: the time, from which restored locks go on to live.
        on_topics: called with the topics that changed (None: any) and whether to register them
            oneway; what it returns ends when they are registered.

    Attributes:
        config: as given, with the broker's name.
        named_before: another name, under which the store was written until now; None for none.
        topics, groups, offsets, locks: the tables.
        lost_offsets: whether there was no file of offsets.
        delay_offsets: of each delay level the next message to deliver, as last written; None when
            there was no file of these.

    Raises:
        StoreError: a file can't be read, or it and its backup are damaged.
        StartError: a file holds something else than it should.
    """

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        files: Files,
        now_ms: int,
        on_topics: OnTopics | None = None,
    ) -> None:
        self._directory = directory
        self._files = files
        topics = self._load(TOPICS, TopicConfigSerializeWrapper) or TopicConfigSerializeWrapper()
        saved = self._load(BROKER_NAME, SavedName)
        self._saved_name = saved.broker_name if saved else ""
        # Before the tables are made: their rules depend on the broker's name.
        config = replace(config, broker_name=self._name(config, topics.topic_config_table))
        self.config = config
        is_renamed = self._saved_name not in ("", config.broker_name)
        self.named_before = self._saved_name if is_renamed else None
        self.topics = TopicTable(config, topics.topic_config_table, topics.data_version)
        groups = self._load(GROUPS, SubscriptionGroupWrapper) or SubscriptionGroupWrapper()
        self.groups = SubscriptionGroups(
            groups.subscription_group_table,
            groups.data_version,
            auto_create=config.auto_create_subscription_group,
            client_limit=config.max_groups,
        )
        offsets = self._load(OFFSETS, ConsumerOffsetSerializeWrapper)
        self.offsets = ConsumerOffsets(
            offsets.offset_table if offsets else None, limit=config.limits.consumer_offsets
        )
        self.lost_offsets = offsets is None
        self._stopping = False
        self.locks = LockTable(limit=config.limits.queue_locks)
        locks = self._load(LOCKS, SavedLocks)
        if locks is not None:
            self.locks.restore(locks, now_ms)
        delays = self._load(DELAY_OFFSETS, DelayOffsetSerializeWrapper)
        self.delay_offsets = delays.offset_table if delays else None
        self._on_topics = on_topics
        self._unsaved: dict[str, asyncio.Future[bool]] = {}
        self._topic_texts: dict[str, tuple[TopicConfig, bytes]] = {}
        self._topic_file = SavedTable(TOPICS, self._copy_topics, self._writer(TOPICS))
        self._group_file = self._file(
            GROUPS,
            lambda: SubscriptionGroupWrapper(
                dict(self.groups.table), data_version=self.groups.data_version
            ),
        )
        self._offset_file = self._file(
            OFFSETS,
            lambda: ConsumerOffsetSerializeWrapper(
                {key: queues.copy() for key, queues in self.offsets.table.items()}
            ),
            version=-1 if self.lost_offsets else self.offsets.version,
        )
        self._lock_file = self._file(
            LOCKS, lambda: self.locks.saved(at_stop=self._stopping), version=self.locks.version
        )
        self._delay_file = self._file(
            DELAY_OFFSETS, lambda: DelayOffsetSerializeWrapper(self.delay_offsets or {})
        )
        self._name_file = self._file(BROKER_NAME, lambda: SavedName(self.config.broker_name))

    # what requests change

    def topics_changed(self, names: Sequence[str] | None, *, oneway: bool) -> Awaitable[bool]:
        """Write the topics and register them; see ``Changes``."""
        saved = self._topic_file.changed()
        if names:
            self._unsaved.update(dict.fromkeys(names, saved))
            saved.add_done_callback(partial(self._topics_saved, names))
        registered = None if self._on_topics is None else self._on_topics(names, oneway)
        if oneway or registered is None:
            return saved

        async def both() -> bool:
            await registered
            return await saved

        return both()

    def topic_pending(self, name: str) -> asyncio.Future[bool] | None:
        """See ``Changes``."""
        return self._unsaved.get(name)

    def _topics_saved(self, names: Sequence[str], saved: asyncio.Future[bool]) -> None:
        for name in names:
            if self._unsaved.get(name) is saved:
                del self._unsaved[name]

    def groups_changed(self) -> asyncio.Future[bool]:
        """Write the groups' settings; see ``Changes``."""
        return self._group_file.changed()

    def save_delay_offsets(self, offsets: dict[int, int]) -> None:
        """Write how far the delay levels are."""
        self.delay_offsets = offsets
        self._delay_file.changed()

    # periodic writes

    def save_changes(self) -> None:
        """Write the offsets if they changed, and try again what failed."""
        for file in (self._topic_file, self._group_file, self._delay_file, self._name_file):
            file.update()
        self._offset_file.update(self.offsets.version)
        self._lock_file.update(self.locks.version)

    def save_all(self) -> None:
        """Write everything: at the first start, so that a missing file means a lost one later."""
        self._topic_file.changed()
        self._group_file.changed()
        self._lock_file.changed()
        if self.config.broker_name != self._saved_name:
            self._name_file.changed()
        if self.delay_offsets is None:
            self.save_delay_offsets({})
        self.save_changes()

    async def flush(self) -> None:
        """Write what changed and wait for it: the broker stops."""
        self._stopping = True
        self.save_changes()
        self._lock_file.changed()
        for file in (
            self._topic_file,
            self._group_file,
            self._offset_file,
            self._lock_file,
            self._delay_file,
            self._name_file,
        ):
            await file.flush()

    def topic_wrapper(self, names: Sequence[str] | None) -> TopicConfigSerializeWrapper:
        """The topics of these names, or all, for a registration."""
        table = self.topics.table
        if names is not None:
            table = {name: table[name] for name in names if name in table}
        return TopicConfigSerializeWrapper(
            topic_config_table=table, data_version=self.topics.data_version
        )

    # files

    def _load(self, name: str, kind: type[BodyT]) -> BodyT | None:
        path = self._directory / name
        loaded = load_json(path, files=self._files)
        if loaded.warning is not None:
            _log.warning("state file", problem=loaded.warning)
        if loaded.value is None:
            return None
        try:
            return msgspec.convert(loaded.value, kind, strict=False)
        except msgspec.ValidationError as error:
            raise StartError(
                f"{path} isn't a table of this kind ({error}): put back a good copy, or remove it "
                "and its backup to begin with an empty one"
            ) from error

    def _name(self, config: BrokerConfig, topics: Container[str]) -> str:
        """The broker's name: of the settings, else of the store."""
        if config.broker_name:
            return config.broker_name
        if self._saved_name:
            try:
                return valid_name(self._saved_name)
            except ValueError as error:
                raise StartError(
                    f"{self._directory / BROKER_NAME} holds no broker name ({error}): start the "
                    "broker with --name"
                ) from None
        # Before stores kept the name, it was the host's unless set, as Apache's is; and a broker
        # creates a topic with its name.
        return config.host_name if config.host_name in topics else config.name_of_new_store

    def _file(self, name: str, copy: Callable[[], Body], *, version: int = 0) -> SavedTable:
        """A file whose table is small enough to be encoded as a whole."""
        return SavedTable(
            name,
            lambda: partial(encode, copy(), pretty=True),
            self._writer(name),
            version=version,
        )

    def _writer(self, name: str) -> Callable[[bytes], None]:
        return partial(save_json, self._directory / name, files=self._files)

    def _copy_topics(self) -> Callable[[], bytes]:
        table, version = self.topics.table.copy(), self.topics.data_version
        file = MapParts(TopicConfigSerializeWrapper({}, version), pretty=True)

        def text() -> bytes:
            # In the writing thread. Of thousands of topics only those that changed are encoded.
            texts, self._topic_texts = self._topic_texts, {}
            for name, topic in table.items():
                cached = texts.get(name)
                if cached is None or cached[0] is not topic:
                    cached = topic, file.part(TopicConfigSerializeWrapper({name: topic}, version))
                self._topic_texts[name] = cached
            return file.whole([text for _, text in self._topic_texts.values()])

        return text
