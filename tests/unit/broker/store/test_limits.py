"""What the store finds out of the machine to keep within bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.store.limits import memory_bytes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("4096\n", 4096),
        ("max\n", MACHINE),
        (f"{1 << 62}\n", MACHINE),
        ("", MACHINE),
    ],
)
def test_a_container_has_as_much_memory_as_it_is_told(
    tmp_path: Path, told: str, expected: int
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(told)
    assert memory_bytes([str(tmp_path / "not there"), str(limit)]) == expected


def test_this_machine_has_some() -> None:
    assert 0 < memory_bytes() <= MACHINE
