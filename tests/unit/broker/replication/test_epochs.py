"""The epochs of a log, their file, and where two logs part."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.epochs import EpochFileError, EpochList

OF_5_3_3 = "3\n316474396\n1-0\n2-21834\n7-152244\n"
"""Written by EpochFileCache of 5.3.3."""

EPOCHS = EpochList([(1, 0), (2, 100), (7, 300)])


def test_the_file_is_that_of_5_3_3() -> None:
    epochs = EpochList([(1, 0), (2, 21834), (7, 152244)])
    assert EpochList.decode(OF_5_3_3) == epochs
    assert epochs.encode() == OF_5_3_3


@pytest.mark.parametrize(
    "text", ["2\r\n0\r\n1-0\r\n2-100\r\n", "2\n0\n1-0\n2-100", " 2\n0\n\n1-0\n2-100\n\n"]
)
def test_a_file_is_read_with_whatever_line_ends_and_without_a_checksum(text: str) -> None:
    assert EpochList.decode(text) == EpochList([(1, 0), (2, 100)])


def test_a_file_written_under_windows_has_its_own_checksum() -> None:
    # CRC-32 of "1-0\r\n2-100\r\n", 31 bits.
    assert len(EpochList.decode("2\r\n681164468\r\n1-0\r\n2-100\r\n")) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "damaged"),
        ("3", "damaged"),
        ("3\n316474396\n1-0\n2-21834\n", "should have 3 epochs, not 2"),
        ("3\n316474397\n1-0\n2-21834\n7-152244\n", "checksum"),
        ("3\n316474396\n1-0\n2-21834\n7-15224", "checksum"),
        ("2\n0\n1-0\nx\n", "damaged"),
        ("x\n0\n1-0\n", "damaged"),
        ("1\n0\n1-0-0\n", "damaged"),
    ],
)
def test_a_damaged_file_is_refused(text: str, reason: str) -> None:
    with pytest.raises(EpochFileError, match=reason):
        EpochList.decode(text)


def test_an_epoch_without_a_byte_is_replaced_by_the_next_one() -> None:
    assert EPOCHS.append(8, 300) == EpochList([(1, 0), (2, 100), (8, 300)])
    assert EPOCHS.append(8, 301) == EpochList([*EPOCHS, (8, 301)])
    assert EPOCHS.append(8, 50) == EpochList([(1, 0), (8, 50)]), "and what a slave knew beyond"


def test_an_epoch_begins_once() -> None:
    for epoch in (7, 3):
        with pytest.raises(ValueError, match=f"epoch {epoch} can't begin: the log is at 7"):
            EPOCHS.append(epoch, 400)


def test_a_list_is_that_of_a_part_of_the_log() -> None:
    assert EPOCHS.cut(300) == EpochList([(1, 0), (2, 100)])
    assert EPOCHS.opened(300) == EPOCHS
    assert EPOCHS.opened(299) == EpochList([(1, 0), (2, 100)])
    assert EPOCHS.begin(99) == EPOCHS
    assert EPOCHS.begin(100) == EPOCHS.begin(299) == EpochList([(2, 100), (7, 300)])
    assert [EPOCHS.last(end) for end in (0, 99, 100, 300)] == [1, 1, 2, 7]
    assert EpochList().last(5) == -1
    assert EPOCHS.at(100) == ((2, 100), 300)
    assert EPOCHS.at(1000) == ((7, 300), None)
    with pytest.raises(ValueError, match="no epoch"):
        EpochList().at(0)


@pytest.mark.parametrize(
    ("own", "end", "other", "other_end", "point"),
    [
        ([(1, 0)], 50, [(1, 0)], 80, 50),
        ([(1, 0)], 90, [(1, 0)], 80, 80),
        ([(1, 0)], 90, [(1, 0), (2, 70)], 300, 70),
        ([(1, 0), (2, 70)], 90, [(1, 0), (3, 60)], 300, 60),
        ([(1, 0), (2, 70)], 90, [(1, 0), (2, 80)], 300, 70),
        ([(1, 0), (2, 70), (4, 500)], 90, [(1, 0), (2, 70), (4, 500)], 600, 90),
        ([(2, 70)], 90, [(1, 0), (2, 70), (3, 80)], 300, 80),
        ([(1, 0)], 90, [(2, 0)], 300, 0),
        ([(1, 0)], 90, [(5, 600)], 700, None),
    ],
)
def test_two_logs_part_at_the_end_of_their_newest_common_epoch(
    own: list[tuple[int, int]],
    end: int,
    other: list[tuple[int, int]],
    other_end: int,
    point: int | None,
) -> None:
    assert EpochList(own).common_point(end, EpochList(other), other_end) == point
    assert EpochList(other).common_point(other_end, EpochList(own), end) == point


def test_a_slave_takes_the_epochs_of_its_master_from_the_common_point_on() -> None:
    own, master = EpochList([(1, 0), (2, 70)]), EpochList([(1, 0), (3, 60), (4, 500)])
    assert own.merged(60, master) == master
    assert EpochList().merged(0, master) == master


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_both_numbers_of_a_list_rise_whatever_it_is_made_of(entries: list[tuple[int, int]]) -> None:
    epochs = EpochList(entries)
    assert all(one.epoch < two.epoch and one.start < two.start for one, two in pairwise(epochs))
    assert not entries or epochs.entries[-1] == entries[-1]
    assert EpochList.decode(epochs.encode()) == epochs


@given(st.data())
def test_logs_are_the_same_before_the_point_where_they_part(data: st.DataObject) -> None:
    """Masters of a group write in turn, each where it has got to, and copy one another."""
    logs: list[list[tuple[int, int]]] = [[], [], []]  # a byte is its epoch and its number
    lists = [EpochList()] * 3
    for epoch in range(1, data.draw(st.integers(2, 9))):
        master = data.draw(st.integers(0, 2))
        lists[master] = lists[master].append(epoch, len(logs[master]))
        for slave in data.draw(st.sets(st.integers(0, 2))) - {master}:
            point = 0
            if logs[slave]:
                common = lists[slave].common_point(
                    len(logs[slave]), lists[master], len(logs[master])
                )
                assert common is not None
                point = common
            assert logs[slave][:point] == logs[master][:point]
            del logs[slave][point:]
            lists[slave] = lists[slave].merged(point, lists[master])
            size = data.draw(st.integers(0, 3))
            logs[slave] += logs[master][point : point + size]
        size = data.draw(st.integers(0, 3))
        logs[master] += [(epoch, number) for number in range(size)]
