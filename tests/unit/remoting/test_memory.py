"""How much memory a process may use, and how much of it peers may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remoting.limits import ConnectionLimits, total_bytes
from remoting.protocol.limits import MAX_FRAME_BYTES
from remoting.runtime.process_limits import memory_bytes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
MIB = 1 << 20


def limit_of(root: Path, membership: str, limits: dict[str, str]) -> int:
    """The memory of a process in these control groups; the limits by file."""
    (root / "membership").write_text(membership)
    for name, text in limits.items():
        path = root / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return memory_bytes(root / "groups", root / "membership")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096\n", 4096), ("max\n", MACHINE), (f"{1 << 62}\n", MACHINE), ("", MACHINE)],
)
def test_a_container_uses_its_memory_limit(tmp_path: Path, text: str, expected: int) -> None:
    assert limit_of(tmp_path, "0::/\n", {"memory.max": text}) == expected
    (tmp_path / "groups/memory.max").unlink()
    version_1 = {"memory/memory.limit_in_bytes": text}
    assert limit_of(tmp_path, "4:memory:/docker/abc\n", version_1) == expected


def test_a_service_uses_the_lowest_limit_of_its_unit_and_slices(tmp_path: Path) -> None:
    own = "0::/system.slice/broker.service\n"
    assert limit_of(tmp_path, own, {"system.slice/broker.service/memory.max": "9000\n"}) == 9000
    assert limit_of(tmp_path, own, {"system.slice/memory.max": "8000\n"}) == 8000
    assert limit_of(tmp_path, "0::/user.slice\n", {}) == MACHINE


def test_without_control_groups_the_limit_is_the_machines_memory(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path, tmp_path / "cgroup") == MACHINE
    assert 0 < memory_bytes() <= MACHINE


@pytest.mark.parametrize(
    ("memory", "expected"),
    [(64 << 30, 512 * MIB), (4 << 30, 512 * MIB), (512 * MIB, 64 * MIB), (64 * MIB, 32 * MIB)],
)
def test_incoming_frames_use_a_share_of_the_memory(memory: int, expected: int) -> None:
    assert total_bytes(512 * MIB, memory) == expected >= 2 * MAX_FRAME_BYTES


def test_connections_are_limited_to_the_share_by_default() -> None:
    limits = ConnectionLimits()
    assert limits.max_total_held_bytes == total_bytes(512 * MIB, memory_bytes())
    assert limits.max_total_in_progress_bytes == total_bytes(256 * MIB, memory_bytes())
    assert ConnectionLimits(max_total_held_bytes=5).max_total_held_bytes == 5
