"""Counting the requests and the time of a streaming query."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.spark import stream
from tests.integration.spark_connector.filling import Filler


def test_every_frame_that_a_broker_receives_is_counted():
    with stream.server() as running:
        before = stream.frames(running)
        filler = Filler(running.addresses["broker"])
        filler.create("Counted", queues=1)
        filler.send("Counted", [b"x"] * 10)
        filler.close()
        # A new topic makes the broker register, which is counted, too.
        assert stream.frames(running) - before >= 2


def test_calls_belong_to_the_batch_whose_end_was_asked_for_last(tmp_path: Path):
    notes = tmp_path / "notes"
    lines = [
        "1.0 latestOffset 0.001",
        "4.2 read 0.006",  # another process was later to write
        "4.0 latestOffset 0.002",
        "4.1 read 0.004",
        "4.3 commit 0.001",
        "5.0 latestOffset 0.250",
    ]
    notes.write_text("\n".join(lines) + "\n")
    (batch,) = stream.batches(notes)
    assert {what: round(taken) for what, taken in batch.items()} == {
        "latestOffset": 2,
        "read": 10,
        "commit": 1,
    }


def test_notes_of_several_calls_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(os.environ, stream.NOTES, str(tmp_path / "notes"))
    for what in ("latestOffset", "read"):
        with stream.noted(what):
            pass
    assert set(stream.batches(tmp_path / "notes")[0]) == {"latestOffset", "read"}
