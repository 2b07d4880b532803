"""Quotas: how many messages and bytes per second a topic or an account may send, and may pull.

Each is a token bucket of one second. A request passes while the bucket has a token, and takes what
it turns out to need, which may leave the bucket in debt: batches, and messages larger than the
bucket, pass like others and delay what comes after them. So in any time t, rate x (t + 1 s) and the
rest of one request pass.

Sends and pulls have buckets of their own, and the pulls of a topic one for each group: a group that
catches up takes nothing from producers or from other groups. What is counted are stored records:
messages with their properties, not requests.

A refusal is SYSTEM_BUSY with the time to wait. These times follow each other at the quota's rate,
so that clients who obey them don't all return at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product, starmap
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from broker.errors import RequestRefused
from broker.traffic.counts import key_of
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import RETRY_AFTER
from remoting.runtime.clock import Clock
from remoting.runtime.log import RateLimitedLog

if TYPE_CHECKING:
    from remoting.connection import Connection

_log = structlog.get_logger("broker")

BURST_SECONDS: Final = 1
"""What a bucket holds, as time at its rate: clients send in bursts, and rates are per second."""

SPREAD_SECONDS: Final = 1.0
"""The most that refused requests are told to wait longer than necessary, to spread their return;
well within the timeout of sends, which is 3 s."""

MAX_BUCKETS: Final = 20_000
"""Buckets of one quota, some 200 bytes each; more names than that are seldom active at a time. Of
further ones, the least recently used is dropped, and full when it is needed again."""

MAX_RATE: Final = 2**53
"""The highest rate: a float counts single bytes up to there."""

MESSAGES: Final = "messages"
BYTES: Final = "bytes"

_SHOWN: Final = 128
"""Characters of an access key in a remark."""


@dataclass(frozen=True, slots=True)
class QuotaRates:
    """A rate per second for all names, with exceptions by name; 0 means no limit."""

    default: int = 0
    by_name: Mapping[str, int] = field(default_factory=dict, hash=False)

    def of(self, name: str) -> int:
        """Return the rate for a topic or account."""
        return self.by_name.get(name, self.default)

    @property
    def limits_any(self) -> bool:
        """Whether any name has a limit."""
        return self.default > 0 or any(self.by_name.values())

    def __str__(self) -> str:
        """Return the text that ``parse_rates`` parses."""
        return ";".join((str(self.default), *(f"{n}={rate}" for n, rate in self.by_name.items())))


NO_LIMITS: Final = QuotaRates()


def parse_rates(text: str) -> QuotaRates:
    """Parse a rate, and exceptions by name: ``1000;orders=5000;audit=0``."""
    first, *others = (part.strip() for part in text.removesuffix(";").split(";"))
    if "=" in first:
        first, others = "0", [first, *others]
    by_name: dict[str, int] = {}
    for part in others:
        # The key of an account may contain the sign.
        name, _, rate = part.rpartition("=")
        if not name or name in by_name:
            raise _not_rates()
        by_name[name] = _rate(rate)
    return QuotaRates(_rate(first), by_name)


def _rate(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MAX_RATE)):
        raise _not_rates()
    if (rate := int(text)) > MAX_RATE:
        raise _not_rates()
    return rate


def _not_rates() -> ValueError:
    return ValueError(
        f"must be a rate per second from 0 (no limit) to {MAX_RATE}, and exceptions by name: "
        "1000;orders=5000;audit=0"
    )


RatesByKind = Mapping[tuple[str, str], QuotaRates]
"""The rates by subject and unit; see ``QuotaKind``."""


class Bucket:
    """A token bucket that may be in debt. Times are in monotonic seconds."""

    __slots__ = ("_last", "_level", "_promised", "_refilled_at", "capacity", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self.capacity = rate * BURST_SECONDS
        self._level = float(self.capacity)
        self._refilled_at = now
        self._promised = now
        self._last = 1

    def wait(self, now: float) -> float:
        """Return in how many seconds a request may pass; 0: now."""
        gained = (now - self._refilled_at) * self.rate
        self._level = min(self._level + gained, self.capacity)
        self._refilled_at = now
        return 0.0 if self._level >= 1 else (1 - self._level) / self.rate

    def take(self, amount: int) -> None:
        """Take what an admitted request needed."""
        self._level -= amount
        self._last = amount

    def turn(self, now: float) -> float:
        """Return how many seconds a refused request should wait, and reserve its return then.

        It is expected to need as much as the last request.
        """
        ready = now + self.wait(now)
        at = max(self._promised, ready)
        self._promised = min(at + self._last / self.rate, ready + SPREAD_SECONDS)
        return at - now


class QuotaKind(NamedTuple):
    """What a quota limits: messages or bytes (``unit``) that a topic or an account sends or pulls.

    Its fields are the labels of the metric of refusals.
    """

    subject: str
    unit: str
    verb: str


KINDS: Final = tuple(
    starmap(QuotaKind, product(("topic", "account"), (MESSAGES, BYTES), ("send", "pull")))
)


class Quota(NamedTuple):
    """The bucket that limits some requests of a topic or account, and its name."""

    kind: QuotaKind
    name: str
    bucket: Bucket


Allowance = tuple[Quota, ...]
"""The quotas that limit a request; usually none."""


def take(allowance: Allowance, messages: int, size: int) -> None:
    """Take what a request needed, as the number and the bytes of its records."""
    for quota in allowance:
        quota.bucket.take(messages if quota.kind.unit == MESSAGES else size)


def capped(allowance: Allowance, messages: int, size: int) -> tuple[int, int]:
    """Return the limits of one pull in messages and bytes, capped to what the buckets hold.

    So a group gets some messages every second, instead of many at once and then none for long.
    """
    for quota in allowance:
        if quota.kind.unit == MESSAGES:
            messages = min(messages, quota.bucket.capacity)
        else:
            size = min(size, quota.bucket.capacity)
    return messages, size


Names = Mapping[str, tuple[str, str]]
"""By subject the name of the topic or account, and the key of its bucket."""


class _Buckets:
    """The buckets of one kind of quota."""

    __slots__ = ("_by_key", "_kind", "_now", "rates")

    def __init__(self, kind: QuotaKind, rates: QuotaRates, now: Callable[[], float]) -> None:
        self.rates = rates
        self._kind = kind
        self._now = now
        self._by_key: dict[str, Bucket] = {}

    def find(self, name: str, key: str) -> Quota | None:
        """Return the quota of a topic or account, with the bucket of ``key``; None if unlimited."""
        rate = self.rates.of(name)
        if not rate:
            return None
        bucket = self._by_key.pop(key, None)
        if bucket is None:
            if len(self._by_key) >= MAX_BUCKETS:
                del self._by_key[next(iter(self._by_key))]
            bucket = Bucket(rate, self._now())
        # The dictionary is in the order of use.
        self._by_key[key] = bucket
        return Quota(self._kind, name, bucket)


AccountOf = Callable[[Command, "Connection"], str | None]


class Quotas:
    """The quotas of a broker.

    Args:
        rates: returns the rates; another object after a change.
        clock: the time.
        account_of: returns the account of a request whose signature was checked; None if it has
            none. Without it no account is limited.

    Attributes:
        refusals: refused requests of each kind.
    """

    def __init__(
        self,
        rates: Callable[[], RatesByKind],
        clock: Clock,
        account_of: AccountOf | None = None,
    ) -> None:
        self.refusals = dict.fromkeys(KINDS, 0)
        self._rates = rates
        self._configured: RatesByKind | None = None
        self._now = clock.monotonic
        self._account_of = account_of
        self._tables: dict[QuotaKind, _Buckets] = {}
        self._log = RateLimitedLog(clock, _log.warning, burst=1)

    @property
    def topics_named(self) -> set[str]:
        """The topics that have a rate of their own."""
        self._configure()
        return {
            name
            for kind, table in self._tables.items()
            if kind.subject == "topic"
            for name in table.rates.by_name
        }

    def meter_of_sends(self, command: Command, connection: Connection, topic: str) -> Meter | None:
        """Return the meter of an account's sends to a topic; None if nothing limits them."""
        return self._meter("send", self._names(command, connection, topic, topic))

    def meter_of_pulls(
        self, command: Command, connection: Connection, topic: str, group: str
    ) -> Meter | None:
        """Return the meter of a group's pulls from a topic; None if nothing limits them."""
        return self._meter("pull", self._names(command, connection, topic, key_of(topic, group)))

    def _meter(self, verb: str, names: Names) -> Meter | None:
        self._configure()
        allowance = self.find(verb, names)
        return Meter(self, verb, names, allowance) if allowance else None

    def admit_send(self, command: Command, connection: Connection, topic: str) -> Allowance:
        """Return the quotas that limit a send to a topic.

        Raises:
            RequestRefused: one of them is used up.
        """
        return self._admit("send", topic, topic, command, connection)

    def admit_pull(
        self, command: Command, connection: Connection, topic: str, group: str
    ) -> Allowance:
        """Return the quotas that limit a group's pull from a topic.

        Raises:
            RequestRefused: one of them is used up.
        """
        return self._admit("pull", topic, key_of(topic, group), command, connection)

    def used_up(self, allowance: Allowance) -> list[Quota]:
        """Return which of a request's quotas are used up."""
        now = self._now()
        return [quota for quota in allowance if quota.bucket.wait(now)]

    def check(self, allowance: Allowance, connection: Connection) -> None:
        """Raise ``RequestRefused`` if one of a request's quotas is used up."""
        used_up = self.used_up(allowance)
        if not used_up:
            return
        now = self._now()
        waits = [quota.bucket.turn(now) for quota in used_up]
        wait_ms = ceil(max(waits) * 1000)
        kind, name, bucket = used_up[waits.index(max(waits))]
        self.refusals[kind] += 1
        setting = f"pocketmqMax{kind.subject.title()}{kind.unit.title()}PerSecond"
        text = (
            f"{kind.subject} {name[:_SHOWN]} has used up its quota of {bucket.rate} {kind.unit} a "
            f"second for {kind.verb}s ({setting}); try again in {wait_ms} ms"
        )
        self._log.write("request above a quota", remote=connection.remote_text, reason=text)
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, text, extra=((RETRY_AFTER, str(wait_ms)),))

    def find(self, verb: str, names: Names) -> Allowance:
        """Return the quotas of a topic and an account, used up or not."""
        return tuple(
            quota
            for kind, table in self._tables.items()
            if kind.verb == verb and kind.subject in names
            if (quota := table.find(*names[kind.subject])) is not None
        )

    def _admit(
        self, verb: str, topic: str, key: str, command: Command, connection: Connection
    ) -> Allowance:
        self._configure()
        if not self._tables:
            return ()
        allowance = self.find(verb, self._names(command, connection, topic, key))
        self.check(allowance, connection)
        return allowance

    def _names(self, command: Command, connection: Connection, topic: str, key: str) -> Names:
        names = {"topic": (topic, key)}
        if self._account_of is not None:
            account = self._account_of(command, connection)
            if account is not None:
                names["account"] = account, account
        return names

    def _configure(self) -> None:
        """Use changed settings; a quota that has not changed keeps its buckets."""
        rates_of = self._rates()
        if rates_of is self._configured:
            return
        self._configured = rates_of
        before, self._tables = self._tables, {}
        for kind in KINDS:
            rates = rates_of[kind.subject, kind.unit]
            if rates.limits_any:
                table = before.get(kind)
                if table is None or table.rates != rates:
                    table = _Buckets(kind, rates, self._now)
                self._tables[kind] = table


class Meter:
    """The quotas of requests that the fast path repeats: sends to a topic, or a group's pulls.

    Attributes:
        allowance: the quotas, as of the last request.
    """

    __slots__ = ("_names", "_quotas", "_verb", "allowance")

    def __init__(self, quotas: Quotas, verb: str, names: Names, allowance: Allowance) -> None:
        self._quotas = quotas
        self._verb = verb
        self._names = names
        self.allowance = allowance

    def has_room(self) -> bool:
        """Return whether another request is admitted; if not, the slow path refuses it."""
        self.allowance = self._quotas.find(self._verb, self._names)
        return not self._quotas.used_up(self.allowance)

    def charge(self, messages: int, size: int) -> None:
        """Take what the request needed; a pull may have found nothing."""
        if messages:
            take(self.allowance, messages, size)
