"""What a broker sends to name servers about itself."""

from __future__ import annotations

import json
from pathlib import Path

from broker.config import BrokerConfig
from broker.registration import LARGE_BODY_BYTES, Announcement
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.registration import (
    RegisterBrokerBody,
    body_crc_matches,
    decode_registration,
)
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.command import Command
from remoting.protocol.frame import cut
from remoting.protocol.frame import decode as decode_frame
from remoting.protocol.headers.admin import RegisterBrokerRequestHeader


def captured(golden: Path, scenario: str, name: str) -> Command:
    lines = (golden / "frames" / f"{scenario}.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    frame_hex = next(r["frame_hex"] for r in records if r["code_name"] == name)
    frame = cut(bytes.fromhex(frame_hex))
    assert frame is not None
    return decode_frame(frame)


def apaches_broker(**keys: str) -> Announcement:
    given = {"brokerName": "broker-a", "brokerIP1": "127.0.0.1"} | keys
    return Announcement.of(BrokerConfig.from_sources(None, {}, given), 20911)


def topics(count: int = 1) -> TopicConfigSerializeWrapper:
    table = {f"t{n}": TopicConfig(f"t{n}", 4, 4, 6) for n in range(count)}
    return TopicConfigSerializeWrapper(table, DataVersion(5, 1))


def fields(command: Command) -> dict[str, str]:
    return dict(command.all_pairs() or ())


def body_of(command: Command) -> RegisterBrokerBody:
    compressed = fields(command)["compressed"] == "true"
    return decode_registration(command.body, compressed=compressed)


def test_a_registration_is_the_one_that_apaches_broker_sends(golden: Path) -> None:
    theirs = captured(golden, "broker_registration", "REGISTER_BROKER")
    body = decode(RegisterBrokerBody, theirs.body)
    ours = apaches_broker().register(body.topic_config_serialize_wrapper)
    assert bytes(ours.body) == bytes(theirs.body)
    assert fields(ours) == theirs.fields


def test_a_version_query_is_the_one_that_apaches_broker_sends(golden: Path) -> None:
    theirs = captured(golden, "broker_registration_query_version", "QUERY_DATA_VERSION")
    ours = apaches_broker().query_version(DataVersion(1795213471289, 0))
    assert fields(ours) == theirs.fields
    assert bytes(ours.body) == bytes(theirs.body)


def test_an_unregistration_is_the_one_that_apaches_broker_sends(golden: Path) -> None:
    theirs = captured(golden, "broker_unregistration", "UNREGISTER_BROKER")
    ours = apaches_broker().unregister()
    assert fields(ours) == theirs.fields


def test_a_compressed_registration_is_flagged_and_checked() -> None:
    command = apaches_broker(compressedRegister="true").register(topics(3))
    header = command.read(RegisterBrokerRequestHeader)
    assert header.compressed
    assert body_crc_matches(command.body, header.body_crc32)
    assert list(body_of(command).topic_config_serialize_wrapper.topic_config_table) == [
        "t0",
        "t1",
        "t2",
    ]


def test_a_huge_registration_is_compressed_unasked_so_that_it_fits_a_frame() -> None:
    count = LARGE_BODY_BYTES // 130
    command = apaches_broker().register(topics(count))
    assert fields(command)["compressed"] == "true"
    assert len(command.body) < LARGE_BODY_BYTES
    assert len(body_of(command).topic_config_serialize_wrapper.topic_config_table) == count


def test_a_broker_that_may_not_be_written_to_registers_all_topics_so() -> None:
    wrapper = topics(2)
    body = body_of(apaches_broker(brokerPermission="4").register(wrapper))
    registered = body.topic_config_serialize_wrapper.topic_config_table.values()
    assert {topic.perm for topic in registered} == {4}
    assert {topic.perm for topic in wrapper.topic_config_table.values()} == {6}


def test_the_replication_address_is_the_next_port_unless_told() -> None:
    assert apaches_broker().ha_address == "127.0.0.1:20912"
    registered = apaches_broker(brokerIP2="10.0.0.5", haListenPort="7")
    assert registered.ha_address == "10.0.0.5:7"


def test_the_period_keeps_within_rocketmqs_bounds() -> None:
    assert apaches_broker(registerNameServerPeriod="1").period == 10.0
    assert apaches_broker(registerNameServerPeriod="999999").period == 60.0
    assert apaches_broker().period == 30.0
    assert apaches_broker().timeout == 6.0


def test_an_ipv6_address_is_advertised_in_brackets() -> None:
    assert apaches_broker(brokerIP1="::1").address == "[::1]:20911"
    published = apaches_broker(pocketmqAdvertisedPort="31911")
    assert published.address == "127.0.0.1:31911"
    assert published.ha_address == "127.0.0.1:20912"
