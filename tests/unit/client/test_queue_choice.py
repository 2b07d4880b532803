"""The queue that a message is sent to."""

from __future__ import annotations

from client.network.routes import FaultTable, RoundRobin, by_sharding_key
from remoting.protocol.message.tags import java_hash
from remoting.protocol.queue import MessageQueue

A = [MessageQueue("T", "broker-a", number) for number in range(4)]
B = [MessageQueue("T", "broker-b", number) for number in range(4)]


def test_round_robin_begins_at_its_start_and_visits_every_queue():
    turn = RoundRobin(2)
    chosen = [turn.next(A, FaultTable(), 0.0).queue_id for _ in range(8)]
    assert chosen == [2, 3, 0, 1, 2, 3, 0, 1]


def test_round_robin_survives_its_index_wrapping():
    turn = RoundRobin(0x7FFF_FFFF)
    chosen = [turn.next(A, FaultTable(), 0.0) for _ in range(6)]
    assert set(chosen) == set(A)


def test_round_robin_stays_in_range_when_queues_disappear():
    turn = RoundRobin(3)
    turn.next(A, FaultTable(), 0.0)
    assert turn.next(A[:1], FaultTable(), 0.0) == A[0]


def test_a_retry_goes_to_another_broker():
    turn = RoundRobin(0)
    for _ in range(8):
        assert turn.next(A + B, FaultTable(), 0.0, avoid=("broker-a",)).broker_name == "broker-b"


def test_a_retry_stays_when_there_is_no_other_broker():
    turn = RoundRobin(0)
    assert turn.next(A, FaultTable(), 0.0, avoid=("broker-a",)) in A


def test_a_broker_in_the_fault_table_is_avoided():
    faults = FaultTable()
    faults.failed("broker-a", now=10.0)
    turn = RoundRobin(0)
    assert {turn.next(A + B, faults, 11.0).broker_name for _ in range(8)} == {"broker-b"}


def test_the_fault_table_is_ignored_when_all_brokers_are_in_it():
    faults = FaultTable()
    faults.failed("broker-a", now=10.0)
    faults.failed("broker-b", now=10.0)
    turn = RoundRobin(0)
    assert {turn.next(A + B, faults, 11.0) for _ in range(8)} == set(A + B)


def test_a_retry_prefers_a_faulty_other_broker_to_the_one_that_just_failed():
    faults = FaultTable()
    faults.failed("broker-b", now=10.0)
    chosen = RoundRobin(0).next(A + B, faults, 11.0, avoid=("broker-a",))
    assert chosen.broker_name == "broker-b"


def test_a_sharding_key_gives_javas_queue_also_for_a_negative_hash():
    key = next(text for text in map(str, range(10**6, 10**7)) if java_hash(text) < 0)
    assert by_sharding_key(A, key) == A[abs(java_hash(key)) % 4]
    assert by_sharding_key(A, "user-7") == by_sharding_key(A, "user-7")


def test_latencies_map_to_the_penalties_of_the_table():
    for latency, penalty in [
        (0.54, 0),
        (0.55, 30),
        (0.99, 30),
        (1, 60),
        (2, 120),
        (3, 180),
        (15, 600),
        (99, 600),
    ]:
        faults = FaultTable()
        faults.answered("a", latency, now=100.0)
        assert faults.available("a", 100.0 + penalty)
        assert penalty == 0 or not faults.available("a", 100.0 + penalty - 0.01)


def test_a_quick_answer_or_a_heartbeat_ends_the_penalty():
    faults = FaultTable()
    faults.failed("a", now=0.0)
    faults.answered("a", 0.01, now=1.0)
    assert faults.available("a", 1.0)
    faults.failed("a", now=2.0)
    faults.restored("a")
    assert faults.available("a", 2.0)
