"""Topic attributes: our broker answers each change as RocketMQ 5.3.3 does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import client
from pocketmq import testing
from remoting.blocking import BlockingConnection
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import CreateTopicRequestHeader, TopicRequestHeader
from tests.interop.apache import ANSWER_TIMEOUT, Apache, mqadmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

VERSION = "5.3.3"

CHANGES = [
    ("plain", None),
    ("plain", ""),
    ("plain", "+cleanup.policy=DELETE"),
    ("typed", "+message.type=FIFO"),
    ("typed", None),
    ("typed", "+message.type=DELAY"),
    ("typed", "+message.type=MIXED"),
    ("typed", "+foo=bar"),
    ("typed", "-foo"),
    ("typed", "+message.type=FIFO,+foo=1,-bar"),
    ("typed", "+message.type=NORMAL,-message.type"),
    ("typed", "+message.type=FIFO,"),
    ("typed", "+message.type=NORMAL=x"),
    ("typed", "+message.type= FIFO"),
    ("typed", "-message.type=FIFO"),
    ("typed", "-"),
    ("typed", "+"),
    ("typed", ","),
    ("typed", "="),
    ("typed", "++message.type=FIFO"),
    ("typed", "message+type=FIFO"),
    ("typed", "+message-type=FIFO"),
    ("typed", "-message.type"),
    ("typed", "-message.type"),
    ("fixed", "+cleanup.policy=COMPACTION,+queue.type=BatchCQ,+reserve.time=5"),
    ("fixed", "+cleanup.policy=DELETE"),
    ("fixed", "+cleanup.policy=COMPACTION"),
    ("fixed", "-queue.type"),
    ("fixed", "+reserve.time=-1,+message.type=TRANSACTION"),
    ("fixed", "+reserve.time=-2"),
    ("fixed", "+reserve.time=x"),
    ("never", "message.type=FIFO"),
    ("never", "+message.type=WRONG"),
    ("never", "+message.type="),
    ("never", "-message.type"),
    ("never", "+message.type=FIFO,+message.type=NORMAL"),
    ("never", "+message.type=MIXED"),
    ("never", ",+message.type=FIFO"),
]
OWN_WORDS = ("Index ", "For input string", "value is not in set")
"""Beginnings of Apache's remarks that come from Java itself, or list an unordered set."""


@pytest.fixture(scope="module")
def there(shared_apache: Callable[[str], Apache]) -> Apache:
    return shared_apache(VERSION)


@pytest.fixture(scope="module")
def here() -> Iterator[testing.StandaloneServer]:
    with testing.broker() as server:
        yield server


def outcomes(broker: str) -> list[tuple[int, str, dict[str, str] | None]]:
    """Return the code, the remark and the topic's resulting attributes for each change."""
    found = []
    with BlockingConnection(broker, timeout=ANSWER_TIMEOUT) as connection:
        for topic, attributes in CHANGES:
            header = CreateTopicRequestHeader(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=2,
                write_queue_nums=2,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                attributes=attributes,
            )
            command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            answer = connection.request(command, timeout=ANSWER_TIMEOUT)
            remark = (answer.remark or "") if answer.code else ""
            look = TopicRequestHeader(topic=topic)
            command = Command.request(RequestCode.GET_TOPIC_CONFIG, look)
            shown = connection.request(command, timeout=ANSWER_TIMEOUT)
            has = None
            if not shown.code:
                has = decode(TopicConfig, bytes(shown.body)).attributes
            found.append((int(answer.code), remark, has))
    return found


async def broker_of(nameserver: str) -> str:
    async with client.Admin(nameserver) as admin:
        (broker,) = await admin.brokers()
    return broker.address


async def test_every_change_has_the_same_outcome(
    there: Apache, here: testing.StandaloneServer
) -> None:
    theirs = outcomes(there.broker)
    ours = outcomes(await broker_of(here.nameserver))
    for change, (code, remark, has), (our_code, our_remark, we_have) in zip(
        CHANGES, theirs, ours, strict=True
    ):
        assert (our_code, we_have) == (code, has), change
        assert remark.startswith(OWN_WORDS) or our_remark.startswith(remark.rstrip(".")), change


async def test_our_admin_changes_only_the_given_attributes(there: Apache) -> None:
    async with client.Admin(there.nameserver) as admin:
        attributes = {"+message.type": "FIFO", "+cleanup.policy": "DELETE"}
        await admin.create_topic("Ordered", queues=2, attributes=attributes)
        await admin.update_topic("Ordered", queues=4)
        config = (await admin.topic_config("Ordered"))["broker-a"]
        assert config.write_queue_nums == 4
        assert config.attributes == {"message.type": "FIFO", "cleanup.policy": "DELETE"}
        await admin.create_group("Careful", max_retries=3, consume=False)
        await admin.create_group("Careful", retry_queues=2)
        group = (await admin.group_config("Careful"))["broker-a"]
        assert (group.retry_max_times, group.retry_queue_nums) == (3, 2)
        assert not group.consume_enable


async def test_apaches_tool_sets_attributes_at_our_broker(
    here: testing.StandaloneServer, tmp_path: Path
) -> None:
    def update(*options: str) -> None:
        command = ("updateTopic", "-b", broker, "-t", "Tooled", "-r", "3", "-w", "3", *options)
        assert "success" in mqadmin(VERSION, tmp_path, here.nameserver, *command)

    broker = await broker_of(here.nameserver)
    update("-a", "+message.type=FIFO")
    update()
    async with client.Admin(here.nameserver) as admin:
        (config,) = (await admin.topic_config("Tooled")).values()
    assert (config.write_queue_nums, config.attributes) == (3, {"message.type": "FIFO"})
