"""The files of a copy besides its messages; none of them is ahead of the messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.saved_tables import save_json
from broker.store.os_files import Files
from broker.storetools.copy import rest
from broker.storetools.view import StoreView
from remoting.protocol.bodies import relaxed_json
from remoting.protocol.disk.delays import decode, encode
from remoting.protocol.disk.files import Checkpoint
from remoting.protocol.names import SCHEDULE_TOPIC
from tests.unit.broker.store.copy.copies import check, copied, records_of
from tests.unit.broker.store.stores import message, opened

OFFSETS = b'{"offsetTable":{"TopicTest@g":{0:40,1:7},"Gone@g":{0:3},"Other@g":{0:900}}}'
EVERYTHING = {
    "topics.json": b'{"topicConfigTable":{"TopicTest":{}}}',
    "topics.json.bak": b"{}",
    "consumerOffset.json": OFFSETS,
    "delayOffset.json": b'{"offsetTable":{1:10,2:2}}',
    "queueLocks.json": b"{}",
    "brokerName.json": b'{"brokerName":"shop"}',
    "deliveryProgress": encode({1: 10, 2: 2}, 100),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A stopped store of a topic with two queues, one with one, and delayed messages."""
    store = opened(tmp_path / "store")
    for number in range(80):
        store.put(message(b"%d" % number, queue_id=number % 2))
    store.put(message(b"other", topic="Other"))
    for number in range(30):
        due = 1_000_000 * number
        store.put(message(b"late", topic=SCHEDULE_TOPIC, queue_id=number % 3, tags_code=due))
    store.close()
    for name, data in EVERYTHING.items():
        path = tmp_path / "store" / "config" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "store"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def table(root: Path, name: str) -> Any:
    content = relaxed_json.loads((root / "config" / name).read_bytes())
    assert isinstance(content, dict)
    return content["offsetTable"]


def test_state_is_unchanged_and_offsets_are_limited_to_their_queue(
    root: Path, target: Path
) -> None:
    report = copied(root, target)
    check(target, report)
    assert {path.name for path in (target / "config").iterdir()} == set(EVERYTHING)
    for name in set(EVERYTHING) - {"consumerOffset.json"}:
        assert (target / "config" / name).read_bytes() == EVERYTHING[name]
    assert table(target, "consumerOffset.json") == {
        "TopicTest@g": {0: 40, 1: 7},
        "Gone@g": {0: 3},
        "Other@g": {0: 1},
    }
    assert report.notes == ["1 committed offsets lay behind the copy's messages: set back"]


def test_offsets_that_fit_are_not_touched(root: Path, target: Path) -> None:
    good = b'{ "offsetTable" : {"TopicTest@g":{0:40}} }'
    (root / "config" / "consumerOffset.json").write_bytes(good)
    assert copied(root, target).notes == []
    assert (target / "config" / "consumerOffset.json").read_bytes() == good


def test_a_copy_of_the_past_has_offsets_and_deliveries_of_the_past(
    root: Path, target: Path
) -> None:
    records = records_of(root)
    delayed = [record for record in records if record.topic == SCHEDULE_TOPIC]
    report = copied(root, target, until=delayed[20].physical_offset)
    check(target, report)
    # All were due long before the last message was stored, and count as delivered.
    assert table(target, "delayOffset.json") == {1: 7, 2: 2}
    assert not (target / "config" / "deliveryProgress").exists()
    early = copied(root, target.with_name("early"), until=records[10].physical_offset)
    assert table(early.target, "consumerOffset.json")["TopicTest@g"] == {0: 5, 1: 5}


def test_messages_not_yet_due_then_are_delivered_again(tmp_path: Path, target: Path) -> None:
    store = opened(tmp_path / "store")
    for number in range(10):
        due = 1_000 * number if number < 4 else 2**50
        store.put(message(b"late", topic=SCHEDULE_TOPIC, tags_code=due))
    store.put(message(b"delivered"))
    store.close()
    (tmp_path / "store" / "config").mkdir()
    (tmp_path / "store" / "config" / "delayOffset.json").write_bytes(b'{"offsetTable":{1:10}}')
    until = records_of(tmp_path / "store")[-1].physical_offset
    copied(tmp_path / "store", target, until=until)
    assert table(target, "delayOffset.json") == {1: 4}


def test_offsets_are_read_first_and_topics_last(root: Path, target: Path) -> None:
    def change(what: str, _: int) -> None:
        if what == "copying the log":
            for name in ("consumerOffset.json", "topics.json"):
                save_json(root / "config" / name, Files(), b'{"offsetTable":{"New@g":{0:1}}}')

    copied(root, target, change)
    assert "New@g" not in table(target, "consumerOffset.json")
    assert "New@g" in table(target, "topics.json")


def test_a_state_file_that_is_being_replaced_is_waited_for(root: Path) -> None:
    path = root / "config" / "consumerOffset.json"
    whole = path.read_bytes()
    # As Apache's brokers do it: the old one goes before the new one comes.
    path.rename(path.with_name("consumerOffset.json.bak"))
    path.with_name("consumerOffset.json.tmp").write_bytes(whole)
    pauses: list[float] = []

    def replace(seconds: float) -> None:
        pauses.append(seconds)
        path.write_bytes(whole[:20] if len(pauses) == 1 else whole)

    found = rest.read_early(root, replace)
    assert len(pauses) == 2
    assert found["consumerOffset.json"] == whole
    assert "consumerOffset.json.tmp" not in found


def test_a_copy_has_neither_the_role_nor_the_identity_of_its_broker(
    root: Path, target: Path
) -> None:
    role = b'{"role":"ASYNC_MASTER","configuredRole":"SLAVE","configuredId":1}'
    for name in ("brokerSettings.json", "brokerSettings.json.bak"):
        text = b'{"settings":{"slaveTimeout":"5"},"role":%s}' % role
        (root / "config" / name).write_bytes(text)
    for name in ("brokerIdentity", "brokerIdentity-temp"):
        (root / name).write_text("DefaultCluster#broker-a#1")
    copied(root, target)
    for name in ("brokerSettings.json", "brokerSettings.json.bak"):
        assert relaxed_json.loads((target / "config" / name).read_bytes()) == {
            "settings": {"slaveTimeout": "5"}
        }
    assert not list(target.glob("brokerIdentity*"))


def test_a_copy_has_the_permissions_of_the_store(root: Path, target: Path) -> None:
    (root / "logs").mkdir()
    (root / "logs" / "audit.log").write_bytes(b"who did what")
    modes = {
        ".": 0o750,
        "config": 0o700,
        "config/topics.json": 0o600,
        "config/queueLocks.json": 0o640,
        "logs": 0o711,
        "logs/audit.log": 0o600,
        f"commitlog/{0:020d}": 0o600,
        f"consumequeue/Other/0/{0:020d}": 0o664,
    }
    for name, mode in modes.items():
        (root / name).chmod(mode)
    copied(root, target)
    assert {name: (target / name).stat().st_mode & 0o777 for name in modes} == modes


def test_a_damaged_state_file_is_copied_with_its_backup(root: Path, target: Path) -> None:
    (root / "config" / "topics.json").write_bytes(b'{"topicCon')
    copied(root, target)
    assert (target / "config" / "topics.json").read_bytes() == b'{"topicCon'
    assert (target / "config" / "topics.json.bak").read_bytes() == b"{}"


def test_the_checkpoint_says_that_all_is_on_the_disk(root: Path, target: Path) -> None:
    copied(root, target)
    checkpoint = Checkpoint.decode((target / "checkpoint").read_bytes())
    last = records_of(root)[-1].store_timestamp_ms
    assert checkpoint.physic_ms == checkpoint.logics_ms == last
    assert (target / "checkpoint").stat().st_size == 4096


def test_the_copy_accepts_the_delivery_progress(root: Path, target: Path) -> None:
    end = StoreView(root).log_end().position
    (root / "config" / "deliveryProgress").write_bytes(encode({1: 9}, end))
    report = copied(root, target)
    data = (target / "config" / "deliveryProgress").read_bytes()
    assert decode(data, report.end) == {1: 9}


def test_other_brokers_files_are_copied_from_a_closed_store_only(root: Path, target: Path) -> None:
    (root / "timerlog").mkdir()
    (root / "timerlog" / f"{0:020d}").write_bytes(b"timers")
    (root / "namesrv").mkdir()
    (root / "namesrv" / "kvConfig.json").write_text(json.dumps({"a": 1}))
    (root / "timerlog" / "loop").symlink_to(root)
    copied(root, target)
    assert (target / "timerlog" / f"{0:020d}").read_bytes() == b"timers"
    assert (target / "namesrv" / "kvConfig.json").exists()
    assert not (target / "timerlog" / "loop").exists()

    (root / "abort").touch()
    report = copied(root, target.with_name("running"))
    assert "left out" in report.notes[-1]
    assert report.notes[-1].endswith("timerlog")
    assert not (report.target / "timerlog").exists()
    assert (report.target / "namesrv" / "kvConfig.json").exists()
