"""The name server's key-value table: namespaces of names and values, kept in one file.

``KVConfig`` is a value: a change makes a new one, which takes the place of the old one only when
it is safely in the file. So what was answered survives a crash, and what could not be written is
not there either. cf. KVConfigManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self

import structlog

from nameserver.config import MAX_KV_BYTES, MAX_KV_ENTRIES, MAX_KV_TEXT_LENGTH, LimitError
from remoting.protocol.accelerated import json_dumps
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.stats import KVConfigSerializeWrapper

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Topic -> ``broker:queues;...``: which queues an ordered topic always has."""

Namespaces = Mapping[str, Mapping[str, str]]


class KVConfig:
    """An immutable table; every change gives another one.

    Attributes:
        entry_count: of all namespaces.
        size_bytes: of all texts, as they stand in the file.
    """

    __slots__ = ("_max_bytes", "_max_entries", "_namespaces", "entry_count", "size_bytes")

    def __init__(
        self,
        namespaces: Namespaces | None = None,
        *,
        max_entries: int = MAX_KV_ENTRIES,
        max_bytes: int = MAX_KV_BYTES,
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._namespaces: Namespaces = namespaces or {}
        self.entry_count = sum(map(len, self._namespaces.values()))
        self.size_bytes = sum(
            _size(name) + sum(_size(key) + _size(value) for key, value in entries.items())
            for name, entries in self._namespaces.items()
        )

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read the file's text.

        Raises:
            BodyError: it is not such a table.
        """
        return cls(decode(KVConfigSerializeWrapper, text).config_table)

    def to_json(self) -> bytes:
        """The file's text, as RocketMQ writes it."""
        table = {name: dict(entries) for name, entries in self._namespaces.items()}
        return encode(KVConfigSerializeWrapper(config_table=table))

    def get(self, namespace: str, key: str) -> str | None:
        """A value, or None."""
        return self._namespaces.get(namespace, {}).get(key)

    def entries(self, namespace: str) -> Mapping[str, str]:
        """All of a namespace; empty when there is none."""
        return MappingProxyType(dict(self._namespaces.get(namespace, {})))

    def with_value(self, namespace: str, key: str, value: str) -> Self:
        """The table with one entry set.

        Raises:
            LimitError: a text is too long or empty, or the table is full.
        """
        if not namespace or not key:
            raise LimitError("an entry of the key-value table needs a namespace and a key")
        if max(len(namespace), len(key), len(value)) > MAX_KV_TEXT_LENGTH:
            raise LimitError(
                f"namespace, key and value may have {MAX_KV_TEXT_LENGTH} characters each"
            )
        entries = dict(self._namespaces.get(namespace, {}))
        new = key not in entries
        more = _size(key) + _size(value) if new else _size(value) - _size(entries[key])
        if not entries:
            more += _size(namespace)
        if new and self.entry_count >= self._max_entries:
            raise LimitError(f"the key-value table is full: it holds {self._max_entries} entries")
        if self.size_bytes + more > self._max_bytes:
            raise LimitError(f"the key-value table is full: it holds {self._max_bytes} bytes")
        entries[key] = value
        return self._changed(namespace, entries, int(new), more)

    def without(self, namespace: str, key: str) -> Self:
        """The table with one entry less; the same when it isn't there."""
        value = self.get(namespace, key)
        if value is None:
            return self
        entries = dict(self._namespaces[namespace])
        del entries[key]
        less = _size(key) + _size(value) + (0 if entries else _size(namespace))
        return self._changed(namespace, entries, -1, -less)

    def _changed(
        self, namespace: str, entries: Mapping[str, str], more_entries: int, more_bytes: int
    ) -> Self:
        changed = type(self)(max_entries=self._max_entries, max_bytes=self._max_bytes)
        namespaces = {**self._namespaces, namespace: entries}
        if not entries:
            del namespaces[namespace]
        changed._namespaces = namespaces
        changed.entry_count = self.entry_count + more_entries
        changed.size_bytes = self.size_bytes + more_bytes
        return changed


def _size(text: str) -> int:
    """The bytes of a text in the file: a control character takes six."""
    return len(json_dumps(text))


_log = structlog.get_logger("nameserver")
