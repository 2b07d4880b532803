"""The decoder: raw records in, Arrow batches out."""

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
    """Turns records, back to back or at known places, into Arrow batches.

    A decoder keeps nothing of a buffer once the batch is made, so receive buffers may be reused.

    One record that needs the fallback does not make a buffer slow: halves are tried, and halves of
    halves, until it stands among few.
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
        """The records of a buffer as batches; one for each portion, even if it has no rows.

        Args:
            buffer: the body of a pull answer, or a part of a commit log.
            starts: where in it the records begin, in the order of the rows; None: back to back.
            first_offset, end_offset, tags, file: see ``Selection``.
            max_rows: records that a batch is made of, at most.
            max_bytes: bytes they take, at most, unless one alone takes more.

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
