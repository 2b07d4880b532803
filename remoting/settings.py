"""Configuration of the servers: RocketMQ's keys from a file, the environment and the command line.

A server's configuration is a frozen dataclass derived from ``Settings``; each field that is a
setting is declared with ``setting(key, default, parse)``, where the key is RocketMQ's own name.
``from_sources`` reads overrides over environment over file over default.

Every key is one of four kinds: *with effect* (a field), *without effect* (RocketMQ knows it, here
it changes nothing: collected in ``ignored_keys`` for one info line), *refused* (it would change
what clients may rely on and isn't served: silence would be dangerous), or unknown: an error that
names the nearest known key. Variables of the environment are looked up by the known keys, so that
those of other parts of PocketMQ are no concern here.
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
"""A configuration file; a full one of RocketMQ has some 10 KiB."""


class ConfigError(ValueError):
    """A configuration can't be used; the text says which key, from where, and what is expected."""


class RefusedKey(NamedTuple):
    """A key that may only have values which mean what PocketMQ does anyway."""

    allowed: frozenset[str]
    """Values in lower case that change nothing here."""
    why: str
    """The end of the sentence: what is missing and what to do."""


def refused(why: str, *allowed: str) -> RefusedKey:
    """A refused key; without ``allowed`` only ``false`` and nothing are accepted."""
    return RefusedKey(frozenset(allowed or ("false", "")), why)


class _Setting(NamedTuple):
    key: str
    parse: Callable[[str], Any]


class _Given(NamedTuple):
    """A value as somebody wrote it, and how to name the place in an error."""

    text: str
    place: str


def setting(
    key: str,
    parse: Callable[[str], T],
    default: T | dataclasses._MISSING_TYPE = dataclasses.MISSING,
    *,
    factory: Callable[[], T] | None = None,
) -> T:
    """Declare a field of a ``Settings`` class that is set by RocketMQ's key of this name."""
    metadata = {"setting": _Setting(key, parse)}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return cast("T", field(default=default, metadata=metadata))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base of a server's configuration; see the module's text."""

    ignored_keys: tuple[str, ...] = ()
    """Keys that were given and that have no effect in PocketMQ."""

    KEYS_WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset()
    REFUSED_KEYS: ClassVar[Mapping[str, RefusedKey]] = {}
    OTHER_ENVIRONMENT: ClassVar[Mapping[str, str]] = {}
    """Key -> a variable of RocketMQ's that is read when ours is not set."""

    @classmethod
    def from_sources(
        cls,
        file: Path | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> Self:
        """Build the configuration; overrides beat the environment, that beats the file.

        Raises:
            ConfigError: the file can't be read, or a key is unknown, refused or has a bad value.
        """
        given: dict[str, _Given] = {}
        if file is not None:
            given.update(_from_file(file))
        given.update(cls._from_environment(env or {}))
        given.update({k: _Given(v, f"{k}={v} from --set") for k, v in (overrides or {}).items()})
        return cls._build(given)

    @classmethod
    def known_keys(cls) -> frozenset[str]:
        """Every key that is accepted or deliberately refused."""
        return frozenset(cls._by_key()) | cls.KEYS_WITHOUT_EFFECT | cls.REFUSED_KEYS.keys()

    def as_properties(self) -> dict[str, str]:
        """Every setting with effect under its key, as the configuration file would say it."""
        texts: dict[str, str] = {}
        for key, (name, _) in self._by_key().items():
            value = getattr(self, name)
            if isinstance(value, bool):
                texts[key] = "true" if value else "false"
            elif isinstance(value, tuple):
                texts[key] = ";".join(map(str, value))
            elif value is not None:
                texts[key] = str(value)
        return texts

    def as_text(self) -> bytes:
        """The settings as properties text, as the administration commands show and store them."""
        return properties_text.render(self.as_properties())

    def updated(self, values: Mapping[str, str]) -> Self:
        """A copy with these keys changed; keys that are unknown or without effect are skipped.

        Raises:
            ConfigError: a value is bad, or a key is refused.
        """
        given = {key: _Given(value, f"{key}={value}") for key, value in values.items()}
        self._check_refused(given)
        changed = dataclasses.replace(self, **self._parse(given))
        changed.check()
        return changed

    def check(self) -> None:
        """Check what no single value can tell; the base has nothing to check.

        Raises:
            ConfigError: settings contradict each other.
        """

    @classmethod
    def _by_key(cls) -> dict[str, tuple[str, Callable[[str], Any]]]:
        declared = ((f.name, f.metadata.get("setting")) for f in dataclasses.fields(cls))
        return {entry.key: (name, entry.parse) for name, entry in declared if entry is not None}

    @classmethod
    def _from_environment(cls, env: Mapping[str, str]) -> dict[str, _Given]:
        given: dict[str, _Given] = {}
        for key in cls.known_keys():
            for name in (environment_name(key), cls.OTHER_ENVIRONMENT.get(key, "")):
                if name in env:
                    given[key] = _Given(env[name], f"{name}={env[name]} in the environment")
                    break
        return given

    @classmethod
    def _build(cls, given: Mapping[str, _Given]) -> Self:
        cls._check_known(given)
        cls._check_refused(given)
        ignored = tuple(sorted(given.keys() & cls.KEYS_WITHOUT_EFFECT))
        built = cls(ignored_keys=ignored, **cls._parse(given))
        built.check()
        return built

    @classmethod
    def _parse(cls, given: Mapping[str, _Given]) -> dict[str, Any]:
        return {
            name: _parsed(parse, given[key])
            for key, (name, parse) in cls._by_key().items()
            if key in given
        }

    @classmethod
    def _check_known(cls, given: Mapping[str, _Given]) -> None:
        known = cls.known_keys()
        for key, (_, place) in given.items():
            if key not in known:
                raise ConfigError(f"{place}: there is no setting {key!r}{nearest(key, known)}")

    @classmethod
    def _check_refused(cls, given: Mapping[str, _Given]) -> None:
        for key, (text, place) in given.items():
            rule = cls.REFUSED_KEYS.get(key)
            if rule is not None and text.strip().lower() not in rule.allowed:
                raise ConfigError(f"{place}: {rule.why}")


def environment_name(key: str) -> str:
    """The variable of a key: ``listenPort`` is ``POCKETMQ_LISTEN_PORT``."""
    bare = key.removeprefix(OWN_PREFIX)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", bare)
    return ENVIRONMENT_PREFIX + words.upper()


def nearest(key: str, known: Iterable[str]) -> str:
    """The tail of an unknown key's error: the nearest known one, or nothing."""
    import difflib  # noqa: PLC0415 - only an error needs it, and start-up is short

    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""


def _from_file(file: Path) -> dict[str, _Given]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"the configuration file {file} can't be read: {reason}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"the configuration file {file} is larger than {MAX_FILE_BYTES} bytes")
    try:
        values = properties_text.parse(data.removeprefix(codecs.BOM_UTF8))
    except BodyError as error:
        raise ConfigError(f"the configuration file {file} can't be used: {error}") from None
    return {key: _Given(value, f"{key}={value} in {file}") for key, value in values.items()}


def _parsed(parse: Callable[[str], Any], given: _Given) -> Any:
    try:
        return parse(given.text.strip())
    except ValueError as error:
        raise ConfigError(f"{given.place}: {error}") from None


_WORDS = {"true": True, "false": False}
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_NAME = re.compile(r"[%|a-zA-Z0-9_-][%|a-zA-Z0-9._-]*")
MAX_NAME_LENGTH = 127
"""Names of brokers and clusters become topics."""


def boolean(text: str) -> bool:
    """``true`` or ``false`` in any case."""
    if text.lower() not in _WORDS:
        raise ValueError("must be true or false")
    return _WORDS[text.lower()]


def integer(low: int, high: int) -> Callable[[str], int]:
    """A whole number within these bounds, both included."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


def multiple_of(unit: int, low: int, high: int) -> Callable[[str], int]:
    """A whole number that is rounded up to a multiple of the unit."""
    bounded = integer(low, high)

    def parse(text: str) -> int:
        return -(-bounded(text) // unit) * unit

    return parse


def choice(*names: str) -> Callable[[str], str]:
    """One of these names, in any case."""

    def parse(text: str) -> str:
        if text.upper() not in names:
            raise ValueError("must be " + " or ".join(names))
        return text.upper()

    return parse


def word(text: str) -> str:
    """Any text that isn't empty."""
    if not text:
        raise ValueError("must not be empty")
    return text


def name(text: str) -> str:
    """The name of a broker or cluster: a topic's characters, and dots as host names have them."""
    if not _NAME.fullmatch(text) or len(text) > MAX_NAME_LENGTH:
        raise ValueError(f"must be 1 to {MAX_NAME_LENGTH} letters, digits, or any of - _ % | .")
    return text


def path(text: str) -> Path:
    """A path of the file system; ``~`` and ``$HOME`` stand for the home directory."""
    if not text or "\0" in text:
        raise ValueError("must be a path")
    home = str(Path.home())
    expanded = text.replace("${HOME}", home).replace("$HOME", home)
    return Path(home + expanded[1:] if expanded == "~" or expanded.startswith("~/") else expanded)


def host(text: str) -> str:
    """A host name or an IP address, without port."""
    try:
        return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        if not _HOST.fullmatch(text):
            raise ValueError("must be a host name or an IP address") from None
        return text


def address(text: str) -> str:
    """``HOST:PORT``."""
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
    """``HOST:PORT`` separated by ``;``, each once, in the given order."""
    parts = [part.strip() for part in text.split(";")]
    return tuple(dict.fromkeys(address(part) for part in parts if part))
