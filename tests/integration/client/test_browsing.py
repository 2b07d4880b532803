"""Reading a topic by pages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import client
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.pull import OffsetResponseHeader, PullMessageResponseHeader
from tests.harness.cluster import Cluster
from tests.integration.client.conftest import FakePeer

Key = tuple[client.MessageQueue, int]


def key(message: client.ReceivedMessage[bytes]) -> Key:
    return message.queue, message.offset


@pytest.fixture
async def filled(cluster: Cluster) -> Cluster:
    """Eighty messages over the four queues of T; every fourth has the tag rare and n = 1."""
    async with client.Producer(cluster.nameserver) as producer:
        for number in range(80):
            rare = number % 4 == 0
            await producer.send(
                "T",
                b"%d" % number,
                tag="rare" if rare else "usual",
                properties={"n": "1"} if rare else {},
                queue=client.MessageQueue("T", "broker-a", number // 4 % 4),
            )
    return cluster


async def walk(admin: client.Admin, start: Any, **more: Any) -> list[client.BrowsePage]:
    found = [await admin.browse("T", start, **more)]
    while not found[-1].complete:
        found.append(await admin.browse("T", found[-1].cursor, **more))
    return found


def bodies(pages: list[client.BrowsePage]) -> list[int]:
    return [int(message.body) for page in pages for message in page.messages]


async def test_pages_have_all_messages_once_in_the_order_of_their_times(
    filled: Any, admin: client.Admin
):
    for limit in (1, 7, 1000):
        pages = await walk(admin, client.BEGIN, limit=limit)
        assert max(len(page.messages) for page in pages) <= limit
        messages = [message for page in pages for message in page.messages]
        assert len({key(message) for message in messages}) == len(messages) == 80
        times = [message.store_timestamp_ms for message in messages]
        assert times == sorted(times)


async def test_the_last_cursor_gets_what_arrives_later(filled: Any, admin: client.Admin):
    [page] = await walk(admin, client.END)
    assert (page.messages, page.complete, page.scanned) == ([], True, 0)
    async with client.Producer(filled.nameserver) as producer:
        await producer.send("T", b"80")
    assert bodies([await admin.browse("T", page.cursor)]) == [80]


async def test_a_page_begins_at_a_time_an_offset_or_before_the_end(
    filled: Any, admin: client.Admin
):
    assert sorted(bodies(await walk(admin, -2))) == [*range(66, 68), *range(70, 72), 74, 75, 78, 79]
    assert len(bodies(await walk(admin, 15))) == 20
    assert bodies(await walk(admin, datetime.now(UTC))) == []
    only = client.MessageQueue("T", "broker-a", 2)
    assert len(bodies(await walk(admin, client.BEGIN, queues=[only], limit=3))) == 20
    with pytest.raises(client.UsageError, match="no such queue"):
        await admin.browse("T", queues=[client.MessageQueue("T", "broker-a", 9)])


async def test_brokers_filter_and_what_they_look_at_is_bounded(filled: Any, admin: client.Admin):
    for wanted in ("rare", client.Tags("rare"), client.Sql("n = 1")):
        pages = await walk(admin, client.BEGIN, tags=wanted, limit=3)
        assert sorted(bodies(pages)) == list(range(0, 80, 4))
    pages = await walk(admin, client.BEGIN, tags="never", scan_limit=10)
    assert bodies(pages) == []
    assert len(pages) > 4
    assert max(page.scanned for page in pages) <= 20  # one request looks at one queue
    assert sum(page.scanned for page in pages) == 80


async def test_bad_starts_are_refused(filled: Any, admin: client.Admin):
    for bad in ("", "begin", "broker-a~0", "broker-a~0~x", "broker-a~0~1,"):
        with pytest.raises(client.UsageError, match="cursor"):
            await admin.browse("T", bad)
    with pytest.raises(client.UsageError, match="not a position"):
        await admin.browse("T", 1.5)  # type: ignore[arg-type] # what is tested
    with pytest.raises(client.UsageError, match="1 or more"):
        await admin.browse("T", limit=0)
    with pytest.raises(client.TopicNotFound):
        await admin.browse("misspelt")


async def half_down(fake: Any) -> PullMessageResponseHeader:
    """Add a broker that is down; return the header of the other one's answer at its end."""
    gone = FakePeer("gone", queues=1)
    await gone.server.start()
    await gone.server.stop()
    fake.queues, fake.brokers = 1, [fake, gone]
    return PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=7, min_offset=0, max_offset=7
    )


async def test_queues_of_a_broker_that_is_down_keep_their_places(fake: Any):
    nothing = await half_down(fake)
    fake.on(
        RequestCode.PULL_MESSAGE,
        answer=lambda command, _: command.reply(ResponseCode.PULL_NOT_FOUND, header=nothing),
    )
    async with client.Admin(fake.address, request_timeout=5.0) as admin:
        page = await admin.browse("T", "gone~0~5,fake-0~0~7")
        assert (page.messages, page.complete, list(page.unreachable)) == ([], False, ["gone"])
        assert page.cursor == "gone~0~5,fake-0~0~7"
        with pytest.raises(client.Unavailable):
            await admin.browse("T", "gone~0~5")


async def test_a_cursor_keeps_queues_whose_brokers_were_down_from_the_first_page_on(fake: Any):
    nothing = await half_down(fake)
    end = OffsetResponseHeader(offset=7)
    fake.on(
        RequestCode.PULL_MESSAGE,
        answer=lambda command, _: command.reply(ResponseCode.PULL_NOT_FOUND, header=nothing),
    )
    fake.on(
        *(RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        answer=lambda command, _: command.reply(header=end),
    )
    async with client.Admin(fake.address, request_timeout=5.0) as admin:
        starts = {"begin": client.BEGIN, "end": client.END, "-5": -5}
        starts["@1000"] = datetime.fromtimestamp(1, UTC)
        for text, start in starts.items():
            page = await admin.browse("T", start)
            assert page.cursor == f"fake-0~0~7,gone~0~{text}"
            assert (page.complete, list(page.unreachable)) == (False, ["gone"])
        fake.brokers = [fake]  # the name server has noticed
        page = await admin.browse("T", page.cursor)
        assert page.cursor == "fake-0~0~7,gone~0~@1000"
        assert (page.complete, list(page.unreachable)) == (False, ["gone"])
