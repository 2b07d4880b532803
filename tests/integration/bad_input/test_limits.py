"""Limits on connections, topics, groups, parked pulls, members, brokers and routes.

The servers of most of these tests have small limits. A client above a limit gets an error or is
disconnected; other clients are not affected, and its resources are freed when it disconnects.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import client
from broker.limits import (
    BYTES_PER_CHARACTER,
    LIMITS,
    SHORT_SUBSCRIPTION_LENGTH,
)
from pocketmq.server.process import private_megabytes
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.group import LockBatchRequestBody
from remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from remoting.protocol.bodies.registration import RegisterBrokerBody
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.frame import encode as encode_frame
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue
from tests.integration.bad_input.conftest import MEMORY_MEGABYTES, running
from tests.integration.bad_input.meanwhile import TOPIC, Meanwhile
from tests.integration.bad_input.peer import PATIENCE, Peer, Target
from tests.integration.bad_input.test_messages import registration
from tests.unit.broker.harness import pull_command, send_command

CONNECTIONS = 10
TOPICS = 20
GROUPS = 10
PARKED = 5
BROKERS = 3
ROUTE_ENTRIES = 100


class Small(NamedTuple):
    """Servers with small limits, and a client that connected first."""

    nameserver: Target
    broker: Target
    meanwhile: Meanwhile


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    """Run the servers; at the end, check that everything acknowledged is read."""
    with running(
        tmp_path_factory.mktemp("small"),
        nameserver_settings={
            "pocketmqMaxConnections": CONNECTIONS,
            "pocketmqMaxBrokers": BROKERS,
            "pocketmqMaxRouteEntries": ROUTE_ENTRIES,
        },
        pocketmqMaxConnections=CONNECTIONS,
        pocketmqMaxTopics=TOPICS,
        pocketmqMaxGroups=GROUPS,
        pocketmqMaxParkedPulls=PARKED,
    ) as servers:
        meanwhile = Meanwhile(servers.nameserver.address)
        meanwhile.start()
        yield Small(servers.nameserver, servers.broker, meanwhile)
        meanwhile.stop()


@pytest.fixture(autouse=True)
def well(small: Small) -> Iterator[None]:
    """After each test the earlier client still works, and the servers have capacity again."""
    yield
    small.meanwhile.goes_on()
    for target in (small.nameserver, small.broker):
        with patient_peer(target) as peer:
            assert peer.ask(target.harmless_request()).code == 0
        assert private_megabytes(target.process.pid) < MEMORY_MEGABYTES


def patient_peer(target: Target) -> Peer:
    """Connect as soon as the server has noticed that other connections are closed."""
    deadline = time.monotonic() + PATIENCE
    while True:
        peer = target.peer()
        try:
            peer.ask(target.harmless_request())
        except (EOFError, ConnectionError):
            peer.socket.close()
            assert time.monotonic() < deadline, "the server takes no connection any more"
        else:
            return peer


def gauge(target: Target, name: str) -> float:
    return target.metrics()[f"pocketmq_{name}"]


@pytest.mark.parametrize("name", ["nameserver", "broker"])
def test_connections_beyond_the_limit_are_closed_at_once_and_counted(
    small: Small, name: str
) -> None:
    target: Target = getattr(small, name)
    counted = f'pocketmq_connections_refused_total{{server="{name}"}}'
    before = target.metrics()[counted]
    peers = [target.peer() for _ in range(CONNECTIONS + 20)]
    refused = 0
    for peer in peers:
        try:
            peer.ask(target.harmless_request())
        except (EOFError, ConnectionError):
            refused += 1
    assert 20 <= refused < len(peers)
    assert target.metrics()[counted] == before + refused
    assert target.metrics()[f'pocketmq_connections{{server="{name}"}}'] <= CONNECTIONS
    small.meanwhile.goes_on()
    for peer in peers:
        peer.socket.close()


async def test_clients_create_topics_up_to_the_limit_and_administrators_beyond(
    small: Small,
) -> None:
    with patient_peer(small.broker) as peer:
        answers = [peer.ask(send_command(f"many-{n}")) for n in range(2 * TOPICS)]
        codes = [answer.code for answer in answers]
        assert codes == sorted(codes)
        assert set(codes) == {0, 1}
        assert "pocketmqMaxTopics" in (answers[-1].remark or "")
        assert gauge(small.broker, "topics") == TOPICS
        assert peer.ask(send_command("many-0")).code == 0
        async with client.Admin(small.nameserver.address) as admin:
            await admin.create_topic("by-an-administrator", queues=1)
        assert peer.ask(send_command("by-an-administrator")).code == 0


def test_clients_create_groups_up_to_the_limit(small: Small) -> None:
    with patient_peer(small.broker) as peer:
        answers = [
            peer.ask(pull_command(TOPIC, consumer_group=f"many-{n}")) for n in range(2 * GROUPS)
        ]
        assert {answer.code for answer in answers} == {0, 1}
        assert "pocketmqMaxGroups" in (answers[-1].remark or "")
        assert gauge(small.broker, "groups") == GROUPS
        beat = HeartbeatData("greedy", [], [ConsumerData(group_name="one-more")])
        answer = peer.ask(Command.request(RequestCode.HEART_BEAT, body=encode(beat)))
        assert answer.code == 1
        assert "pocketmqMaxGroups" in (answer.remark or "")


def test_pulls_are_parked_up_to_the_limit_and_answered_at_once_beyond(small: Small) -> None:
    count = 10 * PARKED
    with patient_peer(small.broker) as peer:
        for opaque in range(1000, 1000 + count):
            pull = pull_command(
                "BenchmarkTest", sys_flag=6, suspend_timeout_millis=600_000, consumer_group=TOPIC
            )
            pull.opaque = opaque
            peer.send(encode_frame(pull))
        for _ in range(count - PARKED):
            assert peer.read().code == 19
        assert gauge(small.broker, "parked_pulls") <= PARKED
        small.meanwhile.goes_on()
    with patient_peer(small.broker):
        deadline = time.monotonic() + PATIENCE
        while gauge(small.broker, "parked_pulls") > 1:
            assert time.monotonic() < deadline, "parked pulls of a peer that is gone"


def test_long_expressions_of_parked_pulls_are_kept_up_to_the_limit(broker: Target) -> None:
    tags = "||".join(f"{n:08}" for n in range(3_200))
    room = LIMITS.parked_bytes // (BYTES_PER_CHARACTER * (len(tags) - SHORT_SUBSCRIPTION_LENGTH))
    count = room + 50
    with broker.peer() as peer:
        for opaque in range(1000, 1000 + count):
            pull = pull_command(
                "BenchmarkTest",
                sys_flag=6,
                suspend_timeout_millis=600_000,
                consumer_group=TOPIC,
                subscription=tags.replace("0000", str(opaque)),
            )
            pull.opaque = opaque
            peer.send(encode_frame(pull))
        for _ in range(count - room):
            assert peer.read().code == 19
        assert gauge(broker, "parked_pulls") <= room + 1
        assert private_megabytes(broker.process.pid) < MEMORY_MEGABYTES


def test_brokers_are_registered_up_to_the_limit(small: Small) -> None:
    with patient_peer(small.nameserver) as peer:
        answers = [
            peer.ask(registration(b"", broker_name=f"b-{n}", broker_addr=f"192.0.2.{n}:10911"))
            for n in range(BROKERS + 2)
        ]
        assert [answer.code for answer in answers] == [0] * (BROKERS - 1) + [1] * 3
        assert "pocketmqMaxBrokers" in (answers[-1].remark or "")


def test_routes_are_kept_up_to_the_limit(small: Small) -> None:
    names = [f"t-{n}" for n in range(ROUTE_ENTRIES)]
    table = {name: TopicConfig(topic_name=name) for name in names}
    body = encode(RegisterBrokerBody(TopicConfigSerializeWrapper(topic_config_table=table)))
    with patient_peer(small.nameserver) as peer:
        answer = peer.ask(registration(body))
        assert answer.code == 1
        assert "pocketmqMaxRouteEntries" in (answer.remark or "")


# --- limits that no setting changes


def heartbeat(data: HeartbeatData) -> Command:
    return Command.request(RequestCode.HEART_BEAT, body=encode(data))


def test_a_heartbeat_beyond_its_size_is_refused(small: Small) -> None:
    groups = [ProducerData("x" * 200 + str(n)) for n in range(4_000)]
    with patient_peer(small.broker) as peer:
        answer = peer.ask(heartbeat(HeartbeatData("huge", groups, [])))
        assert answer.code == 1
        assert "a heartbeat has at most" in (answer.remark or "")


def test_a_group_with_too_many_subscriptions_is_refused(small: Small) -> None:
    topics = [SubscriptionData(topic=f"t{n}", sub_string="*") for n in range(1_025)]
    consumer = ConsumerData(group_name=TOPIC, subscription_data_set=topics)
    with patient_peer(small.broker) as peer:
        answer = peer.ask(heartbeat(HeartbeatData("greedy", [], [consumer])))
        assert answer.code == 1
        assert "at most 1024 topics" in (answer.remark or "")


def test_a_client_without_an_id_or_with_a_long_one_is_refused(small: Small) -> None:
    with patient_peer(small.broker) as peer:
        for client_id in ("", "x" * 1_000):
            answer = peer.ask(heartbeat(HeartbeatData(client_id, [], [])))
            assert answer.code == 1
            assert "client's id" in (answer.remark or "")


def test_memberships_are_bounded_and_end_with_their_connection(small: Small) -> None:
    with patient_peer(small.broker) as peer:
        answers = []
        for part in range(11):
            groups = [ProducerData(f"{part}-{n}") for n in range(10_000)]
            answers.append(peer.ask(heartbeat(HeartbeatData("greedy", groups, []))))
        assert [answer.code for answer in answers[:9]] == [0] * 9
        assert answers[-1].code == 1
        assert "memberships in producer groups" in (answers[-1].remark or "")
    with patient_peer(small.broker) as peer:
        deadline = time.monotonic() + PATIENCE
        while peer.ask(heartbeat(HeartbeatData("modest", [ProducerData("new")], []))).code != 0:
            assert time.monotonic() < deadline, "memberships of a peer that is gone"


def test_queue_locks_are_bounded(small: Small) -> None:
    bodies = [
        encode(
            LockBatchRequestBody(
                "greedy", "c", [MessageQueue(f"t{part}", "broker-a", n) for n in range(10_000)]
            )
        )
        for part in range(LIMITS.queue_locks // 10_000 + 1)
    ]
    with patient_peer(small.broker) as peer:
        *locked, refused = [
            peer.ask(Command.request(RequestCode.LOCK_BATCH_MQ, body=body)) for body in bodies
        ]
        assert {answer.code for answer in locked} == {0}
        assert refused.code == 1
        assert "queue locks" in (refused.remark or "")
        for body in bodies:
            assert peer.ask(Command.request(RequestCode.UNLOCK_BATCH_MQ, body=body)).code == 0


def test_a_client_watches_a_bounded_number_of_routes(small: Small) -> None:
    body = encode(TopicList([f"t{n}" for n in range(10_001)]))
    with patient_peer(small.nameserver) as peer:
        answer = peer.ask(Command.request(OwnRequestCode.SUBSCRIBE_ROUTE, body=body))
        assert answer.code == 1
        assert "watch those in use" in (answer.remark or "")
