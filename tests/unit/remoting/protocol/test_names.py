"""Which names are legal, and which are reserved for the system."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from remoting.protocol import names
from remoting.protocol.names import (
    dlq_topic,
    is_system_group,
    is_system_topic,
    retry_topic,
    validate_group,
    validate_topic,
)


@pytest.mark.parametrize(
    "name", ["a", "TopicTest", "%RETRY%group", "ns%topic", "a|b-c_9", "x" * 127]
)
def test_legal_names_pass(name: str) -> None:
    validate_topic(name)
    validate_group(name)


@pytest.mark.parametrize("validate", [validate_topic, validate_group])
@pytest.mark.parametrize(
    "name", ["a b", "a/b", "..", "a.b", "topic\n", "中", "a\x00", "%s$", "a\u0660", "é"]
)
def test_illegal_characters_are_refused(validate: Callable[[str], None], name: str) -> None:
    with pytest.raises(ValueError, match="contains illegal characters"):
        validate(name)


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_a_blank_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the topic's name is blank"):
        validate_topic(name)
    with pytest.raises(ValueError, match="the group's name is blank"):
        validate_group(name)


def test_a_long_name_is_refused_without_being_repeated() -> None:
    with pytest.raises(ValueError, match=r"has 128 characters: use at most 127") as caught:
        validate_topic("x" * 128)
    assert len(str(caught.value)) < 100
    validate_group("x" * 255)
    with pytest.raises(ValueError, match=r"has 256 characters: use at most 255"):
        validate_group("x" * 256)


def test_retry_and_dead_letter_topics_carry_the_groups_name() -> None:
    assert retry_topic("g") == "%RETRY%g"
    assert dlq_topic("g") == "%DLQ%g"


def test_system_names_are_known() -> None:
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_REVIVE_LOG_DefaultCluster")
    assert not is_system_topic("TopicTest")
    assert is_system_group("TOOLS_CONSUMER")
    assert is_system_group("CID_RMQ_SYS_anything")
    assert not is_system_group("group")
    assert names.NOT_SENDABLE_TOPICS <= names.SYSTEM_TOPICS
    assert names.AUTO_CREATE_TOPIC not in names.NOT_SENDABLE_TOPICS
