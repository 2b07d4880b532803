"""A broadcasting consumer's offsets file: complete, or its backup, or a refusal to start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from client.consumer.offset_store import LocalOffsets
from client.errors import UsageError
from remoting.protocol.queue import MessageQueue
from remoting.runtime import durable_file

QUEUES = [MessageQueue("T", "a", number) for number in range(2)]


async def written(file: Path, *offsets: int) -> None:
    store = LocalOffsets(file, "g")
    for queue, offset in zip(QUEUES, offsets, strict=False):
        await store.commit(queue, offset)
    await store.save()
    store.close()


async def read(file: Path) -> list[int | None]:
    store = LocalOffsets(file, "g")
    try:
        return [await store.stored(queue) for queue in QUEUES]
    finally:
        store.close()


async def test_saved_offsets_are_loaded(tmp_path: Path):
    file = tmp_path / "deep" / "offsets.json"
    await written(file, 7, 9)
    assert await read(file) == [7, 9]


async def test_without_a_file_nothing_is_stored(tmp_path: Path):
    assert await read(tmp_path / "offsets.json") == [None, None]


async def test_unsaved_offsets_are_lost(tmp_path: Path):
    file = tmp_path / "offsets.json"
    store = LocalOffsets(file, "g")
    await store.commit(QUEUES[0], 7)
    store.close()
    assert await read(file) == [None, None]


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b'{"offsets": [{"topic": 1}]}', b"\xff"])
async def test_a_damaged_file_is_replaced_by_its_backup(tmp_path: Path, junk: bytes):
    file = tmp_path / "offsets.json"
    await written(file, 1)
    for _ in range(2):
        file.write_bytes(junk)
        assert await read(file) == [1, None]
    file.write_bytes(junk)
    await written(file, 2)
    file.write_bytes(junk)
    assert await read(file) == [2, None]


async def test_a_missing_file_is_replaced_by_its_backup(tmp_path: Path):
    file = tmp_path / "offsets.json"
    await written(file, 1)
    file.unlink()
    assert await read(file) == [1, None]
    assert file.exists()


async def test_with_both_damaged_the_consumer_does_not_start(tmp_path: Path):
    file = tmp_path / "offsets.json"
    await written(file, 1)
    await written(file, 2)
    file.write_bytes(b"{")
    file.with_name("offsets.json.bak").write_bytes(
        b'{"offsets": [{"topic": "T", "broker": "a", "queue": 0, "offset": -1}]}'
    )
    with pytest.raises(UsageError, match=r"damaged .*put offsets\.json back from a copy"):
        LocalOffsets(file, "g")


async def test_two_consumers_cannot_use_one_file(tmp_path: Path):
    file = tmp_path / "offsets.json"
    first = LocalOffsets(file, "g")
    with pytest.raises(UsageError, match="used by another consumer"):
        LocalOffsets(file, "g")
    first.close()
    LocalOffsets(file, "g").close()


def test_a_fork_of_the_process_does_not_keep_the_file(tmp_path: Path):
    script = """
import os, sys
from pathlib import Path
from client.consumer.offset_store import LocalOffsets

store = LocalOffsets(Path(sys.argv[1]), "g")
reading, writing = os.pipe()
if os.fork() == 0:
    os.close(writing)
    os.read(reading, 1)
    os._exit(0)
store.close()
LocalOffsets(Path(sys.argv[1]), "g").close()
"""
    command = [sys.executable, "-c", script, str(tmp_path / "offsets.json")]
    subprocess.run(command, check=True, timeout=60)


async def test_an_unwritable_path_is_an_error_at_the_start(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be used"):
        LocalOffsets(tmp_path / "file" / "offsets.json", "g")


async def test_a_disk_that_refuses_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = tmp_path / "offsets.json"
    store = LocalOffsets(file, "g")
    await store.commit(QUEUES[0], 7)
    blocker = tmp_path / "offsets.json.tmp"
    blocker.mkdir()
    await store.save()
    assert "local offsets not written" in caplog.text
    blocker.rmdir()
    await store.save()
    store.close()
    assert await read(file) == [7, None]


async def test_saves_write_the_file_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    replace = durable_file.replace
    now: list[bytes] = []
    most: list[int] = []

    def slow(file: Path, data: bytes) -> None:
        now.append(data)
        most.append(len(now))
        time.sleep(0.02)
        replace(file, data)
        now.remove(data)

    monkeypatch.setattr(durable_file, "replace", slow)
    file = tmp_path / "offsets.json"
    store = LocalOffsets(file, "g")
    saves = []
    for offset in range(1, 5):
        await store.commit(QUEUES[0], offset)
        saves.append(asyncio.create_task(store.save()))
        await asyncio.sleep(0)
    await asyncio.gather(*saves)
    store.close()
    assert set(most) == {1}
    assert await read(file) == [4, None]
