"""Tasks divide a store: all of it, nothing twice, none too large."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from spark_connector.errors import UnknownTopicError
from spark_connector.source.pushdown import Pushed
from spark_connector.source.ranges import RangePartition
from spark_connector.store.planning import LogPiece, Piece, QueuePieces
from tests.unit.spark_connector.store.directories import (
    TOPICS,
    made_store,
    overwrite,
    places,
    planned,
    rows,
)

COUNT = 300


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_store(tmp_path_factory.mktemp("planning") / "store", COUNT)


def ranges(pieces: list[Piece]) -> list[RangePartition]:
    return [one for piece in pieces if isinstance(piece, QueuePieces) for one in piece.ranges]


def spans(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(piece.begin, piece.end) for piece in pieces if isinstance(piece, LogPiece)]


def test_small_queues_share_a_task(root: Path) -> None:
    (piece,) = planned(root)
    assert isinstance(piece, QueuePieces)
    assert len(piece.ranges) == 6
    assert sum(one.offsets for one in piece.ranges) == COUNT
    assert {one.topic for one in piece.ranges} == set(TOPICS)


def test_no_task_has_more_messages_than_it_may(root: Path) -> None:
    pieces = planned(root, maxRecordsPerPartition="7")
    sizes = [
        sum(one.offsets for one in piece.ranges)
        for piece in pieces
        if isinstance(piece, QueuePieces)
    ]
    assert max(sizes) <= 7
    assert sum(sizes) == COUNT


def test_there_are_as_many_tasks_as_requested(root: Path) -> None:
    assert len(planned(root, minPartitions="9")) >= 9
    assert len(planned(root, minPartitions="9", scan="log")) == 9


def test_only_the_topics_named_are_read(root: Path) -> None:
    assert {one.topic for one in ranges(planned(root, topic="Bills"))} == {"Bills"}
    with pytest.raises(UnknownTopicError) as raised:
        planned(root, topic="Bils")
    assert "no queue of topic 'Bils'; did you mean 'Bills'?; it has Bills, Orders" in str(
        raised.value
    )


def test_parts_of_the_log_lie_end_to_end(root: Path) -> None:
    whole = places(root)
    found = spans(planned(root, scan="log", maxBytesPerPartition="1000"))
    assert len(found) > 20
    assert found[0][0] == 0
    assert found[-1][1] > whole[-1]
    for (_, end), (begin, _) in pairwise(found):
        assert end == begin


def test_bounds_exclude_unneeded_messages(root: Path) -> None:
    found = ranges(
        planned(
            root,
            Pushed({"topic": frozenset({"Orders"}), "queueId": frozenset({1, 7})}, first=3, end=9),
        )
    )
    assert [(one.topic, one.queue_id, one.start, one.end) for one in found] == [("Orders", 1, 3, 9)]


def test_time_bounds_keep_messages_of_that_time(root: Path) -> None:
    times = [round(row["storeTimestamp"].timestamp() * 1000) for row in rows(root)]
    margin = 10_000
    assert ranges(planned(root, Pushed(since_ms=times[-1] + margin + 1))) == []
    assert ranges(planned(root, Pushed(until_ms=times[0] - margin))) == []
    all_of_it = Pushed(since_ms=times[0], until_ms=times[-1] + 1)
    assert sum(one.offsets for one in ranges(planned(root, all_of_it))) == COUNT


def test_offset_bounds_keep_a_part_of_the_log(root: Path) -> None:
    whole = places(root)
    found = spans(planned(root, Pushed(low=whole[10] - 5, high=whole[20] + 1), scan="log"))
    assert found == [(whole[10], whole[21])]
    assert spans(planned(root, Pushed(high=0), scan="log")) == []


def test_a_torn_end_is_omitted_and_logged(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "store"
    shutil.copytree(root, copy)
    (copy / "checkpoint").unlink()
    whole = places(copy)
    overwrite(copy, whole[-4], bytes(whole[-1] - whole[-4]))
    overwrite(copy, whole[-1], b"\xff" * 8)
    kept = ranges(planned(copy))
    assert sum(one.offsets for one in kept) == COUNT - 4
    assert "are left out" in caplog.text
    caplog.clear()
    overwrite(copy, whole[-4], b"\xff" * 8)
    assert spans(planned(copy, scan="log"))[-1][1] == whole[-4]
    assert f"no record begins at {whole[-4]}" in caplog.text
