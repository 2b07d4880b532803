"""Checks of one topic: route, permissions and consumers; and of all: brokers that lack them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pocketmq.doctor.case import Case, CheckResult, failed, ok, warning
from pocketmq.output import count
from pocketmq.server.probe import NoAnswer
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.bodies.stats import ConsumeStats, GroupList
from remoting.protocol.bodies.topic import TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader, TopicRequestHeader
from remoting.protocol.headers.query import GetConsumeStatsRequestHeader
from remoting.protocol.names import PERM_READ, PERM_WRITE, is_internal_topic

NAMED_TOPICS: Final = 5
"""The most topics that are named for being at some brokers only."""


def topic(case: Case) -> Iterator[CheckResult]:
    """If a topic is named, check it."""
    if case.topic is None or not case.brokers:
        return
    reads: dict[str, int] = {}
    header = GetRouteInfoRequestHeader(topic=case.topic, accept_standard_json_only=True)
    for address in case.name_servers:
        if address not in case.answering:
            continue
        try:
            route = case.ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicRouteData, header)
        except NoAnswer as problem:
            if problem.code == ResponseCode.TOPIC_NOT_EXIST:
                text = f"{address} has no topic {case.topic}"
                yield failed("topic", text, f"pocketmq topic create {case.topic}")
            else:
                yield failed("topic", str(problem), "look at the name server's log")
            continue
        yield from _queues(case.topic, address, route)
        reads |= {data.broker_name: data.read_queue_nums for data in route.queue_datas}
    yield from _consumers(case, case.topic, reads)


def _consumers(case: Case, topic: str, reads: Mapping[str, int]) -> Iterator[CheckResult]:
    """Report the groups that consume the topic, and messages that they can't read any more.

    Args:
        case: the cluster.
        topic: the topic.
        reads: its number of read queues, by broker.
    """
    header = TopicRequestHeader(topic=topic)
    answers = case.ask_masters(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, GroupList, header)
    groups = {group for answer in answers for group in answer.group_list}
    if groups:
        names = ", ".join(sorted(groups))
        yield ok("consumers", f"{topic} is consumed by {names}; each group gets every message")
    for group in sorted(groups):
        code = RequestCode.GET_CONSUME_STATS
        request = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        beyond = {
            queue: progress.broker_offset - progress.consumer_offset
            for stats in case.ask_masters(code, ConsumeStats, request)
            for queue, progress in stats.offset_table.items()
            if queue.queue_id >= reads.get(queue.broker_name, queue.queue_id + 1)
        }
        if beyond:
            yield warning(
                "queues",
                f"{count(sum(beyond.values()), 'message')} of {topic} that {group} hasn't read are"
                " in queues that it has no longer",
                f"pocketmq topic update {topic} --read-queues"
                f" {max(queue.queue_id for queue in beyond) + 1} has them read",
            )


def _queues(topic: str, address: str, route: TopicRouteData) -> Iterator[CheckResult]:
    writable = sum(q.write_queue_nums for q in route.queue_datas if q.perm & PERM_WRITE)
    readable = sum(q.read_queue_nums for q in route.queue_datas if q.perm & PERM_READ)
    yield ok("route", f"{address} lists {topic} at {count(len(route.queue_datas), 'broker')}")
    for number, word, perm in ((writable, "write to", "w"), (readable, "read from", "r")):
        if number:
            yield ok("permission", f"{count(number, 'queue')} of {topic} to {word}")
        else:
            yield failed(
                "permission",
                f"no queue of {topic} to {word}",
                f"pocketmq topic update {topic} --permission rw gives it {perm}",
            )


def spread(case: Case) -> Iterator[CheckResult]:
    """Find topics, or the one named, that some masters of a cluster lack.

    A send creates a topic only at the broker that it reaches.
    """
    for cluster in sorted({*case.clusters.values()}):
        held = _topics_by_broker(case, cluster)
        if len(held) < 2:
            continue
        everything = {topic for topics in held.values() for topic in topics}
        partial = sorted(t for t in everything if not all(t in topics for topics in held.values()))
        if case.topic is not None:
            partial = [topic for topic in partial if topic == case.topic]
        for topic in partial[:NAMED_TOPICS]:
            having = ", ".join(name for name, topics in held.items() if topic in topics)
            lacking = ", ".join(name for name, topics in held.items() if topic not in topics)
            yield warning(
                "spread",
                f"topic {topic} of cluster {cluster} is at {having}, but not at {lacking}",
                f"unless that is intended: pocketmq topic update {topic} --everywhere",
            )
        if len(partial) > NAMED_TOPICS:
            yield warning(
                "spread",
                f"{len(partial) - NAMED_TOPICS} more topics of cluster {cluster} are at some of "
                "its brokers only",
                "pocketmq doctor --topic TOPIC names the brokers",
            )


def _topics_by_broker(case: Case, cluster: str) -> dict[str, set[str]]:
    """Return the topics of each master of a cluster that answers, if it has several."""
    masters = {name: at for name, at in case.masters.items() if case.clusters[name] == cluster}
    # RocketMQ's brokers have topics with the names of brokers and clusters.
    internal = {*case.clusters, *case.clusters.values()}
    held: dict[str, set[str]] = {}
    for name, address in masters.items() if len(masters) > 1 else ():
        try:
            body = case.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigSerializeWrapper)
        except NoAnswer:
            continue
        topics = body.topic_config_table.keys() - internal
        held[name] = {topic for topic in topics if not is_internal_topic(topic)}
    return held
