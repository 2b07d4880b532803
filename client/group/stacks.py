"""What this process does at the moment, for administrators (cf. UtilAll.jstack)."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable
from itertools import islice
from types import FrameType
from typing import Any

from client.limits import MAX_STACK_DEPTH, MAX_STACKS


def stacks() -> str:
    """Return the stack of every thread and of every task of the running event loop.

    The innermost call comes first. Source files are not read, so that this doesn't block.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads, tasks = sys._current_frames(), asyncio.all_tasks()
    blocks = [_of_task(task) for task in islice(tasks, MAX_STACKS)]
    for ident, innermost in islice(threads.items(), MAX_STACKS):
        calls = (frame for frame, _ in traceback.walk_stack(innermost))
        blocks.append(_block(names.get(ident, "unknown"), f"TID: {ident}", calls))
    left_out = len(threads) + len(tasks) - len(blocks)
    if left_out:
        blocks.append(f"{left_out} more threads and tasks\n")
    return "\n\n".join(blocks)


def _of_task(task: asyncio.Task[Any]) -> str:
    frames: list[FrameType] = []
    coroutine: Any = task.get_coro()
    # Each coroutine waits for the next one; the last one waits for a future.
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        frames.append(frame)
        coroutine = coroutine.cr_await
    return _block(task.get_name(), "task", reversed(frames))


def _block(name: str, kind: str, frames: Iterable[FrameType]) -> str:
    calls = (
        f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        for frame in islice(frames, MAX_STACK_DEPTH)
    )
    return "\n".join(f"{name:<40}{text}" for text in (kind, *calls))
