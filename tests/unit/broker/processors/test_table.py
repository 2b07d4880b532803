"""The dispatcher: whatever a handler does, the request is answered by the protocol."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.errors import LimitReached, RequestRefused
from broker.processors.table import RequestDispatcher
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, HeaderError
from remoting.protocol.own_codes import OwnRequestCode
from tests.unit.broker.harness import answer_of


def with_handler(bench, handler) -> None:
    bench.dispatch = RequestDispatcher(bench.state, {7: handler})


def raising(error: Exception):
    def handler(_command, _connection):
        raise error

    return handler


def raising_later(error: Exception):
    async def handler(_command, _connection):
        raise error

    return handler


FAILURES = [
    (RequestRefused(17, "no such topic"), 17, "no such topic"),
    (HeaderError("the field topic is missing"), 1, "the field topic is missing"),
    (BodyError("not JSON"), 1, "not JSON"),
    (LimitReached("too many"), 1, "too many"),
    (RuntimeError("secret path"), 1, "the broker failed to serve request 7: RuntimeError; "),
]


@pytest.mark.parametrize(("error", "code", "remark"), FAILURES)
async def test_failing_requests_are_answered(bench, error, code, remark):
    for handler in (raising(error), raising_later(error)):
        with_handler(bench, handler)
        reply = await answer_of(bench, Command(7))
        assert reply.code == code
        assert reply.remark.startswith(remark)
        assert "secret" not in reply.remark


@pytest.mark.parametrize("handler", [raising, raising_later])
async def test_failing_oneway_requests_are_not_answered(bench, handler):
    with_handler(bench, handler(RuntimeError("boom")))
    assert await answer_of(bench, Command(7, flag=2)) is None


async def test_answers_to_oneway_requests_are_dropped(bench):
    async def later(command, _connection):
        return command.reply()

    for handler in (lambda command, _connection: command.reply(), later):
        with_handler(bench, handler)
        assert await answer_of(bench, Command(7, flag=2)) is None
        assert (await answer_of(bench, Command(7))).code == 0


async def test_internal_errors_are_logged_at_a_limited_rate(bench):
    with_handler(bench, raising(RuntimeError("boom")))
    with capture_logs() as logs:
        for _ in range(5):
            bench.ask(Command(7))
        bench.clock.advance(2)
        bench.ask(Command(7))
    assert [entry["unreported"] for entry in logs] == [0, 4]


async def test_a_cancelled_request_is_cancelled(bench):
    async def never(_command, _connection):
        await asyncio.Event().wait()

    with_handler(bench, never)
    task = asyncio.ensure_future(bench.dispatch(Command(7), bench.connection))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_unsupported_requests_are_counted(bench):
    bench.ask(Command(9999))
    assert bench.state.counters.requests_not_supported == 1


SERVED = """
    10 310 320 36 11 361 34 35 38 46 14 15 29 30 31 32 43 41 42 17 18 215 21 351 305 200 225 201
    352 207 203 204 328 300 343 345 353 308 25 26 28 202 208 315 317 907 45 307 309 223 222 314 306
    316 329 12 33 303 321 37 323 370 60 402 324 325 20010 20011 20012 20020
"""


def test_exactly_these_requests_are_served(bench):
    assert bench.table.keys() == {int(code) for code in SERVED.split()}
    assert all(isinstance(code, (RequestCode, OwnRequestCode)) for code in bench.table)


def test_the_protocol_notes_list_requests_that_are_served(bench):
    page = Path("docs/protocol.md").read_text().partition("## Served requests")[2]
    rows = re.findall(r"^\| (\d+) \| (\w+) \|$", page.partition("\n## ")[0], re.MULTILINE)
    assert {int(code): name for code, name in rows}.items() <= {
        code: code.name for code in bench.table
    }.items()
    assert len(rows) >= 60
