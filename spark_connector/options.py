"""Declaring and parsing the options of the source, the sink and the store format.

An option is a dataclass field made by ``option`` with a name, a parser, a default and aliases.
``OptionReader`` fills such dataclasses from the strings that Spark passes. Names are
case-insensitive. An unknown name is an error that suggests the nearest known one; giving one
option under two names with different values is an error too. Spark's own options are ignored.

A duration is a number of milliseconds or a number with a unit, in the syntax of Spark's own
durations (cf. JavaUtils.timeStringAs).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Generic, TypeVar

from remoting.protocol.message.tags import TagExpression
from remoting.protocol.names import validate_group, validate_topic
from remoting.protocol.signing import Credentials
from remoting.runtime import DOCS
from remoting.runtime.settings import ConfigError, nearest
from remoting.security.credentials import CredentialsSource, Signer, from_environment
from remoting.security.tls import Tls, TlsError, client_tls, tls_from_environment
from spark_connector.connections import Lease, lease
from spark_connector.errors import OptionError
from spark_connector.limits import CONNECT_TIMEOUT

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

PREFIX: Final = "rocketmq.client."
"""Connection options are accepted with this prefix too, like ``kafka.`` in Spark's Kafka source."""

NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"
MAX_DURATION_MS: Final = 86_400_000
MAX_RETRIES: Final = 1000

_OF_SPARK: Final = {"checkpointlocation", "queryname", "outputmode", "__partition_columns"}
"""Options that Spark adds to those of the user, in lower case."""

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option.

    Attributes:
        name: the name, spelled as in the documentation.
        parse: converts a string to the value; raises ValueError with what to write instead.
        default: the value when the option isn't given.
        aliases: other accepted names.
        passes_through: whether each name is also accepted with the prefix ``rocketmq.client.``.
    """

    name: str
    parse: Callable[[str], T]
    default: T
    aliases: tuple[str, ...] = ()
    passes_through: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All accepted names."""
        own = (self.name, *self.aliases)
        return (*own, *(PREFIX + name for name in own)) if self.passes_through else own


def option(
    name: str, parse: Callable[[str], T], default: T, *aliases: str, passes_through: bool = False
) -> T:
    """Return a dataclass field that is set by an option; see ``Option`` for the arguments."""
    declared = Option(name, parse, default, aliases, passes_through)
    made: T = field(default=default, metadata={"option": declared})
    return made


def options_of(kind: Any) -> dict[str, Option[Any]]:
    """Return the options that a dataclass declares, by field name."""
    return {one.name: one.metadata["option"] for one in fields(kind) if "option" in one.metadata}


class OptionReader:
    """The options of one query.

    Args:
        given: option names and values as passed by Spark.
        known: all options that may be given.
        what: ``source`` or ``sink``, for errors.
        refusals: unsupported option names, and what to do instead. Their values are never put
            into the error, because some are secrets.
        format_name: the name of the format, for errors.

    Raises:
        OptionError: a name is unknown or refused, or there are two values for one option.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        known: Iterable[Option[Any]],
        what: str,
        *,
        refusals: Mapping[str, str],
        format_name: str = "rocketmq",
    ) -> None:
        self._format = f"format {format_name}"
        self._options = {option.name: option for option in known}
        self._texts: dict[str, tuple[str, str]] = {}
        # Spark passes names in lower case: errors use the spelling of the documentation.
        canonical = {
            name.lower(): (option.name, name)
            for option in self._options.values()
            for name in option.names
        }
        hints = {name.lower(): (name, hint) for name, hint in refusals.items()}
        for name, text in given.items():
            lower = name.lower()
            if lower in canonical:
                self._take(*canonical[lower], text)
            elif lower in hints:
                spelling, hint = hints[lower]
                raise OptionError(f"{self._format} refuses the option {spelling!r}", hint)
            elif lower not in _OF_SPARK:
                raise OptionError(
                    f"the {what} of {self._format} has no option {name!r}"
                    f"{nearest(name, [spelling for _, spelling in canonical.values()])}",
                    f"correct or remove it; all options are in {DOCS}spark.md",
                )

    @property
    def is_empty(self) -> bool:
        """Whether the user has set no option at all."""
        return not self._texts

    def read(self, kind: Callable[..., T], **others: Any) -> T:
        """Return an instance of an options dataclass. Raises OptionError.

        Args:
            kind: the dataclass.
            others: values of fields that are not read from an option of the same name.
        """
        options = options_of(kind)
        return kind(
            **{name: self.get(declared.name) for name, declared in options.items()} | others
        )

    def get(self, option: str) -> Any:
        """Return an option's value, or its default. Raises OptionError if it can't be parsed."""
        declared = self._options[option]
        if option not in self._texts:
            return declared.default
        name, text = self._texts[option]
        try:
            return declared.parse(text)
        except ValueError as error:
            shown = text if len(text) <= 80 else text[:77] + "..."
            raise OptionError(
                f"the option {name} of {self._format} can't be {shown!r}", str(error)
            ) from None

    def given(self, option: str) -> bool:
        """Return whether the user has set an option, under any of its names."""
        return option in self._texts

    def one_of(self, *options: str) -> Any:
        """Return the value of the option that is given, or None. Raises OptionError for several."""
        given = [option for option in options if option in self._texts]
        if len(given) > 1:
            names = " and ".join(self._texts[option][0] for option in given)
            raise OptionError(f"the options {names} contradict each other", "give one of them")
        return self.get(given[0]) if given else None

    def _take(self, canonical: str, name: str, text: object) -> None:
        earlier = self._texts.get(canonical)
        value = "" if text is None else str(text)
        if earlier is not None and earlier[1] != value:
            raise OptionError(
                f"the options {earlier[0]} and {name} mean the same and have different values",
                "give one of them",
            )
        self._texts[canonical] = (name, value)


# --- values


def text(value: str) -> str:
    """Return a string without surrounding white space. Raises ValueError if it is empty."""
    if not value.strip():
        raise ValueError("it is empty: give a value or leave the option out")
    return value.strip()


def boolean(value: str) -> bool:
    """Parse ``true``, ``yes``, ``on``, ``1``, or their opposites. Raises ValueError."""
    lower = value.strip().lower()
    if lower not in _TRUE | _FALSE:
        raise ValueError("write true or false")
    return lower in _TRUE


def integer(least: int, most: int = 2**62) -> Callable[[str], int]:
    """Return a parser of integers from ``least`` to ``most``, both included."""

    def parse(value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise ValueError("write a whole number") from None
        if not least <= number <= most:
            raise ValueError(f"write a number from {least} to {most}")
        return number

    return parse


def choice(values: Mapping[str, T]) -> Callable[[str], T]:
    """Return a parser that maps the keys of ``values``, in any case, to their values."""
    by_lower = {word.lower(): value for word, value in values.items()}
    words = list(values)

    def parse(value: str) -> T:
        word = value.strip().lower()
        if word not in by_lower:
            raise ValueError(f"write {', '.join(words[:-1])} or {words[-1]}")
        return by_lower[word]

    return parse


def word_of(kind: type[E]) -> Callable[[str], E]:
    """Return a parser for the values of an enumeration, in any case."""
    return choice({member.value: member for member in kind})


def byte_count(value: str) -> int:
    """Parse a number of bytes, optionally with k, m or g (powers of 1024). Raises ValueError."""
    lower = value.strip().lower().removesuffix("b").removesuffix("i")
    factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(lower[-1:], 1)
    digits = lower[:-1] if factor > 1 else lower
    if not digits.isdecimal() or not 0 < int(digits) * factor <= 2**62:
        raise ValueError("write a number of bytes above 0, e.g. 67108864 or 64m")
    return int(digits) * factor


def topics(value: str) -> tuple[str, ...]:
    """Parse topic names separated by commas, dropping repeated ones. Raises ValueError."""
    names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not names:
        raise ValueError("it is empty: write names separated by commas")
    for name in names:
        validate_topic(name)
    return names


def group(value: str) -> str:
    """Return the name of a consumer or producer group. Raises ValueError if it is invalid."""
    validate_group(value.strip())
    return value.strip()


def tags(value: str) -> str:
    """Return the canonical text of a tag expression, such as ``A || B``."""
    return TagExpression.parse(value.strip()).text


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
MAX_MS: Final = 2**62


def parse_duration_ms(text: str) -> int:
    """Parse a duration such as ``250``, ``30s`` or ``15m`` to milliseconds. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip().lower())
    unit = match and _UNIT_MS.get(match[2] or "ms")
    if not match or not unit:
        raise ValueError("write milliseconds, or a number with ms, s, m, h or d, e.g. '30s'")
    value = float(match[1]) * unit
    if value > MAX_MS:
        raise ValueError(f"write at most {MAX_MS} milliseconds")
    return int(value)


def duration(value: str) -> float:
    """Parse a duration such as ``250``, ``30s`` or ``15m`` to seconds. Raises ValueError."""
    return parse_duration_ms(value) / 1000


def wait(value: str) -> float:
    """Parse a duration of 1 ms to one day to seconds. Raises ValueError."""
    milliseconds = parse_duration_ms(value)
    if not 0 < milliseconds <= MAX_DURATION_MS:
        raise ValueError("write a duration from 1 ms to 1d")
    return milliseconds / 1000


def addresses(value: str) -> tuple[str, ...]:
    """Parse ``host:port`` addresses separated by ``;`` or ``,``. Raises ValueError."""
    parts = tuple(part.strip() for part in value.replace(",", ";").split(";") if part.strip())
    if not parts:
        raise ValueError("write host:port, several separated by ';'")
    for address in parts:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"write host:port instead of {address!r}")
    return tuple(dict.fromkeys(parts))


# --- options of both source and sink


class OnDecodeError(StrEnum):
    """What happens to a message whose body can't be decoded."""

    FAIL = "fail"
    NULL = "null"
    RAW = "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How name servers and brokers are reached; times in seconds.

    Attributes:
        name_servers: name server addresses, tried one after the other.
        request_timeout: the timeout of one request.
        retries: attempts after the first one, for the requests of the driver.
        retry_interval: the pause before the second attempt; it doubles from there.
        connection_idle: a connection is closed after it has been unused for this long.
        credentials: what requests are signed with, the keys or the path of a file; None: unsigned.
        tls: how to connect with TLS; None: without it.
    """

    name_servers: tuple[str, ...] = option(
        "nameServer", addresses, (), "namesrvAddr", "nameServers", passes_through=True
    )
    request_timeout: float = option(
        "requestTimeoutMs", wait, 10.0, "pullTimeoutMs", passes_through=True
    )
    retries: int = option("fetchOffset.numRetries", integer(0, MAX_RETRIES), 3)
    retry_interval: float = option("fetchOffset.retryIntervalMs", wait, 0.2)
    connection_idle: float = option("connectionIdleMs", wait, 300.0, passes_through=True)
    credentials: CredentialsSource | None = None
    tls: Tls | None = None

    def lease(self, *, connect_timeout: float = CONNECT_TIMEOUT) -> Lease:
        """Return a function that leases connections from this process's cache."""
        return partial(
            lease,
            idle_timeout=self.connection_idle,
            connect_timeout=connect_timeout,
            credentials=self.credentials,
            tls=self.tls,
        )

    @classmethod
    def of(cls, reader: OptionReader) -> ConnectionOptions:
        """Read the connection options of a query. Raises OptionError.

        Name servers, credentials and settings of TLS that are not given are taken from the
        environment: ``NAMESRV_ADDR``, and what ``remoting.security`` reads there.
        """
        options = reader.read(cls, credentials=_credentials(reader), tls=_tls(reader))
        if options.name_servers:
            return options
        return replace(options, name_servers=_from_environment(reader.is_empty))


SECRETS: Final = ("accessKey", "secretKey", "securityToken", "tlsKeyPassword")
"""Options whose values are secret."""

CREDENTIALS_OPTIONS: Final = tuple(
    Option(name, str, "", passes_through=True)
    for name in ("credentialsFile", "accessKey", "secretKey", "securityToken")
)


TLS_OPTIONS: Final[tuple[Option[Any], ...]] = (
    Option("tls", boolean, None, passes_through=True),
    *(
        Option(name, str, "", passes_through=True)
        for name in ("tlsCa", "tlsCert", "tlsKey", "tlsKeyPassword")
    ),
    Option("tlsCheckHostname", boolean, True, passes_through=True),
)


def _tls(reader: OptionReader) -> Tls | None:
    switch, ca, cert, key, password, check_hostname = (
        reader.get(declared.name) for declared in TLS_OPTIONS
    )
    source = tls_from_environment()
    if any(reader.given(declared.name) for declared in TLS_OPTIONS):
        parts = {"ca": ca, "cert": cert, "key": key, "key_password": password}
        given = {name: value for name, value in parts.items() if value}
        source = switch is not False and {**given, "check_hostname": check_hostname}
    try:
        settings = client_tls(source)
    except TlsError as error:
        raise OptionError(str(error)) from None
    assert settings is None or isinstance(settings, Tls), "no option is a context"
    return settings


def _credentials(reader: OptionReader) -> CredentialsSource | None:
    file, *keys = (reader.get(declared.name) for declared in CREDENTIALS_OPTIONS)
    if file and any(keys):
        raise OptionError("credentialsFile and keys are both given", "give one of them")
    try:
        if any(keys):
            access_key, secret_key, token = keys
            return Credentials(access_key, secret_key, token or None)
        source = file or from_environment()
        if source is not None:
            Signer(source)  # an unusable file is an error of the query, not of its tasks
    except ConfigError as error:
        raise OptionError(str(error)) from None
    except ValueError:
        raise OptionError(
            "only a part of the keys is given", "give accessKey and secretKey, or credentialsFile"
        ) from None
    return source


def _from_environment(may_be_table: bool) -> tuple[str, ...]:
    found = os.environ.get(NAME_SERVER_VARIABLE, "")
    if not found:
        table = (
            "; Spark passes the options of a table only if it was created without columns, and to "
            "an INSERT only if this lists columns, without topic"
        )
        raise OptionError(
            "the option nameServer of format rocketmq is missing",
            f"give host:port of a name server, or set {NAME_SERVER_VARIABLE}"
            f"{table if may_be_table else ''}",
        )
    try:
        return addresses(found)
    except ValueError as error:
        raise OptionError(f"{NAME_SERVER_VARIABLE} can't be {found!r}", str(error)) from None


_TLS: Final = "give tls=true, or tlsCa, the path of a file with the authority's certificate"
_NO_SECRETS: Final = "give credentialsFile, the path of a file with accessKey and secretKey"
_ASK_NAME_SERVER: Final = "RocketMQ has name servers: give nameServer=host:port"

REFUSALS: Final = {
    "secretKeyFile": _NO_SECRETS,
    "kafka.bootstrap.servers": _ASK_NAME_SERVER,
    "bootstrap.servers": _ASK_NAME_SERVER,
    "kafka.security.protocol": _TLS,
    "kafka.isolation.level": "it is not needed: half messages are invisible to readers",
    "dedup": "the source reads each offset once; for repeats by the producer use "
    'dropDuplicatesWithinWatermark(["messageId"])',
}
"""Options of other connectors that are not supported, and what to do instead."""
