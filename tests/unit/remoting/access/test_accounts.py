"""The accounts' file: what is read from it, and what is refused."""

import time
from pathlib import Path

import pytest

from remoting.access.accounts import PUB, SUB, AclError, load, rules_of
from remoting.access.file import AclFile
from remoting.protocol.names import RETRY_PREFIX

RULES = b"""
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 012345678
  whiteRemoteAddress: 192.168.0.*
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  - groupA=DENY
- accessKey: the-admin
  secretKey: another-secret
  admin: true
somethingNew: {kept: 007}
"""


def test_an_account_has_its_permissions_and_defaults() -> None:
    account = rules_of(load(RULES)).accounts["RocketMQ"]

    assert account.may("topicB", PUB)
    assert account.may("topicC", SUB)
    assert not account.may("topicC", PUB)
    assert not account.may("topicA", SUB)
    assert not account.may("another", SUB)
    assert account.may(RETRY_PREFIX + "another", SUB)
    assert not account.may(RETRY_PREFIX + "groupA", SUB)
    assert account.white("192.168.0.7")


def test_an_administrator_without_rules_may_do_everything() -> None:
    assert rules_of(load(RULES)).accounts["the-admin"].may("topicA", PUB)


DEFAULTS = b"""
accounts:
- {accessKey: by-default, secretKey: secret-of-it, defaultTopicPerm: PUB|SUB, groupPerms: [g=SUB]}
- {accessKey: by-a-rule, secretKey: secret-of-it,
   topicPerms: [SCHEDULE_TOPIC_XXXX=SUB, "%DLQ%g=SUB"]}
- {accessKey: the-admin, secretKey: secret-of-it, admin: true, topicPerms: [another=DENY]}
"""


@pytest.mark.parametrize(
    ("topic", "readers"),
    [
        ("SCHEDULE_TOPIC_XXXX", ["by-a-rule", "the-admin"]),
        ("%DLQ%g", ["by-default", "by-a-rule"]),
        ("%DLQ%another", []),
        ("orders", ["by-default"]),
    ],
)
def test_topics_with_messages_of_others_need_more_than_a_default(
    topic: str, readers: list[str]
) -> None:
    accounts = rules_of(load(DEFAULTS)).accounts
    assert [name for name, one in accounts.items() if one.may(topic, SUB)] == readers


def test_keys_are_texts_even_if_they_look_like_numbers() -> None:
    assert rules_of(load(RULES)).accounts["RocketMQ"].secret_key == b"012345678"


def test_no_secret_is_in_the_repr() -> None:
    assert "345678" not in repr(rules_of(load(RULES)))


def bomb(levels: int) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "empty"),
        (b"a: [", "not valid YAML"),
        (b"\xff\xfe\x00", "not valid YAML|map"),
        (b"- a", "must be a map"),
        (b"accounts: text", "must be a list"),
        (b"accounts: [text]", "not a map"),
        (b"accounts: [{accessKey: short, secretKey: 12345678}]", "more than 6"),
        (b"accounts: [{accessKey: long-enough, secretKey: 123456}]", "more than 6"),
        (b"accounts: [{accessKey: [a], secretKey: 12345678}]", "must be a text"),
        (b"accounts: [{accessKey: a234567, secretKey: s234567, topicPerms: [a]}]", "NAME=PUB"),
        (b"globalWhiteRemoteAddresses: ['10.{1,2}.3-5.*']", "not an IP address"),
        (b"[" * 100_000, "levels|valid YAML"),
        (bomb(9), "aliases"),
        (b"a: '" + b"x" * 1024 * 1024 + b"'", "more than 1048576 bytes"),
        (b"a: !!python/object/apply:os.system [ls]", ""),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(text: bytes, why: str) -> None:
    if not why:
        assert load(text) == {"a": ["ls"]}  # the tag means nothing
        return
    with pytest.raises(AclError, match=why):
        rules_of(load(text))


def test_a_syntax_error_does_not_show_the_line() -> None:
    with pytest.raises(AclError) as caught:
        load(b"accounts:\n- accessKey: abcdefg\n  secretKey: 'planted-secret\n")

    assert "planted" not in str(caught.value)


def test_a_changed_file_is_read_and_a_broken_one_keeps_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(RULES)
    file = AclFile(path)
    file.open()
    first = file.rules

    path.write_bytes(b"accounts: [")
    assert not file.refresh()
    assert file.rules is first
    assert "not valid YAML" in file.problem

    path.write_bytes(RULES + b"more: text\n")
    assert file.refresh()
    assert file.rules is not first
    assert not file.problem
    path.unlink()
    assert not file.refresh()
    assert "No such file" in file.problem


def test_an_edit_keeps_unknown_keys_and_the_permissions_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(RULES)
    path.chmod(0o600)
    file = AclFile(path)
    file.open()
    before = int(time.time() * 1000)

    file.edit(lambda content: content["accounts"].pop())

    assert list(file.rules.accounts) == ["RocketMQ"]
    written = load(path.read_bytes())
    assert written["somethingNew"] == {"kept": "007"}
    assert written["accounts"][0]["secretKey"] == "012345678"
    assert written["dataVersion"][0]["counter"] == "1"
    assert int(written["dataVersion"][0]["timestamp"]) >= before
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["plain_acl.yml"]


def test_an_edit_that_would_break_the_rules_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(RULES)
    file = AclFile(path)
    file.open()

    def spoil(content: dict[str, object]) -> None:
        content["globalWhiteRemoteAddresses"] = ["nowhere"]

    with pytest.raises(AclError, match="nowhere"):
        file.edit(spoil)

    assert path.read_bytes() == RULES
    assert "the-admin" in file.rules.accounts


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o644, True)])
def test_a_file_that_others_may_open_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(RULES)
    path.chmod(mode)
    AclFile(path).open()
    assert ("chmod 600" in caplog.text) is warned
