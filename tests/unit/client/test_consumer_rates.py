"""The rates and times that a push consumer reports of a topic."""

from __future__ import annotations

from client.consumer.rates import SAMPLE_PERIOD, ConsumerRates
from remoting.protocol.bodies.clients import ConsumeStatus
from tests.support.clock import ManualClock


def test_figures_are_of_the_time_since_the_start() -> None:
    clock = ManualClock()
    rates = ConsumerRates(clock.monotonic)
    counts = rates.of("T")
    clock.advance(4.0)
    counts.pulls, counts.pull_time, counts.pulled = 2, 0.5, 40
    counts.done, counts.failed, counts.handling_time = 30, 10, 2.0
    assert rates.by_topic() == {
        "T": ConsumeStatus(
            pull_rt=250.0,
            pull_tps=10.0,
            consume_rt=50.0,
            consume_ok_tps=7.5,
            consume_failed_tps=2.5,
            consume_failed_msgs=10,
        )
    }
    assert rates.of("T") is counts


def test_a_topic_without_messages_has_zeros() -> None:
    rates = ConsumerRates(ManualClock().monotonic)
    rates.of("T")
    assert rates.by_topic() == {"T": ConsumeStatus()}


def test_rates_are_of_the_last_minute_and_failures_of_the_last_hour() -> None:
    clock = ManualClock()
    rates = ConsumerRates(clock.monotonic)

    def pass_by(seconds: float) -> None:
        for _ in range(round(seconds / SAMPLE_PERIOD)):
            clock.advance(SAMPLE_PERIOD)
            rates.sample()

    rates.of("T").failed = 60
    pass_by(40)
    assert rates.by_topic()["T"].consume_failed_tps == 1.5
    pass_by(30)
    now = rates.by_topic()["T"]
    assert (now.consume_failed_tps, now.consume_failed_msgs) == (0.0, 60)
    pass_by(3000 - 70)
    assert rates.by_topic()["T"].consume_failed_msgs == 60
    pass_by(1200)
    assert rates.by_topic()["T"].consume_failed_msgs == 0
