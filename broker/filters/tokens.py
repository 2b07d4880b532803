"""The tokens of an SQL92 expression, and the errors where there is none.

cf. SelectorParserTokenManager, SimpleCharStream, TokenMgrError. Java counts UTF-16 units, so
``Tokens.text`` has one character for each of them.
"""

from __future__ import annotations

import re
from array import array
from typing import Final, NamedTuple

from broker.filters.values import SqlError

EOF: Final = "<EOF>"
DECIMAL: Final = "<DECIMAL_LITERAL>"
FLOAT: Final = "<FLOATING_POINT_LITERAL>"
STRING: Final = "<STRING_LITERAL>"
ID: Final = "<ID>"

KEYWORDS: Final = (
    *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
    *("CONTAINS", "STARTSWITH", "ENDSWITH"),
)
SYMBOLS: Final = ("=", "<>", ">", ">=", "<", "<=", "(", ",", ")", "+", "-")
ORDER: Final = {
    kind: place for place, kind in enumerate((*KEYWORDS, DECIMAL, FLOAT, STRING, ID, *SYMBOLS))
}
"""The kinds of tokens in the order in which errors list them."""

_BLANK: Final = re.compile(
    r"(?:[ \t\n\r\f]|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*"
)
# A float before a decimal: the longest match wins.
_TOKEN: Final = re.compile(
    r"(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<decimal>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'(?:''|[^'])*')"
    r"|(?P<id>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<symbol><>|>=|<=|[=<>(),+-])"
)
_KINDS: Final = {"float": FLOAT, "decimal": DECIMAL, "string": STRING}
_TAB: Final = 8

_ESCAPES: Final = str.maketrans(
    {
        "\0": "",
        "\b": "\\b",
        "\t": "\\t",
        "\n": "\\n",
        "\f": "\\f",
        "\r": "\\r",
        '"': '\\"',
        "'": "\\'",
        "\\": "\\\\",
    }
)
_UNPRINTABLE: Final = re.compile("[^ -~]")


class Token(NamedTuple):
    """A token: its kind, its text, and where it begins."""

    kind: str
    image: str
    at: int


class Tokens:
    """Reads the tokens of a text, one at a time.

    Attributes:
        text: the expression, with one character for each UTF-16 unit.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        if not text.isascii() and max(text) > "\uffff":
            units = array("H", text.encode("utf-16", "surrogatepass")[2:])
            text = "".join(map(chr, units))
        self.text = text

    def read(self, at: int) -> tuple[Token, int]:
        """Return the next token at or after a place, and where it ends.

        Raises:
            SqlError: no token begins where the blanks end.
        """
        blank = _BLANK.match(self.text, at)
        assert blank is not None
        begin = blank.end()
        if begin == len(self.text):
            return Token(EOF, EOF, max(begin - 1, 0)), begin
        found = _TOKEN.match(self.text, begin)
        if found is None:
            raise self._lexical_error(begin)
        image, group = found[0], found.lastgroup
        assert group is not None
        kind = _KINDS.get(group, image)
        if group == "id":
            kind = image.upper() if image.upper() in KEYWORDS else ID
        return Token(kind, image, begin), found.end()

    def place(self, at: int) -> tuple[int, int]:
        """Return line and column of a character, from 1; 0 and 0 for an empty text."""
        if not self.text:
            return 0, 0
        line, column, before = 1, 0, ""
        for sign in self.text[: at + 1]:
            column += 1
            if before == "\n" or (before == "\r" and sign != "\n"):
                line, column = line + 1, 1
            if sign == "\t":
                column += _TAB - 1 - (column - 1) % _TAB
            before = sign
        return line, column

    def _lexical_error(self, begin: int) -> SqlError:
        """Return the error for a character with which no token begins."""
        text = self.text
        # The character at ``end`` is the one that makes it impossible.
        if text[begin] == "'" or text.startswith("/*", begin):
            end = len(text)
        else:
            end = begin + (text[begin] in "./")
        if end + 1 >= len(text):
            line, column = self.place(len(text) - 1)
            line, column = (line + 1, 0) if text[-1] in "\r\n" else (line, column + 1)
            encountered = f"{EOF} "
            after = text[begin:] if begin + 1 < len(text) else ""
        else:
            line, column = self.place(end)
            encountered = f'"{escaped(text[end])}" ({ord(text[end])}), '
            after = text[begin:end]
        return SqlError(
            f"org.apache.rocketmq.filter.parser.TokenMgrError: Lexical error at line {line}, "
            f'column {column}.  Encountered: {encountered}after : "{escaped(after)}"'
        )


def escaped(text: str) -> str:
    """Return a text as errors show it (cf. ParseException.addEscapes)."""
    return _UNPRINTABLE.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text.translate(_ESCAPES))


def unquoted(image: str) -> str:
    """Return the value of a string literal."""
    value = image[1:-1].replace("''", "'")
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
