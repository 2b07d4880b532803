"""Clock, errors, addresses, warnings, event loop."""

from __future__ import annotations

import asyncio
import builtins
import pickle
import time
from typing import Any

import pytest

from remoting import errors
from remoting.addresses import address_text, network_of, parse_address
from remoting.pool import ConnectionPool
from remoting.runtime import tasks as loop
from remoting.runtime.clock import SystemClock
from remoting.runtime.log import MAX_PER_SECOND, Log, RateLimitedLog
from tests.support.clock import ManualClock


def test_the_system_clock_returns_the_time() -> None:
    clock = SystemClock()
    assert abs(clock.now_ms() - time.time() * 1000) < 60_000
    assert clock.monotonic() <= clock.monotonic()


def test_a_manual_clock_advances_both_times_and_only_forward() -> None:
    clock = ManualClock(now_ms=5000, monotonic=7)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (6500, 8.5)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


@pytest.mark.parametrize(
    "error",
    [
        errors.ConnectFailed("h:1", "Connection refused"),
        errors.ConnectFailed("h:1", "Connection refused", "look again"),
        errors.ConnectionLost("h:1", "closed by the peer"),
        errors.AnswerTimeout("h:1", 10, 2.5),
        errors.TooManyRequests("h:1", "requests", 65535),
        errors.BindFailed("h:1", 98, "Address already in use", "choose another"),
    ],
)
def test_an_error_names_the_peer_and_survives_pickling(error: errors.RemotingError) -> None:
    assert "h:1" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("broker-a.example:0", ("broker-a.example", 0)),
        ("[::1]:10911", ("::1", 10911)),
    ],
)
def test_an_address_has_two_parts(text: str, parts: tuple[str, int]) -> None:
    assert parse_address(text) == parts
    assert address_text(parts) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":9876", "host:", "host:x", "host:65536", "h:-1", "h:" + "1" * 5000]
)
def test_an_invalid_address_is_refused_with_a_message(text: str) -> None:
    with pytest.raises(errors.ConnectFailed, match="this is not host:port"):
        parse_address(text)


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64, "a\0b", "\ud800"])
async def test_a_name_that_no_host_can_have_is_a_failure_to_connect(host: str) -> None:
    async with ConnectionPool() as pool:
        with pytest.raises(errors.ConnectFailed, match="no host can have this name"):
            await pool.get(f"{host}:10911")


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
    ],
)
def test_an_ipv6_network_of_64_bits_counts_as_one_address(host: str, network: str) -> None:
    assert network_of(host) == network


def test_warnings_are_bounded_and_count_suppressed_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock(monotonic=10)
    warnings = RateLimitedLog(clock)
    written = [warnings.write("dropped", remote="p") for _ in range(MAX_PER_SECOND + 5)]
    clock.advance(1)
    warnings.write("dropped", remote="p")
    assert written.count(True) == MAX_PER_SECOND
    assert len(caplog.messages) == MAX_PER_SECOND + 1
    assert caplog.messages[0] == "dropped: remote=p unreported=0"
    assert caplog.messages[-1] == "dropped: remote=p unreported=5"


def test_a_rate_limited_log_counts_suppressed_lines_per_interval() -> None:
    clock, lines = ManualClock(), list[Any]()

    def log(event: str, **facts: Any) -> None:
        lines.append((event, facts["unreported"]))

    limited = RateLimitedLog(clock, log, interval=10.0, burst=2)
    for seconds in (0, 1, 1, 7, 1, 1, 1, 10):
        clock.advance(seconds)
        limited.write("again")
    assert lines == [("again", unreported) for unreported in (0, 0, 2, 0, 1)]


def test_a_log_line_keeps_its_fields_for_structured_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", logger="pocketmq.part")
    log = Log("part")
    log.debug("plain")
    log.info("structured", topic="orders", queue=3)
    log.error("failed", exc_info=ValueError("why"))
    plain, structured, failed = caplog.records
    assert (plain.getMessage(), plain.name) == ("plain", "pocketmq.part")
    assert (structured.event, structured.facts) == ("structured", {"topic": "orders", "queue": 3})
    assert failed.exc_info is not None


def test_a_disabled_log_line_is_not_formatted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", logger="pocketmq.part")
    Log("part").warning("unseen")
    assert caplog.records == []


def test_the_loop_runs_a_coroutine_to_its_result() -> None:
    async def main() -> int:
        await asyncio.sleep(0)
        return 7

    assert loop.run(main()) == 7


def test_without_uvloop_the_loop_is_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = builtins.__import__

    def without_uvloop(name: str, *args: Any, **settings: Any) -> Any:
        if name == "uvloop":
            raise ImportError(name)
        return ordinary(name, *args, **settings)

    monkeypatch.setattr(builtins, "__import__", without_uvloop)
    made = loop.new_event_loop()
    made.close()
    assert type(made).__module__.startswith("asyncio")
