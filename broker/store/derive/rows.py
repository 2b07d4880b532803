"""What a record of the log calls for elsewhere: an entry in its queue, and its keys in the index.

This is the way of single records, and says what is right. The compiled core does the same for many
at once, and leaves to it what is not plainly good.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from broker.store.dispatch import entry_of, takes_queue_offset
from broker.store.index.batch import hashes_of
from broker.store.log_walk import LogRecord
from remoting.protocol.errors import RecordError
from remoting.protocol.message.record import BORN_HOST_V6, FIXED_BYTES_V4, body_crc, locate
from remoting.protocol.names import validate_topic

# CRC, queue id, queue offset, physical offset, system flag, store time behind an IPv4 born host.
_FIELDS: Final = Struct(">8xIi4xqqi16xq")
_TIME: Final = Struct(">q")
_TIME_AT_V6: Final = 68


class Row(NamedTuple):
    """What one record calls for.

    Attributes:
        topic: None for a record that is of no queue.
        queue_id, queue_offset, tags_code: its entry's.
        store_ms: when it was stored.
        hashes: of its keys.
        wrong: why it can't be trusted, None when it can. Nothing else is said then.
    """

    topic: str | None
    queue_id: int
    queue_offset: int
    tags_code: int
    store_ms: int
    hashes: Sequence[int]
    wrong: str | None = None


def row_of(data: memoryview, at: int, size: int, base: int, levels_ms: Sequence[int]) -> Row:
    """Look at the record at ``at`` of a piece of the log, which begins at ``base``.

    Args:
        size: what it says of its size.
        levels_ms: delay levels.

    Raises:
        RecordError: its lengths don't make up its size.
    """
    flag, body_at, body_end, topic_at, topic_end, end = locate(data, at, at + size)
    if end != at + size:
        raise RecordError(f"the record at {base + at} is shorter than it says")
    crc, queue_id, offset, physical, _, store_ms = _FIELDS.unpack_from(data, at)
    if body_crc(data[body_at:body_end]) != crc:
        return _wrong(f"the body of the record at {base + at} fails its CRC")
    if flag & BORN_HOST_V6:
        (store_ms,) = _TIME.unpack_from(data, at + _TIME_AT_V6)
    record = LogRecord(
        data, at, topic_at, topic_end, physical, size, queue_id, offset, flag, store_ms
    )
    _, hashes = hashes_of(data, at, at + size)
    if not takes_queue_offset(flag):
        return Row(None, 0, 0, 0, store_ms, hashes)
    entry = entry_of(record, levels_ms)
    assert entry is not None
    if not has_possible_number(offset, physical):
        return _wrong(f"the record at {base + at} says that it is message {offset} of its queue")
    if not _is_topic(entry.topic) or queue_id < 0:
        return _wrong(
            f"the record at {base + at} is of no queue: topic {entry.topic[:200]!r}, queue"
            f" {queue_id}"
        )
    return Row(entry.topic, queue_id, offset, entry.tags_code, store_ms, hashes)


def has_possible_number(queue_offset: int, physical_offset: int) -> bool:
    """A message comes after all earlier ones of its queue."""
    return 0 <= queue_offset <= physical_offset // FIXED_BYTES_V4


@lru_cache(maxsize=4096)
def _is_topic(topic: str) -> bool:
    try:
        validate_topic(topic)
    except ValueError:
        return False
    return True


def _wrong(why: str) -> Row:
    return Row(None, 0, 0, 0, 0, (), why)
