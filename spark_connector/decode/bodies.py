"""The bodies of many records: copied together, or inflated and checked one by one.

Bodies as stored are pieces like others. A compressed one has to be inflated by itself, and a CRC
covers one body, so these cost a call for each record. A body that can't be decoded is left to
``plain``, which knows what is to become of it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from remoting.protocol.accelerated import crc32
from remoting.protocol.errors import BodyError
from remoting.protocol.message import compression
from remoting.protocol.message.record import COMPRESSED
from spark_connector.decode import layout as texts
from spark_connector.decode.layout import Layout
from spark_connector.decode.model import MAX_BATCH_INFLATED_BYTES, NeedsFallback
from spark_connector.decode.plain import too_large

_CRC_BITS: Final = 0x7FFFFFFF


class Bodies(NamedTuple):
    """The bodies as a binary array, and what compressed ones among them inflated to."""

    array: Any
    inflated_bytes: int


def bodies(layout: Layout, *, decompress: bool) -> Bodies:
    """The bodies of all records.

    Raises:
        NeedsFallback: one does not inflate.
        BatchTooLargeError: the compressed ones inflate to too much.
    """
    if decompress and layout.sys_flags(COMPRESSED).any():
        return _inflated(layout)
    return Bodies(texts.pieces(layout.buffer, layout.body_at, layout.body_end), 0)


def _inflated(layout: Layout) -> Bodies:
    view = memoryview(layout.buffer)
    found: list[bytes | memoryview] = []
    inflated_bytes = 0
    bounds = zip(layout.body_at.tolist(), layout.body_end.tolist(), strict=True)
    for (begin, end), flags in zip(bounds, layout.first["sys_flag"].tolist(), strict=True):
        body: bytes | memoryview = view[begin:end]
        if flags & COMPRESSED:
            try:
                body = compression.decompress(body, flags)
            except BodyError as error:
                raise NeedsFallback from error
            inflated_bytes += len(body)
            if inflated_bytes > MAX_BATCH_INFLATED_BYTES:
                raise too_large()
        found.append(body)
    return Bodies(pa.array(found, pa.binary()), inflated_bytes)


def crc_ok(layout: Layout) -> NDArray[np.bool_]:
    """For each record whether its body as stored has the CRC stored with it."""
    parts = map(slice, layout.body_at.tolist(), layout.body_end.tolist())
    stored = map(memoryview(layout.buffer).__getitem__, parts)
    actual = np.fromiter(map(crc32, stored), np.uint32, count=len(layout))
    agrees: NDArray[np.bool_] = (actual & _CRC_BITS) == layout.first["crc"]
    return agrees
