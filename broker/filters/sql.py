"""SQL92 filters: compile an expression once, and select records with it (cf. SqlFilter).

No I/O. Only the properties that the expression names are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from broker.filters.expressions import EvaluationError, SqlError, Values
from broker.filters.parser import Parser
from broker.limits import FILTER_STEPS, MAX_SUBSCRIPTION_LENGTH, SHORT_SUBSCRIPTION_LENGTH
from remoting.protocol import core
from remoting.protocol.errors import RecordError
from remoting.protocol.message import properties
from remoting.protocol.message.record import locate

SQL92: Final = "SQL92"

_Rows = list[tuple[int, list[str | None]]]

_STEPS_PER_NAME: Final = 8
"""Finding a property in a record takes about as long as so many comparisons."""

_STEPS_PER_SEARCH: Final = 250
"""For CONTAINS in a property of 32 KB, the longest."""

_SHORT_KEPT: Final = 1_024
_LONG_KEPT: Final = 16
"""Compiled expressions that are cached; a long one may take 2 MiB."""


def plain_property_rows(data: memoryview, names: tuple[bytes, ...]) -> _Rows:
    """See ``core.record.property_rows``."""
    rows: _Rows = []
    at = 0
    while True:
        try:
            *_, topic_end, end = locate(data, at, len(data))
        except RecordError:
            return rows
        text = bytes(data[topic_end + 2 : end])
        raw = [properties.find(text, name) for name in names]
        values = [None if value is None else value.decode("utf-8", "replace") for value in raw]
        rows.append((end - at, values))
        at = end


property_rows: Callable[[memoryview, tuple[bytes, ...]], _Rows] = plain_property_rows
if not core.WHY:
    # Compiled: it is there only if ``WHY`` is empty.
    from remoting.protocol.core import record

    property_rows = record.property_rows


class SqlFilter:
    """A compiled expression.

    Args:
        text: the expression.

    Attributes:
        names: the properties that it names.
        reach: the most messages that one get looks into.

    Raises:
        SqlError: the text is no expression.
    """

    __slots__ = ("_encoded", "_run", "names", "reach", "text")

    def __init__(self, text: str) -> None:
        if len(text) > MAX_SUBSCRIPTION_LENGTH:
            raise SqlError(
                f"an expression has at most {MAX_SUBSCRIPTION_LENGTH} characters, not {len(text)}"
            )
        parser = Parser(text)
        self._run = parser.parse().run
        self.text = text
        self.names = tuple(parser.names)
        cost = parser.operands + _STEPS_PER_NAME * len(self.names)
        cost += _STEPS_PER_SEARCH * parser.searches
        self.reach = max(1, FILTER_STEPS // cost)
        self._encoded = tuple(name.encode() for name in self.names)

    def __repr__(self) -> str:
        return f"<SqlFilter {self.text!r}>"

    def evaluate(self, values: Values) -> bool | None:
        """Evaluate it for a message, which matches only if the result is true.

        Args:
            values: the message's values of ``names``; None for a missing property.

        Raises:
            EvaluationError: it can't be evaluated; the message doesn't match.
        """
        outcome: bool | None = self._run(values)
        return outcome

    def select(self, records: Sequence[memoryview], most: int) -> tuple[list[memoryview], int, int]:
        """Return the first records that match; see ``RecordFilter``.

        Bytes that aren't a record, and the rest of their slice, are left out.
        """
        run, names, kept = self._run, self._encoded, []
        count = looked = 0
        for piece in records:
            at = begin = end = 0
            for size, values in property_rows(piece, names):
                if count == most:
                    break
                looked += 1
                try:
                    is_match = run(values) is True
                except EvaluationError:
                    is_match = False
                if is_match:
                    count += 1
                    if at != end:
                        if end > begin:
                            kept.append(piece[begin:end])
                        begin = at
                    end = at + size
                at += size
            if end > begin:
                kept.append(piece[begin:end])
        return kept, count, looked


def _compile(text: str) -> SqlFilter | SqlError:
    try:
        return SqlFilter(text)
    except SqlError as error:
        return error.with_traceback(None)


_compile_short = lru_cache(_SHORT_KEPT)(_compile)
_compile_long = lru_cache(_LONG_KEPT)(_compile)


def compiled(text: str) -> SqlFilter:
    """Return the filter of an expression, from a cache if possible.

    Raises:
        SqlError: the text is no expression.
    """
    is_short = len(text) <= SHORT_SUBSCRIPTION_LENGTH
    outcome = (_compile_short if is_short else _compile_long)(text)
    if isinstance(outcome, SqlError):
        raise SqlError(str(outcome))
    return outcome
