"""The doctor's findings about consumer groups, at our brokers and at Apache's."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.doctor import Case, CheckResult, CheckVerdict
from pocketmq.doctor.groups import all_groups, group
from pocketmq.doctor.topics import topic
from pocketmq.server.probe import NoAnswer
from remoting.protocol.bodies.clients import ConnectionInfo, ConsumerConnection, ConsumerRunningInfo
from remoting.protocol.bodies.description import (
    FindingKind,
    GroupDescriptionBody,
    GroupFinding,
    GroupMemberInfo,
    GroupQueueInfo,
)
from remoting.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from remoting.protocol.bodies.stats import (
    ConsumeStats,
    GroupList,
    OffsetWrapper,
    TopicOffset,
    TopicStatsTable,
)
from remoting.protocol.codes import RequestCode
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue
from tests.support.clock import ManualClock

BROKER = "10.0.0.2:10911"
CLOCK = ManualClock()
DESCRIBE = OwnRequestCode.DESCRIBE_CONSUMER_GROUP
QUEUE = MessageQueue("orders", "a", 0)


class Brokers(dict[int, Any]):
    """One broker's answers by request; other requests are refused."""

    def ask(self, _: str, code: int, *__: object, **___: object) -> Any:
        answer = self.get(code, NoAnswer(f"code {code} is refused", 1))
        if isinstance(answer, NoAnswer):
            raise answer
        return answer


@pytest.fixture
def broker() -> Brokers:
    """A broker of ours with a healthy group of one member."""
    answers = Brokers()
    answers[DESCRIBE] = description()
    answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = ConsumerConnection(
        connection_set=[ConnectionInfo(client_id="m")]
    )
    answers[RequestCode.GET_CONSUME_STATS] = ConsumeStats(
        offset_table={QUEUE: OffsetWrapper(broker_offset=5, consumer_offset=5)}
    )
    return answers


def description(**changes: Any) -> GroupDescriptionBody:
    member = GroupMemberInfo(client_id="m", last_heartbeat_ms=CLOCK.now_ms() - 1000)
    queues = [GroupQueueInfo(topic="orders", queue_id=0, max_offset=5, committed=5)]
    return GroupDescriptionBody(**{"members": [member], "queues": queues, **changes})


def case(broker: Brokers, name: str | None = "g", **more: Any) -> Case:
    return Case(
        ask=broker.ask,
        name_servers=[],
        group=name,
        clock=CLOCK,
        brokers={"a": {0: BROKER}},
        answering=[BROKER],
        **more,
    )


def bad(broker: Brokers, name: str | None = "g") -> list[CheckResult]:
    found = [*all_groups(case(broker, name)), *group(case(broker, name))]
    return [one for one in found if one.verdict is not CheckVerdict.OK]


def test_a_healthy_group_has_nothing_to_remedy(broker: Brokers) -> None:
    assert bad(broker) == []


@pytest.mark.parametrize("kind", list(FindingKind))
def test_a_brokers_finding_is_reported_with_its_section(broker: Brokers, kind: FindingKind) -> None:
    finding = GroupFinding(kind=kind, text="it is so", docs="docs/consumer-groups.md#x")
    broker[DESCRIBE] = description(warnings=[finding])
    (found,) = bad(broker)
    assert (found.verdict, found.found) == (CheckVerdict.WARNING, "it is so")
    assert found.remedy == "see docs/consumer-groups.md#x"
    assert found.check


def test_a_member_that_missed_a_heartbeat_is_reported(broker: Brokers) -> None:
    member = GroupMemberInfo(client_id="m", last_heartbeat_ms=CLOCK.now_ms() - 70_000)
    broker[DESCRIBE] = description(members=[member])
    (found,) = bad(broker)
    assert found.found == "m of g sent its last heartbeat 70 s ago"
    assert "#clean-close-and-vanished-hosts" in found.remedy


def test_queues_without_an_offset_are_reported(broker: Brokers) -> None:
    some = GroupQueueInfo(topic="orders", queue_id=0, max_offset=5, committed=5)
    none = GroupQueueInfo(topic="orders", queue_id=1, max_offset=5)
    empty = GroupQueueInfo(topic="orders", queue_id=2)
    broker[DESCRIBE] = description(queues=[some, none, empty])
    (found,) = bad(broker)
    assert "no committed offset in 1 of 2 queues of orders" in found.found
    assert "#no-stored-offset-is-a-fact" in found.remedy
    assert "pocketmq group reset g --topic orders --to latest --missing-only" in found.remedy


def test_a_new_group_that_may_not_start_at_the_end_is_reported(broker: Brokers) -> None:
    member = GroupMemberInfo(client_id="m", consume_from_where="CONSUME_FROM_LAST_OFFSET")
    none = GroupQueueInfo(topic="orders", queue_id=1, max_offset=5)
    broker[DESCRIBE] = description(members=[member], queues=[none])
    assert "#from-last-is-not-always-the-end" in bad(broker)[0].remedy


@pytest.mark.parametrize("retries", ["-1", "2147483647"])
def test_an_ordered_consumer_that_retries_forever_is_reported(
    broker: Brokers, retries: str
) -> None:
    settings = {"PROP_CONSUMEORDERLY": "true", "maxReconsumeTimes": retries}
    broker[RequestCode.GET_CONSUMER_RUNNING_INFO] = ConsumerRunningInfo(properties=settings)
    (found,) = bad(broker)
    assert found.check == "endless retries"
    settings["maxReconsumeTimes"] = "16"
    assert bad(broker) == []


def test_waiting_dead_letters_are_reported(broker: Brokers) -> None:
    dead = MessageQueue("%DLQ%g", "a", 0)
    broker[RequestCode.GET_TOPIC_STATS_INFO] = TopicStatsTable(
        offset_table={dead: TopicOffset(min_offset=2, max_offset=9)}
    )
    (found,) = bad(broker)
    assert "has 7 dead letters" in found.found
    sent_back = GroupQueueInfo(topic="%DLQ%g", queue_id=0, max_offset=9, committed=9)
    broker[DESCRIBE] = description(queues=[sent_back])
    assert bad(broker) == []


def test_at_an_apache_broker_more_members_than_queues_are_counted(broker: Brokers) -> None:
    broker[DESCRIBE] = NoAnswer("code 3", 3)
    assert bad(broker) == []
    members = ConsumerConnection(connection_set=[ConnectionInfo(client_id=c) for c in "abc"])
    broker[RequestCode.GET_CONSUMER_CONNECTION_LIST] = members
    (found,) = bad(broker)
    assert "3 members and its topics at most 1 queues: 2 of them get nothing" in found.found
    members.message_model = "BROADCASTING"
    assert bad(broker) == []


def test_without_a_name_every_group_is_checked(broker: Brokers) -> None:
    configs = {name: SubscriptionGroupConfig(name) for name in ("g", "h", "TOOLS_CONSUMER")}
    broker[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = SubscriptionGroupWrapper(configs)
    (found,) = all_groups(case(broker, None))
    assert found.found == "no problem in 2 groups"
    finding = GroupFinding(kind="moonPhase", text="it is full", docs="d")
    broker[DESCRIBE] = description(conflicts=[finding])
    assert [(found.check, found.found) for found in bad(broker, None)] == [
        ("moonPhase", "it is full")
    ] * 2


def test_a_bounded_number_of_groups_is_checked(broker: Brokers) -> None:
    configs = {f"g{n}": SubscriptionGroupConfig(f"g{n}") for n in range(201)}
    broker[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = SubscriptionGroupWrapper(configs)
    assert [found.found for found in bad(broker, None)] == ["1 more group not checked"]


def test_a_topics_groups_are_named(broker: Brokers) -> None:
    broker[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = GroupList(group_list=["b", "a"])
    (found,) = topic(case(broker, topic="orders"))
    assert found.found == "orders is consumed by a, b; each group gets every message"
