"""The broker's tables in ``config/``: read at the start, written when they change.

========================  ======================================  ===========================
file                      content                                 written
========================  ======================================  ===========================
topics.json               topics                                  on every change
subscriptionGroup.json    settings of groups                      on every change
consumerOffset.json       committed offsets                       every 5 s if changed, at stop
queueLocks.json           queue locks of orderly consumers        every 5 s if changed, at stop
delayOffset.json          progress of the delay levels            every 10 s if changed, at stop
consumerFilter.json       SQL92 filters of consumer groups        every 10 s if changed, at stop
brokerName.json           the broker's name                       when it changes
brokerSettings.json       settings and role, where changed at run  on every change
                          time
========================  ======================================  ===========================

The formats are RocketMQ's, so each broker can start with the other's files. RocketMQ has no
``queueLocks.json``, ``brokerName.json`` and ``brokerSettings.json``. Each file has a backup
``<name>.bak``, see ``remoting.runtime.durable_file``.

A changed table is copied on the event loop's thread, and encoded and written in a worker thread. A
shallow copy is enough, because values are replaced and never modified. Changes that arrive during a
write are merged into the next one, so creating a thousand topics costs two or three writes. After
each write of a large file there is a pause, which bounds the share of time spent writing. A failed
write is logged and repeated by the next ``SavedTables.save_changes``; callers that wait for it get
False.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog

from broker.config import BrokerConfig
from broker.errors import StartError
from broker.filters.table import ConsumerFilters
from broker.groups.offsets import ConsumerOffsets
from broker.groups.queue_locks import LockTable, SavedLocks
from broker.groups.subscriptions import SubscriptionGroups
from broker.store.os_files import Files
from broker.store.results import StoreError
from broker.topics.table import TopicTable
from remoting.protocol.bodies import encode, relaxed_json
from remoting.protocol.bodies.body import Body, MapParts
from remoting.protocol.bodies.group import (
    ConsumerFilterWrapper,
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    MessageRequestModeSerializeWrapper,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.topic import (
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from remoting.protocol.errors import BodyError
from remoting.runtime import durable_file
from remoting.runtime.clock import Clock, epoch_ms, monotonic_ms
from remoting.runtime.settings import ConfigError
from remoting.runtime.settings import name as valid_name

BYTES_PER_SECOND: Final = 20 * 1024 * 1024
"""The average rate at which a file is written; 100,000 topics take 20 MB."""

SHORTEST_REST: Final = 0.005
"""Seconds; a shorter pause after a write is skipped."""

_log = structlog.get_logger("broker")


def load_json(path: Path, files: Files) -> tuple[object, str | None]:
    """Read a file, or its backup if the file is missing, empty or damaged (cf. ConfigManager).

    Unlike ``durable_file.load``, this doesn't pass over a file that can't be read: an older table
    in its place would move consumers back.

    Returns:
        The value, None for an empty table, and a warning for the log. Like RocketMQ, the broker
        starts with an empty table if the file is damaged and there is no backup.

    Raises:
        StoreError: a file can't be read, or the backup is needed and damaged.
    """
    backup = durable_file.backup_of(path)
    text = _read(path, files)
    wrong = f"{path} is missing" if text is None else f"{path} is empty"
    if text is not None and text.strip():
        try:
            return relaxed_json.loads(text), None
        except (BodyError, ValueError) as error:
            wrong = f"{path} is damaged ({error})"
    old = _read(backup, files)
    if old is not None and old.strip():
        try:
            value = relaxed_json.loads(old)
        except (BodyError, ValueError) as error:
            raise StoreError(
                f"{wrong} and its backup is damaged too ({error}): put {path.name} back from a"
                f" copy, or remove it and {backup.name} to begin with an empty one"
            ) from error
        with contextlib.suppress(OSError):
            files.replace(path, old, backup=False)
        return value, f"{wrong}, so its backup {backup.name} was taken"
    if text is None and old is None:
        return None, None
    return None, f"{wrong} and has no backup, so an empty one was taken"


def _read(path: Path, files: Files) -> bytes | None:
    try:
        return files.read(path)
    except OSError as error:
        raise StoreError(
            f"{path} can't be read ({error.strerror or error}): check the owner of the file"
        ) from error


def save_json(path: Path, files: Files, text: bytes) -> None:
    """Write a file and its backup durably. Raises ``OSError``; the old version stays then."""
    files.make_directory(path.parent, durable=True)
    files.replace(path, text, backup=True)


class SavedTable:
    """A table that is saved in one file.

    Args:
        name: the file's name, for the log.
        snapshot: copies the table on the event loop's thread; returns a function that encodes the
            copy in a worker thread.
        write: writes the file durably, in a worker thread; raises ``OSError``.
        version: the version of the table that the file contains.
        bytes_per_second: the average rate at which the file is written.
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
        """The future of the write that includes the newest change; None if all are written."""
        return self._next or self._writing

    def changed(self) -> asyncio.Future[bool]:
        """Write the changed table; the future's result is whether it reached the disk.

        Cancelling the future cancels neither the write nor what others wait for.
        """
        if self._writing is None and self._rest is None:
            self._begin(asyncio.get_running_loop().create_future())
        elif self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        pending = self.pending
        assert pending is not None
        return asyncio.shield(pending)

    def update(self, version: int = 0) -> None:
        """Write the table if its version has changed or the last write failed."""
        if self._dirty or version != self.version:
            self.version = version
            self.changed()

    async def flush(self) -> bool:
        """Complete all pending writes without pauses; return False if the last write failed."""
        while self.pending is not None or self._rest is not None:
            if self._rest is not None:
                self._rest.cancel()
                self._rested()
            if self.pending is not None:
                await asyncio.wait([self.pending])
        return not self._dirty

    def _begin(self, done: asyncio.Future[bool]) -> None:
        self._writing = done
        work = asyncio.get_running_loop().run_in_executor(None, self._save, self._snapshot())
        work.add_done_callback(self._ended)

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
            _log.error("state file can't be written; retrying", file=self._name, reason=str(error))
        self._dirty = error is not None
        done, self._writing = self._writing, None
        rest = 0.0 if error is not None else work.result() / self._bytes_per_second
        if rest < SHORTEST_REST:
            self._rested()
        else:
            self._rest = asyncio.get_running_loop().call_later(rest, self._rested)
        if done is not None:
            done.set_result(error is None)


TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
LOCKS: Final = "queueLocks.json"
DELAY_OFFSETS: Final = "delayOffset.json"
FILTERS: Final = "consumerFilter.json"
REQUEST_MODES: Final = "messageRequestMode.json"
BROKER_NAME: Final = "brokerName.json"
SETTINGS: Final = "brokerSettings.json"
CONFIG_DIRECTORY: Final = "config"

BodyT = TypeVar("BodyT", bound=msgspec.Struct)
OnTopics = Callable[[Sequence[str] | None, bool], asyncio.Future[list[bool]]]


class SavedName(Body):
    """The content of ``brokerName.json``: the broker name is part of a queue's identity."""

    broker_name: str = ""


class SavedRole(Body):
    """What a switch made of a broker; it counts while the settings are still those of that time.

    Attributes:
        configured_role, configured_id: ``brokerRole`` and ``brokerId`` of the settings.
        role, id: the broker's since.
        forced_ms: when it was promoted by force, ms since the epoch; else 0.
        attempt: of a hand-over whose outcome is unknown; empty for none.
        successor, successor_id: address and id of the slave to which this master hands over.
        taken: the attempts by which it became the master, whatever it is since.
    """

    configured_role: str = ""
    configured_id: int = 0
    role: str = ""
    id: int = 0
    forced_ms: int = 0
    attempt: str = ""
    successor: str = ""
    successor_id: int = 0
    taken: list[str] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, settings: BrokerConfig, role: str, broker_id: int, **more: Any) -> SavedRole:
        """Return the role of a broker with these settings."""
        return cls(settings.broker_role, settings.broker_id, role, broker_id, **more)

    def applied(self, settings: BrokerConfig) -> BrokerConfig | None:
        """Return the settings with this role; None if the operator has changed theirs since."""
        if (self.configured_role, self.configured_id) != (settings.broker_role, settings.broker_id):
            return None
        return settings.as_role(self.role, self.id)


class SavedSettings(Body):
    """The content of ``brokerSettings.json``.

    Attributes:
        settings: key -> value, as in a configuration file.
        role: see ``SavedRole``; None if there was no switch.
    """

    settings: dict[str, str] = msgspec.field(default_factory=dict)
    role: SavedRole | None = None


def load_role(config: BrokerConfig, files: Files) -> tuple[BrokerConfig, SavedRole | None]:
    """Return the settings with the saved role, and the latter; blocks.

    Raises:
        StoreError, StartError: the file can't be used.
    """
    path = config.store_path_root_dir / CONFIG_DIRECTORY / SETTINGS
    # Opening the store says what is wrong with its directory.
    saved = load_table(path, files, SavedSettings) if path.parent.is_dir() else None
    role = None if saved is None else saved.role
    if role is None:
        return config, None
    applied = role.applied(config)
    if applied is None:
        what = "brokerRole or brokerId was changed since the last switch, so the settings count"
    else:
        what = "the role since the last switch replaces that of the settings"
    if applied != config:
        _log.warning(what, settings=config.broker_role, saved=role.role, file=str(path))
    return (config, None) if applied is None else (applied, role)


def load_table(path: Path, files: Files, kind: type[BodyT]) -> BodyT | None:
    """Return the table in a file; None if there is none.

    Raises:
        StoreError: see ``load_json``.
        StartError: it is another table.
    """
    value, warning = load_json(path, files)
    if warning is not None:
        _log.warning("state file", problem=warning)
    if value is None:
        return None
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise StartError(
            f"{path} isn't a table of this kind ({error}): put back a good copy, or remove it "
            "and its backup to begin with an empty one"
        ) from error


class SavedTables:
    """The tables and their files.

    Args:
        config: the broker's settings.
        directory: the store's directory ``config/``.
        files: the file system.
        clock: the time; saved locks that have expired are dropped, and groups with saved filters
            count as gone.
        on_topics: called with the names of changed topics (None: any) and whether their
            registration may be delayed; the future it returns ends when they are registered.

    Attributes:
        config: the given settings with the broker's name and the changed settings filled in.
        settings: the settings changed by UPDATE_BROKER_CONFIG.
        named_before: the broker name in the store, if it was another one; else None.
        topics, groups, offsets, locks, filters: the tables.
        lost_offsets: whether the file of consumer offsets was missing.
        delay_offsets: the next message to deliver of each delay level, as last written; None if the
            file was missing.
        request_modes: which groups pop, as a master of Apache's told; None if none did.

    Raises:
        StoreError: a file can't be read, or it and its backup are damaged.
        StartError: a file contains JSON of the wrong structure, or an invalid broker name.
    """

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        files: Files,
        clock: Clock,
        on_topics: OnTopics | None = None,
    ) -> None:
        self._directory = directory
        self._files = files
        topics = self._load(TOPICS, TopicConfigSerializeWrapper) or TopicConfigSerializeWrapper()
        saved = self._load(BROKER_NAME, SavedName)
        self._saved_name = saved.broker_name if saved else ""
        # Before the tables are created: ``system_topics`` includes the broker's name.
        config = replace(config, broker_name=self._name(config, topics.topic_config_table))
        saved_settings = self._load(SETTINGS, SavedSettings) or SavedSettings()
        self.settings, self.role = saved_settings.settings, saved_settings.role
        self.config = config = self._with_settings(config)
        is_renamed = self._saved_name not in ("", config.broker_name)
        self.named_before = self._saved_name if is_renamed else None
        self.topics = TopicTable(config, topics.topic_config_table, topics.data_version)
        groups = self._load(GROUPS, SubscriptionGroupWrapper) or SubscriptionGroupWrapper()
        self.groups = SubscriptionGroups(
            groups.subscription_group_table,
            groups.data_version,
            forbidden=groups.forbidden_table,
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
        if (locks := self._load(LOCKS, SavedLocks)) is not None:
            self.locks.restore(locks, monotonic_ms(clock), epoch_ms(clock))
        self.filters = ConsumerFilters(config.limits)
        filters = self._load(FILTERS, ConsumerFilterWrapper)
        for problem in self.filters.restore(filters or ConsumerFilterWrapper(), clock.now_ms()):
            _log.warning("a saved filter is not used", problem=problem)
        delays = self._load(DELAY_OFFSETS, DelayOffsetSerializeWrapper)
        self.delay_offsets = delays.offset_table if delays else None
        self.request_modes = self._load(REQUEST_MODES, MessageRequestModeSerializeWrapper)
        self._on_topics = on_topics
        self._unsaved: dict[str, asyncio.Future[bool]] = {}
        self._topic_texts: dict[str, tuple[TopicConfig, bytes]] = {}
        self._tables: list[SavedTable] = []
        self._topic_file = self._table(TOPICS, self._copy_topics)
        self._group_file = self._file(
            GROUPS,
            lambda: SubscriptionGroupWrapper(
                dict(self.groups.table),
                data_version=self.groups.data_version,
                forbidden_table=self.groups.forbidden_copy(),
            ),
        )
        self._offset_file = self._file(
            OFFSETS,
            lambda: ConsumerOffsetSerializeWrapper(
                {key: queues.copy() for key, queues in self.offsets.table.items()}
            ),
            version=-1 if self.lost_offsets else self.offsets.version,
        )
        self._lock_file = self._table(
            LOCKS,
            lambda: partial(_lock_text, self.locks.copy(), epoch_ms(clock), at_stop=self._stopping),
            version=self.locks.version,
        )
        self._delay_file = self._file(
            DELAY_OFFSETS, lambda: DelayOffsetSerializeWrapper(self.delay_offsets or {})
        )
        self._filter_file = self._file(FILTERS, self.filters.saved, version=self.filters.version)
        self._settings_file = self._file(
            SETTINGS, lambda: SavedSettings(self.settings.copy(), self.role)
        )
        self._name_file = self._file(BROKER_NAME, lambda: SavedName(self.config.broker_name))

    # changes by requests

    def topics_changed(self, names: Sequence[str] | None, *, paced: bool) -> asyncio.Future[bool]:
        """Write the topics and register them; see ``Changes``."""
        done = saved = self._topic_file.changed()
        if self._on_topics is not None:
            done = asyncio.get_running_loop().create_future()
            both = asyncio.gather(saved, self._on_topics(names, paced))

            def end(_: object) -> None:
                if not done.done():
                    done.set_result(saved.result())

            both.add_done_callback(end)
        if names:
            self._unsaved.update(dict.fromkeys(names, done))
            done.add_done_callback(partial(self._topics_saved, names))
        return done

    def topic_pending(self, name: str) -> asyncio.Future[bool] | None:
        """Return the pending change of a topic; see ``Changes``."""
        return self._unsaved.get(name)

    def _topics_saved(self, names: Sequence[str], saved: asyncio.Future[bool]) -> None:
        for name in names:
            if self._unsaved.get(name) is saved:
                del self._unsaved[name]

    def groups_changed(self) -> asyncio.Future[bool]:
        """Write the groups' settings; see ``Changes``."""
        return self._group_file.changed()

    async def topic_dropped(self) -> bool:
        """Write what groups had of a deleted topic; see ``Changes``."""
        self._offset_file.update(self.offsets.version)
        self._lock_file.update(self.locks.version)
        self._filter_file.update(self.filters.version)
        files = (self._offset_file, self._lock_file, self._filter_file)
        pending = [file.pending for file in files]
        return all([await asyncio.shield(write) for write in pending if write is not None])

    def settings_changed(self, values: Mapping[str, str]) -> asyncio.Future[bool]:
        """Write changed settings; see ``Changes``."""
        self.settings.update(values)
        return self._settings_file.changed()

    def save_role(self, role: SavedRole | None) -> asyncio.Future[bool]:
        """Write the role since a switch; the result is whether it reached the disk."""
        self.role = role
        return self._settings_file.changed()

    def save_locks(self) -> asyncio.Future[bool]:
        """Write the queue locks; the result is as above."""
        return self._lock_file.changed()

    def save_delay_offsets(self, offsets: dict[int, int]) -> None:
        """Write the progress of the delay levels."""
        self.delay_offsets = offsets
        self._delay_file.changed()

    def save_filters(self, now_ms: int, keep_ms: int) -> None:
        """Delete the filters of groups that left ``keep_ms`` ago; write the table if it changed."""
        self.filters.clean(now_ms, keep_ms)
        self._filter_file.update(self.filters.version)

    # periodic writes

    def save_changes(self) -> None:
        """Write offsets and locks if they changed, and repeat failed writes of all files."""
        for file in (
            *(self._topic_file, self._group_file, self._delay_file, self._name_file),
            self._settings_file,
        ):
            file.update()
        self._offset_file.update(self.offsets.version)
        self._lock_file.update(self.locks.version)

    def save_all(self) -> None:
        """Write all tables at the start, so that a file missing later has been lost."""
        self._topic_file.changed()
        self._group_file.changed()
        self._lock_file.changed()
        if self.config.broker_name != self._saved_name:
            self._name_file.changed()
        if self.delay_offsets is None:
            self.save_delay_offsets({})
        self.save_changes()

    async def flush(self) -> None:
        """Write all changes and wait for it, when the broker stops."""
        self._stopping = True
        self.save_changes()
        self._filter_file.update(self.filters.version)
        self._lock_file.changed()
        for file in self._tables:
            await file.flush()

    def topic_wrapper(self, names: Sequence[str] | None) -> TopicConfigSerializeWrapper:
        """Return the topics with these names (None: all), for a registration."""
        table = self.topics.table
        if names is not None:
            table = {name: table[name] for name in names if name in table}
        return TopicConfigSerializeWrapper(
            topic_config_table=table, data_version=self.topics.data_version
        )

    # files

    def _load(self, name: str, kind: type[BodyT]) -> BodyT | None:
        return load_table(self._directory / name, self._files, kind)

    def _with_settings(self, config: BrokerConfig) -> BrokerConfig:
        """Return the settings with those that UPDATE_BROKER_CONFIG has changed."""
        path = self._directory / SETTINGS
        try:
            config = config.updated(self.settings)
        except ConfigError as error:
            raise StartError(
                f"{path} holds settings changed by updateBrokerConfig that don't fit the "
                f"configuration ({error}): change the configuration, or remove the file and its "
                "backup"
            ) from None
        if self.settings:
            _log.info(
                "settings changed by updateBrokerConfig replace those of the configuration",
                file=str(path),
                **self.settings,
            )
        return config

    def _name(self, config: BrokerConfig, topics: Container[str]) -> str:
        """Return the broker's name: from the settings, else from the store."""
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
        # Older versions didn't save the name, and their default was the host's name, as in
        # RocketMQ. A topic with that name shows that such a broker used the store, since every
        # broker creates a topic with its own name.
        return config.host_name if config.host_name in topics else config.name_of_new_store

    def _file(self, name: str, copy: Callable[[], Body], *, version: int = 0) -> SavedTable:
        """Return a saved table that is encoded as a whole."""
        return self._table(name, lambda: partial(encode, copy(), pretty=True), version=version)

    def _table(
        self, name: str, snapshot: Callable[[], Callable[[], bytes]], *, version: int = 0
    ) -> SavedTable:
        write = partial(save_json, self._directory / name, self._files)
        self._tables.append(SavedTable(name, snapshot, write, version=version))
        return self._tables[-1]

    def _copy_topics(self) -> Callable[[], bytes]:
        table, version = self.topics.table.copy(), self.topics.data_version
        file = MapParts(TopicConfigSerializeWrapper({}, version), pretty=True)

        def text() -> bytes:
            # Runs in the worker thread. Only changed topics are encoded again, the text of the
            # others is cached: there may be thousands.
            texts, self._topic_texts = self._topic_texts, {}
            for name, topic in table.items():
                cached = texts.get(name)
                if cached is None or cached[0] is not topic:
                    cached = topic, file.part(TopicConfigSerializeWrapper({name: topic}, version))
                self._topic_texts[name] = cached
            return file.whole([text for _, text in self._topic_texts.values()])

        return text


def _lock_text(locks: LockTable, epoch_ms: int, *, at_stop: bool) -> bytes:
    return encode(locks.saved(epoch_ms, at_stop=at_stop), pretty=True)
