"""One coverage-guided run: ``python -m tests.fuzz.run TARGET -runs=20000 [CORPUS …]``."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(
    include=["broker.filters", "broker.replication", "remoting.access", "remoting.protocol"]
):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz the target named by the first argument; the others are libFuzzer's."""
    program, name, *arguments = sys.argv
    atheris.Setup([program, *arguments], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
