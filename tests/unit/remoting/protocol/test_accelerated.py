"""The compiled libraries and their standard library counterparts do the same."""

from __future__ import annotations

import importlib.util
import sys
import zlib
from types import ModuleType
from typing import Any

import pytest

from remoting.protocol import accelerated


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is where neither orjson nor isal can be imported."""
    for name in ("orjson", "isal", "isal.isal_zlib"):
        monkeypatch.setitem(sys.modules, name, None)
    assert accelerated.__file__
    spec = importlib.util.spec_from_file_location("plain_accelerated", accelerated.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, True, None, '中\u0001"\\'], "b": {}},
        [],
        "text",
        -(1 << 63),
    ],
)
def test_values_are_written_and_read_the_same(plain: ModuleType, value: Any) -> None:
    text = accelerated.json_dumps(value)
    assert plain.json_dumps(value) == text
    assert plain.json_loads(text) == accelerated.json_loads(text) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"NaN",
        b"[Infinity]",
        b'"\xff"',
        b'"\\ud800"',
        b'{"\\udc00":1}',
        b"[" * 200_000 + b"]" * 200_000,
        b"\xef\xbb\xbf1",
        b"1 2",
        b"-1e400",
        b"1" * 5000,
    ],
)
def test_what_is_not_json_is_a_value_error(plain: ModuleType, data: bytes) -> None:
    for loads in (accelerated.json_loads, plain.json_loads, accelerated.json_loads_pairs):
        with pytest.raises(ValueError, match=r"."):
            loads(data)


def test_escaped_surrogate_pairs_are_a_character(plain: ModuleType) -> None:
    data = b'"\\ud83d\\ude00"'
    assert plain.json_loads(data) == accelerated.json_loads(data) == "😀"


def test_pairs_keep_order_and_repeats() -> None:
    pairs = accelerated.json_loads_pairs(b'{"b":1,"a":{"x":2,"x":3},"b":4}')
    assert pairs == [("b", 1), ("a", [("x", 2), ("x", 3)]), ("b", 4)]
    assert isinstance(pairs, accelerated.Pairs)


def test_checksums_are_the_same(plain: ModuleType) -> None:
    for data in (b"", b"hello", bytes(range(256)) * 100):
        assert accelerated.crc32(data) == plain.crc32(data) == zlib.crc32(data)
    assert plain.crc32(b"b", plain.crc32(b"a")) == accelerated.crc32(b"ab")
