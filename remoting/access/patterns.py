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
from collections.abc import Callable
from typing import Final

Pattern = Callable[[str], bool]
"""Whether an address matches."""

_EVERYBODY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_V4_PARTS: Final = 4
_V6_PARTS: Final = 8
_LARGEST_V4: Final = 255
_LARGEST_V6: Final = 0xFFFF


def parse(text: str) -> Pattern:
    """Return the pattern that a text of a white list means.

    Raises:
        ValueError: RocketMQ refuses it.
    """
    if not text.strip():
        return lambda _: False
    if text in _EVERYBODY:
        return lambda _: True
    if text.endswith("}"):
        separator = ":" if ":" in text else "."
        head, brace, last = text.rpartition("{")
        whole = separator == ":" or head.count(".") == _V4_PARTS - 1
        if not brace or not head.endswith(separator) or not whole:
            raise ValueError(f"{text!r}: braces are for the last part, such as 10.1.2.{{3,4}}")
        return _any_of([head + part for part in last[:-1].split(",") if part])
    if "," in text:
        return _any_of([part for part in text.split(",") if part])
    if "*" in text or "-" in text:
        return _v6_range(text) if ":" in text else _v4_range(text)
    return _any_of([text])


def _any_of(addresses: list[str]) -> Pattern:
    wanted = frozenset(_expanded(str(_address(text))) for text in addresses)
    return lambda address: _expanded(address) in wanted


def _address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None
    return text


def _v4_range(text: str) -> Pattern:
    parts = [part.strip() for part in text.split(".") if part]
    if len(parts) < _V4_PARTS:
        raise ValueError(f"{text!r}: an IPv4 pattern has four parts, such as 10.1.*.*")
    for index in range(1, _V4_PARTS):
        bounds = _bounds(parts[index], text, 10, _LARGEST_V4)
        if bounds is not None:
            break
    else:
        # RocketMQ accepts ``*.1.2.3`` and then fails with each address.
        return lambda _: False
    before = parts[:index]
    for part in before[1:] if before[0] == "*" and index == 1 else before:
        if not part.isascii() or not part.isdigit() or int(part) > _LARGEST_V4:
            raise ValueError(f"{text!r}: {part!r} is not a number from 0 to {_LARGEST_V4}")
    low, high = bounds

    def matches(address: str) -> bool:
        given = address.split(".")
        return (
            len(given) == _V4_PARTS
            and given[:index] == before
            and given[index].isdigit()
            and low <= int(given[index]) <= high
        )

    return matches


def _v6_range(text: str) -> Pattern:
    head, _, last = text.rpartition(":")
    parts = _V6_PARTS - 1
    if "*" in text and "-" in text:
        head, _, last = head.rpartition(":")
        parts -= 1
    if "*" in head or "-" in head or (text.count("*") and not text.endswith("*")):
        raise ValueError(f"{text!r}: an IPv6 pattern has its range at the end, such as fe80::1:*")
    bounds = _bounds(last.strip(), text, 16, _LARGEST_V6)
    # RocketMQ accepts a pattern that begins with ``::`` and then fails with each address.
    if bounds is None or text.startswith(":"):
        return lambda _: False
    before = _expanded(head, parts).split(":")
    low, high = bounds

    def matches(address: str) -> bool:
        # Without the zone of a link-local address.
        given = _expanded(address).partition("%")[0].split(":")
        return (
            len(given) == _V6_PARTS
            and given[: len(before)] == before
            and low <= int(given[len(before)], 16) <= high
        )

    return matches


def _bounds(part: str, text: str, base: int, largest: int) -> tuple[int, int] | None:
    """Return the first and the last value of a range; None for any other part."""
    if part == "*":
        return 0, largest
    if "-" not in part:
        return None
    # More numbers are ignored, as in RocketMQ.
    low, high, *_ = (*part.split("-"), "", "")
    try:
        # A space within a range is refused.
        bounds = int(low, base), int(high.replace(" ", "?"), base)
    except ValueError:
        raise ValueError(f"{text!r}: {part!r} is not a range such as 3-5") from None
    if not 0 <= bounds[0] <= bounds[1] <= largest:
        raise ValueError(f"{text!r}: {part!r} is not a range within 0-{largest:x}")
    return bounds if bounds[1] else None


def _expanded(address: str, parts: int = _V6_PARTS) -> str:
    """Return an address in upper case; an IPv6 address without ``::``, each part with 4 digits."""
    if ":" not in address:
        return address.upper()
    missing = parts - address.count(":")
    if missing > 0:
        address = address.replace("::", ":" * (missing + 1))
    return ":".join(part.rjust(4, "0") for part in address.upper().split(":"))
