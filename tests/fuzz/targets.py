"""Fuzz targets: everything that parses bytes of a peer or a disk; only our errors may be raised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from broker.filters.expressions import EvaluationError, SqlError
from broker.filters.sql import SqlFilter
from broker.replication.stream import (
    HEADER,
    MasterStream,
    SlaveStream,
    StreamError,
    first_offset,
)
from broker.store.redispatch import derive
from remoting.access import patterns
from remoting.access.accounts import AclError, dump, load, rules_of
from remoting.protocol import bodies, frame
from remoting.protocol.bodies import properties_text
from remoting.protocol.bodies.heartbeat import HeartbeatData
from remoting.protocol.bodies.registration import decode_registration
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.errors import BodyError, FrameError, HeaderError, RecordError
from remoting.protocol.message import batch, compression, properties, record, view
from remoting.protocol.signing import signed_content
from tests.unit.remoting.protocol.header_tables import REQUEST_HEADERS

DELAYS_MS = (1_000, 5_000)


def frames(data: bytes) -> None:
    """Cut a frame, decode it, read the typed header, and encode it again."""
    try:
        cut = frame.cut(data)
        if cut is None:
            return
        command = frame.decode(cut)
    except FrameError:
        return
    # The content of a signature, which a server with accounts computes for every request.
    assert signed_content(command.fields, command.body)[1] is command.body
    header_type = REQUEST_HEADERS.get(command.code)
    if header_type is not None:
        with contextlib.suppress(HeaderError):
            command.read(header_type)
    assert frame.encode(command)


def json_header(data: bytes) -> None:
    """Like ``frames``, with a valid length field, so that the fuzzer reaches the JSON at once."""
    frames((len(data) + 4).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)


def binary_header(data: bytes) -> None:
    """Like ``json_header``, for the binary header."""
    length = (len(data) + 4).to_bytes(4, "big")
    frames(length + (1 << 24 | len(data)).to_bytes(4, "big") + data)


def records(data: bytes) -> None:
    """Scan records as a recovery and as a reader; both agree."""
    scan = record.examine(data, 0)
    try:
        message = view.RecordView(data)
    except RecordError:
        assert not isinstance(scan, record.FoundRecord)
        return
    _ = (message.topic, message.properties, message.keys, message.tags, message.message_id)
    try:
        _ = message.body
    except BodyError:
        return


def message_bodies(data: bytes) -> None:
    """Inflate, split a batch, read properties."""
    if not data:
        return
    with contextlib.suppress(BodyError):
        compression.decompress(data[1:], 1 | (data[0] & 7) << 8, max_bytes=1 << 16)
    try:
        for element in batch.iter_elements(data):
            properties.decode(element.properties)
    except BodyError:
        pass


def control_bodies(data: bytes) -> None:
    """JSON of every dialect, registrations, configuration texts."""
    for parse in (
        lambda: bodies.decode(HeartbeatData, data),
        lambda: bodies.decode(TopicRouteData, data),
        lambda: decode_registration(data, compressed=True),
        lambda: decode_registration(data),
        lambda: properties_text.parse(data),
    ):
        with contextlib.suppress(BodyError):
            parse()


def expressions(data: bytes) -> None:
    """Compile an SQL92 expression, and evaluate it for a message with values from the same data."""
    text, _, values = data.decode("utf-8", "replace").partition("\0")
    with contextlib.suppress(SqlError, EvaluationError):
        found = SqlFilter(text)
        given = [*values.split("\0"), *[None] * len(found.names)]
        assert found.evaluate(given[: len(found.names)]) in {True, False, None}


def accounts(data: bytes) -> None:
    """Read a file of accounts; what is written back has the same ones."""
    with contextlib.suppress(AclError):
        content = load(data)
        found = rules_of(content).accounts
        assert not found or rules_of(load(dump(content))).accounts.keys() == found.keys()


def address_patterns(data: bytes) -> None:
    """Parse a pattern of addresses, and try it."""
    with contextlib.suppress(ValueError):
        matches = patterns.parse(data.decode("utf-8", "replace"))
        for address in ("10.1.2.3", "::1", "fe80:1:2:3:4:5:6:1f"):
            assert matches(address) in {True, False}


def replication_to_master(data: bytes) -> None:
    """What a slave, or a stranger, sends: no acknowledgement goes beyond what was sent."""
    stream = MasterStream(0.0)
    half = len(data) // 2
    with contextlib.suppress(StreamError):
        stream.receive(data[:half], 1.0)
        if stream.request is not None:
            stream.start(first_offset(stream.request, 100, 10_000, 1_000))
            stream.header(len(data) % 100, 2.0)
        stream.receive(data[half:], 3.0)
    assert 0 <= stream.acked <= stream.sent


def replication_to_slave(data: bytes) -> None:
    """What a master sends, as frames and in a valid frame, up to the records to be appended."""
    for sent in (data, HEADER.pack(7, len(data)) + data):
        stream = SlaveStream(7, 0.0)
        half = len(sent) // 2
        with contextlib.suppress(StreamError):
            stream.receive(sent[:half], 1.0)
            stream.receive(sent[half:], 2.0)
        assert len(stream.pending) <= len(data)
        with memoryview(stream.pending) as pending:
            size, *_ = derive(pending, stream.begin, DELAYS_MS)
        assert 0 <= size <= len(stream.pending)
        stream.appended(size)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        *(frames, json_header, binary_header, records, message_bodies, control_bodies),
        *(expressions, accounts, address_patterns),
        *(replication_to_master, replication_to_slave),
    )
}
