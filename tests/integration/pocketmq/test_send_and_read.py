"""send and read with every format, against a real broker."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import client
from client import blocking
from pocketmq import testing
from tests.integration.pocketmq.conftest import CommandLine


def read_json(cli: CommandLine, topic: str, *options: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in cli("read", topic, "--json", *options).splitlines()]


def test_one_message_from_the_command_line(cli: CommandLine, topic: str) -> None:
    output = cli("send", topic, "tea ☕", "--tag", "paid", "--key", "o-1", "--property", "who=me")
    assert output.startswith(f"sent to {topic}/")
    assert "at offset 0" in output
    (message,) = read_json(cli, topic)
    assert (message["body"], message["tag"], message["keys"]) == ("tea ☕", "paid", ["o-1"])
    assert isinstance(message["properties"], dict)
    assert message["properties"]["who"] == "me"


def test_each_line_of_stdin_is_a_message_in_the_order_of_its_key(
    cli: CommandLine, topic: str
) -> None:
    lines = [f"cup {number}" for number in range(5000)]
    output = cli.json("send", topic, "--sharding-key", "all", stdin="\n".join(lines))
    assert (output["sent"], output["failed"]) == (5000, 0)
    assert cli("read", topic).splitlines() == lines


def test_json_lines_with_fields(cli: CommandLine, topic: str) -> None:
    line = '{"id": "o-1", "state": "paid", "user": "u"}'
    fields = ["--key-field", "id", "--tag-field", "state", "--sharding-field", "user"]
    cli("send", topic, "--format", "jsonl", *fields, stdin=line + "\n")
    (message,) = read_json(cli, topic)
    assert (message["body"], message["tag"], message["keys"]) == (line, "paid", ["o-1"])


def test_rows_of_a_file(cli: CommandLine, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text('id,note\n1,"two\nlines"\n2,plain\n')
    cli("send", topic, "--file", str(file), "--format", "csv", "--key-field", "id")
    found = read_json(cli, topic)
    assert [message["body"] for message in found] == ['1,"two\nlines"', "2,plain"]
    assert [message["keys"] for message in found] == [["1"], ["2"]]


def test_a_whole_file_as_one_message_and_back(cli: CommandLine, topic: str, tmp_path: Path) -> None:
    body = bytes(range(256)) * 40
    (tmp_path / "in").write_bytes(body)
    cli("send", topic, "--file", str(tmp_path / "in"), "--format", "raw")
    cli("read", topic, "--format", "raw", "--file", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == body


def test_csv_out_has_a_header_and_a_row_each(cli: CommandLine, topic: str) -> None:
    cli("send", topic, stdin='a,"b"\nc\n')
    rows = list(csv.DictReader(io.StringIO(cli("read", topic, "--format", "csv"))))
    assert [row["body"] for row in rows] == ['a,"b"', "c"]
    assert [row["offset"] for row in rows] == ["0", "1"]


def test_json_output_can_be_sent_again(cli: CommandLine, topic: str, name: str) -> None:
    copy = f"{name}-copy"
    cli("topic", "create", copy, "--queues", "1")
    cli("send", topic, "tea", "--tag", "paid", "--key", "o-1", "--key", "o-2")
    fields = ["--body-field", "body", "--tag-field", "tag", "--key-field", "keys"]
    cli("send", copy, "--format", "jsonl", *fields, stdin=cli("read", topic, "--json"))
    (first,), (second,) = read_json(cli, topic), read_json(cli, copy)
    for part in ("body", "tag", "keys"):
        assert first[part] == second[part]


def test_tags_select_messages(cli: CommandLine, topic: str) -> None:
    for tag in ("paid", "open", "lost"):
        cli("send", topic, f"was {tag}", "--tag", tag)
    assert cli("read", topic, "--tags", "paid || lost").splitlines() == ["was paid", "was lost"]
    assert cli("read", topic, "--tags", "nobody") == ""


def test_an_expression_about_properties_selects_messages(cli: CommandLine, topic: str) -> None:
    for amount in ("5", "120", "500"):
        cli("send", topic, f"for {amount}", "--property", f"amount={amount}", "--tag", "paid")
    assert cli("read", topic, "--sql", "amount BETWEEN 10 AND 200") == "for 120\n"
    assert cli("read", topic, "--sql", "amount > 10 AND TAGS = 'paid'").splitlines() == [
        "for 120",
        "for 500",
    ]
    assert cli("message", "tail", topic, "--sql", "amount = 5").strip().endswith("for 5")
    exported = cli("message", "export", topic, "--out", "-", "--sql", "amount > 200")
    assert [json.loads(line)["body"] for line in exported.splitlines()] == ["for 500"]


def test_a_wrong_expression_is_an_error_of_the_command(
    cli: CommandLine, topic: str, tmp_path: Path
) -> None:
    cli("send", topic, "tea", "--property", "amount=5")
    output = cli.fails("read", topic, "--sql", "amount BETWEEN 3 AND 1")
    assert "left value(3) must less than or equal to right value(1)" in output
    output = cli.fails("read", topic, "--sql", "amount = 1", "--tags", "a", code=2)
    assert "give only one of them" in output
    cli.fails("message", "tail", topic, "--sql", " ", code=2)
    export = ("message", "export", topic, "--out", "-", "--sql", "amount = 1")
    assert "--sql is applied by a broker" in cli.fails(*export, "--store", str(tmp_path), code=2)


def test_reading_starts_at_the_given_position(cli: CommandLine, topic: str) -> None:
    cli("send", topic, stdin="".join(f"{number}\n" for number in range(10)))
    assert cli("read", topic, "--from", "7").split() == ["7", "8", "9"]
    assert cli("read", topic, "--from", "begin", "--max", "2").split() == ["0", "1"]
    assert cli("read", topic, "--from", "end") == ""
    assert len(cli("read", topic, "--from", "-1h").split()) == 10
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    assert cli("read", topic, "--from", later) == ""
    output = cli.fails("read", topic, "--from", "yesterday", code=2)
    assert "'yesterday' is not begin, end, an offset" in output


def test_a_group_continues_where_it_committed(cli: CommandLine, topic: str) -> None:
    cli("send", topic, stdin="1\n2\n3\n4\n")
    group = ["--group", f"g-{topic}"]
    assert cli("read", topic, *group, "--commit", "--max", "3").split() == ["1", "2", "3"]
    assert cli("read", topic, *group).split() == ["4"]
    assert cli("read", topic, *group, "--commit").split() == ["4"]
    assert cli("read", topic, *group) == ""
    assert "--commit needs --group" in cli.fails("read", topic, "--commit", code=2)


def test_one_queue_of_several(cli: CommandLine, name: str) -> None:
    cli("topic", "create", name, "--queues", "3")
    (route,) = cli.json("topic", "route", name)
    cli("send", name, "here", "--queue", f"{route['broker']}/2")
    assert cli("read", name, "--queue", "2").split() == ["here"]
    assert cli("read", name, "--queue", f"{route['broker']}/1") == ""
    assert "there is no queue '7'" in cli.fails("read", name, "--queue", "7")
    assert "is not BROKER/ID" in cli.fails("send", name, "x", "--queue", "2", code=2)


def test_a_sharding_key_keeps_messages_together(cli: CommandLine, name: str) -> None:
    cli("topic", "create", name, "--queues", "8")
    cli("send", name, "--sharding-key", "user-7", stdin="".join(f"{n}\n" for n in range(500)))
    held = [row["messages"] for row in cli.json("topic", "status", name)]
    assert sorted(held) == [0] * 7 + [500]
    assert cli("read", name).split() == [str(number) for number in range(500)]


def test_a_rate_is_kept(cli: CommandLine, topic: str) -> None:
    output = cli.json("send", topic, "--rate", "100", stdin="x\n" * 31)
    assert output["sent"] == 31
    assert output["seconds"] >= 0.25


def test_bad_input_is_reported_after_the_lines_before_it_are_sent(
    cli: CommandLine, topic: str
) -> None:
    result = cli.result("send", topic, "--format", "jsonl", stdin='{"a": 1}\nnonsense\n')
    assert result.exit_code == 1
    assert "line 2 is not a JSON object" in result.stderr
    assert "sent to" in result.stdout
    assert len(read_json(cli, topic)) == 1


def test_a_refused_message_is_reported_and_counted(cli: CommandLine, topic: str) -> None:
    cli("topic", "update", topic, "--permission", "r")
    result = cli.result("send", topic, stdin="1\n2\n")
    assert result.exit_code == 1
    assert "not sent: " in result.stderr
    assert "2 not acknowledged" in result.stdout


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--key-field", "id"], "fields are chosen from --format jsonl or csv"),
        (["text", "--format", "raw"], "either TEXT or a file"),
        (["text", "--property", "x"], "'x' is not NAME=VALUE"),
    ],
)
def test_contradictions_are_usage_errors(
    cli: CommandLine, options: list[str], complaint: str
) -> None:
    assert complaint in cli.fails("send", "orders", *options, code=2)


def test_a_file_that_is_not_there_is_a_one_line_error(cli: CommandLine, topic: str) -> None:
    assert "No such file" in cli.fails("send", topic, "--file", "/no/such/file")
    assert "No such file" in cli.fails("read", topic, "--file", "/no/such/dir/file")


def test_json_and_another_format_contradict(cli: CommandLine, topic: str) -> None:
    assert "--json is" in cli.fails("read", topic, "--json", "--format", "csv", code=2)


def test_a_delayed_message_is_stored_in_its_queue_when_it_is_due(
    cli: CommandLine, topic: str
) -> None:
    began = time.time()
    assert cli.json("send", topic, "tea", "--delay", "1")["sent"] == 1
    (message,) = (
        json.loads(line) for line in cli("read", topic, "-f", "--max", "1", "--json").splitlines()
    )
    stored = datetime.fromisoformat(message["stored_at"]).timestamp()
    assert (message["body"], message["properties"]["DELAY"]) == ("tea", "1")
    assert stored >= began + 0.9
    for text in ("0", "19", "-1", "soon", "1w", "-1s"):
        assert "is not a delay such as" in cli.fails(
            "send", topic, "tea", f"--delay={text}", code=2
        )


def test_a_message_is_delivered_at_its_time(cli: CommandLine, topic: str) -> None:
    due = datetime.now(UTC) + timedelta(seconds=2)
    assert cli.json("send", topic, "second", "--at", due.isoformat())["recall_handle"]
    cli("send", topic, "first", "--delay", "0.5s")
    found = cli("read", topic, "--follow", "--max", "2", "--json").splitlines()
    first, second = map(json.loads, found)
    assert (first["body"], second["body"]) == ("first", "second")
    assert datetime.fromisoformat(second["stored_at"]) >= due - timedelta(milliseconds=1)
    assert "is no time" in cli.fails("send", topic, "tea", "--at", "noon", code=2)
    assert "give either" in cli.fails(
        "send", topic, "tea", "--at", "2026-01-31T12:00", "--delay", "1s", code=2
    )
    assert "not sent: " in cli.result("send", topic, "tea", "--at", "3000-01-01").stderr


def test_a_recalled_message_is_not_delivered(cli: CommandLine, topic: str) -> None:
    sent = cli.json("send", topic, "no", "--delay", "2s")
    assert cli("message", "recall", sent["recall_handle"]) == f"recalled message {sent['id']}\n"
    cli("send", topic, "yes", "--delay", "2.5s")
    assert cli("read", topic, "--follow", "--max", "1") == "yes\n"
    assert "give the recall_handle" in cli.fails("message", "recall", "nonsense")


def test_a_transaction_is_committed_or_rolled_back(cli: CommandLine, topic: str) -> None:
    output = cli("send", topic, "no", "--transaction", "rollback")
    assert output.startswith(f"rolled back to {topic}/")
    done = cli.json("send", topic, "--transaction", "commit", stdin="1\n2\n3\n")
    assert (done["sent"], done["failed"], done["transaction"]) == (3, 0, "commit")
    assert sorted(cli("read", topic).split()) == ["1", "2", "3"]
    options = ("--transaction", "commit", "--delay", "1")
    assert "can't be delayed" in cli.fails("send", topic, "tea", *options, code=2)


def test_a_transaction_left_open_is_decided_by_a_checker_of_its_group(
    cli: CommandLine, topic: str
) -> None:
    asked: list[bytes] = []

    def check(transaction: client.OpenTransaction[bytes]) -> client.TransactionState:
        asked.append(transaction.message.body)
        return client.TransactionState.COMMIT

    settings = {"transactionTimeOut": "200", "transactionCheckInterval": "200"}
    with testing.broker(settings=settings) as server:
        there = CommandLine(server.nameserver)
        there("topic", "create", topic, "--queues", "1")
        left = there("send", topic, "tea", "--transaction", "leave", "--group", "shop")
        assert left.startswith(f"left open to {topic}/")
        assert there("read", topic) == ""
        with blocking.Producer(
            server.nameserver, group="shop", transaction_checker=check
        ) as producer:
            # A producer introduces itself to the brokers that it has sent to.
            producer.send(topic, b"first")
            there("read", topic, "--follow", "--max", "2")
    assert set(asked) == {b"tea"}


def test_a_full_disk_is_a_one_line_error(cli: CommandLine, topic: str) -> None:
    cli("send", topic, "tea")
    assert "/dev/full: No space left" in cli.fails("read", topic, "--file", "/dev/full")
