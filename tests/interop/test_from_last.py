"""Where a new group starts in a topic whose messages are all still there, here and at Apache's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import client
from pocketmq import testing
from remoting.blocking import BlockingConnection
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from tests.interop.apache import apache, shown

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "from-last"
QUEUE = {"topic": TOPIC, "queueId": "0"}


@contextmanager
def nameserver_of(whose: str, home: Path) -> Iterator[str]:
    with testing.broker() if whose == "ours" else apache(whose, home) as place:
        yield place.nameserver


@pytest.mark.parametrize("whose", ["ours", "4.9.7", "5.3.3"])
async def test_a_new_group_starts_at_0_or_at_the_end_by_the_ratio_of_memory(
    whose: str, tmp_path: Path
) -> None:
    with nameserver_of(whose, tmp_path) as nameserver:
        async with client.Admin(nameserver) as admin, client.Producer(nameserver) as producer:
            await admin.create_topic(TOPIC, queues=1)
            for number in range(3):
                await producer.send(TOPIC, b"%d" % number)
            await shown(nameserver, TOPIC, 3)
            (broker,) = await admin.brokers()
            answers = []
            for percent in ("40", "0"):
                changed = {"accessMessageInMemoryMaxRatio": percent}
                await admin.update_broker_config(broker.address, changed)
                with BlockingConnection(broker.address, timeout=10.0) as connection:
                    request = Command.request(
                        RequestCode.QUERY_CONSUMER_OFFSET,
                        extra={**QUEUE, "consumerGroup": "new"},
                    )
                    answer = connection.request(request)
                answers.append((answer.code, answer.fields.get("offset")))

    zero = (ResponseCode.SUCCESS, "0")
    # 5.3.3 asks the system instead whether the first message is in memory.
    without = zero if whose == "5.3.3" else (ResponseCode.QUERY_NOT_FOUND, None)
    assert answers == [zero, without]


@pytest.mark.parametrize("whose", ["ours", "4.9.7", "5.3.3"])
async def test_the_settings_of_a_new_group_and_the_unique_id_in_an_answer_to_a_send(
    whose: str, tmp_path: Path
) -> None:
    with nameserver_of(whose, tmp_path) as nameserver:
        async with client.Admin(nameserver) as admin:
            await admin.create_topic(TOPIC, queues=1)
            (broker,) = await admin.brokers()
        send = dict.fromkeys("efhjl", "0") | {"a": "p", "b": TOPIC, "c": "TBW102", "d": "4"}
        send |= {"g": "1700000000000", "k": "false", "m": "false"}
        message = Command.request(310, extra={**send, "i": "UNIQ_KEY\x01U1"}, body=b"x")
        group = Command.request(
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, extra={"group": "made-by-352"}
        )
        with BlockingConnection(broker.address, timeout=10.0) as connection:
            unique_id = connection.request(message).fields.get("transactionId")
            made = connection.request(group).code
        async with client.Admin(nameserver) as admin:
            groups = await admin.group_configs(broker.address)

    is_old = whose == "4.9.7"
    assert unique_id == (None if is_old else "U1")
    assert ("made-by-352" in groups, made) == ((False, 3) if is_old else (True, 0))
