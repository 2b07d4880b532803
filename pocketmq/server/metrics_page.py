"""The metrics page: a table of metrics, each with how its values are read from a server.

The values of a scrape are read in one call on the event loop, whose tables change all the time; the
page is made from them in the thread of the scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from prometheus_client import core
from prometheus_client.registry import Collector

import pocketmq
from broker import fast_path
from broker.store.results import SYNC_BUCKETS_SECONDS
from broker.store.retention_policy import used_limits
from broker.traffic.counts import BYTES, DEAD, GROUP_GET, MESSAGES, TOPIC_PUT
from broker.traffic.quotas import QuotaKind
from pocketmq.server.process import Durations, RequestTimes
from remoting.counters import CloseReason, TlsFailure
from remoting.protocol.bodies.description import FindingKind
from remoting.protocol.names import SCHEDULE_TOPIC
from remoting.runtime import DOCS

if TYPE_CHECKING:
    from broker.app import Broker
    from broker.store.results import StoreStats
    from broker.store.retention import Retention
    from broker.traffic.counts import BrokerCounters
    from nameserver.app import NameServer
    from remoting.counters import Counters


OTHERS: Final = "(others)"
"""The label of what is counted together: items above the broker's limit."""

COUNTER = core.CounterMetricFamily
GAUGE = core.GaugeMetricFamily
HISTOGRAM = core.HistogramMetricFamily

_T = TypeVar("_T")

Buckets = tuple[Sequence[tuple[str, float]], float]
"""A histogram: its cumulated buckets, and the sum of all values."""

Value = float | Buckets
Sample = tuple[Sequence[str], Value]
"""The values of a metric's labels, and its value."""

Values = Value | Iterable[Sample]
"""The value of a metric, or one for each value of its labels."""


class Metric(NamedTuple, Generic[_T]):
    """A metric: its kind, name and help, what reads its values, and the names of its labels.

    It isn't on the page while it has no values: None.
    """

    kind: type[COUNTER | GAUGE | HISTOGRAM]
    name: str
    text: str
    read: Callable[[_T], Values | None]
    labels: tuple[str, ...] = ()


Snapshot = list[tuple[Metric[Any], list[tuple[Sequence[str], Values]]]]
"""Metrics, each with the label of a server and that server's values at one moment."""


class MetricsPage(Collector):
    """Collects all metrics of a process at each scrape.

    Args:
        name_servers, brokers: the servers of the process.
        times: durations of requests.
        stalls: delays of the event loop.
        on_loop: calls a function on the servers' event loop and returns its result; by default
            ``collect`` itself is called there.
    """

    def __init__(
        self,
        name_servers: Sequence[NameServer],
        brokers: Sequence[Broker],
        times: RequestTimes,
        stalls: Durations,
        on_loop: Callable[[Callable[[], Snapshot]], Snapshot] = lambda read: read(),
    ) -> None:
        self._name_servers, self._brokers = name_servers, brokers
        self._times, self._stalls = times, stalls
        self._on_loop = on_loop

    def _sources(self) -> list[tuple[Sequence[Metric[Any]], list[tuple[Sequence[str], Any]]]]:
        """Return each table with what its rows read now: a switch replaces a broker's parts."""
        name_servers = self._name_servers
        brokers = [broker for broker in self._brokers if broker.serving]
        servers: list[tuple[str, NameServer | Broker]] = [
            *(("nameserver", server) for server in name_servers),
            *(("broker", server) for server in brokers),
        ]
        return [
            (_COUNTERS, [((name,), server.counters) for name, server in servers]),
            (_SERVER, [((name,), server) for name, server in servers]),
            (_PROCESS, [((), (self._times, self._stalls))]),
            (_NAME_SERVER, [((), server) for server in name_servers]),
            (_BROKER_COUNTERS, [((), broker.state.counters) for broker in brokers]),
            (_STORE_STATS, [((), broker.store.stats) for broker in brokers]),
            (_RETENTION, [((), broker.store.retention) for broker in brokers]),
            (_BROKER, [((), broker) for broker in brokers]),
            (OF_PAIRS, [((), broker) for broker in brokers]),
        ]

    def collect(self) -> Iterator[core.Metric]:
        """Yield the current metrics."""
        yield core.InfoMetricFamily(
            "pocketmq",
            "PocketMQ's version, and whether it uses the compiled core.",
            value={"version": pocketmq.__version__, "core": fast_path.KIND},
        )
        for row, parts in self._on_loop(self._read):
            names = ("server", *row.labels) if parts[0][0] else row.labels
            family = row.kind(f"pocketmq_{row.name}", row.text, labels=names)
            for server, values in parts:
                for labels, value in _samples(values):
                    numbers = value if isinstance(value, tuple) else (value,)
                    family.add_metric([*server, *labels], *numbers)
            yield family

    def _read(self) -> Snapshot:
        """Read all values; on the event loop, whose tables change between its callbacks."""
        snapshot: Snapshot = []
        for rows, sources in self._sources():
            for row in rows:
                values = [(server, row.read(source)) for server, source in sources]
                parts = [(server, value) for server, value in values if value is not None]
                if parts:
                    snapshot.append((row, parts))
        return snapshot


# --- values with labels


def _samples(values: Values) -> Iterable[Sample]:
    return [((), values)] if isinstance(values, (int, float, tuple)) else values


def _by(counts: Mapping[str, float]) -> Iterable[Sample]:
    return [((name,), count) for name, count in counts.items()]


def _traffic(broker: Broker, kind: str, column: int) -> Iterable[Sample]:
    traffic = broker.state.traffic
    # The first items have series of their own: which these are must not change.
    limit, width = broker.state.config.limits.lag_pairs, 1 if kind == TOPIC_PUT else 2
    # Two lists: a list of 20,000 pairs starts a garbage collection, of 70 ms.
    keys, items = list(traffic.items[kind]), list(traffic.items[kind].values())
    rest = traffic.others[kind]

    def counts() -> Iterator[Sample]:
        # In the thread of the scrape, because there may be 20,000.
        for key, item in zip(keys[:limit], items, strict=False):
            yield key.split("@", width - 1), item.count[column]
        others = rest.count[column] + sum(item.count[column] for item in items[limit:])
        if others:
            yield [OTHERS] * width, others

    return counts()


def _transactions(counters: BrokerCounters) -> Iterable[Sample]:
    return _by(
        {
            "prepared": counters.transactions_prepared,
            "committed": counters.transactions_committed,
            "rolled_back": counters.transactions_rolled_back,
            "refused": counters.transactions_refused,
            "discarded": counters.transactions_discarded,
        }
    )


def _waiting(broker: Broker) -> Iterable[Sample]:
    store, delivered = broker.store, broker.state.delay_offsets
    return [
        (
            (str(queue_id + 1),),
            store.queries.max_offset(SCHEDULE_TOPIC, queue_id) - delivered.get(queue_id + 1, 0),
        )
        for queue_id in store.queues.queue_ids(SCHEDULE_TOPIC)
    ]


def _lags(broker: Broker, field: str) -> Iterable[Sample]:
    lags = broker.processors.sampler.lags.items()
    return [((topic, group), getattr(lag, field)) for (group, topic), lag in lags]


def _oldest_seconds(broker: Broker) -> float:
    # As of the last check: looking for it at each scrape would read the store.
    oldest_ms = broker.state.transactions.oldest_ms
    return max(broker.state.clock.now_ms() - oldest_ms, 0) / 1000 if oldest_ms else 0


def _fsync_seconds(broker: Broker) -> Buckets:
    stats = broker.store.stats
    counts = map(float, accumulate(stats.sync_buckets))
    bounds = [*map(str, SYNC_BUCKETS_SECONDS), "+Inf"]
    return list(zip(bounds, counts, strict=True)), stats.sync_seconds


def _log_offsets(broker: Broker) -> Iterable[Sample]:
    store = broker.store
    ends = {"start": store.log.start, "end": store.log.end, "durable": store.syncer.log.flushed}
    return _by(ends)


def _disk_limits(broker: Broker) -> Iterable[Sample]:
    config = broker.state.config.retention
    return [
        ((str(path), limit), share)
        for path, use in broker.store.retention.stats.places
        for limit, share in used_limits(config, use).items()
    ]


def _files_deleted(retention: Retention) -> Iterable[Sample]:
    deleted = retention.stats
    by_age = deleted.log_files - deleted.unexpired_files
    return _by({"age": by_age, "full_disk": deleted.unexpired_files})


def _finding_ages(broker: Broker) -> Iterable[Sample]:
    now_ms = broker.state.clock.now_ms()
    findings = broker.state.findings.counts()
    return [((group, kind), max(now_ms - since, 0) / 1000) for group, kind, _, since in findings]


# --- the metrics

_PAIR: Final = ("topic", "group")

# fmt: off
_COUNTERS: Final[Sequence[Metric[Counters]]] = (
    Metric(GAUGE, "connections", "Open connections.",
        lambda c: c.connections_accepted - c.connections_closed),
    Metric(GAUGE, "tls_connections", "Open connections with TLS.",
        lambda c: c.tls_connections),
    Metric(GAUGE, "requests_in_progress", "Requests being handled.",
        lambda c: c.requests_in_progress),
    Metric(GAUGE, "in_flight_bytes", "Bytes of the frames of these requests.",
        lambda c: c.bytes_in_flight),
    Metric(COUNTER, "connections_accepted", "Connections accepted.",
        lambda c: c.connections_accepted),
    Metric(COUNTER, "connections_refused", "Connections beyond the limit.",
        lambda c: c.connections_refused),
    Metric(COUNTER, "connections_refused_by_address",
        "Connections refused because their address has too many.",
        lambda c: c.connections_refused_address),
    Metric(COUNTER, "tls_handshakes", "TLS handshakes that ended well.",
        lambda c: c.tls_accepted),
    Metric(COUNTER, "frames_received", "Frames received.", lambda c: c.frames_in),
    Metric(COUNTER, "received_bytes", "Bytes received.", lambda c: c.bytes_in),
    Metric(COUNTER, "sent_bytes", "Bytes sent.", lambda c: c.bytes_out),
    Metric(COUNTER, "requests_failed", "Requests whose handler failed.",
        lambda c: c.requests_failed),
    Metric(COUNTER, "requests_refused_busy", "Requests answered SYSTEM_BUSY.",
        lambda c: c.requests_refused_busy),
    Metric(COUNTER, "requests_paused", "Times that a connection had too many requests.",
        lambda c: c.requests_paused),
    Metric(COUNTER, "peers_dropped", "Connections closed because of their peer, by reason.",
        lambda c: _by({reason.name.lower(): c.dropped[reason] for reason in CloseReason}),
        ("reason",)),
    Metric(COUNTER, "tls_handshakes_failed", "TLS handshakes that failed, by reason.",
        lambda c: _by({reason: c.tls_failed[reason] for reason in TlsFailure}), ("reason",)),
)
_SERVER: Final[Sequence[Metric[NameServer | Broker]]] = (
    Metric(GAUGE, "open_to_network",
        "1 if the server listens beyond loopback and checks no accounts.",
        lambda s: s.config.open_to_network),
    Metric(COUNTER, "requests_denied", "Requests that the rules of accounts deny.",
        lambda s: s.guard.denied if s.guard else 0),
    Metric(GAUGE, "accounts_broken",
        "1 if the changed file of accounts can't be used, so that the rules before hold.",
        lambda s: bool(s.guard and s.guard.file.problem)),
    Metric(COUNTER, "audit_lines_lost", "Lines of the audit log that were not written.",
        lambda s: s.audit.lost if s.audit else 0),
    Metric(GAUGE, "tls_certificate_expiry_timestamp_seconds",
        "When the certificate for TLS expires, in seconds since 1970.",
        lambda s: s.tls.expires_at if s.tls else []),
    Metric(GAUGE, "tls_files_broken",
        "1 if changed TLS files can't be used, so that the ones before are still in use.",
        lambda s: bool(s.tls.problem) if s.tls else []),
)
_PROCESS: Final[Sequence[Metric[tuple[RequestTimes, Durations]]]] = (
    Metric(HISTOGRAM, "request_seconds",
        "How long handlers worked on requests, without waiting for disk or messages.",
        lambda p: [((name,), t.histogram()) for name, t in p[0].families.items()], ("family",)),
    Metric(HISTOGRAM, "loop_stall_seconds",
        "Delay of a timer of the event loop: how long a callback blocked it.",
        lambda p: p[1].histogram()),
    Metric(GAUGE, "loop_stall_longest_seconds", "The longest such delay.", lambda p: p[1].longest),
)
_NAME_SERVER: Final[Sequence[Metric[NameServer]]] = (
    Metric(GAUGE, "routed_brokers", "Brokers in the route table.",
        lambda server: len(server.state.routes.brokers())),
    Metric(GAUGE, "routed_topics", "Topics in the route table.",
        lambda server: len(server.state.routes.topics())),
)
_BROKER_COUNTERS: Final[Sequence[Metric[BrokerCounters]]] = (
    Metric(COUNTER, "sends_failed", "Send requests that stored nothing.", lambda c: c.sends_failed),
    Metric(COUNTER, "messages_out", "Messages delivered to consumers.",
        lambda c: c.messages_pulled),
    Metric(COUNTER, "messages_out_bytes", "Bytes of the records delivered.",
        lambda c: c.bytes_pulled),
    Metric(COUNTER, "pulls", "Pull requests by outcome.",
        lambda c: _by({"found": c.pulls_found, "missed": c.pulls_missed, "parked": c.pulls_parked}),
        ("outcome",)),
    Metric(COUNTER, "replies", "Replies by whether the client that asked took them.",
        lambda c: _by({"pushed": c.replies_pushed, "failed": c.replies_failed}), ("outcome",)),
    Metric(COUNTER, "commits_backwards", "Commits that moved an offset backwards.",
        lambda c: c.commits_backwards),
    Metric(COUNTER, "requests_not_supported", "Requests with a code that is not supported.",
        lambda c: c.requests_not_supported),
    Metric(COUNTER, "messages_delayed", "Messages sent with a delay.",
        lambda c: c.messages_delayed),
    Metric(COUNTER, "messages_delivered_late", "Delayed messages and retries delivered.",
        lambda c: c.messages_delivered_late),
    Metric(COUNTER, "messages_sent_back", "Messages that consumers sent back for a retry.",
        lambda c: c.messages_sent_back),
    Metric(COUNTER, "messages_dead_lettered", "Messages moved to dead-letter queues.",
        lambda c: c.messages_dead_lettered),
    Metric(COUNTER, "timers_delivered", "Timer messages delivered.", lambda c: c.timers_delivered),
    Metric(COUNTER, "timers_recalled", "Timer messages recalled.", lambda c: c.timers_recalled),
    Metric(COUNTER, "transactions", "Half messages stored, and what became of them.",
        _transactions, ("outcome",)),
    Metric(COUNTER, "transaction_checks", "Producers asked about a half message.",
        lambda c: c.transaction_checks),
    Metric(COUNTER, "transaction_checks_without_producer",
        "Half messages that were due for a check while no producer of the group was connected.",
        lambda c: c.transaction_checks_without_producer),
    Metric(COUNTER, "members_refused",
        "Consumers refused because they contradict the members of their group.",
        lambda c: c.members_refused),
)
_STORE_STATS: Final[Sequence[Metric[StoreStats]]] = (
    Metric(COUNTER, "messages_in", "Messages stored.", lambda s: s.puts),
    Metric(COUNTER, "messages_in_bytes", "Bytes of the records stored.",
        lambda s: s.put_bytes),
    Metric(COUNTER, "messages_filtered",
        "Messages that pulls left out by their properties (SQL92).",
        lambda s: s.filtered_messages),
    Metric(COUNTER, "fsync_timeouts", "Messages whose sync took longer than syncFlushTimeout.",
        lambda s: s.sync_timeouts),
    Metric(COUNTER, "cold_pulls", "Pulls of messages that were not in memory, read in a thread.",
        lambda s: s.cold_gets),
    Metric(COUNTER, "cold_read_bytes", "Bytes read by these threads.", lambda s: s.cold_bytes),
    Metric(COUNTER, "damaged_messages",
        "Damaged messages, which are not delivered; each counts once.",
        lambda s: s.damaged_messages),
    Metric(COUNTER, "restored_entries",
        "Damaged entries of consume queues that were restored from the log.",
        lambda s: s.restored_entries),
)
_RETENTION: Final[Sequence[Metric[Retention]]] = (
    Metric(GAUGE, "disk_used_ratio", "Used share of the disk of a directory.",
        lambda r: [((str(path),), use.ratio) for path, use in r.stats.places], ("path",)),
    Metric(GAUGE, "disk_free_bytes", "Bytes that the broker may still write there.",
        lambda r: [((str(path),), use.free) for path, use in r.stats.places], ("path",)),
    Metric(COUNTER, "log_files_deleted",
        "Files of the commit log deleted by age or because the disk was too full.",
        _files_deleted, ("reason",)),
    Metric(COUNTER, "log_bytes_deleted", "Bytes of the deleted files.",
        lambda r: r.stats.log_bytes),
    Metric(GAUGE, "deleted_bytes_held", "Bytes of deleted files that slow readers still use.",
        lambda r: r.removals.held_bytes),
    Metric(COUNTER, "deletions_failed", "Old files that could not be removed.",
        lambda r: r.removals.failures),
)
OF_PAIRS: Final[Sequence[Metric[Broker]]] = (
    Metric(GAUGE, "slaves", "Slaves that are connected to a master of this role.",
        lambda b: [((b.config.broker_role,), len(b.state.slaves.links))]
        if b.state.slaves else None, ("role",)),
    Metric(GAUGE, "slave_lag_bytes", "Bytes of the log that a slave has not acknowledged.",
        lambda b: [((link.address,), b.store.log.end - link.stream.acked)
                   for link in b.state.slaves.links] if b.state.slaves else None, ("slave",)),
    Metric(GAUGE, "replication_connected", "1 while a slave gets its master's log, else 0.",
        lambda b: b.state.replica.state.connected if b.state.replica else None),
    Metric(GAUGE, "replication_differs", "1 if a slave's log differs from its master's, else 0.",
        lambda b: b.state.replica.state.differs if b.state.replica else None),
    Metric(GAUGE, "replication_lag_bytes", "Bytes of its master's log that a slave lacks.",
        lambda b: b.state.replica.lag_bytes if b.state.replica else None),
    Metric(GAUGE, "replication_lag_seconds",
        "How much older a slave's newest message is than its master's.",
        lambda b: b.state.replica.lag_seconds if b.state.replica else None),
    Metric(GAUGE, "elected", "1 while the broker is the master that a controller elected, else 0.",
        lambda b: b.state.group.is_master if b.state.group else None),
    Metric(GAUGE, "elected_epoch", "The epoch of the master that the broker knows; 0: of none.",
        lambda b: b.state.group.role.epoch if b.state.group else None),
    Metric(GAUGE, "replicas_in_sync", "Replicas in sync, the master itself counted.",
        lambda b: len(b.state.group.members)
        if b.state.group and b.state.group.is_master else None),
)
"""On the pages of masters that serve slaves, of slaves, and of members of a controller's group."""

_BROKER: Final[Sequence[Metric[Broker]]] = (
    Metric(COUNTER, "quota_refusals", "Requests above a quota.",
        lambda b: list(b.processors.quotas.refusals.items()), QuotaKind._fields),
    Metric(COUNTER, "topic_messages_in", "Messages sent.",
        lambda b: _traffic(b, TOPIC_PUT, MESSAGES), ("topic",)),
    Metric(COUNTER, "topic_messages_in_bytes", "Bytes of the records sent.",
        lambda b: _traffic(b, TOPIC_PUT, BYTES), ("topic",)),
    Metric(COUNTER, "group_messages_out", "Messages pulled.",
        lambda b: _traffic(b, GROUP_GET, MESSAGES), _PAIR),
    Metric(COUNTER, "group_messages_out_bytes", "Bytes of the records pulled.",
        lambda b: _traffic(b, GROUP_GET, BYTES), _PAIR),
    Metric(COUNTER, "group_dead_letters", "Messages given up.",
        lambda b: _traffic(b, DEAD, MESSAGES), _PAIR),
    Metric(GAUGE, "group_lag_messages",
        "Messages that a group has not consumed yet, as of the last sample.",
        lambda b: _lags(b, "messages"), _PAIR),
    Metric(GAUGE, "group_lag_seconds", "Age of the oldest of these messages.",
        lambda b: _lags(b, "seconds"), _PAIR),
    Metric(GAUGE, "messages_waiting", "Messages waiting for their delay.", _waiting, ("level",)),
    Metric(GAUGE, "timers_waiting", "Timer messages that wait.",
        lambda b: b.state.timers.waiting if b.state.timers else None),
    Metric(GAUGE, "timers_due", "Timer messages that are due but not delivered yet.",
        lambda b: b.state.timers.overdue()[0] if b.state.timers else None),
    Metric(GAUGE, "timers_late_seconds", "How late the first of these is.",
        lambda b: b.state.timers.overdue()[1] if b.state.timers else None),
    Metric(GAUGE, "transactions_open", "Half messages that are neither committed nor rolled back.",
        lambda b: b.state.transactions.open_count),
    Metric(GAUGE, "transaction_oldest_seconds",
        "Age of the oldest half message that was open at the last check.", _oldest_seconds),
    Metric(HISTOGRAM, "fsync_seconds", "How long fdatasync of the commit log took.",
        _fsync_seconds),
    Metric(GAUGE, "commit_log_offset_bytes",
        "The commit log's first, last and last durable physical offset.", _log_offsets, ("place",)),
    Metric(GAUGE, "store_writable",
        "1 while messages can be stored, 0 while the disk is full or broken.",
        lambda b: b.store.writable),
    Metric(GAUGE, "disk_limit_ratio",
        "Used share above which unexpired messages are deleted, or no message is accepted.",
        _disk_limits, ("path", "limit")),
    Metric(GAUGE, "retention_seconds", "How long messages are kept if the disk has room for them.",
        lambda b: b.state.config.retention.reserved_ms / 1000),
    Metric(GAUGE, "recovery_seconds", "How long opening the store took at the start.",
        lambda b: b.store.recovery.seconds),
    Metric(GAUGE, "recovery_records", "Records checked by the recovery.",
        lambda b: b.store.recovery.scanned_records),
    Metric(GAUGE, "recovery_stepped_over",
        "Damaged places in the middle of the log that the recovery skipped.",
        lambda b: b.store.recovery.damaged_records),
    Metric(GAUGE, "recovery_cut_bytes", "Bytes after the last valid record that were cut off.",
        lambda b: b.store.recovery.cut_bytes),
    Metric(GAUGE, "offsets_lost",
        "1 if the store had messages but no consumer offsets at the start.",
        lambda b: b.state.offsets_lost),
    Metric(GAUGE, "index_backlog_bytes", "Log that is not indexed yet.",
        lambda b: b.store.index.backlog_bytes),
    Metric(GAUGE, "index_broken",
        "1 while messages can't be indexed, so that they can't be found by key.",
        lambda b: b.store.index.trouble is not None),
    Metric(GAUGE, "topics", "Topics, the system's included.", lambda b: len(b.state.topics.table)),
    Metric(GAUGE, "groups", "Subscription groups.", lambda b: len(b.state.groups.table)),
    Metric(GAUGE, "consumer_groups_online", "Consumer groups with members.",
        lambda b: len(b.state.consumers.groups)),
    Metric(GAUGE, "consumer_filters", "SQL92 filters of consumer groups.",
        lambda b: len(b.state.filters)),
    Metric(GAUGE, "parked_pulls", "Pulls held until a message arrives.",
        lambda b: len(b.state.long_polls)),
    Metric(GAUGE, "group_findings",
        f"Current problems of consumer groups; {DOCS}consumer-groups.md explains each kind.",
        lambda b: [((group, kind), count) for group, kind, count, _ in b.state.findings.counts()],
        ("group", "kind")),
    Metric(GAUGE, "group_finding_seconds", "Age of the oldest current finding of a kind.",
        _finding_ages, ("group", "kind")),
    Metric(COUNTER, "group_findings_begun", "Findings since the start, by kind.",
        lambda b: _by({kind: b.state.findings.begun[kind] for kind in FindingKind}), ("kind",)),
    Metric(GAUGE, "registered", "1 while the broker is registered with this name server.",
        lambda b: _by({state.address: state.registered for state in b.registration.states})
        if b.registration else [], ("nameserver",)),
)
# fmt: on
