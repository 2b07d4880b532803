"""Values as texts for a page: whatever a message has, it is readable and harmless."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup, escape

from client.positions import known_instant

MAX_TEXT: Final = 2_000
"""Most characters of a value in a table or a sentence."""

MAX_BODY: Final = 64 * 1024
"""Most characters of a body that a page shows."""

MAX_HEX: Final = 4 * 1024
"""Most bytes of a body that are shown in hexadecimal."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's categories of characters that can't be seen, or that turn what is around them."""


def visible(text: str, most: int = MAX_TEXT, *, lines: bool = False) -> str:
    """Return a text with its invisible characters written as escapes, cut after ``most``.

    Args:
        lines: keep line ends and tabs.
    """
    kept = "\n\t" if lines else ""
    cut = text[:most]
    if not cut.isprintable():
        cut = "".join(
            char
            if char in kept or unicodedata.category(char) not in _HIDDEN
            else char.encode("unicode_escape", "surrogatepass").decode()
            for char in cut
        )
    left = len(text) - most
    return f"{cut}… ({left:,} more characters)" if left > 0 else cut


def finalize(value: object) -> object:
    """Return what a template prints for an expression: no value reaches a page unchecked."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    if isinstance(value, datetime):
        return moment(value)
    return visible(str(value))


def exact(value: str) -> Markup:
    """Return a text for a form, which has to come back as it is; escaped, but never cut."""
    return Markup(escape(value))  # noqa: S704 - it is escaped


def shown(text: str) -> Markup:
    """Return a text that ``visible`` has prepared, which may be long and have line ends."""
    return Markup(escape(text))  # noqa: S704 - it is escaped


def short(text: str) -> str:
    """Return a text for a narrow column."""
    return visible(text, 60)


def link(page: str, **arguments: object) -> Markup:
    """Return the relative address of a page; arguments without a value are left out."""
    given = {name: value for name, value in arguments.items() if value not in {None, ""}}
    query = urlencode(given, errors="surrogatepass")
    return exact(f"{page}?{query}" if query else page)


def moment(at: datetime | None) -> str:
    """Return a time in UTC, to the millisecond; empty for None."""
    if at is None:
        return ""
    return at.astimezone(UTC).isoformat(" ", "milliseconds").removesuffix("+00:00") + "Z"


def time_of(timestamp_ms: int) -> str:
    """Return RocketMQ's milliseconds since 1970 as a time; empty for a time that isn't set."""
    return moment(known_instant(timestamp_ms))


def ago(at: datetime | None) -> str:
    """Return how long ago a time is; empty for None."""
    return "" if at is None else f"{span(datetime.now(UTC) - at)} ago"


def span(length: timedelta | float) -> str:
    """Return a length of time in its largest unit; a float is in seconds."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def number(value: float | None) -> str:
    """Return a number with separators; a fraction of a small one has one digit."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:,.1f}"


def size(count: float) -> str:
    """Return bytes in a unit that suits them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def body_line(body: bytes, most: int = 160) -> str:
    """Return the begin of a body on one line; of one that isn't UTF-8, as hexadecimal."""
    try:
        # The cut may split a character, which has four bytes at most.
        decoder = codecs.getincrementaldecoder("utf-8")()
        text = decoder.decode(body[: most * 4], final=len(body) <= most * 4)
    except UnicodeDecodeError:
        return body[: most // 3].hex(" ") + ("…" if len(body) > most // 3 else "")
    return visible(text[:most]) + ("…" if len(text) > most or len(body) > most * 4 else "")


def body_views(body: bytes) -> list[tuple[str, str]]:
    """Return a body in the forms that it can have, the most telling first: (name, text)."""
    views: list[tuple[str, str]] = []
    if body and len(body) <= MAX_BODY * 16:
        for name, to_json in (("JSON", bytes), ("msgpack", _json_of_msgpack)):
            try:
                text = msgspec.json.format(to_json(body), indent=2).decode()
                views.append((name, visible(text, MAX_BODY, lines=True)))
            except (ValueError, TypeError, RecursionError):
                continue
    with suppress(UnicodeDecodeError):
        views.append(("text", visible(body.decode(), MAX_BODY, lines=True)))
    views.append(("hex", hex_dump(body)))
    return views


def _json_of_msgpack(body: bytes) -> bytes:
    value = msgspec.msgpack.decode(body)
    if not isinstance(value, dict | list):
        raise TypeError("a text of one character is a number in msgpack")
    return msgspec.json.encode(value)


def hex_dump(body: bytes) -> str:
    """Return the first bytes of a body as offsets, hexadecimal and ASCII."""
    rows = []
    for at in range(0, min(len(body), MAX_HEX), 16):
        part = body[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append(f"{at:06x}  {part.hex(' '):47}  {text}")
    if len(body) > MAX_HEX:
        rows.append(f"… ({len(body) - MAX_HEX:,} more bytes)")
    return "\n".join(rows)


def polyline(values: Iterable[float], width: int = 600, height: int = 80) -> str:
    """Return the points of a line for SVG, from the left to the right; empty for under two."""
    points = list(values)
    if len(points) < 2:
        return ""
    top = max(*points, 1e-9)
    step = width / (len(points) - 1)
    return " ".join(
        f"{at * step:.1f},{height - 2 - value / top * (height - 4):.1f}"
        for at, value in enumerate(points)
    )
