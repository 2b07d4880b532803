"""The key-value table."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameserver.config import LimitError
from nameserver.kv import KVConfig
from remoting.protocol.errors import BodyError

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
tables = st.dictionaries(texts, st.dictionaries(texts, texts, min_size=1), max_size=4)


def test_a_change_makes_another_table() -> None:
    before = KVConfig()
    after = before.with_value("ns", "k", "v")
    assert (before.get("ns", "k"), after.get("ns", "k")) == (None, "v")
    assert dict(after.entries("ns")) == {"k": "v"}
    assert after.without("ns", "k").get("ns", "k") is None


def test_a_namespace_ends_with_its_last_entry() -> None:
    assert KVConfig({"ns": {"k": "v"}}).without("ns", "k").to_json() == KVConfig().to_json()


def test_removing_what_is_not_there_is_no_change() -> None:
    table = KVConfig({"ns": {"k": "v"}})
    assert table.without("ns", "x") is table
    assert table.without("x", "k") is table


def test_the_file_is_rocketmqs() -> None:
    text = KVConfig({"ORDER_TOPIC_CONFIG": {"t": "broker-a:4"}}).to_json()
    assert json.loads(text) == {"configTable": {"ORDER_TOPIC_CONFIG": {"t": "broker-a:4"}}}


@given(tables)
def test_what_was_written_is_read_back(table: dict[str, dict[str, str]]) -> None:
    read = KVConfig.from_json(KVConfig(table).to_json())
    assert {name: dict(read.entries(name)) for name in table} == table


def test_invalid_text_is_a_body_error() -> None:
    for text in (b"[]", b"{", b'{"configTable":{"a":1}}', b"\xff"):
        with pytest.raises(BodyError):
            KVConfig.from_json(text)


def test_an_entry_needs_a_namespace_and_a_key() -> None:
    for namespace, key in (("", "k"), ("ns", "")):
        with pytest.raises(LimitError, match="needs a namespace and a key"):
            KVConfig().with_value(namespace, key, "v")


def test_texts_and_table_are_bounded() -> None:
    with pytest.raises(LimitError, match="65536 characters"):
        KVConfig().with_value("ns", "k", "v" * 65_537)
    full = KVConfig(max_entries=1, max_bytes=13).with_value("ns", "k", "v")
    with pytest.raises(LimitError, match="holds 1 entries"):
        full.with_value("ns", "l", "v")
    assert full.with_value("ns", "k", "1234").get("ns", "k") == "1234"
    with pytest.raises(LimitError, match="holds 13 bytes"):
        full.with_value("ns", "k", "12345")


def test_namespaces_count_and_every_text_as_it_stands_in_the_file() -> None:
    small = KVConfig(max_bytes=100)
    with pytest.raises(LimitError, match="holds 100 bytes"):
        small.with_value("n" * 100, "k", "v")
    with pytest.raises(LimitError, match="holds 100 bytes"):
        small.with_value("ns", "k", "\x01" * 20)
    with pytest.raises(LimitError, match="holds 100 bytes"):
        small.with_value("ns", "k", "\U0001d54f" * 30)


@given(tables, st.lists(st.tuples(texts, texts, st.none() | texts), max_size=10))
def test_the_sizes_kept_with_changes_are_those_of_the_table(
    table: dict[str, dict[str, str]], changes: list[tuple[str, str, str | None]]
) -> None:
    changed = KVConfig(table)
    for namespace, key, value in changes:
        if value is None:
            changed = changed.without(namespace, key)
        else:
            changed = changed.with_value(namespace, key, value)
    fresh = KVConfig.from_json(changed.to_json())
    assert (changed.entry_count, changed.size_bytes) == (fresh.entry_count, fresh.size_bytes)
