"""Dividing a limit among queues, in proportion to what each has."""

from __future__ import annotations

from collections.abc import Sequence


def share(available: Sequence[int], limit: int) -> list[int]:
    """How much of each may be taken so that ``limit`` is taken in all.

    Each gets its part in proportion, what rounding leaves goes to those it was taken from most, and
    nobody who has something gets nothing: a small queue beside large ones must not starve. So when
    there are more queues than ``limit``, one of each is taken, and that is more than ``limit``.
    """
    total = sum(available)
    if total <= limit:
        return list(available)
    given = [min(size, max(1, limit * size // total)) if size else 0 for size in available]
    rest = limit - sum(given)
    if rest >= 0:
        _give(given, available, limit, total, rest)
    else:
        _take(given, -rest)
    return given


def _give(given: list[int], available: Sequence[int], limit: int, total: int, rest: int) -> None:
    """Hand out what rounding down left: at most one more for each."""
    by_remainder = sorted(
        (index for index in range(len(given)) if given[index] < available[index]),
        key=lambda index: (-(limit * available[index] % total), index),
    )
    for index in by_remainder[:rest]:
        given[index] += 1


def _take(given: list[int], excess: int) -> None:
    """Take back what the ones for small queues are too much, from the largest shares."""
    for index in sorted(range(len(given)), key=lambda index: -given[index]):
        taken = min(excess, max(0, given[index] - 1))
        given[index] -= taken
        excess -= taken
