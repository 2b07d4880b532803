"""What retention deletes and when, and when the disk is too full to take messages. Pure.

The rules are RocketMQ's (cf. CleanCommitLogService): expired files go in the configured hours, and
at any hour when the disk is fuller than ``diskMaxUsedSpaceRatio``; above a further bound the oldest
files go at any age, and above the last one nothing is stored until there is room again. Both bounds
can be given in free bytes instead, because a tenth of a large disk is a lot.

RocketMQ takes a file's age from its time of modification, which a copy or a backup changes. Here it
is the store time of the first message behind the file: all messages of the file are at least as
old.

Only as many young files go as make enough room. Space that a slow reader still holds counts as
free: it will be when the reader has gone on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from broker.store.os_files import DiskUse

_HOUR_MS: Final = 3_600_000
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """What is kept for how long, and what a full disk is.

    Attributes:
        reserved_ms: for so long messages are kept; ``fileReservedTime``, there in hours.
        delete_hours: of the day, local time, in which what is older goes; ``deleteWhen``.
        max_used_percent: beyond it what is older goes at any hour; ``diskMaxUsedSpaceRatio``.
        forced_used_percent: beyond it younger files go too; ``diskSpaceCleanForciblyRatio``.
        full_used_percent: beyond it nothing is stored; ``diskSpaceWarningLevelRatio``.
        forced_free_bytes: if not 0, takes the place of ``forced_used_percent``: below it.
        full_free_bytes: the same for ``full_used_percent``.
        forcibly: whether younger files may go at all; ``cleanFileForciblyEnable``.
        batch: files that go in one run; ``deleteFileBatchMax``.
        first_delay_ms: nothing goes so soon after the start: there is time to notice a mistake.
        interval_ms: from run to run; ``cleanResourceInterval``.
        log_pause_ms: between two log files; ``deleteCommitLogFilesInterval``.
        hold_ms: for so long the space of a file that a reader holds counts as made;
            ``destroyMapedFileIntervalForcibly``.
        retry_ms: after it a file that could not be removed is tried again;
            ``redeleteHangedFileInterval``.
    """

    reserved_ms: int = 72 * _HOUR_MS
    delete_hours: frozenset[int] = frozenset({4})
    max_used_percent: int = 75
    forced_used_percent: int = 85
    full_used_percent: int = 90
    forced_free_bytes: int = 0
    full_free_bytes: int = 0
    forcibly: bool = True
    batch: int = 10
    first_delay_ms: int = 60_000
    interval_ms: int = 10_000
    log_pause_ms: int = 100
    hold_ms: int = 120_000
    retry_ms: int = 120_000


class DiskUsage(NamedTuple):
    """A directory of the store and the disk it is on."""

    path: Path
    use: DiskUse


class LogFile(NamedTuple):
    """A file of the log, oldest first.

    Attributes:
        size: bytes.
        behind_ms: store time of the first message behind it; None when that can't be told.
    """

    size: int
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class DiskMoment:
    """What a decision goes by beside the files.

    Attributes:
        places: the store's directories.
        now_ms: the time.
        hour: of the day, local time.
        asked: whether somebody wants files past their time to go now.
        coming_bytes: space that deleted files still take, soon to be free.
    """

    places: Sequence[DiskUsage]
    now_ms: int
    hour: int
    asked: bool = False
    coming_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What is to be done.

    Attributes:
        files: so many of the oldest files go.
        young: so many of these are not past their time.
        full: why nothing is stored meanwhile, in one sentence; None when messages are taken.
        pressed: whether the disk is beyond a bound, so that it should be looked at again soon.
    """

    files: int
    young: int
    full: str | None
    pressed: bool


def decide(config: RetentionConfig, moment: DiskMoment, files: Iterable[LogFile]) -> RetentionPlan:
    """What to do now.

    Args:
        config: the rules.
        moment: disk and time.
        files: those that may go, oldest first; only as many are looked at as are needed.
    """
    missing = max((missing_bytes(config, place.use) for place in moment.places), default=0)
    wanted = missing if config.forcibly else 0
    due = is_due(config, moment)
    count = young = 0
    freed = moment.coming_bytes
    if due or freed < wanted:
        for file in files:
            is_old = file.behind_ms is not None and (
                file.behind_ms + config.reserved_ms <= moment.now_ms
            )
            if count >= config.batch or not ((due and is_old) or freed < wanted):
                break
            count += 1
            young += not is_old
            freed += file.size
    full = next(filter(None, (full_sentence(config, place) for place in moment.places)), None)
    return RetentionPlan(count, young, full, pressed=missing > 0)


def is_due(config: RetentionConfig, moment: DiskMoment) -> bool:
    """Whether files past their time go now."""
    return (
        moment.asked
        or moment.hour in config.delete_hours
        or any(place.use.ratio * _PERCENT > config.max_used_percent for place in moment.places)
    )


def missing_bytes(config: RetentionConfig, use: DiskUse) -> int:
    """How much has to go, old or young, for a disk to be within its bounds."""
    return max(
        _missing(use, config.forced_used_percent, config.forced_free_bytes),
        _missing(use, config.full_used_percent, config.full_free_bytes),
    )


def _missing(use: DiskUse, used_percent: int, free_bytes: int) -> int:
    if free_bytes:
        return max(0, free_bytes - use.free)
    allowed = (use.used + use.free) * used_percent / _PERCENT
    return max(0, math.ceil(use.used - allowed))


def full_sentence(config: RetentionConfig, place: DiskUsage) -> str | None:
    """Why a disk is too full to store anything; None when it is not."""
    use, least = place.use, config.full_free_bytes
    if not _missing(use, config.full_used_percent, least):
        return None
    bound = (
        f"less than the {least} of pocketmqDiskFullFreeBytes"
        if least
        else f"more than the {config.full_used_percent} % of diskSpaceWarningLevelRatio"
    )
    return (
        f"the disk of {place.path} is {use.percent}% full with {use.free} bytes free, {bound}, so"
        " the store takes no messages: free some space and it goes on by itself"
    )


# Size; system flag; store time behind an IPv4 and behind an IPv6 born host.
