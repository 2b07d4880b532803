"""Rates of a broker's operations."""

from __future__ import annotations

from broker.sampler import Rates, Totals


def test_rates_are_blank_before_there_are_samples():
    rates = Rates()
    assert rates.per_second("put") == "  "
    rates.sample(0.0, 1, Totals())
    assert rates.per_second("put") == "  "


def test_rates_are_over_10_60_and_600_seconds():
    rates = Rates()
    for number in range(61):
        rates.sample(number * 10.0, 1, Totals(put=number * (20 if number > 54 else 10)))
    ten, minute, ten_minutes = rates.per_second("put").split(" ")
    assert float(ten) == 2.0
    assert float(minute) == (60 * 20 - 54 * 10) / 60
    assert float(ten_minutes) == 2.0


def test_a_new_day_updates_the_daily_totals():
    rates = Rates()
    rates.sample(0.0, 1, Totals(put=5))
    assert rates.days == (Totals(), Totals())
    rates.sample(10.0, 2, Totals(put=9))
    assert rates.days == (Totals(), Totals(put=9))
    rates.sample(20.0, 3, Totals(put=12))
    assert rates.days == (Totals(put=9), Totals(put=12))
