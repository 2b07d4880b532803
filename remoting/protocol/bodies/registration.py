"""A broker's registration with a name server, in its three forms.

These are: the JSON of ``RegisterBrokerBody``; from peers older than ``V3_0_11``, only its part with
the topics; or, if the header has ``compressed``, a zlib stream of (all numbers int32, big endian)

===============  ==================================================================
length, text     JSON of the ``DataVersion``
count            number of topics
length, text     per topic: ``name readQueueNums writeQueueNums perm filterType`` and,
                 in 5.x, one more word: the attributes' JSON
length, text     JSON of the list of filter servers
===============  ==================================================================

A 5.x broker may append more, which is ignored.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import msgspec
from msgspec import field

from remoting.protocol.accelerated import crc32
from remoting.protocol.bodies import relaxed_json
from remoting.protocol.bodies.body import Body, decode, encode
from remoting.protocol.bodies.relaxed_json import Buffer
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.errors import BodyError
from remoting.protocol.limits import MAX_INFLATED_CONTROL_BYTES, MAX_JSON_NODES

V3_0_11: Final = 37
"""The first version that registers with a whole ``RegisterBrokerBody``."""

MAX_TOPICS: Final = MAX_JSON_NODES // 8
"""The limit of a compressed registration: that of the JSON form, where a topic has 8 values."""

_TOPIC_WORDS = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
_INT32 = struct.Struct(">i")


class RegisterBrokerBody(Body):
    """Body of REGISTER_BROKER (cf. RegisterBrokerBody)."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(
        default_factory=TopicConfigSerializeWrapper
    )
    filter_server_list: list[str] = field(default_factory=list)


def body_crc32(data: Buffer) -> int:
    """Return the checksum of a registration's body, as in its header: 31 bits of CRC-32."""
    return crc32(data) & 0x7FFFFFFF


def body_crc_matches(data: Buffer, expected: int | None) -> bool:
    """Return whether a body has the checksum of its header; None and 0 match any body."""
    return not expected or body_crc32(data) == expected


def decode_registration(
    data: Buffer,
    *,
    compressed: bool = False,
    version: int = V3_0_11,
    max_inflated_bytes: int = MAX_INFLATED_CONTROL_BYTES,
) -> RegisterBrokerBody:
    """Decode a registration in the form given by ``compressed`` and the peer's ``version``.

    Raises:
        BodyError: it can't be decoded, or decompresses to more than ``max_inflated_bytes``.
    """
    if version < V3_0_11:
        return RegisterBrokerBody(decode(TopicConfigSerializeWrapper, data))
    if not compressed:
        return decode(RegisterBrokerBody, data)
    try:
        parts = _FieldReader(_inflated(data, max_inflated_bytes))
        data_version = decode(DataVersion, parts.text())
        count = parts.number()
        if not 0 <= count <= MAX_TOPICS:
            raise BodyError(f"it announces {count} topics, and may have {MAX_TOPICS}")  # noqa: TRY301
        topics = [_read_topic_line(parts.text()) for _ in range(count)]
        filters = decode(_FilterServers, b'{"names":%b}' % parts.text()).names
    except BodyError as error:
        raise BodyError(f"RegisterBrokerBody, compressed: {error}") from None
    table = {topic.topic_name: topic for topic in topics}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table, data_version), filters)


def encode_compressed(body: RegisterBrokerBody) -> bytes:
    """Encode the compressed form, which does not include a topic's order and system flags."""
    wrapper = body.topic_config_serialize_wrapper
    parts = [_counted(encode(wrapper.data_version))]
    parts.append(_INT32.pack(len(wrapper.topic_config_table)))
    parts += [_counted(_topic_line(topic)) for topic in wrapper.topic_config_table.values()]
    parts.append(_counted(relaxed_json.dumps(body.filter_server_list)))
    return zlib.compress(b"".join(parts))


def _counted(text: bytes) -> bytes:
    return _INT32.pack(len(text)) + text


def _topic_line(topic: TopicConfig) -> bytes:
    words = [
        topic.topic_name,
        str(topic.read_queue_nums),
        str(topic.write_queue_nums),
        str(topic.perm),
        topic.topic_filter_type,
    ]
    if topic.attributes is not None:
        words.append(relaxed_json.dumps(topic.attributes).decode())
    return " ".join(words).encode()


def _inflated(data: Buffer, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise BodyError(f"it can't be inflated: {error}") from None
    if len(inflated) > max_bytes:
        raise BodyError(f"it inflates to more than {max_bytes} bytes")
    return inflated


class _FieldReader:
    """Reads numbers and length-prefixed texts from the decompressed bytes."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self) -> int:
        return int(_INT32.unpack(self._take(_INT32.size))[0])

    def text(self) -> bytes:
        return self._take(self.number())

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise BodyError(
                f"{size} bytes are announced at byte {self._position} of {len(self._data)}"
            )
        part = self._data[self._position : end]
        self._position = end
        return part


class _FilterServers(Body):
    names: list[str]


def _read_topic_line(line: bytes) -> TopicConfig:
    words = line.split(b" ", len(_TOPIC_WORDS))
    if len(words) < len(_TOPIC_WORDS):
        raise BodyError(f"a topic's line has too few words: {line[:200]!r}")
    try:
        members: dict[str, object] = {
            name: word.decode() for name, word in zip(_TOPIC_WORDS, words, strict=False)
        }
        if len(words) > len(_TOPIC_WORDS):
            members["attributes"] = relaxed_json.loads(words[-1])
        return msgspec.convert(members, TopicConfig, strict=False)
    except (ValueError, BodyError) as error:
        raise BodyError(f"a topic's line can't be read ({error}): {line[:200]!r}") from None
