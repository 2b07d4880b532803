"""``python -m tests.scenarios``: run scenarios without sockets, update their expectations."""

from __future__ import annotations

import argparse
import difflib
import logging
import sys
import tempfile
from pathlib import Path

import structlog

from tests.scenarios.running import run_virtually
from tests.scenarios.script import SCRIPTS, Script, names


def main() -> int:
    """Run the named scenarios, or all; return 1 if an outcome differs from its expectation."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("--update", action="store_true", help="rewrite the expectations")
    parser.add_argument("name", nargs="*", help="which; all if none is named")
    arguments = parser.parse_args()
    _be_quiet()
    differ = False
    for name in arguments.name or names("virtual"):
        script = Script.load(name)
        before = "\n".join(script.lines) + "\n"
        with tempfile.TemporaryDirectory() as root:
            after = run_virtually(script, Path(root))
        lines = difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), name, "as it went"
        )
        sys.stdout.writelines(lines)
        differ |= before != after
        if arguments.update:
            (SCRIPTS / f"{name}.txt").write_text(after)
    return int(differ and not arguments.update)


def _be_quiet() -> None:
    """Silence the logs of clients and brokers."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


if __name__ == "__main__":
    sys.exit(main())
