"""Invalid frames at both servers: the connection is dropped and counted, others continue."""

from __future__ import annotations

import json
import struct

import pytest

from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from remoting.protocol.limits import MAX_EXT_FIELDS, MAX_FRAME_BYTES, MAX_HEADER_BYTES
from tests.integration.bad_input.peer import Target, as_msgpack, frame

MIB = 1024 * 1024


def claims(length: int) -> bytes:
    """Return the beginning of a frame with this length field."""
    return struct.pack(">I", length & 0xFFFF_FFFF) + bytes(20)


def json_header(**members: object) -> bytes:
    """A JSON header with an invalid member."""
    return json.dumps({"code": 105, "opaque": 1, "flag": 0, "version": 407, **members}).encode()


def binary_header(remark_length: int = 0, ext_length: int = 0, rest: bytes = b"") -> bytes:
    """A ROCKETMQ header whose lengths may lie."""
    return struct.pack(">hBhiiii", 105, 0, 407, 1, 0, remark_length, ext_length) + rest


def entry(key_length: int, key: bytes, value_length: int, value: bytes) -> bytes:
    """An ext field of the ROCKETMQ header, preceded by the length of all of them."""
    text = struct.pack(">h", key_length) + key + struct.pack(">i", value_length) + value
    return struct.pack(">hBhiiii", 105, 0, 407, 1, 0, 0, len(text)) + text


OTHER_PROTOCOLS = {
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
    "HTTP GET": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "AMQP": b"AMQP\x00\x00\x09\x01",
    "Kafka": b"\x00\x00\x00\x1b\x00\x12\x00\x03\x00\x00\x00\x01\x00\x0cconsumer-1-1",
    "a proxy's header": b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n",
    "zeros": bytes(4096),
}

LENGTHS = {
    "16 MiB and one byte": claims(MAX_FRAME_BYTES + 1 - 4),
    "2 GiB": claims(0x7FFF_FFFF),
    "4 GiB": claims(0xFFFF_FFFC),
    "-1": claims(-1),
    "the most negative": claims(-(1 << 31)),
    "0": claims(0),
    "3": claims(3),
    "a header beyond its frame": struct.pack(">II", 12, 9) + bytes(8),
    "a header of 16 MiB in a small frame": struct.pack(">II", 12, 0xFFFFFF) + bytes(8),
    "a header above 1 MiB": frame(json_header(remark="x" * MAX_HEADER_BYTES)),
    "serialize type 3": frame(json_header(), serialize=3),
    "serialize type 255": frame(json_header(), serialize=255),
    "no header at all": frame(b""),
}

JSON_HEADERS = {
    "no JSON": b"code=105",
    "cut off": json_header()[:-1],
    "not UTF-8": json_header().replace(b"105", b'"\xff\xfe"'),
    "UTF-16": json_header().decode().encode("utf-16"),
    "an array": b"[105]",
    "a number": b"105",
    "null": b"null",
    "a word as code": json_header(code="ten"),
    "a code above 32 bits": json_header(code=1 << 31),
    "an opaque above 64 bits": json_header(opaque=1 << 70),
    "an infinite code": json_header().replace(b"105", b"1e999"),
    "NaN": json_header().replace(b"105", b"NaN"),
    "ext fields that are a list": json_header(extFields=["a", "b"]),
    "a remark that is a list": json_header(remark=["a"]),
    "a language that is a list": json_header(language=["JAVA"]),
    "too many ext fields": json_header(extFields={f"f{n}": "x" for n in range(MAX_EXT_FIELDS + 1)}),
    "nested too deep": json_header(deep=0).replace(b'deep": 0', b'deep": ' + b"[" * 65 + b"]" * 65),
    "nested 400,000 deep": b"[" * 400_000 + b"]" * 400_000,
    "400,000 objects that never end": b'{"a":' * 150_000,
}

BINARY_HEADERS = {
    "empty": b"\x00",
    "too short": binary_header()[:-1],
    "a negative remark": binary_header(remark_length=-1),
    "a remark beyond the header": binary_header(remark_length=1 << 20),
    "a remark of 2 GiB": binary_header(remark_length=0x7FFF_FFFF),
    "negative ext fields": binary_header(ext_length=-2),
    "ext fields beyond the header": binary_header(ext_length=1),
    "ext fields of 2 GiB": binary_header(ext_length=0x7FFF_FFFF),
    "an ext field that is cut off": binary_header(ext_length=3, rest=b"\x00\x01a"),
    "a negative name": entry(-1, b"topic", 1, b"T"),
    "a name beyond the header": entry(32767, b"topic", 1, b"T"),
    "a negative value": entry(5, b"topic", -1, b"T"),
    "a value beyond the header": entry(5, b"topic", 2, b"T"),
    "a value of 2 GiB": entry(5, b"topic", 0x7FFF_FFFF, b"T"),
    "a name that is not UTF-8": entry(2, b"\xff\xfe", 1, b"T"),
    "a value that is not UTF-8": entry(5, b"topic", 1, b"\xc3"),
    "too many ext fields": binary_header(
        ext_length=8 * (MAX_EXT_FIELDS + 1), rest=b"\0\1a\0\0\0\1b" * (MAX_EXT_FIELDS + 1)
    ),
    "a remark that is not UTF-8": binary_header(remark_length=1, rest=b"")[:-4]
    + b"\xff"
    + bytes(4),
}


@pytest.mark.parametrize("junk", OTHER_PROTOCOLS.values(), ids=OTHER_PROTOCOLS)
def test_another_protocol_is_dropped(target: Target, junk: bytes) -> None:
    with target.drops_a_peer() as peer:
        peer.send(junk)


@pytest.mark.parametrize("junk", LENGTHS.values(), ids=LENGTHS)
def test_impossible_lengths_and_types_are_dropped(target: Target, junk: bytes) -> None:
    with target.drops_a_peer() as peer:
        peer.send(junk)


@pytest.mark.parametrize("header", JSON_HEADERS.values(), ids=JSON_HEADERS)
def test_an_undecodable_json_header_is_dropped(target: Target, header: bytes) -> None:
    with target.drops_a_peer() as peer:
        peer.send(frame(header))


@pytest.mark.parametrize("header", BINARY_HEADERS.values(), ids=BINARY_HEADERS)
def test_an_undecodable_binary_header_is_dropped(target: Target, header: bytes) -> None:
    with target.drops_a_peer() as peer:
        peer.send(frame(header, serialize=1))


def test_a_peer_that_claims_the_largest_frames_and_sends_little_costs_little(
    target: Target,
) -> None:
    peers = [target.peer() for _ in range(100)]
    for peer in peers:
        peer.send(claims(MAX_FRAME_BYTES - 4) + bytes(1000))
        peer.reset()


def test_the_largest_frame_is_answered(target: Target) -> None:
    with target.peer() as peer:
        spare = MAX_FRAME_BYTES - len(encode(Command.request(29_999)))
        answer = peer.ask(Command.request(29_999, body=bytes(spare - 8)))
        assert answer.code == 3
        assert peer.ask(target.harmless_request()).code == 0


def test_valid_frames_before_garbage_are_answered(target: Target) -> None:
    requests = []
    for opaque in range(100, 110):
        request = target.harmless_request()
        request.opaque = opaque
        requests.append(encode(request))
    with target.drops_a_peer() as peer:
        peer.send(b"".join(requests) + OTHER_PROTOCOLS["HTTP GET"])
        assert sorted(peer.read().opaque for _ in requests) == list(range(100, 110))


def test_bytes_after_garbage_are_not_read(target: Target) -> None:
    with target.drops_a_peer() as peer:
        peer.send(frame(b"junk") + encode(target.harmless_request()))
        assert peer.last_words() == b""


def test_a_frame_in_single_bytes_is_answered(target: Target) -> None:
    with target.peer() as peer:
        for byte in encode(target.harmless_request()):
            peer.send(bytes((byte,)))
        assert peer.read().code == 0


def test_a_half_closed_connection_gets_its_answers(target: Target) -> None:
    with target.peer() as peer:
        peer.send(encode(target.harmless_request()) * 3)
        peer.socket.shutdown(1)
        assert [peer.read().code for _ in range(3)] == [0, 0, 0]
        assert peer.last_words() == b""


def test_a_connection_half_closed_within_a_frame_is_closed(target: Target) -> None:
    with target.peer() as peer:
        peer.send(encode(target.harmless_request())[:-1])
        peer.socket.shutdown(1)
        assert peer.last_words() == b""


@pytest.mark.parametrize("cut_at", [0, 3, 4, 8, 20, -1])
def test_connections_reset_within_a_frame_leave_nothing(target: Target, cut_at: int) -> None:
    for _ in range(20):
        peer = target.peer()
        peer.send(encode(target.harmless_request())[:cut_at])
        peer.reset()


def test_a_peer_that_resets_before_its_answers_does_no_harm(target: Target) -> None:
    for _ in range(20):
        peer = target.peer()
        peer.send(encode(target.harmless_request()) * 50)
        peer.reset()


def test_unsolicited_answers_are_ignored(target: Target) -> None:
    with target.peer() as peer:
        for opaque in (0, 1, -1, 0x7FFF_FFFF):
            answer = Command(0, opaque=opaque, flag=1, body=b"surprise")
            peer.send(encode(answer))
        peer.send(encode(Command(0, opaque=9, flag=3)))
        assert peer.ask(target.harmless_request()).code == 0


def test_requests_with_the_same_opaque_are_each_answered(target: Target) -> None:
    with target.peer() as peer:
        request = target.harmless_request()
        request.opaque = 7
        peer.send(encode(request) * 5)
        assert [peer.read().opaque for _ in range(5)] == [7] * 5


@pytest.mark.parametrize("flag", [0x7FFF_FFFC, -4, 1 << 31 >> 1])
def test_unknown_flag_bits_do_not_matter(target: Target, flag: int) -> None:
    with target.peer() as peer:
        request = target.harmless_request()
        request.opaque, request.flag = 5, flag & ~3
        peer.send(encode(request))
        assert peer.read().opaque == 5


def test_a_oneway_request_is_never_answered_whatever_it_is(target: Target) -> None:
    with target.peer() as peer:
        for code in (29_999, target.harmless, 310, 103, -1):
            peer.send(encode(Command.request(code, body=b"{", oneway=True)))
        assert peer.ask(target.harmless_request()).opaque == 1


def test_a_msgpack_frame_without_an_agreement_is_dropped(target: Target) -> None:
    with target.drops_a_peer() as peer:
        peer.send(as_msgpack(target.harmless_request()))
