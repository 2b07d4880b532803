"""The table of consumer groups compared with a trivial model."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.groups.consumers import ConsumerTable, HeartbeatExtras
from broker.groups.producers import CLIENT_EXPIRY_MS, ClientChannel
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from tests.support.sizes import size

GROUPS = st.sampled_from(["g", "h"])
CONNECTIONS = st.sampled_from(["c1", "c2", "c3", "c4"])
IDS = st.sampled_from(["a", "b"])
SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from(["S", "T", "U"]),
    st.tuples(st.sampled_from(["*", "x", "y || z"]), st.integers(1, 3)),
    max_size=3,
)


@dataclass
class ModelMember:
    client_id: str
    heard_ms: int
    topics: dict[str, tuple[str, int]]
    ours: bool


@dataclass
class ModelGroup:
    members: dict[str, ModelMember] = field(default_factory=dict)
    topics: dict[str, tuple[str, int]] = field(default_factory=dict)
    model: str = ""


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = ConsumerTable()
        self.groups: dict[str, ModelGroup] = {}
        self.now_ms = 1000

    @rule(
        name=GROUPS,
        connection=CONNECTIONS,
        client_id=IDS,
        topics=SUBSCRIPTIONS,
        model=st.sampled_from(["CLUSTERING", "BROADCASTING"]),
        strategy=st.sampled_from(["", "AVG"]),
        ours=st.booleans(),
    )
    def heartbeat(self, name, connection, client_id, topics, model, strategy, ours) -> None:
        data = ConsumerData(
            group_name=name,
            message_model=model,
            subscription_data_set=[
                SubscriptionData(topic=topic, sub_string=text, sub_version=version)
                for topic, (text, version) in topics.items()
            ],
        )
        channel = ClientChannel(connection, client_id, "ip:1", "JAVA", 407, self.now_ms)
        extras = HeartbeatExtras(on_conflict="warn" if ours else "", strategy=strategy)
        result = self.table.heartbeat(data, channel, self.now_ms, extras)
        group = self.groups.setdefault(name, ModelGroup())
        old = group.members.get(connection)
        before = group.topics
        group.members[connection] = ModelMember(client_id, self.now_ms, topics, ours)
        group.model = model
        kept = {topic for one in group.members.values() if one.ours for topic in one.topics}
        group.topics = {topic: one for topic, one in before.items() if topic in kept} | {
            topic: max((before.get(topic, new), new), key=lambda one: one[1])
            for topic, new in topics.items()
        }
        moved = old is None or (ours and old.topics.keys() != topics.keys())
        assert result == (moved or before.keys() != group.topics.keys())

    @rule(name=GROUPS, connection=CONNECTIONS)
    def unregister(self, name, connection) -> None:
        was = name in self.groups and connection in self.groups[name].members
        assert self.table.unregister(name, connection) == was
        self._remove(name, connection)

    @rule(connection=CONNECTIONS)
    def close(self, connection) -> None:
        names = sorted(name for name, one in self.groups.items() if connection in one.members)
        assert self.table.closed(connection) == names
        for name in names:
            self._remove(name, connection)

    @rule(name=GROUPS, connection=CONNECTIONS, queue_id=st.integers(0, 2))
    def pull(self, name, connection, queue_id) -> None:
        group = self.table.groups.get(name)
        if group is not None:
            group.pulled("T", queue_id, 7, connection, float(self.now_ms))
            if connection in self.groups[name].members:
                client_id = self.groups[name].members[connection].client_id
                assert group.pulls["T", queue_id] == (client_id, float(self.now_ms), 7)

    @rule(seconds=st.integers(1, 70))
    def wait(self, seconds) -> None:
        self.now_ms += seconds * 1000

    @rule()
    def scan(self) -> None:
        expired = [
            (name, connection)
            for name, group in self.groups.items()
            for connection, member in group.members.items()
            if self.now_ms - member.heard_ms > CLIENT_EXPIRY_MS
        ]
        connections, names = self.table.scan(self.now_ms)
        assert sorted(connections) == sorted(connection for _, connection in expired)
        assert names == sorted({name for name, _ in expired})
        for name, connection in expired:
            self._remove(name, connection)

    def _remove(self, name: str, connection: str) -> None:
        group = self.groups.get(name)
        if group is not None:
            group.members.pop(connection, None)
            if not group.members:
                del self.groups[name]

    @invariant()
    def members_and_subscriptions_are_the_models(self) -> None:
        assert self.table.groups.keys() == self.groups.keys()
        assert len(self.table) == sum(len(one.members) for one in self.groups.values())
        for name, model in self.groups.items():
            group = self.table.groups[name]
            assert list(group.members) == list(model.members)
            assert group.client_ids() == [one.client_id for one in model.members.values()]
            assert group.message_model == model.model
            assert {
                topic: (one.sub_string, one.sub_version)
                for topic, one in group.subscriptions.items()
            } == model.topics

    @invariant()
    def members_are_told_apart_by_topics_if_these_differ(self) -> None:
        for name, model in self.groups.items():
            found = [
                (one, tuple(some.topics))
                for some in self.table.groups[name].topic_sets()
                for one in some.members
            ]
            topics = [(one.client_id, tuple(sorted(one.topics))) for one in model.members.values()]
            differ = len({tuple(sorted(one.topics)) for one in model.members.values()}) > 1
            assert sorted(found) == (sorted(topics) if differ else [])

    @invariant()
    def every_member_is_under_its_profile_and_its_id(self) -> None:
        for name, group in self.table.groups.items():
            listed = [one for members in group.profiles.values() for one in members.values()]
            assert sorted(one.connection for one in listed) == sorted(group.members)
            by_id = [one for members in group.ids.values() for one in members.values()]
            assert sorted(one.connection for one in by_id) == sorted(group.members)
            for connection, member in group.members.items():
                assert group.profiles[member.profile][connection] is member
                assert group.ids[member.client_id][connection] is member
                words = self.groups[name].members[connection].topics
                assert {
                    topic: (one.sub_string, one.sub_version)
                    for topic, one in member.subscriptions.items()
                } == words
            assert group.contested.keys() <= group.ids.keys()

    @invariant()
    def what_subscriptions_weigh_is_counted(self) -> None:
        assert self.table.weight == sum(
            group.weight + sum(member.weight for member in group.members.values())
            for group in self.table.groups.values()
        )


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=size(test=20, ci=60, soak=1000), stateful_step_count=40, deadline=None
)
