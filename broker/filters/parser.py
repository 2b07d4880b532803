"""The grammar of SQL92 expressions (cf. SelectorParser of 5.3.3).

What follows the first complete expression is ignored, as in RocketMQ, but the token behind it has
to be one. Of a wrong expression the error lists the tokens that could stand there, like RocketMQ's
own parser, which JavaCC made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.filters import expressions as made
from broker.filters.expressions import Part
from broker.filters.tokens import (
    DECIMAL,
    EOF,
    FLOAT,
    ID,
    ORDER,
    STRING,
    Token,
    Tokens,
    escaped,
    unquoted,
)
from broker.filters.values import SqlError, constant, double_constant
from broker.limits import MAX_FILTER_DEPTH

_OPERAND: Final = ("NOT", "TRUE", "FALSE", "NULL", DECIMAL, FLOAT, STRING, ID, "(", "-")
_COMPARISONS: Final = (">", ">=", "<", "<=")
_MATCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_EQUALITIES: Final = ("AND", "OR", "IS", "=", "<>")
_GO_ON: Final = (*_EQUALITIES, "NOT", "BETWEEN", "IN", *_COMPARISONS, *_MATCHES)
_LITERALS: Final = {"TRUE": True, "FALSE": False, "NULL": None}


class _Unexpected(SqlError):
    """The grammar has no place for a token."""


class Parser:
    """Parses one expression.

    Attributes:
        names: the properties that it names, by their places.
        operands: the number of literals and properties in it.
    """

    __slots__ = ("_behind_null", "_depth", "_end", "_next", "_tokens", "names", "operands")

    def __init__(self, text: str) -> None:
        self.names: dict[str, int] = {}
        self.operands = 0
        self._tokens = Tokens(text)
        self._depth = 0
        self._next: Token | None = None
        self._end = 0
        self._behind_null: Token | None = None

    def parse(self) -> Part:
        """The expression. Raises ``SqlError``."""
        return made.as_boolean(self._or())

    # tokens

    def _peek(self) -> Token:
        """The next token, which is read when it is looked at."""
        if self._next is None:
            self._next, self._end = self._tokens.read(self._end)
        return self._next

    @property
    def _kind(self) -> str:
        return self._peek().kind

    def _second_kind(self) -> str:
        """Of the token behind the next one."""
        return self._tokens.read(self._end)[0].kind

    def _take(self, kind: str, *others: str) -> Token:
        """Consume the next token, of this kind; ``others`` could stand there as well."""
        token = self._peek()
        if token.kind != kind:
            raise self._unexpected(kind, *others)
        self._next = None
        return token

    def _takes(self, kind: str) -> bool:
        """Consume the next token if it is of this kind."""
        if self._kind == kind:
            self._next = None
            return True
        return False

    def _unexpected(self, *expected: str, last: str = "") -> _Unexpected:
        token = self._peek()
        kind = token.kind
        line, column = self._tokens.place(token.at)
        image = EOF if kind == EOF else f' {_named(kind)} "{escaped(token.image)} "'
        wanted = [*sorted(expected, key=ORDER.__getitem__), *((last,) if last else ())]
        lines = "".join(f"{_named(one)} ...\n    " for one in wanted)
        return _Unexpected(
            f'org.apache.rocketmq.filter.parser.ParseException: Encountered "{image}" at line '
            f"{line}, column {column}.\nWas expecting{' one of' if len(wanted) > 1 else ''}:\n"
            f"    {lines}"
        )

    # rules

    def _or(self) -> Part:
        return self._chained("OR", self._and, made.either)

    def _and(self) -> Part:
        return self._chained("AND", self._equality, made.both)

    def _chained(
        self, kind: str, operand: Callable[[], Part], make: Callable[[list[Part]], Part]
    ) -> Part:
        """``a OR b OR c``: one part, however many there are."""
        parts = [operand()]
        while self._takes(kind):
            right = operand()
            if len(parts) == 1:
                parts[0] = made.as_boolean(parts[0])
            parts.append(made.as_boolean(right))
        return parts[0] if len(parts) == 1 else make(parts)

    def _equality(self) -> Part:
        left = self._comparison()
        while True:
            if self._takes("="):
                left = made.equal(left, self._comparison())
            elif self._takes("<>"):
                left = made.invert(made.equal(left, self._comparison()))
            elif self._kind == "IS":
                is_null = self._second_kind() == "NULL"
                self._take("IS")
                if not is_null:
                    self._take("NOT", "NULL")
                self._take("NULL")
                left = made.is_null(left)
                if not is_null:
                    left = made.invert(left)
                # No comparison can follow.
                self._behind_null = self._peek()
            else:
                return left

    def _comparison(self) -> Part:
        left = self._unary()
        while True:
            kind = self._kind
            if kind in _COMPARISONS:
                self._take(kind)
                left = made.ordered(left, kind, self._unary())
                continue
            inverted = kind == "NOT"
            if inverted:
                kind = self._second_kind()
                if kind not in {"BETWEEN", "IN", *_MATCHES}:
                    raise self._unexpected("BETWEEN", "IN", *_COMPARISONS, *_MATCHES)
                self._take("NOT")
            if kind in _MATCHES:
                self._take(kind)
                left = made.matching(left, kind, self._text(), inverted=inverted)
            elif kind == "BETWEEN":
                self._take(kind)
                low = self._unary()
                self._take("AND")
                make = made.not_between if inverted else made.between
                left = make(left, low, self._unary())
            elif kind == "IN":
                self._take(kind)
                left = made.among(left, self._texts(), inverted=inverted)
            else:
                return left

    def _unary(self) -> Part:
        """An operand with the signs before it: a plus does nothing."""
        signs: list[str] = []
        plus: tuple[Token, int] | None = None
        while self._kind in {"+", "-", "NOT"}:
            if self._kind == "+" and plus is None:
                plus = self._peek(), self._end
            signs.append(self._take(self._kind).kind)
            if self._depth + len(signs) > MAX_FILTER_DEPTH:
                raise made.too_deep()
        self._depth += len(signs) + 1
        try:
            part = self._primary()
        except _Unexpected:
            # JavaCC first looks whether an operand follows, and names the plus otherwise.
            if plus is None:
                raise
            self._next, self._end = plus
            raise self._unexpected(*_OPERAND) from None
        self._depth -= len(signs) + 1
        for sign in reversed(signs):
            if sign == "-":
                part = made.negate(part)
            elif sign == "NOT":
                part = made.invert(made.as_boolean(part))
        return part

    def _primary(self) -> Part:
        kind = self._kind
        self.operands += kind != "("
        if kind == ID:
            name = self._take(kind).image
            return made.variable(name, self.names.setdefault(name, len(self.names)))
        if kind == STRING:
            return made.constant(self._text())
        if kind == DECIMAL:
            return made.constant(constant(self._take(kind).image))
        if kind == FLOAT:
            return made.constant(double_constant(self._take(kind).image))
        if kind in _LITERALS:
            self._take(kind)
            return made.constant(_LITERALS[kind])
        if kind != "(":
            raise self._unexpected(*_OPERAND, last="+")
        if self._depth > MAX_FILTER_DEPTH:
            raise made.too_deep()
        self._take(kind)
        part = self._or()
        self._take(")", *(_EQUALITIES if self._peek() is self._behind_null else _GO_ON))
        return part

    def _text(self) -> str:
        return unquoted(self._take(STRING).image)

    def _texts(self) -> list[str]:
        """The list of IN."""
        self._take("(")
        texts = [self._text()]
        while self._takes(","):
            texts.append(self._text())
        self._take(")", ",")
        return texts


def _named(kind: str) -> str:
    """A kind of token as errors name it."""
    return kind if kind.startswith("<") and kind.endswith(">") and kind != "<>" else f'"{kind}"'
