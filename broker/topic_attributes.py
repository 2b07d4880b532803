"""A topic's attributes, and requests that change them (cf. AttributeParser, AttributeUtil).

A request says ``+name=value`` to set an attribute and ``-name`` to remove one; what it doesn't
name stays. ``cleanup.policy`` and ``queue.type`` can be set only while the topic is created.
Errors begin as those of RocketMQ 5.3.3 do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MESSAGE_TYPE: Final = "message.type"
MIXED: Final = "MIXED"

_RESERVE_TIME: Final = "reserve.time"
_VALUES: Final = {
    "cleanup.policy": ("DELETE", "COMPACTION"),
    MESSAGE_TYPE: ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED),
    "queue.type": ("SimpleCQ", "BatchCQ"),
}
_KNOWN: Final = (*_VALUES, _RESERVE_TIME)
_CHANGEABLE: Final = frozenset({MESSAGE_TYPE, _RESERVE_TIME})

_LONG: Final = re.compile(r"[+-]?[0-9]+")
_MAX_LONG: Final = 2**63 - 1
_FORMAT: Final = "write +name=value to set an attribute, -name to remove one"


def parse_changes(text: str | None) -> dict[str, str]:
    """The changes that the header of UPDATE_AND_CREATE_TOPIC asks for, by signed name.

    Args:
        text: ``+name=value`` and ``-name`` with commas between them; None or empty for none.

    Raises:
        ValueError: it has another form, or names a change twice; the text is a sentence.
    """
    changes: dict[str, str] = {}
    # Java's split drops empty parts at the end, so "+a=b," is one change and "+a=" has no value.
    entries = (text or "").rstrip(",")
    for entry in entries.split(",") if entries else ():
        name, *values = entry.rstrip("=").split("=")
        sign, kind = ("+", "add/alter") if "=" in entry else ("-", "delete")
        if sign not in name or (sign == "+" and not values):
            raise ValueError(f"{kind} attribute format is wrong: {name}; {_FORMAT}")
        if name in changes:
            raise ValueError(f"key duplication: {name}")
        changes[name] = values[0] if values else ""
    return changes


def altered(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """A topic's attributes after a request.

    Args:
        current: those it has; None when the request creates it.
        changes: values by signed name; a removal's value means nothing.

    Raises:
        ValueError: a change is refused; the text is a sentence.
    """
    given: dict[str, str] = {}
    removed: set[str] = set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if not name or "+" in name or "-" in name:
            raise ValueError(f"kv string format wrong. key: {signed}; {_FORMAT}")
        if name in given or name in removed:
            raise ValueError(f"alter duplication key. key: {name}")
        if current is None and sign != "+":
            raise ValueError(f"only add attribute is supported while creating topic. key: {name}")
        if sign == "+":
            given[name] = value
        elif sign != "-":
            raise ValueError(f"wrong format key: {name}; {_FORMAT}")
        elif current is None or name not in current:
            raise ValueError(f"attempt to delete a nonexistent key: {name}")
        else:
            removed.add(name)
    for name in (*given, *removed):
        if name not in _KNOWN:
            raise ValueError(f"unsupported key: {name}; there are {', '.join(_KNOWN)}")
        if current is not None and name not in _CHANGEABLE:
            raise ValueError(f"attempt to update an unchangeable attribute. key: {name}")
    for name, value in given.items():
        _check_value(name, value)
    kept = {name: value for name, value in (current or {}).items() if name not in removed}
    return kept | given


def _check_value(name: str, value: str) -> None:
    allowed = _VALUES.get(name)
    if allowed is None:
        if _LONG.fullmatch(value) is None or not -1 <= int(value) <= _MAX_LONG:
            raise ValueError(f"value is not in range(-1, {_MAX_LONG}): {name}={value}")
    elif value not in allowed:
        raise ValueError(f"value is not in set: [{', '.join(allowed)}]: {name}={value}")
