"""Expensive requests of one client must not delay the others: a well-behaved one is timed.

Its sends are timed in a separate process, first without load, then under each attack. In full size
no send may take longer than the longest one without load plus the time that the loop may be
blocked; in any size every request is answered.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from pocketmq.testing import SMALL_STORE, ServerProcess
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.protocol.bodies.stats import ConsumeStats, TopicStatsTable
from remoting.protocol.bodies.topic import (
    CreateTopicListRequestBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.frame import encode as encode_frame
from remoting.protocol.headers.admin import TopicRequestHeader
from remoting.protocol.headers.query import GetConsumeStatsRequestHeader
from tests.integration.bad_input.peer import PATIENCE, Peer
from tests.support.sizes import SIZE, size
from tests.unit.broker.harness import send_command

MEMBERS = size(ci=100, soak=1_500)
QUEUES = size(ci=2_000, soak=65_536)
TOPICS = size(ci=1_000, soak=30_000)
TABLES = size(ci=20, soak=180)
NEW_NAMES = size(ci=3_000, soak=30_000)
MAY_BLOCK_SECONDS = 0.020
REST_SECONDS = size(ci=0.5, soak=10.0)
PAUSE_SECONDS = 0.001


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A name server and a broker in one process."""
    settings = [f"--set={key}={value}" for key, value in SMALL_STORE.items()]
    ports = ["--nameserver-port=0", "--broker-port=0"]
    process = ServerProcess(["standalone", *ports, "--store", str(tmp_path), *settings])
    process.start()
    with Peer(process.addresses["broker"]) as peer:
        assert peer.ask(send_command("Existing")).code == 0
    yield process
    process.kill()


@pytest.fixture
def timed(server: ServerProcess) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Runs an attack while a well-behaved client sends, and checks its latencies."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(1, mp_context=context) as pool:

        def run(attack: Callable[[], None]) -> list[float]:
            started, stop = manager.Event(), manager.Event()
            taken = pool.submit(sends, server.addresses["broker"], started, stop)
            try:
                assert started.wait(PATIENCE)
                attack()
            finally:
                stop.set()
            return sorted(taken.result())

        def check(attack: Callable[[], None]) -> None:
            rest = run(lambda: time.sleep(REST_SECONDS))
            under = run(attack)
            print(  # noqa: T201 - for a soak with -s
                f"sends at rest p50 {rest[len(rest) // 2] * 1e3:.1f}, longest {rest[-1] * 1e3:.1f}"
                f" ms; under attack p50 {under[len(under) // 2] * 1e3:.1f}, p99 "
                f"{under[len(under) * 99 // 100] * 1e3:.1f}, longest {under[-1] * 1e3:.1f} ms"
            )
            if SIZE == "soak":
                assert under[-1] <= rest[-1] + MAY_BLOCK_SECONDS

        yield check


def sends(address: str, started: threading.Event, stop: threading.Event) -> list[float]:
    """The duration of each send to an existing topic, in seconds, until stopped."""
    taken = []
    with Peer(address) as peer:
        started.set()
        while not stop.is_set():
            begun = time.perf_counter()
            assert peer.ask(send_command("Existing")).code == 0
            taken.append(time.perf_counter() - begun)
            time.sleep(PAUSE_SECONDS)
    return taken


def make_topics(peer: Peer, configs: list[TopicConfig]) -> None:
    for begin in range(0, len(configs), 1_000):
        body = encode(CreateTopicListRequestBody(configs[begin : begin + 1_000]))
        answer = peer.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body))
        assert answer.code == 0, answer.remark


def test_members_that_leave_at_once(server, timed):
    beat = ConsumerData("g", subscription_data_set=[SubscriptionData(topic="T", sub_string="*")])

    def attack() -> None:
        with ExitStack() as stack:
            members = [
                stack.enter_context(Peer(server.addresses["broker"])) for _ in range(MEMBERS)
            ]
            for n, member in enumerate(members):
                body = encode(HeartbeatData(f"client-{n}", [], [beat]))
                assert member.ask(Command.request(RequestCode.HEART_BEAT, body=body)).code == 0
            time.sleep(1)
            for member in members:
                member.socket.shutdown(socket.SHUT_RDWR)
            time.sleep(1)

    timed(attack)


def test_the_figures_of_a_topic_with_very_many_queues(server, timed):
    with Peer(server.addresses["broker"]) as peer:
        make_topics(peer, [TopicConfig("Wide", QUEUES, QUEUES)])
        stats = TopicRequestHeader(topic="Wide")
        progress = GetConsumeStatsRequestHeader(consumer_group="g", topic="Wide")

        def attack() -> None:
            for _ in range(3):
                reply = peer.ask(Command.request(RequestCode.GET_TOPIC_STATS_INFO, stats))
                assert reply.code == 0
                found = peer.ask(Command.request(RequestCode.GET_CONSUME_STATS, progress))
                assert found.code == 0
            assert len(decode(TopicStatsTable, reply.body).offset_table) == QUEUES
            assert len(decode(ConsumeStats, found.body).offset_table) == QUEUES

        timed(attack)


def test_pipelined_requests_for_a_large_table(server, timed):
    with Peer(server.addresses["broker"]) as peer:
        make_topics(peer, [TopicConfig(f"topic-{n}") for n in range(TOPICS)])

        def attack() -> None:
            frame = encode_frame(Command.request(RequestCode.GET_ALL_TOPIC_CONFIG))
            sender = threading.Thread(target=peer.send, args=(frame * TABLES,))
            sender.start()
            for _ in range(TABLES):
                reply = peer.read()
                assert reply.code == 0
            sender.join()
            table = decode(TopicConfigSerializeWrapper, reply.body).topic_config_table
            assert len(table) >= TOPICS

        timed(attack)


def test_sends_to_very_many_new_names(server, timed):
    def attack() -> None:
        with Peer(server.addresses["broker"]) as peer:
            frames = b"".join(encode_frame(send_command(f"new-{n}")) for n in range(NEW_NAMES))
            sender = threading.Thread(target=peer.send, args=(frames,))
            sender.start()
            codes = Counter(peer.read().code for _ in range(NEW_NAMES))
            sender.join()
            assert set(codes) == {0, 2}

    timed(attack)
