"""The address patterns of white lists, as in RocketMQ 4.9.7 (cf. RemoteAddressStrategyFactory).

============================  =================================================
 ``*`` ``*.*.*.*``             every address; also ``*:*:*:*:*:*:*:*``
 empty, white space            none
 ``10.1.2.3``                  this address; IPv6 addresses in any spelling
 ``10.1.2.3,10.1.2.4``         these addresses
 ``10.1.2.{3,4}``              the same; braces are for the last part only
 ``10.1.*.*`` ``10.1.3-5.*``   a range of one part. **The parts after the first range are ignored**
 ``fe80:*`` ``fe80::1:2-a:*``  the same for IPv6
============================  =================================================
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

Pattern = Callable[[str], bool]
"""Whether an address matches."""

_EVERYBODY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_PARTS: Final = {10: 4, 16: 8}
"""The parts of an IPv4 and an IPv6 address, by the base of their numbers."""
_LARGEST: Final = {10: 255, 16: 0xFFFF}

# A space before the hyphen is ignored, as are further numbers; one after it is refused.
_RANGE: Final = re.compile(r"([0-9a-f]+) *-([0-9a-f]+)(-.*)?", re.IGNORECASE)


def parse(text: str) -> Pattern:
    """Return the pattern that a text of a white list means.

    Raises:
        ValueError: RocketMQ refuses it.
    """
    if not text.strip():
        return _any_of([])
    if text in _EVERYBODY:
        return lambda _: True
    if text.endswith("}"):
        separator = ":" if ":" in text else "."
        head, brace, last = text.rpartition("{")
        whole = separator == ":" or head.count(".") == _PARTS[10] - 1
        if not brace or not head.endswith(separator) or not whole:
            raise ValueError(f"{text!r}: braces are for the last part, such as 10.1.2.{{3,4}}")
        return _any_of([head + part for part in last[:-1].split(",") if part])
    if "," in text:
        return _any_of([part for part in text.split(",") if part])
    if "*" in text or "-" in text:
        return _v6_range(text) if ":" in text else _v4_range(text)
    return _any_of([text])


def _any_of(addresses: list[str]) -> Pattern:
    for text in addresses:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise ValueError(f"{text!r} is not an IP address") from None
    expanded = frozenset(map(_expanded, addresses))
    return lambda address: _expanded(address) in expanded


def _v4_range(text: str) -> Pattern:
    parts = [part.strip() for part in text.split(".") if part]
    if len(parts) < _PARTS[10]:
        raise ValueError(f"{text!r}: an IPv4 pattern has four parts, such as 10.1.*.*")
    index, bounds = 0, None
    while bounds is None and index < _PARTS[10] - 1:
        index += 1
        bounds = _bounds(parts[index], text, 10)
    before = parts[:index]
    # RocketMQ accepts ``*.1.2.3`` and ``*.*.2.3`` and then fails with each address.
    if bounds is None or before == ["*"]:
        return _any_of([])
    for part in before:
        if not part.isascii() or not part.isdigit() or int(part) > _LARGEST[10]:
            raise ValueError(f"{text!r}: {part!r} is not a number from 0 to {_LARGEST[10]}")
    return _in_range(before, bounds, 10, lambda address: address.split("."))


def _v6_range(text: str) -> Pattern:
    head, _, last = text.rpartition(":")
    parts = _PARTS[16] - 1
    if "*" in text and "-" in text:
        head, _, last = head.rpartition(":")
        parts -= 1
    if "*" in head or "-" in head or ("*" in text and not text.endswith("*")):
        raise ValueError(f"{text!r}: an IPv6 pattern has its range at the end, such as fe80::1:*")
    bounds = _bounds(last.strip(), text, 16)
    # RocketMQ accepts a pattern that begins with ``::`` and then fails with each address.
    if bounds is None or text.startswith(":"):
        return _any_of([])
    before = _expanded(head, parts).split(":")
    # Without the zone of a link-local address.
    return _in_range(before, bounds, 16, lambda text: _expanded(text).partition("%")[0].split(":"))


def _bounds(part: str, text: str, base: int) -> tuple[int, int] | None:
    """Return the first and the last value of a range; None for any other part."""
    if part == "*":
        return 0, _LARGEST[base]
    if "-" not in part:
        return None
    numbers = _RANGE.fullmatch(part)
    if numbers is None or (base == 10 and not (numbers[1] + numbers[2]).isdigit()):
        raise ValueError(f"{text!r}: {part!r} is not a range such as 3-5")
    low, high = int(numbers[1], base), int(numbers[2], base)
    if not low <= high <= _LARGEST[base]:
        raise ValueError(f"{text!r}: {part!r} is not a range within 0-{_LARGEST[base]:x}")
    return (low, high) if high else None


def _in_range(
    before: list[str], bounds: tuple[int, int], base: int, split: Callable[[str], list[str]]
) -> Pattern:
    """Return a pattern of addresses with these parts, and a next one within the bounds."""
    low, high = bounds
    index = len(before)

    def matches(address: str) -> bool:
        parts = split(address)
        return (
            len(parts) == _PARTS[base]
            and parts[:index] == before
            and low <= int(parts[index], base) <= high
        )

    return matches


def _expanded(address: str, parts: int = _PARTS[16]) -> str:
    """Return an address in upper case; an IPv6 address without ``::``, each part with 4 digits."""
    if ":" not in address:
        return address.upper()
    missing = parts - address.count(":")
    if missing > 0:
        address = address.replace("::", ":" * (missing + 1))
    return ":".join(part.rjust(4, "0") for part in address.upper().split(":"))
