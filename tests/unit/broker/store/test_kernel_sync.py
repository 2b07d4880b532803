"""fdatasync by the kernel's own thread, on the machines that have it."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.kernel_sync import KernelSync


@pytest.fixture
def kernel() -> Iterator[KernelSync]:
    made = KernelSync.open()
    if made is None:
        pytest.skip("this kernel has no AIO, or forbids it")
    yield made
    made.close()


def test_a_sync_is_heard_of_and_has_a_result(kernel: KernelSync, tmp_path: Path) -> None:
    for number in range(3):
        descriptor = os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT)
        os.write(descriptor, b"x" * 5000)
        assert kernel.begin(descriptor)
        os.close(descriptor)
        assert select.select([kernel.descriptor], [], [], 30)[0]
        kernel.heard()
        assert not select.select([kernel.descriptor], [], [], 0)[0]
        assert kernel.end(0.0) == 0
        assert kernel.end(0.0) is None


def test_an_end_can_be_waited_for(kernel: KernelSync, tmp_path: Path) -> None:
    assert kernel.end(0.01) is None
    with (tmp_path / "file").open("wb") as file:
        file.write(b"x")
        file.flush()
        assert kernel.begin(file.fileno())
        assert kernel.end(30.0) == 0


def test_what_can_not_be_synced_is_not_begun_or_ends_with_an_error(kernel: KernelSync) -> None:
    assert not kernel.begin(1 << 20)
    reading, writing = os.pipe()
    if kernel.begin(reading):
        assert kernel.end(30.0) == errno.EINVAL
    os.close(reading)
    os.close(writing)


def test_a_signal_does_not_end_the_waiting(
    kernel: KernelSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = iter([False, False, True])

    def interrupted(_: float) -> bool:
        ctypes.set_errno(errno.EINTR)
        return next(waits)

    monkeypatch.setattr(kernel, "_has_ended", interrupted)
    assert kernel.end(30.0) == 0
    assert next(waits, None) is None


def test_other_machines_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert KernelSync.open() is None
