"""The decoder of records to Arrow batches; chooses between ``fast`` and ``fallback``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from remoting.protocol.message.record import Buffer
from remoting.protocol.message.tags import TagExpression
from spark_connector.decode import fallback, fast
from spark_connector.decode.layout import portions, walk
from spark_connector.decode.model import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    BatchTooLargeError,
    DecodedBatch,
    DecodeSettings,
    NeedsFallback,
    Selection,
    Starts,
)


class Decoder:
    """Decodes records, adjacent or at given positions, to Arrow batches.

    Batches hold no reference to the buffer, so receive buffers may be reused.

    One record that needs the fallback does not slow down the decoding of a whole buffer: the
    records are halved repeatedly until it is among at most ``max_fallback_records``.
    """

    def __init__(self, settings: DecodeSettings) -> None:
        self._settings = settings

    def batches(
        self,
        buffer: Buffer,
        *,
        starts: Starts | None = None,
        first_offset: int | None = None,
        end_offset: int | None = None,
        tags: TagExpression | None = None,
        file: str | None = None,
        max_rows: int = MAX_BATCH_ROWS,
        max_bytes: int = MAX_BATCH_BYTES,
    ) -> Iterator[DecodedBatch]:
        """Yield the records of a buffer as batches, which may be without rows.

        Args:
            buffer: the body of a pull answer, or a part of a commit log.
            starts: the positions of the records, in the order of the rows; None if the records
                are adjacent and fill the buffer.
            first_offset, end_offset, tags, file: see ``Selection``.
            max_rows: the most records of a batch.
            max_bytes: the most bytes of these records, unless a single one is larger.

        Raises:
            DecodeError: a record is damaged or its body can't be decoded.
        """
        selection = Selection(first_offset, end_offset, tags, file)
        if starts is None:
            starts = walk(buffer)
        if starts is None:
            starts = fallback.positions(buffer, self._settings)
        pending = list(portions(buffer, starts, max_rows, max_bytes))[::-1]
        while pending:
            portion = pending.pop()
            try:
                yield self._decode(buffer, portion, selection)
            except BatchTooLargeError:
                half = len(portion) // 2
                pending += [portion[half:], portion[:half]]

    def _decode(self, buffer: Buffer, starts: Starts, selection: Selection) -> DecodedBatch:
        try:
            return fast.decode(buffer, starts, self._settings, selection)
        except NeedsFallback:
            if len(starts) <= self._settings.max_fallback_records:
                return fallback.decode(buffer, starts, self._settings, selection)
        half = len(starts) // 2
        return self._joined(
            self._decode(buffer, starts[:half], selection),
            self._decode(buffer, starts[half:], selection),
        )

    def _joined(self, first: DecodedBatch, second: DecodedBatch) -> DecodedBatch:
        inflated_bytes = first.inflated_bytes + second.inflated_bytes
        self._settings.check_inflated(inflated_bytes)
        table: Any = pa.Table.from_batches([first.batch, second.batch])
        parts = table.combine_chunks().to_batches()
        return DecodedBatch(
            parts[0] if parts else first.batch,
            first.skipped + second.skipped,
            first.damaged + second.damaged,
            inflated_bytes,
        )
