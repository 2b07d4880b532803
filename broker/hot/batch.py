"""Batches: all records of one request, and their entries, at once.

Messages of equal size are laid out as columns where numpy can be had (``hot.columns``): no Python
code runs for each. All others go through one tight loop. A batch that is damaged, or breaks a
limit, is left to the general path.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from broker.hot.answers import SendAnswers
from broker.hot.elements import elements_of, shape_of
from broker.hot.numpy_loader import NUMPY
from broker.hot.properties import asks_for_more, says_wait
from broker.hot.targets import Target
from broker.hot.turn import Turn
from broker.state import BrokerState
from remoting.protocol.accelerated import crc32
from remoting.protocol.message.properties import CLUSTER, NAME_END, join
from remoting.protocol.message.record import FIXED_BYTES_V4, HEAD_V4, MAGIC_V1
from remoting.protocol.message.tags import tags_code_of

MIN_COLUMNS: Final = 16
"""Messages of a batch from which on columns are faster than the loop."""

_CRC_MASK: Final = 0x7FFFFFFF
_TIMER: Final = b"TIMER_DEL"
_MAX_KNOWN_IDS: Final = 64
_LONGEST_KNOWN_IDS: Final = 1_024


class Batches:
    """Stores batches."""

    __slots__ = ("_answers", "_bulk", "_cluster", "_host", "_ids", "_max_body", "_turn")

    def __init__(self, state: BrokerState, turn: Turn, answers: SendAnswers) -> None:
        self._turn = turn
        self._bulk = state.store.bulk
        self._host = state.packed_host
        self._cluster = CLUSTER.encode() + NAME_END + state.config.cluster_name.encode()
        self._max_body = state.store.config.max_message_size
        self._answers = answers
        self._ids: dict[int, bytes] = {}

    def put(
        self,
        target: Target,
        sent: str,
        buffer: bytes,
        body_at: int,
        end: int,
        born_ms: int,
        opaque: int | None,
    ) -> bool:
        """Add a batch's messages and its answer; False: the general path has to do it."""
        text = sent.encode()
        # The bodies take less than the whole; so near the limit they are counted elsewhere.
        if asks_for_more(text) or end - body_at > self._max_body:
            return False
        # A message of the batch may ask for a timer.
        if buffer.find(_TIMER, body_at, end) >= 0:
            return False
        waits = says_wait(text)
        text = join(text, self._cluster)
        positions = self._put_columns(
            target, text, buffer, body_at, end, born_ms
        ) or self._put_each(target, text, buffer[body_at:end], born_ms)
        if positions is None:
            return False
        count = len(positions)
        number = target.run.next_offset - count
        self._bulk.messages += count
        target.run.room -= count
        turn = self._turn
        turn.messages += count
        turn.message_bytes += end - body_at
        if opaque is not None:
            ids = self._ids_of(count) % tuple(positions)
            turn.answer_send(target.batch_answer, (ids, number, opaque), waits=waits)
        return True

    def _ids_of(self, count: int) -> bytes:
        ids = self._ids.get(count)
        if ids is None:
            ids = self._answers.ids(count)
            if count <= _LONGEST_KNOWN_IDS and len(self._ids) < _MAX_KNOWN_IDS:
                self._ids[count] = ids
        return ids

    # without a loop

    def _put_columns(
        self, target: Target, text: bytes, buffer: bytes, body_at: int, end: int, born_ms: int
    ) -> range | None:
        """Where the messages went; None when they are few, or not of one shape."""
        shape = shape_of(buffer, body_at, end)
        if shape is None or shape.messages < MIN_COLUMNS:
            return None
        columns = NUMPY.columns()
        messages = None if columns is None else columns.messages_of(buffer, body_at, shape, text)
        if messages is None:
            return None
        bulk, run, count = self._bulk, target.run, shape.messages
        size = FIXED_BYTES_V4 + len(run.queue.topic_bytes) + messages.variable_bytes
        if not bulk.make_room(run, count, count * size):
            return None
        position, number = bulk.position, run.next_offset
        head = self._head(target, size, 0, 0, number, position, born_ms, shape.body_bytes)
        bulk.records.append(messages.records(head, target.topic_text, number, position))
        positions = range(position, position + count * size, size)
        entries = [size] * (3 * count)
        entries[::3] = positions
        entries[2::3] = messages.tags_codes()
        run.entries += entries
        run.next_offset += count
        bulk.position = position + count * size
        return positions

    # with a loop

    def _put_each(self, target: Target, text: bytes, body: bytes, born_ms: int) -> list[int] | None:
        """Where the messages went; None when the general path has to look at them."""
        elements = elements_of(body, text)
        if elements is None:
            return None
        bulk, run, topic = self._bulk, target.run, target.topic_text
        # The topic's own length byte is in its text.
        fixed = FIXED_BYTES_V4 - 1 + len(topic)
        sizes = [fixed + len(data) + len(properties) for _, data, properties in elements]
        if not bulk.make_room(run, len(elements), sum(sizes)):
            return None
        *positions, end = accumulate(sizes, initial=bulk.position)
        number = run.next_offset
        for (flag, data, properties), size, position in zip(
            elements, sizes, positions, strict=True
        ):
            bulk.records += (
                self._head(target, size, crc32(data), flag, number, position, born_ms, len(data)),
                data,
                topic,
                len(properties).to_bytes(2, "big"),
                properties,
            )
            run.entries += (position, size, tags_code_of(properties))
            number += 1
        run.next_offset = number
        bulk.position = end
        return positions

    def _head(
        self,
        target: Target,
        size: int,
        crc: int,
        flag: int,
        number: int,
        position: int,
        born_ms: int,
        length: int,
    ) -> bytes:
        return HEAD_V4.pack(
            size,
            MAGIC_V1,
            crc & _CRC_MASK,
            target.queue_id,
            flag,
            number,
            position,
            target.sys_flag,
            born_ms,
            self._turn.peer.born_host,
            self._bulk.store_ms,
            self._host,
            target.reconsume_times,
            0,
            length,
        )
