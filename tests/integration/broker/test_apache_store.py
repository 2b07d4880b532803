"""A store that Apache's broker wrote, served by ours: every message, field by field."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from remoting.protocol.message.ids import offset_id
from remoting.protocol.message.view import RecordView, iter_records
from tests.integration.broker.client import Client
from tests.support.archives import unpack as unpack_archive

SIZES = {"mapped_file_size_commit_log": 65_536, "mapped_file_size_consume_queue": 2_000}
OF_THE_BROKER = ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC")
"""Queues of topics without settings in 4.9, from which no client can pull."""


def unpack(golden: Path, name: str, into: Path) -> dict[str, Any]:
    unpack_archive(golden / "store" / f"{name}.tar.gz", into)
    manifest = f"{name}.recovered.manifest.json" if name == "crash" else f"{name}.manifest.json"
    return json.loads((golden / "store" / manifest).read_text())


async def pull_all(client: Client, topic: str, queue_id: int) -> list[RecordView]:
    records: list[RecordView] = []
    while True:
        reply = await client.pull(
            topic, queue_id=queue_id, queue_offset=len(records), max_msg_nums=7
        )
        if reply.code != 0:
            assert reply.code == 19
            return records
        records += iter_records(reply.body)
        assert int(reply.fields["nextBeginOffset"]) == len(records)


def facts(record: RecordView) -> dict[str, Any]:
    born, stored = record.born_host, record.store_host
    return {
        "commitLogOffset": record.physical_offset,
        "size": record.size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "bornTimestamp": record.born_timestamp_ms,
        "bornHost": f"{born[0]}:{born[1]}",
        "storeTimestamp": record.store_timestamp_ms,
        "storeHost": f"{stored[0]}:{stored[1]}",
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "stored_body_sha256": hashlib.sha256(record.stored_body).hexdigest(),
        "body_sha256": hashlib.sha256(record.body).hexdigest(),
        "properties": dict(sorted(record.properties.items())),
        "msgId": offset_id(*stored, record.physical_offset),
    }


@pytest.mark.parametrize("name", ["clean", "crash"])
async def test_every_message_of_the_manifest_is_pulled_with_equal_fields(
    make_broker, connect, golden, tmp_path, name
):
    manifest = unpack(golden, name, tmp_path)
    expected: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for message in manifest["messages"]:
        if message["consume_queue_entry"] is not None:
            expected[message["topic"], message["queueId"]].append(message)
    broker = make_broker(**SIZES)
    await broker.start()
    client = await connect(broker)
    for (topic, queue_id), messages in expected.items():
        if topic in OF_THE_BROKER:
            assert broker.store.queries.max_offset(topic, queue_id) == len(messages)
            continue
        got = [facts(record) for record in await pull_all(client, topic, queue_id)]
        wanted = [{key: message[key] for key in got[0]} for message in messages]
        for message in wanted:
            message["properties"] = dict(sorted(message["properties"].items()))
        assert got == wanted


async def test_it_continues_where_the_other_broker_stopped(make_broker, connect, golden, tmp_path):
    manifest = unpack(golden, "clean", tmp_path)
    topic, _, queue_id = next(iter(manifest["consume_queues"])).rpartition("/")
    count = manifest["consume_queues"][f"{topic}/{queue_id}"]["count"]
    broker = make_broker(**SIZES)
    await broker.start()
    client = await connect(broker)
    sent = await client.send(topic, b"more", queue_id=int(queue_id))
    assert int(sent.fields["queueOffset"]) == count
    (record,) = iter_records((await client.pull(topic, queue_offset=count)).body)
    assert record.body == b"more"
