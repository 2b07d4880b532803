"""The decoder: raw records in, Arrow batches out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from remoting.protocol.message.record import Buffer
from remoting.protocol.message.tags import TagExpression
from spark_connector.decode import fast, plain
from spark_connector.decode.layout import portions, walk
from spark_connector.decode.model import (
    MAX_BATCH_BYTES,
    MAX_BATCH_INFLATED_BYTES,
    MAX_BATCH_ROWS,
    MAX_PLAIN_RECORDS,
    BatchTooLargeError,
    DecodedBatch,
    DecodeSettings,
    NeedsFallback,
    Selection,
    Starts,
)
from spark_connector.options import OnDecodeError
from spark_connector.schema import Column


class Decoder:
    """Turns records, back to back or at known places, into Arrow batches.

    Which columns there are decides what is done: of ``COLUMNS``, ``STORE_COLUMNS`` and
    ``KAFKA_COLUMNS`` any may be chosen, in any order. A decoder keeps nothing of a buffer once the
    batch is made, so receive buffers may be reused.

    One record that only the plain way understands does not make a buffer slow: halves are tried,
    and halves of halves, until it stands among few.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        broker_name: str,
        verify_crc: bool = False,
        decompress: bool = True,
        on_decode_error: OnDecodeError | str = OnDecodeError.FAIL,
    ) -> None:
        """Make a decoder.

        Args:
            columns: what the batches are to have.
            broker_name: the value of ``brokerName``.
            verify_crc: a body whose CRC is not the stored one can't be decoded. Without it,
                ``crcOk`` still tells, if it is one of the columns.
            decompress: inflate compressed bodies; otherwise they are given out as stored.
            on_decode_error: what becomes of a body that can't be decoded. Records of which no row
                can be made are an error too, or are skipped and counted.
        """
        self._settings = DecodeSettings(
            tuple(columns), broker_name, verify_crc, decompress, OnDecodeError(on_decode_error)
        )

    def decode(
        self,
        buffer: Buffer,
        *,
        starts: Starts | None = None,
        first_offset: int | None = None,
        end_offset: int | None = None,
        tags: TagExpression | None = None,
        file: str | None = None,
    ) -> DecodedBatch:
        """The records of a buffer as one batch.

        Args:
            buffer: the body of a pull answer, or a part of a commit log.
            starts: where in it the records begin, in the order of the rows; None: back to back.
            first_offset: records of lower queue offsets are left out.
            end_offset: so are records from this one on.
            tags: so are records whose tag, compared exactly, it does not name.
            file: the value of the column ``file``.

        Raises:
            DecodeError: a record is damaged or its body can't be decoded.
            BatchTooLargeError: the compressed bodies are too large together; ``batches`` divides.
        """
        selection = Selection(first_offset, end_offset, tags, file)
        return self._decode(buffer, self._starts(buffer, starts), selection)

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
        """The same as batches of bounded size; one for each portion, even if it has no rows.

        Args:
            buffer: as for ``decode``, and so are the others.
            starts: see there.
            first_offset: see there.
            end_offset: see there.
            tags: see there.
            file: see there.
            max_rows: records that a batch is made of, at most.
            max_bytes: bytes they take, at most, unless one alone takes more.

        Raises:
            DecodeError: see there.
        """
        selection = Selection(first_offset, end_offset, tags, file)
        for portion in portions(buffer, self._starts(buffer, starts), max_rows, max_bytes):
            yield from self._divided(buffer, portion, selection)

    def _starts(self, buffer: Buffer, starts: Starts | None) -> Starts:
        if starts is None:
            starts = walk(buffer)
        return plain.positions(buffer, self._settings) if starts is None else starts

    def _divided(
        self, buffer: Buffer, portion: Starts, selection: Selection
    ) -> Iterator[DecodedBatch]:
        """A portion, in halves as long as its bodies inflate to too much."""
        pending = [portion]
        while pending:
            starts = pending.pop()
            half = len(starts) // 2
            try:
                yield self._decode(buffer, starts, selection)
            except BatchTooLargeError:
                pending += [starts[half:], starts[:half]]

    def _decode(self, buffer: Buffer, starts: Starts, selection: Selection) -> DecodedBatch:
        try:
            return fast.decode(buffer, starts, self._settings, selection)
        except NeedsFallback:
            if len(starts) <= MAX_PLAIN_RECORDS:
                return plain.decode(buffer, starts, self._settings, selection)
        half = len(starts) // 2
        return _joined(
            self._decode(buffer, starts[:half], selection),
            self._decode(buffer, starts[half:], selection),
        )


def _joined(first: DecodedBatch, second: DecodedBatch) -> DecodedBatch:
    inflated_bytes = first.inflated_bytes + second.inflated_bytes
    if inflated_bytes > MAX_BATCH_INFLATED_BYTES:
        raise plain.too_large()
    return DecodedBatch(
        _one_batch(first.batch, second.batch),
        rows=first.rows + second.rows,
        records=first.records + second.records,
        skipped=first.skipped + second.skipped,
        damaged=first.damaged + second.damaged,
        inflated_bytes=inflated_bytes,
        next_offset=max(first.next_offset, second.next_offset),
    )


def _one_batch(first: Any, second: Any) -> Any:
    if not first.num_rows or not second.num_rows:
        return first if first.num_rows else second
    return pa.Table.from_batches([first, second]).combine_chunks().to_batches()[0]
