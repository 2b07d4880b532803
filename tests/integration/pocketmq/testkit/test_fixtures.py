"""The fixtures of the pytest plugin, and what a test asks of its broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import client
from client import blocking
from pocketmq.testing import StandaloneServer
from tests.support.tour import HOME

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]


def run_pytest(directory: Path, text: str, *options: str) -> str:
    """Run a file of tests in a new process and return what it prints."""
    (directory / "test_it.py").write_text(text)
    done = subprocess.run(
        [*PYTEST, *options],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(HOME), "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def send(server: StandaloneServer, topic: str, *bodies: bytes) -> None:
    with blocking.Producer(server.nameserver, group="test") as producer:
        for body in bodies:
            producer.send(topic, body)


def test_what_a_topic_has_is_listed_in_its_order(
    pocketmq: StandaloneServer, pocketmq_topic: str
) -> None:
    bodies = [f"cup {number}".encode() for number in range(3)]
    send(pocketmq, pocketmq_topic, *bodies)
    assert [message.body for message in pocketmq.messages(pocketmq_topic)] == bodies
    assert pocketmq.messages("no-such-topic") == []


@pytest.mark.pocketmq(queues=3)
def test_the_mark_chooses_the_number_of_queues(
    pocketmq: StandaloneServer, pocketmq_topic: str
) -> None:
    assert len(pocketmq.admin.queues(pocketmq_topic)) == 3
    for queue in pocketmq.admin.queues(pocketmq_topic):
        with blocking.Producer(pocketmq.nameserver, group="test") as producer:
            producer.send(pocketmq_topic, b"%d" % queue.queue_id, queue=queue)
    assert [message.body for message in pocketmq.messages(pocketmq_topic)] == [b"0", b"1", b"2"]


async def test_what_a_group_consumes_is_awaited(
    pocketmq: StandaloneServer, pocketmq_topic: str, pocketmq_group: str
) -> None:
    handled: list[bytes] = []
    async with client.Producer(pocketmq.nameserver, group="test") as producer:
        await producer.send(pocketmq_topic, b"tea")
    with pytest.raises(TimeoutError, match=f"queue 0 of {pocketmq_topic} is consumed up to 0 of 1"):
        await pocketmq.aio.wait_until_consumed(pocketmq_group, pocketmq_topic, timeout=0.01)
    async with client.PushConsumer(
        pocketmq.nameserver,
        group=pocketmq_group,
        subscribe={pocketmq_topic: "*"},
        handler=lambda message: handled.append(message.body),
        start_from=client.FIRST,
    ):
        await pocketmq.aio.wait_until_consumed(pocketmq_group, pocketmq_topic)
    assert handled == [b"tea"]
    assert [each.body for each in await pocketmq.aio.messages(pocketmq_topic)] == [b"tea"]


async def test_dead_letters_say_why_they_died(
    pocketmq: StandaloneServer, pocketmq_topic: str, pocketmq_group: str
) -> None:
    async def refuse(message: client.ReceivedMessage[bytes]) -> None:
        raise client.DeadLetter("nothing was ordered")

    async with (
        client.Producer(pocketmq.nameserver, group="test") as producer,
        client.PushConsumer(
            pocketmq.nameserver,
            group=pocketmq_group,
            subscribe={pocketmq_topic: "*"},
            handler=refuse,
            start_from=client.FIRST,
        ),
    ):
        await producer.send(pocketmq_topic, b"?")
        await pocketmq.aio.wait_until_consumed(pocketmq_group, pocketmq_topic)
    (letter,) = await pocketmq.aio.dead_letters(pocketmq_group)
    assert (letter.body, letter.reason) == (b"?", "nothing was ordered")
    assert await pocketmq.aio.dead_letters("no-such-group") == []


@pytest.mark.pocketmq(accounts={"billing": {"topicPerms": ["orders=PUB"]}})
def test_a_mark_starts_another_broker_which_the_test_may_ask(pocketmq: StandaloneServer) -> None:
    keys = pocketmq.credentials["billing"]
    with blocking.Producer(pocketmq.nameserver, group="test", credentials=keys) as producer:
        producer.send("orders", b"tea")
        with pytest.raises(client.AccessDenied):
            producer.send("invoices", b"tea")
    assert [message.body for message in pocketmq.messages("orders")] == [b"tea"]


TESTS = """
import os
import pytest
from client import blocking

seen = {}

@pytest.mark.parametrize("turn", range(6))
def test_each_test_finds_an_empty_broker(pocketmq, pocketmq_topic, pocketmq_group, turn):
    assert pocketmq_topic not in seen
    assert pocketmq.messages("orders") == []
    seen[pocketmq_topic] = pocketmq.pid
    assert set(seen.values()) == {pocketmq.pid}
    assert pocketmq.admin.broker_config(pocketmq.broker)["defaultTopicQueueNums"] == "2"
    with blocking.Producer(pocketmq.nameserver, group="test") as producer:
        producer.send("orders", b"tea")
        producer.send(pocketmq_topic, b"tea")
    print("BROKER", os.environ.get("PYTEST_XDIST_WORKER"), pocketmq.pid)

@pytest.mark.parametrize("end", ["kill", "stop", "pause", "crash"])
def test_a_broker_that_does_not_run_is_left(pocketmq, end):
    with blocking.Producer(pocketmq.nameserver, group="test") as producer:
        producer.send("orders", b"tea")
    if end == "crash":
        os.kill(pocketmq.pid, 9)
        os.waitid(os.P_PID, pocketmq.pid, os.WEXITED | os.WNOWAIT)
    else:
        getattr(pocketmq, end)()

def test_the_next_one_finds_it_running_and_empty(pocketmq):
    assert pocketmq.messages("orders") == []
    pocketmq.clock.advance(hours=1)

def test_the_clock_is_that_of_its_test(pocketmq, pocketmq_broker):
    assert not pocketmq.clock.ahead
    assert pocketmq_broker.admin.groups() is not None
"""


def test_each_worker_has_a_broker_which_is_clean_for_each_test(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\npocketmq_settings =\n    defaultTopicQueueNums = 2\n"
    )
    shown = run_pytest(tmp_path, TESTS, "-n", "2", "-rP")
    brokers = {tuple(line.split()[1:]) for line in shown.splitlines() if line.startswith("BROKER")}
    assert "12 passed" in shown
    assert len(brokers) == len({worker for worker, _ in brokers}) == 2


def test_a_setting_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\npocketmq_settings = flushDiskType\n")
    with pytest.raises(AssertionError, match="pocketmq_settings: 'flushDiskType' is not KEY=VALUE"):
        run_pytest(tmp_path, "def test_it(pocketmq): pass\n")
