"""A simulated disk in memory that can lose power at any operation.

The contents of a file in the page cache and on the disk are two arrays of bytes. A store through
the map, a write and an allocation change the first; a sync, and the system's write-back at any
time, copy sectors of 512 bytes from the first to the second. A directory also has current names and
durable names. When the power fails, each sector, length and name that was not synced is
kept or lost at random, by the test's seed; this produces torn records, files without their length,
deleted files that reappear, and later writes that survive earlier ones. A failed sync loses some of
its sectors permanently, although they can still be read: the next sync succeeds and doesn't write
them, as on Linux.

A store through the map into a page that was never allocated would raise SIGBUS: here the next
operation on that file fails an assertion.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from zlib import crc32

from broker.store.os_files import DiskUse, Lock, Region, Stamp

SECTOR = 512
PAGE = 4096
ROOT = Path("/store")


class PowerCut(BaseException):
    """The simulated machine lost power: no later operation reaches the disk."""


class Inode:
    """A file: its current contents, and its durable contents."""

    def __init__(self, number: int, content: bytes = b"") -> None:
        self.number = number
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.blocks = {
            at // PAGE for at in range(0, len(content), PAGE) if any(content[at:][:PAGE])
        }
        self.dropped: dict[int, bytes] = {}

    def dirty(self) -> list[int]:
        """Return the sectors that a crash may lose."""
        self.check()
        if self.content == self.durable:
            return []
        return [
            at
            for at in range(0, len(self.content), SECTOR)
            if self.content[at : at + SECTOR] != self.durable[at : at + SECTOR]
        ]

    def check(self) -> None:
        """Assert that pages without blocks are empty."""
        for at in range(0, len(self.content), PAGE):
            page = self.content[at : at + PAGE]
            assert at // PAGE in self.blocks or not any(page), "a store into a page without blocks"

    def write_back(self, sectors: list[int]) -> None:
        """Write sectors to the disk, except those lost by a failed sync."""
        if len(self.durable) != len(self.content):
            self.durable = self.durable.ljust(len(self.content), b"\0")[: len(self.content)]
        for at in sectors:
            sector = bytes(self.content[at : at + SECTOR])
            if self.dropped.get(at) != sector:
                self.durable[at : at + SECTOR] = sector

    def survivor(self, random: Random, kept: float, number: int) -> Inode:
        """Return the file as a crash leaves it."""
        if len(self.durable) != len(self.content) and random.random() >= kept:
            return Inode(number, bytes(self.durable))
        self.write_back([at for at in self.dirty() if random.random() < kept])
        return Inode(number, bytes(self.durable))


class Directory:
    """A directory: its current names, and its durable names."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.changes = 0

    def set(self, name: str, node: Node | None) -> None:
        """Create, replace or remove a name."""
        self.changes += 1
        if node is None:
            self.names.pop(name, None)
        else:
            self.names[name] = node

    def survivor(self, random: Random, kept: float) -> dict[str, Node]:
        """Return the names that a crash leaves."""
        left: dict[str, Node] = {}
        for name in sorted({*self.names, *self.durable}):
            now, then = self.names.get(name), self.durable.get(name)
            node = now if now is then or random.random() < kept else then
            if node is not None:
                left[name] = node
        return left


Node = Inode | Directory


class SimulatedRegion:
    """An open file of the disk."""

    def __init__(self, disk: SimulatedDisk, inode: Inode, path: Path) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self.view = memoryview(inode.content)

    def write(self, position: int, data: bytes | memoryview) -> None:
        self._disk.step("write", self._path)
        self._take(position, len(data))
        for sector in range(position // SECTOR, (position + len(data)) // SECTOR + 1):
            self._inode.dropped.pop(sector * SECTOR, None)
        self.view[position : position + len(data)] = data

    def allocate(self, position: int, length: int) -> bool:
        self._disk.step("allocate", self._path)
        self._take(position, length)
        return True

    def _take(self, position: int, length: int) -> None:
        self._inode.check()
        for page in range(position // PAGE, (position + length - 1) // PAGE + 1):
            self._disk.take(self._inode, page, self._path)

    def extents(self, position: int) -> Iterator[tuple[int, int]]:
        for page in sorted(self._inode.blocks):
            end = min((page + 1) * PAGE, len(self.view))
            if end > position:
                yield max(position, page * PAGE), end

    def sync(self) -> None:
        self._disk.sync(self._inode, self._path)

    def is_whole(self) -> bool:
        return len(self._inode.content) == len(self.view)

    def is_cached(self, position: int, length: int) -> bool | None:
        return True

    def fetch(self, position: int, length: int) -> None:
        pass

    def read_ahead(self, position: int, length: int) -> None:
        pass


class SimulatedLock:
    """A lock that ends with its disk."""

    def __init__(self, held: set[Path], path: Path) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class SimulatedDisk:
    """A ``Files`` in memory.

    Attributes:
        steps: operations so far.
        cut_at: the operation at which the power goes; 0 for none.
        faults: chances that an operation of a kind fails: ``{"sync": 0.01}``; see ``step``.
        free: what ``free_bytes`` says.
        full: there are no more blocks; what has blocks can be written all the same.
        crashed: what the power cut left.
    """

    def __init__(self, random: Random, root: Directory | None = None) -> None:
        self.random = random
        self.steps = 0
        self.cut_at = 0
        self.kept = 0.5
        self.written_back = 0.0
        self.faults: dict[str, float] = {}
        self.free = 1 << 40
        self.full = False
        self.crashed: SimulatedDisk | None = None
        self._locks: set[Path] = set()
        self.inodes = 1
        self._root = root or Directory(0)

    # --- faults

    def step(self, kind: str, path: Path) -> None:
        """An operation begins: of the kind write, allocate, sync, create, name or look.

        Raises:
            PowerCut: it is not done any more.
            OSError: it fails: with EIO or, if it takes space, with ENOSPC.
        """
        if self.crashed is not None:
            raise PowerCut
        self.steps += 1
        if self.steps == self.cut_at:
            self.cut()
            raise PowerCut
        if self.written_back and self.random.random() < self.written_back:
            self._write_some_back()
        if (chance := self.faults.get(kind)) and self.random.random() < chance:
            takes_space = kind in {"write", "allocate", "create"}
            number = errno.ENOSPC if takes_space and self.random.random() < 0.7 else errno.EIO
            raise OSError(number, os.strerror(number), str(path))

    def cut(self) -> SimulatedDisk:
        """Cut the power; return the disk as the next start finds it."""
        survivors: dict[int, Node] = {}

        def left_of(node: Node) -> Node:
            # A file that stands under two names is one file still.
            if node.number not in survivors:
                if isinstance(node, Inode):
                    survivors[node.number] = node.survivor(self.random, self.kept, node.number)
                else:
                    survivors[node.number] = directory = Directory(node.number)
                    for name, child in node.survivor(self.random, self.kept).items():
                        directory.names[name] = left_of(child)
                    directory.durable = dict(directory.names)
            return survivors[node.number]

        root = left_of(self._root)
        assert isinstance(root, Directory)
        self.crashed = SimulatedDisk(self.random, root)
        self.crashed.inodes = self.inodes
        return self.crashed

    def sync(self, inode: Inode, path: Path) -> None:
        try:
            self.step("sync", path)
        except OSError:
            for at in inode.dirty():
                if self.random.random() < 0.5:
                    inode.dropped[at] = bytes(inode.content[at : at + SECTOR])
            raise
        inode.write_back(inode.dirty())

    def _write_some_back(self) -> None:
        files = [node for node in self._all(self._root) if isinstance(node, Inode)]
        for inode in files:
            inode.write_back([at for at in inode.dirty() if self.random.random() < 0.3])

    def _all(self, directory: Directory) -> Iterator[Node]:
        for node in directory.names.values():
            yield node
            if isinstance(node, Directory):
                yield from self._all(node)

    # --- names

    def _find(self, path: Path | str) -> Node | None:
        node: Node | None = self._root
        for name in Path(path).parts[1:]:
            if not isinstance(node, Directory):
                return None
            node = node.names.get(name)
        return node

    def _directory(self, path: Path) -> Directory:
        node = self._find(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node

    def _number(self) -> int:
        self.inodes += 1
        return self.inodes

    def _new_file(self, path: Path) -> Inode:
        inode = Inode(self._number())
        self._directory(path.parent).set(path.name, inode)
        return inode

    def edit(self, path: Path, change: Callable[[bytearray], None]) -> None:
        """Change a file's bytes in place, as another process would."""
        inode = self._find(path)
        assert isinstance(inode, Inode)
        change(inode.content)
        inode.durable[:] = inode.content

    def make_directory(self, path: Path, *, durable: bool = False) -> None:
        if self._find(path) is None:
            self.make_directory(path.parent, durable=durable)
            self.step("create", path)
            self._directory(path.parent).set(path.name, Directory(self._number()))
            if durable:
                self.sync_directory(path.parent)

    def list(self, path: Path) -> list[str]:
        node = self._find(path)
        return sorted(node.names) if isinstance(node, Directory) else []

    def size(self, path: Path) -> int | None:
        node = self._find(path)
        return len(node.content) if isinstance(node, Inode) else None

    def stamp(self, path: Path | str) -> Stamp:
        node = self._find(path)
        if isinstance(node, Inode):
            return [len(node.content), node.number, crc32(node.content)]
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return [0, node.number, node.changes]

    def read(self, path: Path) -> bytes | None:
        node = self._find(path)
        return bytes(node.content) if isinstance(node, Inode) else None

    def write(self, path: Path, data: bytes) -> None:
        self.step("create", path)
        inode = self._find(path)
        if inode is None:
            inode = self._new_file(path)
        assert isinstance(inode, Inode)
        self._fill(inode, path, data)

    def take(self, inode: Inode, page: int, path: Path) -> None:
        """Allocate a block for a page of a file; raise ``OSError`` if there is none."""
        if self.full and page not in inode.blocks:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        inode.blocks.add(page)

    def _fill(self, inode: Inode, path: Path, data: bytes) -> None:
        for page in range((len(data) + PAGE - 1) // PAGE):
            self.take(inode, page, path)
        inode.content[:] = data
        self.sync(inode, path)

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        if backup:
            self.replace(path.with_name(path.name + ".bak"), data, backup=False)
        temporary = path.with_name(path.name + ".tmp")
        self.step("create", temporary)
        inode = self._new_file(temporary)
        self._fill(inode, temporary, data)
        self.step("name", path)
        directory = self._directory(path.parent)
        directory.set(path.name, inode)
        directory.set(temporary.name, None)
        self.sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        self.step("name", path)
        parent = self._find(path.parent)
        if isinstance(parent, Directory):
            parent.set(path.name, None)

    def remove_directory(self, path: Path) -> None:
        self.remove(path)

    def sync_directory(self, path: Path) -> None:
        self.step("sync", path)
        directory = self._directory(path)
        directory.durable = dict(directory.names)

    def sync_filesystem(self, directory: Path) -> bool:
        # A failure of another file is reported by the sync of that file, too.
        for node in list(self._all(self._directory(directory))):
            if isinstance(node, Inode):
                self.sync(node, directory)
        self._root.durable = dict(self._root.names)
        for node in self._all(self._root):
            if isinstance(node, Inode):
                node.write_back(node.dirty())
            else:
                node.durable = dict(node.names)
        return True

    # --- files

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        self.step("create" if create else "look", path)
        inode = self._find(path)
        if inode is None and create:
            inode = self._new_file(path)
        if not isinstance(inode, Inode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if create and not inode.content:
            self.step("create", path)
            inode.content.extend(bytes(size))
        if len(inode.content) != size:
            raise OSError(errno.EINVAL, "it has another length", str(path))
        return SimulatedRegion(self, inode, path)

    def lock(self, path: Path, text: bytes) -> Lock | None:
        if path in self._locks:
            return None
        self.step("create", path)
        self._locks.add(path)
        if self._find(path) is None:
            inode = self._new_file(path)
            inode.content.extend(text)
            inode.blocks.add(0)
        return SimulatedLock(self._locks, path)

    def free_bytes(self, path: Path) -> int:
        return self.free

    def disk_use(self, path: Path) -> DiskUse:
        return DiskUse(self.free // 10, self.free)
