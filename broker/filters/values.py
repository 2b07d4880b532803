"""The values of an expression, and how RocketMQ compares them (cf. ComparisonExpression).

A value is a text, a number, true, false or null (None). To compare a text with a number, the text
is parsed as a number of the same type: int32, int64 (``Long``) or double.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final, TypeAlias

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


def constant(text: str) -> int:
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
    found = _DOUBLE.fullmatch(bare)
    if not bare:
        raise EvaluationError("java.lang.NumberFormatException: empty String")
    if found is None:
        raise EvaluationError(f'java.lang.NumberFormatException: For input string: "{text}"')
    if found["decimal"] is not None:
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
