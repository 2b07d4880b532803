"""Options that source and sink share, and the names that neither serves."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from spark_connector.errors import OptionError
from spark_connector.options.parse import Option, OptionReader, Refusals, integer, parse_duration_ms

NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"
MAX_DURATION_MS: Final = 86_400_000
MAX_RETRIES: Final = 1000


def address_list(value: str) -> tuple[str, ...]:
    """``host:port`` addresses between ``;`` or ``,``. Raises ValueError."""
    found = tuple(part.strip() for part in value.replace(",", ";").split(";") if part.strip())
    if not found:
        raise ValueError("write host:port, several separated by ';'")
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"write host:port instead of {address!r}")
    return tuple(dict.fromkeys(found))


def wait_ms(value: str) -> int:
    """A wait: more than nothing, at most a day. Raises ValueError."""
    duration = parse_duration_ms(value)
    if not 0 < duration <= MAX_DURATION_MS:
        raise ValueError("write a duration from 1 ms to 1d")
    return duration


NAME_SERVER: Final[Option[tuple[str, ...] | None]] = Option(
    "nameServer",
    address_list,
    None,
    ("namesrvAddr", "nameServers"),
    passes_through=True,
)
REQUEST_TIMEOUT: Final = Option(
    "requestTimeoutMs", wait_ms, 10_000, ("pullTimeoutMs",), passes_through=True
)
CONNECTION_IDLE: Final = Option("connectionIdleMs", wait_ms, 300_000, passes_through=True)
NUM_RETRIES: Final = Option("fetchOffset.numRetries", integer(0, MAX_RETRIES), 3)
RETRY_INTERVAL: Final = Option("fetchOffset.retryIntervalMs", wait_ms, 200)

COMMON: Final = (NAME_SERVER, REQUEST_TIMEOUT, CONNECTION_IDLE, NUM_RETRIES, RETRY_INTERVAL)

_NO_TLS: Final = "TLS is not served yet: connect without it, over a network you trust"
_NO_SECRETS: Final = (
    "signing with keys is not served yet: use brokers without ACL, and keep keys out of options"
)
_ASK_NAME_SERVER: Final = "RocketMQ has name servers: give nameServer=host:port"

REFUSALS: Final = Refusals(
    hints={
        "tls": _NO_TLS,
        "tlsCa": _NO_TLS,
        "tlsCert": _NO_TLS,
        "tlsKey": _NO_TLS,
        "accessKey": _NO_SECRETS,
        "secretKey": _NO_SECRETS,
        "secretKeyFile": _NO_SECRETS,
        "securityToken": _NO_SECRETS,
        "kafka.bootstrap.servers": _ASK_NAME_SERVER,
        "bootstrap.servers": _ASK_NAME_SERVER,
        "kafka.security.protocol": _NO_TLS,
        "kafka.isolation.level": "it is not needed: half messages are invisible to readers",
        "dedup": "the source reads each offset once; for repeats by the producer use "
        'dropDuplicatesWithinWatermark(["messageId"])',
    },
    ignored=frozenset({"checkpointlocation", "queryname", "outputmode", "__partition_columns"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How name servers and brokers are reached, times in seconds.

    Attributes:
        name_servers: their addresses, asked one after the other.
        request_timeout: of one request.
        retries: attempts after the first when offsets are asked for.
        retry_interval: the first pause between attempts; it doubles.
        connection_idle: connections unused so long are closed.
    """

    name_servers: tuple[str, ...]
    request_timeout: float = 10.0
    retries: int = 3
    retry_interval: float = 0.2
    connection_idle: float = 300.0


def connection_options(reader: OptionReader) -> ConnectionOptions:
    """The connection's part of a query's options. Raises OptionError."""
    name_servers = reader.get(NAME_SERVER)
    return ConnectionOptions(
        name_servers=_from_environment() if name_servers is None else name_servers,
        request_timeout=reader.get(REQUEST_TIMEOUT) / 1000,
        retries=reader.get(NUM_RETRIES),
        retry_interval=reader.get(RETRY_INTERVAL) / 1000,
        connection_idle=reader.get(CONNECTION_IDLE) / 1000,
    )


def _from_environment() -> tuple[str, ...]:
    found = os.environ.get(NAME_SERVER_VARIABLE, "")
    if not found:
        raise OptionError(
            "the option nameServer of format rocketmq is missing",
            f"give host:port of a name server, or set {NAME_SERVER_VARIABLE}",
        )
    try:
        return address_list(found)
    except ValueError as error:
        raise OptionError(f"{NAME_SERVER_VARIABLE} can't be {found!r}", str(error)) from None
