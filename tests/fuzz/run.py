"""One coverage-guided run: ``python -m tests.fuzz.run TARGET -runs=20000 [CORPUS …]``."""

from __future__ import annotations

import resource
import sys

import atheris

with atheris.instrument_imports(
    include=["broker.filters", "broker.replication", "remoting.access", "remoting.protocol"]
):
    from tests.fuzz.targets import TARGETS

MEMORY = 1 << 30
"""Bytes of address space: an input that needs more raises MemoryError and is reported."""


def main() -> None:
    """Fuzz the target named by the first argument; the others are libFuzzer's."""
    # libFuzzer's own limit compares the peak that Linux hands down from the process that starts it.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    program, name, *arguments = sys.argv
    atheris.Setup([program, *arguments], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
