"""The fast and the slow path have the same results for any input and any split."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.traffic.quotas import NO_LIMITS, QuotaRates
from remoting.protocol import accelerated
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.codecs import json as json_codec
from remoting.protocol.errors import FrameError
from tests.support.sizes import size
from tests.unit.broker.fast_path import requests
from tests.unit.broker.fast_path.paths import Side
from tests.unit.broker.store.stores import FailingFiles


@contextmanager
def both(root: Path, **options: Any) -> Iterator[tuple[Side, Side]]:
    """Create two equal brokers, one for the slow path and one for the fast path."""
    base = Path(tempfile.mkdtemp(dir=root))
    with ExitStack() as stack:
        sides = []
        for name in ("general", "fastway"):
            files = FailingFiles()
            side = Side(base / name, fast=name == "fastway", files=files, **options)
            side.files = files
            stack.callback(side.bench.close)
            furnish(side)
            sides.append(side)
        yield sides[0], sides[1]
        for side in sides:
            side.files.full = False
    shutil.rmtree(base)


@pytest.fixture
def without_orjson(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Use the codec as it is without orjson."""
    monkeypatch.setattr(json_codec, "json_loads", accelerated._plain_loads)
    monkeypatch.setattr(json_codec, "json_dumps", accelerated._plain_dumps)
    return monkeypatch


def furnish(side: Side) -> None:
    bench = side.bench
    bench.topic("plain", 4)
    bench.topic("wide", 8)
    bench.topic("other", 1)
    bench.topic("multi", 4, topic_filter_type="MULTI_TAG")
    bench.topic("ordered", 4, order=True)
    bench.topic("closed", 4, perm=2)
    bench.state.groups.put(SubscriptionGroupConfig(group_name="off", consume_enable=False), 1)
    bench.subscribe("g", "plain", "A", version=1)
    for queue in range(4):
        bench.send("plain", queue_id=queue)
        bench.send("wide", queue_id=queue)


def feed_both(sides: tuple[Side, Side], chunks: Sequence[bytes], stops: list[bool]) -> bool:
    """Feed chunks to both; return whether the connection stays open."""
    may_go_on = iter(stops)
    for chunk in chunks:
        failures = []
        for side in sides:
            try:
                side.feed(chunk, lambda: next(may_go_on, True))
            except FrameError as error:
                failures.append(str(error))
        assert len(failures) in {0, 2}
        if failures:
            assert failures[0] == failures[1]
            return False
    return True


def assert_same(sides: tuple[Side, Side]) -> None:
    general, hot = (side.left() for side in sides)
    for name, value in general.items():
        assert hot[name] == value, name


KINDS = {
    "sends": (requests.sends,),
    "batches": (requests.batches, requests.sends),
    "pulls": (requests.pulls, requests.sends),
    "series": (requests.series,),
    "everything": (
        requests.sends,
        requests.series,
        requests.batches,
        requests.pulls,
        requests.commits,
        requests.cold,
    ),
}


exhaustive = settings(
    max_examples=size(test=5, ci=15, soak=4000),  # in all, of some 30 frames each: 10^6
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


@pytest.mark.parametrize("kinds", KINDS)
@exhaustive
@given(data=st.data())
def test_both_paths_leave_the_same_behind(tmp_path: Path, kinds: str, data: st.DataObject) -> None:
    chunks = data.draw(requests.conversations(*KINDS[kinds]))
    stops = data.draw(st.lists(st.booleans(), max_size=6))
    with both(tmp_path) as sides:
        feed_both(sides, chunks, stops)
        assert_same(sides)


@exhaustive
@given(data=st.data())
def test_both_paths_leave_the_same_behind_without_orjson(
    tmp_path: Path, data: st.DataObject, without_orjson: pytest.MonkeyPatch
) -> None:
    chunks = data.draw(requests.conversations(*KINDS["everything"]))
    with both(tmp_path) as sides:
        feed_both(sides, chunks, [])
        assert_same(sides)


@pytest.mark.parametrize("rates", [NO_LIMITS, QuotaRates(20, {"everything": 40})])
@exhaustive
@given(data=st.data())
def test_both_paths_check_the_same_signatures_rights_and_quotas(
    tmp_path: Path, rates: QuotaRates, data: st.DataObject
) -> None:
    chunks = data.draw(requests.conversations(*KINDS["everything"], signers=requests.SIGNERS))
    with both(tmp_path, rules=requests.RULES, max_account_messages_per_second=rates) as sides:
        feed_both(sides, chunks, [])
        assert_same(sides)


@exhaustive
@given(data=st.data())
def test_a_disk_that_is_full_for_a_while_refuses_the_same(
    tmp_path: Path, data: st.DataObject
) -> None:
    with both(tmp_path) as sides:
        for full in (False, True, True, False):
            where = data.draw(st.sampled_from(["", "commitlog", "consumequeue"]))
            seconds = data.draw(st.sampled_from([0.0, 2.0]))
            for side in sides:
                side.files.full, side.files.full_for = full, where
                side.bench.clock.advance(seconds)
            if not feed_both(sides, data.draw(requests.conversations(*KINDS["batches"])), []):
                break
        assert_same(sides)


@exhaustive
@given(data=st.data())
async def test_both_paths_leave_the_same_behind_in_sync_mode(
    tmp_path: Path, data: st.DataObject
) -> None:
    chunks = data.draw(requests.conversations(*KINDS["batches"]))
    with both(tmp_path, flush_disk_type="SYNC_FLUSH") as sides:
        feed_both(sides, chunks, [])
        for side in sides:
            await side.durable()
        assert_same(sides)


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@exhaustive
@given(data=st.data())
async def test_both_paths_leave_the_same_behind_on_a_nearly_full_disk(
    tmp_path: Path, mode: str, data: st.DataObject
) -> None:
    with both(tmp_path, flush_disk_type=mode) as sides:
        for full in (False, True, False):
            for side in sides:
                side.files.full = full
                side.bench.clock.advance(2.0)
            if not feed_both(sides, data.draw(requests.conversations(requests.series)), []):
                break
        for side in sides:
            await side.durable()
        assert_same(sides)
