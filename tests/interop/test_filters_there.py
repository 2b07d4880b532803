"""Our client filters by properties at real Apache brokers, whose files of filters ours continue."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import client
from client import blocking
from pocketmq import testing
from tests.interop.apache import Apache, apache
from tests.interop.test_filters_here import EXPRESSION, fill
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


async def test_a_push_consumer_gets_what_matches(there: Apache) -> None:
    wanted = await fill(there.nameserver, "push")
    got: list[str] = []
    complete = asyncio.Event()

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        got.append(message.body.decode())
        if len(got) == len(wanted):
            complete.set()

    async with (
        client.PushConsumer(
            there.nameserver,
            group="g-push",
            subscribe={"push": client.Sql(EXPRESSION)},
            handler=handle,
            start_from=client.FIRST,
        ),
        asyncio.timeout(60),
    ):
        await complete.wait()
    assert sorted(got) == wanted


@pytest.mark.parametrize("shared", [False, True], ids=["assign", "subscribe"])
async def test_a_pull_consumer_gets_what_matches(there: Apache, shared: bool) -> None:
    topic = f"pull-{shared}"
    wanted = await fill(there.nameserver, topic)
    got: list[str] = []
    async with client.PullConsumer(
        there.nameserver, group=f"g-{topic}", start_from=client.BEGIN
    ) as consumer:
        if shared:
            await consumer.subscribe(topic, client.Sql(EXPRESSION))
        else:
            consumer.assign(await consumer.queues(topic), tags=client.Sql(EXPRESSION))
        async with asyncio.timeout(60):
            while len(got) < len(wanted):
                got += [one.body.decode() for one in await consumer.get_many(100, timeout=1.0)]
    assert sorted(got) == wanted


def test_the_blocking_client_too(there: Apache) -> None:
    wanted = asyncio.run(fill(there.nameserver, "sql-blocking"))
    got: list[str] = []
    with blocking.PullConsumer(there.nameserver, group="g-blocking") as consumer:
        consumer.assign(consumer.queues("sql-blocking"), tags=client.Sql(EXPRESSION))
        while len(got) < len(wanted):
            got += [one.body.decode() for one in consumer.get_many(100, timeout=10)]
    assert sorted(got) == wanted


async def test_a_wrong_expression_is_refused_before_everything_is_delivered(there: Apache) -> None:
    await fill(there.nameserver, "wrong", 0, 2)
    wrong = client.Sql("amount BETWEEN 3 AND 1")
    with pytest.raises(client.SubscriptionInvalid, match=r"left value\(3\) must less than"):
        async with client.PushConsumer(
            there.nameserver, group="g-wrong", subscribe={"wrong": wrong}, handler=print
        ):
            pass
    async with client.PullConsumer(there.nameserver, group="g-wrong-pull") as consumer:
        consumer.assign(await consumer.queues("wrong"), tags=wrong)
        with pytest.raises(client.SubscriptionInvalid):
            await consumer.get_many(1, timeout=20)


def saved(store: Path) -> dict[str, dict[str, object]]:
    """Return what a store's file of filters has of the topic ``moved``, by group."""
    try:
        tree = json.loads((store / "config" / "consumerFilter.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}  # Apache's broker is writing it, and removes the old file first
    found = tree["filterDataByTopic"].get("moved", {"groupFilterData": {}})["groupFilterData"]
    return {group: found[group] for group in sorted(found)}


def have_left(filters: dict[str, dict[str, object]], *groups: str) -> bool:
    """Return whether there are filters of these groups, and all of them are dead."""
    return filters.keys() == set(groups) and all(one["dead"] for one in filters.values())


async def subscribe(nameserver: str, group: str) -> None:
    async with client.PullConsumer(nameserver, group=group) as consumer:
        await consumer.subscribe("moved", client.Sql(EXPRESSION))


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_filters_move_to_apache_and_back(version: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    settings = {"brokerName": "broker-a"}
    with testing.broker(store=store, settings=settings) as ours:
        asyncio.run(fill(ours.nameserver, "moved", 0, 2))
        asyncio.run(subscribe(ours.nameserver, "first"))
    here = saved(store)
    assert here["first"]["expression"] == EXPRESSION
    assert here["first"]["dead"] is True

    with apache(version, tmp_path, settings=["enablePropertyFilter=true"]) as theirs:
        asyncio.run(subscribe(theirs.nameserver, "second"))
        # Written every ten seconds; a broker that did not take our entry would drop it.
        wait_until(lambda: have_left(saved(store), "first", "second"), "they aren't written")
    there = saved(store)
    assert there["first"] == here["first"]

    with testing.broker(store=store, settings=settings) as ours:
        asyncio.run(subscribe(ours.nameserver, "second"))
    back = saved(store)
    assert back["first"] == here["first"]
    version_there = there["second"].pop("clientVersion")
    assert int(str(back["second"].pop("clientVersion"))) > int(str(version_there))
    assert int(str(back["second"].pop("deadTime"))) > int(str(there["second"].pop("deadTime")))
    assert back["second"] == there["second"]
