"""Flip bytes in the files of a store."""

from __future__ import annotations

from pathlib import Path

from broker.store.engine import MessageStore
from remoting.protocol.message.record import HEAD_BYTES_V4
from tests.unit.broker.store.stores import LOG_FILE, message

BODY = b"body %03d"
BODY_BYTES = 8
TOPIC = "TopicTest"
COUNT = 40

PARTS = {
    "size": 3,
    "magic": 4,
    "crc": 11,
    "queue id": 15,
    "queue offset": 27,
    "physical offset": 35,
    "body length": HEAD_BYTES_V4 - 1,
    "body": HEAD_BYTES_V4 + 2,
    "topic length": HEAD_BYTES_V4 + BODY_BYTES,
    "topic": HEAD_BYTES_V4 + BODY_BYTES + 4,
    "properties length": HEAD_BYTES_V4 + BODY_BYTES + 1 + len(TOPIC) + 1,
}
"""Positions in a record of ``fill`` where a changed byte is detectable."""


def flip_in(path: Path, position: int, bits: int = 1) -> None:
    """Change bits of one byte of a file, mapped or not."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes((byte ^ bits,)))


def flip(store: MessageStore, position: int, bits: int = 1) -> None:
    """Change bits of one byte of the log."""
    name = f"{position // LOG_FILE * LOG_FILE:020d}"
    flip_in(store.paths.commit_log / name, position % LOG_FILE, bits)


def fill(store: MessageStore, count: int, *, others: bool = False) -> list[int]:
    """Store messages with bodies of ``BODY``; their physical offsets.

    ``others`` puts those of another queue between them.
    """
    places = []
    for number in range(count):
        places.append(store.put(message(BODY % number, tag="a")).physical_offset)
        if others:
            store.put(message(b"other", queue_id=1))
    return places


def all_but(*damaged: int) -> list[bytes]:
    """Return the bodies of ``COUNT`` messages except some."""
    return [BODY % number for number in range(COUNT) if number not in damaged]
