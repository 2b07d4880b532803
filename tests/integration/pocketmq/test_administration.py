"""The commands topic, group and cluster against a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from client import blocking
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from tests.harness.processes import processes
from tests.integration.pocketmq.conftest import CommandLine
from tests.support.waiting import wait_until


def test_a_topic_is_created_changed_and_deleted(cli: CommandLine, name: str) -> None:
    assert cli("topic", "create", name, "--queues", "2") == (
        f"created topic {name} with 2 queues at each broker\n"
    )
    assert f"{name}\t2\t0\t-" in cli("topic", "list").splitlines()
    (route,) = cli.json("topic", "route", name)
    assert (route["write_queues"], route["read_queues"], route["permission"]) == (2, 2, "rw")
    cli("topic", "update", name, "--queues", "4", "--permission", "r")
    (route,) = cli.json("topic", "route", name)
    assert (route["write_queues"], route["read_queues"], route["permission"]) == (4, 4, "r")
    assert len(cli("topic", "status", name).splitlines()) == 4
    assert cli("topic", "delete", name) == f"deleted topic {name}\n"
    assert name not in cli("topic", "list").split()


def test_creating_a_topic_twice_points_to_update(cli: CommandLine, topic: str) -> None:
    error = cli.fails("topic", "create", topic)
    assert "exists already" in error
    assert "pocketmq topic update" in error


def test_topic_status_shows_the_offsets_of_its_queues(cli: CommandLine, topic: str) -> None:
    cli("send", topic, "tea")
    (row,) = cli.json("topic", "status", topic)
    assert (row["queue"], row["first"], row["next"], row["messages"]) == (0, 0, 1, 1)
    assert row["last_stored"] is not None


def test_topics_are_listed_with_their_queues_and_messages(cli: CommandLine, topic: str) -> None:
    cli("send", topic, "tea")
    (row,) = [row for row in cli.json("topic", "list", "--rate") if row["topic"] == topic]
    assert (row["queues"], row["messages"], row["rate"]) == (1, 1, 0.0)
    assert row["last_stored"] is not None


def test_system_topics_are_shown_on_request(cli: CommandLine) -> None:
    shown = {row["topic"] for row in cli.json("topic", "list")}
    everything = {row["topic"] for row in cli.json("topic", "list", "--all")}
    assert "TBW102" in everything - shown


@pytest.mark.parametrize("verb", ["update", "delete", "route", "status"])
def test_an_unknown_topic_is_a_one_line_error(cli: CommandLine, verb: str) -> None:
    options = ["--queues", "1"] if verb == "update" else []
    error = cli.fails("topic", verb, "no-such-topic", *options)
    assert error.count("\n") == 1
    assert "no-such-topic" in error


def test_an_invalid_topic_name_is_refused(cli: CommandLine) -> None:
    assert "illegal characters" in cli.fails("topic", "create", "a/b")
    assert "there is no broker 'nobody'" in cli.fails("topic", "create", "a", "--broker", "nobody")


def test_an_update_needs_something_to_update(cli: CommandLine, topic: str) -> None:
    assert "nothing to change" in cli.fails("topic", "update", topic, code=2)


def test_another_number_of_queues_warns_about_the_order_of_keys(
    cli: CommandLine, topic: str
) -> None:
    result = cli.result("topic", "update", topic, "--queues", "4")
    assert result.stdout == f"changed topic {topic}\n"
    assert f"topic {topic} changes from 1 to 4 queues per broker" in result.stderr
    assert "warning" not in cli.result("topic", "update", topic, "--queues", "4").stderr
    assert "warning" not in cli.result("topic", "update", topic, "--permission", "rw").stderr
    assert "warning" not in cli.result("topic", "update", topic, "--read-queues", "5").stderr


@pytest.mark.usefixtures("at_terminal")
def test_another_number_of_queues_needs_confirmation_at_a_terminal(
    cli: CommandLine, topic: str
) -> None:
    def queues() -> int:
        (route,) = cli.json("topic", "route", topic)
        return int(route["write_queues"])

    assert "Change topic" in cli.fails("topic", "update", topic, "--queues", "2", stdin="n\n")
    assert queues() == 1
    cli("topic", "update", topic, "--write-queues", "2", stdin="y\n")
    assert queues() == 2
    cli("topic", "update", topic, "--queues", "3", "--yes")
    assert queues() == 3
    # Without an answer on stdin a question would end the command.
    assert cli.json("topic", "update", topic, "--queues", "4") == {"topic": topic}
    assert queues() == 4


@pytest.mark.usefixtures("at_terminal")
def test_deleting_needs_confirmation_at_a_terminal(cli: CommandLine, topic: str) -> None:
    assert "Delete topic" in cli.fails("topic", "delete", topic, stdin="n\n")
    assert topic in cli("topic", "list").split()
    cli("topic", "delete", topic, "--yes")


def test_system_groups_are_shown_on_request(cli: CommandLine) -> None:
    assert "TOOLS_CONSUMER" not in cli("group", "list").split()
    assert "TOOLS_CONSUMER" in cli("group", "list", "--all").split()


def test_the_cluster_lists_its_brokers(cli: CommandLine, server: StandaloneServer) -> None:
    (row,) = cli.json("cluster", "list")
    assert row["address"] == server.broker
    (row,) = cli.json("cluster", "status")
    assert row["problem"] is None
    assert row["version"] == "V4_9_7"
    assert row["address"] == server.broker
    assert server.broker in cli("cluster", "status")


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list"],
        ["topic", "create", "a"],
        ["group", "list"],
        ["group", "lag", "g"],
        ["group", "reset", "g", "--topic", "t", "--to", "end"],
        ["message", "dlq", "list", "g"],
        ["cluster", "list"],
        ["cluster", "status"],
        ["read", "a"],
    ],
)
def test_without_a_name_server_every_command_says_so(command: list[str]) -> None:
    error = CommandLine("127.0.0.1:1").fails(*command)
    assert error.startswith("Error: no name server answers: 127.0.0.1:1")
    assert error.count("\n") == 1


def test_an_invalid_address_is_refused(cli: CommandLine) -> None:
    error = cli.fails("topic", "list", "--nameserver", "nowhere")
    assert "'nowhere' is not a name server's address" in error


def test_describe_shows_settings_queues_and_groups(
    cli: CommandLine, name: str, server: StandaloneServer
) -> None:
    with blocking.Admin(server.nameserver) as admin:
        admin.create_topic(name, queues=2, attributes={"+message.type": "FIFO"})
    assert cli("topic", "describe", name).count("\n") == 3
    cli("send", name, "--sharding-key", "k", stdin="1\n2\n3\n")
    cli("read", name, "--group", f"g-{name}", "--max", "1", "--commit")
    shown = cli.json("topic", "describe", name)
    (broker,) = shown["brokers"]
    assert (broker["write_queues"], broker["read_queues"], broker["permission"]) == (2, 2, "rw")
    assert broker["attributes"] == ["message.type=FIFO"]
    assert sorted(queue["messages"] for queue in shown["queues"]) == [0, 3]
    (group,) = shown["groups"]
    assert (group["group"], group["lag"], group["members"]) == (f"g-{name}", 2, 0)
    assert "topic" in cli.fails("topic", "describe", "not-there")


def test_settings_are_shown_and_changed() -> None:
    with testing.broker() as server:
        there = CommandLine(server.nameserver)
        (before,) = there.json("broker", "config", "get", "fileReservedTime")
        assert (before["key"], before["value"]) == ("fileReservedTime", "72")
        options = ("--broker", before["broker"], "--yes")
        changes = ("fileReservedTime=48", "deleteWhen=03")
        done = there("broker", "config", "set", *changes, *options)
        assert done == f"changed fileReservedTime, deleteWhen of {before['broker']}\n"
        found = there("broker", "config", "get", "fileReservedTime", "deleteWhen")
        assert [line.split("\t")[1:] for line in found.splitlines()] == [
            ["deleteWhen", "03"],
            ["fileReservedTime", "48"],
        ]
        assert len(there("broker", "config", "get").splitlines()) > 50
        # Each is refused before the command asks for --yes, which a pipe needs.
        for assignment, reason in (
            ("listenPort=1", "listenPort"),
            ("fileReservedTime=no", "fileReservedTime=no: must be a whole number"),
            ("fileReservedTme=1", "did you mean 'fileReservedTime'?"),
        ):
            assert reason in there.fails("broker", "config", "set", assignment)
        unasked = there.fails("broker", "config", "set", "fileReservedTime=24", code=2)
        assert "this needs --yes" in unasked
        assert there.json("broker", "config", "get", "fileReservedTime")[0]["value"] == "48"
        assert "no broker has a setting 'x'" in there.fails("broker", "config", "get", "x")
        assert "there is no broker 'x'" in there.fails("broker", "config", "get", "--broker", "x")
        assert "not KEY=VALUE" in there.fails("broker", "config", "set", "x", code=2)
        misplaced = there.fails("broker", "--name", "x", "config", "get", code=2)
        assert "give the options of `broker config` after its command" in misplaced


def test_a_topic_that_a_send_created_at_one_broker_is_offered_to_the_others(tmp_path: Path) -> None:
    with processes(tmp_path, brokers=("broker-a", "broker-b")) as running:
        cli = CommandLine(running.address)
        cli("send", "orders", "tea")
        # The broker answers the send before it registers the topic.
        wait_until(lambda: cli.result("topic", "route", "orders").exit_code == 0)
        (row,) = cli.json("topic", "route", "orders")
        (other,) = {"broker-a", "broker-b"} - {row["broker"]}

        def findings() -> list[str]:
            report = cli.json("doctor")
            return [one["remedy"] for one in report["findings"] if one["check"] == "spread"]

        (remedy,) = findings()
        assert "pocketmq topic update orders --everywhere" in remedy
        told = cli.result("topic", "update", "orders", "--permission", "rw").stderr
        assert f"topic orders is missing at {other}" in told
        assert "--everywhere" in told
        done = cli("topic", "update", "orders", "--everywhere")
        assert done == f"changed topic orders, and created it at {other}\n"
        assert len(cli.json("topic", "route", "orders")) == 2
        assert findings() == []
        assert cli.result("topic", "update", "orders", "--permission", "rw").stderr == ""


@pytest.mark.parametrize(
    "command",
    [
        "read {topic}",
        "topic status {topic}",
        "topic route {topic}",
        "topic delete {topic} --yes",
        "message tail {topic}",
        "message find {topic} key",
        "message export {topic} --out -",
        "group lag {group}",
        "group members {group}",
        "group delete {group} --yes",
        "message dlq list {group}",
        "message dlq redrive {group} --yes",
    ],
)
def test_a_mistyped_name_is_answered_with_those_that_it_may_mean(
    cli: CommandLine, name: str, command: str
) -> None:
    cli("topic", "create", f"{name}-orders")
    cli("group", "create", f"{name}-billing")
    mistyped = command.format(topic=f"{name}-ordrs", group=f"{name}-biling")
    error = cli.fails(*mistyped.split())
    assert "did you mean " in error
    assert name in error.partition("did you mean ")[2]
    unlike = cli.fails(*command.format(topic="QQQ", group="QQQ").split())
    assert "list` shows what there is" in unlike
    assert "create" not in error + unlike


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [("topc list", "topic"), ("topic lst", "list"), ("broker confg get", "config")],
)
def test_a_mistyped_command_is_answered_with_one_that_it_may_mean(
    cli: CommandLine, mistyped: str, meant: str
) -> None:
    error = cli.fails(*mistyped.split(), code=2)
    assert error.count("Did you mean") == 1
    assert meant in error.partition("Did you mean")[2]


def test_fewer_queues_are_refused_while_they_have_unread_messages(
    cli: CommandLine, name: str, server: StandaloneServer
) -> None:
    cli("topic", "create", name, "--queues", "4")
    with (
        blocking.Producer(server.nameserver) as producer,
        blocking.Admin(server.nameserver) as admin,
    ):
        for number in range(8):
            producer.send(name, b"%d" % number)
        queues = admin.queues(name)
        admin.commit(f"{name}-g", dict.fromkeys(queues, 1))
        error = cli.fails("topic", "update", name, "--queues", "1")
        assert "3 messages in queues broker-a/1, broker-a/2, broker-a/3 would stay unread" in error
        assert "first lower --write-queues to 1" in error
        cli("topic", "update", name, "--write-queues", "1")
        assert "would stay unread" in cli.fails("topic", "update", name, "--read-queues", "1")
        forced = cli.result("topic", "update", name, "--read-queues", "1", "--force")
        assert "warning" in forced.stderr
        assert admin.lag(f"{name}-g").total == 4
        report = cli.result("doctor", "--topic", name)
        assert f"3 messages of {name} that {name}-g hasn't read" in report.stdout
        admin.commit(f"{name}-g", dict.fromkeys(queues, 2))
        assert len(admin.lag(f"{name}-g").queues) == 1
        cli("topic", "update", name, "--queues", "1")


def test_a_topic_is_changed_at_one_broker(cli: CommandLine, topic: str) -> None:
    assert "doesn't have the topic" in cli.fails(
        "topic", "update", topic, "--permission", "r", "--broker", "elsewhere"
    )
    cli("topic", "update", topic, "--permission", "r", "--broker", "broker-a")
    (route,) = cli.json("topic", "route", topic)
    assert route["permission"] == "r"
