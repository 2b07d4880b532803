"""What the doctor looks at, and what it says to do about what it finds.

Each check is a function that takes what is known so far and gives its findings; a later one uses
what an earlier one learnt (which brokers there are). Nothing is changed anywhere. Everything asked
is RocketMQ's own, so an Apache cluster can be examined as well.
"""

from __future__ import annotations

import ipaddress
import platform
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from typing import Final

import pocketmq
from pocketmq.probe import NoAnswer, ask
from remoting.clock import Clock, SystemClock
from remoting.protocol.bodies.clients import ConsumerConnection
from remoting.protocol.bodies.route import ClusterInfo, TopicRouteData
from remoting.protocol.bodies.stats import ConsumeStats
from remoting.protocol.bodies.tables import KVTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader
from remoting.protocol.headers.group import GetConsumerConnectionListRequestHeader
from remoting.protocol.headers.query import GetConsumeStatsRequestHeader
from remoting.protocol.names import PERM_READ, PERM_WRITE

ENOUGH_FILES: Final = 4096
"""Descriptors: two a connection and one a mapped file leave room for some thousand clients."""

CLOCK_TOLERANCE_SECONDS: Final = 5.0
"""A difference that changes nothing: the broker's clock is known to the second only."""

DISK_WARNING: Final = 0.75
DISK_FULL: Final = 0.90
"""Shares of the disk in use; Apache refuses writes at the second (cf. DefaultMessageStore)."""

ACCELERATORS: Final = {
    "uvloop": "a faster event loop",
    "orjson": "faster JSON headers",
    "isal": "faster checksums",
}


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        check: what was looked at.
        verdict: how bad it is.
        found: what was seen.
        remedy: what to do; empty when nothing is to be done.
    """

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


@dataclass(slots=True, kw_only=True)
class Case:
    """What is to be examined, and what is known by now.

    Attributes:
        name_servers: their addresses.
        topic, group: are examined as well when given.
        clock: this machine's.
        brokers: broker name -> id -> address, of all name servers that answered.
        answering: the addresses of name servers and brokers that answered.
    """

    name_servers: list[str]
    topic: str | None = None
    group: str | None = None
    clock: Clock = field(default_factory=SystemClock)
    brokers: dict[str, dict[int, str]] = field(default_factory=dict)
    answering: list[str] = field(default_factory=list)


Check = Callable[[Case], Iterator[Finding]]


def examine(case: Case) -> Iterator[Finding]:
    """All findings, one after the other."""
    for check in (_here, _name_servers, _brokers, _topic, _group):
        yield from check(case)


def _ok(check: str, found: str) -> Finding:
    return Finding(check, Verdict.OK, found)


def _warning(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, Verdict.WARNING, found, remedy)


def _failed(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, Verdict.FAILED, found, remedy)


# This machine


def _here(_: Case) -> Iterator[Finding]:
    yield _ok("version", f"PocketMQ {pocketmq.__version__}")
    yield _ok("interpreter", f"{platform.python_implementation()} {platform.python_version()}")
    for module, use in ACCELERATORS.items():
        if find_spec(module) is not None:
            yield _ok("accelerator", f"{module}: {use}")
        else:
            yield _warning("accelerator", f"{module} is missing", f"pip install {module}: {use}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES:
        yield _ok("file descriptors", f"{soft} here")
    else:
        yield _warning(
            "file descriptors",
            f"only {soft} here",
            f"ulimit -n {min(ENOUGH_FILES, hard) if hard > 0 else ENOUGH_FILES} before a server "
            "is started in this shell (LimitNOFILE= of a systemd unit)",
        )


# Name servers


def _name_servers(case: Case) -> Iterator[Finding]:
    views: dict[str, set[str]] = {}
    for address in case.name_servers:
        try:
            info = ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo)
        except NoAnswer as problem:
            yield _failed(
                "name server", str(problem), "start it, or correct --nameserver or NAMESRV_ADDR"
            )
            continue
        case.answering.append(address)
        views[address] = set(info.broker_addr_table)
        for name, data in info.broker_addr_table.items():
            case.brokers.setdefault(name, {}).update(data.broker_addrs)
        yield _ok("name server", f"{address} answers")
    everything = set(case.brokers)
    for address, known in views.items():
        if missing := everything - known:
            yield _failed(
                "name server",
                f"{address} doesn't know {', '.join(sorted(missing))}, another one does",
                "give every broker all name servers (namesrvAddr), and clients too",
            )


# Brokers


def _brokers(case: Case) -> Iterator[Finding]:
    if not case.answering:
        return
    if not case.brokers:
        yield _failed(
            "brokers",
            "no broker is registered",
            "start one with --nameserver, and look at its log for 'registered'",
        )
    for name, members in sorted(case.brokers.items()):
        if 0 not in members:
            yield _failed("broker", f"{name} has no master", f"start the master of {name}")
        for broker_id, address in sorted(members.items()):
            yield from _broker(case, name, broker_id, address)


def _broker(case: Case, name: str, broker_id: int, address: str) -> Iterator[Finding]:
    try:
        table = ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable).table
    except NoAnswer as problem:
        if problem.code is None:
            remedy = _advice(address)
        else:
            remedy = "wait if it is starting; else look at its log"
        yield _failed("broker", f"{name} is advertised, but {problem}", remedy)
        return
    case.answering.append(address)
    role = "" if broker_id == 0 else f", slave {broker_id}"
    yield _ok("broker", f"{name} at {address} answers{role}, {table.get('brokerVersionDesc', '?')}")
    if _only_for_this_machine(address) and not all(map(_only_for_this_machine, case.name_servers)):
        yield _warning(
            "advertised address",
            f"{name} advertises {address}, which only works on its own machine",
            "start it with --host and --advertise set to an address that clients reach",
        )
    yield from _clock(case, name, table)
    yield from _disk(name, table)


def _advice(address: str) -> str:
    if _only_for_this_machine(address):
        return (
            f"{address} is the broker's own machine: start the broker with --advertise set to an "
            "address that clients reach, if it runs elsewhere; else start it"
        )
    return (
        "start the broker if it is down; else look at firewalls, or set --advertise to an "
        "address that clients reach"
    )


def _only_for_this_machine(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return ip.is_loopback or ip.is_unspecified


def _clock(case: Case, name: str, table: dict[str, str]) -> Iterator[Finding]:
    """Compare clocks: a broker tells when it started and, to the second, for how long it runs."""
    spans = re.findall(r"(\d+) (?:day|hour|minute|second)", table.get("runtime", ""))
    boot_ms = table.get("bootTimestamp", "")
    if len(spans) != 4 or not boot_ms.isdecimal():
        return
    days, hours, minutes, seconds = map(int, spans)
    runs = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    # Half a second is what the cut-off part is on average.
    theirs = int(boot_ms) / 1000 + runs + 0.5
    difference = theirs - case.clock.now_ms() / 1000
    if abs(difference) <= CLOCK_TOLERANCE_SECONDS:
        yield _ok("clock", f"{name}'s agrees with this machine's")
    else:
        word = "ahead of" if difference > 0 else "behind"
        yield _warning(
            "clock",
            f"{name}'s is {abs(difference):.0f} s {word} this machine's",
            "run NTP on both: reading from a time and message ages go by these clocks",
        )


def _disk(name: str, table: dict[str, str]) -> Iterator[Finding]:
    try:
        used = float(table.get("commitLogDiskRatio", ""))
    except ValueError:
        return
    capacity = table.get("commitLogDirCapacity", "").strip(". ")
    found = f"{name}'s is {used:.0%} full ({capacity})" if capacity else f"{name}'s: {used:.0%}"
    if used < DISK_WARNING:
        yield _ok("disk", found)
        return
    remedy = "make room: move other things away, or the store to a bigger disk"
    yield (_failed if used >= DISK_FULL else _warning)("disk", found, remedy)


# A topic, a group


def _topic(case: Case) -> Iterator[Finding]:
    if case.topic is None or not case.brokers:
        return
    header = GetRouteInfoRequestHeader(topic=case.topic, accept_standard_json_only=True)
    for address in case.name_servers:
        if address not in case.answering:
            continue
        try:
            route = ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicRouteData, header)
        except NoAnswer as problem:
            if problem.code == ResponseCode.TOPIC_NOT_EXIST:
                text = f"{address} knows no topic {case.topic}"
                yield _failed("topic", text, f"pocketmq topic create {case.topic}")
            else:
                yield _failed("topic", str(problem), "look at the name server's log")
            continue
        yield from _queues(case.topic, address, route)


def _queues(topic: str, address: str, route: TopicRouteData) -> Iterator[Finding]:
    writable = sum(q.write_queue_nums for q in route.queue_datas if q.perm & PERM_WRITE)
    readable = sum(q.read_queue_nums for q in route.queue_datas if q.perm & PERM_READ)
    yield _ok("route", f"{address} knows {topic} at {len(route.queue_datas)} brokers")
    for count, word, perm in ((writable, "write to", "w"), (readable, "read from", "r")):
        if count:
            yield _ok("permission", f"{count} queues of {topic} to {word}")
        else:
            yield _failed(
                "permission",
                f"no queue of {topic} to {word}",
                f"pocketmq topic update {topic} --permission rw gives it {perm}",
            )


def _group(case: Case) -> Iterator[Finding]:
    if case.group is None:
        return
    masters = [m[0] for m in case.brokers.values() if m.get(0) in case.answering]
    online = 0
    for address in masters:
        header = GetConsumerConnectionListRequestHeader(consumer_group=case.group)
        try:
            answer = ask(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerConnection, header
            )
        except NoAnswer as problem:
            if problem.code != ResponseCode.CONSUMER_NOT_ONLINE:
                yield _failed("group", str(problem), "look at the broker's log")
            continue
        online = max(online, len(answer.connection_set))
    if masters and online:
        yield _ok("group", f"{case.group} has {online} members")
    elif masters:
        yield _warning("group", f"{case.group} has no member online", "start a consumer of it")
    for address in masters:
        yield from _progress(case.group, address)


def _progress(group: str, address: str) -> Iterator[Finding]:
    header = GetConsumeStatsRequestHeader(consumer_group=group)
    try:
        table = ask(address, RequestCode.GET_CONSUME_STATS, ConsumeStats, header).offset_table
    except NoAnswer as problem:
        yield _warning("offsets", str(problem), "look at the broker's log")
        return
    if not table:
        yield _warning(
            "offsets",
            f"{address} has no committed offset of {group}",
            "nothing to do if it never consumed; else look for config/consumerOffset.json in "
            "the broker's store",
        )
        return
    behind = sum(max(o.broker_offset - o.consumer_offset, 0) for o in table.values())
    yield _ok("offsets", f"{group} is {behind} messages behind at {address}")
    ahead = [str(queue) for queue, o in table.items() if o.consumer_offset > o.broker_offset]
    if ahead:
        yield _failed(
            "offsets",
            f"{group} is ahead of what {', '.join(ahead)} hold",
            "the store was replaced or cut: reset the group's offsets",
        )
