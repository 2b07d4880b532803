"""JSON as Java's fastjson writes and reads it: the one reader and the one writer.

Beyond RFC 8259 a text may have, and ``loads`` understands:

==================  ================================  =====================
what                in the text                       as a Python value
==================  ================================  =====================
integer keys        ``{0:"a",1:"b"}``                 ``int`` keys
objects as keys     ``{{"topic":"T"}:5}``             ``ObjectKey`` keys
identifiers         ``{name:1}``                      ``str`` keys
single quotes       ``{'name':'value'}``              ``str``
==================  ================================  =====================

Integers are exact at any size; of a repeated key the last one counts. Half of a surrogate pair
becomes U+FFFD, so that every text that was read can be written again. Depth and number of values
are bounded whatever way a text takes: a strict text is parsed by msgspec, which has exact integers
where orjson has doubles, anything else by ``RelaxedReader``.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import msgspec

from remoting.protocol.bodies.relaxed_reader import ObjectKey, RelaxedReader
from remoting.protocol.bodies.relaxed_writer import RelaxedWriter
from remoting.protocol.errors import BodyError
from remoting.protocol.limits import MAX_JSON_DEPTH, MAX_JSON_NODES

__all__ = ["ObjectKey", "dumps", "loads"]

_STRINGS = re.compile(rb""""(?:[^"\\]++|\\.)*+"?|'(?:[^'\\]++|\\.)*+'?""", re.DOTALL)
"""Those without an end too, else each quote within them would be tried as a beginning."""

_CONTAINERS = frozenset((dict, list))

Buffer: TypeAlias = bytes | bytearray | memoryview


def loads(data: Buffer) -> object:
    """Read one JSON value: dicts, lists, strings, numbers, booleans and None.

    Raises:
        BodyError: it is not JSON even by Java's lax rules, is not UTF-8, nests deeper than
            ``MAX_JSON_DEPTH`` or has more than ``MAX_JSON_NODES`` values.
    """
    raw = bytes(data)
    openings = raw.count(b"{") + raw.count(b"[")
    _check_size(raw, openings)
    try:
        tree: object = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return _read_relaxed(raw)
    if openings > MAX_JSON_DEPTH and _is_deeper_than(tree, MAX_JSON_DEPTH):
        raise BodyError(f"the JSON nests deeper than {MAX_JSON_DEPTH} levels")
    return tree


def dumps(tree: object, *, standard: bool = False, pretty: bool = False) -> bytes:
    """Write one JSON value, typed bodies and message queues within it included.

    Absent values (None) of objects are left out. ``standard`` writes RFC 8259 JSON for readers
    that need it: all keys quoted, entries of maps sorted, non-ASCII as ``\\u`` escapes, an object
    as key as the text of its JSON. ``pretty`` breaks lines and indents with tabs as RocketMQ's
    configuration files have it.

    Raises:
        TypeError: a value is of a type that has no JSON form.
    """
    text = RelaxedWriter(standard=standard, pretty=pretty).text(tree)
    return text.encode("utf-8", "replace")


def _check_size(raw: bytes, openings: int) -> None:
    """Bound the number of values before any of them takes memory.

    Each value but the outermost follows an opening or a comma; only if there are too many of
    these, those within strings are told apart.
    """
    if openings + raw.count(b",") < MAX_JSON_NODES:
        return
    bare = _STRINGS.sub(b"", raw)
    if bare.count(b"{") + bare.count(b"[") + bare.count(b",") >= MAX_JSON_NODES:
        raise BodyError(f"the JSON has more than {MAX_JSON_NODES} values")


def _read_relaxed(raw: bytes) -> object:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BodyError(f"the JSON is not UTF-8 at byte {error.start}") from None
    return RelaxedReader(text).read()


def _is_deeper_than(tree: object, limit: int) -> bool:
    level = [tree]
    for _ in range(limit):
        children: list[object] = []
        for node in level:
            if type(node) is dict:
                children += [child for child in node.values() if type(child) in _CONTAINERS]
            elif type(node) is list:
                children += [child for child in node if type(child) in _CONTAINERS]
        if not children:
            return False
        level = children
    return True
