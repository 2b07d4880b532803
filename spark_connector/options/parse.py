"""Options from Spark's map of texts: known names only, any case, each value checked.

An unknown name is an error with the nearest known one; so is an option that is given twice under
two of its names with different values. Spark's own options are ignored.

An instant is milliseconds since 1970, an ISO-8601 text (without an offset: UTC), ``now``, or
relative to now: ``-1h``, ``-90s``, ``-2d``. A duration is a number of milliseconds or a number with
a unit, as Spark writes its own (cf. JavaUtils.timeStringAs).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from remoting.docs import DOCS
from remoting.settings import nearest
from spark_connector.errors import OptionError
from spark_connector.planning.positions import Instant

T = TypeVar("T")

PREFIX: Final = "rocketmq.client."
"""Options of the connections can be written with this prefix too, as Kafka's with ``kafka.``."""

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option.

    Attributes:
        name: as documentation writes it.
        parse: its value from a text; raises ValueError with what to write instead.
        default: when it isn't given.
        aliases: other names of it.
        passes_through: it may also be written behind ``rocketmq.client.``.
    """

    name: str
    parse: Callable[[str], T]
    default: T
    aliases: tuple[str, ...] = ()
    passes_through: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it goes by."""
        own = (self.name, *self.aliases)
        return (*own, *(PREFIX + name for name in own)) if self.passes_through else own


@dataclass(frozen=True, slots=True)
class Refusals:
    """Names that are known and not served.

    Attributes:
        hints: name -> what to do instead. Values never appear in the error: some are secrets.
        ignored: names that are Spark's own.
    """

    hints: Mapping[str, str]
    ignored: frozenset[str] = frozenset()


class OptionReader:
    """The options of one query.

    Args:
        given: as Spark hands them over.
        known: all there are.
        what: what reads them, for errors: ``source`` or ``sink``.
        format_name: of which format, for errors.

    Raises:
        OptionError: a name is unknown or refused, or there are two values for one option.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        known: Iterable[Option[Any]],
        refusals: Refusals,
        what: str,
        *,
        format_name: str = "rocketmq",
    ) -> None:
        self._what = what
        self._format = f"format {format_name}"
        self._texts: dict[str, tuple[str, str]] = {}
        # Spark hands names over in lower case: errors use the spelling of the documentation.
        options = {name.lower(): (option, name) for option in known for name in option.names}
        spellings = [name for _, name in options.values()]
        hints = {name.lower(): (name, hint) for name, hint in refusals.hints.items()}
        for name, text in given.items():
            lower = name.lower()
            if lower in options:
                option, spelling = options[lower]
                self._take(option.name, spelling, text)
            elif lower in hints:
                spelling, hint = hints[lower]
                raise OptionError(f"{self._format} refuses the option {spelling!r}", hint)
            elif lower not in refusals.ignored:
                raise OptionError(
                    f"the {what} of {self._format} has no option {name!r}"
                    f"{nearest(name, spellings)}",
                    f"correct or remove it; all options are in {DOCS}spark.md",
                )

    def get(self, option: Option[T]) -> T:
        """An option's value. Raises OptionError when its text isn't one."""
        name, text = self._texts.get(option.name, ("", None))
        if text is None:
            return option.default
        try:
            return option.parse(text)
        except ValueError as error:
            raise OptionError(
                f"the option {name} of {self._format} can't be {_short(text)}", str(error)
            ) from None

    def given(self, option: Option[Any]) -> bool:
        """Whether the user has set it."""
        return option.name in self._texts

    def spelling(self, option: Option[Any]) -> str:
        """The name under which it was given, as documentation spells it, else its own."""
        return self._texts.get(option.name, (option.name, ""))[0]

    def at_most_one(self, *options: Option[Any]) -> None:
        """Raises OptionError when several of these are given."""
        found = [self.spelling(option) for option in options if self.given(option)]
        if len(found) > 1:
            raise OptionError(
                f"the options {' and '.join(found)} contradict each other", "give one of them"
            )

    def _take(self, canonical: str, name: str, text: object) -> None:
        earlier = self._texts.get(canonical)
        value = "" if text is None else str(text)
        if earlier is not None and earlier[1] != value:
            raise OptionError(
                f"the options {earlier[0]} and {name} mean the same and have different values",
                "give one of them",
            )
        self._texts[canonical] = (name, value)


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def text(value: str) -> str:
    """A text that isn't empty."""
    if not value.strip():
        raise ValueError("it is empty: give a value or leave the option out")
    return value.strip()


def boolean(value: str) -> bool:
    """``true`` or ``false``."""
    lower = value.strip().lower()
    if lower not in _TRUE | _FALSE:
        raise ValueError("write true or false")
    return lower in _TRUE


def integer(least: int, most: int = 2**62) -> Callable[[str], int]:
    """Whole numbers within bounds."""

    def parse(value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise ValueError("write a whole number") from None
        if not least <= number <= most:
            raise ValueError(f"write a number from {least} to {most}")
        return number

    return parse


def choice(kind: Callable[[str], T], *values: str) -> Callable[[str], T]:
    """One of some words, in any case; ``kind`` makes the value of it."""

    def parse(value: str) -> T:
        word = value.strip().lower()
        for known in values:
            if word == known.lower():
                return kind(known)
        raise ValueError(f"write {', '.join(values[:-1])} or {values[-1]}")

    return parse


def byte_count(value: str) -> int:
    """Bytes: a number, or one with k, m or g (1024s)."""
    lower = value.strip().lower().removesuffix("b").removesuffix("i")
    factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(lower[-1:], 1)
    digits = lower[:-1] if factor > 1 else lower
    if not digits.isdecimal() or not 0 < int(digits) * factor <= 2**62:
        raise ValueError("write a number of bytes above 0, e.g. 67108864 or 64m")
    return int(digits) * factor


def names(value: str) -> tuple[str, ...]:
    """Names between commas, each once."""
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not found:
        raise ValueError("it names nothing: write names between commas")
    return found


_UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "sec": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_MAX_MS: Final = 2**62


def parse_duration_ms(text: str) -> int:
    """Milliseconds of ``250``, ``30s``, ``15m``. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip().lower())
    unit = match and _UNIT_MS.get(match[2] or "ms")
    if not match or not unit:
        raise ValueError("write milliseconds, or a number with ms, s, m, h or d, e.g. '30s'")
    value = float(match[1]) * unit
    if value > _MAX_MS:
        raise ValueError("that is longer than anything lasts")
    return int(value)


def parse_instant(text: str | int) -> Instant:
    """See the module's text. Raises ValueError."""
    if isinstance(text, int):
        return _epoch(text)
    text = text.strip()
    if text.isdecimal():
        return _epoch(int(text))
    if text.lower() == "now":
        return Instant(0, relative=True)
    if text.startswith("-"):
        return Instant(-parse_duration_ms(text[1:]), relative=True)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "write milliseconds since 1970, ISO-8601 such as '2026-01-31T08:00:00+01:00', or a "
            "duration before now such as '-1h'"
        ) from None
    return Instant(
        int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    )


def _epoch(ms: int) -> Instant:
    if not 0 <= ms <= _MAX_MS:
        raise ValueError("milliseconds since 1970 can't be negative, nor that large")
    return Instant(ms)
