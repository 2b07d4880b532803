"""Count the files that one message passes through: ``python scripts/hops.py [--check] [--list]``.

These are the files that a reader opens to follow a message: the product's files that run code for
one warm operation, at the broker for a send and for a pull, at the client for ``producer.send`` and
for a message from the socket to a push handler. Each operation runs several times, and a file
counts if it ran every time, which excludes timers and heartbeats. Compiled modules don't show up
in a profile, so those on the path are added by name. ``--check`` exits 1 above the bars.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

HOME = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOME))

import client  # noqa: E402 - from this clone
from remoting.pool import ConnectionPool  # noqa: E402
from remoting.protocol.codes import RequestCode  # noqa: E402
from remoting.protocol.command import Command  # noqa: E402
from remoting.protocol.headers.pull import PullMessageRequestHeader  # noqa: E402

REPEATS = 20
WARM = 50
SIGNAL_SECONDS = 0.02
"""Seconds within which a signal is handled."""
BARS = {"send": 13, "pull": 11, "producer": 13, "consumer": 16}
"""Maximum number of files, including compiled modules."""

COMPILED = {
    "send": ["broker/fast_path/read_pass", *(f"core/{n}" for n in ("header", "record", "answer"))],
    "pull": ["broker/fast_path/read_pass", *(f"core/{n}" for n in ("header", "answer"))],
    "producer": ["core/messages", "core/record"],
    "consumer": ["core/messages", "core/record"],
}

SENDER = """\
import sys
from client import blocking
with blocking.Producer(sys.argv[1], group="outside") as producer:
    for line in sys.stdin:
        producer.send("hops", line.encode(), tag="t", keys=["k"])
"""
"""Runs in another process, so that the producer's files don't count for the consumer."""


class Recorder:
    """A profile function that records the product's files whose functions are called."""

    def __init__(self) -> None:
        self._files: dict[str, None] = {}
        self._on = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self._on and event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(HOME) and path.relative_to(HOME).parts[0] in PACKAGES:
                self._files[str(path.relative_to(HOME))] = None

    def begin(self) -> None:
        """Clear the record, and start recording."""
        self._files.clear()
        self._on = True

    def end(self) -> list[str]:
        """Return the recorded files, in the order of the first calls."""
        self._on = False
        return list(self._files)


PACKAGES = frozenset({"remoting", "nameserver", "broker", "client", "pocketmq"})


def serve(store: str) -> None:
    """Run servers under a recorder: SIGUSR1 starts it, SIGUSR2 prints its files."""
    recorder = Recorder()
    signal.signal(signal.SIGUSR1, lambda *_: recorder.begin())
    signal.signal(signal.SIGUSR2, lambda *_: say(recorder.end()))

    def say(files: list[str]) -> None:
        sys.stdout.write(json.dumps(files) + "\n")
        sys.stdout.flush()

    sys.setprofile(recorder)
    threading.setprofile(recorder)
    from pocketmq.__main__ import main  # noqa: PLC0415 - under the recorder

    ports = ["--nameserver-port", "0", "--broker-port", "0"]
    sys.argv = ["pocketmq", "standalone", "--store", store, "--json", *ports]
    main()


class Server:
    """A name server and a broker in a process that records the files that run."""

    def __init__(self, store: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", store],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        ready = json.loads(self._line())
        self.nameserver, self.broker = str(ready["nameserver"]), str(ready["broker"])

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    async def files(self, operation: Callable[[], Awaitable[object]]) -> list[str]:
        """Run an operation; return the files that ran."""
        self._process.send_signal(signal.SIGUSR1)
        await asyncio.sleep(SIGNAL_SECONDS)
        await operation()
        self._process.send_signal(signal.SIGUSR2)
        found: list[str] = json.loads(await asyncio.to_thread(self._line))
        return found

    def stop(self) -> None:
        """Stop the process."""
        self._process.terminate()
        self._process.wait(20)


def in_all(runs: list[list[str]]) -> list[str]:
    """Return the files that ran every time."""
    return [name for name in runs[0] if all(name in run for run in runs)]


async def measure(server: Server) -> dict[str, list[str]]:
    """Return the files on each path."""
    mine = Recorder()
    sys.setprofile(mine)
    runs: dict[str, list[list[str]]] = {name: [] for name in BARS}
    async with client.Producer(server.nameserver, group="hops") as producer:

        async def send() -> None:
            mine.begin()
            await producer.send("hops", b"the one", tag="t", keys=["k"])
            runs["producer"].append(mine.end())

        for _ in range(WARM):
            await producer.send("hops", b"warm", tag="t", keys=["k"])
        for _ in range(REPEATS):
            runs["send"].append(await server.files(send))
        queue = (await producer.send("hops", b"the last")).queue
    pull = Command.request(
        RequestCode.PULL_MESSAGE,
        PullMessageRequestHeader(
            consumer_group="hops-pull",
            topic="hops",
            queue_id=queue.queue_id,
            queue_offset=0,
            max_msg_nums=32,
            sys_flag=4,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
        ),
    )
    pool = ConnectionPool()
    try:
        broker = await pool.get(server.broker)
        for number in range(REPEATS + 1):  # The first pull creates the group and caches its plan.
            noted = await server.files(lambda: broker.request(pull, timeout=5.0))
            if number:
                runs["pull"].append(noted)
    finally:
        await pool.close()
    handled = asyncio.Event()

    async def handle(_: client.ReceivedMessage[bytes]) -> None:
        handled.set()

    outside = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SENDER, server.nameserver), stdin=subprocess.PIPE, cwd=HOME
    )
    assert outside.stdin is not None
    async with client.PushConsumer(
        server.nameserver, group="hops-push", subscribe={"hops": client.Tags("t")}, handler=handle
    ):
        for number in range(REPEATS + 1):  # The first one is not warm.
            handled.clear()
            mine.begin()
            outside.stdin.write(b"from outside\n")
            await asyncio.wait_for(handled.wait(), 20)
            await asyncio.sleep(SIGNAL_SECONDS)
            noted = mine.end()
            if number:
                runs["consumer"].append(noted)
    sys.setprofile(None)
    outside.stdin.close()
    await outside.wait()
    return {name: in_all(found) + COMPILED[name] for name, found in runs.items()}


def main() -> int:
    """Count the files, print them and compare with the bars."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit 1 above the limits")
    parser.add_argument("--list", action="store_true", help="print the files, in order")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    with tempfile.TemporaryDirectory() as store:
        server = Server(store)
        try:
            ways = asyncio.run(measure(server))
        finally:
            server.stop()
    for name, files in ways.items():
        sys.stdout.write(f"{name}: {len(files)} files, at most {BARS[name]}\n")
        if options.list:
            sys.stdout.writelines(f"  {file}\n" for file in files)
    too_long = [name for name, files in ways.items() if len(files) > BARS[name]]
    return 1 if options.check and too_long else 0


if __name__ == "__main__":
    sys.exit(main())
