"""Tasks have an owner, which is notified when one fails."""

from __future__ import annotations

import asyncio

import pytest

from remoting.runtime.tasks import Supervisor


async def fail(reason: str = "broken") -> None:
    raise ValueError(reason)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_failure_ends_the_future_of_its_owner() -> None:
    owner = Supervisor("owner")
    failed = owner.failed
    owner.spawn(fail(), "work")
    with pytest.raises(ValueError, match="broken"):
        await failed


async def test_a_failure_before_the_first_await_is_still_raised() -> None:
    owner = Supervisor("owner")
    owner.spawn(fail("first"), "work")
    owner.spawn(fail("second"), "work")
    assert await owner.join(1)
    with pytest.raises(ValueError, match="first"):
        await owner.failed


async def test_only_the_first_failure_ends_the_future() -> None:
    owner = Supervisor("owner")
    failed = owner.failed
    owner.spawn(fail("first"), "work")
    owner.spawn(fail("second"), "work")
    await owner.join(1)
    with pytest.raises(ValueError, match="first"):
        await failed


async def test_a_failure_that_nobody_awaits_is_passed_to_the_callback() -> None:
    heard: list[tuple[str, str]] = []
    owner = Supervisor("owner", on_failure=lambda name, error: heard.append((name, str(error))))
    owner.failed.cancel()
    owner.spawn(fail(), "work")
    await owner.join(1)
    assert heard == [("owner: work", "broken")]


async def test_a_failing_callback_does_no_harm() -> None:
    def refuse(_name: str, _failure: BaseException) -> None:
        raise RuntimeError("not mine")

    owner = Supervisor("owner", on_failure=refuse)
    owner.spawn(fail(), "work")
    await owner.join(1)
    assert len(owner) == 0


async def test_the_awaiter_of_the_result_gets_the_failure() -> None:
    owner = Supervisor("owner")
    failed = owner.failed
    seen: list[BaseException | None] = []
    owner.spawn(fail(), "work", on_done=lambda task: seen.append(task.exception()))
    await owner.join(1)
    assert isinstance(seen[0], ValueError)
    assert not failed.done()


async def test_closing_cancels_all_and_waits_for_their_end() -> None:
    owner, ended = Supervisor("owner"), []

    async def tidy() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    owner.spawn(tidy(), "one")
    owner.spawn(tidy(), "two")
    await asyncio.sleep(0)
    await owner.close()
    await owner.close()
    assert ended == [True, True]
    assert len(owner) == 0
    assert not owner.failed.done()


async def test_a_task_may_close_its_own_owner() -> None:
    owner = Supervisor("owner")
    other = owner.spawn(for_ever(), "other")
    await owner.spawn(owner.close(), "closer")
    assert other.cancelled()


async def test_a_closed_owner_starts_nothing() -> None:
    owner = Supervisor("owner")
    await owner.close()
    with pytest.raises(RuntimeError, match="owner is closed and starts no work"):
        owner.spawn(for_ever(), "work")


async def test_joining_returns_whether_all_have_ended() -> None:
    owner = Supervisor("owner")
    assert await owner.join(0)
    owner.spawn(for_ever(), "work")
    assert not await owner.join(0.01)
    await owner.close()
