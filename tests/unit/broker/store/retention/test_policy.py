"""The retention rules: which files are deleted when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.store.config import RetentionConfig
from broker.store.os_files import DiskUse
from broker.store.retention_policy import (
    DiskMoment,
    DiskUsage,
    LogFile,
    RetentionPlan,
    decide,
    used_limits,
)

HOUR_MS = 3_600_000
NOW = 1_000 * HOUR_MS
CONFIG = RetentionConfig()
LOG = Path("/store/commitlog")
QUEUES = Path("/store/consumequeue")


def percent(used: float, total: int = 1000) -> DiskUse:
    return DiskUse(int(used * total / 100), total - int(used * total / 100))


def moment(used: float = 10, *, hour: int = 12, **changes: Any) -> DiskMoment:
    values: dict[str, Any] = {"places": (DiskUsage(LOG, percent(used)),), "now_ms": NOW}
    return DiskMoment(**(values | {"hour": hour} | changes))


def hours_old(*ages: float, size: int = 100) -> list[LogFile]:
    return [LogFile(size, int(NOW - age * HOUR_MS)) for age in ages]


OLD_AND_YOUNG = hours_old(100, 80, 72, 71, 1)


def plan_of(config: RetentionConfig, at: DiskMoment, files: list[LogFile]) -> tuple[int, int]:
    plan = decide(config, at, files)
    return plan.files, plan.unexpired


def test_expired_files_are_deleted_in_the_configured_hours() -> None:
    assert plan_of(CONFIG, moment(hour=4), OLD_AND_YOUNG) == (3, 0)
    assert plan_of(CONFIG, moment(hour=5), OLD_AND_YOUNG) == (0, 0)
    several = RetentionConfig(delete_hours=frozenset({2, 22}))
    assert plan_of(several, moment(hour=22), OLD_AND_YOUNG) == (3, 0)


def test_above_the_first_limit_or_on_request_expired_files_are_deleted_at_any_hour() -> None:
    assert plan_of(CONFIG, moment(75), OLD_AND_YOUNG) == (0, 0)
    assert plan_of(CONFIG, moment(75.1), OLD_AND_YOUNG) == (3, 0)
    assert plan_of(CONFIG, moment(asked=True), OLD_AND_YOUNG) == (3, 0)


def test_files_are_kept_for_the_configured_time() -> None:
    day = RetentionConfig(reserved_ms=24 * HOUR_MS)
    assert plan_of(day, moment(hour=4), hours_old(80, 24, 23.9)) == (2, 0)


def test_a_file_of_unknown_age_is_not_deleted_for_its_age() -> None:
    files = [LogFile(100, None), *hours_old(100)]
    assert plan_of(CONFIG, moment(hour=4), files) == (0, 0)


def test_one_run_deletes_a_bounded_number_of_files() -> None:
    assert plan_of(CONFIG, moment(hour=4), hours_old(*[100] * 30)) == (10, 0)
    assert plan_of(CONFIG, moment(99.9), hours_old(*[1] * 30, size=1)) == (10, 10)


def test_above_the_second_limit_unexpired_files_are_deleted_only_as_far_as_needed() -> None:
    files = hours_old(100, 2, 1, 1, 1, size=20)
    assert plan_of(CONFIG, moment(85), files) == (1, 0)
    # 30 bytes too many: of two files one is past its time.
    assert plan_of(CONFIG, moment(88), files) == (2, 1)
    assert plan_of(CONFIG, moment(95), files) == (5, 4)


def test_space_held_by_slow_readers_counts_as_freed() -> None:
    files = hours_old(2, 1, 1, size=20)
    assert plan_of(CONFIG, moment(88, coming_bytes=30), files) == (0, 0)
    assert plan_of(CONFIG, moment(88, coming_bytes=20), files) == (1, 1)


def test_unexpired_files_are_kept_without_forced_cleaning_however_full_the_disk_is() -> None:
    kept = RetentionConfig(forcibly=False)
    plan = decide(kept, moment(95), hours_old(80, 1, size=20))
    assert (plan.files, plan.unexpired, plan.pressed) == (1, 0, True)
    assert plan.refusal is not None


def test_the_fuller_of_two_disks_decides() -> None:
    places = (DiskUsage(LOG, percent(10)), DiskUsage(QUEUES, percent(95)))
    plan = decide(CONFIG, moment(places=places), hours_old(2, 1))
    assert plan.files == 1
    assert plan.refusal is not None
    assert str(QUEUES) in plan.refusal


def test_nothing_is_stored_above_the_last_limit_and_the_message_says_why() -> None:
    assert decide(CONFIG, moment(90), []).refusal is None
    refusal = decide(CONFIG, moment(91), []).refusal
    assert refusal == (
        "the disk of /store/commitlog is 91% full with 90 bytes free, more than the 90 % of"
        " diskSpaceWarningLevelRatio, so the store takes no messages: free some space and it"
        " resumes by itself"
    )


def test_free_bytes_replace_percentages() -> None:
    config = RetentionConfig(forced_free_bytes=100, full_free_bytes=50)
    # 95 % of a large disk are in use, which is no trouble.
    large = (DiskUsage(LOG, percent(95, 100_000)),)
    assert decide(config, moment(places=large), OLD_AND_YOUNG[3:]) == RetentionPlan(
        0, 0, None, False
    )
    assert plan_of(config, moment(89), hours_old(2, 1)) == (0, 0)
    assert plan_of(config, moment(91), hours_old(2, 1)) == (1, 1)
    assert decide(config, moment(95), []).refusal is None
    refusal = decide(config, moment(96), []).refusal
    assert refusal is not None
    assert "40 bytes free, less than the 50 of pocketmqDiskFullFreeBytes" in refusal


def test_files_are_deleted_too_when_the_last_limit_is_the_lower_one() -> None:
    config = RetentionConfig(full_free_bytes=200)
    assert plan_of(config, moment(81), hours_old(2, 1)) == (1, 1)


def test_no_more_files_are_read_than_needed() -> None:
    looked_at: list[int] = []

    def files() -> Iterator[LogFile]:
        for number, file in enumerate(hours_old(100, 1, 1, 1)):
            looked_at.append(number)
            yield file

    decide(CONFIG, moment(10), files())
    assert looked_at == []
    decide(CONFIG, moment(hour=4), files())
    assert looked_at == [0, 1]


@pytest.mark.parametrize("total", [0, 1])
def test_a_disk_without_a_size_is_no_reason_to_delete(total: int) -> None:
    places = (DiskUsage(LOG, DiskUse(0, total)),)
    assert decide(CONFIG, moment(places=places), OLD_AND_YOUNG) == RetentionPlan(0, 0, None, False)


def test_the_bounds_of_a_disk_are_shares_whatever_sets_them() -> None:
    use = DiskUse(0, 1000)
    assert used_limits(CONFIG, use) == {
        "diskSpaceCleanForciblyRatio": 0.85,
        "diskSpaceWarningLevelRatio": 0.9,
    }
    in_bytes = RetentionConfig(forced_free_bytes=250, full_free_bytes=2000)
    assert used_limits(in_bytes, use) == {
        "diskSpaceCleanForciblyRatio": 0.75,
        "diskSpaceWarningLevelRatio": 0.0,
    }
    assert used_limits(RetentionConfig(forcibly=False), use) == {"diskSpaceWarningLevelRatio": 0.9}
    assert used_limits(in_bytes, DiskUse(0, 0)) == {
        "diskSpaceCleanForciblyRatio": 0.0,
        "diskSpaceWarningLevelRatio": 0.0,
    }
