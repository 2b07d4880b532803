"""Every frame captured from RocketMQ, read and written again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remoting.protocol.codes import Language, SerializeType
from remoting.protocol.command import Command, Header, wire_names_of
from remoting.protocol.frame import cut, decode, encode, encode_head, needed
from tests.unit.remoting.protocol.captured_frames import FILES, lines
from tests.unit.remoting.protocol.header_tables import REQUEST_HEADERS, RESPONSE_HEADERS


def command_of(line: dict[str, Any]) -> Command:
    buffer = bytes.fromhex(line["frame_hex"])
    frame = cut(buffer)
    assert frame is not None
    assert frame.end == len(buffer) == needed(buffer)
    return decode(frame)


def json_header(buffer: bytes) -> Any:
    return json.loads(buffer[8 : 8 + int.from_bytes(buffer[5:8])])


@pytest.mark.parametrize("file_name", FILES)
def test_every_field_is_what_the_capture_says(file_name: str) -> None:
    for line in lines(file_name):
        command = command_of(line)
        assert command.code == line["code"]
        assert command.opaque == line["opaque"]
        assert command.flag == line["flag"]
        assert command.version == line["version"]
        assert command.remark == line["remark"]
        assert command.serialize.name == line["serialize"]
        assert command.language is not None
        named = isinstance(line["language"], str)
        assert line["language"] == (command.language.name if named else command.language.value)
        assert command.fields == line["header"]
        if "header_pairs" in line:
            assert [list(pair) for pair in command.pairs or ()] == line["header_pairs"]
        assert command.is_response == (line["type"] == "response")
        assert command.is_oneway == (line["type"] == "oneway")
        assert len(command.body) == line["body_len"]


@pytest.mark.parametrize("file_name", FILES)
def test_a_frame_is_written_as_it_was_read(file_name: str) -> None:
    for line in lines(file_name):
        buffer = bytes.fromhex(line["frame_hex"])
        command = command_of(line)
        again = encode(command)
        if command.serialize is SerializeType.ROCKETMQ:
            assert again == buffer
        else:
            theirs = json_header(buffer)
            ours = json_header(again)
            assert ours == theirs
            assert list(ours) == list(theirs)
            assert bytes(command.body) == again[8 + int.from_bytes(again[5:8]) :]
        assert encode_head(command, len(command.body)) + bytes(command.body) == again


@pytest.mark.parametrize("file_name", FILES)
def test_typed_headers_hold_every_declared_field(file_name: str) -> None:
    for line in lines(file_name):
        header_type = header_type_of(line)
        if header_type is None:
            continue
        command = command_of(line)
        header = command.read(header_type)
        declared = set(wire_names_of(header_type))
        expected = {name: text for name, text in command.fields.items() if name in declared}
        assert dict(header.pairs()) == expected
        assert_same_in_every_codec(header, command)


def assert_same_in_every_codec(header: Header, command: Command) -> None:
    for serialize in SerializeType:
        ours = Command(
            command.code, header=header, language=Language.JAVA, serialize=serialize, opaque=1
        )
        frame = cut(encode(ours))
        assert frame is not None
        there = decode(frame).read(type(header))
        if serialize is SerializeType.ROCKETMQ:
            assert dict(there.pairs()) == {n: t for n, t in header.pairs() if t}
        else:
            assert there == header


def header_type_of(line: dict[str, Any]) -> type[Header] | None:
    if line["type"] != "response":
        header_type = REQUEST_HEADERS.get(line["code"])
        return header_type if line["header"] or header_type is None else None
    fields_came = bool(set(line["header"]) - {"MSG_REGION", "TRACE_ON"})
    return RESPONSE_HEADERS.get(line["reply_to"]) if fields_came else None


def test_the_captures_are_all_here() -> None:
    assert sum(1 for file_name in FILES for _ in lines(file_name)) == 1616
    codecs = {line["serialize"] for file_name in FILES for line in lines(file_name)}
    assert codecs == {"JSON", "ROCKETMQ"}
