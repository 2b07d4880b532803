"""The unmodified Node client ``ali-ons`` at our broker; its packages come from npm."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

import client
from pocketmq import testing
from tests.interop.apache import HERE, TOOLS, one_at_a_time

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

INSTALL_TIMEOUT = 180.0
RUN_TIMEOUT = 100.0
SCENARIOS = ("plain", "tags", "broadcast", "delayed", "retry")


@pytest.fixture(scope="module")
def program() -> Path:
    """The program in ``node`` with its packages; the test is skipped where there is no npm."""
    if shutil.which("npm") is None:
        pytest.skip("needs Node and npm")
    home = TOOLS / "node-client"
    with one_at_a_time("node-client"):
        installed = home / "package-lock.json"
        if not installed.exists() or (
            installed.read_bytes() != (HERE / "node" / "package-lock.json").read_bytes()
        ):
            building = TOOLS / "node-client-new"
            for folder in (building, home):
                shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(HERE / "node", building)
            command = ["npm", "ci", "--ignore-scripts"]
            subprocess.run(command, cwd=building, check=True, timeout=INSTALL_TIMEOUT)
            building.rename(home)
        shutil.copy(HERE / "node" / "five.js", home)
    return home / "five.js"


async def test_five_scenarios_of_the_node_client_run_side_by_side_in_one_process(
    program: Path,
) -> None:
    with testing.broker(settings={"messageDelayLevel": "1s 1s 1s"}) as server:
        async with client.Admin(server.nameserver) as admin:
            for name in SCENARIOS:
                await admin.create_topic(f"node-{name}", queues=4)
        done = await asyncio.to_thread(
            subprocess.run,
            ["node", str(program), server.nameserver],
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT,
            check=False,
        )

    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == sorted(f"{name} right" for name in SCENARIOS)
