"""The filters of consumer groups: what heartbeats change, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import LimitReached
from broker.filters.bloom import bloom_of
from broker.filters.expressions import SqlError
from broker.filters.table import ConsumerFilters
from broker.limits import BrokerLimits
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import ConsumerFilterWrapper
from remoting.protocol.bodies.heartbeat import SubscriptionData

DAY_MS = 86_400_000


def sub(text: str, *, topic: str = "T", version: int = 1, kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=text, sub_version=version, expression_type=kind)


@pytest.fixture
def filters() -> ConsumerFilters:
    return ConsumerFilters()


def expression(filters: ConsumerFilters, topic: str = "T", group: str = "g") -> str | None:
    found = filters.get(topic, group)
    return None if found is None else found.data.expression


def test_a_heartbeat_registers_an_expression(filters):
    assert filters.register("g", [sub("a = 1"), sub("*", topic="U", kind="TAG")], 1_000) is None
    assert len(filters) == 1
    found = filters.get("T", "g")
    assert found.filter.evaluate(["1"]) is True
    assert (found.data.born_time, found.data.dead_time, found.is_dead) == (1_000, 0, False)
    assert filters.get("U", "g") is None
    assert filters.get("T", "h") is None


def test_a_higher_version_replaces_the_expression_and_no_other_does(filters):
    filters.register("g", [sub("a = 1", version=5)], 1_000)
    filters.register("g", [sub("a = 2", version=4)], 2_000)
    filters.register("g", [sub("a = 2", version=5)], 2_000)
    assert expression(filters) == "a = 1"
    filters.register("g", [sub("a = 2", version=6)], 3_000)
    assert expression(filters) == "a = 2"
    assert filters.get("T", "g").data.born_time == 3_000


def test_the_same_expression_keeps_its_age_and_takes_the_version(filters):
    filters.register("g", [sub("a = 1", version=5)], 1_000)
    filters.register("g", [sub("a = 1", version=6)], 2_000)
    data = filters.get("T", "g").data
    assert (data.born_time, data.client_version) == (1_000, 6)


def test_heartbeats_that_change_nothing_write_nothing(filters):
    filters.register("g", [sub("a = 1")], 1_000)
    before = filters.version
    filters.register("g", [sub("a = 1")], 31_000)
    filters.register("h", [sub("*", kind="TAG")], 31_000)
    assert filters.version == before


def test_a_wrong_expression_is_told_and_takes_the_place_of_a_good_one(filters):
    filters.register("g", [sub("a = 1", version=1)], 1_000)
    wrong = filters.register("g", [sub("a =", version=2), sub("b = 1", topic="U")], 2_000)
    assert isinstance(wrong, SqlError)
    assert "Was expecting" in str(wrong)
    assert expression(filters) is None
    assert expression(filters, "U") == "b = 1"


def test_other_kinds_of_filters_are_wrong(filters):
    wrong = filters.register("g", [sub("x", kind="JAVA")], 1_000)
    assert str(wrong) == "there are no filters of type JAVA: use SQL92 or TAG"


def test_a_group_that_leaves_is_dead_and_alive_again_when_it_comes_back(filters):
    filters.register("g", [sub("a = 1")], 1_000)
    filters.left("g", 5_000)
    filters.left("g", 6_000)
    found = filters.get("T", "g")
    assert (found.is_dead, found.data.dead_time) == (True, 5_000)
    filters.register("g", [sub("a = 1")], 7_000)
    assert (found.is_dead, found.data.dead_time) == (False, 0)
    filters.left("unknown", 8_000)


def test_a_topic_that_is_no_longer_subscribed_is_dead(filters):
    filters.register("g", [sub("a = 1"), sub("b = 1", topic="U")], 1_000)
    filters.register("g", [sub("a = 1")], 2_000)
    assert not filters.get("T", "g").is_dead
    assert filters.get("U", "g").is_dead


def test_what_was_dead_for_a_day_is_forgotten(filters):
    filters.register("g", [sub("a = 1")], 1_000)
    filters.register("h", [sub("a = 1")], 1_000)
    filters.left("g", 5_000)
    filters.clean(5_000 + DAY_MS - 1, DAY_MS)
    assert len(filters) == 2
    filters.clean(5_000 + DAY_MS, DAY_MS)
    assert expression(filters) is None
    assert expression(filters, group="h") == "a = 1"


def test_filters_have_a_limit_and_those_of_groups_that_left_make_room():
    filters = ConsumerFilters(BrokerLimits(filter_bytes=4_000))
    filters.register("g", [sub("a = 1")], 1_000)
    filters.register("h", [sub("a = 1")], 1_000)
    with pytest.raises(LimitReached, match="group i for topic T"):
        filters.register("i", [sub("b = '" + "x" * 40 + "'")], 1_000)
    filters.left("g", 2_000)
    filters.register("i", [sub("b = 1")], 3_000)
    assert expression(filters) is None
    assert expression(filters, group="h") == "a = 1"
    assert filters.weight < 4_000


def test_what_is_saved_is_what_is_restored(filters):
    filters.register("g", [sub("a = 1"), sub("b = 1", topic="U")], 1_000)
    filters.register("h", [sub("c = 1")], 2_000)
    filters.left("h", 3_000)
    text = encode(filters.saved(), pretty=True)
    again = ConsumerFilters()
    assert again.restore(decode(ConsumerFilterWrapper, text), 100_000) == []
    assert len(again) == 3
    assert again.get("T", "g").filter.evaluate(["1"]) is True
    # All groups are taken for dead, half a minute ago, until they come back.
    assert again.get("T", "g").data.dead_time == 70_000
    assert again.get("T", "h").data.dead_time == 3_000
    again.register("g", [sub("a = 1"), sub("b = 1", topic="U")], 110_000)
    again.get("T", "h").data.dead_time = 3_000
    assert encode(again.saved(), pretty=True) == text


def test_a_saved_expression_that_is_wrong_is_named_and_not_used(filters):
    saved = ConsumerFilterWrapper()
    filters.register("g", [sub("a = 1")], 1_000)
    saved = filters.saved()
    saved.filter_data_by_topic["T"].group_filter_data["g"].expression = "a ="
    again = ConsumerFilters()
    (problem,) = again.restore(saved, 100_000)
    assert problem.startswith("the filter of group g for topic T: ")
    assert again.get("T", "g").filter is None
    again.register("g", [sub("a = 1", version=2)], 110_000)
    assert again.get("T", "g").filter is not None


def test_bloom_data_that_another_broker_made_differently_is_made_anew(filters):
    filters.register("g", [sub("a = 1")], 1_000)
    saved = filters.saved()
    saved.filter_data_by_topic["T"].group_filter_data["g"].bloom_filter_data = None
    again = ConsumerFilters()
    again.restore(saved, 100_000)
    assert again.get("T", "g").data.bloom_filter_data == bloom_of("g", "T")


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_file_of_a_real_broker_is_written_as_it_was(version):
    text = Path(__file__).with_name(f"consumerFilter-{version}.json").read_bytes()
    filters = ConsumerFilters()
    assert filters.restore(decode(ConsumerFilterWrapper, text), 2_000_000_000_000) == []
    data = filters.get("topic-x", "g-x").data
    assert data.bloom_filter_data == bloom_of("g-x", "topic-x")
    assert encode(filters.saved(), pretty=True) == text
