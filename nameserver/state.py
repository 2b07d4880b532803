"""What the handlers share: the tables, the settings, the effects of a change, and the files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import structlog

from nameserver.config import MAX_KV_BYTES, NameServerConfig
from nameserver.kv import KVConfig
from nameserver.routes import Change, RouteInfoTable, Watches
from remoting import durable_file
from remoting.clock import Clock
from remoting.errors import RemotingError
from remoting.protocol.bodies import properties_text
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import TopicRequestHeader
from remoting.protocol.own_codes import OwnRequestCode

if TYPE_CHECKING:
    from remoting.connection import Connection

T = TypeVar("T")

_log = structlog.get_logger("nameserver")


class StateFileError(Exception):
    """A file can't be used; the text says which, why, and what to do."""


def load(file: Path, read: Callable[[bytes], T], empty: T, *, max_bytes: int) -> T:
    """What a file holds, or its ``.bak`` when the file is missing, empty or damaged.

    Raises:
        StateFileError: there is a file, and neither it nor its ``.bak`` can be understood.
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
    """Replace a file by a new text that is on disk when this returns.

    Raises:
        StateFileError: it can't be written; the former text is still in place.
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
    """The name server's tables; one loop owns them."""

    config: NameServerConfig
    clock: Clock
    routes: RouteInfoTable
    kv: KVConfig
    watches: Watches[Connection] = field(default_factory=Watches)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a file is written, so that writes follow one another."""

    @classmethod
    def load(cls, config: NameServerConfig, clock: Clock) -> SharedState:
        """The state at start: no routes, and what the key-value file holds.

        Raises:
            StateFileError: the file is there and can't be understood.
        """
        kv = load(config.kv_config_path, KVConfig.from_json, KVConfig(), max_bytes=MAX_FILE_BYTES)
        routes = RouteInfoTable(
            max_brokers=config.max_brokers, max_entries=config.max_route_entries
        )
        return cls(config, clock, routes, kv)

    @property
    def now_ms(self) -> int:
        """The time by which brokers are alive or dead: a clock that never jumps."""
        return int(self.clock.monotonic() * 1000)

    def scan(self) -> None:
        """Drop the brokers that were silent for too long."""
        self.apply(self.routes.scan(self.now_ms), "nothing was heard of it for too long")

    def apply(self, change: Change, why: str, *, expected: bool = False) -> None:
        """Do what a change of the routes asks for: tell who watches, close who is dead."""
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
                # A hint: a client that can't take it finds the change when it asks by itself.
                _log.debug(
                    "route change not told", peer=peer.remote_text, topic=topic, why=str(error)
                )

    def closed(self, peer: Connection) -> None:
        """A connection ended: with it what its broker registered and its client watched."""
        self.watches.forget(peer)
        self.apply(self.routes.connection_closed(peer), "its connection closed")

    async def change_kv(self, change: Callable[[KVConfig], KVConfig]) -> None:
        """Change the key-value table; it is on disk when this returns.

        Raises:
            LimitError: the change would exceed a limit.
            StateFileError: the file can't be written; nothing has changed.
        """
        async with self.writing:
            changed = change(self.kv)
            if changed is not self.kv:
                await asyncio.to_thread(save, self.config.kv_config_path, changed.to_json())
                self.kv = changed

    async def change_config(self, values: Mapping[str, str]) -> None:
        """Change settings, and the file they are stored in if there is one.

        Raises:
            ConfigError: a value is bad.
            StateFileError: the file can't be written; nothing has changed.
        """
        async with self.writing:
            changed = self.config.updated(values)
            file = self.config.config_store_path
            if file is not None:
                nothing: dict[str, str] = {}
                stored = load(file, properties_text.parse, nothing, max_bytes=MAX_FILE_BYTES)
                known = {k: v for k, v in values.items() if k in changed.known_keys()}
                await asyncio.to_thread(save, file, properties_text.render({**stored, **known}))
            self.config = changed
