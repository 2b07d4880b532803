"""How requests change a topic's attributes; codes and remarks are those of Apache's 5.3.3."""

from __future__ import annotations

import re

import pytest

from broker.topics.table import altered, parse_changes


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (None, {}),
        ("", {}),
        (",", {}),
        ("+message.type=FIFO", {"+message.type": "FIFO"}),
        ("+message.type=FIFO,", {"+message.type": "FIFO"}),
        ("+message.type=FIFO=x", {"+message.type": "FIFO"}),
        ("+a=1,-b", {"+a": "1", "-b": ""}),
        ("+message.type= FIFO", {"+message.type": " FIFO"}),
    ],
)
def test_changes_are_read_as_java_reads_them(text: str | None, changes: dict[str, str]) -> None:
    assert parse_changes(text) == changes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("-message.type=FIFO", "add/alter attribute format is wrong: -message.type"),
        ("+message.type=DELAY,=x", "add/alter attribute format is wrong: "),
        ("+message.type=", "add/alter attribute format is wrong: +message.type"),
        ("=", "add/alter attribute format is wrong: "),
        ("+message.type", "delete attribute format is wrong: +message.type"),
        (",+message.type=FIFO", "delete attribute format is wrong: "),
        ("+", "delete attribute format is wrong: +"),
        ("+message.type=FIFO,+message.type=DELAY", "key duplication: +message.type"),
    ],
)
def test_a_text_of_another_form_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        parse_changes(text)


def test_a_new_topic_may_have_any_known_attribute() -> None:
    text = "+message.type=FIFO,+cleanup.policy=COMPACTION,+queue.type=BatchCQ,+reserve.time=-1"
    assert altered(None, parse_changes(text)) == {
        "message.type": "FIFO",
        "cleanup.policy": "COMPACTION",
        "queue.type": "BatchCQ",
        "reserve.time": "-1",
    }


def test_a_change_keeps_what_it_does_not_name() -> None:
    current = {"queue.type": "BatchCQ", "message.type": "FIFO", "of.a.later.release": "x"}
    assert altered(current, parse_changes("+message.type=DELAY,+reserve.time=9")) == {
        "queue.type": "BatchCQ",
        "message.type": "DELAY",
        "of.a.later.release": "x",
        "reserve.time": "9",
    }
    assert altered(current, parse_changes("-message.type")) == {
        "queue.type": "BatchCQ",
        "of.a.later.release": "x",
    }
    assert current["message.type"] == "FIFO"


NEW = None
PLAIN: dict[str, str] = {}
FIFO = {"message.type": "FIFO"}
COMPACTED = {"cleanup.policy": "COMPACTION"}


@pytest.mark.parametrize(
    ("current", "text", "sentence"),
    [
        (NEW, "+foo=bar", "unsupported key: foo"),
        (FIFO, "+foo=bar", "unsupported key: foo"),
        (NEW, "+message.type=WRONG", "value is not in set: ["),
        (FIFO, "+message.type= FIFO", "value is not in set: ["),
        (NEW, "+queue.type=Foo", "value is not in set: [SimpleCQ, BatchCQ]"),
        (NEW, "+reserve.time=-2", "value is not in range(-1, 9223372036854775807)"),
        (NEW, "+reserve.time=9223372036854775808", "value is not in range("),
        (NEW, "+reserve.time=x", "value is not in range("),
        (NEW, "-message.type", "only add attribute is supported while creating topic. key: mes"),
        (PLAIN, "-message.type", "attempt to delete a nonexistent key: message.type"),
        (FIFO, "-foo", "attempt to delete a nonexistent key: foo"),
        (FIFO, "+message.type=DELAY,+foo=1,-bar", "attempt to delete a nonexistent key: bar"),
        (COMPACTED, "+cleanup.policy=DELETE", "attempt to update an unchangeable attribute. key"),
        (COMPACTED, "+cleanup.policy=COMPACTION", "attempt to update an unchangeable attribute."),
        (COMPACTED, "-cleanup.policy", "attempt to update an unchangeable attribute. key: clean"),
        (PLAIN, "+cleanup.policy=DELETE", "attempt to update an unchangeable attribute. key: cle"),
        (FIFO, "+message.type=DELAY,-message.type", "alter duplication key. key: message.type"),
        (FIFO, "-", "kv string format wrong."),
        (FIFO, "--message.type", "kv string format wrong."),
        (FIFO, "++message.type=FIFO", "kv string format wrong."),
        (FIFO, "message+type=FIFO", "kv string format wrong."),
        (FIFO, " +message.type=FIFO", "kv string format wrong."),
        (FIFO, "+message-type=FIFO", "kv string format wrong."),
    ],
)
def test_a_change_that_is_refused_says_which_key(
    current: dict[str, str] | None, text: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        altered(current, parse_changes(text))


def test_a_name_without_a_sign_is_refused() -> None:
    with pytest.raises(ValueError, match=r"wrong format key: essage\.type"):
        altered(FIFO, {"message.type": "FIFO"})
