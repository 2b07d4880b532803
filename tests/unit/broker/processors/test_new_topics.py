"""The rate at which one connection creates topics by sending, with a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from broker.limits import LIMITS
from remoting.protocol.command import Command
from tests.support.virtual_time import virtual
from tests.unit.broker.harness import Bench, FakeConnection, send_command
from tests.unit.broker.processors.sends import stored

AT_ONCE = LIMITS.new_topics_per_second + 1
WAITING = int(LIMITS.new_topics_per_second * LIMITS.new_topic_wait_seconds)


def send(bench: Bench, topic: str, body: bytes = b"x", **fields) -> Command | asyncio.Future:
    """Send; return the answer, or its future if the send has to wait."""
    answer = bench.dispatch(send_command(topic, body, **fields), bench.connection)
    assert answer is not None
    return asyncio.ensure_future(answer) if isinstance(answer, Awaitable) else answer


def use_up(bench: Bench) -> None:
    """Create all topics that may be created at once."""
    for n in range(AT_ONCE):
        assert bench.send(f"at-once-{n}").code == 0


@virtual
async def test_the_topics_of_one_second_are_created_at_once_and_others_at_the_limited_rate(bench):
    loop = asyncio.get_running_loop()
    use_up(bench)
    begun = loop.time()
    answers = [send(bench, f"waits-{n}") for n in range(WAITING)]
    assert "waits-0" not in bench.state.topics
    for n, answer in enumerate(answers, 1):
        assert (await answer).code == 0
        assert abs(loop.time() - begun - n / LIMITS.new_topics_per_second) < 1e-6
    assert bench.send("Existing").code == 2


@virtual
async def test_existing_topics_and_other_connections_are_not_delayed(bench):
    use_up(bench)
    waits = send(bench, "New")
    assert isinstance(waits, asyncio.Future)
    assert bench.send("at-once-0").code == 0
    assert bench.must(send_command("Other"), FakeConnection(6666)).code == 0
    assert (await waits).code == 0


@virtual
async def test_a_send_that_would_wait_too_long_is_answered_busy_at_once(bench):
    use_up(bench)
    answers = [send(bench, f"waits-{n}") for n in range(WAITING)]
    reply = bench.send("TooLate")
    assert reply.code == 2
    assert "100 topics a second" in reply.remark
    assert "TooLate" not in bench.state.topics
    bench.clock.advance(10)
    assert bench.send("Later").code == 0
    await asyncio.gather(*answers)


@virtual
async def test_sends_to_the_same_new_topic_wait_together_and_keep_their_order(bench):
    use_up(bench)
    bodies = [b"%d" % n for n in range(20)]
    answers = [send(bench, "New", body) for body in bodies]
    another = send(bench, "Another")
    assert {answer.code for answer in await asyncio.gather(*answers)} == {0}
    assert [bytes(record.stored_body) for record in stored(bench, "New")] == bodies
    assert not another.done()
    assert (await another).code == 0


@virtual
async def test_waiting_sends_are_bounded_in_number_and_bytes(bench):
    use_up(bench)
    many = [send(bench, "Many") for _ in range(2)]
    await asyncio.sleep(0)
    many += [send(bench, "Many") for _ in range(LIMITS.waiting_new_topics - 2)]
    await asyncio.sleep(0)
    assert bench.send("Many").code == 2
    await asyncio.gather(*many)
    large = [send(bench, "Large", bytes(LIMITS.waiting_new_topic_bytes // 64)) for _ in range(64)]
    await asyncio.sleep(0)
    assert bench.send("Large").code == 2
    assert {answer.code for answer in await asyncio.gather(*large)} == {0}


@virtual
async def test_sends_that_create_no_topic_do_not_wait(make_bench):
    bench = make_bench(auto_create_topic_enable=False)
    assert {bench.send(f"t-{n}").code for n in range(2 * AT_ONCE)} == {17}
