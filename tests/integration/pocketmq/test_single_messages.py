"""message get, find and tail: against a real broker."""

from __future__ import annotations

import json

import pytest

import client
from client import blocking
from pocketmq.testing import StandaloneServer
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from tests.integration.bad_input.peer import Peer
from tests.integration.pocketmq.conftest import CommandLine


@pytest.fixture
def ids(server: StandaloneServer, topic: str) -> list[str]:
    """Ids of three messages of a topic; each has the key ``k`` and a unique one."""
    with blocking.Producer(server.nameserver, group="p") as producer:
        return [
            producer.send(client.Message(topic, b"body %d" % n, keys=["k", f"k{n}"])).id
            for n in range(3)
        ]


def test_messages_are_listed_by_key(cli: CommandLine, topic: str, ids: list[str]) -> None:
    rows = cli.json("message", "find", topic, "k")
    assert [row["body"] for row in rows] == ["body 0", "body 1", "body 2"]
    assert [row["id"] for row in rows] == ids
    (line,) = cli("message", "find", topic, "k1", "--from", "-1h").splitlines()
    assert line.split("\t")[3:6] == [ids[1], "-", "k,k1"]
    assert cli("message", "find", topic, "k", "--to", "-1h") == ""
    assert len(cli.json("message", "find", topic, "k", "--max", "2")) == 2


def test_a_message_is_shown_by_id(cli: CommandLine, topic: str, ids: list[str]) -> None:
    shown = cli.json("message", "get", ids[1], "--topic", topic)
    assert (shown["topic"], shown["body"], shown["keys"]) == (topic, "body 1", ["k", "k1"])
    assert "body\tbody 1" in cli("message", "get", ids[1], "--topic", topic)
    assert "there is no message" in cli.fails("message", "get", "nonsense", "--topic", topic)
    assert "give its topic" in cli.fails("message", "get", "nonsense")


def test_the_newest_messages_are_written_in_order(
    cli: CommandLine, topic: str, ids: list[str]
) -> None:
    assert cli("message", "tail", topic, "-n", "2") == "body 1\nbody 2\n"
    assert cli("message", "tail", topic) == "body 0\nbody 1\nbody 2\n"
    assert f'"id":"{ids[2]}"' in cli("message", "tail", topic, "-n", "1", "--json")


def test_an_invalid_time_is_refused(cli: CommandLine, topic: str) -> None:
    assert "is no time" in cli.result("message", "find", topic, "k", "--from", "begin").stderr


@pytest.mark.parametrize("born_ms", [2**62, -(2**63), 253_402_300_800_000])
def test_a_message_whose_birth_is_no_time_is_shown_with_the_others(
    cli: CommandLine, server: StandaloneServer, topic: str, born_ms: int
) -> None:
    with Peer(server.broker) as peer:
        for body, born in ((b"odd", born_ms), (b"good", 1_700_000_000_000)):
            header = SendMessageRequestHeaderV2(
                producer_group="p",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=1,
                queue_id=0,
                sys_flag=0,
                born_timestamp=born,
                flag=0,
                properties="KEYS\x01k",
            )
            peer.ask(Command.request(RequestCode.SEND_MESSAGE_V2, header, body=body))
    for command in (("read", topic, "--json"), ("message", "tail", topic, "--json")):
        rows = [json.loads(line) for line in cli(*command).splitlines()]
        assert [(row["body"], row["born_at"]) for row in rows] == [
            ("odd", None),
            ("good", "2023-11-14T22:13:20.000+00:00"),
        ]
    assert cli("read", topic, "--format", "csv").count("\n") == 3
    assert [row["body"] for row in cli.json("message", "find", topic, "k")] == ["odd", "good"]
