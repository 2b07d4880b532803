"""The conversions that fastjson makes without a word (cf. TypeUtils.cast).

Numbers become text and text becomes numbers, fractions are cut off, a null member counts as
absent, a name without quotes as a key is text. ``soften`` makes them on a tree that was read,
guided by the types that the body wants, and leaves alone what it can't improve: the converter
names the fault. Depth is that of the body's type, so no input makes it recurse further.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Final

from msgspec import inspect

from remoting.protocol.bodies import relaxed_json
from remoting.protocol.errors import BodyError

_ABSENT: Final = object()


def soften(value: object, kind: inspect.Type) -> object:
    """The value with Java's conversions made wherever they bring it nearer to ``kind``."""
    converter = _CONVERTERS.get(type(kind))
    if converter is None or value is None:
        return value
    return converter(value, kind)


@cache
def type_of(kind: type) -> inspect.Type:
    """The description of a body's class that guides ``soften``."""
    return inspect.type_info(kind)


@cache
def has_object_keys(kind: type) -> bool:
    """Whether a body of this class has, at any depth, a map keyed by objects."""
    return _has_object_keys(type_of(kind))


def _has_object_keys(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.DictType):
        return isinstance(kind.key_type, inspect.CustomType) or _has_object_keys(kind.value_type)
    if isinstance(kind, inspect.ListType):
        return _has_object_keys(kind.item_type)
    if isinstance(kind, inspect.StructType):
        return any(_has_object_keys(_required_type(field.type)) for field in kind.fields)
    return False


def _present(value: object, kind: inspect.Type) -> bool:
    """Whether a value counts at all: to Java null, and a blank where a number belongs, don't."""
    if value is None:
        return False
    wants_number = isinstance(kind, inspect.IntType | inspect.FloatType | inspect.BoolType)
    return not (wants_number and value in ("", "null", "NULL"))


def _to_int(value: object, _: inspect.Type) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return int(value)
    return value


def _to_bool(value: object, _: inspect.Type) -> object:
    return value == 1 if type(value) in {int, float} else value


def _to_text(value: object, _: inspect.Type) -> object:
    return value if isinstance(value, str) else relaxed_json.dumps(value).decode()


def _to_list(value: object, kind: inspect.Type) -> object:
    assert isinstance(kind, inspect.ListType)
    if not isinstance(value, list):
        return value
    item_type = kind.item_type
    return [soften(item, item_type) for item in value if _present(item, item_type)]


def _to_dict(value: object, kind: inspect.Type) -> object:
    assert isinstance(kind, inspect.DictType)
    if not isinstance(value, dict):
        return value
    return {
        _to_key(key, kind.key_type): soften(member, kind.value_type)
        for key, member in value.items()
        if _present(member, kind.value_type)
    }


def _to_key(key: object, kind: inspect.Type) -> object:
    if isinstance(kind, inspect.CustomType) and isinstance(key, str):
        return _object_key_of(key)
    return soften(key, kind)


def _object_key_of(text: str) -> relaxed_json.ObjectKey:
    """The object whose JSON stands as text for the key; an empty one when it is other text."""
    try:
        key = relaxed_json.ObjectKey.of(relaxed_json.loads(text.encode()))
    except BodyError:
        key = None
    return key or relaxed_json.ObjectKey()


def _to_struct(value: object, kind: inspect.Type) -> object:
    assert isinstance(kind, inspect.StructType)
    if not isinstance(value, dict):
        return value
    softened: dict[str, object] = {}
    for field in kind.fields:
        member = value.get(field.encode_name)
        member_type = _required_type(field.type)
        if _present(member, member_type):
            softened[field.encode_name] = soften(member, member_type)
    return softened


def _required_type(kind: inspect.Type) -> inspect.Type:
    """The type within an optional one."""
    if isinstance(kind, inspect.UnionType):
        return next(member for member in kind.types if not isinstance(member, inspect.NoneType))
    return kind


_CONVERTERS: Final[dict[type, Callable[[object, inspect.Type], object]]] = {
    inspect.IntType: _to_int,
    inspect.BoolType: _to_bool,
    inspect.StrType: _to_text,
    inspect.ListType: _to_list,
    inspect.DictType: _to_dict,
    inspect.StructType: _to_struct,
}
