"""``fdatasync`` by a thread of the kernel's: Linux AIO, told of by an eventfd.

A thread of ours that is woken for each sync, and wakes the loop after it, takes more of the
processor than the sync does: two hand-overs of the GIL and, on a virtual machine, two wake-ups of a
core. The kernel works on the core where it was asked, and an event loop hears of the end as of any
socket's (cf. ``io_submit(2)``: ``IOCB_CMD_FDSYNC``, Linux 4.18). Where there is no such thing, or
it is forbidden, ``KernelSync.open`` gives None.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import time
from contextlib import suppress
from typing import Final, Self

_CALLS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Numbers of io_setup, io_destroy, io_getevents and io_submit (asm/unistd.h)."""

_IOCB: Final = struct.Struct("=QIIHhIQQqQII")
"""Data, key, rw_flags, opcode, reqprio, descriptor, buffer, its length, offset, reserved, flags,
eventfd (linux/aio_abi.h)."""

_EVENT: Final = struct.Struct("=QQqq")
"""Data, request, result, second result."""

_TIMESPEC: Final = struct.Struct("=qq")
_FDSYNC: Final = 3
_RESFD: Final = 1
_DESCRIPTOR: Final = struct.Struct("=I")
_DESCRIPTOR_AT: Final = 20


class KernelSync:
    """One sync at a time.

    Attributes:
        descriptor: can be read when a sync has ended.
    """

    def __init__(self, context: int, calls: tuple[int, ...], descriptor: int) -> None:
        """Of what ``open`` has got."""
        self.descriptor = descriptor
        self._destroy, self._get_events, self._submit = map(ctypes.c_long, calls)
        self._context = ctypes.c_ulong(context)
        self._one = ctypes.c_long(1)
        # What waits for nothing keeps the GIL.
        self._call = ctypes.PyDLL(None).syscall
        self._waiting_call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = self._waiting_call.restype = ctypes.c_long
        block = _IOCB.pack(0, 0, 0, _FDSYNC, 0, 0, 0, 0, 0, 0, _RESFD, descriptor)
        self._block = ctypes.create_string_buffer(block, len(block))
        self._blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._event = ctypes.create_string_buffer(_EVENT.size)

    @classmethod
    def open(cls) -> Self | None:
        """One that works, or None."""
        calls = _CALLS.get(platform.machine())
        if sys.platform != "linux" or calls is None:
            return None
        context = ctypes.c_ulong(0)
        setup = ctypes.c_long(calls[0])
        if ctypes.PyDLL(None).syscall(setup, ctypes.c_uint(1), ctypes.byref(context)):
            return None
        return cls(context.value, calls[1:], os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def begin(self, descriptor: int) -> bool:
        """Begin to sync a file, which may be closed meanwhile; False: the kernel doesn't do it."""
        _DESCRIPTOR.pack_into(self._block, _DESCRIPTOR_AT, descriptor)
        begun: int = self._call(self._submit, self._context, self._one, self._blocks)
        return begun == 1

    def heard(self) -> None:
        """Let ``descriptor`` be readable no longer, until the next end."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def end(self, timeout: float) -> int | None:
        """Wait up to ``timeout`` seconds for the end of what was begun: 0 or an errno, or None."""
        until = time.monotonic() + timeout
        while not self._has_ended(max(0.0, until - time.monotonic()) if timeout else 0.0):
            if ctypes.get_errno() != errno.EINTR or time.monotonic() >= until:
                return None
        _, _, result, _ = _EVENT.unpack(self._event.raw)
        return -int(result)

    def _has_ended(self, timeout: float) -> bool:
        call = self._waiting_call if timeout else self._call
        pause = _TIMESPEC.pack(int(timeout), int(timeout % 1 * 1e9))
        ended: int = call(self._get_events, self._context, self._one, self._one, self._event, pause)
        return ended == 1

    def close(self) -> None:
        """Give it back; waits for a sync that runs."""
        self._waiting_call(self._destroy, self._context)
        os.close(self.descriptor)
