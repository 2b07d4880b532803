"""A body encoded in parts equals the body encoded at once."""

from __future__ import annotations

import pytest

from remoting.protocol.bodies import encode
from remoting.protocol.bodies.body import MapParts
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.registration import RegisterBrokerBody
from remoting.protocol.bodies.stats import ConsumeStats, OffsetWrapper
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.queue import MessageQueue

VERSION = DataVersion(5, 1)


def topics(table):
    return TopicConfigSerializeWrapper(table, VERSION)


def groups(table):
    return SubscriptionGroupWrapper(table, data_version=VERSION)


BODIES = {
    "topics": (topics, {f"t{n}": TopicConfig(f"t{n}") for n in range(5)}),
    "registration": (
        lambda table: RegisterBrokerBody(topics(table)),
        {f"t{n}": TopicConfig(f"t{n}", attributes={"a": "{}"}) for n in range(5)},
    ),
    "groups": (groups, {f"g{n}": SubscriptionGroupConfig(group_name=f"g{n}") for n in range(5)}),
    "offsets": (
        lambda table: ConsumerOffsetSerializeWrapper(offset_table=table),
        {f"T{n}@g": {0: 1, 1: 2} for n in range(5)},
    ),
    "figures": (
        lambda table: ConsumeStats(offset_table=table),
        {MessageQueue("T", "b", n): OffsetWrapper(n, n) for n in range(5)},
    ),
}


@pytest.mark.parametrize("pretty", [False, True])
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("name", list(BODIES))
def test_the_parts_make_the_whole(name: str, count: int, pretty: bool) -> None:
    make, everything = BODIES[name]
    table = dict(list(everything.items())[:count])
    parts = MapParts(make({}), pretty=pretty)
    entries = list(table.items())
    texts = [parts.part(make(dict(entries[n : n + 2]))) for n in range(0, count, 2)]
    assert parts.whole(texts) == encode(make(table), pretty=pretty)
