"""State files and power cuts: the file is a complete version, the old or the new one."""

from __future__ import annotations

import contextlib
import itertools
from random import Random

import pytest

from broker.saved_tables import load_json, save_json
from tests.unit.broker.store.simulated_disk import ROOT, PowerCut, SimulatedDisk

PATH = ROOT / "config" / "consumerOffset.json"
VERSIONS = 4
SEEDS = 10


def text_of(version: int) -> bytes:
    """Longer than a page, so that a part of it may be lost."""
    return b'{"version":%d,"rest":"%s"}' % (version, b"x" * 6000)


def save_all(disk: SimulatedDisk, first: int, saved: list[int]) -> None:
    for version in range(first, first + VERSIONS):
        save_json(PATH, disk, text_of(version))
        saved.append(version)


def version_on(disk: SimulatedDisk) -> int:
    value, _ = load_json(PATH, disk)
    if value is None:
        return 0
    assert isinstance(value, dict)
    assert len(value["rest"]) == 6000
    return int(value["version"])


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_a_whole_version_is_there_whenever_the_power_goes(kept: float) -> None:
    for seed in range(SEEDS):
        for cut_at in itertools.count(1):
            disk = SimulatedDisk(Random(seed))
            disk.kept = kept
            disk.make_directory(ROOT, durable=True)
            disk.cut_at = disk.steps + cut_at
            saved = [0]
            with contextlib.suppress(PowerCut):
                save_all(disk, 1, saved)
            if disk.crashed is None:
                break
            left = disk.crashed
            assert version_on(left) in {saved[-1], saved[-1] + 1}, (seed, cut_at)
            # The next round continues with that version.
            save_all(left, 10, saved)
            assert version_on(left.cut()) == saved[-1]
        assert cut_at > 4 * VERSIONS


def test_a_disk_that_fails_leaves_a_whole_version() -> None:
    for seed in range(10 * SEEDS):
        random = Random(seed)
        disk = SimulatedDisk(random)
        disk.make_directory(ROOT, durable=True)
        save_json(PATH, disk, text_of(1))
        disk.faults = dict.fromkeys(("create", "write", "sync", "name"), 0.2)
        saved = 1
        for version in range(2, 8):
            with contextlib.suppress(OSError):
                save_json(PATH, disk, text_of(version))
                saved = version
        disk.faults = {}
        assert saved <= version_on(disk)
        assert saved <= version_on(disk.cut())
