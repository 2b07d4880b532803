"""The client's options.

Keyword arguments take precedence over the environment, the environment over the file, the file over
the defaults. Environment variables are ``POCKETMQ_CLIENT_<NAME>``, ``POCKETMQ_PRODUCER_<NAME>``,
``POCKETMQ_CONSUMER_<NAME>`` (pull consumers) and ``POCKETMQ_PUSH_CONSUMER_<NAME>``; name servers
also come from ``NAMESRV_ADDR``. The file, named by ``POCKETMQ_CLIENT_CONFIG``, is TOML with the
tables ``client``, ``producer``, ``consumer`` and ``push_consumer``. An unknown option is an error
that suggests the nearest name.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypedDict

from client import limits
from client.errors import UsageError
from client.events import EventHandler
from client.interceptors import Interceptor
from client.message import Checker
from client.positions import Duration, Place, Position, StartFrom, position_of, seconds
from remoting.protocol.limits import MAX_MESSAGE_BYTES
from remoting.protocol.message.compression import CompressionKind
from remoting.runtime.settings import nearest
from remoting.security.credentials import CredentialsSource
from remoting.security.tls import (
    CLIENT_PREFIX,
    TRUTHS,
    ClientTls,
    TlsError,
    TlsOption,
    client_tls,
    tls_from_environment,
)

if TYPE_CHECKING:
    from client.group.strategies import Strategy
    from remoting.protocol.queue import MessageQueue

Addresses: TypeAlias = str | Sequence[str]
"""``host:port``, several separated by semicolons, or a sequence of them."""

CodecName: TypeAlias = Literal["json", "rocketmq", "msgpack"]

WithoutTimers: TypeAlias = Literal["refuse", "delay_level"]

OnConflict: TypeAlias = Literal["reject", "warn", "allow"]

CONFIG_VARIABLE = "POCKETMQ_CLIENT_CONFIG"
NAME_SERVER_VARIABLE = "NAMESRV_ADDR"
MAX_FILE_BYTES = 1024 * 1024


class ClientArguments(TypedDict, total=False):
    """Keyword arguments of an Instance, and of clients created without one; see ClientOptions."""

    codec: CodecName
    credentials: CredentialsSource | None
    tls: TlsOption
    connect_timeout: Duration
    request_timeout: Duration
    heartbeat_period: Duration
    route_refresh_period: Duration
    ip: str | None
    instance_name: str | None
    unit_name: str | None
    config: str | Path | None


class ProducerArguments(ClientArguments, total=False):
    """Keyword arguments of a Producer; see ``ProducerOptions``."""

    linger: Duration
    max_batch_messages: int
    max_batch_bytes: int
    max_in_flight: int
    max_in_flight_bytes: int
    timeout: Duration
    retries: int
    compress: CompressionKind | None
    compress_over_bytes: int
    require_durable: bool
    default_queues: int
    max_delay_level: int
    without_timers: WithoutTimers
    transaction_checker: Checker | None
    interceptors: Sequence[Interceptor]


class GroupArguments(ClientArguments, total=False):
    """Keyword arguments of pull and push consumers; see ``GroupOptions``."""

    start_from: StartFrom
    exact: bool
    strategy: str | Strategy
    on_conflict: OnConflict
    handover_timeout: Duration
    prefetch_messages: int
    prefetch_bytes: int
    pull_messages: int
    suspend: Duration
    on_event: EventHandler | None
    interceptors: Sequence[Interceptor]


class ConsumerArguments(GroupArguments, total=False):
    """Keyword arguments of a PullConsumer; see ``ConsumerOptions``."""

    auto_commit: bool
    auto_commit_period: Duration
    on_gained: Callable[[MessageQueue], None] | None
    on_lost: Callable[[MessageQueue], Awaitable[None] | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Base of the option classes: reads options from their sources.

    ``SECTION`` is the table in the file, and the middle part of the environment variables.
    """

    SECTION: ClassVar[str] = ""

    @classmethod
    def gather(cls, given: Mapping[str, Any], *, env: Mapping[str, str] | None = None) -> Self:
        """Return the options from keyword arguments, the environment and the file.

        Raises:
            UsageError: an option is unknown or its value has the wrong type.
        """
        env = os.environ if env is None else env
        known = {field.name: field for field in fields(cls)}
        file = given.get("config") or env.get(CONFIG_VARIABLE)
        values: dict[str, Any] = {}
        if file:
            values.update(_checked(_from_file(Path(file), cls.SECTION), known, str(file)))
        values.update(_checked(_from_environment(env, cls.SECTION), known, "the environment"))
        values.update({name: value for name, value in given.items() if name in known})
        types = {name: str(field.type) for name, field in known.items()}
        return cls(**{name: _typed(name, value, types[name]) for name, value in values.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(Options):
    """Options of an instance. Times are in seconds.

    Attributes:
        nameservers: the name servers' addresses.
        codec: of request headers: ``json`` (supported by every RocketMQ), ``rocketmq`` (its binary
            codec) or ``msgpack`` (negotiated with each PocketMQ peer, otherwise json).
        credentials: ``client.Credentials`` or the path of a file with them, to sign requests; by
            default those that the environment names (``remoting.security.credentials``).
        tls: connect with TLS: True, the path of a CA file, a ``client.Tls`` or an
            ``ssl.SSLContext``. In the environment and the file also by its attributes:
            ``POCKETMQ_CLIENT_TLS_CA``, ``tls = {ca = "..."}``.
        connect_timeout: for opening a connection.
        request_timeout: for requests that are neither sends nor pulls.
        heartbeat_period: between heartbeats to all brokers of the known routes.
        route_refresh_period: between refreshes of the routes in use.
        ip: this machine's address in client ids and message ids; detected if None.
        instance_name: the part of the client id after the address, instead of one that no other
            process has. It must be unique among the members of a group on the machine.
        unit_name: the last part of the client id, as RocketMQ's clients add it; None: there is no
            such part (cf. ClientConfig.buildMQClientId).
    """

    SECTION: ClassVar[str] = "client"

    nameservers: str = ""
    codec: CodecName = "json"
    credentials: CredentialsSource | None = None
    tls: ClientTls | None = None
    connect_timeout: float = limits.CONNECT_TIMEOUT
    request_timeout: float = limits.REQUEST_TIMEOUT
    heartbeat_period: float = limits.HEARTBEAT_PERIOD
    route_refresh_period: float = limits.ROUTE_REFRESH_PERIOD
    ip: str | None = None
    instance_name: str | None = None
    unit_name: str | None = None

    def __post_init__(self) -> None:
        for option in ("instance_name", "unit_name"):
            name = getattr(self, option)
            fits = isinstance(name, str) and name.isprintable() and "@" not in name
            if name is not None and not (fits and 0 < len(name) <= limits.MAX_CLIENT_ID_PART):
                raise UsageError(
                    f"{option} can't be {name!r}",
                    hint=f"give up to {limits.MAX_CLIENT_ID_PART} printable characters without @",
                )
        one_of("codec", self.codec, "json", "rocketmq", "msgpack")
        positive(self, "heartbeat_period", "route_refresh_period", "request_timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(Options):
    """Options of a producer. Times are in seconds.

    Attributes:
        linger: how long a message may wait for others to share its batch; 0 batches only the
            messages sent in one iteration of the event loop.
        max_batch_messages, max_batch_bytes: limits of one automatic batch.
        max_in_flight, max_in_flight_bytes: limits of messages accepted but not acknowledged; when
            reached, ``send`` waits and ``send_nowait`` raises ``BufferFull``.
        timeout: of a send including all its attempts.
        retries: attempts after the first.
        compress: ``zlib`` (readable by every client), ``lz4``, ``zstd`` (4.9.4 and later), or None.
        compress_over_bytes: smallest body that is compressed.
        require_durable: raise ``NotDurable`` for a message stored less durably than configured.
        default_queues: number of queues of a topic that a send creates.
        max_delay_level: the highest accepted ``delay_level``: the number of levels in the brokers'
            ``messageDelayLevel``. A broker treats a higher one as its highest.
        without_timers: what to do with a message that has ``delay`` or ``deliver_at`` if a broker
            of its topic has no timers: ``refuse`` it with a ``SendError``, or use the next
            ``delay_level`` of RocketMQ's default ones.
        transaction_checker: decides about a transaction that was not ended, with
            ``TransactionState.COMMIT``, ``ROLLBACK`` or ``UNKNOWN``; it is called with a
            ``client.OpenTransaction``. A plain function runs in a thread.
        interceptors: called around every send; see ``client.Interceptor``.
    """

    SECTION: ClassVar[str] = "producer"

    linger: float = 0.0
    max_batch_messages: int = limits.MAX_BATCH_MESSAGES
    max_batch_bytes: int = limits.MAX_BATCH_BYTES
    max_in_flight: int = limits.MAX_IN_FLIGHT_MESSAGES
    max_in_flight_bytes: int = limits.MAX_IN_FLIGHT_BYTES
    timeout: float = limits.SEND_TIMEOUT
    retries: int = limits.SEND_RETRIES
    compress: CompressionKind | None = "zlib"
    compress_over_bytes: int = limits.COMPRESS_OVER_BYTES
    require_durable: bool = False
    default_queues: int = limits.DEFAULT_TOPIC_QUEUES
    max_delay_level: int = limits.MAX_DELAY_LEVEL
    without_timers: WithoutTimers = "refuse"
    transaction_checker: Checker | None = None
    interceptors: Sequence[Interceptor] = ()

    def __post_init__(self) -> None:
        if self.compress is not None:
            one_of("compress", self.compress, "zlib", "lz4", "zstd")
        one_of("without_timers", self.without_timers, "refuse", "delay_level")
        if self.retries < 0:
            raise UsageError(f"retries can't be {self.retries}")
        positive(
            self,
            "timeout",
            "max_batch_messages",
            "max_batch_bytes",
            "max_in_flight",
            "max_in_flight_bytes",
            "compress_over_bytes",
            "default_queues",
            "max_delay_level",
        )

    @property
    def plain_bytes(self) -> int:
        """Bodies smaller than this are sent uncompressed."""
        most = MAX_MESSAGE_BYTES + 1
        return most if self.compress is None else min(most, self.compress_over_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(Options):
    """Options of pull and push consumers. Times are in seconds.

    A pull consumer uses the options about other members only after ``subscribe``.

    Attributes:
        start_from: where to start a queue in which the group has committed nothing: ``FIRST``,
            ``LAST``, an offset, a datetime, or a string as on the command line
            (``client.positions.position_of``). As in RocketMQ, the broker overrides it with 0 for a
            queue whose first messages are still in memory.
        exact: ignore that override: ``start_from`` applies to every queue.
        strategy: how members share the queues, a name or object (``client.group``).
        on_conflict: what to do when members differ in settings that all must share.
        handover_timeout: how long handlers, or the application, may take to finish the messages of
            a queue that moves to another member.
        prefetch_messages, prefetch_bytes: limits of what is read ahead per queue; a push consumer
            includes messages being handled.
        pull_messages: messages requested with one pull.
        suspend: how long the broker may hold a pull that finds nothing.
        on_event: called with each event of the consumer and its queues (``client.events``).
        interceptors: called around every handler call; without a handler,
            ``client.Interceptor.receive`` is called with the messages returned to the application.
    """

    start_from: Position = Place.BEGIN
    exact: bool = False
    strategy: str | Strategy = "AVG"
    on_conflict: OnConflict = "reject"
    handover_timeout: float = limits.HANDOVER_TIMEOUT
    prefetch_messages: int = limits.PREFETCH_MESSAGES
    prefetch_bytes: int = limits.PREFETCH_BYTES
    pull_messages: int = limits.PULL_MESSAGES
    suspend: float = limits.PULL_SUSPEND
    on_event: EventHandler | None = None
    interceptors: Sequence[Interceptor] = ()

    def __post_init__(self) -> None:
        if isinstance(self.start_from, bool) or not isinstance(
            self.start_from, Place | datetime | int
        ):
            raise UsageError(
                f"start_from can't be {self.start_from!r}",
                hint="use client.FIRST, client.LAST, 'earliest', an offset or a datetime",
            )
        one_of("on_conflict", self.on_conflict, "reject", "warn", "allow")
        positive(self, "prefetch_messages", "prefetch_bytes", "pull_messages")

    @property
    def shared(self) -> bool:
        """Whether the members divide the queues among themselves."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(GroupOptions):
    """Options of a pull consumer in addition to ``GroupOptions``. Times are in seconds.

    Attributes:
        auto_commit: commit automatically what was returned before the latest call for more
            messages, and everything returned when the consumer closes without an error, or of the
            queues that the application gives up.
        auto_commit_period: between automatic commits.
        on_gained: called with each queue that ``subscribe`` assigns, before its messages.
        on_lost: called with each queue that moves to another member, after its last message was
            returned and while its offset can still be committed; may be ``async``.
    """

    SECTION: ClassVar[str] = "consumer"

    auto_commit: bool = False
    auto_commit_period: float = limits.AUTO_COMMIT_PERIOD
    on_gained: Callable[[MessageQueue], None] | None = None
    on_lost: Callable[[MessageQueue], Awaitable[None] | None] | None = None

    def __post_init__(self) -> None:
        GroupOptions.__post_init__(self)
        positive(self, "auto_commit_period")


def check_serde(serde: object) -> None:
    """Raise UsageError for an object without ``dumps`` or ``loads``."""
    if not all(callable(getattr(serde, name, None)) for name in ("dumps", "loads")):
        raise UsageError(
            f"serde can't be {serde!r}: it lacks dumps or loads",
            hint="use client.serde.json, client.serde.typed(Order), or an object with both methods",
        )


def check_arguments(what: str, given: Mapping[str, Any], known: type) -> None:
    """Raise UsageError for a keyword argument that ``what`` doesn't have."""
    names = known.__annotations__
    for name in given:
        if name not in names:
            raise UsageError(f"{what} has no option {name!r}{nearest(name, names)}")


def name_servers(addresses: Addresses | None, options: ClientOptions) -> list[str]:
    """Return the name server addresses from the argument, else the options, else NAMESRV_ADDR.

    Raises:
        UsageError: none is given, or one is not ``host:port``.
    """
    given = addresses or options.nameservers or os.environ.get(NAME_SERVER_VARIABLE) or ()
    parts = given.replace(",", ";").split(";") if isinstance(given, str) else list(given)
    found = [part.strip() for part in parts if part.strip()]
    if not found:
        raise UsageError(
            "no name server is given", hint=f"pass 'host:port', or set {NAME_SERVER_VARIABLE}"
        )
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"{address!r} is not a name server's address", hint="write host:port")
    return list(dict.fromkeys(found))


def positive(options: Options, *names: str) -> None:
    """Raise UsageError for an option that isn't greater than zero."""
    for name in names:
        value = getattr(options, name)
        if not value > 0:
            raise UsageError(f"{name} can't be {value!r}", hint="give more than zero")


def one_of(name: str, value: str, *known: str) -> None:
    """Raise UsageError if ``value`` is not one of ``known``."""
    if value not in known:
        raise UsageError(
            f"{name} can't be {value!r}", hint=f"use {', '.join(known[:-1])} or {known[-1]}"
        )


def _checked(values: Mapping[str, Any], known: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in values:
        if name not in known:
            raise UsageError(f"{where} has an unknown option {name!r}{nearest(name, known)}")
    return dict(values)


def _from_environment(env: Mapping[str, str], section: str) -> dict[str, Any]:
    prefix = f"POCKETMQ_{section.upper()}_"
    values: dict[str, Any] = {
        name.removeprefix(prefix).lower(): value
        for name, value in env.items()
        if name.startswith(prefix)
        and name not in {CONFIG_VARIABLE, CLIENT_PREFIX}
        and not name.startswith(f"{CLIENT_PREFIX}_")
    }
    tls = tls_from_environment(env) if section == ClientOptions.SECTION else None
    return values if tls is None else {**values, "tls": tls}


def _from_file(file: Path, section: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - most programs have no file

    try:
        with file.open("rb") as stream:
            tables = tomllib.loads(stream.read(MAX_FILE_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"the client's configuration {file} can't be read: {error}") from error
    unknown = tables.keys() - {"client", "producer", "consumer", "push_consumer"}
    if unknown:
        raise UsageError(
            f"{file} has the unknown table {min(unknown)!r}",
            hint="there are [client], [producer], [consumer] and [push_consumer]",
        )
    table = tables.get(section, {})
    if not isinstance(table, dict):
        raise UsageError(f"{section} in {file} is not a table", hint=f"write [{section}]")
    return table


def _typed(name: str, value: Any, kind: str) -> Any:
    """Return a value in its option's type, converting strings, as from the environment."""
    try:
        if name == "start_from":
            return position_of(value) if isinstance(value, str) else value
        if name == "tls":
            return client_tls(value)
        if kind == "float":
            return seconds(float(value) if isinstance(value, str) else value, name)
        if kind.endswith("| None") and isinstance(value, str) and value in {"", "none"}:
            return None
        if kind == "int" or (kind == "int | None" and value is not None):
            return _integer(value)
        if kind == "bool":
            return value if isinstance(value, bool) else TRUTHS[value.lower()]
    except UsageError:
        raise
    except TlsError as error:
        raise UsageError(str(error)) from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"the option {name} can't be {value!r}") from None
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool | float | timedelta):
        raise TypeError
    return int(value)
