"""Files of the commit log and of consume queues are named by the offset they begin at."""

from __future__ import annotations

from typing import Final

NAME_LENGTH: Final = 20


def name_of(offset: int) -> str:
    """The name of the file that begins at an offset: 20 decimal digits.

    Raises:
        ValueError: the offset is negative.
    """
    if offset < 0:
        raise ValueError(f"no file begins at the negative offset {offset}")
    return f"{offset:020d}"


def offset_of(name: str) -> int | None:
    """The offset that a file begins at; None if the name is none of ours."""
    if len(name) == NAME_LENGTH and name.isascii() and name.isdigit():
        return int(name)
    return None
