"""The stacks that a member's running info has."""

from __future__ import annotations

import asyncio
import threading

from client.group.reports import stacks
from client.limits import MAX_STACK_DEPTH, MAX_STACKS


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def outer(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await inner(event)


def block_of(text: str, name: str) -> list[str]:
    (found,) = [one for one in text.split("\n\n") if one.startswith(f"{name} ")]
    return [line.removeprefix(name).strip().split(" (")[0] for line in found.splitlines()]


async def test_a_task_has_the_calls_that_it_waits_for_the_innermost_first():
    event = asyncio.Event()
    task = asyncio.create_task(outer(event), name="consuming")
    await asyncio.sleep(0)
    assert block_of(stacks(), "consuming") == ["task", "Event.wait", "inner", "outer"]
    event.set()
    await task


async def test_a_thread_has_its_name_and_its_calls():
    begun, event = threading.Event(), threading.Event()

    def blocking() -> None:
        begun.set()
        event.wait()

    thread = threading.Thread(target=blocking, name="handler 1")
    thread.start()
    await asyncio.to_thread(begun.wait)
    head, *calls = block_of(stacks(), "handler 1")
    event.set()
    thread.join()
    assert head == f"TID: {thread.ident}"
    own = calls.index("test_a_thread_has_its_name_and_its_calls.<locals>.blocking")
    assert calls[own - 1 : own + 2 : 2] == ["Event.wait", "Thread.run"]


async def test_many_tasks_and_deep_calls_are_cut_off():
    event = asyncio.Event()

    async def deep(depth: int) -> None:
        await (deep(depth - 1) if depth else event.wait())

    async with asyncio.TaskGroup() as group:
        for _ in range(MAX_STACKS):
            group.create_task(deep(MAX_STACK_DEPTH + 10))
        await asyncio.sleep(0)
        text = stacks()
        event.set()
    assert text.endswith(" more threads and tasks\n")
    blocks = [one.splitlines() for one in text.split("\n\n") if "deep (" in one]
    assert len(blocks) >= MAX_STACKS - 1
    assert {len(lines) for lines in blocks} == {1 + MAX_STACK_DEPTH}
