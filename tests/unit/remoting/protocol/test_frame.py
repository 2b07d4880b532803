"""Cutting frames from a stream, and the vectors of single frames."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.codes import FLAG_ONEWAY, Language, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.errors import FrameError
from remoting.protocol.frame import cut, decode, encode, encode_head, needed
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader
from remoting.protocol.headers.group import ConsumerGroupRequestHeader
from remoting.protocol.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES

ROUTE = GetRouteInfoRequestHeader(topic="TopicTest")
CHANGED = ConsumerGroupRequestHeader(consumer_group="g1")


def java(code: int, opaque: int, **rest: object) -> Command:
    return Command(code, opaque, language=Language.JAVA, version=399, **rest)  # type: ignore[arg-type]  # keywords of Command


VECTORS = [
    pytest.param(
        java(105, 7, header=ROUTE),
        "00000087000000837b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f70"
        "696354657374227d2c22666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a"
        "372c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a"
        "3339397d",
        "0000002d01000029006900018f000000070000000000000000000000140005746f70696300000009546f706963"
        "54657374",
        id="request",
    ),
    pytest.param(
        java(0, 7, flag=1, body=b"hi"),
        "000000650000005f7b22636f6465223a302c22666c6167223a312c226c616e6775616765223a224a415641222c"
        "226f7061717565223a372c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c22"
        "76657273696f6e223a3339397d6869",
        "0000001b01000015000000018f000000070000000100000000000000006869",
        id="response with a body",
    ),
    pytest.param(
        java(40, 8, flag=FLAG_ONEWAY, header=CHANGED),
        "00000087000000837b22636f6465223a34302c226578744669656c6473223a7b22636f6e73756d657247726f75"
        "70223a226731227d2c22666c6167223a322c226c616e6775616765223a224a415641222c226f7061717565223a"
        "382c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a"
        "3339397d",
        "0000002e0100002a002800018f00000008000000020000000000000015000d636f6e73756d657247726f757000"
        "0000026731",
        id="oneway",
    ),
    pytest.param(
        java(17, 9, flag=1, remark="no 中"),
        "00000076000000727b22636f6465223a31372c22666c6167223a312c226c616e6775616765223a224a41564122"
        "2c226f7061717565223a392c2272656d61726b223a226e6f20e4b8ad222c2273657269616c697a655479706543"
        "757272656e74525043223a224a534f4e222c2276657273696f6e223a3339397d",
        "0000001f0100001b001100018f0000000900000001000000066e6f20e4b8ad00000000",
        id="response with a remark",
    ),
]


@pytest.mark.parametrize(("command", "json_hex", "binary_hex"), VECTORS)
def test_frames_are_javas_byte_for_byte(command: Command, json_hex: str, binary_hex: str) -> None:
    for serialize, text in ((SerializeType.JSON, json_hex), (SerializeType.ROCKETMQ, binary_hex)):
        command.serialize = serialize
        assert encode(command).hex() == text
        assert encode_head(command, len(command.body)) + command.body == bytes.fromhex(text)
        read = read_one(bytes.fromhex(text))
        assert (read.code, read.opaque, read.flag) == (command.code, command.opaque, command.flag)
        assert (read.remark, read.body, read.version) == (command.remark, command.body, 399)
        assert read.fields == command.fields
        assert read.language is Language.JAVA


def read_one(buffer: bytes) -> Command:
    frame = cut(buffer)
    assert frame is not None
    return decode(frame)


def prefix(length: int, serialize: int = 0, header_length: int = 0) -> bytes:
    return struct.pack(">II", length, serialize << 24 | header_length)


FRAMES = [encode(Command(10, n, body=b"x" * n, serialize=SerializeType(n % 3))) for n in range(12)]


@given(st.lists(st.integers(1, 40), max_size=60))
def test_any_chunking_of_a_stream_gives_the_same_frames(sizes: list[int]) -> None:
    stream = b"".join(FRAMES)
    chunks = []
    for size in [*sizes, len(stream)]:
        chunks.append(stream[:size])
        stream = stream[size:]
    received, position, opaques = b"", 0, []
    for chunk in chunks:
        received += chunk
        while (frame := cut(received, position)) is not None:
            assert needed(received, position) == frame.end - position
            command = decode(frame)
            assert bytes(command.body) == b"x" * command.opaque
            opaques.append(command.opaque)
            position = frame.end
    assert opaques == list(range(12))
    assert position == len(received)


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_a_body_is_a_view_of_the_buffer(make: type) -> None:
    buffer = make(FRAMES[0] + FRAMES[5])
    frame = cut(buffer, len(FRAMES[0]))
    assert frame is not None
    command = decode(frame)
    assert isinstance(command.body, memoryview)
    assert command.body.obj is memoryview(buffer).obj
    assert buffer[command.body_at : frame.end] == command.body != b""


def test_an_empty_body_is_no_body() -> None:
    assert read_one(FRAMES[0]).body == b""


def test_needed_returns_how_much_to_read() -> None:
    frame = FRAMES[7]
    assert needed(b"") == needed(frame[:3]) == 4
    assert needed(frame[:4]) == needed(frame) == len(frame)
    assert needed(b"ab" + frame, 2) == len(frame)


@pytest.mark.parametrize("length", [0, 3, MAX_FRAME_BYTES - 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_an_impossible_length_is_refused_by_its_four_bytes(length: int) -> None:
    start = struct.pack(">I", length)
    with pytest.raises(FrameError):
        cut(start)
    with pytest.raises(FrameError):
        needed(start)
    with pytest.raises(FrameError):
        cut(start + b"\x00" * 4)


def test_the_largest_frame_is_accepted_and_one_more_byte_is_not() -> None:
    assert cut(prefix(96), max_frame_bytes=100) is None
    assert cut(prefix(96) + b"x" * 92, max_frame_bytes=100) is not None
    with pytest.raises(FrameError, match="101 bytes is above 100"):
        cut(prefix(97), max_frame_bytes=100)
    with pytest.raises(FrameError, match="101 bytes is above 100"):
        needed(prefix(97), max_frame_bytes=100)


@pytest.mark.parametrize("look", [cut, needed])
def test_errors_in_the_first_eight_bytes_are_refused_before_the_frame_is_complete(
    look: Callable[[bytes], object],
) -> None:
    with pytest.raises(FrameError, match="unknown serialize type 3"):
        look(prefix(100, serialize=3))
    with pytest.raises(FrameError, match="a header of 97 bytes in a frame of 100"):
        look(prefix(100, header_length=97))
    with pytest.raises(FrameError, match=f"above {MAX_HEADER_BYTES}"):
        look(prefix(MAX_HEADER_BYTES + 100, header_length=MAX_HEADER_BYTES + 1))


def test_a_command_too_large_for_a_frame_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="command 10: a header"):
        encode(Command(10, remark="x" * (1 << 24)))
    with pytest.raises(ValueError, match="fit into no frame"):
        encode_head(Command(10), 0x7FFFFFFF)


@given(st.binary(max_size=300))
def test_garbage_is_a_frame_error_or_an_incomplete_frame(data: bytes) -> None:
    read_all(data)


@given(st.sampled_from(SerializeType), st.binary(max_size=200), st.binary(max_size=20))
def test_a_garbage_header_is_a_frame_error(
    serialize: SerializeType, header: bytes, body: bytes
) -> None:
    read_all(prefix(4 + len(header) + len(body), serialize, len(header)) + header + body)


@given(
    st.sampled_from(
        FRAMES + [encode(Command(105, header=ROUTE, serialize=s)) for s in SerializeType]
    ),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_a_damaged_frame_is_a_frame_error_or_another_frame(
    frame: bytes, damages: list[tuple[int, int]]
) -> None:
    damaged = bytearray(frame)
    for position, value in damages:
        damaged[position % len(damaged)] = value
    read_all(bytes(damaged))


def read_all(data: bytes) -> None:
    position = 0
    try:
        while (frame := cut(data, position)) is not None:
            encode(decode(frame))  # what was decoded can be written again, too
            position = frame.end
    except FrameError:
        pass
