"""A batch body holds its messages in sequence, and damage is detected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import BodyError
from remoting.protocol.limits import MAX_BATCH_MESSAGES
from remoting.protocol.message import batch

ELEMENTS = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50)),
    max_size=6,
)


def test_the_documented_batch_is_written_byte_for_byte() -> None:
    assert (
        batch.encode([(0, b"hello", b"p\x01v"), (3, b"world!", b"")]).hex()
        == "0000001e0000000000000000000000000000000568656c6c6f0003700176"
        "0000001c00000000000000000000000300000006776f726c64210000"
    )


@given(ELEMENTS)
def test_what_was_written_is_read(elements: list[tuple[int, bytes, bytes]]) -> None:
    read = batch.iter_elements(batch.encode(elements))
    assert [tuple(element) for element in read] == elements


@given(ELEMENTS)
def test_columns_are_written_like_elements_without_flags(
    elements: list[tuple[int, bytes, bytes]],
) -> None:
    plain = [(0, body, properties) for _, body, properties in elements]
    columns = [body for _, body, _ in plain], [properties for _, _, properties in plain]
    assert batch.encode_columns(*columns) == batch.encode(plain)


def test_columns_with_too_long_properties_are_refused() -> None:
    with pytest.raises(ValueError, match="32768 bytes, more than 32767"):
        batch.encode_columns([b"a", b"b"], [b"", b"p" * 32768])


@given(ELEMENTS.filter(bool), st.data())
def test_a_batch_cut_off_within_a_message_is_refused(
    elements: list[tuple[int, bytes, bytes]], data: st.DataObject
) -> None:
    body = batch.encode(elements)
    last = len(batch.encode(elements[-1:]))
    cut = data.draw(st.integers(1, last - 1))
    with pytest.raises(BodyError, match=f"message {len(elements)} of the batch"):
        list(batch.iter_elements(body[:-cut]))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_a_body_error(body: bytes) -> None:
    try:
        elements = list(batch.iter_elements(memoryview(body)))
    except BodyError:
        return
    assert sum(len(e.body) + len(e.properties) + 22 for e in elements) == len(body)


def test_the_numbers_that_java_ignores_are_ignored() -> None:
    body = b"\xff" * 12 + batch.encode([(1, b"b", b"")])[12:]
    assert [tuple(element) for element in batch.iter_elements(body)] == [(1, b"b", b"")]


def test_an_empty_body_is_an_empty_batch() -> None:
    assert list(batch.iter_elements(b"")) == []
    assert batch.encode([]) == b""


def test_a_length_beyond_the_body_is_refused() -> None:
    body = bytearray(batch.encode([(0, b"hello", b"p\x01v")]))
    body[16:20] = b"\xff\xff\xff\xff"
    with pytest.raises(BodyError, match="body length of 4294967295"):
        list(batch.iter_elements(bytes(body)))


def test_negative_properties_are_refused() -> None:
    body = bytearray(batch.encode([(0, b"", b"x" * 32767)]) + bytes(2))
    body[20:22] = b"\x80\x01"
    with pytest.raises(BodyError, match="properties length of 32769"):
        list(batch.iter_elements(bytes(body)))


def test_too_many_messages_are_refused() -> None:
    element = batch.encode([(0, b"", b"")])
    assert sum(1 for _ in batch.iter_elements(element * MAX_BATCH_MESSAGES)) == MAX_BATCH_MESSAGES
    with pytest.raises(BodyError, match=f"more than {MAX_BATCH_MESSAGES} messages"):
        list(batch.iter_elements(element * (MAX_BATCH_MESSAGES + 1)))


def test_too_long_properties_are_not_written() -> None:
    with pytest.raises(ValueError, match="32768 bytes, more than 32767"):
        batch.encode([(0, b"", b"p" * 32768)])
