"""Checks of this machine, the name servers, and every broker at its advertised address.

For a PocketMQ broker this includes the state of its store.
"""

from __future__ import annotations

import ipaddress
import platform
import re
from collections.abc import Iterator
from typing import Final

import pocketmq
from pocketmq.doctor.case import ACCELERATORS, Case, CheckResult, failed, ok, warning
from pocketmq.server.probe import NoAnswer
from remoting.protocol.bodies.route import ClusterInfo
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import natural
from remoting.runtime import DOCS
from remoting.runtime.process_limits import ENOUGH
from remoting.security.server_tls import EXPIRY_WARNING_DAYS


def core(why: str, broker: str = "") -> CheckResult:
    """Report whether the compiled core is used, here or in a broker."""
    who = f"{broker} runs on" if broker else "PocketMQ runs on"
    if not why:
        return ok("core", f"{who} the compiled core")
    remedy = (
        "unset it for the fast path"
        if "POCKETMQ_PURE" in why
        else "install a C compiler and Python.h (Debian: gcc, python3-dev), then reinstall PocketMQ"
    )
    return warning("core", f"{who} Python code, which is slower: {why}", remedy)


def here(case: Case) -> Iterator[CheckResult]:
    """Check version, core, accelerators and limits of this machine."""
    yield ok("version", f"PocketMQ {pocketmq.__version__}")
    yield ok("interpreter", f"{platform.python_implementation()} {platform.python_version()}")
    yield core(case.machine.why_not_compiled)
    for module, use in ACCELERATORS.items():
        if module in case.machine.accelerators:
            yield ok("accelerator", f"{module}: {use}")
        else:
            yield warning("accelerator", f"{module} is missing", f"pip install {module}: {use}")
    hard = case.machine.descriptors
    if hard < 0 or hard >= ENOUGH:
        yield ok("file descriptors", f"up to {hard} here" if hard >= 0 else "unlimited here")
    else:
        yield warning(
            "file descriptors",
            f"a server started here has only {hard}",
            f"raise the hard limit to {ENOUGH} or more before a server is started (ulimit -Hn, "
            "LimitNOFILE= of a systemd unit)",
        )


INDEX_BACKLOG: Final = 256 * 1024 * 1024
"""Bytes of the log not yet indexed that are reported: eight times the backlog at which the index
thread catches up at any load."""


def store_files(name: str, table: dict[str, str]) -> Iterator[CheckResult]:
    """Check for lost offsets, a changed name, damage found by recovery, and index backlog."""
    if table.get("pocketmqOffsetsLost") == "true":
        yield failed(
            "offsets",
            f"{name} found messages but no config/consumerOffset.json when it started, so every "
            "group starts over by the rule for new groups",
            "unless that is intended, stop it, restore the file from a backup and start it; or "
            f"set groups with pocketmq group reset; see {DOCS}operating/files.md",
        )
    if before := table.get("pocketmqNamedBefore"):
        yield warning(
            "name",
            f"the store of {name} was written by {before} before this start: clients treat "
            "its queues as new",
            f"unless that is intended, stop it and start it with --name {before}; see "
            f"{DOCS}operating/settings.md#the-name-of-a-broker",
        )
    stepped_over = table.get("pocketmqRecoverySteppedOver", "0")
    if stepped_over != "0":
        yield warning(
            "store",
            f"{name} skipped {stepped_over} damaged places of its log when it started: the "
            "messages there are lost",
            "look at the disk; pocketmq store verify names the places",
        )
    # A busy broker usually has some backlog, so only a large one is reported.
    docs = f"see {DOCS}operating/commands.md#finding-messages"
    backlog = natural(table.get("pocketmqIndexBacklogBytes", ""), 0)
    if trouble := table.get("pocketmqIndexTrouble"):
        yield warning("index", f"{name} does not index messages: {trouble}", docs)
    elif backlog > INDEX_BACKLOG:
        yield warning(
            "index",
            f"{name}'s index is {backlog // 2**20} MiB behind, so the newest messages may not "
            "be found by their keys",
            f"give the broker more CPU time, or turn messageIndexEnable off; {docs}",
        )


CLOCK_TOLERANCE_SECONDS: Final = 5.0
"""Differences up to this are ignored: the broker's uptime is known only to the second."""

TRANSACTION_WARNING_SECONDS: Final = 120.0
"""Age of a half message that checks have not ended."""

CONNECTIONS_WARNING: Final = 0.9
"""Share of the maximum number of connections above which a warning is given."""

DISK_WARNING: Final = 0.75
"""Used share of the disk, as ``df`` shows it, above which brokers delete expired messages at any
hour (diskMaxUsedSpaceRatio)."""

DISK_FULL: Final = 0.90
"""Used share of the disk above which brokers store no more messages, by the default settings
(diskSpaceWarningLevelRatio)."""


def name_servers(case: Case) -> Iterator[CheckResult]:
    """Check that the name servers answer, and list the same brokers."""
    views: dict[str, set[str]] = {}
    for address in case.name_servers:
        try:
            info = case.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo)
        except NoAnswer as problem:
            yield failed(
                "name server", str(problem), "start it, or correct --nameserver or NAMESRV_ADDR"
            )
            continue
        case.answering.append(address)
        views[address] = set(info.broker_addr_table)
        for name, data in info.broker_addr_table.items():
            case.brokers.setdefault(name, {}).update(data.broker_addrs)
            case.clusters[name] = data.cluster
        yield ok("name server", f"{address} answers")
    everything = set(case.brokers)
    for address, names in views.items():
        if missing := everything - names:
            yield failed(
                "name server",
                f"{address} doesn't list {', '.join(sorted(missing))}, but another one does",
                "give every broker all name servers (namesrvAddr), and clients too",
            )


def brokers(case: Case) -> Iterator[CheckResult]:
    """Check that each broker answers at its advertised address, and its clock, disk and store."""
    if not case.answering:
        return
    if not case.brokers:
        yield failed(
            "brokers",
            "no broker is registered",
            "start one with --nameserver, and look at its log for 'registered'",
        )
    for name, members in sorted(case.brokers.items()):
        if 0 not in members:
            yield failed("broker", f"{name} has no master", f"start the master of {name}")
        for broker_id, address in sorted(members.items()):
            yield from _broker(case, name, broker_id, address)


REPLICATION_LAG: Final = 256 * 1024 * 1024
"""Bytes that a slave may lack before it is reported (cf. haSlaveFallbehindMax)."""


def _group(name: str, table: dict[str, str], docs: str) -> Iterator[CheckResult]:
    """Check a broker whose master a controller elects."""
    if problem := table.get("pocketmqGroupProblem"):
        yield failed("group", f"{name}: {problem}", docs)
    elif "pocketmqSlaves" in table and "pocketmqInSync" in table:
        size, least = table["pocketmqInSync"].count(",") + 1, natural(table["pocketmqMinInSync"], 1)
        text = f"{name} has {size} replicas in sync, in epoch {table['pocketmqEpoch']}"
        if size <= least:
            lost = f"{text}: with one less it takes no messages (minInSyncReplicas={least})"
            yield warning("group", lost, f"start the other brokers of its group; {docs}")
        else:
            yield ok("group", text)


def _replication(name: str, table: dict[str, str]) -> Iterator[CheckResult]:
    docs = f"see {DOCS}high-availability.md"
    yield from _group(name, table, docs)
    problem = table.get("pocketmqReplicationProblem")
    if table.get("pocketmqReplicationDiffers") == "true":
        yield failed(
            "replication",
            f"the slave of {name} has another store than its master, and gets no messages:"
            f" {problem}",
            "decide which of both stores to keep; see "
            f"{DOCS}high-availability.md#when-two-stores-differ",
        )
    elif problem:
        yield failed("replication", f"the slave of {name} gets no messages: {problem}", docs)
    elif (lag := natural(table.get("pocketmqReplicationLagBytes", ""), 0)) > REPLICATION_LAG:
        yield warning(
            "replication",
            f"the slave of {name} lacks {lag // 2**20} MiB of its master's log",
            f"give it a faster network or disk, and watch that this gets less; {docs}",
        )
    if other := table.get("pocketmqIdTakenBy"):
        yield failed(
            "replication",
            f"the broker at {other} registers under the same name and id as {name}: clients go to"
            " the one that registered last",
            f"stop one of them, or give it another brokerName or brokerId; {docs}",
        )
    role, slaves = table.get("pocketmqBrokerRole"), table.get("pocketmqSlaves")
    if slaves == "0":
        loss = ", and sends are answered SLAVE_NOT_AVAILABLE" if role == "SYNC_MASTER" else ""
        yield warning(
            "replication",
            f"{name} has a port for slaves, and none is connected: there is one copy of its data"
            + loss,
            f"start its slave, and look at the slave's log; {docs}",
        )
    elif slaves and role == "SYNC_MASTER":
        yield ok("replication", f"{name} answers a send when a slave has it, too; slaves: {slaves}")
    elif slaves:
        missing = table.get("pocketmqNotReplicatedBytes", "?")
        yield ok(
            "replication",
            f"{name} answers sends before a slave has them: with its disk, messages would be lost"
            f" that no slave has, now {missing} bytes; brokerRole=SYNC_MASTER prevents that;"
            f" slaves: {slaves}",
        )


def _broker(case: Case, name: str, broker_id: int, address: str) -> Iterator[CheckResult]:
    try:
        table = case.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable).table
    except NoAnswer as problem:
        if problem.code is None:
            remedy = _advice(address)
        else:
            remedy = problem.hint or "wait if it is starting; else look at its log"
        yield failed("broker", f"{name} is advertised, but {problem}", remedy)
        return
    case.answering.append(address)
    role = "" if broker_id == 0 else f", slave {broker_id}"
    yield ok("broker", f"{name} at {address} answers{role}, {table.get('brokerVersionDesc', '?')}")
    if _only_for_this_machine(address) and not all(map(_only_for_this_machine, case.name_servers)):
        yield warning(
            "advertised address",
            f"{name} advertises {address}, which only works on its own machine",
            "start it with --host and --advertise set to an address that clients reach",
        )
    if table.get("pocketmqOpenToNetwork") == "true":
        yield warning(
            "access",
            f"{name} listens beyond its own machine and checks no accounts: everybody who reaches "
            "it may read, write and delete",
            f"set aclEnable=true, or keep others away by a firewall; see {DOCS}security/index.md",
        )
    if "pocketmqCore" in table:
        yield core(table.get("pocketmqWhyNotCompiled", ""), name)
    yield from _replication(name, table)
    yield from _clock(case, name, table)
    yield from _disk(name, table)
    yield from _retention(name, table)
    yield from store_files(name, table)
    yield from _damage(name, table)
    yield from _transactions(case, name, table)
    yield from _descriptors(name, table)
    yield from _certificate(name, table)
    yield from _quotas(name, table)


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


def _clock(case: Case, name: str, table: dict[str, str]) -> Iterator[CheckResult]:
    """Compare clocks: a broker reports its start time and, in seconds, its uptime."""
    spans = re.findall(r"(\d{1,9}) (?:day|hour|minute|second)", table.get("runtime", ""))
    boot_ms = natural(table.get("bootTimestamp", ""), -1)
    if len(spans) != 4 or boot_ms < 0:
        return
    days, hours, minutes, seconds = map(int, spans)
    runs = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    # The uptime is truncated to seconds: add the average error of half a second.
    theirs = boot_ms / 1000 + runs + 0.5
    difference = theirs - case.clock.now_ms() / 1000
    if abs(difference) <= CLOCK_TOLERANCE_SECONDS:
        yield ok("clock", f"{name}'s agrees with this machine's")
    else:
        word = "ahead of" if difference > 0 else "behind"
        yield warning(
            "clock",
            f"{name}'s is {abs(difference):.0f} s {word} this machine's",
            "run NTP on both: reading from a time and message ages go by these clocks",
        )


def _disk(name: str, table: dict[str, str]) -> Iterator[CheckResult]:
    try:
        used = float(table.get("commitLogDiskRatio", ""))
    except ValueError:
        return
    capacity = table.get("commitLogDirCapacity", "").strip(". ")
    text = f"{name}'s is {used:.0%} full ({capacity})" if capacity else f"{name}'s: {used:.0%}"
    if used <= DISK_WARNING:
        yield ok("disk", text)
        return
    remedy = (
        "make room: move other things away, keep messages for less long (fileReservedTime), or "
        f"move the store to a bigger disk; see {DOCS}operating/retention.md"
    )
    yield (failed if used > DISK_FULL else warning)("disk", text, remedy)


def _retention(name: str, table: dict[str, str]) -> Iterator[CheckResult]:
    """Report what a PocketMQ broker says about deleted files; other brokers say nothing."""
    docs = f"see {DOCS}operating/retention.md"
    if trouble := table.get("pocketmqWhyNotWritable"):
        yield failed("store", f"{name} takes no messages: {trouble}", docs)
    young = table.get("pocketmqLogFilesDeletedYoung", "0")
    if young != "0":
        yield warning(
            "retention",
            f"{name} has deleted unexpired files because the disk was too full: {young}",
            f"give the store a bigger disk, or keep messages for less long; {docs}",
        )
    failures = table.get("pocketmqFilesNotDeleted", "0")
    if failures != "0":
        yield warning(
            "retention",
            f"{name} could not remove old files; attempts: {failures}",
            "check the owner of the store's directories; its log names the files",
        )


def _transactions(case: Case, name: str, table: dict[str, str]) -> Iterator[CheckResult]:
    """Half messages that no producer ends, or that were discarded for that."""
    count, oldest_ms, discarded, alone = (
        natural(table.get(f"pocketmqTransaction{key}", ""), 0)
        for key in ("sOpen", "sOldestMs", "sDiscarded", "ChecksWithoutProducer")
    )
    remedy = (
        "see that a producer of each group runs, with a transaction_checker that decides; look "
        "at the broker's log for the groups and messages"
    )
    age = (case.clock.now_ms() - oldest_ms) / 1000
    if oldest_ms and age > TRANSACTION_WARNING_SECONDS:
        yield warning(
            "transactions",
            f"{name} has {count} open transactions, the oldest for {age:.0f} s; checks that found "
            f"no producer: {alone}",
            remedy,
        )
    if discarded:
        yield warning(
            "transactions",
            f"{name} has discarded half messages that no producer ended: {discarded}",
            f"they are in TRANS_CHECK_MAX_TIME_TOPIC; {remedy}",
        )


def _descriptors(name: str, table: dict[str, str]) -> Iterator[CheckResult]:
    """Check whether connections are refused, or soon will be, for lack of file descriptors."""
    taken, maximum, limit = (
        natural(table.get(f"pocketmq{key}", ""), -1)
        for key in ("Connections", "ConnectionsMax", "DescriptorLimit")
    )
    if min(taken, maximum, limit) < 0:
        return
    text = f"{name} has {taken} of at most {maximum} connections, with {limit} file descriptors"
    if limit >= ENOUGH and taken < CONNECTIONS_WARNING * maximum:
        yield ok("connections", text)
    else:
        yield warning(
            "connections",
            text,
            "start the broker with a higher hard limit (ulimit -Hn, LimitNOFILE= of a systemd "
            "unit), or raise pocketmqMaxConnections if the limit is high; close idle clients",
        )


def _quotas(name: str, table: dict[str, str]) -> Iterator[CheckResult]:
    """Report refusals, and rates of topics that don't exist, such as a misspelt one."""
    docs = f"see {DOCS}security/quotas.md"
    refused = table.get("pocketmqQuotaRefusals", "0")
    if refused != "0":
        yield warning(
            "quotas",
            f"{name} has refused sends and pulls above a quota since it started: {refused}",
            "its log names the topics and accounts: raise their quotas, or let their clients send "
            f"and pull less; {docs}",
        )
    if missing := table.get("pocketmqQuotasWithoutTopic"):
        yield warning(
            "quotas",
            f"{name} has quotas for topics that don't exist: {missing}",
            f"correct the names in pocketmqMaxTopic…PerSecond, or create the topics; {docs}",
        )


def _certificate(name: str, table: dict[str, str]) -> Iterator[CheckResult]:
    """Report a broker's certificate that expires soon, or whose new files can't be used."""
    try:
        days = int(table.get("pocketmqTlsDaysLeft", ""))
    except ValueError:
        return
    docs = f"see {DOCS}security/tls.md#at-servers"
    if problem := table.get("pocketmqTlsProblem"):
        remedy = f"correct the files, then {name} uses them by itself; {docs}"
        yield failed("TLS", f"{name} still uses its files from before: {problem}", remedy)
    if days >= EXPIRY_WARNING_DAYS:
        yield ok("TLS", f"{name}'s certificate is valid for {days} days")
        return
    text = f"expires in {days} days" if days >= 0 else "has expired"
    verdict = warning if days >= 0 else failed
    remedy = f"replace its files, then {name} uses them by itself; {docs}"
    yield verdict("TLS", f"{name}'s certificate {text}", remedy)


def _damage(name: str, table: dict[str, str]) -> Iterator[CheckResult]:
    """Report damaged messages, which a PocketMQ broker doesn't deliver, and restored entries."""
    damaged = table.get("pocketmqDamagedMessages", "0")
    restored = table.get("pocketmqRestoredEntries", "0")
    store = table.get("pocketmqStorePath", "DIR")
    docs = f"see {DOCS}operating/damage.md"
    if restored != "0":
        yield warning(
            "damage",
            f"{name} has restored damaged entries of consume queues from the log: {restored}",
            f"check the disk; look for more with 'pocketmq store verify {store}'; {docs}",
        )
    if damaged != "0":
        yield failed(
            "damage",
            f"{name} does not deliver damaged messages: {damaged}",
            f"its log names them; look for more with 'pocketmq store verify {store}', restore the "
            f"store from a copy, and check the disk; {docs}",
        )
