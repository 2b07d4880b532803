"""Reads one range of a queue: pipelines pulls, decodes answers in batches, retries after failures.

Decoding a few thousand messages together takes half the time per message of decoding a few at a
time. So the bodies of several answers are received next to each other into one reused buffer, and
decoded together when there are enough of them. Decoded batches hold no reference to the buffer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from client.wire.pull_answer import Covered, Ends, Gone, NoTopic, PullRefused, judge_pull
from remoting.blocking import BlockingConnection
from remoting.errors import RemotingError
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.message.record import FIXED_BYTES_V4, QUEUE_OFFSET_AT
from remoting.runtime.log import Log
from spark_connector.connections import Lease
from spark_connector.decode.decoder import Decoder
from spark_connector.errors import DecodeError
from spark_connector.limits import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    FILTERED_BATCH_BYTES,
    LOSS_PATIENCE,
    MAX_BATCH_ROWS,
    REFUSALS,
)
from spark_connector.source import answers
from spark_connector.source.answers import REFUSAL_HINTS, RetryState, pull_request
from spark_connector.source.options import OnDataLoss, ReadOptions
from spark_connector.source.ranges import RangePartition
from spark_connector.source.read_ahead import ReadAhead

_SIZE: Final = Struct(">i")
_OFFSET: Final = Struct(">q")


class AnswerBuffer:
    """A buffer of answer bodies, in the order of their offsets.

    Args:
        size: initial size in bytes; the buffer grows as needed.

    Attributes:
        used: bytes in use.
        first, end: the range of queue offsets in the buffer, the end excluded.
    """

    def __init__(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))
        self.used = 0
        self.first = self.end = 0

    @property
    def view(self) -> memoryview:
        """The bytes in use: all bodies."""
        return self._memory[: self.used]

    @property
    def expected(self) -> int:
        """The number of messages in the buffer if none is missing or was filtered out."""
        return self.end - self.first if self.used else 0

    def room(self, length: int) -> memoryview:
        """Return memory for receiving the next body, which ``add`` then makes part of the buffer.

        Args:
            length: the length of the body in bytes.
        """
        needed = self.used + length
        if needed > len(self._memory):
            larger = memoryview(bytearray(max(needed, len(self._memory) * 2)))
            larger[: self.used] = self.view
            self._memory = larger
        return self._memory[self.used : needed]

    def add(self, body: memoryview, first: int, end: int) -> None:
        """Append a body without its messages below ``first``.

        It must continue where the buffer ends; after a gap the buffer has to be cleared first.

        Args:
            body: records, received into ``room`` or into other memory.
            first, end: the queue offsets covered by the body, the end excluded.
        """
        assert not self.used or first == self.end
        begin = start_of(body, first)
        length = len(body) - begin
        room = self.room(length)
        # A body received into the buffer is already in position, unless its start is cut off.
        if begin or body.obj is not room.obj:
            room[:] = body[begin:]
        if not self.used:
            self.first = first
        self.used += length
        self.end = end

    def clear(self) -> None:
        """Empty the buffer and keep its memory."""
        self.used = 0


def start_of(body: memoryview, first: int) -> int:
    """Return the position of the first record with a queue offset of at least ``first``.

    If a record with an invalid size comes first, its position is returned: the decoder reports it.

    Args:
        body: adjacent records.
        first: the queue offset.
    """
    at = 0
    while len(body) - at >= FIXED_BYTES_V4:
        (size,) = _SIZE.unpack_from(body, at)
        if size < FIXED_BYTES_V4 or _OFFSET.unpack_from(body, at + QUEUE_OFFSET_AT)[0] >= first:
            break
        at += size
    return min(at, len(body))


_log = Log("spark")

_BUFFER_BYTES: Final = 2 * BATCH_BYTES
_NOTHING: Final = memoryview(b"")


class _Stopped(Exception):
    """The broker answered a pull with something other than messages."""

    def __init__(self, answer: Ends | NoTopic | PullRefused) -> None:
        super().__init__(answer)
        self.answer = answer


@dataclass(slots=True)
class ReadCounts:
    """Counters of the reading of one range.

    Attributes:
        messages: rows returned.
        received_bytes: bytes of all answer bodies, including those without a new message.
        pulls: answered pulls.
        failures: failed attempts that were retried.
        lost: offsets that were skipped because their messages were deleted.
        skipped, damaged: messages without a row, rows without their body; see ``DecodedBatch``.
    """

    messages: int = 0
    received_bytes: int = 0
    pulls: int = 0
    failures: int = 0
    lost: int = 0
    skipped: int = 0
    damaged: int = 0


class RangeReader:
    """Reads one range; usable once.

    Args:
        partition: the range.
        options: how to read it.
        decoder: decodes records to Arrow batches.
        lease: leases connections; by default from this process's cache.
        clock: returns monotonic seconds.
        sleep: sleeps for seconds, between attempts.
        choose: randomises these pauses.

    Attributes:
        counts: counters, kept up to date while reading.
    """

    def __init__(
        self,
        partition: RangePartition,
        options: ReadOptions,
        decoder: Decoder,
        *,
        lease: Lease | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        choose: random.Random | None = None,
    ) -> None:
        self.counts = ReadCounts()
        self._partition = partition
        self._options = options
        self._decoder = decoder
        self._lease = lease or options.connection.lease()
        self._timeout = options.connection.request_timeout
        self._clock = clock
        self._sleep = sleep
        self._tags = None if options.tags.is_all else options.tags
        self._ahead = ReadAhead(
            partition.start,
            partition.end,
            width=options.pull_batch_size,
            depth=options.pull_pipeline,
        )
        self._buffer = AnswerBuffer(_BUFFER_BYTES)
        self._retries = RetryState(choose or random.Random())  # noqa: S311 - spreads load
        self._address = 0

    def batches(self) -> Iterator[Any]:
        """Yield the messages as ``pyarrow.RecordBatch`` in the order of their offsets.

        Raises:
            BrokerError: the broker was unreachable for ``read_timeout``, or refused the pulls.
            DataLossError: messages were deleted, and the policy is to fail.
            UnknownTopicError: the topic was deleted, and the policy is to fail.
            DecodeError: a message can't be decoded.
        """
        while not self._ahead.done:
            try:
                yield from self._attempt()
            except _Stopped as stopped:
                self._stopped(stopped.answer)
            except RemotingError as error:
                self._failed(error)
        yield from self._decoded()
        if self.counts.lost or self.counts.skipped or self.counts.damaged:
            self._report()

    # --- one attempt

    def _attempt(self) -> Iterator[Any]:
        ahead = self._ahead
        address = self._partition.addresses[self._address]
        with self._lease(address) as connection:
            while not ahead.done:
                self._ask(connection)
                answer = connection.receive(timeout=self._timeout, place=self._place)
                yield from self._take(connection, answer)

    def _ask(self, connection: BlockingConnection) -> None:
        while (window := self._ahead.next_pull()) is not None:
            request = pull_request(self._partition, self._options, window.start, window.end)
            opaque = connection.submit(request, timeout=self._timeout)
            self._ahead.sent(window, opaque)

    def _place(self, answer: Command, length: int) -> memoryview | None:
        """Return memory for an answer's body.

        The answer that is next in order is received directly into the buffer, one that arrives
        early into memory of its own, to be copied later.
        """
        if answer.code != ResponseCode.SUCCESS:
            return None
        head = self._ahead.head
        if head is not None and head.opaque == answer.opaque:
            return self._buffer.room(length)
        return memoryview(bytearray(length))

    def _take(self, connection: BlockingConnection, answer: Command) -> Iterator[Any]:
        self.counts.pulls += 1
        self.counts.received_bytes += len(answer.body)
        window = self._ahead.find(answer.opaque)
        assert window is not None, "nothing else is asked on this connection"
        meaning = judge_pull(
            answer, window.start, is_filtered=self._tags is not None, hints=REFUSAL_HINTS
        )
        if isinstance(meaning, Covered):
            body = memoryview(answer.body) if answer.body else None
            self._ahead.answered(window, meaning.next_offset, body)
        elif isinstance(meaning, Gone):
            self._ahead.answered(window, meaning.next_offset, is_lost=True)
        else:
            raise _Stopped(meaning)
        buffer = self._buffer
        while (part := self._ahead.next_part()) is not None:
            self._retries.reset()
            if part.is_lost:
                # Messages before the gap are returned before the loss is raised.
                yield from self._decoded()
                self._lost(part.first, min(part.next_offset, self._ahead.end))
            else:
                body = _NOTHING if part.body is None else part.body
                buffer.add(body, part.first, min(part.next_offset, self._ahead.end))
            if self._tags is None:
                is_enough = buffer.expected >= BATCH_MESSAGES or buffer.used >= BATCH_BYTES
            else:
                is_enough = buffer.used >= FILTERED_BATCH_BYTES
            if is_enough:
                # Send the next pulls first, so that the broker serves them during decoding.
                self._ask(connection)
                yield from self._decoded()

    def _decoded(self) -> Iterator[Any]:
        """Decode the gathered bodies, yield the batches and empty the buffer."""
        buffer, counts = self._buffer, self.counts
        if not buffer.used:
            return
        first, end, expected = buffer.first, buffer.end, buffer.expected
        rows = skipped = 0
        try:
            for decoded in self._decoder.batches(
                buffer.view,
                first_offset=first,
                end_offset=end,
                tags=self._tags,
                max_rows=MAX_BATCH_ROWS,
            ):
                rows += decoded.rows
                skipped += decoded.skipped
                counts.damaged += decoded.damaged
                if decoded.rows:
                    yield decoded.batch
        except DecodeError as error:
            raise answers.damaged(self._partition, first, end, error) from error
        buffer.clear()
        counts.messages += rows
        counts.skipped += skipped
        if rows > expected:
            reason = f"it gave {rows} messages for {expected} offsets"
            raise answers.refused(self._partition, first, reason, "")
        if self._tags is None and rows + skipped < expected:
            self._lost(first, end, expected - rows - skipped)

    # --- failures

    def _lost(self, first: int, end: int, count: int | None = None) -> None:
        """Count lost messages within ``[first, end)``, or raise DataLossError.

        Args:
            first, end: queue offsets, the end excluded.
            count: the number of lost messages; by default all of the range.
        """
        count = end - first if count is None else count
        if self._options.on_data_loss is OnDataLoss.FAIL:
            raise answers.gone(self._partition, first, end, count)
        self.counts.lost += count

    def _stopped(self, answer: Ends | NoTopic | PullRefused) -> None:
        position = self._ahead.position
        if isinstance(answer, PullRefused):
            self._refused(answer)
        elif isinstance(answer, NoTopic):
            if self._options.on_data_loss is OnDataLoss.FAIL:
                raise answers.no_topic(self._partition, position, answer)
            self._end_at(position)
        elif self._retries.failed(self._clock()) < LOSS_PATIENCE:
            self._retry(f"the queue ends at {answer.max_offset}")
        elif self._options.on_data_loss is OnDataLoss.FAIL:
            raise answers.ended(self._partition, position, answer)
        else:
            self._end_at(answer.max_offset)

    def _refused(self, answer: PullRefused) -> None:
        waited = self._retries.failed(self._clock(), refused=not answer.is_busy)
        is_final = answer.hint or self._retries.refusals >= REFUSALS
        if is_final or waited >= self._options.read_timeout:
            position = self._ahead.position
            raise answers.refused(self._partition, position, answer.reason, answer.hint)
        self._retry(answer.reason, answer.retry_after)

    def _failed(self, error: RemotingError) -> None:
        waited = self._retries.failed(self._clock())
        if waited >= self._options.read_timeout:
            position = self._ahead.position
            raise answers.unreachable(self._partition, position, str(error), waited) from error
        self._retry(str(error))

    def _retry(self, reason: str, pause: float = 0.0) -> None:
        """Pause, by default for a growing time, and continue at the broker's next address."""
        self._ahead.restart()
        self.counts.failures += 1
        if self._retries.failures == 1:
            _log.warning(
                "queue can't be read, trying again",
                queue=str(self._partition.queue),
                offset=self._ahead.position,
                broker=self._partition.addresses[self._address],
                reason=reason,
            )
        self._address = (self._address + 1) % len(self._partition.addresses)
        self._sleep(pause or self._retries.pause())

    def _end_at(self, offset: int) -> None:
        """End the range at an offset and count the rest as lost."""
        end = self._ahead.end
        self._ahead.cut(offset)
        self.counts.lost += end - self._ahead.end

    def _report(self) -> None:
        _log.warning(
            "messages were lost or damaged",
            queue=str(self._partition.queue),
            start=self._partition.start,
            end=self._partition.end,
            lost=self.counts.lost,
            skipped=self.counts.skipped,
            damaged=self.counts.damaged,
        )
