"""The Python load generator, the tables and the stalls."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks import growth_chart
from benchmarks.cold import longest_stall_ms, summary
from benchmarks.growth import frames_for, table
from benchmarks.pump import Figures, pull_frame, send_frame
from remoting.protocol import frame
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.pull import PullMessageRequestHeader


def test_frames_spread_over_topics_of_four_queues():
    fields = []
    for data in frames_for(6, size=10):
        cut = frame.cut(data)
        assert cut is not None
        command = frame.decode(cut)
        assert command.code == RequestCode.SEND_MESSAGE_V2
        assert len(command.body) == 10
        fields.append((command.fields["b"], command.fields["e"]))
    assert fields[3:5] == [("growth-0", "3"), ("growth-1", "0")]


def test_a_pull_is_parked_only_if_it_says_for_how_long():
    for wait_s, sys_flag in ((0, 4), (7, 6)):
        cut = frame.cut(pull_frame("t", 1, 5, wait_s=wait_s))
        assert cut is not None
        header = frame.decode(cut).read(PullMessageRequestHeader)
        assert (header.sys_flag, header.suspend_timeout_millis) == (sys_flag, 1000 * wait_s)


def test_frames_can_be_cut():
    assert frame.cut(send_frame("t", 0, 1 << 20, queues=4)) is not None


def test_figures_are_per_second_and_in_milliseconds():
    figures = Figures(2.0, [0.001] * 99 + [0.1], 0.01).as_json()
    assert (figures["requests"], figures["per_s"], figures["p50_ms"]) == (100, 50.0, 1.0)
    assert figures["p99_ms"] > 50
    assert figures["cpu_us_per"] == 100.0
    assert Figures(2.0, [], 0.01).as_json()["per_s"] == 0


def test_the_longest_stall_is_the_bound_of_the_last_bucket_that_grew():
    before = {0.001: 10.0, 0.01: 10.0, 0.1: 12.0, 5.0: 12.0}
    assert longest_stall_ms(before, {0.001: 20.0, 0.01: 21.0, 0.1: 23.0, 5.0: 23.0}) == 10.0
    assert longest_stall_ms(before, {0.001: 20.0, 0.01: 20.0, 0.1: 23.0, 5.0: 23.0}) == 100.0
    assert longest_stall_ms(before, before) == 1.0


def test_a_phase_is_summed_up():
    assert summary([0.001] * 1000)["p99_ms"] == 1.0


def test_a_table_has_a_column_for_each_figure():
    text = table("queues", [{"queues": 1, "per_s": 10.5}, {"queues": 10_000, "per_s": 9.0}])
    assert text.splitlines() == ["queues  per_s", "     1   10.5", "10,000    9.0"]


def test_a_chart_has_a_bar_for_each_row_and_the_highest_fills_its_plot():
    rows = [
        {"size": 16, "mb_per_s": 2.5, "p99_ms": 1.0},
        {"size": 1 << 20, "mb_per_s": 5.0, "p99_ms": 9.0},
    ]
    chart = ElementTree.fromstring(growth_chart.svg({"size": rows}, "a <machine>"))
    bars = chart.findall("{*}rect")[1:]
    assert [float(bar.get("height", "")) for bar in bars] == [55.0, 110.0]
    assert "1.05M" in {text.text for text in chart.findall("{*}text")}
