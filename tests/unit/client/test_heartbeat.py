"""What heartbeats say about the users of an instance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from client.errors import UsageError
from client.network.heartbeat import Members, group_of, member_heartbeat
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.description import BlockedQueue
from remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import ConsumerGroupRequestHeader
from remoting.protocol.headers.pull import ResetOffsetRequestHeader


class Sharing:
    """A membership."""

    on_conflict = "reject"
    strategy_name = "AVG"

    def __init__(self, group: str = "shared", blocked: int = 0) -> None:
        self.group = group
        self._blocked = blocked

    def consumer_data(self) -> ConsumerData:
        wanted = SubscriptionData(topic="T", sub_string="*")
        return ConsumerData(group_name=self.group, subscription_data_set=[wanted])

    def blocked(self) -> list[BlockedQueue]:
        return [BlockedQueue(group=self.group, topic="T", queue_id=n) for n in range(self._blocked)]

    def asked(self, command: Command) -> None:
        raise AssertionError(command)

    def route_changed(self, topic: str) -> None:
        raise AssertionError(topic)

    def connected(self, address: str) -> None:
        raise AssertionError(address)


def bodies(members: Members) -> list[HeartbeatData]:
    return [decode(HeartbeatData, one.body) for one in members.heartbeats("me")]


def reading(*topics: str) -> Any:
    return lambda: [SubscriptionData(topic=topic, sub_string="*") for topic in topics]


def test_each_member_that_shares_queues_has_a_heartbeat_of_its_own():
    members = Members()
    members.add_producer("p")
    members.join(Sharing("one"))
    members.join(Sharing("two"))
    rest, one, two = bodies(members)
    assert [group.group_name for group in rest.producer_data_set] == ["p"]
    assert [data.group_name for data in one.consumer_data_set] == ["one"]
    assert [data.group_name for data in two.consumer_data_set] == ["two"]
    assert members.consuming
    assert members.membership("one") in members.memberships


def test_a_lone_member_sends_no_empty_heartbeat_beside_its_own():
    members = Members()
    assert members.empty
    members.join(Sharing())
    assert not members.empty
    assert len(members.heartbeats("me")) == 1


def test_an_existing_member_is_not_refused():
    members = Members()
    members.join(Sharing())
    [regular] = members.heartbeats("me")
    assert dict(regular.fields) == {"pmqOnConflict": "warn", "pmqStrategy": "AVG"}
    assert dict(member_heartbeat("me", Sharing(), "reject").fields)["pmqOnConflict"] == "reject"


def test_blocked_queues_are_sent_as_json():
    fields = dict(member_heartbeat("me", Sharing(blocked=2), "warn").fields)
    blocked_queues = json.loads(fields["pmqBlocked"])
    assert [(one["topic"], one["queueId"]) for one in blocked_queues] == [("T", 0), ("T", 1)]


def test_a_consumer_without_subscriptions_is_omitted():
    members = Members()
    members.add_consumer("g", reading())
    [heartbeat] = bodies(members)
    assert heartbeat.consumer_data_set == []
    members.add_consumer("g", reading("T"))
    [heartbeat] = bodies(members)
    assert [data.group_name for data in heartbeat.consumer_data_set] == ["g"]


def test_several_consumers_of_one_group_share_one_entry():
    members = Members()
    one, two = reading("T"), reading("T", "U")
    members.add_consumer("g", one)
    members.add_consumer("g", two)
    [heartbeat] = bodies(members)
    [data] = heartbeat.consumer_data_set
    assert {wanted.topic for wanted in data.subscription_data_set} == {"T", "U"}
    assert not members.remove_consumer("g", one)
    assert members.remove_consumer("g", two)
    assert members.empty


def test_a_group_is_not_left_while_its_membership_stays():
    members = Members()
    one = reading("T")
    members.join(Sharing("g"))
    members.add_consumer("g", one)
    assert [data.consumer_data_set[0].group_name for data in bodies(members)] == ["g"]
    assert not members.remove_consumer("g", one)


def test_one_client_id_has_one_share_of_a_group():
    members = Members()
    first = Sharing()
    members.join(first)
    with pytest.raises(UsageError, match="shares the group's queues already"):
        members.join(Sharing())
    members.leave(Sharing())
    assert members.membership("shared") is first
    members.leave(first)
    assert members.membership("shared") is None


def test_a_producer_group_ends_with_its_last_producer():
    members = Members()
    members.add_producer("p")
    members.add_producer("p")
    assert not members.remove_producer("p")
    assert members.remove_producer("p")


def test_the_group_of_a_brokers_request_is_read_from_either_field():
    notify = ConsumerGroupRequestHeader(consumer_group="g")
    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert group_of(Command.request(code, notify)) == "g"
    reset = ResetOffsetRequestHeader(topic="T", group="h", timestamp=0, is_force=True)
    assert group_of(Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset)) == "h"
    assert group_of(Command.request(code)) is None
