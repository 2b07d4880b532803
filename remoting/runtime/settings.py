"""Configuration of the servers: RocketMQ's keys from a file, the environment and the command line.

A server's configuration is a frozen dataclass derived from ``Settings``; each field that is a
setting is declared with ``setting(key, parse, default)``, where the key is RocketMQ's name. In
``from_sources``, overrides take precedence over the environment, that over the file, and that over
defaults.

Every key is one of four kinds: *with effect* (a field); *without effect* (a key of RocketMQ that
changes nothing in PocketMQ: collected in ``ignored_keys`` for one info line); *refused* (a key that
would change behaviour that clients rely on, and is not supported: ignoring it would be dangerous);
or unknown, which is an error that names the most similar known key. Environment variables are
looked up by the known keys, so variables of other parts of PocketMQ cause no errors.
"""

from __future__ import annotations

import codecs
import dataclasses
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast

from remoting.protocol.bodies import properties_text
from remoting.protocol.errors import BodyError

T = TypeVar("T")

ENVIRONMENT_PREFIX = "POCKETMQ_"
OWN_PREFIX = "pocketmq"
MAX_FILE_BYTES = 1024 * 1024
"""The largest configuration file; a complete one of RocketMQ has some 10 KiB."""


class ConfigError(ValueError):
    """A configuration is invalid; the text names the key, its source and what is expected."""


class RefusedKey(NamedTuple):
    """A key that may have only the values that match what PocketMQ does."""

    allowed: frozenset[str]
    """The accepted values, in lower case."""
    why: str
    """The end of the error message: what is not supported, and what to do."""


def refused(why: str, *allowed: str) -> RefusedKey:
    """Return a refused key; without ``allowed``, only ``false`` and the empty text are accepted."""
    return RefusedKey(frozenset(allowed or ("false", "")), why)


class _Setting(NamedTuple):
    key: str
    parse: Callable[[str], Any]
    secret: bool


class _Given(NamedTuple):
    """A value as given by the user, the name that it was given for, and its source for errors."""

    text: str
    name: str
    source: str = ""

    @property
    def place(self) -> str:
        return f"{self.name}={self.text}{self.source}"


def setting(
    key: str,
    parse: Callable[[str], T],
    default: T | dataclasses._MISSING_TYPE = dataclasses.MISSING,
    *,
    factory: Callable[[], T] | None = None,
    secret: bool = False,
) -> T:
    """Declare a field of a ``Settings`` class that is set by a key of RocketMQ.

    Args:
        secret: the value is a password: ``as_properties`` and ``repr`` leave it out.
    """
    metadata = {"setting": _Setting(key, parse, secret)}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return cast("T", field(default=default, metadata=metadata, repr=not secret))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base of a server's configuration; see the module's docstring."""

    ignored_keys: tuple[str, ...] = ()
    """The given keys that have no effect in PocketMQ."""

    KEYS_WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset()
    REFUSED_KEYS: ClassVar[Mapping[str, RefusedKey]] = {}
    OTHER_ENVIRONMENT: ClassVar[Mapping[str, str]] = {}
    """Key to the variable of RocketMQ that is read if PocketMQ's is not set."""
    MORE_FILES: ClassVar[Mapping[str, Path]] = {}
    """Keys that name another file with settings, and its default path, which need not exist."""

    @classmethod
    def from_sources(
        cls,
        file: Path | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> Self:
        """Build the configuration; overrides take precedence over ``env``, that over ``file``.

        Files of ``MORE_FILES`` come last.

        Raises:
            ConfigError: the file can't be read, or a key is unknown, refused or has a bad value.
        """
        given: dict[str, _Given] = {}
        if file is not None:
            given.update(_from_file(file))
        given.update(cls._from_environment(env or {}))
        given.update({k: _Given(v, k, " from --set") for k, v in (overrides or {}).items()})
        for key, default in cls.MORE_FILES.items():
            if key in given:
                given = _from_file(_parsed(path, given[key])) | given
            elif default.exists():
                given = _from_file(default) | given
        cls._check_known(given)
        cls._check_refused(given)
        ignored = tuple(sorted(given.keys() & cls.KEYS_WITHOUT_EFFECT))
        built = cls(ignored_keys=ignored, **cls._parse(given))
        built.check()
        return built

    @classmethod
    def known_keys(cls) -> frozenset[str]:
        """Return all keys that are not unknown."""
        return frozenset(cls._by_key()) | cls.KEYS_WITHOUT_EFFECT | cls.REFUSED_KEYS.keys()

    def as_properties(self) -> dict[str, str]:
        """Return all settings with effect by key, as texts of the configuration file.

        Secrets are left out: administration commands show the result.
        """
        texts: dict[str, str] = {}
        for key, (name, declared) in self._by_key().items():
            value = None if declared.secret else getattr(self, name)
            if isinstance(value, bool):
                texts[key] = "true" if value else "false"
            elif isinstance(value, tuple):
                texts[key] = ";".join(map(str, value))
            elif value is not None:
                texts[key] = str(value)
        return texts

    def as_text(self) -> bytes:
        """Return the settings as properties text, the form shown by administration commands."""
        return properties_text.render(self.as_properties())

    def updated(self, values: Mapping[str, str]) -> Self:
        """Return a copy with changed settings; keys unknown or without effect are ignored.

        Raises:
            ConfigError: a value is bad, or a key is refused.
        """
        given = {key: _Given(value, key) for key, value in values.items()}
        self._check_refused(given)
        changed = dataclasses.replace(self, **self._parse(given))
        changed.check()
        return changed

    def check(self) -> None:
        """Check that the settings fit together; a subclass may override it.

        Raises:
            ConfigError: settings contradict each other.
        """

    @classmethod
    def _by_key(cls) -> dict[str, tuple[str, _Setting]]:
        declared = ((f.name, f.metadata.get("setting")) for f in dataclasses.fields(cls))
        return {entry.key: (name, entry) for name, entry in declared if entry is not None}

    @classmethod
    def _from_environment(cls, env: Mapping[str, str]) -> dict[str, _Given]:
        given: dict[str, _Given] = {}
        for key in cls.known_keys():
            for name in (environment_name(key), cls.OTHER_ENVIRONMENT.get(key, "")):
                if name in env:
                    given[key] = _Given(env[name], name, " in the environment")
                    break
        return given

    @classmethod
    def _parse(cls, given: Mapping[str, _Given]) -> dict[str, Any]:
        return {
            name: _parsed(declared.parse, given[key])
            for key, (name, declared) in cls._by_key().items()
            if key in given
        }

    @classmethod
    def _check_known(cls, given: Mapping[str, _Given]) -> None:
        keys = cls.known_keys()
        for key, (_, name, source) in given.items():
            if key not in keys:
                # Without the value: it may be the secret of a setting whose name was mistyped.
                hint = nearest(key, keys)
                raise ConfigError(f"{name}{source}: there is no setting {key!r}{hint}")

    @classmethod
    def _check_refused(cls, given: Mapping[str, _Given]) -> None:
        for key, value in given.items():
            rule = cls.REFUSED_KEYS.get(key)
            if rule is not None and value.text.strip().lower() not in rule.allowed:
                raise ConfigError(f"{value.place}: {rule.why}")


def environment_name(key: str) -> str:
    """Return the environment variable of a key: ``POCKETMQ_LISTEN_PORT`` for ``listenPort``."""
    bare = key.removeprefix(OWN_PREFIX).replace(".", "_")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", bare)
    return ENVIRONMENT_PREFIX + words.upper()


def nearest(key: str, keys: Iterable[str]) -> str:
    """Return the end of an unknown key's error: the most similar known key, or an empty text."""
    import difflib  # noqa: PLC0415 - only needed for an error

    by_lower = {name.lower(): name for name in keys}
    matches = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[matches[0]]!r}?" if matches else ""


def _from_file(file: Path) -> dict[str, _Given]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"the configuration file {file} can't be read: {reason}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"the configuration file {file} is larger than {MAX_FILE_BYTES} bytes")
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        # As in Java, the bytes of a comment don't matter.
        values = properties_text.parse(data.decode("utf-8", "surrogateescape"))
        if _NOT_UTF8.search("".join([*values, *values.values()])):
            properties_text.parse(data)
    except BodyError as error:
        raise ConfigError(f"the configuration file {file} can't be used: {error}") from None
    return {key: _Given(value, key, f" in {file}") for key, value in values.items()}


def _parsed(parse: Callable[[str], Any], given: _Given) -> Any:
    try:
        return parse(given.text.strip())
    except ValueError as error:
        raise ConfigError(f"{given.place}: {error}") from None


_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_WORDS = {"true": True, "false": False}
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_NAME = re.compile(r"[%|a-zA-Z0-9_-][%|a-zA-Z0-9._-]*")
MAX_NAME_LENGTH = 127
"""The limit of topic names: brokers and clusters have topics with their names."""


def boolean(text: str) -> bool:
    """Parse ``true`` or ``false``, in any case."""
    if text.lower() not in _WORDS:
        raise ValueError("must be true or false")
    return _WORDS[text.lower()]


def integer(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``low`` to ``high``, both included."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


def multiple_of(unit: int, low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers that rounds up to a multiple of ``unit``."""
    bounded = integer(low, high)

    def parse(text: str) -> int:
        return -(-bounded(text) // unit) * unit

    return parse


def choice(*names: str) -> Callable[[str], str]:
    """Return a parser of one of these names, in any case."""
    by_lower = {name.lower(): name for name in names}

    def parse(text: str) -> str:
        if text.lower() not in by_lower:
            raise ValueError("must be " + " or ".join(names))
        return by_lower[text.lower()]

    return parse


def word(text: str) -> str:
    """Parse a text that is not empty."""
    if not text:
        raise ValueError("must not be empty")
    return text


def name(text: str) -> str:
    """Parse the name of a broker or cluster: characters of topic names, and dots."""
    if not _NAME.fullmatch(text) or len(text) > MAX_NAME_LENGTH:
        raise ValueError(f"must be 1 to {MAX_NAME_LENGTH} letters, digits, or any of - _ % | .")
    return text


def path(text: str) -> Path:
    """Parse a path; ``~`` and ``$HOME`` are replaced by the home directory."""
    if not text or "\0" in text:
        raise ValueError("must be a path")
    home = str(Path.home())
    expanded = text.replace("${HOME}", home).replace("$HOME", home)
    return Path(home + expanded[1:] if expanded == "~" or expanded.startswith("~/") else expanded)


def host(text: str) -> str:
    """Parse a host name or an IP address, without a port."""
    try:
        return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        if not _HOST.fullmatch(text):
            raise ValueError("must be a host name or an IP address") from None
        return text


def address(text: str) -> str:
    """Parse ``HOST:PORT``."""
    name_part, colon, port = text.rpartition(":")
    try:
        host(name_part)
        integer(1, 65535)(port)
    except ValueError:
        colon = ""
    if not colon:
        raise ValueError(f"must be HOST:PORT, several separated by ';', and {text!r} isn't that")
    return text


def addresses(text: str) -> tuple[str, ...]:
    """Parse a list of ``HOST:PORT`` separated by ``;``; repeats are removed."""
    parts = [part.strip() for part in text.split(";")]
    return tuple(dict.fromkeys(address(part) for part in parts if part))
