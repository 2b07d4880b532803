from remoting.protocol.disk.index_file import IndexTable, Links

class KeyBatch:
    """Entries in the order in which they go into files; see ``keys.pyx``."""

    def __len__(self) -> int: ...
    def rows(self) -> list[tuple[int, int, int]]: ...
    def link(self, table: IndexTable, start: int, stop: int) -> Links: ...

def walk(data: memoryview, base: int) -> tuple[KeyBatch, int]:
    """The keys of the records at the beginning of a piece of the log, and the bytes they take."""
