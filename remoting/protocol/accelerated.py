"""Functions taken from a compiled library if it is installed, else from the standard library.

``json_loads`` and ``json_dumps`` are orjson's, ``crc32`` is isal's. Both implementations return the
same values for the same input and differ only in speed. Invalid JSON is a ``ValueError``, also for
lone surrogates and excessive nesting.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isinf
from typing import Any, NoReturn

try:
    import orjson
except ImportError:
    _orjson = None
else:
    _orjson = orjson

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["Pairs", "crc32", "json_dumps", "json_loads", "json_loads_pairs"]


class Pairs(list[tuple[str, Any]]):
    """A JSON object parsed by ``json_loads_pairs``: its members in order, repeats included."""


def json_loads_pairs(data: bytes) -> Any:
    """Parse JSON with every object as ``Pairs``. Raises ``ValueError``."""
    return _plain_loads(data, Pairs)


def _plain_loads(data: bytes, pairs: type[Pairs] | None = None) -> Any:
    try:
        value = json.loads(
            str(data, "utf-8"),
            object_pairs_hook=pairs,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        if b"\\u" in data:
            # An escaped lone surrogate would otherwise fail only when the text is encoded again.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _plain_dumps(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


json_loads: Callable[[bytes], Any] = _plain_loads if _orjson is None else _orjson.loads
json_dumps: Callable[[object], bytes] = _plain_dumps if _orjson is None else _orjson.dumps
