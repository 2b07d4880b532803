"""The queue owners under AVG, compared with Java's, and findings over time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.health import (
    ANCHORS,
    EVENT_LIFE_MS,
    STATES,
    TITLES,
    GroupIssues,
    make,
    owner_by_average,
)
from remoting.protocol.bodies.description import FindingKind
from remoting.protocol.queue import MessageQueue
from tests.support.clock import ManualClock

ALLOCATIONS = Path(__file__).parents[3] / "golden" / "allocations.json"


def test_every_kind_has_a_title_and_a_section_in_the_docs():
    assert ANCHORS.keys() == TITLES.keys() == set(FindingKind)
    page = (Path(__file__).parents[4] / "docs" / "consumer-groups.md").read_text()
    assert [anchor for anchor in ANCHORS.values() if f'<a id="{anchor}">' not in page] == []


@given(st.integers(1, 12), st.integers(1, 12))
def test_every_queue_has_one_owner_and_shares_differ_by_one(queue_count, member_count):
    queues = [MessageQueue("T", "broker-a", number) for number in range(queue_count)]
    members = [f"c{number:02}" for number in range(member_count)]
    owners = [owner_by_average(queue, queues, members) for queue in queues]
    assert owners == sorted(owners)
    shares = [owners.count(member) for member in members]
    assert sum(shares) == queue_count
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)


def test_an_unknown_member_owns_nothing():
    queue = MessageQueue("T", "broker-a", 0)
    assert owner_by_average(queue, [], ["a"]) is None
    assert owner_by_average(queue, [queue], []) is None


def finding(kind=FindingKind.UNPULLED_QUEUE, queue_id=0):
    return make(kind, "text", topic="T", queue_id=queue_id)


def test_a_problem_that_is_no_longer_found_is_removed():
    clock = ManualClock(now_ms=1000)
    findings = GroupIssues(clock)
    assert findings.update("g", STATES, [finding()])
    assert [one.since_ms for one in findings.of("g")] == [1000]
    clock.advance(1)
    assert not findings.update("g", STATES, [finding()])
    assert [one.since_ms for one in findings.of("g")] == [1000]
    assert list(findings.counts()) == [("g", "unpulledQueue", 1, 1000)]
    findings.update("g", STATES, [])
    assert findings.of("g") == []
    assert findings.groups() == []
    assert findings.begun == {"unpulledQueue": 1}


def test_problems_of_other_kinds_stay():
    clock = ManualClock(now_ms=1000)
    findings = GroupIssues(clock)
    findings.update("g", STATES, [finding()])
    findings.update("g", {FindingKind.CLIENT_ID}, [])
    assert len(findings) == 1


def test_an_event_stays_for_ten_minutes():
    clock = ManualClock(now_ms=1000)
    findings = GroupIssues(clock)
    event = finding(FindingKind.OFFSET_BACKWARDS)
    assert findings.event("g", event)
    findings.update("g", STATES, [])
    clock.jump(24 * 3_600_000)
    clock.advance(EVENT_LIFE_MS / 1000)
    findings.sweep("g")
    assert len(findings) == 1
    clock.jump(-48 * 3_600_000)
    clock.advance(0.001)
    findings.sweep("g")
    assert len(findings) == 0


def test_findings_have_a_limit():
    findings = GroupIssues(ManualClock(), limit=2)
    worth = findings.update("g", STATES, [finding(queue_id=number) for number in range(3)])
    assert len(worth) == len(findings) == 2
    findings.update("g", STATES, [])
    assert len(findings) == 0


def average_cases() -> list[dict]:
    cases = json.loads(ALLOCATIONS.read_text())["cases"]
    return [case for case in cases if case["strategy"] == "AVG" and "allocation" in case]


@pytest.mark.parametrize("case", average_cases())
def test_owners_are_those_that_java_computed(case):
    queues = [MessageQueue(*queue) for queue in case["queues"]]
    for member, owned in case["allocation"].items():
        for queue in owned:
            assert owner_by_average(MessageQueue(*queue), queues, case["consumers"]) == member
