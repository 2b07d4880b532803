"""The examples of the page on FastStream work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pocketmq import testing
from tests.support.tour import DEFAULT, HOME, blocks, run

PAGE = HOME / "docs" / "faststream.md"

STARTED = """

async def test_the_broker_starts() -> None:
    async with broker:
        await broker.start()
"""


@pytest.mark.parametrize("block", blocks(PAGE, "python"))
def test_an_example_runs(block: str, tmp_path: Path) -> None:
    with testing.broker() as server:
        text = block if "def test_" in block else block + STARTED
        (tmp_path / "test_block.py").write_text(text.replace(DEFAULT, server.nameserver))
        options = ["-p", "no:cacheprovider", "-q", "-o", "asyncio_mode=auto"]
        options += ["-o", "asyncio_default_fixture_loop_scope=function"]
        run([sys.executable, "-m", "pytest", *options], server.nameserver, tmp_path)
