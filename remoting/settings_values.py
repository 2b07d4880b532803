"""What the values of settings may look like.

Each parser takes a value's text and gives the value, or raises ``ValueError`` with the rest of a
sentence that starts with the setting: "must be a whole number from 0 to 65535".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path

_WORDS = {"true": True, "false": False}
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_NAME = re.compile(r"[%|a-zA-Z0-9_-][%|a-zA-Z0-9._-]*")
MAX_NAME_LENGTH = 127
"""Names of brokers and clusters become topics."""


def boolean(text: str) -> bool:
    """``true`` or ``false`` in any case."""
    if text.lower() not in _WORDS:
        raise ValueError("must be true or false")
    return _WORDS[text.lower()]


def integer(low: int, high: int) -> Callable[[str], int]:
    """A whole number within these bounds, both included."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


def multiple_of(unit: int, low: int, high: int) -> Callable[[str], int]:
    """A whole number that is rounded up to a multiple of the unit."""
    bounded = integer(low, high)

    def parse(text: str) -> int:
        return -(-bounded(text) // unit) * unit

    return parse


def choice(*names: str) -> Callable[[str], str]:
    """One of these names, in any case."""

    def parse(text: str) -> str:
        if text.upper() not in names:
            raise ValueError("must be " + " or ".join(names))
        return text.upper()

    return parse


def word(text: str) -> str:
    """Any text that isn't empty."""
    if not text:
        raise ValueError("must not be empty")
    return text


def name(text: str) -> str:
    """The name of a broker or cluster: a topic's characters, and dots as host names have them."""
    if not _NAME.fullmatch(text) or len(text) > MAX_NAME_LENGTH:
        raise ValueError(f"must be 1 to {MAX_NAME_LENGTH} letters, digits, or any of - _ % | .")
    return text


def path(text: str) -> Path:
    """A path of the file system; ``~`` and ``$HOME`` stand for the home directory."""
    if not text or "\0" in text:
        raise ValueError("must be a path")
    home = str(Path.home())
    expanded = text.replace("${HOME}", home).replace("$HOME", home)
    return Path(home + expanded[1:] if expanded == "~" or expanded.startswith("~/") else expanded)


def host(text: str) -> str:
    """A host name or an IP address, without port."""
    try:
        return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        if not _HOST.fullmatch(text):
            raise ValueError("must be a host name or an IP address") from None
        return text


def address(text: str) -> str:
    """``HOST:PORT``."""
    name_part, colon, port = text.rpartition(":")
    try:
        host(name_part)
        integer(1, 65535)(port)
    except ValueError:
        colon = ""
    if not colon:
        raise ValueError(f"must be HOST:PORT, several separated by ';', and {text!r} isn't that")
    return text


def addresses(text: str) -> tuple[str, ...]:
    """``HOST:PORT`` separated by ``;``, each once, in the given order."""
    parts = [part.strip() for part in text.split(";")]
    return tuple(dict.fromkeys(address(part) for part in parts if part))
