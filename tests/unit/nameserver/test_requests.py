"""The name server's answers to brokers, and when it drops a silent broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nameserver.config import NameServerConfig
from nameserver.routes import RouteInfoTable
from nameserver.state import SharedState
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.registration import RegisterBrokerBody, body_crc32, encode_compressed
from remoting.protocol.bodies.route import QueueData, TopicRouteData
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, HeaderError
from remoting.protocol.headers import admin
from tests.support.clock import ManualClock
from tests.unit.nameserver.commands import ERROR, SUCCESS, Ask, T, put, register, route_of


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

    def test_brokers_before_3_0_11_register_only_their_topics(self, ask: Ask) -> None:
        command = register(body=encode(TopicConfigSerializeWrapper({"t": T}, DataVersion(1, 1))))
        command.version = 36
        assert ask(command).code == SUCCESS
        assert ask(route_of("t")).code == SUCCESS

    def test_a_registration_without_a_body_only_renews_the_timeout(
        self, ask: Ask, state: SharedState
    ) -> None:
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

    def test_its_fields_are_read_as_java_reads_them(self, ask: Ask, state: SharedState) -> None:
        sent = register(T)
        fields = {"compressed": "0", "brokerId": "+٠", "bodyCrc32": "00", "new in 6.0": "x"}
        pairs = (*(sent.all_pairs() or ()), *fields.items())
        assert ask(replace(sent, header=None, pairs=pairs)).code == SUCCESS
        assert list(state.routes.brokers()) == ["broker-a"]

    @pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 256])
    def test_illegal_names_are_refused(self, ask: Ask, name: str, state: SharedState) -> None:
        assert ask(register(T, name=name)).code == ERROR
        assert ask(register(T, broker_id=-1)).code == ERROR
        assert not state.routes.brokers()

    def test_topics_with_illegal_names_are_omitted(self, ask: Ask, state: SharedState) -> None:
        ask(register(T, TopicConfig("bad name"), TopicConfig("n" * 256)))
        assert state.routes.topics() == ["t"]

    def test_queue_numbers_are_bounded(self, ask: Ask) -> None:
        ask(register(TopicConfig("t", -5, 2_000_000_000)))
        data = decode(TopicRouteData, ask(route_of("t")).body).queue_datas[0]
        assert (data.read_queue_nums, data.write_queue_nums) == (0, 65_536)

    def test_a_full_table_is_a_clear_error(self, ask: Ask, state: SharedState) -> None:
        state.routes = RouteInfoTable(max_brokers=1)
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

    def test_order_topics_are_sent_to_brokers(
        self, ask: Ask, config: NameServerConfig, state: SharedState
    ) -> None:
        ask(put("ORDER_TOPIC_CONFIG", "t", "broker-a:4"))
        assert decode(KVTable, ask(register(T)).body).table == {"t": "broker-a:4"}
        state.config = replace(config, return_order_topic_config_to_broker=False)
        assert not ask(register(T)).body


class TestLiveness:
    def test_a_silent_broker_is_dropped_and_its_connection_closed(
        self, ask: Ask, state: SharedState, clock: ManualClock, new_peer: type[Any]
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

    def test_a_heartbeat_keeps_it(self, ask: Ask, state: SharedState, clock: ManualClock) -> None:
        ask(register(T))
        clock.advance(100)
        header = admin.BrokerHeartbeatRequestHeader(
            cluster_name="c", broker_addr="10.0.0.1:10911", broker_name="broker-a"
        )
        assert ask(Command.request(RequestCode.BROKER_HEARTBEAT, header)).code == SUCCESS
        clock.advance(100)
        state.scan()
        assert ask(route_of("t")).code == SUCCESS

    def test_a_broker_may_name_its_own_timeout(
        self, ask: Ask, state: SharedState, clock: ManualClock
    ) -> None:
        ask(register(T, heartbeat_timeout_millis=1000))
        clock.advance(1.1)
        state.scan()
        assert not state.routes.brokers()

    def test_a_closed_connection_ends_the_broker_at_once(
        self, ask: Ask, state: SharedState, new_peer: type[Any]
    ) -> None:
        broker = new_peer()
        ask(register(T), broker)
        state.closed(broker)
        assert not state.routes.brokers()

    def test_a_jump_of_the_wall_clock_expires_no_broker(
        self, ask: Ask, state: SharedState, clock: ManualClock
    ) -> None:
        ask(register(T))
        clock.jump(10**9)
        state.scan()
        assert state.routes.brokers()

    def test_the_version_is_compared(self, ask: Ask) -> None:
        header = admin.BrokerRequestHeader(
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
