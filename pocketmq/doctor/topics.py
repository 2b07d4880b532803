"""Checks of one topic: route, permissions and consumers."""

from __future__ import annotations

from collections.abc import Iterator

from pocketmq.doctor.case import Case, CheckResult, failed, ok
from pocketmq.output import count
from pocketmq.probe import NoAnswer
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.bodies.stats import GroupList
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader, TopicRequestHeader
from remoting.protocol.names import PERM_READ, PERM_WRITE


def topic(case: Case) -> Iterator[CheckResult]:
    """If a topic is named, check it."""
    if case.topic is None or not case.brokers:
        return
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
    yield from _consumers(case, case.topic)


def _consumers(case: Case, topic: str) -> Iterator[CheckResult]:
    """Report the groups that consume the topic."""
    header = TopicRequestHeader(topic=topic)
    answers = case.ask_masters(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, GroupList, header)
    groups = {group for answer in answers for group in answer.group_list}
    if groups:
        names = ", ".join(sorted(groups))
        yield ok("consumers", f"{topic} is consumed by {names}; each group gets every message")


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
