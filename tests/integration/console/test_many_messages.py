"""Messages are found among very many, and no page has a broker look through all of them."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import unquote, urlencode

import pytest

from benchmarks.tools import loadgen
from client import Message, Receipt, blocking
from pocketmq import testing
from pocketmq.console.pages import MESSAGES, SCAN
from tests.integration.console.conftest import Answer, console
from tests.support.sizes import size

pytestmark = [pytest.mark.bench, pytest.mark.timeout(size(test=120, ci=120, soak=7200))]

COUNT = size(test=100_000, ci=200_000, soak=100_000_000)
QUEUES = 4
SHARP = [Message("hay", b"sharp", tag="sharp", keys=["needle"], sharding_key="one")] * 3
"""The messages that are searched for; they are in one queue."""

MOST = 2 * SCAN
"""Messages that a page may look at: with a filter, the last request may exceed its budget."""

Ask = Callable[..., Answer]


class Hay(NamedTuple):
    """A topic of many messages.

    Attributes:
        ask: requests the messages' page with these fields.
        receipts: of the messages that are searched for, halfway.
    """

    ask: Ask
    receipts: list[Receipt]


def send(address: str, count: int) -> None:
    options = {"conns": 2, "inflight": 8, "size": 16, "batch": 100, "queues": QUEUES}
    options |= {"secs": 7000, "warm": 0, "count": count}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [str(loadgen()), "batch", "--addr", address, "--topic", "hay", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def hay(record_testsuite_property: Callable[[str, object], None]) -> Iterator[Hay]:
    with testing.broker() as server:
        server.admin.create_topic("hay", queues=QUEUES)
        send(server.broker, COUNT // 2)
        with blocking.Producer(server.nameserver, group="shop") as producer:
            receipts = [one for one in producer.send_many(SHARP) if isinstance(one, Receipt)]
        send(server.broker, COUNT // 2)
        record_testsuite_property("messages", COUNT)
        with console(server.nameserver) as surfer:

            def ask(**fields: str) -> Answer:
                begun = time.monotonic()
                answer = surfer.get(f"messages?{urlencode({'topic': 'hay', **fields})}")
                record_testsuite_property(
                    f"ms: {urlencode(fields)[:60]}", round((time.monotonic() - begun) * 1000)
                )
                assert answer.status == 200, answer.words()
                return answer

            yield Hay(ask, receipts)


def looked_at(answer: Answer) -> int:
    found = re.search(r"([\d,]+) looked at", answer.words())
    assert found is not None, answer.words()
    return int(found[1].replace(",", ""))


def shown(answer: Answer) -> int:
    return answer.text.count('<td class="body">')


def test_a_key_and_an_id_are_found(hay: Hay) -> None:
    assert shown(hay.ask(key="needle")) == len(SHARP)
    assert shown(hay.ask(key=hay.receipts[1].id)) == 1
    assert shown(hay.ask(key="thread")) == 0


def test_a_page_begins_at_a_place_or_a_time(hay: Hay) -> None:
    queue, offset = hay.receipts[0].queue, hay.receipts[0].offset
    place = f"{queue.broker_name}/{queue.queue_id}"
    at = hay.ask(queue=place, **{"from": str(offset)})
    assert at.words().count("sharp") >= 2 * len(SHARP)
    for start in ("begin", "-50", "-1h"):
        page = hay.ask(**{"from": start})
        assert shown(page) == MESSAGES
        assert looked_at(page) <= MOST


@pytest.mark.parametrize("search", [{"tags": "sharp"}, {"sql": "TAGS = 'sharp'"}])
def test_a_filter_looks_at_a_part_and_goes_on_from_there(hay: Hay, search: dict[str, str]) -> None:
    total, cursors = 0, set()
    page = hay.ask(**{"from": "begin"}, **search)
    for _ in range(3):
        assert shown(page) == 0
        assert 0 < looked_at(page) <= MOST
        assert "there may be more" in page.words()
        total += looked_at(page)
        (cursor,) = re.findall(r"cursor=([^&\"]+)", page.text)
        cursors.add(cursor)
        page = hay.ask(cursor=unquote(cursor), **search)
    assert len(cursors) == 3
    assert total < COUNT
