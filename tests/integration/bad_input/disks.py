"""Full disks under a broker: a real one where mounting is allowed, and a simulated one."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from broker.app import Broker
from broker.config import BrokerConfig
from nameserver.app import NameServer
from nameserver.config import NameServerConfig
from pocketmq.testing import StandaloneServer
from tests.unit.broker.store.stores import FailingFiles

MIB = 1024 * 1024
FILE_BYTES = 256 * 1024
QUEUE_BYTES = 20_000
DISK_BYTES = 24 * MIB


def mount(directory: Path, *options: str) -> bool:
    """Mount a file system; return whether it worked."""
    done = subprocess.run(["mount", *options, str(directory)], capture_output=True, check=False)
    return done.returncode == 0


def unmount(directory: Path) -> None:
    subprocess.run(["umount", "-l", str(directory)], capture_output=True, check=False)


def may_mount() -> bool:
    """Return whether this user may mount file systems."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        try:
            works = mount(directory, "-t", "tmpfs", "-o", "size=1m", "none")
        except OSError:
            return False
        unmount(directory)
        return works


class Disk(ABC):
    """A disk with a name server and a broker on it.

    Attributes:
        nameserver: the address of the name server.
    """

    nameserver: str

    @abstractmethod
    async def fill(self) -> None:
        """Fill the disk completely."""

    @abstractmethod
    async def free(self) -> None:
        """Free the space again."""

    @abstractmethod
    async def restart_broker(self) -> None:
        """Restart the broker cleanly on its store."""


class RealDisk(Disk):
    """A tmpfs under a server process; ``settings`` are the broker's."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self._ballast = directory / "ballast"
        self._server = StandaloneServer(
            directory / "store",
            {
                "mappedFileSizeCommitLog": str(FILE_BYTES),
                "mappedFileSizeConsumeQueue": str(QUEUE_BYTES),
                **settings,
            },
        )

    def start(self) -> None:
        self._server.start()
        self.nameserver = self._server.nameserver

    def kill(self) -> None:
        self._server.kill()

    async def restart_killed(self) -> None:
        """Restart the killed broker."""
        await asyncio.to_thread(self._server.restart)

    @property
    def log(self) -> str:
        """Return the logs of the servers, over all restarts."""
        return self._server.log

    async def fill(self) -> None:
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    async def free(self) -> None:
        self._ballast.unlink()

    async def restart_broker(self) -> None:
        await asyncio.to_thread(self._server.stop)
        await asyncio.to_thread(self._server.restart)


class FullFiles(FailingFiles):
    """Refuses state files, too."""

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        self.before_write(path)
        super().replace(path, data, backup=backup)


class PretendedDisk(Disk):
    """Files that refuse to grow, under servers in this process."""

    def __init__(self, directory: Path, nameserver: NameServer) -> None:
        self.nameserver = nameserver.address
        self._directory = directory
        self._files = FullFiles()
        self._broker = self._make_broker(0)

    async def start(self) -> None:
        await self._broker.start()

    async def stop(self) -> None:
        await self._broker.stop()

    async def fill(self) -> None:
        self._files.full = True

    async def free(self) -> None:
        self._files.full = False

    async def restart_broker(self) -> None:
        await self._broker.stop()
        self._broker = self._make_broker(self._broker.port)
        await self._broker.start()

    def _make_broker(self, port: int) -> Broker:
        config = BrokerConfig(
            broker_name="broker-a",
            listen_port=port,
            namesrv_addr=(self.nameserver,),
            store_path_root_dir=self._directory / "store",
            mapped_file_size_commit_log=FILE_BYTES,
            mapped_file_size_consume_queue=QUEUE_BYTES,
        )
        return Broker(config, files=self._files)


KINDS = ["pretended", *(["real"] if may_mount() else [])]


@asynccontextmanager
async def disk_of(kind: str, directory: Path) -> AsyncIterator[Disk]:
    """A disk of one of ``KINDS`` with its servers, which are stopped afterwards."""
    if kind == "pretended":
        kv = directory / "kvConfig.json"
        async with NameServer(NameServerConfig(listen_port=0, kv_config_path=kv)) as nameserver:
            pretended = PretendedDisk(directory, nameserver)
            await pretended.start()
            try:
                yield pretended
            finally:
                await pretended.free()
                await pretended.stop()
        return
    async with real_disk(directory) as real:
        yield real


@asynccontextmanager
async def real_disk(directory: Path, **settings: str) -> AsyncIterator[RealDisk]:
    """A real disk with its servers, which are stopped afterwards."""
    assert mount(directory, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none")
    real = RealDisk(directory, **settings)
    try:
        await asyncio.to_thread(real.start)
        yield real
    finally:
        real.kill()
        unmount(directory)
