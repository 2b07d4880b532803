"""The parts of an expression, the checks between them, and the functions that evaluate them.

Each function here builds a part from smaller ones when an expression is compiled, and makes the
checks that RocketMQ makes then (cf. ComparisonExpression, LogicExpression, UnaryExpression). A
part is evaluated with the message's values of the properties that the expression names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from broker.filters.values import (
    EvaluationError,
    SqlError,
    Value,
    compare,
    java_text,
    negated,
    number_of,
    order,
    text_of,
)
from broker.limits import MAX_FILTER_DEPTH, MAX_REMARK_LENGTH

Values = Sequence[str | None]
"""The message's values of the properties that an expression names, by their places."""

Run = Callable[[Values], Any]
"""Evaluates a part; raises ``EvaluationError``."""

_RUNTIME: Final = "java.lang.RuntimeException: "


class PartKind(Enum):
    """What kind of part it is, for the checks of the parts around it."""

    PROPERTY = auto()
    CONSTANT = auto()
    BOOLEAN = auto()
    NEGATED = auto()


@dataclass(slots=True, eq=False)
class Part:
    """A part of an expression.

    Args:
        written: its text in RocketMQ's errors, in pieces.
        kind: its kind; true, false and null are constants that count as booleans too.
        run: evaluates it.
        value: the value of a constant, or of a negated number.
        place: the place of a property's value in ``Values``.
        depth: how deep the calls of an evaluation nest.
        chained: the sign of a chain, and what evaluates the parts of it.

    Raises:
        SqlError: it is nested too deeply.
    """

    written: tuple[str | Part, ...]
    kind: PartKind
    run: Run
    value: Value = None
    place: int = -1
    depth: int = 1
    chained: tuple[str, tuple[Run, ...]] = ("", ())

    def __post_init__(self) -> None:
        if self.depth > MAX_FILTER_DEPTH:
            raise too_deep()

    def __str__(self) -> str:
        out, size = [], 0
        rest: list[str | Part] = [self]
        # BETWEEN is written with its operand twice: nested ones would have no end.
        while rest and size <= MAX_REMARK_LENGTH:
            piece = rest.pop()
            if isinstance(piece, Part):
                rest += reversed(piece.written)
            else:
                out.append(piece)
                size += len(piece)
        return "".join(out)

    @property
    def is_boolean(self) -> bool:
        """Whether its value is true, false or null."""
        if self.kind is PartKind.CONSTANT:
            return self.value is None or isinstance(self.value, bool)
        return self.kind is PartKind.BOOLEAN


def too_deep() -> SqlError:
    """Return the error for an expression that is nested too deeply."""
    return SqlError(
        f"the expression is nested more than {MAX_FILTER_DEPTH} levels deep: take parentheses, NOTs"
        " and signs out, or filter by fewer conditions"
    )


def constant(value: Value) -> Part:
    """Build a literal."""
    return Part((text_of(value),), PartKind.CONSTANT, lambda _: value, value)


def variable(name: str, place: int) -> Part:
    """Build a property."""
    return Part((name,), PartKind.PROPERTY, operator.itemgetter(place), place=place)


def _boolean(written: tuple[str | Part, ...], run: Run, *parts: Part) -> Part:
    return Part(written, PartKind.BOOLEAN, run, depth=1 + max(part.depth for part in parts))


def as_boolean(part: Part) -> Part:
    """Return the part as a boolean: itself, or a property's cast. Raises ``SqlError``."""
    if part.is_boolean:
        return part
    if part.kind is not PartKind.PROPERTY:
        raise SqlError(
            "org.apache.rocketmq.filter.parser.ParseException: Expression will not result in a "
            f"boolean value: {part}"
        )
    place = part.place
    # A text counts as false, even "true" (cf. UnaryExpression.createBooleanCast).
    return _boolean((part,), lambda values: None if values[place] is None else False, part)


def negate(part: Part) -> Part:
    """Build ``- part``."""
    if (
        part.kind is PartKind.CONSTANT
        and isinstance(part.value, int | float)
        and not part.is_boolean
    ):
        number = negated(part.value)
        run: Run = lambda _: number  # noqa: E731 - three of them
    elif part.kind is PartKind.NEGATED and part.value is not None:
        number = negated(part.value)  # type: ignore[arg-type]
        run = lambda _: number  # noqa: E731
    else:
        number, inner = None, part.run

        def run(values: Values) -> None:
            inner(values)

    return Part(("(- ", part, ")"), PartKind.NEGATED, run, number, depth=part.depth + 1)


def invert(part: Part) -> Part:
    """Build ``NOT part`` of a boolean."""
    inner = part.run

    def run(values: Values) -> bool | None:
        value: bool | None = inner(values)
        return None if value is None else not value

    return _boolean(("(NOT ", part, ")"), run, part)


def both(parts: Sequence[Part]) -> Part:
    """Build ``part AND part ...`` of booleans."""
    return _chain(parts, " && ", False)


def either(parts: Sequence[Part]) -> Part:
    """Build ``part OR part ...`` of booleans."""
    return _chain(parts, " || ", True)


def _chain(parts: Sequence[Part], sign: str, decisive: bool) -> Part:
    """Build a chain: one ``decisive`` part decides it, else a null part makes it null.

    A part that is such a chain itself becomes a piece of this one.
    """
    first, *rest = parts
    written: list[str | Part] = ["(" * len(rest), first]
    for part in rest:
        written += [sign, part, ")"]
    pieces: list[Run] = []
    depth = 1
    for part in parts:
        is_same = part.chained[0] == sign
        pieces += part.chained[1] if is_same else (part.run,)
        depth = max(depth, part.depth + (not is_same))
    runs = tuple(pieces)

    def run(values: Values) -> bool | None:
        unknown = False
        for one in runs:
            value: bool | None = one(values)
            if value is decisive:
                return decisive
            if value is None:
                unknown = True
        return None if unknown else not decisive

    chained = sign, runs
    return Part(tuple(written), PartKind.BOOLEAN, run, depth=depth, chained=chained)


# --- comparisons


def equal(left: Part, right: Part) -> Part:
    """Build ``left = right``. Raises ``SqlError``."""
    for part in (left, right):
        if part.kind is PartKind.CONSTANT and part.value is None:
            raise SqlError(f"{_RUNTIME}'{part}' cannot be compared.")
    if left.kind is right.kind is PartKind.CONSTANT and left.is_boolean and not right.is_boolean:
        raise SqlError(f"{_RUNTIME}'{left}' cannot be compared with '{right}'")
    return _equal(left, right)


def is_null(part: Part) -> Part:
    """Build ``part IS NULL``."""
    return _equal(part, constant(None))


def _equal(left: Part, right: Part) -> Part:
    written = ("(", left, " == ", right, ")")
    if left.kind is PartKind.PROPERTY and right.kind is PartKind.CONSTANT:
        return _boolean(written, _property_equals(left.place, right.value), left, right)
    one, other = left.run, right.run

    def run(values: Values) -> bool | None:
        first, second = one(values), other(values)
        if first is None:
            return True if second is None else None
        return second is not None and compare(first, second) == 0

    return _boolean(written, run, left, right)


def _property_equals(place: int, value: Value) -> Run:
    """Return the comparison of a property with a constant, the most common equality."""
    if value is None:
        return lambda values: values[place] is None
    if isinstance(value, str):

        def same(values: Values) -> bool | None:
            text = values[place]
            return None if text is None else text == value

        return same

    def run(values: Values) -> bool | None:
        text = values[place]
        return None if text is None else compare(text, value) == 0

    return run


_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def ordered(left: Part, sign: str, right: Part) -> Part:
    """Build ``left > right``, with this or another sign. Raises ``SqlError``."""
    for part in (left, right):
        if part.is_boolean or (part.kind is PartKind.CONSTANT and isinstance(part.value, str)):
            raise SqlError(f"{_RUNTIME}Value '{part}' cannot be compared.")
    written = ("(", left, f" {sign} ", right, ")")
    test, number = _ORDERS[sign], right.value
    if left.kind is PartKind.PROPERTY and isinstance(number, int):
        # The most common order has no calls in between.
        place = left.place

        def run_on_property(values: Values) -> bool | None:
            text = values[place]
            return None if text is None else test(number_of(text, number), number)

        return _boolean(written, run_on_property, left, right)
    one, other = left.run, right.run

    def run(values: Values) -> bool | None:
        first = one(values)
        if first is None:
            return None
        second = other(values)
        return None if second is None else test(order(first, second), 0)

    return _boolean(written, run, left, right)


def between(part: Part, low: Part, high: Part) -> Part:
    """Build ``part BETWEEN low AND high``. Raises ``SqlError``."""
    if low.kind is high.kind is PartKind.CONSTANT:
        if low.value is None or high.value is None:
            raise SqlError(f"{_RUNTIME}Illegal values of between, values can not be null!")
        try:
            is_reversed = compare(high.value, low.value) < 0
        except EvaluationError as error:
            wrapped = (
                _RUNTIME if str(error).startswith("java") else "java.lang.ClassCastException: "
            )
            raise SqlError(f"{wrapped}{error}") from error
        if is_reversed:
            raise SqlError(
                f"{_RUNTIME}Illegal values of between, left value({java_text(low.value)}) must less"
                f" than or equal to right value({java_text(high.value)})"
            )
    return _twice(part, both((ordered(part, ">=", low), ordered(part, "<=", high))))


def not_between(part: Part, low: Part, high: Part) -> Part:
    """Build ``part NOT BETWEEN low AND high``. Raises ``SqlError``."""
    return _twice(part, either((ordered(part, "<", low), ordered(part, ">", high))))


def _twice(part: Part, whole: Part) -> Part:
    """Return a part that has an operand twice, which must not be evaluated twice if it is nested.

    Nested operands are negations of what is no number, and therefore null.
    """
    if part.kind is PartKind.NEGATED and part.value is None:
        return _boolean((whole,), part.run, part)
    return whole


def among(part: Part, texts: Sequence[str], *, inverted: bool) -> Part:
    """Build ``part [NOT] IN (texts)``. Raises ``SqlError``."""
    if part.kind is not PartKind.PROPERTY:
        raise SqlError(f"{_RUNTIME}Expected a property for In expression, got: {part}")
    place, wanted = part.place, frozenset(texts)

    def run(values: Values) -> bool | None:
        text = values[place]
        return None if text is None else (text in wanted) is not inverted

    sign = "NOT IN" if inverted else "IN"
    return _boolean((part, f" {sign} ( ", ", ".join(texts), " )"), run, part)


_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def matching(part: Part, sign: str, text: str, *, inverted: bool) -> Part:
    """Build ``part [NOT] CONTAINS text`` or another test; false if either text is missing."""
    inner, test = part.run, _TESTS[sign]

    def run(values: Values) -> bool:
        if not text:
            return False
        value = inner(values)
        return isinstance(value, str) and test(value, text) is not inverted

    return _boolean((f"(NOT {sign} " if inverted else f"({sign} ", part, ")"), run, part)
