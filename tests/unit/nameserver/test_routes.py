"""The route table as a state machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nameserver.routes import (
    NO_CHANGE,
    Change,
    EarlierMaster,
    LimitError,
    Queues,
    Registered,
    Registration,
    RouteInfoTable,
)
from remoting.protocol.bodies.topic import DataVersion
from tests.support.sizes import size

A = Registration(
    cluster="c",
    broker_name="broker-a",
    broker_id=0,
    address="10.0.0.1:10911",
    ha_address="10.0.0.1:10912",
    version=DataVersion(1, 1),
    topics={"t": Queues(4, 4, 6), "u": Queues(1, 1, 4)},
    connection="conn-a",
)
B = replace(A, broker_name="broker-b", address="10.0.0.2:10911", connection="conn-b")
SLAVE = replace(A, broker_id=1, address="10.0.0.9:10911", connection="conn-s", topics=None)


def check_agreement(table: RouteInfoTable) -> None:
    """Each topic has brokers, each broker an address, and entries are counted."""
    brokers = table.brokers()
    assert all(broker.addresses for broker in brokers.values())
    assert all(name == broker.name for name, broker in brokers.items())
    routes = [table.route(topic) for topic in table.topics()]
    assert all(route is not None and route.queues for route in routes)
    pairs = [(route, name) for route in routes if route is not None for name in route.queues]
    assert len(table) == len(pairs)
    for route, name in pairs:
        assert brokers[name] in route.brokers
    addresses = [a for broker in brokers.values() for a in broker.addresses.values()]
    assert len(addresses) == len(set(addresses)), "an address belongs to one broker"


def table_of(*registrations: Registration, **limits: Any) -> RouteInfoTable:
    table = RouteInfoTable(**limits)
    for registration in registrations:
        table.register(registration, 0)
    check_agreement(table)
    return table


def names(table: RouteInfoTable, topic: str) -> list[str]:
    route = table.route(topic)
    return [] if route is None else [broker.name for broker in route.brokers]


class TestRegister:
    def test_a_first_registration_makes_the_routes(self) -> None:
        table = RouteInfoTable()
        done = table.register(A, 0)
        assert done == Registered(Change(frozenset({"t", "u"})), True, None, None, None)
        route = table.route("t")
        assert route is not None
        assert route.queues == {"broker-a": Queues(4, 4, 6)}
        assert route.brokers[0].addresses == {0: A.address}
        assert route.filter_servers == {}

    def test_the_same_registration_changes_nothing(self) -> None:
        assert table_of(A).register(A, 5).change == NO_CHANGE

    def test_topics_of_a_known_version_are_not_read(self) -> None:
        table = table_of(A)
        assert table.register(replace(A, topics={"new": Queues(1, 1, 6)}), 5).change == NO_CHANGE
        assert table.route("new") is None

    def test_an_incremental_registration_adds_to_what_is_known(self) -> None:
        table = table_of(A)
        more = replace(A, version=DataVersion(2, 2), topics={"new": Queues(1, 1, 6)})
        assert table.register(more, 5).change.topics == {"new"}
        assert table.topics() == ["t", "u", "new"]

    def test_a_topic_that_is_missing_in_a_new_version_stays(self) -> None:
        table = table_of(A)
        table.register(replace(A, version=DataVersion(2, 2), topics={"t": Queues(8, 8, 6)}), 5)
        assert names(table, "u") == ["broker-a"]

    def test_only_changed_topics_are_reported(self) -> None:
        changed = replace(
            A, version=DataVersion(2, 2), topics=dict(A.topics or {}) | {"t": Queues(8, 8, 6)}
        )
        assert table_of(A).register(changed, 5).change.topics == {"t"}

    def test_two_masters_share_a_topic(self) -> None:
        table = table_of(A, B)
        assert names(table, "t") == ["broker-a", "broker-b"]

    def test_topics_are_not_taken_from_a_slave(self) -> None:
        table = table_of(replace(SLAVE, topics={"t": Queues(1, 1, 6)}))
        assert table.route("t") is None
        assert list(table.brokers()) == ["broker-a"]

    def test_a_slave_is_told_its_master_and_appears_in_the_routes(self) -> None:
        table = table_of(A)
        done = table.register(SLAVE, 0)
        assert (done.master_address, done.ha_address) == (A.address, A.ha_address)
        assert done.change.topics == {"t", "u"}
        assert table.brokers()["broker-a"].addresses == {0: A.address, 1: SLAVE.address}

    def test_a_slave_without_a_live_master_gets_no_master_address(self) -> None:
        done = RouteInfoTable().register(SLAVE, 0)
        assert (done.master_address, done.ha_address) == (None, None)

    def test_a_restarted_broker_with_another_address_replaces_the_former(self) -> None:
        table = table_of(A)
        done = table.register(replace(A, address="10.0.0.7:1", connection="new"), 0)
        assert (done.replaced_address, done.is_new) == (A.address, False)
        assert done.change.topics == {"t", "u"}
        assert table.connection_closed("conn-a") == NO_CHANGE
        assert names(table, "t") == ["broker-a"]

    def test_a_master_does_not_replace_one_that_was_elected_later(self) -> None:
        def elected(epoch: int | None) -> DataVersion:
            return DataVersion(1, 1, epoch)

        table = table_of(replace(A, version=elected(4)))
        other = replace(A, address="10.0.0.7:1", connection="new")
        for epoch in (None, 3):
            with pytest.raises(EarlierMaster, match=r"since epoch 4, and 10\.0\.0\.7:1 registers"):
                table.register(replace(other, version=elected(epoch)), 0)
        assert table.brokers()["broker-a"].addresses[0] == A.address
        table.register(replace(other, version=elected(5)), 0)
        assert table.brokers()["broker-a"].addresses[0] == other.address

    def test_a_slave_that_becomes_master_leaves_its_former_id(self) -> None:
        table = table_of(A, SLAVE)
        table.unregister("broker-a", 0, A.address)
        table.register(replace(SLAVE, broker_id=0, topics={"t": Queues(2, 2, 6)}), 1)
        check_agreement(table)
        assert table.brokers()["broker-a"].addresses == {0: SLAVE.address}

    def test_an_address_under_another_name_leaves_the_former_name(self) -> None:
        table = table_of(A)
        table.register(replace(A, broker_name="broker-z"), 1)
        check_agreement(table)
        assert list(table.brokers()) == ["broker-z"]
        assert names(table, "t") == ["broker-z"]

    def test_filter_servers_are_part_of_the_route(self) -> None:
        route = table_of(replace(A, filter_servers=("f:1",))).route("t")
        assert route is not None
        assert route.filter_servers == {A.address: ("f:1",)}

    def test_acting_master_and_cluster_come_from_the_master(self) -> None:
        table = table_of(A)
        done = table.register(replace(A, enable_acting_master=True, cluster="d"), 1)
        assert done.change.topics == {"t", "u"}
        assert table.clusters() == {"d": ["broker-a"]}
        assert table.brokers()["broker-a"].enable_acting_master is True


class TestLeave:
    def test_an_unregistered_brokers_topics_are_removed(self) -> None:
        table = table_of(A, B)
        change = table.unregister("broker-a", 0, A.address)
        assert change == Change(frozenset({"t", "u"}), (A.address,))
        assert names(table, "t") == ["broker-b"]
        assert table.clusters() == {"c": ["broker-b"]}

    def test_an_unregistration_from_another_address_is_ignored(self) -> None:
        assert table_of(A).unregister("broker-a", 0, "10.9.9.9:1") == NO_CHANGE
        assert table_of(A).unregister("nobody", 0, A.address) == NO_CHANGE

    def test_without_its_master_a_broker_with_a_slave_stays_in_the_routes(self) -> None:
        table = table_of(A, SLAVE)
        assert table.unregister("broker-a", 0, A.address).topics == {"t", "u"}
        assert names(table, "t") == ["broker-a"]

    def test_a_closed_connection_ends_its_brokers_at_once(self) -> None:
        table = table_of(A, replace(B, connection="conn-a"))
        change = table.connection_closed("conn-a")
        assert set(change.addresses_gone) == {A.address, B.address}
        assert table.topics() == []
        assert not len(table)

    def test_closing_an_unrelated_connection_ends_nothing(self) -> None:
        assert table_of(A).connection_closed("other") == NO_CHANGE

    def test_the_newest_connection_of_a_broker_counts(self) -> None:
        table = table_of(A)
        table.register(replace(A, connection="conn-2"), 1)
        assert table.connection_closed("conn-a") == NO_CHANGE
        assert table.connection_closed("conn-2").addresses_gone == (A.address,)


class TestSilence:
    def test_a_broker_is_dropped_after_its_timeout_and_not_before(self) -> None:
        table = table_of(A)
        assert table.scan(120_000) == NO_CHANGE
        assert table.scan(120_001) == Change(frozenset({"t", "u"}), (A.address,), ("conn-a",))
        assert table.scan(120_002) == NO_CHANGE

    def test_every_registration_renews_the_timeout(self) -> None:
        table = table_of(A)
        table.register(A, 100_000)
        assert table.scan(200_000) == NO_CHANGE

    def test_a_heartbeat_renews_the_timeout_and_may_change_it(self) -> None:
        table = table_of(A)
        assert table.heartbeat(A.address, 50_000, timeout_ms=1_000)
        assert table.scan(51_000) == NO_CHANGE
        assert table.scan(51_001).addresses_gone == (A.address,)
        assert not table.heartbeat(A.address, 60_000)

    def test_a_query_for_an_unchanged_version_renews_the_timeout(self) -> None:
        table = table_of(A)
        assert table.compare_version(A.address, DataVersion(1, 1), 100_000) == (
            False,
            DataVersion(1, 1),
        )
        assert table.scan(200_000) == NO_CHANGE

    def test_another_version_has_to_be_registered(self) -> None:
        table = table_of(A)
        assert table.compare_version(A.address, DataVersion(2, 2), 100_000) == (
            True,
            DataVersion(1, 1),
        )
        assert table.compare_version("10.9.9.9:1", DataVersion(1, 1), 0) == (True, None)
        assert table.scan(120_001).addresses_gone == (A.address,)


class TestAdministration:
    def test_wiped_write_permission_comes_back_when_added(self) -> None:
        table = table_of(A)
        count, change = table.wipe_write_permission("broker-a")
        assert (count, change) == (2, Change(frozenset({"t"})))
        assert table.wipe_write_permission("broker-a") == (2, NO_CHANGE)
        assert table.add_write_permission("broker-a")[0] == 2
        route = table.route("u")
        assert route is not None
        assert route.queues["broker-a"].perm == 6

    def test_changing_permissions_of_an_unknown_broker_does_nothing(self) -> None:
        assert RouteInfoTable().wipe_write_permission("nobody") == (0, NO_CHANGE)

    def test_a_wipe_is_lost_at_the_next_changed_registration(self) -> None:
        table = table_of(A)
        table.wipe_write_permission("broker-a")
        assert table.register(A, 1).change == NO_CHANGE
        assert table.register(replace(A, version=DataVersion(3, 3)), 1).change.topics == {"t"}

    def test_a_deleted_topic_is_gone_until_it_is_registered(self) -> None:
        table = table_of(A, B)
        assert table.delete_topic("t").topics == {"t"}
        assert table.route("t") is None
        assert table.delete_topic("t") == NO_CHANGE
        check_agreement(table)

    def test_a_topic_can_be_deleted_in_one_cluster(self) -> None:
        table = table_of(A, replace(B, cluster="other"))
        assert table.delete_topic("t", "other").topics == {"t"}
        assert names(table, "t") == ["broker-a"]

    def test_queues_can_be_set_for_known_brokers(self) -> None:
        table = table_of(A)
        given = {"broker-a": Queues(3, 3, 6), "nobody": Queues(1, 1, 6)}
        assert table.set_queues("x", given).topics == {"x"}
        assert table.set_queues("x", given) == NO_CHANGE
        assert names(table, "x") == ["broker-a"]
        assert table.set_queues("y", {"nobody": Queues(1, 1, 6)}) == NO_CHANGE
        check_agreement(table)

    def test_lists_by_cluster_and_by_flag(self) -> None:
        other = replace(B, cluster="other", topics={"v": Queues(1, 1, 6, 2)})
        table = table_of(A, other)
        assert table.topics_of_cluster("other") == ["v"]
        assert table.topics_of_cluster("none") == []
        assert table.topics_where(lambda flag: flag & 2 != 0) == ["v"]


class TestLimits:
    def test_one_broker_too_many_is_refused_with_a_message(self) -> None:
        table = table_of(A, max_brokers=1)
        with pytest.raises(LimitError, match=r"broker-b at 10\.0\.0\.2:10911 is not registered"):
            table.register(B, 0)
        assert table.register(A, 1).change == NO_CHANGE
        check_agreement(table)

    def test_one_topic_too_many_is_refused_and_none_is_taken(self) -> None:
        table = table_of(max_entries=1)
        with pytest.raises(LimitError, match="2 more topics would make 2"):
            table.register(A, 0)
        assert not table.brokers()
        with pytest.raises(LimitError):
            table_of(A, max_entries=2).set_queues("x", {"broker-a": Queues(1, 1, 6)})


ids = st.integers(0, 2)
topics = st.dictionaries(
    st.sampled_from("stuv"), st.builds(Queues, ids, ids, st.integers(0, 7)), max_size=3
)
registrations = st.builds(
    Registration,
    cluster=st.sampled_from(["c", "d"]),
    broker_name=st.sampled_from(["x", "y", "z"]),
    broker_id=ids,
    address=st.sampled_from(["1:1", "2:2", "3:3", "4:4"]),
    version=st.builds(DataVersion, ids, ids),
    topics=st.none() | topics,
    connection=st.sampled_from(["p", "q", "r"]),
    timeout_ms=st.sampled_from([100, 1000]),
)


class RouteTableMachine(RuleBasedStateMachine):
    """Any sequence of events keeps the tables in agreement and reports every changed route."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteInfoTable(max_brokers=3, max_entries=6)
        self.now_ms = 0
        self.before: dict[str, object] = {}

    def snapshot(self) -> dict[str, object]:
        routes = ((topic, self.table.route(topic)) for topic in self.table.topics())
        return {
            topic: (
                dict(route.queues),
                [(b.cluster, b.name, dict(b.addresses)) for b in route.brokers],
            )
            for topic, route in routes
            if route is not None
        }

    def expect(self, change: Change) -> None:
        after = self.snapshot()
        differ = {
            topic
            for topic in self.before.keys() | after.keys()
            if self.before.get(topic) != after.get(topic)
        }
        assert differ <= change.topics
        self.before = after

    @rule(registration=registrations, passed=st.integers(0, 200))
    def register(self, registration: Registration, passed: int) -> None:
        self.now_ms += passed
        try:
            change = self.table.register(registration, self.now_ms).change
        except LimitError:
            change = NO_CHANGE
        self.expect(change)

    @rule(registration=registrations)
    def unregister(self, registration: Registration) -> None:
        self.expect(
            self.table.unregister(
                registration.broker_name, registration.broker_id, registration.address
            )
        )

    @rule(connection=st.sampled_from(["p", "q", "r"]))
    def close(self, connection: str) -> None:
        self.expect(self.table.connection_closed(connection))
        assert self.table.connection_closed(connection) == NO_CHANGE

    @rule(passed=st.integers(0, 2000))
    def scan(self, passed: int) -> None:
        self.now_ms += passed
        self.expect(self.table.scan(self.now_ms))

    @rule(topic=st.sampled_from("stuv"), cluster=st.none() | st.sampled_from(["c", "d"]))
    def delete(self, topic: str, cluster: str | None) -> None:
        self.expect(self.table.delete_topic(topic, cluster))

    @rule(name=st.sampled_from(["x", "y", "z"]))
    def wipe(self, name: str) -> None:
        self.expect(self.table.wipe_write_permission(name)[1])

    @rule(topic=st.sampled_from("stuv"), name=st.sampled_from(["x", "y", "z"]))
    def set_queues(self, topic: str, name: str) -> None:
        try:
            self.expect(self.table.set_queues(topic, {name: Queues(1, 1, 6)}))
        except LimitError:
            self.expect(NO_CHANGE)

    @invariant()
    def tables_agree(self) -> None:
        check_agreement(self.table)
        for broker in self.table.brokers().values():
            for address in broker.addresses.values():
                assert self.table.compare_version(address, DataVersion(-1), 0)[1] is not None


RouteTableMachine.TestCase.settings = settings(
    max_examples=size(test=40, ci=150, soak=2000), stateful_step_count=30, deadline=None
)
TestAnySequence = RouteTableMachine.TestCase
