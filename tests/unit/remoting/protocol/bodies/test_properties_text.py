"""Settings as Java's properties text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.protocol.bodies.properties_text import parse, render
from remoting.protocol.errors import BodyError
from tests.unit.remoting.protocol.captured_frames import lines

READ = {
    "": {},
    "\n\n  \n": {},
    "a=b": {"a": "b"},
    "a=b\nc=d\n": {"a": "b", "c": "d"},
    "a=b\r\nc=d\re=f": {"a": "b", "c": "d", "e": "f"},
    "a = b c ": {"a": "b c "},
    "a:b": {"a": "b"},
    "a b=c": {"a": "b=c"},
    "a\t=\tb": {"a": "b"},
    "a": {"a": ""},
    "a=": {"a": ""},
    "=b": {"": "b"},
    "a==b": {"a": "=b"},
    "# no\n! no\n  # no\na=#yes": {"a": "#yes"},
    "a=1\na=2": {"a": "2"},
    "a=b\\\n   c": {"a": "bc"},
    "a=b\\\\\nc=d": {"a": "b\\", "c": "d"},
    "a=b\\\\\\\n#c": {"a": "b\\#c"},
    "a=b\\": {"a": "b"},
    "\\\n": {},
    "\\\n\n#no\na=b": {"a": "b"},
    "\\\n#a=b": {"#a": "b"},
    "a\\=b\\:c\\ d=e": {"a=b:c d": "e"},
    "a=\\t\\n\\r\\f\\q\\\\": {"a": "\t\n\r\fq\\"},
    "a=\\u4e2d\\u6587 中文": {"a": "中文 中文"},
    "a=\\ud83d\\ude00\\ud83d": {"a": "😀\ufffd"},
}


@pytest.mark.parametrize("text", READ)
def test_it_reads_what_java_reads(text: str) -> None:
    assert parse(text) == parse(text.encode()) == READ[text]


def test_a_broken_escape_is_refused() -> None:
    with pytest.raises(BodyError, match="four digits"):
        parse("a=\\u12x")


def test_bytes_that_are_not_utf_8_are_refused_with_their_position() -> None:
    with pytest.raises(BodyError, match="not UTF-8 at byte 2"):
        parse(b"a=\xff")


def test_it_writes_a_line_for_each_value_that_is_there() -> None:
    assert render({"a": "b c", "d": None, "e": ""}) == b"a=b c\ne=\n"


def test_what_would_be_misread_is_escaped() -> None:
    assert render({"a b": " x", "#c": "d\\e\nf"}) == b"a\\ b=\\ x\n\\#c=d\\\\e\\nf\n"


def test_captured_settings_are_written_as_java_wrote_them() -> None:
    texts = [
        bytes.fromhex(line["frame_hex"])[-line["body_len"] :]
        for line in lines("admin.jsonl")
        if line["type"] == "response" and line.get("reply_to") in {26, 319}
    ]
    assert texts
    for text in texts:
        settings = parse(text)
        assert "listenPort" in settings
        assert render(settings) == text


@pytest.mark.parametrize("part", [b"\\", b"\\\n", b" ", b"a\\\n", b"=", b"\\u0041", b"#\n"])
def test_no_text_takes_quadratic_time(part: bytes) -> None:
    # The limit on a test's time is what fails here.
    parse(part * 1_000_000 + b"x")


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.text()))
def test_what_was_written_is_read_again(settings: dict[str, str]) -> None:
    assert parse(render(settings)) == settings


@settings(deadline=None)
@given(st.binary() | st.text("\\=: u0aA#!\n\r\t").map(str.encode))
def test_arbitrary_bytes_raise_nothing_but_a_body_error(data: bytes) -> None:
    with contextlib.suppress(BodyError):
        parse(data)
