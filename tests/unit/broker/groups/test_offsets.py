"""Consumer offsets: overwritten by every commit, steps back reported, bounded."""

from __future__ import annotations

import pytest

from broker.errors import LimitReached
from broker.groups.offsets import ConsumerOffsets


def test_a_commit_is_stored_per_group_topic_and_queue():
    offsets = ConsumerOffsets()
    assert offsets.commit("g", "T", 0, 7) is None
    offsets.commit("h", "T", 0, 3)
    assert offsets.query("g", "T", 0) == 7
    assert offsets.query("h", "T", 0) == 3
    assert offsets.query("g", "T", 1) == -1
    assert offsets.query("g", "U", 0) == -1
    assert offsets.table == {"T@g": {0: 7}, "T@h": {0: 3}}


def test_a_step_back_is_stored_and_reported():
    offsets = ConsumerOffsets()
    offsets.commit("g", "T", 0, 7)
    assert offsets.commit("g", "T", 0, 4) == 7
    assert offsets.query("g", "T", 0) == 4


def test_the_version_counts_changes_only():
    offsets = ConsumerOffsets()
    offsets.commit("g", "T", 0, 7)
    version = offsets.version
    offsets.commit("g", "T", 0, 7)
    assert offsets.version == version
    offsets.commit("g", "T", 0, 8)
    assert offsets.version > version


def test_a_stored_table_is_taken_over_as_a_copy():
    stored = {"T@g": {0: 1, 2: 5}}
    offsets = ConsumerOffsets(stored)
    offsets.commit("g", "T", 0, 9)
    assert stored == {"T@g": {0: 1, 2: 5}}
    assert len(offsets) == 2


def test_topics_and_groups_are_found_by_each_other():
    offsets = ConsumerOffsets({"T@g": {0: 1}, "U@g": {0: 1}, "T@h": {0: 1}})
    assert offsets.topics_of("g") == {"T", "U"}
    assert offsets.groups_of("T") == {"g", "h"}


def test_a_groups_offsets_can_be_removed():
    offsets = ConsumerOffsets({"T@g": {0: 1, 1: 1}, "T@h": {0: 1}})
    assert offsets.remove_group("g") == 2
    assert offsets.query("g", "T", 0) == -1
    assert len(offsets) == 1
    assert offsets.remove_group("g") == 0


def test_a_full_table_still_updates_existing_offsets():
    offsets = ConsumerOffsets(limit=1)
    offsets.commit("g", "T", 0, 1)
    with pytest.raises(LimitReached, match="at most 1 consumer offsets"):
        offsets.commit("g", "T", 1, 1)
    offsets.commit("g", "T", 0, 2)
    assert offsets.table == {"T@g": {0: 2}}
