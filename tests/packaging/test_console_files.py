"""The console's vendored files, compared with the packages in npm's registry."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from pocketmq.console import app
from tests.support.npm import fetch

STATIC = Path(app.__file__).parent / "static"
VENDORED = json.loads((STATIC / "vendored.json").read_text())

pytestmark = pytest.mark.packaging


@pytest.mark.parametrize("name", VENDORED["packages"])
def test_they_are_what_was_published(name: str, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    package = VENDORED["packages"][name]
    archive = fetch(name, package["version"], package["integrity"], tmp_path)
    with tarfile.open(archive) as content:
        for ours, theirs in package["from"].items():
            stream = content.extractfile(f"package/{theirs}")
            assert stream is not None
            assert stream.read() == (STATIC / ours).read_bytes()
