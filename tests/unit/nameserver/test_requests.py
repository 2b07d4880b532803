"""What the name server answers, request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nameserver.config import NameServerConfig
from nameserver.routes import RouteTable
from nameserver.state import State
from remoting.clock import ManualClock
from remoting.protocol.bodies import decode, encode, properties_text
from remoting.protocol.bodies.registration import (
    RegisterBrokerBody,
    body_crc32,
    encode_compressed,
)
from remoting.protocol.bodies.route import (
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from remoting.protocol.bodies.tables import KVTable, TopicList
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, HeaderError
from remoting.protocol.headers import admin, registration
from remoting.protocol.own_codes import OwnRequestCode, RouteChangedRequestHeader

Ask = Callable[..., Command]
SUCCESS = ResponseCode.SUCCESS
ERROR = ResponseCode.SYSTEM_ERROR


def register(
    *topics: TopicConfig,
    name: str = "broker-a",
    address: str = "10.0.0.1:10911",
    broker_id: int = 0,
    counter: int = 1,
    body: bytes | None = None,
    cluster: str = "c",
    **fields: Any,
) -> Command:
    header = registration.RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr=address,
        cluster_name=cluster,
        ha_server_addr=address + "2",
        broker_id=broker_id,
        **fields,
    )
    if body is None:
        table = {topic.topic_name: topic for topic in topics}
        wrapper = TopicConfigSerializeWrapper(table, DataVersion(1, counter))
        body = encode(RegisterBrokerBody(wrapper))
    return Command.request(RequestCode.REGISTER_BROKER, header, body=body)


def route_of(topic: str, **fields: Any) -> Command:
    header = admin.GetRouteInfoRequestHeader(topic=topic, **fields)
    return Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)


def told_topics(ask: Ask, code: int, header: Any = None) -> list[str]:
    return sorted(decode(TopicList, ask(Command.request(code, header)).body).topic_list)


T = TopicConfig("t", 4, 8, 6)


class TestRegister:
    def test_a_registered_topic_has_a_route(self, ask: Ask) -> None:
        assert ask(register(T)).code == SUCCESS
        route = decode(TopicRouteData, ask(route_of("t")).body)
        assert route.queue_datas == [QueueData("broker-a", 4, 8, 6, 0)]
        assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
        assert route.broker_datas[0].enable_acting_master is None

    def test_a_compressed_body_is_taken(self, ask: Ask) -> None:
        content = RegisterBrokerBody(TopicConfigSerializeWrapper({"t": T}, DataVersion(1, 1)))
        body = encode_compressed(content)
        assert ask(register(body=body, compressed=True, body_crc32=body_crc32(body))).code == 0
        assert ask(route_of("t")).code == SUCCESS

    def test_a_wrong_checksum_is_refused(self, ask: Ask) -> None:
        reply = ask(register(T, body_crc32=12345))
        assert (reply.code, reply.remark) == (ERROR, "crc32 not match")
        assert ask(route_of("t")).code == ResponseCode.TOPIC_NOT_EXIST

    def test_brokers_before_3_0_11_tell_only_their_topics(self, ask: Ask) -> None:
        command = register(body=encode(TopicConfigSerializeWrapper({"t": T}, DataVersion(1, 1))))
        command.version = 36
        assert ask(command).code == SUCCESS
        assert ask(route_of("t")).code == SUCCESS

    def test_without_a_body_it_tells_only_that_it_is_there(self, ask: Ask, state: State) -> None:
        assert ask(register(body=b"")).code == SUCCESS
        assert list(state.routes.brokers()) == ["broker-a"]

    def test_a_5_x_registration_says_whether_slaves_may_act_as_master(self, ask: Ask) -> None:
        ask(register(T, enable_acting_master=False, heartbeat_timeout_millis=1000))
        route = decode(TopicRouteData, ask(route_of("t")).body)
        assert route.broker_datas[0].enable_acting_master is False

    def test_a_slave_is_told_its_master(self, ask: Ask) -> None:
        ask(register(T))
        reply = ask(register(broker_id=1, address="10.0.0.2:10911"))
        assert dict(reply.all_pairs() or ()) == {
            "masterAddr": "10.0.0.1:10911",
            "haServerAddr": "10.0.0.1:109112",
        }

    @pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 256])
    def test_impossible_names_are_refused(self, ask: Ask, name: str, state: State) -> None:
        assert ask(register(T, name=name)).code == ERROR
        assert ask(register(T, broker_id=-1)).code == ERROR
        assert not state.routes.brokers()

    def test_topics_with_impossible_names_are_left_out(self, ask: Ask, state: State) -> None:
        ask(register(T, TopicConfig("bad name"), TopicConfig("n" * 256)))
        assert state.routes.topics() == ["t"]

    def test_queue_numbers_are_bounded(self, ask: Ask) -> None:
        ask(register(TopicConfig("t", -5, 2_000_000_000)))
        data = decode(TopicRouteData, ask(route_of("t")).body).queue_datas[0]
        assert (data.read_queue_nums, data.write_queue_nums) == (0, 65_536)

    def test_a_full_table_is_a_sentence(self, ask: Ask, state: State) -> None:
        state.routes = RouteTable(max_brokers=1)
        assert ask(register(name="x", address="1:1")).code == SUCCESS
        reply = ask(register(name="y", address="2:2"))
        assert reply.code == ERROR
        assert "pocketmqMaxBrokers" in (reply.remark or "")

    def test_a_request_that_lacks_a_field_or_has_a_broken_body_raises(self, ask: Ask) -> None:
        with pytest.raises(HeaderError, match="brokerName"):
            ask(Command.request(RequestCode.REGISTER_BROKER))
        for body in (b"{", b"[1]", b'{"topicConfigSerializeWrapper":5}', b"\xff"):
            with pytest.raises(BodyError):
                ask(register(body=body))
        with pytest.raises(BodyError):
            ask(register(body=b"no zlib", compressed=True))

    def test_order_topics_are_told_to_brokers(
        self, ask: Ask, config: NameServerConfig, state: State
    ) -> None:
        ask(put("ORDER_TOPIC_CONFIG", "t", "broker-a:4"))
        assert decode(KVTable, ask(register(T)).body).table == {"t": "broker-a:4"}
        state.config = replace(config, return_order_topic_config_to_broker=False)
        assert not ask(register(T)).body


class TestLiveness:
    def test_a_silent_broker_is_dropped_and_its_connection_closed(
        self, ask: Ask, state: State, clock: ManualClock, new_peer: type[Any]
    ) -> None:
        broker = new_peer()
        ask(register(T), broker)
        clock.advance(120)
        state.scan()
        assert broker.close_reason is None
        clock.advance(0.01)
        state.scan()
        assert "too long" in str(broker.close_reason)
        assert ask(route_of("t")).code == ResponseCode.TOPIC_NOT_EXIST

    def test_a_heartbeat_keeps_it(self, ask: Ask, state: State, clock: ManualClock) -> None:
        ask(register(T))
        clock.advance(100)
        header = registration.BrokerHeartbeatRequestHeader(
            cluster_name="c", broker_addr="10.0.0.1:10911", broker_name="broker-a"
        )
        assert ask(Command.request(RequestCode.BROKER_HEARTBEAT, header)).code == SUCCESS
        clock.advance(100)
        state.scan()
        assert ask(route_of("t")).code == SUCCESS

    def test_a_broker_may_name_its_own_timeout(
        self, ask: Ask, state: State, clock: ManualClock
    ) -> None:
        ask(register(T, heartbeat_timeout_millis=1000))
        clock.advance(1.1)
        state.scan()
        assert not state.routes.brokers()

    def test_a_closed_connection_ends_the_broker_at_once(
        self, ask: Ask, state: State, new_peer: type[Any]
    ) -> None:
        broker = new_peer()
        ask(register(T), broker)
        state.closed(broker)
        assert not state.routes.brokers()

    def test_a_wall_clock_that_jumps_kills_nobody(
        self, ask: Ask, state: State, clock: ManualClock
    ) -> None:
        ask(register(T))
        clock._now_ms += 10**9
        state.scan()
        assert state.routes.brokers()

    def test_the_version_is_compared(self, ask: Ask) -> None:
        header = registration.QueryDataVersionRequestHeader(
            broker_name="broker-a", broker_addr="10.0.0.1:10911", cluster_name="c", broker_id=0
        )

        def changed(version: DataVersion | None) -> tuple[str, bytes]:
            body = encode(version) if version else b""
            reply = ask(Command.request(RequestCode.QUERY_DATA_VERSION, header, body=body))
            return dict(reply.all_pairs() or ())["changed"], bytes(reply.body)

        assert changed(DataVersion(1, 1)) == ("true", b"")
        ask(register(T))
        known = b'{"counter":1,"timestamp":1}'
        assert changed(DataVersion(1, 1)) == ("false", known)
        assert changed(DataVersion(2, 2)) == ("true", known)
        assert changed(None) == ("true", known)


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
        self, ask: Ask, state: State, config: NameServerConfig
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
            header = registration.GetBrokerMemberGroupRequestHeader(
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
        wipe = admin.WipeWritePermOfBrokerRequestHeader(broker_name="broker-a")
        reply = ask(Command.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe))
        assert dict(reply.all_pairs() or ()) == {"wipeTopicCount": "2"}
        assert decode(TopicRouteData, ask(route_of("t")).body).queue_datas[0].perm == 4
        add = admin.AddWritePermOfBrokerRequestHeader(broker_name="broker-a")
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
        header = registration.RegisterTopicRequestHeader(topic="new")
        body = encode(TopicRouteData(queue_datas=[QueueData("broker-a", 2, 2, 6)]))
        code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
        assert ask(Command.request(code, header, body=body)).code == SUCCESS
        assert ask(route_of("new")).code == SUCCESS
        bad = registration.RegisterTopicRequestHeader(topic="a b")
        assert ask(Command.request(code, bad, body=body)).code == ERROR

    def test_an_unknown_code_is_3(self, ask: Ask) -> None:
        reply = ask(Command.request(999))
        assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert reply.remark == " request type 999 not supported"


def put(namespace: str, key: str, value: str) -> Command:
    header = admin.PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
    return Command.request(RequestCode.PUT_KV_CONFIG, header)


class TestKeyValues:
    def get(self, ask: Ask, key: str) -> Command:
        header = admin.GetKVConfigRequestHeader(namespace="ns", key=key)
        return ask(Command.request(RequestCode.GET_KV_CONFIG, header))

    def test_an_entry_is_on_disk_when_it_is_answered(
        self, ask: Ask, config: NameServerConfig, clock: ManualClock
    ) -> None:
        assert ask(put("ns", "k", "wört")).code == SUCCESS
        assert dict(self.get(ask, "k").all_pairs() or ()) == {"value": "wört"}
        assert State.load(config, clock).kv.get("ns", "k") == "wört"

    def test_a_deleted_entry_is_gone(
        self, ask: Ask, config: NameServerConfig, clock: ManualClock
    ) -> None:
        ask(put("ns", "k", "v"))
        header = admin.DeleteKVConfigRequestHeader(namespace="ns", key="k")
        for _ in range(2):
            assert ask(Command.request(RequestCode.DELETE_KV_CONFIG, header)).code == SUCCESS
        assert self.get(ask, "k").code == ResponseCode.QUERY_NOT_FOUND
        assert State.load(config, clock).kv.get("ns", "k") is None

    def test_a_namespace_is_listed(self, ask: Ask) -> None:
        header = admin.GetKVListByNamespaceRequestHeader(namespace="ns")
        command = Command.request(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        assert ask(command).code == ResponseCode.QUERY_NOT_FOUND
        ask(put("ns", "k", "v"))
        assert decode(KVTable, ask(command).body).table == {"k": "v"}

    def test_an_entry_that_can_not_be_kept_is_an_error(self, ask: Ask) -> None:
        assert ask(put("", "k", "v")).code == ERROR
        assert ask(put("ns", "k", "v" * 70_000)).code == ERROR

    def test_a_disk_that_takes_nothing_changes_nothing(
        self, ask: Ask, config: NameServerConfig
    ) -> None:
        config.kv_config_path.with_name("kvConfig.json.tmp").mkdir()
        reply = ask(put("ns", "k", "v"))
        assert reply.code == ERROR
        assert "Nothing was changed" in (reply.remark or "")
        assert self.get(ask, "k").code == ResponseCode.QUERY_NOT_FOUND


class TestSettings:
    def update(self, ask: Ask, text: str) -> Command:
        return ask(Command.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=text.encode()))

    def shown(self, ask: Ask) -> dict[str, str]:
        reply = ask(Command.request(RequestCode.GET_NAMESRV_CONFIG))
        return properties_text.parse(reply.body)

    def test_a_change_is_shown_and_stored_beside_what_the_file_had(
        self, ask: Ask, state: State, tmp_path: Path
    ) -> None:
        file = tmp_path / "namesrv.conf"
        file.write_text("listenPort=9876\nrocketmqHome=/opt\n")
        state.config = replace(state.config, config_store_path=file)
        assert self.update(ask, "orderMessageEnable=true\nnonsense=1\n").code == SUCCESS
        assert self.shown(ask)["orderMessageEnable"] == "true"
        assert properties_text.parse(file.read_bytes()) == {
            "listenPort": "9876",
            "rocketmqHome": "/opt",
            "orderMessageEnable": "true",
        }

    def test_without_a_file_a_change_lasts_as_long_as_the_process(
        self, ask: Ask, state: State
    ) -> None:
        assert self.update(ask, "orderMessageEnable=true").code == SUCCESS
        assert state.config.order_message_enable

    def test_settings_that_name_files_can_not_be_changed(self, ask: Ask) -> None:
        reply = self.update(ask, "kvConfigPath=/tmp/x")
        assert reply.code == ResponseCode.NO_PERMISSION

    def test_a_bad_value_is_a_sentence(self, ask: Ask) -> None:
        reply = self.update(ask, "listenPort=x")
        assert reply.code == ERROR
        assert "listenPort=x" in (reply.remark or "")


class TestSubscription:
    def subscribe(self, ask: Ask, peer: Any, *topics: str) -> Command:
        body = encode(TopicList(list(topics)))
        return ask(Command.request(OwnRequestCode.SUBSCRIBE_ROUTE, body=body), peer)

    def told(self, peer: Any) -> list[str]:
        sent: Iterable[Command] = peer.sent
        assert all(c.is_oneway and c.code == OwnRequestCode.ROUTE_CHANGED for c in sent)
        return [command.read(RouteChangedRequestHeader).topic for command in sent]

    def test_a_client_hears_of_changes_to_its_topics_only(
        self, ask: Ask, new_peer: type[Any]
    ) -> None:
        client = new_peer()
        assert self.subscribe(ask, client, "t", "u").code == SUCCESS
        ask(register(T, TopicConfig("x")))
        assert self.told(client) == ["t"]
        ask(register(T, TopicConfig("x")))
        assert self.told(client) == ["t"]

    def test_it_hears_that_a_broker_died(self, ask: Ask, state: State, new_peer: type[Any]) -> None:
        client, broker = new_peer(), new_peer()
        ask(register(T), broker)
        self.subscribe(ask, client, "t")
        state.closed(broker)
        assert self.told(client) == ["t"]

    def test_a_closed_client_is_forgotten(
        self, ask: Ask, state: State, new_peer: type[Any]
    ) -> None:
        client = new_peer()
        self.subscribe(ask, client, "t")
        state.closed(client)
        ask(register(T))
        assert self.told(client) == []
        assert not len(state.watches)

    def test_a_client_that_can_not_be_told_harms_nobody(
        self, ask: Ask, new_peer: type[Any]
    ) -> None:
        dead, client = new_peer(), new_peer()
        self.subscribe(ask, dead, "t")
        self.subscribe(ask, client, "t")
        dead.close("gone")
        assert ask(register(T)).code == SUCCESS
        assert self.told(client) == ["t"]

    def test_too_many_topics_are_a_sentence(self, ask: Ask, new_peer: type[Any]) -> None:
        reply = self.subscribe(ask, new_peer(), *map(str, range(10_001)))
        assert reply.code == ERROR
        assert "more than the 10000" in (reply.remark or "")
