"""The demo's group: what its journal proves, and its output in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.flights import Flight, Sum, differences, flights
from examples.demo.journal import Journal, JournalWriter
from examples.demo.stage import NOBODY, Lines, Row, stage

FLIGHTS = list(flights(40))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    yield journal
    journal.close()


def sum_of(sent: list[Flight]) -> Sum:
    total = Sum()
    for flight in sent:
        total.add(flight.destination, flight.line)
    return total


def test_what_several_members_wrote_is_read_in_the_order_in_which_they_did(
    path: Path, journal: Journal
) -> None:
    writers = [JournalWriter(path), JournalWriter(path), JournalWriter(path)]
    for offset, flight in enumerate(FLIGHTS):
        writers[offset % 3].write(1, offset, flight.line)
    assert journal.read() == len(FLIGHTS)
    assert differences(sum_of(FLIGHTS), journal.handled) == []
    assert journal.duplicates == 0


def test_what_was_handled_again_is_counted_and_changes_nothing(
    path: Path, journal: Journal
) -> None:
    writer = JournalWriter(path)
    for offset, flight in [*enumerate(FLIGHTS), *enumerate(FLIGHTS[:5])]:
        writer.write(0, offset, flight.line)
    assert journal.read() == len(FLIGHTS)
    assert journal.duplicates == 5
    assert differences(sum_of(FLIGHTS), journal.handled) == []


def test_the_same_offset_of_another_queue_is_another_message(path: Path, journal: Journal) -> None:
    writer = JournalWriter(path)
    writer.write(0, 7, FLIGHTS[0].line)
    writer.write(1, 7, FLIGHTS[0].line)
    assert (journal.read(), journal.duplicates) == (2, 0)


def test_a_line_that_is_still_being_written_is_read_when_it_is_complete(
    path: Path, journal: Journal
) -> None:
    line = b"0 0 " + FLIGHTS[0].line + b"\n"
    path.write_bytes(line[:30])
    assert journal.read() == 0
    path.write_bytes(line)
    assert journal.read() == 1
    assert differences(sum_of(FLIGHTS[:1]), journal.handled) == []


def test_flights_in_another_order_are_found(path: Path, journal: Journal) -> None:
    writer = JournalWriter(path)
    same = [flight for flight in FLIGHTS if flight.destination == FLIGHTS[0].destination]
    for offset, flight in enumerate(reversed(same)):
        writer.write(0, offset, flight.line)
    journal.read()
    assert "the order differs for 1 destinations" in differences(sum_of(same), journal.handled)[0]


def test_in_a_pipe_a_group_is_a_line_when_its_owners_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = Lines()
    lines.show("billing", [Row(0, "member 1", 10, 3), Row(1, NOBODY, 10, 10)])
    lines.show("billing", [Row(0, "member 1", 10, 2), Row(1, NOBODY, 10, 10)])
    lines.show("billing", [Row(0, "member 1", 10, 1), Row(1, "member 2", 10, 9)])
    assert capsys.readouterr().out.splitlines() == [
        "billing\tqueue 0 member 1 lag 3, queue 1 nobody lag 10",
        "billing\tqueue 0 member 1 lag 1, queue 1 member 2 lag 9",
    ]


def test_what_happens_is_a_line_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with stage(silent=False) as shown:
        shown.tell("member 5 is idle")
    assert capsys.readouterr().out == "0.0 s\tmember 5 is idle\n"


def test_nothing_is_shown_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    with stage(silent=True) as shown:
        shown.tell("member 5 is idle")
        shown.show("billing", [Row(0, "member 1", 10, 3)])
    assert capsys.readouterr().out == ""
