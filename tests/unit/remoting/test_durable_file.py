"""A file that is replaced: what is left when the disk takes no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPLACE = """
import resource, sys
from pathlib import Path
from remoting.runtime.durable_file import replace
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    replace(Path(sys.argv[1]), b"x" * 1000)
except OSError:
    print("refused")
"""


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", REPLACE, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"topics.json": b"old"}
