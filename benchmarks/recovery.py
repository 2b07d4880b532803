"""Measure the restart of a killed and of a stopped broker with a commit log of one GiB.

    python -m benchmarks.recovery [--rounds 5] [--megabytes 1024] [--body 1024] [--apache]

A process fills a store at full speed, then for three seconds at 5,000 messages per second; then it
is killed, or stopped. Each round uses a new copy of the killed store (``cp --reflink=auto``) and
measures from the start of a broker's process to its first acknowledged send. With ``--apache``
Apache's broker 4.9.7 opens copies of the killed store too, alternating with ours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.startup import measure, ours, start_once, theirs
from tests.support.ports import free_ports

WRITER = """
import asyncio, sys, time
from pathlib import Path
from broker.store.engine import MessageStore, PendingMessage, StoreConfig

async def main(root, size, body):
    store = MessageStore(StoreConfig(root=Path(root)))
    store.open()
    loop = asyncio.get_running_loop()
    store.start(loop)
    message = [PendingMessage("load", q, b"x" * body, b"TAGS\\x01t", 116) for q in range(16)]
    number = 0
    while store.log.end < size:
        for _ in range(10):
            store.put_batch([message[number % 16]] * 32)
            number += 1
        await asyncio.sleep(0)
    stop = loop.time() + 3
    while loop.time() < stop:
        for _ in range(50):
            store.put(message[number % 16])
            number += 1
        await asyncio.sleep(0.01)
    print("filled", flush=True)
    sys.stdin.readline()
    store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


def fill(root: Path, megabytes: int, body: int, *, kill: bool) -> None:
    """Create a store of a broker that was killed or stopped."""
    command = [sys.executable, "-c", WRITER, str(root), str(megabytes << 20), str(body)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        writer.stdout.readline()
        if kill:
            writer.send_signal(signal.SIGKILL)
        else:
            writer.stdin.write(b"\n")
            writer.stdin.flush()


def copy_of(store: Path) -> Path:
    """Copy a store to ``store`` in a new directory, where Apache's broker expects it."""
    home = Path(tempfile.mkdtemp(prefix="recovery-", dir=store.parent)) / "store"
    subprocess.run(["cp", "-r", "--reflink=auto", "--sparse=always", store, home], check=True)
    # The store of a killed broker is on the disk except for the last half second; without a sync
    # the copy would be in memory only.
    os.sync()
    return home


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--apache", action="store_true", help="also Apache's broker, in turns")
    arguments = parser.parse_args()
    results: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="recovery-") as directory:
        killed = Path(directory) / "killed"
        fill(killed, arguments.megabytes, arguments.body, kill=True)
        stopped = Path(directory) / "stopped"
        fill(stopped, arguments.megabytes, arguments.body, kill=False)
        for _ in range(arguments.rounds):
            for name, store in (("killed", killed), ("Apache", killed)):
                if name == "Apache" and not arguments.apache:
                    continue
                home = copy_of(store)
                port = free_ports(3)
                make = theirs if name == "Apache" else ours
                place = home.parent if name == "Apache" else home
                results.setdefault(name, []).append(start_once(make(port, place), port))
                shutil.rmtree(home.parent)
            # Not a copy: the state written by a clean stop is used only in its original directory.
            results.setdefault("stopped", []).append(stop_and_start(stopped))
    for name, figures in results.items():
        measure(name, figures)


def stop_and_start(store: Path) -> tuple[float, float]:
    """Measure a start on a stopped store, then open it again and stop cleanly."""
    port = free_ports(3)
    result = start_once(ours(port, store), port)
    fill(store, 0, 1024, kill=False)
    return result


if __name__ == "__main__":
    main()
