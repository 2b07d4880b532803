"""The name server's key-value table: namespaces of keys and values, kept in one file.

``KVConfig`` is immutable. A change creates a new table, which replaces the old one only after it
has been written to the file. So an acknowledged change survives a crash, and a change that can't be
written doesn't take effect. cf. KVConfigManager.
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
"""The namespace of ordered topics: topic -> ``broker:queues;...``, its fixed queues."""

Namespaces = Mapping[str, Mapping[str, str]]


class KVConfig:
    """An immutable key-value table; changes return a new one.

    Args:
        namespaces: namespace -> key -> value.
        max_entries: the most entries of all namespaces.
        max_bytes: the largest size of all texts.

    Attributes:
        entry_count: the number of entries of all namespaces.
        size_bytes: the size of all texts as JSON in the file.
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
        """Parse the content of the file.

        Raises:
            BodyError: the content is malformed.
        """
        return cls(decode(KVConfigSerializeWrapper, text).config_table)

    def to_json(self) -> bytes:
        """Return the content of the file, in RocketMQ's format."""
        table = {name: dict(entries) for name, entries in self._namespaces.items()}
        return encode(KVConfigSerializeWrapper(config_table=table))

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._namespaces.get(namespace, {}).get(key)

    def entries(self, namespace: str) -> Mapping[str, str]:
        """Return the entries of a namespace; empty if it doesn't exist."""
        return MappingProxyType(dict(self._namespaces.get(namespace, {})))

    def with_value(self, namespace: str, key: str, value: str) -> Self:
        """Return the table with one entry set.

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
        """Return the table without one entry; the same table if the entry doesn't exist."""
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
    """Return the size of a text as JSON, in which a control character takes six bytes."""
    return len(json_dumps(text))


_log = structlog.get_logger("nameserver")
