"""group and message dlq against a real broker, with running consumers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import client
from client import blocking
from pocketmq.testing import StandaloneServer
from remoting.blocking import BlockingConnection
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from remoting.protocol.message import properties
from remoting.runtime import DOCS
from tests.integration.pocketmq.conftest import CommandLine


@pytest.fixture
def group(cli: CommandLine, topic: str) -> str:
    """Create a group, and three messages in the topic's one queue."""
    cli("group", "create", f"g-{topic}")
    cli("send", topic, stdin="1\n2\n3\n")
    return f"g-{topic}"


def consume(cli: CommandLine, topic: str, group: str, count: int) -> None:
    cli("read", topic, "--group", group, "--max", str(count), "--commit")


def queue_of(cli: CommandLine, topic: str) -> str:
    (row,) = cli.json("topic", "status", topic)
    return f"{topic}/{row['broker']}/0"


def test_a_group_is_created_changed_and_deleted(cli: CommandLine, topic: str) -> None:
    group = f"g-{topic}"
    assert "no broker has it" in cli.fails("group", "lag", group)
    assert cli("group", "create", group, "--max-retries", "3") == f"created group {group}\n"
    assert group in cli("group", "list").split()
    assert cli.json("group", "lag", group) == {"group": group, "lag": 0, "queues": []}
    assert cli.json("group", "show", group)["max_retries"] == 3
    cli("group", "delete", group)
    assert group not in cli("group", "list").split()
    assert "no broker has it" in cli.fails("group", "delete", group)


def test_offsets_are_cloned_to_another_group(
    cli: CommandLine, topic: str, group: str, server: StandaloneServer
) -> None:
    consume(cli, topic, group, 2)
    done = cli.json("group", "clone", group, f"{group}-2", "--topic", topic)
    assert done == {"group": group, "target": f"{group}-2", "queues": 1}
    assert f"{group}-2" in cli("group", "list").split()
    (queue,) = cli.json("group", "lag", f"{group}-2")["queues"]
    assert (queue["committed"], queue["lag"]) == (2, 1)
    assert cli("read", topic, "--group", f"{group}-2") == "3\n"
    assert "no broker has it" in cli.fails("group", "clone", "not-there", group)
    with blocking.PushConsumer(server.nameserver, group=f"{group}-2", subscribe={topic: "*"}):
        assert "stop them first" in cli.fails("group", "clone", group, f"{group}-2")


def test_an_update_changes_only_the_named_settings(
    cli: CommandLine, name: str, server: StandaloneServer
) -> None:
    assert "no broker has it" in cli.fails("group", "update", name, "--no-consume")
    assert "nothing to change" in cli.fails("group", "update", name, code=2)
    with blocking.Admin(server.nameserver) as admin:
        admin.create_group(name, max_retries=3, retry_queues=2)
        options = ("--no-consume", "--no-broadcast")
        assert cli("group", "update", name, *options) == f"changed group {name}\n"
        (config,) = admin.group_config(name).values()
        assert (config.retry_max_times, config.retry_queue_nums) == (3, 2)
        assert (config.consume_enable, config.consume_broadcast_enable) == (False, False)
        cli("group", "update", name, "--consume", "--max-retries", "0")
        (config,) = admin.group_config(name).values()
        assert (config.retry_max_times, config.consume_enable) == (0, True)
        assert not config.consume_broadcast_enable


def test_creating_a_group_that_exists_changes_only_what_is_named(
    cli: CommandLine, name: str, server: StandaloneServer
) -> None:
    with blocking.Admin(server.nameserver) as admin:
        admin.create_group(name, max_retries=3, consume=False)
    assert cli("group", "create", name) == f"group {name} exists already and stays as it is\n"
    shown = cli.json("group", "show", name)
    assert (shown["max_retries"], shown["may_consume"]) == (3, False)
    assert cli("group", "create", name, "--max-retries", "5") == f"changed group {name}\n"
    shown = cli.json("group", "show", name)
    assert (shown["max_retries"], shown["may_consume"]) == (5, False)


def test_groups_are_listed_with_members_lag_and_state(
    cli: CommandLine, topic: str, group: str
) -> None:
    consume(cli, topic, group, 2)
    (row,) = [row for row in cli.json("group", "list") if row["group"] == group]
    assert row.pop("per_s") >= 0
    assert row == {"group": group, "members": 0, "topics": [topic], "lag": 1, "state": "offline"}


def test_without_a_name_the_lag_of_all_groups_is_shown(
    cli: CommandLine, topic: str, group: str
) -> None:
    consume(cli, topic, group, 2)
    (row,) = [row for row in cli.json("group", "lag") if row["group"] == group]
    assert row.pop("last_consumed") is not None
    numbers = {"queues": 1, "committed": 2, "next": 3, "lag": 1, "members": 0}
    assert row == {"group": group, "topic": topic} | numbers
    assert group in {row["group"] for row in cli.json("group", "lag", "--topic", topic)}


def test_the_groups_of_tools_are_shown_on_request(cli: CommandLine, topic: str) -> None:
    cli("send", topic, "tea")
    cli("read", topic)
    shown = {row["group"] for row in cli.json("group", "list")}
    everything = {row["group"] for row in cli.json("group", "list", "--all")}
    assert "pocketmq-read" in everything - shown
    assert "pocketmq-read" in {row["group"] for row in cli.json("group", "list", "--all")}
    assert "pocketmq-read" not in {row["group"] for row in cli.json("group", "lag")}


def test_lag_is_shown_per_queue_and_in_total(cli: CommandLine, topic: str, group: str) -> None:
    consume(cli, topic, group, 2)
    output = cli.json("group", "lag", group)
    assert output["lag"] == 1
    (row,) = output["queues"]
    assert (row["topic"], row["committed"], row["next"], row["lag"]) == (topic, 2, 3, 1)
    assert (row["owner"], row["last_consumed"] is not None) == (None, True)
    result = cli.result("group", "lag", group, "--topic", topic)
    assert result.stdout.split("\t")[0] == topic
    assert result.stderr == "1 message behind in 1 queue\n"


@contextmanager
def online(server: StandaloneServer, topic: str, group: str) -> Iterator[str]:
    """Run a consumer of the group; yield its client id."""
    with blocking.Instance(server.nameserver) as instance:
        consumer = instance.pull_consumer(group=group, start_from=client.FIRST)
        consumer.assign(consumer.queues(topic))
        assert consumer.get_many(1, timeout=10.0)
        yield instance.client_id


def test_members_are_listed_with_what_they_subscribe(
    cli: CommandLine, server: StandaloneServer, topic: str, group: str
) -> None:
    assert cli("group", "members", group) == ""
    with online(server, topic, group) as client_id:
        (row,) = cli.json("group", "members", group)
        assert (row["client_id"], row["language"]) == (client_id, "PYTHON")
        assert f"{topic}: *" in row["subscriptions"]
        assert client_id in cli("group", "members", group)
        facts = cli.json("group", "show", group)
        assert (facts["members"], facts["model"], facts["lag"]) == (1, "CLUSTERING", 0)
        assert f"subscriptions\t{topic}: *" in cli("group", "show", group)


def test_members_that_contradict_each_other_are_reported_everywhere(
    cli: CommandLine, server: StandaloneServer, topic: str, group: str
) -> None:
    anchor = f"{DOCS}consumer-groups.md#one-group-one-subscription"
    with online(server, topic, group), blocking.Instance(server.nameserver) as other:
        consumer = other.pull_consumer(group=group)
        consumer.assign(consumer.queues(topic), tags="paid")
        consumer.get_many(1, timeout=1.0)
        while not (problems := cli.json("group", "show", group)["problems"]):
            consumer.get_many(1, timeout=1.0)
        (problem,) = problems
        assert (problem["problem"], problem["docs"]) == ("subscription", anchor)
        assert other.client_id in problem["members"]
        output = cli.json("doctor", "--group", group)["findings"]
        (finding,) = [one for one in output if one["check"] == "subscriptions"]
        assert finding["verdict"] == "warning"
        assert finding["remedy"] == f"see {anchor}"
        everything = cli.json("doctor")["findings"]
        assert finding in everything


@pytest.mark.parametrize(
    ("to", "after"), [("earliest", 0), ("latest", 3), ("2", 2), ("-1h", 0), ("9", 3)]
)
def test_a_reset_moves_every_queue(
    cli: CommandLine, topic: str, group: str, to: str, after: int
) -> None:
    consume(cli, topic, group, 1)
    arguments = ["group", "reset", group, "--topic", topic, "--to", to]
    output = cli.json(*arguments, "--dry-run")
    assert output["applied"] is False
    assert [(row["before"], row["after"]) for row in output["queues"]] == [(1, after)]
    assert cli.json("group", "lag", group)["queues"][0]["committed"] == 1
    result = cli.result(*arguments)
    assert result.stdout.split("\t")[3:] == ["1", str(after), "2", f"{3 - after}\n"]
    assert "moved 1 of 1 queue; no member is online" in result.stderr
    assert cli.json("group", "lag", group)["queues"][0]["committed"] == after


def test_a_reset_names_members_that_choose_their_queues(
    cli: CommandLine, server: StandaloneServer, topic: str, group: str
) -> None:
    with online(server, topic, group) as client_id:
        arguments = ["group", "reset", group, "--topic", topic, "--to", "end"]
        output = cli.json(*arguments, "--dry-run")
        assert (output["online"], output["unaware"]) == ([client_id], [client_id])
        stderr = cli.result(*arguments).stderr
        assert "notified 0 members" in stderr
        assert "stop these first, they choose their queues themselves" in stderr


def test_missing_only_resets_queues_without_an_offset(
    cli: CommandLine, topic: str, group: str
) -> None:
    cli("topic", "update", topic, "--queues", "2")
    arguments = ["group", "reset", group, "--topic", topic, "--to", "end"]
    cli(*arguments, "--queue", "1")
    output = cli.json(*arguments, "--missing-only")
    assert [(row["queue"], row["before"], row["after"]) for row in output["queues"]] == [
        (0, None, 3)
    ]
    assert cli(*arguments, "--missing-only") == ""


@pytest.mark.usefixtures("at_terminal")
def test_a_reset_at_a_terminal_shows_its_plan_and_needs_confirmation(
    cli: CommandLine, topic: str, group: str
) -> None:
    arguments = ["group", "reset", group, "--topic", topic, "--to", "end"]
    result = cli.result(*arguments, stdin="n\n")
    assert result.exit_code == 1
    assert "lag after" in result.stdout
    assert "Move group" in result.stderr
    assert cli.json("group", "lag", group)["queues"] == []
    cli(*arguments, "--yes")
    assert cli.json("group", "lag", group)["lag"] == 0


def test_invalid_positions_queues_and_groups_are_refused(
    cli: CommandLine, topic: str, group: str
) -> None:
    reset = ["group", "reset", group, "--topic", topic]
    assert "is not begin, end" in cli.fails(*reset, "--to", "sometime", code=2)
    assert "there is no queue '7'" in cli.fails(*reset, "--to", "end", "--queue", "7")
    assert "no broker has it" in cli.fails(
        "group", "reset", "misspelt", "--topic", topic, "--to", "1"
    )
    assert "is not TOPIC/BROKER/QUEUE" in cli.fails("group", "skip", group, "orders", code=2)
    assert "committed nothing" in cli.fails("group", "skip", group, queue_of(cli, topic))


def test_a_blocking_message_is_skipped(cli: CommandLine, topic: str, group: str) -> None:
    consume(cli, topic, group, 1)
    queue = queue_of(cli, topic)
    assert cli.json("group", "skip", group, queue, "--dry-run")["applied"] is False
    assert cli("group", "skip", group, queue).split("\t")[3:5] == ["1", "2"]
    assert cli.json("group", "skip", group, queue, "--messages", "5")["queues"][0]["after"] == 3
    assert "no message to skip" in cli.fails("group", "skip", group, queue)


# Dead letters


@pytest.fixture
def dead(cli: CommandLine, server: StandaloneServer, topic: str, group: str) -> str:
    """Create the group with two dead letters of the topic."""
    cli("topic", "create", f"%DLQ%{group}", "--queues", "1")
    with BlockingConnection(server.broker, timeout=30) as connection:
        for number in range(2):
            own = {"UNIQ_KEY": f"id-{number}", "RETRY_TOPIC": topic, "KEYS": f"k{number}"}
            if number == 0:
                own |= {"POCKETMQ_DEAD_REASON": "sold out", "POCKETMQ_DEAD_TIME": "1700000000123"}
            header = SendMessageRequestHeaderV2(
                producer_group=group,
                topic=f"%DLQ%{group}",
                default_topic="TBW102",
                default_topic_queue_nums=1,
                queue_id=0,
                sys_flag=0,
                born_timestamp=1,
                flag=0,
                properties=properties.encode(own).decode(),
                reconsume_times=3,
            )
            request = Command.request(RequestCode.SEND_MESSAGE_V2, header, body=b"b%d" % number)
            assert connection.request(request).code == 0
    return group


def test_dead_letters_are_listed(cli: CommandLine, topic: str, dead: str) -> None:
    assert "no broker has it (group nobody)" in cli.fails("message", "dlq", "list", "nobody")
    first, second = cli.json("message", "dlq", "list", dead)
    assert (first["topic"], first["id"], first["body"]) == (topic, "id-0", "b0")
    assert (second["keys"], second["retries"], second["redriven"]) == (["k1"], 3, False)
    assert (first["reason"], second["reason"]) == ("sold out", None)
    assert (first["failed_at"], first["exception"]) == ("2023-11-14T22:13:20.123+00:00", None)
    assert first["properties"]["POCKETMQ_DEAD_REASON"] == "sold out"
    lines = cli("message", "dlq", "list", dead, "--max", "1").splitlines()
    assert lines[0].endswith("sold out")
    assert [line.split("\t")[2:5] for line in lines] == [[topic, "id-0", "3"]]


def test_dead_letters_are_sent_back_once(cli: CommandLine, topic: str, dead: str) -> None:
    redrive = ["message", "dlq", "redrive", dead]
    assert len(cli.json(*redrive, "--dry-run")["sent"]) == 2
    result = cli.result(*redrive, "--max", "1")
    assert result.stderr == "sent 1 dead letter back, 1 left\n"
    output = cli.json(*redrive)
    assert [(one["id"], one["to"], one["to_offset"]) for one in output["sent"]] == [
        ("id-1", topic, 4)
    ]
    assert output["left"] == 0
    assert cli(*redrive) == ""
    assert cli("message", "dlq", "list", dead) == ""
    assert len(cli.json("message", "dlq", "list", dead, "--all")) == 2
    assert cli("read", topic).splitlines() == ["1", "2", "3", "b0", "b1"]
