"""message trace: what became of a message, drawn or listed."""

from __future__ import annotations

import re
import time

import pytest

import client
from client import blocking
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from tests.integration.pocketmq.conftest import CommandLine


def traced(cli: CommandLine, message_id: str, steps: int) -> list[dict[str, object]]:
    """Return the steps of a message once the index has all of them."""
    for _ in range(100):
        result = cli.result("message", "trace", message_id)
        if result.stdout.count("\n") == steps:
            found: list[dict[str, object]] = cli.json("message", "trace", message_id)
            return found
        time.sleep(0.1)
    raise AssertionError(result.output)


@pytest.fixture
def message_id(server: StandaloneServer, cli: CommandLine, topic: str) -> str:
    """Return the id of a message that a group fails to consume at first, and another consumes."""
    trace = client.MessageTrace()
    with blocking.Producer(server.nameserver, group="shop", interceptors=[trace]) as producer:
        sent = producer.send(topic, b"x", tag="paid", keys=["o-1", "o-2"])
    calls = []

    def fail_once(message: client.ReceivedMessage[bytes]) -> None:
        calls.append(message)
        if not message.retries:
            raise client.RetryLater(1)

    with blocking.PushConsumer(
        server.nameserver,
        group=f"billing-{topic}",
        subscribe={topic: "*"},
        handler=fail_once,
        start_from=client.FIRST,
        interceptors=[trace],
    ):
        while len(calls) < 2:
            time.sleep(0.01)
    arguments = ("--group", f"audit-{topic}", "--from", "begin", "--max", "1", "--trace")
    cli("consume", topic, *arguments)
    traced(cli, sent.id, 5)
    return sent.id


def test_the_steps_of_a_message_are_listed_by_time(
    cli: CommandLine, topic: str, message_id: str
) -> None:
    sent, stored, *consumed = traced(cli, message_id, 5)
    assert (sent["step"], sent["group"], sent["client"]) == ("sent", "shop", "127.0.0.1")
    assert (sent["topic"], sent["tag"], sent["keys"]) == (topic, "paid", ["o-1", "o-2"])
    assert sent["after_ms"] == 0
    assert (stored["step"], stored["place"]) == ("stored", f"{topic}/broker-a/0 at offset 0")
    facts = [(each["step"], each["group"], each["retries"], each["result"]) for each in consumed]
    assert facts == [
        ("consumed", f"billing-{topic}", 0, "failed"),
        ("consumed", f"billing-{topic}", 1, "ok"),
        ("consumed", f"audit-{topic}", 0, "ok"),
    ]
    after = [each["after_ms"] for each in (sent, stored, *consumed)]
    assert after == sorted(after, key=lambda value: int(str(value)))
    assert int(str(consumed[1]["after_ms"])) >= 1000


def test_the_steps_are_drawn_at_a_terminal(
    cli: CommandLine, topic: str, message_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by the fixture ``at_terminal``, which would come before ``message_id``.
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    drawn = cli("message", "trace", message_id)
    varying = r"\x1b\[[\d;]*m|\+[\d,]+ ms|took \d+ ms|\d{4}-\d\d-\S+"
    assert re.sub(varying, "", drawn).splitlines() == [
        f"{message_id}  topic {topic}  tag paid  keys o-1 o-2",
        "├──   sent by shop at 127.0.0.1,   ok",
        f"├──   stored in {topic}/broker-a/0 at offset 0  ok",
        f"├── group billing-{topic}",
        "│   ├──   at 127.0.0.1,   failed",
        "│   └──   at 127.0.0.1, retry 1,   ok",
        f"└── group audit-{topic}",
        "    └──   at 127.0.0.1,   ok",
    ]


def test_a_transaction_is_stored_again_when_it_is_committed(cli: CommandLine, topic: str) -> None:
    sent = cli.json("send", topic, "x", "--transaction", "rollback", "--trace")
    steps = traced(cli, sent["id"], 3)
    assert [each["step"] for each in steps] == ["half sent", "stored", "rolled back"]
    sent = cli.json("send", topic, "x", "--transaction", "commit", "--trace")
    steps = traced(cli, sent["id"], 4)
    assert [each["step"] for each in steps if each["step"] != "stored"] == [
        "half sent",
        "committed",
    ]
    places = [str(each["place"]) for each in steps if each["step"] == "stored"]
    assert places[0].startswith("RMQ_SYS_TRANS_HALF_TOPIC/broker-a/")
    assert places[1] == f"{topic}/broker-a/0 at offset 0"


def test_a_trace_outlives_its_message_and_shows_what_has_not_ended(
    cli: CommandLine, server: StandaloneServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        client.TraceRecord(
            kind="Pub", message_id=name, time_ms=1, group="g", topic="t", offset_id="0" * 32
        ),
        client.TraceRecord(kind="EndTransaction", message_id=name, time_ms=2, from_check=True),
        client.TraceRecord(kind="SubBefore", message_id=name, time_ms=3, group="h", request_id="r"),
    ]
    with blocking.Producer(server.nameserver) as producer:
        body = "".join(record.encode() for record in records).encode()
        producer.send("RMQ_SYS_TRACE_TOPIC", body, keys=[name])
    steps = traced(cli, name, 3)
    assert [(step["step"], step["result"]) for step in steps] == [
        *(("sent", "ok"), ("undecided", "asked by the broker"), ("consumed", None)),
    ]
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    drawn = cli("message", "trace", name)
    assert f"{name}  topic t\n" in re.sub(r"\x1b\[[\d;]*m", "", drawn)
    assert "not ended" in drawn


def test_a_message_without_a_trace_is_an_error_that_says_how_to_get_one(
    cli: CommandLine, topic: str
) -> None:
    sent = cli.json("send", topic, "x")
    error = cli.fails("message", "trace", sent["id"])
    assert f"there is no trace of {sent['id']}" in error
    assert "client.MessageTrace()" in error


def test_a_send_says_that_its_trace_was_not_sent() -> None:
    with testing.broker(settings={"autoCreateTopicEnable": "false"}) as server:
        cli = CommandLine(server.nameserver)
        cli("topic", "create", "t")
        result = cli.result("send", "t", "x", "--trace")
    assert result.exit_code == 0
    assert "1 record of the message trace not sent" in result.stderr
