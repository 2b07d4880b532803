"""The Python load generator."""

from __future__ import annotations

from benchmarks.pump import Figures, pull_frame, send_frame
from remoting.protocol import frame
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.pull import PullMessageRequestHeader


def test_a_pull_is_never_parked() -> None:
    cut = frame.cut(pull_frame("t", 1, 5, count=32))
    assert cut is not None
    header = frame.decode(cut).read(PullMessageRequestHeader)
    assert (header.sys_flag, header.suspend_timeout_millis) == (4, 0)
    assert (header.queue_id, header.queue_offset, header.max_msg_nums) == (1, 5, 32)


def test_a_large_send_is_one_frame() -> None:
    cut = frame.cut(send_frame("t", 0, 1 << 20, queues=4))
    assert cut is not None
    command = frame.decode(cut)
    assert (command.code, len(command.body)) == (RequestCode.SEND_MESSAGE_V2, 1 << 20)


def test_figures_are_per_second_and_in_milliseconds() -> None:
    figures = Figures(2.0, [0.001] * 99 + [0.1], 0.01).as_json()
    assert (figures["requests"], figures["per_s"], figures["p50_ms"]) == (100, 50.0, 1.0)
    assert figures["p99_ms"] > 50
    assert figures["cpu_us_per"] == 100.0
    assert Figures(2.0, [], 0.01).as_json()["per_s"] == 0
