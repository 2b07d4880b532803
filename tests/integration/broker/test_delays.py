"""Delayed messages, retries and dead letters of a whole broker, over sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.app import Broker
from broker.delivery.schedule import Schedule
from remoting.protocol import bodies
from remoting.protocol.bodies.group import DelayOffsetSerializeWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from remoting.protocol.message.view import RecordView, iter_records
from tests.integration.broker.client import Client
from tests.unit.broker.harness import pull_command

LEVELS = "1s 2s"
DELAYED = "DELAY\x01%d\x02TAGS\x01a"
WAITING = 4 + 2
"""System flag of a pull that brings its subscription and may be held."""

Connect = Callable[[Broker], Any]


async def next_message(client: Client, topic: str, offset: int = 0) -> RecordView:
    """Wait for the message with this number."""
    command = pull_command(
        topic, queue_offset=offset, sys_flag=WAITING, suspend_timeout_millis=9000
    )
    reply = await client.ask(command)
    assert reply.code == 0, reply.remark
    return next(iter_records(reply.body))


async def send_back(client: Client, record: RecordView, **fields: Any) -> Command:
    header = ConsumerSendMsgBackRequestHeader(
        **{"offset": record.physical_offset, "group": "g", "delay_level": 1, **fields}
    )
    return await client.ask(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_held_pull_is_woken_by_a_delayed_message(
    make_broker: Any, connect: Connect, flush: str
) -> None:
    broker = make_broker(message_delay_level=LEVELS, flush_disk_type=flush)
    await broker.start()
    client = await connect(broker)
    assert (await client.send(body=b"now")).code == 0
    held = asyncio.ensure_future(next_message(client, "T", 1))
    begin = time.time() * 1000
    assert (await client.send(body=b"later", properties=DELAYED % 1)).code == 0
    record = await held
    assert record.body == b"later"
    assert record.tags == "a"
    assert record.store_timestamp_ms - begin >= 999


async def test_levels_keep_their_time_and_a_restart_delivers_what_came_due(
    make_broker: Any, connect: Connect, tmp_path: Path
) -> None:
    file = tmp_path / "store" / "config" / "delayOffset.json"
    levels = "1s 5s"
    broker = make_broker(message_delay_level=levels)
    await broker.start()
    client = await connect(broker)
    await client.send(body=b"two", properties=DELAYED % 2)
    await client.send(body=b"one", properties=DELAYED % 1)
    first = await next_message(client, "T")
    await broker.stop()
    saved = bodies.decode(DelayOffsetSerializeWrapper, file.read_bytes())

    again = make_broker(message_delay_level=levels)
    await again.start()
    client = await connect(again)
    second = await next_message(client, "T", 1)
    assert (first.body, second.body) == (b"one", b"two")
    assert saved.offset_table == {1: 1}
    assert again.store.queries.max_offset("T", 0) == 2


async def test_a_message_is_retried_until_it_is_a_dead_letter(
    make_broker: Any, connect: Connect
) -> None:
    broker = make_broker(message_delay_level=LEVELS)
    await broker.start()
    client = await connect(broker)
    await client.send(body=b"poison", properties="KEYS\x01k")
    record = await next_message(client, "T")
    origin = record.offset_id
    for round_number in range(2):
        assert (await send_back(client, record, max_reconsume_times=2)).code == 0
        record = await next_message(client, "%RETRY%g", round_number)
        assert (record.body, record.reconsume_times) == (b"poison", round_number + 1)
        assert record.properties["RETRY_TOPIC"] == "T"
        assert record.properties["ORIGIN_MESSAGE_ID"] == origin
    assert (await send_back(client, record, max_reconsume_times=2)).code == 0
    dead = await next_message(client, "%DLQ%g")
    assert (dead.body, dead.reconsume_times, dead.keys) == (b"poison", 3, ["k"])
    assert broker.state.counters.messages_delivered_late == 2


async def test_an_idle_broker_does_not_look_for_delayed_messages(
    make_broker: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(message_delay_level=LEVELS)
    await broker.start()
    looks: list[int] = []
    level_due = Schedule.level_due

    def noted(schedule: Schedule, now_ms: int) -> int | None:
        looks.append(now_ms)
        return level_due(schedule, now_ms)

    monkeypatch.setattr(Schedule, "level_due", noted)
    client = await connect(broker)
    await client.send(body=b"later", properties=DELAYED % 1)
    await next_message(client, "T")
    at_first = len(looks)
    for _ in range(50):
        await client.send()
    assert len(looks) == at_first
    assert at_first <= 6
