"""A broker on each captured store: topics, groups, offsets, ids and delayed messages."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from broker.app import Broker
from remoting.protocol import bodies
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.topic import TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.query import ViewMessageRequestHeader
from remoting.protocol.message.view import RecordView, iter_records
from tests.integration.broker.client import Client
from tests.integration.broker.conftest import MakeBroker
from tests.support.archives import unpack
from tests.support.clock import ManualClock

STORES = ("clean", "crash", "torn-properties", "torn-body", "clean-5.3.3")
SIZES = {"mapped_file_size_commit_log": 65_536, "mapped_file_size_consume_queue": 2_000}
THREE_HOURS_MS = 3 * 3600 * 1000
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture(params=STORES)
def manifest(request: pytest.FixtureRequest, golden: Path, tmp_path: Path) -> dict[str, Any]:
    """Return the contents of the store after Apache's recovery, if it needs one."""
    name = request.param
    unpack(golden / "store" / f"{name}.tar.gz", tmp_path)
    recovered = golden / "store" / f"{name}.recovered.manifest.json"
    path = recovered if recovered.exists() else golden / "store" / f"{name}.manifest.json"
    return dict(json.loads(path.read_text()))


async def started(make_broker: MakeBroker, manifest: dict[str, Any], later_ms: int = 0) -> Broker:
    """Start a broker a given time after the store's last message."""
    last_ms = max(message["storeTimestamp"] for message in manifest["messages"])
    made = make_broker(clock=ManualClock(now_ms=last_ms + later_ms), **SIZES)
    await made.start()
    return made


async def test_topics_groups_and_offsets_are_those_of_the_files(
    make_broker: MakeBroker, manifest: dict[str, Any], connect: Any
) -> None:
    client: Client = await connect(await started(make_broker, manifest))

    async def both(file: str, code: RequestCode, wrapper: Any) -> tuple[Any, Any]:
        written = manifest["config_files"].get(file, "{}").encode()
        answer = await client.ask(Command.request(code))
        return bodies.decode(wrapper, written), bodies.decode(wrapper, bytes(answer.body))

    topics, served = await both(
        "topics.json", RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigSerializeWrapper
    )
    names = topics.topic_config_table.keys()
    assert {name: served.topic_config_table[name] for name in names} == topics.topic_config_table

    groups, served = await both(
        "subscriptionGroup.json",
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        SubscriptionGroupWrapper,
    )
    table = served.subscription_group_table
    for name, group in groups.subscription_group_table.items():
        assert (table[name].retry_queue_nums, table[name].retry_max_times) == (
            group.retry_queue_nums,
            group.retry_max_times,
        )

    offsets, served = await both(
        "consumerOffset.json", RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetSerializeWrapper
    )
    assert served.offset_table == offsets.offset_table

    counts, served = await both(
        "delayOffset.json", RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetSerializeWrapper
    )
    assert served.offset_table.items() >= counts.offset_table.items()


async def test_every_message_is_viewed_by_its_id(
    make_broker: MakeBroker, manifest: dict[str, Any], connect: Any
) -> None:
    client: Client = await connect(await started(make_broker, manifest))
    for message in manifest["messages"]:
        header = ViewMessageRequestHeader(offset=message["commitLogOffset"])
        answer = await client.ask(Command.request(RequestCode.VIEW_MESSAGE_BY_ID, header))
        if message["consume_queue_entry"] is None:
            assert answer.code != ResponseCode.SUCCESS
            continue
        record = RecordView(bytes(answer.body), 0)
        assert record.offset_id == message["msgId"]
        assert hashlib.sha256(record.body).hexdigest() == message["body_sha256"]


async def test_delayed_messages_are_delivered_once(
    make_broker: MakeBroker, manifest: dict[str, Any], connect: Any
) -> None:
    broker = await started(make_broker, manifest, THREE_HOURS_MS)
    client: Client = await connect(broker)
    delayed = [message for message in manifest["messages"] if message["topic"] == SCHEDULE]
    before = {
        queue: entry["count"]
        for queue, entry in manifest["consume_queues"].items()
        if queue.startswith("DelayTopic/")
    }
    text = manifest["config_files"]["delayOffset.json"].encode()
    counts = bodies.decode(DelayOffsetSerializeWrapper, text).offset_table
    waiting = {
        message["properties"]["REAL_QID"]: message
        for message in delayed
        if message["queueOffset"] >= counts.get(message["queueId"] + 1, 0)
    }
    assert len(waiting) == (1 if delayed else 0)
    for queue_id, message in waiting.items():
        first = before.get(f"DelayTopic/{queue_id}", 0)
        answer = await client.pull(
            "DelayTopic",
            queue_id=int(queue_id),
            queue_offset=first,
            sys_flag=6,  # may be held, and brings its subscription
            suspend_timeout_millis=10_000,
        )
        (record,) = iter_records(answer.body)
        assert hashlib.sha256(record.body).hexdigest() == message["body_sha256"]
        assert record.unique_id == message["uniqKey"]
        before[f"DelayTopic/{queue_id}"] = first + 1
    for queue, count in before.items():
        topic, _, queue_id = queue.rpartition("/")
        assert broker.store.queries.max_offset(topic, int(queue_id)) == count
