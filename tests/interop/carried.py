"""The contents of a store moved between brokers, as read by our client and the Java client.

Both return the same fields for each message, so that the messages read by one at one broker can be
compared with those read by the other at the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import client
from broker.store.log_view import LogChunk
from broker.storetools.view import StoreView
from remoting.protocol import bodies
from remoting.protocol.bodies.body import BodyT
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
)
from remoting.protocol.errors import BodyError
from remoting.protocol.message.view import RecordView

PATIENCE = 60.0


class Fact(NamedTuple):
    """A message with all fields that a client can read."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    retries: int
    born_ms: int
    born_host: str
    stored_ms: int
    store_host: str
    prepared_offset: int
    properties: tuple[tuple[str, str], ...]
    body_sha256: str


def said_by_java(lines: Iterable[list[str]]) -> set[Fact]:
    """Return the messages as read and printed by ``Stores.java``."""
    return {_from_line(fields) for kind, *fields in lines if kind == "message"}


def _from_line(fields: Sequence[str]) -> Fact:
    topic, *numbers, text, body = fields
    pairs = (pair.split("\1", 1) for pair in bytes.fromhex(text).decode().split("\2")[:-1])
    values: list[Any] = [part if ":" in part else int(part) for part in numbers]
    properties = tuple(sorted((name, value) for name, value in pairs))
    return Fact._make([topic, *values, properties, body])


def fact_of(record: RecordView) -> Fact:
    """Return a message as our client reads it."""
    return Fact(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.flag,
        record.sys_flag & ~1,
        record.reconsume_times,
        record.born_timestamp_ms,
        _host(record.born_host),
        record.store_timestamp_ms,
        _host(record.store_host),
        record.prepared_transaction_offset,
        tuple(sorted(record.properties.items())),
        hashlib.sha256(record.body).hexdigest(),
    )


def _host(host: tuple[str, int]) -> str:
    return f"{ipaddress.ip_address(host[0]).packed.hex()}:{host[1]}"


def body_sha256(*bodies: bytes) -> list[str]:
    """Return the hash that stands for a body."""
    return sorted(hashlib.sha256(body).hexdigest() for body in bodies)


async def read(nameserver: str, *topics: str) -> set[Fact]:
    """Read all messages of the topics, and check their checksums."""
    found: set[Fact] = set()
    for topic in topics:
        found |= {fact_of(message) for message in await _messages(nameserver, topic)}
    return found


async def _messages(nameserver: str, topic: str) -> list[client.ReceivedMessage[bytes]]:
    messages: list[client.ReceivedMessage[bytes]] = []
    async with (
        client.Admin(nameserver) as admin,
        client.PullConsumer(nameserver, group="reader") as consumer,
        asyncio.timeout(PATIENCE),
    ):
        stats = await admin.topic_stats(topic)
        count = sum(offsets.max_offset - offsets.min_offset for offsets in stats.values())
        consumer.assign(stats)
        for queue in stats:
            await consumer.seek(queue, client.BEGIN)
        while len(messages) < count:
            messages += await consumer.get_many(1000, timeout=1.0)
    assert len(messages) == count
    assert all(message.check_crc() for message in messages)
    return messages


async def first_messages(
    nameserver: str, topic: str, count: int
) -> list[client.ReceivedMessage[bytes]]:
    """Wait for the first messages of a topic, and for the topic; return at least ``count``."""
    messages: list[client.ReceivedMessage[bytes]] = []
    async with (
        asyncio.timeout(PATIENCE),
        client.PullConsumer(nameserver, group="reader") as consumer,
    ):
        while not consumer.assigned:
            try:
                consumer.assign(await consumer.queues(topic))
            except client.PocketMQError:
                await asyncio.sleep(0.1)
        for queue in consumer.assigned:
            await consumer.seek(queue, client.BEGIN)
        while len(messages) < count:
            messages += await consumer.get_many(100, timeout=1.0)
    return messages


def assert_dense(facts: Iterable[Fact]) -> None:
    """Assert that no queue has a gap or a duplicate."""
    queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for fact in facts:
        queues[fact.topic, fact.queue_id].append(fact.queue_offset)
    for queue, offsets in queues.items():
        assert sorted(offsets) == list(range(len(offsets))), queue


def of(facts: Iterable[Fact], topic: str) -> list[Fact]:
    """Return the messages of one topic."""
    return [fact for fact in facts if fact.topic == topic]


def number(facts: Iterable[Fact], topic: str) -> int:
    """Return the number of messages of a topic."""
    return sum(fact.topic == topic for fact in facts)


def committed(store: Path) -> dict[str, dict[int, int]]:
    """Return the offsets in ``consumerOffset.json``."""
    found = _saved(store, "consumerOffset.json", ConsumerOffsetSerializeWrapper)
    return {} if found is None else found.offset_table


def delivered(store: Path) -> dict[int, int]:
    """Return the number of delivered messages per delay level, from ``delayOffset.json``."""
    found = _saved(store, "delayOffset.json", DelayOffsetSerializeWrapper)
    return {} if found is None else {level: n for level, n in found.offset_table.items() if n}


def _saved(store: Path, name: str, kind: type[BodyT]) -> BodyT | None:
    """Return a saved table; None if there is none, or Apache's broker is just writing it.

    4.9.7 removes the old file before it renames the new one, 5.3.3 writes into the old one.
    """
    try:
        return bodies.decode(kind, (store / "config" / name).read_bytes())
    except (FileNotFoundError, BodyError):
        return None


def raw(store: Path, *topics: str) -> list[bytes]:
    """Return the topics' records as stored in the log, read without a broker."""
    view = StoreView(store)
    found: list[bytes] = []
    for chunk in view.log.walk(view.log.start, view.log_end().position):
        assert isinstance(chunk, LogChunk), chunk
        records = (RecordView(chunk.data, start) for start in chunk.starts)
        found += [bytes(record.raw) for record in records if record.topic in topics]
    return found
