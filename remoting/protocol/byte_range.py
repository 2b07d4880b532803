"""How many stored bytes some messages of a queue have: ext fields of GET_MAX_OFFSET and its answer.

Who asks puts ``pmqBytesFrom`` and ``pmqBytesUntil`` into the request, and ``pmqBytesLimit`` when a
limit matters. Our broker then says in ``pmqBytes`` what the messages ``[from, reached)`` take in
its log, and in ``pmqBytesReached`` how far that is: to the end of what was asked about, to the last
message that the limit has room for, or as far as it looks for one request. When it was the limit,
``pmqBytesNext`` is the size of the message that has no room. Messages that are gone, or not there
yet, have no bytes.

Apache's brokers, which don't know the fields, answer without them: so the asker learns that they
can't tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from remoting.protocol.errors import HeaderError

FROM: Final = "pmqBytesFrom"
UNTIL: Final = "pmqBytesUntil"
LIMIT: Final = "pmqBytesLimit"
SIZE: Final = "pmqBytes"
REACHED: Final = "pmqBytesReached"
NEXT: Final = "pmqBytesNext"

_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_LARGEST: Final = 2**63 - 1
_SHOWN_CHARACTERS: Final = 40


@dataclass(frozen=True, slots=True)
class ByteQuestion:
    """What is asked about.

    Attributes:
        begin: the first message.
        end: behind the last one.
        limit: of bytes; None: there is none.
    """

    begin: int
    end: int
    limit: int | None = None

    def fields(self) -> dict[str, str]:
        """The request's ext fields."""
        fields = {FROM: str(self.begin), UNTIL: str(self.end)}
        return fields if self.limit is None else fields | {LIMIT: str(self.limit)}

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self | None:
        """What a request asks; None: nothing of this kind.

        Raises:
            HeaderError: a field is missing, or no number that it can be.
        """
        begin, end = _number(fields, FROM), _number(fields, UNTIL)
        limit = _number(fields, LIMIT)
        if begin is None and end is None and limit is None:
            return None
        if begin is None or end is None:
            raise HeaderError(f"the ext field {UNTIL if end is None else FROM} is missing")
        if begin > end:
            raise HeaderError(f"the ext field {FROM} says {begin}, which is behind {UNTIL}, {end}")
        return cls(begin, end, limit)


@dataclass(frozen=True, slots=True)
class ByteAnswer:
    """What is known.

    Attributes:
        size: bytes of the messages up to ``reached``.
        reached: behind the last message that was counted.
        following: size of the message at ``reached``, which the limit has no room for; None when
            something else ended the count.
    """

    size: int
    reached: int
    following: int | None = None

    def fields(self) -> dict[str, str]:
        """The answer's ext fields."""
        fields = {SIZE: str(self.size), REACHED: str(self.reached)}
        return fields if self.following is None else fields | {NEXT: str(self.following)}

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self | None:
        """What an answer says; None: who gave it can't tell.

        Raises:
            HeaderError: a field is no number that it can be.
        """
        size, reached = _number(fields, SIZE), _number(fields, REACHED)
        if size is None or reached is None:
            return None
        return cls(size, reached, _number(fields, NEXT))


def _number(fields: Mapping[str, str], name: str) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None or int(text) > _LARGEST:
        raise HeaderError(
            f"the ext field {name} is to be a number from 0 to {_LARGEST}, not "
            f"{text[:_SHOWN_CHARACTERS]!r}"
        )
    return int(text)
