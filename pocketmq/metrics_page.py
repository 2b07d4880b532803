"""The metrics page, rendered at each scrape from the counters of the servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

import pocketmq
from broker import fast_path
from broker.quotas import QuotaKind
from broker.store.results import SYNC_BUCKETS_SECONDS
from broker.store.retention_policy import used_limits
from broker.traffic import BYTES, DEAD, GROUP_GET, MESSAGES, TOPIC_PUT
from pocketmq.process import Durations, RequestTimes
from remoting.docs import DOCS
from remoting.protocol.bodies.description import FindingKind
from remoting.protocol.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from broker.app import Broker
    from nameserver.app import NameServer
    from remoting.counters import Counters


DROP_REASONS: Final = ("bad_frame", "idle", "slow_frame", "slow_reader", "hoarding", "slow_close")
"""Suffixes of the attributes ``Counters.dropped_<reason>``."""

TLS_FAILURES: Final = (
    *("certificate", "closed", "crowded", "invalid", "plain", "rejected", "slow", "version"),
)
"""Suffixes of the attributes ``Counters.tls_failed_<reason>``."""

OTHERS: Final = "(others)"
"""The label of what is counted together: items above the broker's limit."""

_PAIR: Final = ["topic", "group"]


class MetricsPage(Collector):
    """Collects all metrics of a process at each scrape.

    Args:
        name_servers, brokers: the servers of the process.
        times: durations of requests.
        stalls: delays of the event loop.
    """

    def __init__(
        self,
        name_servers: Sequence[NameServer],
        brokers: Sequence[Broker],
        times: RequestTimes,
        stalls: Durations,
    ) -> None:
        self._name_servers = name_servers
        self._brokers = brokers
        self._times = times
        self._stalls = stalls

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        yield InfoMetricFamily(
            "pocketmq",
            "PocketMQ's version, and whether it uses the compiled core.",
            value={"version": pocketmq.__version__, "core": fast_path.KIND},
        )
        servers: list[tuple[str, NameServer | Broker]] = [
            *(("nameserver", server) for server in self._name_servers),
            *(("broker", server) for server in self._brokers),
        ]
        yield from _sockets((name, server.counters) for name, server in servers)
        yield from _guards(servers)
        yield from _certificates(servers)
        family = HistogramMetricFamily(
            "pocketmq_request_seconds",
            "How long handlers worked on requests, without waiting for disk or messages.",
            labels=["family"],
        )
        for name, times in list(self._times.families.items()):
            family.add_metric([name], times.cumulated(), times.total)
        yield family
        yield from _loop(self._stalls)
        for name_server in self._name_servers:
            yield from _routes(name_server)
        for broker in self._brokers:
            yield from _messages(broker)
            yield from _traffic(broker)
            yield from _lags(broker)
            yield from _delays(broker)
            yield from _timers(broker)
            yield from _transactions(broker)
            yield from _store(broker)
            yield from _opening_and_index(broker)
            yield from _tables(broker)
            yield from _consumer_groups(broker)
            yield _registration(broker)


def _certificates(servers: Iterable[tuple[str, NameServer | Broker]]) -> Iterator[Metric]:
    expiry = GaugeMetricFamily(
        "pocketmq_tls_certificate_expiry_timestamp_seconds",
        "When the certificate for TLS expires, in seconds since 1970.",
        labels=["server"],
    )
    broken = GaugeMetricFamily(
        "pocketmq_tls_files_broken",
        "1 if changed TLS files can't be used, so that the ones before are still in use.",
        labels=["server"],
    )
    for name, server in servers:
        if server.tls is not None:
            expiry.add_metric([name], server.tls.expires_at)
            broken.add_metric([name], int(bool(server.tls.problem)))
    yield expiry
    yield broken


def _sockets(servers: Iterable[tuple[str, Counters]]) -> Iterator[Metric]:
    # A metric family may appear only once on the page, so it gets a row per server.
    rows = list(servers)
    gauges: dict[str, tuple[str, Callable[[Counters], int]]] = {
        "connections": (
            "Open connections.",
            lambda counters: counters.connections_accepted - counters.connections_closed,
        ),
        "tls_connections": (
            "Open connections with TLS.",
            lambda counters: counters.tls_connections,
        ),
        "requests_in_progress": (
            "Requests being handled.",
            lambda counters: counters.requests_in_progress,
        ),
        "in_flight_bytes": (
            "Bytes of the frames of these requests.",
            lambda counters: counters.bytes_in_flight,
        ),
    }
    for name, (text, read) in gauges.items():
        gauge = GaugeMetricFamily(f"pocketmq_{name}", text, labels=["server"])
        for server, counters in rows:
            gauge.add_metric([server], read(counters))
        yield gauge
    for name, attribute, text in (
        ("connections_accepted", "connections_accepted", "Connections accepted."),
        ("connections_refused", "connections_refused", "Connections beyond the limit."),
        (
            "connections_refused_by_address",
            "connections_refused_address",
            "Connections refused because their address has too many.",
        ),
        ("tls_handshakes", "tls_accepted", "TLS handshakes that ended well."),
        ("frames_received", "frames_in", "Frames received."),
        ("received_bytes", "bytes_in", "Bytes received."),
        ("sent_bytes", "bytes_out", "Bytes sent."),
        ("requests_failed", "requests_failed", "Requests whose handler failed."),
        ("requests_refused_busy", "requests_refused_busy", "Requests answered SYSTEM_BUSY."),
        ("requests_paused", "requests_paused", "Times that a connection had too many requests."),
    ):
        counter = CounterMetricFamily(f"pocketmq_{name}", text, labels=["server"])
        for server, counters in rows:
            counter.add_metric([server], getattr(counters, attribute))
        yield counter
    for name, prefix, reasons, text in (
        (
            "pocketmq_peers_dropped",
            "dropped",
            DROP_REASONS,
            "Connections closed because of their peer",
        ),
        (
            "pocketmq_tls_handshakes_failed",
            "tls_failed",
            TLS_FAILURES,
            "TLS handshakes that failed",
        ),
    ):
        counter = CounterMetricFamily(name, f"{text}, by reason.", labels=["server", "reason"])
        for server, counters in rows:
            for reason in reasons:
                counter.add_metric([server, reason], getattr(counters, f"{prefix}_{reason}"))
        yield counter


def _guards(servers: Sequence[tuple[str, NameServer | Broker]]) -> Iterator[Metric]:
    open_to_network = GaugeMetricFamily(
        "pocketmq_open_to_network",
        "1 if the server listens beyond loopback and checks no accounts.",
        labels=["server"],
    )
    denied = CounterMetricFamily(
        "pocketmq_requests_denied", "Requests that the rules of accounts deny.", labels=["server"]
    )
    broken = GaugeMetricFamily(
        "pocketmq_accounts_broken",
        "1 if the changed file of accounts can't be used, so that the rules before hold.",
        labels=["server"],
    )
    lost = CounterMetricFamily(
        "pocketmq_audit_lines_lost",
        "Lines of the audit log that were not written.",
        labels=["server"],
    )
    for name, server in servers:
        open_to_network.add_metric([name], int(server.config.open_to_network))
        guard = server.guard
        denied.add_metric([name], 0 if guard is None else guard.denied)
        broken.add_metric([name], 0 if guard is None else int(bool(guard.file.problem)))
        lost.add_metric([name], 0 if server.audit is None else server.audit.lost)
    yield from (open_to_network, denied, broken, lost)


def _loop(stalls: Durations) -> Iterator[Metric]:
    yield HistogramMetricFamily(
        "pocketmq_loop_stall_seconds",
        "Delay of a timer of the event loop: how long a callback blocked it.",
        buckets=stalls.cumulated(),
        sum_value=stalls.total,
    )
    yield GaugeMetricFamily(
        "pocketmq_loop_stall_longest_seconds", "The longest such delay.", value=stalls.longest
    )


def _routes(server: NameServer) -> Iterator[Metric]:
    routes = server.state.routes
    yield from _gauges(
        ("pocketmq_routed_brokers", "Brokers in the route table.", len(routes.brokers())),
        ("pocketmq_routed_topics", "Topics in the route table.", len(routes.topics())),
    )


def _messages(broker: Broker) -> Iterator[Metric]:
    # Messages in are counted by the store, including retries and delayed messages; messages out
    # are counted by pulls.
    counters, stats = broker.state.counters, broker.store.stats
    yield from _counters(
        ("pocketmq_messages_in", "Messages stored.", stats.puts),
        ("pocketmq_messages_in_bytes", "Bytes of the records stored.", stats.put_bytes),
        ("pocketmq_sends_failed", "Send requests that stored nothing.", counters.sends_failed),
        ("pocketmq_messages_out", "Messages delivered to consumers.", counters.messages_pulled),
        ("pocketmq_messages_out_bytes", "Bytes of the records delivered.", counters.bytes_pulled),
        (
            "pocketmq_messages_filtered",
            "Messages that pulls left out by their properties (SQL92).",
            stats.filtered_messages,
        ),
    )
    yield _by_outcome(
        "pocketmq_pulls",
        "Pull requests by outcome.",
        found=counters.pulls_found,
        missed=counters.pulls_missed,
        parked=counters.pulls_parked,
    )
    yield _by_outcome(
        "pocketmq_replies",
        "Replies by whether the client that asked took them.",
        pushed=counters.replies_pushed,
        failed=counters.replies_failed,
    )
    quotas = CounterMetricFamily(
        "pocketmq_quota_refusals", "Requests above a quota.", labels=QuotaKind._fields
    )
    for kind, refusals in broker.processors.quotas.refusals.items():
        quotas.add_metric(kind, refusals)
    yield quotas
    refused = "Requests with a code that is not supported."
    yield from _counters(
        (
            "pocketmq_commits_backwards",
            "Commits that moved an offset backwards.",
            counters.commits_backwards,
        ),
        ("pocketmq_requests_not_supported", refused, counters.requests_not_supported),
    )


def _traffic(broker: Broker) -> Iterator[Metric]:
    # The first ``lag_pairs`` have series of their own: which these are must not change.
    limit = broker.state.config.limits.lag_pairs
    for name, text, kind, column, labels in (
        ("pocketmq_topic_messages_in", "Messages sent.", TOPIC_PUT, MESSAGES, ["topic"]),
        ("pocketmq_topic_messages_in_bytes", "Bytes of them.", TOPIC_PUT, BYTES, ["topic"]),
        ("pocketmq_group_messages_out", "Messages pulled.", GROUP_GET, MESSAGES, _PAIR),
        ("pocketmq_group_messages_out_bytes", "Bytes of them.", GROUP_GET, BYTES, _PAIR),
        ("pocketmq_group_dead_letters", "Messages given up.", DEAD, MESSAGES, _PAIR),
    ):
        counter = CounterMetricFamily(name, text, labels=labels)
        traffic = broker.state.traffic
        others = traffic.others[kind].count[column]
        for number, (key, item) in enumerate(traffic.items[kind].items()):
            if number < limit:
                counter.add_metric(key.split("@", len(labels) - 1), item.count[column])
            else:
                others += item.count[column]
        if others:
            counter.add_metric([OTHERS] * len(labels), others)
        yield counter


def _lags(broker: Broker) -> Iterator[Metric]:
    messages = GaugeMetricFamily(
        "pocketmq_group_lag_messages",
        "Messages that a group has not consumed yet, as of the last sample.",
        labels=_PAIR,
    )
    seconds = GaugeMetricFamily(
        "pocketmq_group_lag_seconds", "Age of the oldest of these messages.", labels=_PAIR
    )
    for (group, topic), lag in broker.processors.stats.lags.items():
        messages.add_metric([topic, group], lag.messages)
        seconds.add_metric([topic, group], lag.seconds)
    yield messages
    yield seconds


def _delays(broker: Broker) -> Iterator[Metric]:
    counters, store = broker.state.counters, broker.store
    dead, late = counters.messages_dead_lettered, counters.messages_delivered_late
    back = counters.messages_sent_back
    yield from _counters(
        ("pocketmq_messages_delayed", "Messages sent with a delay.", counters.messages_delayed),
        ("pocketmq_messages_delivered_late", "Delayed messages and retries delivered.", late),
        ("pocketmq_messages_sent_back", "Messages that consumers sent back for a retry.", back),
        ("pocketmq_messages_dead_lettered", "Messages moved to dead-letter queues.", dead),
    )
    waiting = GaugeMetricFamily(
        "pocketmq_messages_waiting", "Messages waiting for their delay.", labels=["level"]
    )
    for queue_id in store.queue_ids(SCHEDULE_TOPIC):
        delivered = broker.state.delay_offsets.get(queue_id + 1, 0)
        count = store.max_offset(SCHEDULE_TOPIC, queue_id) - delivered
        waiting.add_metric([str(queue_id + 1)], count)
    yield waiting


def _timers(broker: Broker) -> Iterator[Metric]:
    counters, timers = broker.state.counters, broker.state.timers
    yield from _counters(
        ("pocketmq_timers_delivered", "Timer messages delivered.", counters.timers_delivered),
        ("pocketmq_timers_recalled", "Timer messages recalled.", counters.timers_recalled),
    )
    if timers is not None:
        due, late_seconds = timers.overdue()
        yield from _gauges(
            ("pocketmq_timers_waiting", "Timer messages that wait.", timers.waiting),
            ("pocketmq_timers_due", "Timer messages that are due but not delivered yet.", due),
            ("pocketmq_timers_late_seconds", "How late the first of these is.", late_seconds),
        )


def _transactions(broker: Broker) -> Iterator[Metric]:
    counters, transactions = broker.state.counters, broker.processors.transactions
    yield _by_outcome(
        "pocketmq_transactions",
        "Half messages stored, and what became of them.",
        prepared=counters.transactions_prepared,
        committed=counters.transactions_committed,
        rolled_back=counters.transactions_rolled_back,
        discarded=counters.transactions_discarded,
        refused=counters.transactions_refused,
    )
    yield from _counters(
        (
            "pocketmq_transaction_checks",
            "Producers asked about a half message.",
            counters.transaction_checks,
        ),
        (
            "pocketmq_transaction_checks_without_producer",
            "Half messages that were due for a check while no producer of the group was connected.",
            counters.transaction_checks_without_producer,
        ),
    )
    # As of the last check: looking for it at each scrape would read the store.
    oldest_ms = transactions.oldest_ms
    yield from _gauges(
        (
            "pocketmq_transactions_open",
            "Half messages that are neither committed nor rolled back.",
            transactions.open_count,
        ),
        (
            "pocketmq_transaction_oldest_seconds",
            "Age of the oldest half message that was open at the last check.",
            max(broker.state.clock.now_ms() - oldest_ms, 0) / 1000 if oldest_ms else 0,
        ),
    )


def _store(broker: Broker) -> Iterator[Metric]:
    store, stats = broker.store, broker.store.stats
    bounds = [*map(str, SYNC_BUCKETS_SECONDS), "+Inf"]
    counts = map(float, accumulate(stats.sync_buckets))
    yield HistogramMetricFamily(
        "pocketmq_fsync_seconds",
        "How long fdatasync of the commit log took.",
        buckets=list(zip(bounds, counts, strict=True)),
        sum_value=stats.sync_seconds,
    )
    yield from _counters(
        (
            "pocketmq_fsync_timeouts",
            "Messages whose sync took longer than syncFlushTimeout.",
            stats.sync_timeouts,
        ),
        (
            "pocketmq_cold_pulls",
            "Pulls of messages that were not in memory, read in a thread.",
            stats.cold_gets,
        ),
        ("pocketmq_cold_read_bytes", "Bytes read by these threads.", stats.cold_bytes),
        (
            "pocketmq_damaged_messages",
            "Damaged messages, which are not delivered; each counts once.",
            stats.damaged_messages,
        ),
        (
            "pocketmq_restored_entries",
            "Damaged entries of consume queues that were restored from the log.",
            stats.restored_entries,
        ),
    )
    offset = GaugeMetricFamily(
        "pocketmq_commit_log_offset_bytes",
        "The commit log's first, last and last durable physical offset.",
        labels=["place"],
    )
    offset.add_metric(["start"], store.start_offset)
    offset.add_metric(["end"], store.end_offset)
    offset.add_metric(["durable"], store.durable_offset)
    yield offset
    yield GaugeMetricFamily(
        "pocketmq_store_writable",
        "1 while messages can be stored, 0 while the disk is full or broken.",
        value=int(store.writable),
    )
    # The retention thread updates these numbers; reading an int needs no lock.
    yield from _retention(broker)


def _retention(broker: Broker) -> Iterator[Metric]:
    retention = broker.store.engine.retention
    deleted = retention.stats
    used = GaugeMetricFamily(
        "pocketmq_disk_used_ratio", "Used share of the disk of a directory.", labels=["path"]
    )
    free = GaugeMetricFamily(
        "pocketmq_disk_free_bytes", "Bytes that the broker may still write there.", labels=["path"]
    )
    limits = GaugeMetricFamily(
        "pocketmq_disk_limit_ratio",
        "Used share above which unexpired messages are deleted, or no message is accepted.",
        labels=["path", "limit"],
    )
    config = broker.state.config.retention
    # Use the last measurement: statvfs may block, and a scrape must be answered.
    for path, use in deleted.places:
        used.add_metric([str(path)], use.ratio)
        free.add_metric([str(path)], use.free)
        for limit, share in used_limits(config, use).items():
            limits.add_metric([str(path), limit], share)
    yield used
    yield free
    yield limits
    yield GaugeMetricFamily(
        "pocketmq_retention_seconds",
        "How long messages are kept if the disk has room for them.",
        value=config.reserved_ms / 1000,
    )
    files = CounterMetricFamily(
        "pocketmq_log_files_deleted",
        "Files of the commit log deleted by age or because the disk was too full.",
        labels=["reason"],
    )
    files.add_metric(["age"], deleted.log_files - deleted.unexpired_files)
    files.add_metric(["full_disk"], deleted.unexpired_files)
    yield files
    yield CounterMetricFamily(
        "pocketmq_log_bytes_deleted", "Bytes of the deleted files.", value=deleted.log_bytes
    )
    yield GaugeMetricFamily(
        "pocketmq_deleted_bytes_held",
        "Bytes of deleted files that slow readers still use.",
        value=retention.held_bytes,
    )
    yield CounterMetricFamily(
        "pocketmq_deletions_failed",
        "Old files that could not be removed.",
        value=retention.failures,
    )


def _opening_and_index(broker: Broker) -> Iterator[Metric]:
    """Yield metrics of the last recovery and of the index."""
    found, index = broker.store.recovery, broker.store.engine.index
    for name, text, value in (
        ("recovery_seconds", "How long opening the store took at the start.", found.seconds),
        ("recovery_records", "Records checked by the recovery.", found.scanned_records),
        (
            "recovery_stepped_over",
            "Damaged places in the middle of the log that the recovery skipped.",
            found.damaged_records,
        ),
        (
            "recovery_cut_bytes",
            "Bytes after the last valid record that were cut off.",
            found.cut_bytes,
        ),
        (
            "offsets_lost",
            "1 if the store had messages but no consumer offsets at the start.",
            int(broker.state.offsets_lost),
        ),
        ("index_backlog_bytes", "Log that is not indexed yet.", index.backlog_bytes),
        (
            "index_broken",
            "1 while messages can't be indexed, so that they can't be found by key.",
            int(index.trouble is not None),
        ),
    ):
        yield GaugeMetricFamily(f"pocketmq_{name}", text, value=value)


def _tables(broker: Broker) -> Iterator[Metric]:
    state = broker.state
    for name, text, value in (
        ("topics", "Topics, the system's included.", len(state.topics.table)),
        ("groups", "Subscription groups.", len(state.groups.table)),
        ("consumer_groups_online", "Consumer groups with members.", len(state.consumers.groups)),
        ("consumer_filters", "SQL92 filters of consumer groups.", len(state.filters)),
        ("parked_pulls", "Pulls held until a message arrives.", len(state.long_polls)),
    ):
        yield GaugeMetricFamily(f"pocketmq_{name}", text, value=value)


def _consumer_groups(broker: Broker) -> Iterator[Metric]:
    state = broker.state
    active = GaugeMetricFamily(
        "pocketmq_group_findings",
        f"Current problems of consumer groups; {DOCS}consumer-groups.md explains each kind.",
        labels=["group", "kind"],
    )
    age = GaugeMetricFamily(
        "pocketmq_group_finding_seconds",
        "Age of the oldest current finding of a kind.",
        labels=["group", "kind"],
    )
    now_ms = state.clock.now_ms()
    for group, kind, count, since_ms in state.findings.counts():
        active.add_metric([group, kind], count)
        age.add_metric([group, kind], max(now_ms - since_ms, 0) / 1000)
    yield active
    yield age
    begun = CounterMetricFamily(
        "pocketmq_group_findings_begun",
        "Findings since the start, by kind.",
        labels=["kind"],
    )
    for finding_kind in FindingKind:
        begun.add_metric([finding_kind], state.findings.begun[finding_kind])
    yield begun
    yield CounterMetricFamily(
        "pocketmq_members_refused",
        "Consumers refused because they contradict the members of their group.",
        value=state.counters.members_refused,
    )


def _registration(broker: Broker) -> Metric:
    gauge = GaugeMetricFamily(
        "pocketmq_registered",
        "1 while the broker is registered with this name server.",
        labels=["nameserver"],
    )
    for standing in broker.registration.states if broker.registration is not None else ():
        gauge.add_metric([standing.address], int(standing.registered))
    return gauge


def _by_outcome(name: str, text: str, **counts: float) -> Metric:
    """Return a counter with the label ``outcome``."""
    family = CounterMetricFamily(name, text, labels=["outcome"])
    for outcome, count in counts.items():
        family.add_metric([outcome], count)
    return family


def _counters(*rows: tuple[str, str, float]) -> Iterator[Metric]:
    """Return counters without labels from name, help and value."""
    return (CounterMetricFamily(name, text, value=value) for name, text, value in rows)


def _gauges(*rows: tuple[str, str, float]) -> Iterator[Metric]:
    """Return gauges without labels from name, help and value."""
    return (GaugeMetricFamily(name, text, value=value) for name, text, value in rows)
