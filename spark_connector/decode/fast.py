"""Records to rows, all of a buffer at once.

Everything is a few steps of numpy and Arrow over whole columns, so a batch costs some hundred
calls however many records it has, and little per record. It gives what ``plain`` gives, or raises
``NeedsFallback``: for damaged records, odd properties texts, bytes that are not UTF-8, bodies that
can't be decoded, times beyond Spark's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from remoting.protocol.message import ids, properties
from remoting.protocol.message.record import Buffer
from remoting.protocol.message.view import RecordView
from spark_connector.decode import bodies, entries, layout
from spark_connector.decode import layout as texts
from spark_connector.decode.model import (
    DecodedBatch,
    DecodeSettings,
    NeedsFallback,
    Selection,
    Starts,
)
from spark_connector.decode.plain import FIRST_MS, LAST_MS, host_text

_LOG_APPEND_TIME: Final = 1


@dataclass
class _Rows:
    """The records that become rows, and what several columns are made of."""

    layout: layout.Layout
    settings: DecodeSettings
    file: str | None

    @cached_property
    def entries(self) -> entries.PropertyEntries:
        return entries.take_apart(self.layout)

    @cached_property
    def bodies(self) -> bodies.Bodies:
        return bodies.bodies(self.layout, decompress=self.settings.decompress)

    def inflated_bytes(self) -> int:
        return self.bodies.inflated_bytes if self.settings.wants("body", "value") else 0

    @cached_property
    def crc_ok(self) -> NDArray[np.bool_]:
        return bodies.crc_ok(self.layout)

    def constant(self, value: object, kind: Any) -> Any:
        return pa.repeat(pa.scalar(value, kind), len(self.layout))

    def views(self) -> list[RecordView]:
        return [RecordView(self.layout.buffer, start) for start in self.layout.starts.tolist()]

    def topics(self) -> Any:
        found = self.layout
        return texts.as_text(texts.pieces(found.buffer, found.topic_at, found.topic_end))

    def born_hosts(self) -> Any:
        if self.layout.has_v6():
            return pa.array([host_text(view.born_host) for view in self.views()], pa.string())
        return texts.hosts_v4(self.layout.first["born_host"])

    def message_ids(self) -> Any:
        unique = self.entries.values_of(properties.UNIQ_KEY)
        if not unique.null_count:
            return unique
        missing = np.asarray(pc.is_null(unique).to_numpy(zero_copy_only=False))
        return pc.replace_with_mask(unique, pa.array(missing), self._offset_ids(missing))

    def _offset_ids(self, which: NDArray[np.bool_]) -> Any:
        found = self.layout.only(which)
        if found.has_v6():
            views = _Rows(found, self.settings, self.file).views()
            return pa.array(
                [ids.offset_id_of(view.store_host_bytes, view.physical_offset) for view in views],
                pa.string(),
            )
        return texts.offset_ids_v4(found.store["store_host"], found.first["physical_offset"])


def _int(values: NDArray[Any]) -> Any:
    return pa.array(values.astype(np.int32))


def _long(values: NDArray[Any]) -> Any:
    return pa.array(values.astype(np.int64))


def _timestamp(milliseconds: NDArray[Any], kind: Any) -> Any:
    native = milliseconds.astype(np.int64)
    if native.min() < FIRST_MS or native.max() > LAST_MS:
        raise NeedsFallback
    return pa.array(native * 1000).view(kind)


_ARRAYS: Final[dict[str, Callable[[_Rows, Any], Any]]] = {
    "topic": lambda rows, _: rows.topics(),
    "brokerName": lambda rows, kind: rows.constant(rows.settings.broker_name, kind),
    "queueId": lambda rows, _: _int(rows.layout.first["queue_id"]),
    "queueOffset": lambda rows, _: _long(rows.layout.first["queue_offset"]),
    "body": lambda rows, _: rows.bodies.array,
    "keys": lambda rows, _: rows.entries.values_of(properties.KEYS),
    "tags": lambda rows, _: rows.entries.values_of(properties.TAGS),
    "bornTimestamp": lambda rows, kind: _timestamp(rows.layout.first["born_timestamp"], kind),
    "storeTimestamp": lambda rows, kind: _timestamp(rows.layout.store["store_timestamp"], kind),
    "bornHost": lambda rows, _: rows.born_hosts(),
    "reconsumeTimes": lambda rows, _: _int(rows.layout.last["reconsume_times"]),
    "sysFlag": lambda rows, _: _int(rows.layout.first["sys_flag"]),
    "flag": lambda rows, _: _int(rows.layout.first["flag"]),
    "messageId": lambda rows, _: rows.message_ids(),
    "properties": lambda rows, kind: rows.entries.map_array(kind),
    "physicalOffset": lambda rows, _: _long(rows.layout.first["physical_offset"]),
    "storeSize": lambda rows, _: _int(rows.layout.first["size"]),
    "file": lambda rows, kind: rows.constant(rows.file, kind),
    "crcOk": lambda rows, _: pa.array(rows.crc_ok),
    "key": lambda rows, kind: rows.entries.values_of(properties.KEYS).view(kind),
    "value": lambda rows, _: rows.bodies.array,
    "partition": lambda rows, _: _int(rows.layout.first["queue_id"]),
    "offset": lambda rows, _: _long(rows.layout.first["queue_offset"]),
    "timestamp": lambda rows, kind: _timestamp(rows.layout.store["store_timestamp"], kind),
    "timestampType": lambda rows, kind: rows.constant(_LOG_APPEND_TIME, kind),
    "headers": lambda rows, kind: rows.entries.header_array(kind),
}


def decode(
    buffer: Buffer, starts: Starts, settings: DecodeSettings, selection: Selection
) -> DecodedBatch:
    """The rows of the records at ``starts``; see ``Decoder.decode``.

    Raises:
        NeedsFallback: ``plain`` has to do it.
        BatchTooLargeError: the compressed bodies are too large together.
    """
    next_offset = selection.first_offset or 0
    if not len(starts):
        return _batch(None, settings, 0, _capped(next_offset, selection))
    found = layout.locate(buffer, starts)
    offsets = found.first["queue_offset"]
    next_offset = _capped(max(next_offset, int(offsets.max()) + 1), selection)
    keep = np.ones(len(found), dtype=np.bool_)
    if selection.first_offset is not None:
        keep &= offsets >= selection.first_offset
    if selection.end_offset is not None:
        keep &= offsets < selection.end_offset
    found = found if keep.all() else found.only(keep)
    rows = _Rows(found, settings, selection.file)
    if len(found) and selection.tags is not None and not selection.tags.is_all:
        rows = _tagged(rows, selection.tags.tags)
    if not len(rows.layout):
        return _batch(None, settings, len(starts), next_offset)
    if settings.verify_crc and not rows.crc_ok.all():
        raise NeedsFallback
    return _batch(rows, settings, len(starts), next_offset)


def _capped(offset: int, selection: Selection) -> int:
    end = selection.end_offset
    return offset if end is None else min(offset, end)


def _tagged(rows: _Rows, tags: frozenset[str]) -> _Rows:
    """The rows whose tag is one of these, exactly: the broker compared hashes."""
    wanted = pa.array(sorted(tags), pa.string())
    is_wanted = pc.is_in(rows.entries.values_of(properties.TAGS), value_set=wanted)
    keep = np.asarray(is_wanted.to_numpy(zero_copy_only=False))
    return rows if keep.all() else _Rows(rows.layout.only(keep), rows.settings, rows.file)


def _batch(
    rows: _Rows | None, settings: DecodeSettings, records: int, next_offset: int
) -> DecodedBatch:
    arrays = [
        pa.array([], column.arrow) if rows is None else _ARRAYS[column.name](rows, column.arrow)
        for column in settings.columns
    ]
    return DecodedBatch(
        pa.RecordBatch.from_arrays(arrays, schema=settings.schema),
        rows=0 if rows is None else len(rows.layout),
        records=records,
        skipped=0,
        damaged=0,
        inflated_bytes=0 if rows is None else rows.inflated_bytes(),
        next_offset=next_offset,
    )
