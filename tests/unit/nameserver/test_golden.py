"""Requests captured at Apache's name server, replayed to ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from nameserver.state import SharedState
from remoting.protocol.bodies import decode, encode, relaxed_json
from remoting.protocol.bodies.registration import RegisterBrokerBody
from remoting.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import PutKVConfigRequestHeader, RegisterBrokerRequestHeader

Frames = Callable[[str], Iterable[Any]]
Ask = Callable[..., Command]

SCENARIOS = [
    "broker_registration",
    "broker_registration_query_version",
    "route_and_auto_create",
    "route_json_dialects",
    "admin",
    "errors",
    "v5_broker_registration",
    "v5_broker_unregistration",
    "v5_admin",
]
OWN_ANSWERS = {RequestCode.GET_NAMESRV_CONFIG}
"""The settings are ours."""
V5 = 413
ORDER_TOPICS = {"errors": {"OneQueue": "broker-a:1"}}
"""Entries that were put before a scenario began."""


def full_registrations(frames: Iterable[Any]) -> list[Command]:
    commands = [f.command for f in frames if f.record["code_name"] == "REGISTER_BROKER"]
    return sorted(commands, key=lambda command: len(command.body))


def without_topics_made_later(frames: Iterable[Any]) -> Command:
    """The fullest registration, less the topics that weren't there at first."""
    frames = list(frames)
    full = full_registrations(frames)[-1]
    header = full.read(RegisterBrokerRequestHeader)
    header.body_crc32 = 0
    body = decode(RegisterBrokerBody, full.body)
    absent = [f.command.remark for f in frames if f.command.code == ResponseCode.TOPIC_NOT_EXIST]
    for name in list(body.topic_config_serialize_wrapper.topic_config_table):
        if any(remark.split("\n")[0].endswith(f": {name}") for remark in absent):
            del body.topic_config_serialize_wrapper.topic_config_table[name]
    return Command.request(RequestCode.REGISTER_BROKER, header, body=encode(body))


def registration_of_all_that_is_told(frames: Iterable[Any]) -> Command:
    """A registration of the topics that the answers of a scenario name."""
    asked: dict[tuple[int, int], str] = {}
    topics: dict[str, TopicConfig] = {}
    version = 0
    for frame in frames:
        version = frame.command.version
        body = frame.record.get("body_json") or {}
        if not frame.command.is_response:
            asked[frame.key] = (frame.record["header"] or {}).get("topic", "")
        for name in body.get("topicList", ()):
            topics.setdefault(name, TopicConfig(name, 1, 1))
        for data in body.get("queueDatas", ()):
            name = asked[frame.key]
            counts = data["readQueueNums"], data["writeQueueNums"], data["perm"]
            topics[name] = TopicConfig(name, *counts)
    header = RegisterBrokerRequestHeader(
        broker_name="broker-a",
        broker_addr="127.0.0.1:20911",
        cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:20912",
        broker_id=0,
        enable_acting_master=False if version > V5 else None,
    )
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(topics))
    return Command.request(RequestCode.REGISTER_BROKER, header, body=encode(body))


def seed(ask: Ask, frames: Frames, scenario: str) -> None:
    """What had happened before the scenario began: a broker with its topics, and order topics."""
    if scenario == "admin":
        ask(without_topics_made_later(frames("admin")))
    elif scenario == "errors":
        ask(full_registrations(frames("admin"))[-1])
    elif scenario == "route_and_auto_create":
        ask(full_registrations(frames("broker_registration"))[0])
    elif scenario in {"v5_admin", "route_json_dialects"}:
        ask(registration_of_all_that_is_told(frames(scenario)))
    for topic, value in ORDER_TOPICS.get(scenario, {}).items():
        header = PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key=topic, value=value)
        ask(Command.request(RequestCode.PUT_KV_CONFIG, header))


def fields_of(command: Command) -> dict[str, str]:
    return dict(command.all_pairs() or ())


def body_of(command: Command) -> object:
    if not command.body:
        return None
    tree = relaxed_json.loads(command.body)
    if isinstance(tree, dict) and "topicList" in tree:
        tree["topicList"] = sorted(tree["topicList"])
    return tree


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_answer_is_that_of_apache(ask: Ask, frames: Frames, scenario: str) -> None:
    seed(ask, frames, scenario)
    answers: dict[tuple[int, int], Command] = {}
    compared = 0
    for frame in frames(scenario):
        command = frame.command
        if not command.is_response:
            answers[frame.key] = ask(command)
            continue
        ours = answers.pop(frame.key, None)
        if ours is None or frame.record["reply_to"] in OWN_ANSWERS:
            continue
        assert ours.code == command.code, frame.record
        assert fields_of(ours) == fields_of(command), frame.record
        assert body_of(ours) == body_of(command), frame.record
        assert (ours.remark or "").split("\n")[0] == (command.remark or "").split("\n")[0]
        compared += 1
    assert compared


def test_routes_have_the_same_bytes_as_apaches(ask: Ask, frames: Frames) -> None:
    seed(ask, frames, "route_json_dialects")
    answers = {}
    for frame in frames("route_json_dialects"):
        if not frame.command.is_response:
            answers[frame.key] = ask(frame.command)
        else:
            assert bytes(answers[frame.key].body) == bytes(frame.command.body)


def test_an_unknown_code_is_answered_unlike_by_apaches_4(ask: Ask, frames: Frames) -> None:
    unknown = [f.command for f in frames("errors") if f.record["code_name"] == "?"]
    assert [ask(command).code for command in unknown] == [
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    ] * len(unknown)
    assert unknown


def test_after_the_unregistration_nothing_is_left(
    ask: Ask, frames: Frames, state: SharedState
) -> None:
    ask(full_registrations(frames("broker_registration"))[0])
    assert state.routes.topics()
    good_bye = next(iter(frames("broker_unregistration"))).command
    assert ask(good_bye).code == ResponseCode.SUCCESS
    assert not state.routes.topics()
    assert not state.routes.brokers()
