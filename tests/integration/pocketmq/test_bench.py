"""``pocketmq bench`` against a broker."""

from __future__ import annotations

import asyncio

from pocketmq import bench
from pocketmq.testing import StandaloneServer
from tests.integration.pocketmq.conftest import CommandLine

BRIEFLY = ("--duration", "0.3", "--warm-up", "0.05")


def stored(cli: CommandLine, topic: str) -> int:
    return sum(row["messages"] for row in cli.json("topic", "status", topic))


def test_what_is_produced_is_stored_and_consumed_to_the_last_message(
    cli: CommandLine, name: str
) -> None:
    (made,) = cli.json("bench", "produce", "--topic", name, "--size", "100", *BRIEFLY)
    assert 0 < made["messages"] <= stored(cli, name)
    assert made["failed"] == 0
    assert 0 < made["p50_ms"] <= made["p99_ms"] <= made["p999_ms"]
    (read,) = cli.json("bench", "consume", "--topic", name, "--concurrency", "3")
    assert read["messages"] == stored(cli, name)
    assert read["mb_per_s"] > 0


def test_a_rate_is_kept(cli: CommandLine, topic: str) -> None:
    words = ("--topic", topic, "--rate", "100", "--duration", "0.5", "--warm-up", "0")
    (made,) = cli.json("bench", "produce", *words)
    assert 0 < made["messages"] <= 51


def test_latency_shows_acknowledgement_and_delivery(cli: CommandLine, topic: str) -> None:
    acknowledged, delivered = cli.json("bench", "latency", "--topic", topic, *BRIEFLY)
    assert (acknowledged["what"], delivered["what"]) == ("acknowledge", "deliver")
    assert delivered["messages"] > 0
    assert delivered["p50_ms"] > 0


async def test_with_a_rate_both_are_measured_from_when_a_message_was_due(
    pocketmq: StandaloneServer, pocketmq_topic: str
) -> None:
    pocketmq.delay("send", 0.05)  # so it falls behind
    load = bench.Load(
        nameserver=pocketmq.nameserver,
        topic=pocketmq_topic,
        queues=1,
        size=100,
        concurrency=1,
        duration=1,
        warm_up=0,
        rate=100,
    )
    results = await bench.latency(load, asyncio.Event(), lambda _: None)
    acknowledged, delivered = (result.row()["p50_ms"] for result in results)
    assert 100 < acknowledged / 2 < delivered


def test_the_queues_it_creates(cli: CommandLine, name: str) -> None:
    cli("bench", "produce", "--topic", name, "--queues", "3", *BRIEFLY)
    assert len(cli.json("topic", "status", name)) == 3


def test_in_a_pipe_there_is_one_line_per_result(cli: CommandLine, topic: str) -> None:
    line = cli("bench", "produce", "--topic", topic, *BRIEFLY)
    assert line.startswith("produce\t")
    assert line.count("\t") == 8


def test_empty_and_missing_topics_are_reported(cli: CommandLine, topic: str) -> None:
    assert "pocketmq bench produce" in cli.fails("bench", "consume", "--topic", topic)
    assert "nowhere" in cli.fails("bench", "consume", "--topic", "nowhere")


def test_an_unwritable_topic_is_reported_with_the_reason(cli: CommandLine, topic: str) -> None:
    cli("topic", "update", topic, "--permission", "r")
    error = cli.fails("bench", "produce", "--topic", topic, *BRIEFLY)
    assert topic in error
