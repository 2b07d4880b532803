"""Decodes all records of a buffer at once, with NumPy and Arrow operations on whole columns.

A batch takes a few hundred calls, however many records it has. The result is the same as that of
``fallback``. ``NeedsFallback`` is raised for damaged records, malformed properties, bytes that are
not UTF-8, bodies that can't be decoded and times outside the range of Spark's timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from remoting.addresses import address_text
from remoting.protocol.accelerated import crc32
from remoting.protocol.errors import BodyError
from remoting.protocol.message import compression, ids, properties
from remoting.protocol.message.record import COMPRESSED, Buffer
from remoting.protocol.message.view import RecordView
from spark_connector.arrow import join_slices, mask_of
from spark_connector.decode import entries, layout
from spark_connector.decode.fallback import FIRST_MS, LAST_MS
from spark_connector.decode.model import (
    DecodedBatch,
    DecodeSettings,
    NeedsFallback,
    Selection,
    Starts,
)

_CRC_BITS: Final = 0x7FFFFFFF
_LOG_APPEND_TIME: Final = 1


@dataclass
class _Rows:
    """The selected records, and cached values that several columns need."""

    layout: layout.Layout
    settings: DecodeSettings
    file: str | None
    inflated_bytes: int = 0

    @cached_property
    def entries(self) -> entries.PropertyEntries:
        return entries.take_apart(self.layout)

    @cached_property
    def bodies(self) -> Any:
        """The bodies as a binary array, inflated if that is required."""
        layout = self.layout
        if self.settings.decompress and layout.sys_flags(COMPRESSED).any():
            return pa.array(self._inflated(), pa.binary())
        return join_slices(layout.buffer, layout.body_at, layout.body_end)

    def _stored_bodies(self) -> Iterator[memoryview]:
        view = memoryview(self.layout.buffer)
        bounds = zip(self.layout.body_at.tolist(), self.layout.body_end.tolist(), strict=True)
        return (view[begin:end] for begin, end in bounds)

    def _inflated(self) -> list[bytes | memoryview]:
        """Return the bodies as a list, with compressed ones inflated.

        Raises:
            NeedsFallback: a body can't be inflated.
            BatchTooLargeError: the inflated bodies are too large together.
        """
        parts: list[bytes | memoryview] = []
        all_flags = self.layout.first["sys_flag"].tolist()
        for body, flags in zip(self._stored_bodies(), all_flags, strict=True):
            if not flags & COMPRESSED:
                parts.append(body)
                continue
            try:
                parts.append(compression.decompress(body, flags))
            except BodyError as error:
                raise NeedsFallback from error
            self.inflated_bytes += len(parts[-1])
            self.settings.check_inflated(self.inflated_bytes)
        return parts

    @cached_property
    def crc_ok(self) -> NDArray[np.bool_]:
        """Whether the body of each record, as stored, has the stored CRC."""
        actual = np.fromiter(map(crc32, self._stored_bodies()), np.uint32, count=len(self.layout))
        agrees: NDArray[np.bool_] = (actual & _CRC_BITS) == self.layout.first["crc"]
        return agrees

    def constant(self, value: object, kind: Any) -> Any:
        return pa.repeat(pa.scalar(value, kind), len(self.layout))

    def views(self) -> list[RecordView]:
        return [RecordView(self.layout.buffer, start) for start in self.layout.starts.tolist()]

    def topics(self) -> Any:
        found = self.layout
        return layout.as_text(join_slices(found.buffer, found.topic_at, found.topic_end))

    def born_hosts(self) -> Any:
        if self.layout.has_v6():
            return pa.array([address_text(view.born_host) for view in self.views()], pa.string())
        return layout.hosts_v4(self.layout.first["born_host"])

    def message_ids(self) -> Any:
        unique = self.entries.values_of(properties.UNIQ_KEY)
        if not unique.null_count:
            return unique
        missing = mask_of(pc.is_null(unique))
        lacking = self.layout.only(missing)
        if lacking.has_v6():
            views = _Rows(lacking, self.settings, self.file).views()
            offset_ids = pa.array(
                [ids.offset_id_of(view.store_host_bytes, view.physical_offset) for view in views],
                pa.string(),
            )
        else:
            offset_ids = layout.offset_ids_v4(
                lacking.store["store_host"], lacking.first["physical_offset"]
            )
        return pc.replace_with_mask(unique, pa.array(missing), offset_ids)


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
    "body": lambda rows, _: rows.bodies,
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
    "value": lambda rows, _: rows.bodies,
    "partition": lambda rows, _: _int(rows.layout.first["queue_id"]),
    "offset": lambda rows, _: _long(rows.layout.first["queue_offset"]),
    "timestamp": lambda rows, kind: _timestamp(rows.layout.store["store_timestamp"], kind),
    "timestampType": lambda rows, kind: rows.constant(_LOG_APPEND_TIME, kind),
    "headers": lambda rows, kind: rows.entries.header_array(kind),
}


def decode(
    buffer: Buffer, starts: Starts, settings: DecodeSettings, selection: Selection
) -> DecodedBatch:
    """Decode the records at ``starts`` to one batch; see ``Decoder.batches``.

    Raises:
        NeedsFallback: ``fallback`` has to decode these records.
        BatchTooLargeError: the inflated bodies are too large together.
    """
    if not len(starts):
        return _batch(None, settings)
    found = layout.locate(buffer, starts)
    offsets = found.first["queue_offset"]
    keep = np.ones(len(found), dtype=np.bool_)
    if selection.first_offset is not None:
        keep &= offsets >= selection.first_offset
    if selection.end_offset is not None:
        keep &= offsets < selection.end_offset
    found = found if keep.all() else found.only(keep)
    rows = _Rows(found, settings, selection.file)
    if len(found) and selection.tags is not None and selection.tags.tags:
        # Compare the tags exactly: the broker has only compared their hashes.
        wanted = pa.array(sorted(selection.tags.tags), pa.string())
        has_tag = mask_of(pc.is_in(rows.entries.values_of(properties.TAGS), value_set=wanted))
        if not has_tag.all():
            rows = _Rows(found.only(has_tag), settings, selection.file)
    if not len(rows.layout):
        return _batch(None, settings)
    if settings.verify_crc and not rows.crc_ok.all():
        raise NeedsFallback
    return _batch(rows, settings)


def _batch(rows: _Rows | None, settings: DecodeSettings) -> DecodedBatch:
    arrays = [
        pa.array([], column.arrow) if rows is None else _ARRAYS[column.name](rows, column.arrow)
        for column in settings.columns
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=settings.schema)
    return DecodedBatch(batch, inflated_bytes=0 if rows is None else rows.inflated_bytes)
