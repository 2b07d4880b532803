"""The name server's answers and notifications about topics and routes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from nameserver.config import NameServerConfig
from nameserver.state import SharedState
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.route import (
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers import admin
from remoting.protocol.headers.admin import TopicRequestHeader
from remoting.protocol.own_codes import OwnRequestCode
from tests.unit.nameserver.commands import ERROR, SUCCESS, Ask, T, put, register, route_of


def told_topics(ask: Ask, code: int, header: Any = None) -> list[str]:
    return sorted(decode(TopicList, ask(Command.request(code, header)).body).topic_list)


class TestRoutes:
    def test_an_unknown_topic_is_17_with_what_to_do(self, ask: Ask) -> None:
        reply = ask(route_of("absent"))
        assert reply.code == ResponseCode.TOPIC_NOT_EXIST
        assert (reply.remark or "").startswith(
            "No topic route info in name server for the topic: absent\n"
        )

    @pytest.mark.parametrize(
        ("version", "asked", "key"),
        [(0, None, b"{0:"), (400, False, b"{0:"), (400, True, b'{"0":'), (401, None, b'{"0":')],
    )
    def test_the_json_dialect_follows_the_client(
        self, ask: Ask, version: int, asked: bool | None, key: bytes
    ) -> None:
        ask(register(T))
        command = route_of("t", accept_standard_json_only=asked)
        command.version = version
        assert key in bytes(ask(command).body)

    def test_order_topics_are_in_routes_only_when_enabled(
        self, ask: Ask, state: SharedState, config: NameServerConfig
    ) -> None:
        ask(register(T))
        ask(put("ORDER_TOPIC_CONFIG", "t", "broker-a:4"))
        assert decode(TopicRouteData, ask(route_of("t")).body).order_topic_conf is None
        state.config = replace(config, order_message_enable=True)
        assert decode(TopicRouteData, ask(route_of("t")).body).order_topic_conf == "broker-a:4"

    def test_cluster_info_names_brokers_by_cluster(self, ask: Ask) -> None:
        ask(register(T))
        ask(register(T, name="b", address="2:2", cluster="d"))
        reply = ask(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))
        info = decode(ClusterInfo, reply.body)
        assert info.cluster_addr_table == {"c": ["broker-a"], "d": ["b"]}
        assert info.broker_addr_table["b"].broker_addrs == {0: "2:2"}

    def test_topic_lists(self, ask: Ask) -> None:
        ask(
            register(
                T,
                TopicConfig("unit", topic_sys_flag=1),
                TopicConfig("sub", topic_sys_flag=2),
                TopicConfig("both", topic_sys_flag=3),
            )
        )
        ask(register(TopicConfig("x"), name="b", address="2:2", cluster="d"))
        code = RequestCode
        everything = ["both", "sub", "t", "unit", "x"]
        assert told_topics(ask, code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == everything
        header = admin.GetTopicsByClusterRequestHeader(cluster="d")
        assert told_topics(ask, code.GET_TOPICS_BY_CLUSTER, header) == ["x"]
        assert told_topics(ask, code.GET_UNIT_TOPIC_LIST) == ["both", "unit"]
        assert told_topics(ask, code.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["both", "sub"]
        assert told_topics(ask, code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["sub"]
        assert told_topics(ask, code.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ["b", "broker-a", "c", "d"]

    def test_the_system_list_names_a_broker_to_ask(self, ask: Ask) -> None:
        command = Command.request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        assert decode(TopicList, ask(command).body).broker_addr is None
        ask(register(T))
        assert decode(TopicList, ask(command).body).broker_addr == "10.0.0.1:10911"

    def test_member_group_of_a_broker_name(self, ask: Ask) -> None:
        ask(register(T))
        ask(register(broker_id=3, address="3:3"))

        def members(cluster: str) -> dict[int, str]:
            header = admin.GetBrokerMemberGroupRequestHeader(
                cluster_name=cluster, broker_name="broker-a"
            )
            reply = ask(Command.request(RequestCode.GET_BROKER_MEMBER_GROUP, header))
            group = decode(GetBrokerMemberGroupResponseBody, reply.body).broker_member_group
            assert group is not None
            return group.broker_addrs

        assert members("c") == {0: "10.0.0.1:10911", 3: "3:3"}
        assert members("other") == {}

    def test_write_permission_is_wiped_and_added(self, ask: Ask) -> None:
        ask(register(T, TopicConfig("u", perm=4)))
        wipe = admin.BrokerNameRequestHeader(broker_name="broker-a")
        reply = ask(Command.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe))
        assert dict(reply.all_pairs() or ()) == {"wipeTopicCount": "2"}
        assert decode(TopicRouteData, ask(route_of("t")).body).queue_datas[0].perm == 4
        add = admin.BrokerNameRequestHeader(broker_name="broker-a")
        reply = ask(Command.request(RequestCode.ADD_WRITE_PERM_OF_BROKER, add))
        assert dict(reply.all_pairs() or ()) == {"addTopicCount": "2"}

    def test_a_topic_can_be_deleted_everywhere_or_in_one_cluster(self, ask: Ask) -> None:
        ask(register(T))
        ask(register(T, name="b", address="2:2", cluster="d"))
        code = RequestCode.DELETE_TOPIC_IN_NAMESRV
        one = admin.DeleteTopicFromNamesrvRequestHeader(topic="t", cluster_name="d")
        assert ask(Command.request(code, one)).code == SUCCESS
        assert len(decode(TopicRouteData, ask(route_of("t")).body).queue_datas) == 1
        everywhere = admin.DeleteTopicFromNamesrvRequestHeader(topic="t")
        assert ask(Command.request(code, everywhere)).code == SUCCESS
        assert ask(route_of("t")).code == ResponseCode.TOPIC_NOT_EXIST

    def test_a_topic_can_be_registered_by_its_route(self, ask: Ask) -> None:
        ask(register(T))
        header = admin.TopicRequestHeader(topic="new")
        body = encode(TopicRouteData(queue_datas=[QueueData("broker-a", 2, 2, 6)]))
        code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
        assert ask(Command.request(code, header, body=body)).code == SUCCESS
        assert ask(route_of("new")).code == SUCCESS
        bad = admin.TopicRequestHeader(topic="a b")
        assert ask(Command.request(code, bad, body=body)).code == ERROR

    def test_an_unknown_code_is_3(self, ask: Ask) -> None:
        reply = ask(Command.request(999))
        assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert reply.remark == " request type 999 not supported"


class TestSubscription:
    def subscribe(self, ask: Ask, peer: Any, *topics: str) -> Command:
        body = encode(TopicList(list(topics)))
        return ask(Command.request(OwnRequestCode.SUBSCRIBE_ROUTE, body=body), peer)

    def notified(self, peer: Any) -> list[str]:
        sent: Iterable[Command] = peer.sent
        assert all(c.is_oneway and c.code == OwnRequestCode.ROUTE_CHANGED for c in sent)
        return [command.read(TopicRequestHeader).topic for command in sent]

    def test_a_client_is_notified_of_changes_to_its_topics_only(
        self, ask: Ask, new_peer: type[Any]
    ) -> None:
        client = new_peer()
        assert self.subscribe(ask, client, "t", "u").code == SUCCESS
        ask(register(T, TopicConfig("x")))
        assert self.notified(client) == ["t"]
        ask(register(T, TopicConfig("x")))
        assert self.notified(client) == ["t"]

    def test_a_client_is_notified_that_a_broker_died(
        self, ask: Ask, state: SharedState, new_peer: type[Any]
    ) -> None:
        client, broker = new_peer(), new_peer()
        ask(register(T), broker)
        self.subscribe(ask, client, "t")
        state.closed(broker)
        assert self.notified(client) == ["t"]

    def test_a_closed_client_is_forgotten(
        self, ask: Ask, state: SharedState, new_peer: type[Any]
    ) -> None:
        client = new_peer()
        self.subscribe(ask, client, "t")
        state.closed(client)
        ask(register(T))
        assert self.notified(client) == []
        assert not len(state.watches)

    def test_a_client_that_cannot_be_notified_does_no_harm(
        self, ask: Ask, new_peer: type[Any]
    ) -> None:
        dead, client = new_peer(), new_peer()
        self.subscribe(ask, dead, "t")
        self.subscribe(ask, client, "t")
        dead.close("gone")
        assert ask(register(T)).code == SUCCESS
        assert self.notified(client) == ["t"]

    def test_too_many_topics_are_a_sentence(self, ask: Ask, new_peer: type[Any]) -> None:
        reply = self.subscribe(ask, new_peer(), *map(str, range(10_001)))
        assert reply.code == ERROR
        assert "more than the 10000" in (reply.remark or "")
