"""A broker whose disk is above its limit reports it to every client."""

from __future__ import annotations

import pytest

import client
from pocketmq import doctor, testing
from pocketmq.doctor import Case, CheckVerdict

NEVER_SO_MUCH_FREE = str(2**62)


async def test_a_refused_send_and_the_doctor_name_the_limit() -> None:
    settings = {
        "pocketmqDiskFullFreeBytes": NEVER_SO_MUCH_FREE,
        "cleanFileForciblyEnable": "false",
    }
    with testing.broker(settings=settings) as server:
        async with client.Producer(server.nameserver) as producer:
            with pytest.raises(client.PocketMQError) as caught:
                await producer.send("orders", b"one", timeout=20.0)
        found = list(doctor.examine(Case(name_servers=[server.nameserver])))
    assert "pocketmqDiskFullFreeBytes" in str(caught.value)
    stores = [finding for finding in found if finding.check == "store"]
    assert [finding.verdict for finding in stores] == [CheckVerdict.FAILED]
    assert f"less than the {NEVER_SO_MUCH_FREE} of pocketmqDiskFullFreeBytes" in stores[0].found
    assert str(server.store) in stores[0].found
