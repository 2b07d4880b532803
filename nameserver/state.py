"""The state that the handlers share: settings, routes, key-value table; and its files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import structlog

from nameserver.config import MAX_KV_BYTES, RUNTIME_KEYS, NameServerConfig
from nameserver.kv import KVConfig
from nameserver.routes import Change, RouteInfoTable, Watches
from remoting.errors import RemotingError
from remoting.protocol.bodies import properties_text
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import TopicRequestHeader
from remoting.protocol.own_codes import OwnRequestCode
from remoting.runtime import durable_file
from remoting.runtime.clock import Clock
from remoting.runtime.settings import ConfigError

if TYPE_CHECKING:
    from remoting.connection import Connection

T = TypeVar("T")

_log = structlog.get_logger("nameserver")


class StateFileError(Exception):
    """A file can't be read or written; the text gives the path, the reason and the remedy."""


def load(file: Path, read: Callable[[bytes], T], empty: T, *, max_bytes: int) -> T:
    """Read a file, or its ``.bak`` if the file is missing, empty or damaged.

    Return ``empty`` if neither exists.

    Raises:
        StateFileError: a file exists, but neither it nor its ``.bak`` can be parsed.
    """
    value, problems = durable_file.load(file, read, max_bytes=max_bytes, blank_is_missing=True)
    if value is None:
        if not problems:
            return empty
        raise StateFileError(
            f"can't read {'; '.join(problems)}. Restore the file from a copy, or move it and its "
            ".bak away to start without it"
        )
    if problems:
        _log.warning("took the backup of a state file", file=str(file), problems=list(problems))
    return value


def save(file: Path, text: bytes) -> None:
    """Replace a file durably: the new text is on disk when this returns.

    Raises:
        StateFileError: the file can't be written; it still has its former text.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        durable_file.replace(file, text)
    except OSError as error:
        raise StateFileError(
            f"can't write {file}: {error.strerror or error}; see that the disk has room and that "
            "the directory is writable. Nothing was changed"
        ) from error


MAX_FILE_BYTES = 2 * MAX_KV_BYTES


@dataclass(slots=True)
class SharedState:
    """The name server's tables and settings; not thread-safe."""

    config: NameServerConfig
    clock: Clock
    routes: RouteInfoTable
    kv: KVConfig
    watches: Watches[Connection] = field(default_factory=Watches)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a file is written, so that writes don't overlap."""

    @classmethod
    def load(cls, config: NameServerConfig, clock: Clock) -> SharedState:
        """Return the state at start: no routes, and the saved key-value table.

        Raises:
            StateFileError: the key-value file can't be parsed.
        """
        kv = load(config.kv_config_path, KVConfig.from_json, KVConfig(), max_bytes=MAX_FILE_BYTES)
        routes = RouteInfoTable(
            max_brokers=config.max_brokers, max_entries=config.max_route_entries
        )
        return cls(config, clock, routes, kv)

    @property
    def now_ms(self) -> int:
        """The monotonic time in ms, used for brokers' timeouts."""
        return int(self.clock.monotonic() * 1000)

    def scan(self) -> None:
        """Remove brokers whose heartbeat has timed out."""
        self.apply(self.routes.scan(self.now_ms), "it sent no heartbeat for too long")

    def apply(self, change: Change, why: str, *, expected: bool = False) -> None:
        """Log a change of the routes, close connections of dead brokers, and notify watchers.

        Args:
            change: the change.
            why: the reason, for the log and for closed connections.
            expected: whether brokers that disappeared are normal, so that the log level is info.
        """
        for address in change.addresses_gone:
            log = _log.info if expected else _log.warning
            log("broker gone", broker=address, why=why)
        for peer in change.connections_to_close:
            cast("Connection", peer).close(why)
        for peer, topic in self.watches.concerned(change.topics):
            header = TopicRequestHeader(topic=topic)
            command = Command.request(OwnRequestCode.ROUTE_CHANGED, header, oneway=True)
            try:
                peer.send_oneway(command)
            except RemotingError as error:
                # Notifications are best effort: clients also query routes periodically.
                _log.debug(
                    "client not notified of a route change",
                    peer=peer.remote_text,
                    topic=topic,
                    why=str(error),
                )

    def closed(self, peer: Connection) -> None:
        """Remove the brokers and watches of a closed connection."""
        self.watches.forget(peer)
        self.apply(self.routes.connection_closed(peer), "its connection closed")

    async def change_kv(self, change: Callable[[KVConfig], KVConfig]) -> None:
        """Change the key-value table; the change is on disk when this returns.

        Raises:
            LimitError: the change would exceed a limit.
            StateFileError: the file can't be written; nothing changed.
        """
        async with self.writing:
            changed = change(self.kv)
            if changed is not self.kv:
                await asyncio.to_thread(save, self.config.kv_config_path, changed.to_json())
                self.kv = changed

    async def change_config(self, values: Mapping[str, str]) -> None:
        """Change settings, and write them to ``config_store_path`` if it is set.

        Raises:
            ConfigError: a value is invalid, or a setting can only be changed by a restart.
            StateFileError: the file can't be written; nothing changed.
        """
        async with self.writing:
            changed = self.config.updated(values)
            before = self.config.as_properties().items()
            if fixed := dict(changed.as_properties().items() - before).keys() - RUNTIME_KEYS:
                raise ConfigError(
                    f"only a restart can change {', '.join(sorted(fixed))}: set it in the name "
                    "server's configuration and restart the name server; nothing has been changed"
                )
            file = self.config.config_store_path
            if file is not None:
                nothing: dict[str, str] = {}
                stored = load(file, properties_text.parse, nothing, max_bytes=MAX_FILE_BYTES)
                known = {k: v for k, v in values.items() if k in changed.known_keys()}
                await asyncio.to_thread(save, file, properties_text.render({**stored, **known}))
            self.config = changed
            self.routes.configure(
                max_brokers=changed.max_brokers, max_entries=changed.max_route_entries
            )
