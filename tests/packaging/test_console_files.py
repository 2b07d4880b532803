"""The console's vendored files, compared with the packages in npm's registry."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from pocketmq.console import app

STATIC = Path(app.__file__).parent / "static"
VENDORED = json.loads((STATIC / "vendored.json").read_text())

pytestmark = pytest.mark.packaging


@pytest.mark.parametrize("name", VENDORED["packages"])
def test_they_are_what_was_published(name: str, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    package = VENDORED["packages"][name]
    command = ["npm", "pack", "--silent", f"{name}@{package['version']}"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=100)
    [archive] = tmp_path.glob("*.tgz")
    digest = hashlib.sha512(archive.read_bytes()).digest()
    assert f"sha512-{base64.b64encode(digest).decode()}" == package["integrity"]
    with tarfile.open(archive) as content:
        for ours, theirs in package["from"].items():
            stream = content.extractfile(f"package/{theirs}")
            assert stream is not None
            assert stream.read() == (STATIC / ours).read_bytes()
