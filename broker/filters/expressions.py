"""The parts of an expression and their values: what is checked, and what evaluates them.

A value is a text, a number, true, false or null (None). To compare a text with a number, the text
is parsed as a number of the same type: int32, int64 (``Long``) or double (cf.
ComparisonExpression).

The functions that build a part from smaller ones, when an expression is compiled, make the checks
that RocketMQ makes then (cf. ComparisonExpression, LogicExpression, UnaryExpression). A part is
evaluated with the message's values of the properties that the expression names.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from broker.limits import MAX_FILTER_DEPTH, MAX_REMARK_LENGTH

# --- values

Number: TypeAlias = int | float
Value: TypeAlias = str | bool | Number | None

_SHORT: Final = 10
"""Texts of fewer digits are integers of any type."""

_MAX_INT32: Final = (1 << 31) - 1
_MAX_INT64: Final = (1 << 63) - 1

_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
_JAVA_BLANKS: Final = "".join(map(chr, range(33)))
_LEAST_PLAIN: Final = 1e-3
_LEAST_SCIENTIFIC: Final = 1e7


class SqlError(ValueError):
    """An expression is wrong; the text is RocketMQ's where it has one."""


class EvaluationError(ValueError):
    """An expression can't be evaluated for a message, which then doesn't match."""


class Long(int):
    """An integer of 64 bits, whatever its value."""


def integer_constant(text: str) -> int:
    """Return the value of an integer literal. Raises ``SqlError`` above 64 bits."""
    digits = text.rstrip("lL")
    # The longest first: Python takes long for thousands of digits.
    if len(digits) > len(str(_MAX_INT64)) or (number := int(digits)) > _MAX_INT64:
        raise SqlError(f'java.lang.NumberFormatException: For input string: "{digits}"')
    return number if number <= _MAX_INT32 else Long(number)


def double_constant(text: str) -> float:
    """Return the value of a floating-point literal. Raises ``SqlError`` for 0 and infinity."""
    number = float(text)
    if math.isinf(number):
        raise SqlError(f"java.lang.RuntimeException: {text} is greater than 1.7976931348623157E308")
    if number == 0:
        raise SqlError(f"java.lang.RuntimeException: {text} is less than 4.9E-324")
    return number


def negated(number: Number) -> Number:
    """Return the negative of a number, of the same type."""
    return Long(-number) if isinstance(number, Long) else -number


def integer_of(text: str, most: int) -> int:
    """Parse a text as an integer from ``-most - 1`` to ``most``. Raises ``EvaluationError``."""
    if len(text) < _SHORT and text.isascii() and text.isdecimal():
        return int(text)
    digits = text if text.isdecimal() else text[1:] if text[:1] in {"+", "-"} else ""
    if digits.isdecimal() and max(digits) <= "\uffff":
        try:
            number = int(text)
        except ValueError:  # thousands of digits
            number = most + 1
        if -most - 1 <= number <= most:
            return number
    raise EvaluationError(f'java.lang.NumberFormatException: For input string: "{text}"')


def double_of(text: str) -> float:
    """Parse a text as a double, by Java's syntax. Raises ``EvaluationError``."""
    bare = text.strip(_JAVA_BLANKS)
    match = _DOUBLE.fullmatch(bare)
    if not bare:
        raise EvaluationError("java.lang.NumberFormatException: empty String")
    if match is None:
        raise EvaluationError(f'java.lang.NumberFormatException: For input string: "{text}"')
    if match["decimal"] is not None:
        return float(bare.rstrip("fFdD"))
    if bare[-1] in "Ny":
        return float(bare)
    hexadecimal = bare.rstrip("fFdD") if bare[-1] in "fFdD" else bare
    try:
        return float.fromhex(hexadecimal)
    except OverflowError:
        return math.copysign(math.inf, -1.0 if bare[0] == "-" else 1.0)


def compare_doubles(left: float, right: float) -> int:
    """Compare like Double.compare: NaN equals itself and is above all, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        signs = math.copysign(1.0, left), math.copysign(1.0, right)
        return 0 if left or signs[0] == signs[1] else -1 if signs[0] < signs[1] else 1
    return int(math.isnan(left)) - int(math.isnan(right))


def number_of(text: str, other: Number) -> Number:
    """Parse a text as a number of the other one's type. Raises ``EvaluationError``."""
    if isinstance(other, float):
        return double_of(text)
    return integer_of(text, _MAX_INT64 if isinstance(other, Long) else _MAX_INT32)


def compare(left: str | Number, right: str | Number) -> int:
    """Return a number below, equal to or above 0 (cf. ComparisonExpression.__compare).

    Raises:
        EvaluationError: a text is no number of the other one's type, or a boolean is compared with
            a text.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        left = left.lower() == "true" if isinstance(right, bool) else number_of(left, right)
    elif isinstance(right, str):
        if isinstance(left, bool):
            raise EvaluationError(
                "class java.lang.Boolean cannot be cast to class java.lang.String "
                "(java.lang.Boolean and java.lang.String are in module java.base of loader "
                "'bootstrap')"
            )
        right = number_of(right, left)
    elif isinstance(left, bool) != isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def order(left: str | Number, right: str | Number) -> int:
    """Compare for ``>``, ``>=``, ``<`` and ``<=``, which take two texts for numbers.

    Raises:
        EvaluationError: as above, or a text is no number.
    """
    if isinstance(left, str) and isinstance(right, str):
        try:
            return compare_doubles(double_of(left), double_of(right))
        except EvaluationError as error:
            raise EvaluationError(
                f"It's illegal to compare string by '>=', '>', '<', '<='. lv={left}, rv={right}"
            ) from error
    return compare(left, right)


def text_of(value: Value) -> str:
    """Return a constant as RocketMQ's errors show it (cf. ConstantExpression.toString)."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    return java_text(value)


def java_text(value: Value) -> str:
    """Return the text of Java's ``String.valueOf``; doubles must be positive."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, float):
        return str(int(value)) if isinstance(value, int) else str(value)
    if _LEAST_PLAIN <= value < _LEAST_SCIENTIFIC:
        return repr(value)
    shortest = repr(value).partition("e")[0].replace(".", "").strip("0")
    return f"{shortest[0]}.{shortest[1:] or '0'}E{Decimal(repr(value)).adjusted()}"


# --- parts

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
        for run_part in runs:
            value: bool | None = run_part(values)
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
    run_left, run_right = left.run, right.run

    def run(values: Values) -> bool | None:
        first, second = run_left(values), run_right(values)
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
    run_left, run_right = left.run, right.run

    def run(values: Values) -> bool | None:
        first = run_left(values)
        if first is None:
            return None
        second = run_right(values)
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
    place, accepted = part.place, frozenset(texts)

    def run(values: Values) -> bool | None:
        text = values[place]
        return None if text is None else (text in accepted) is not inverted

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
