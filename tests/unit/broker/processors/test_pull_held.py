"""Pulls that wait: what wakes them, and when they are answered empty."""

from __future__ import annotations

from remoting.protocol.message.view import iter_records
from tests.unit.broker.harness import Bench, FakeConnection, pull_command
from tests.unit.broker.processors.pulls import bounds, pull


def hold(bench: Bench, **fields) -> None:
    fields = {"sys_flag": 4 | 2, "suspend_timeout_millis": 3000, **fields}
    assert pull(bench, **fields) is None


def wake(bench: Bench, pulls) -> list:
    bench.processors.pull.wake(pulls)
    sent, bench.connection.sent = bench.connection.sent, []
    return sent


def arrive(bench: Bench, tag: str = "") -> list:
    bench.state.store.dispatcher.on_arrival = lambda *event: woken.extend(
        bench.state.long_polls.arrived(*event)
    )
    woken: list = []
    bench.send("T", b"new", properties=f"TAGS\x01{tag}" if tag else None)
    return wake(bench, woken)


def test_a_held_pull_is_answered_by_the_message_it_waits_for(bench):
    bench.topic("T")
    hold(bench)
    (reply,) = arrive(bench)
    assert reply.code == 0
    assert [record.body for record in iter_records(reply.body)] == [b"new"]
    assert len(bench.state.long_polls) == 0


def test_pulls_of_one_peer_that_wake_together_leave_as_one_write(bench):
    bench.topic("T")
    hold(bench)
    hold(bench)
    assert len(arrive(bench)) == 2
    assert bench.connection.flushes == 1


def test_a_held_pull_is_not_woken_by_messages_of_other_tags(bench):
    bench.topic("T")
    hold(bench, subscription="a")
    assert arrive(bench, "b") == []
    (reply,) = arrive(bench, "a")
    assert len(list(iter_records(reply.body))) == 1
    assert bounds(reply) == (2, 0, 2)


def test_a_held_pull_is_answered_empty_at_its_deadline(bench):
    bench.topic("T")
    bench.send("T")
    hold(bench, queue_offset=1)
    bench.clock.advance(2.9)
    assert bench.state.long_polls.expired(bench.clock.monotonic()) == []
    bench.clock.advance(0.4)
    (reply,) = wake(bench, bench.state.long_polls.expired(bench.clock.monotonic()))
    assert (reply.code, reply.remark) == (19, "OFFSET_OVERFLOW_ONE")
    assert bounds(reply) == (1, 0, 1)


def test_a_pull_whose_filter_matches_nothing_gets_its_next_offset(bench):
    bench.topic("T")
    hold(bench, subscription="a")
    arrive(bench, "b")
    bench.clock.advance(4)
    (reply,) = wake(bench, bench.state.long_polls.expired(bench.clock.monotonic()))
    assert reply.code == 20
    assert bounds(reply) == (1, 0, 1)


def test_short_polling_waits_its_own_time(make_bench):
    bench = make_bench(long_polling_enable=False, short_polling_time_ms=500)
    bench.topic("T")
    hold(bench, suspend_timeout_millis=60_000)
    bench.clock.advance(0.8)
    assert len(bench.state.long_polls.expired(bench.clock.monotonic())) == 1


def test_no_pull_waits_for_more_than_five_minutes(bench):
    bench.topic("T")
    hold(bench, suspend_timeout_millis=2**62)
    bench.clock.advance(300.2)
    assert len(bench.state.long_polls.expired(bench.clock.monotonic())) == 1


def test_a_pull_that_may_not_be_held_is_answered_at_once(bench):
    bench.topic("T")
    assert pull(bench, suspend_timeout_millis=3000).code == 19


def test_a_pull_at_a_wrong_offset_is_not_held(bench):
    bench.topic("T")
    assert pull(bench, sys_flag=4 | 2, queue_offset=5, suspend_timeout_millis=3000).code == 21


def test_more_parked_pulls_than_allowed_are_answered_at_once(make_bench):
    bench = make_bench(max_parked_pulls=1)
    bench.topic("T")
    hold(bench)
    assert pull(bench, sys_flag=4 | 2, suspend_timeout_millis=3000).code == 19


def test_a_parked_pull_keeps_little_memory(bench):
    bench.topic("T")
    command = pull_command("T", sys_flag=6, suspend_timeout_millis=3000, bname="b" * 100_000)
    command.pairs = (("junk", "x" * 100_000),)
    assert bench.ask(command) is None
    (parked,) = bench.state.long_polls.drain()
    assert parked.request.command.pairs is None
    assert parked.request.header.bname is None


def test_a_broker_that_stops_holds_no_pull(bench):
    bench.topic("T")
    bench.state.stopping = True
    assert pull(bench, sys_flag=4 | 2, suspend_timeout_millis=3000).code == 19


def test_a_woken_pull_commits_nothing(bench):
    bench.topic("T")
    hold(bench, sys_flag=4 | 2 | 1, commit_offset=4)
    bench.state.offsets.commit("g", "T", 0, 9)
    arrive(bench)
    assert bench.state.offsets.query("g", "T", 0) == 9


def test_a_woken_pull_is_checked_again(bench):
    bench.topic("T")
    hold(bench)
    parked = bench.state.long_polls.drain()
    bench.state.topics.delete("T", 1)
    (reply,) = wake(bench, parked)
    assert reply.code == 17


def test_a_fault_in_a_woken_pull_is_answered_and_does_not_reach_the_others(bench):
    bench.topic("T")
    hold(bench)
    hold(bench)
    parked = bench.state.long_polls.drain()
    parked[0].request.header = None
    first, second = wake(bench, parked)
    assert (first.code, second.code) == (1, 19)


def test_pulls_of_a_closed_connection_are_not_run(bench):
    bench.topic("T")
    hold(bench)
    parked = bench.state.long_polls.drain()
    bench.connection.closed = True
    assert wake(bench, parked) == []


def test_a_closed_connection_removes_its_parked_pulls(bench):
    bench.topic("T")
    hold(bench)
    other = FakeConnection(6666)
    assert bench.ask(pull_command("T", sys_flag=6, suspend_timeout_millis=9), other) is None
    bench.processors.clients.closed(bench.connection)
    assert len(bench.state.long_polls) == 1
