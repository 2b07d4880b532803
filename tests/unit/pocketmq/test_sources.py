"""Messages read from lines, JSON lines, CSV and blobs."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketmq.formats import Fields, InputEntry, SourceError, entries
from remoting.protocol.limits import MAX_MESSAGE_BYTES

WHOLE = Fields()


def read(data: bytes, form: str, fields: Fields = WHOLE) -> list[InputEntry]:
    return list(entries(io.BytesIO(data), form, fields))


def bodies(data: bytes, form: str, fields: Fields = WHOLE) -> list[bytes]:
    return [entry.body for entry in read(data, form, fields)]


def test_each_line_of_text_is_a_message_without_its_end() -> None:
    assert bodies(b"one\ntwo\r\n\nlast", "text") == [b"one", b"two", b"", b"last"]


def test_text_need_not_be_utf8() -> None:
    assert bodies(b"\xff\xfe\n", "text") == [b"\xff\xfe"]


def test_a_blob_is_one_message() -> None:
    assert bodies(b"a\nb\x00", "raw") == [b"a\nb\x00"]


@pytest.mark.parametrize("form", ["text", "jsonl", "csv", "raw"])
def test_more_than_a_message_holds_is_refused_without_reading_it_all(form: str) -> None:
    class Endless(io.RawIOBase):
        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            view = memoryview(buffer)  # type: ignore[arg-type]  # a writable buffer
            view[:] = b"x" * len(view)
            self.given += len(view)
            return len(view)

    source = Endless()
    with pytest.raises(SourceError, match=str(MAX_MESSAGE_BYTES)):
        list(entries(io.BufferedReader(source), form, WHOLE))
    assert source.given < 2 * MAX_MESSAGE_BYTES


def test_a_json_line_is_the_body_and_its_fields_are_the_parts() -> None:
    line = b'{"id": 7, "kind": "paid", "user": "u-1", "note": null, "all": ["a", "b"]}'
    fields = Fields(key="all", tag="kind", sharding_key="user")
    assert read(line + b"\n\n", "jsonl", fields) == [InputEntry(line, ("a", "b"), "paid", "u-1")]
    assert read(line, "jsonl", Fields(key="id", tag="note")) == [
        InputEntry(line, ("7",), None, None)
    ]


def test_a_field_can_be_the_body() -> None:
    assert bodies(b'{"b": "text"}\n{"b": {"x": 1}}', "jsonl", Fields(body="b")) == [
        b"text",
        b'{"x":1}',
    ]


@pytest.mark.parametrize(
    "number", ["12345678901234567890123", "18446744073709551616", "12345678901234567.89"]
)
def test_a_number_in_a_body_is_the_one_in_the_line(number: str) -> None:
    line = b'{"id": 18446744073709551616, "b": {"n": %s}}' % number.encode()
    assert read(line, "jsonl", Fields(body="b", key="id")) == [
        InputEntry(b'{"n":%s}' % number.encode(), ("18446744073709551616",))
    ]


@pytest.mark.parametrize("form", ["text", "jsonl", "csv"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(form: str) -> None:
    data = {"text": b"x\r\n", "jsonl": b'{"id": "x"}\n', "csv": b"id\r\nx\r\n"}[form]
    fields = Fields() if form == "text" else Fields(key="id")
    assert read(b"\xef\xbb\xbf" + data, form, fields) == read(data, form, fields)
    assert bodies(b"\xef\xbb\xbfx", "raw") == [b"\xef\xbb\xbfx"]


def test_only_blanks_separate_keys() -> None:
    assert read(b'{"id": "a\\tb  c"}', "jsonl", Fields(key="id"))[0].keys == ("a\tb", "c")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b'{"id": "\xff"}', "line 1 is not a JSON object"),
        (b'{"id": {"a": ' + b"[" * 100_000, "line 1 is not a JSON object"),
        (b'{"id": 1e400}', "line 1 is not a JSON object"),
        (b'{"id": 1}\n{oops', "line 2 is not a JSON object"),
        (b"[1]", "line 1 is not a JSON object"),
        (b'{"a": 1}', "line 1 has no 'id'; it has a"),
    ],
)
def test_bad_json_lines_are_named(data: bytes, complaint: str) -> None:
    with pytest.raises(SourceError, match=complaint):
        read(data, "jsonl", Fields(key="id"))


def test_a_row_is_the_body_as_it_stands_in_the_file() -> None:
    data = b'id,name\r\n1,"a\nb"\r\n2,c\r\n'
    assert read(data, "csv", Fields(key="id")) == [
        InputEntry(b'1,"a\nb"', ("1",)),
        InputEntry(b"2,c", ("2",)),
    ]


def test_a_column_can_be_the_body_and_an_empty_one_is_no_tag() -> None:
    assert read(b"t,b\n,x\ny,z\n", "csv", Fields(body="b", tag="t")) == [
        InputEntry(b"x"),
        InputEntry(b"z", tag="y"),
    ]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"a,b\n1\n", "line 2 has 1 columns; the header has 2"),
        (b"a,b\n\xff,1\n", "not CSV in UTF-8"),
        (b'a,b\n"x"y,1\n', "not CSV in UTF-8"),
        (b"a,b\n1,2\n", "line 2 has no 'id'; it has a, b"),
    ],
)
def test_bad_rows_are_named(data: bytes, complaint: str) -> None:
    with pytest.raises(SourceError, match=complaint):
        read(data, "csv", Fields(key="id"))


def test_an_empty_csv_has_no_messages() -> None:
    assert read(b"", "csv") == []


@given(
    st.lists(st.binary(max_size=50).filter(lambda line: b"\n" not in line and b"\r" not in line))
)
def test_text_lines_come_out_as_they_went_in(lines: list[bytes]) -> None:
    assert bodies(b"".join(line + b"\n" for line in lines), "text") == lines
