"""Coverage-guided fuzzing of all parsers: a bounded number of cases, seeded with captures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS
from tests.support.sizes import size

pytest.importorskip("atheris", reason="atheris has no wheel for this interpreter")

RUNS = size(test=20_000, ci=30_000, soak=2_000_000)
SEEDS_PER_FILE = 8


@pytest.fixture(scope="module")
def corpus(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captured frames and their parts, stored messages, expressions and accounts, as files."""
    folder = tmp_path_factory.mktemp("corpus")
    seeds: list[bytes] = []
    for file in sorted((golden / "frames").glob("*.jsonl")):
        for line in file.read_text().splitlines()[:SEEDS_PER_FILE]:
            frame = bytes.fromhex(json.loads(line)["frame_hex"])
            header = int.from_bytes(frame[5:8], "big")
            seeds += [frame, frame[8 : 8 + header], frame[8 + header :]]
    messages = json.loads((golden / "messages.json").read_text())["messages"]
    seeds += [bytes.fromhex(message["hex"]) for message in messages]
    cases = json.loads((golden / "sql92.json").read_text())["cases"]
    seeds += [
        "\0".join((one["expression"], *one["properties"].values())).encode()
        for one in cases[::SEEDS_PER_FILE]
    ]
    seeds.append((golden / "frames" / "acl_enabled_broker.plain_acl.yml").read_bytes())
    patterns = json.loads((golden / "acl_addresses.json").read_text())["patterns"]
    seeds += [text.encode() for text in patterns]
    streams = (golden / "ha" / "stream.jsonl").read_text().splitlines()
    seeds += [bytes.fromhex(json.loads(line)["frame_hex"]) for line in streams]
    for number, seed in enumerate(filter(None, seeds)):
        (folder / f"{number:05}").write_bytes(seed)
    return folder


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_raises_nothing_but_the_protocols_errors(target: str, corpus: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz.run", target),
            *(f"-runs={RUNS}", "-seed=7", "-max_len=65536", "-timeout=10", "-rss_limit_mb=0"),
            f"-artifact_prefix={tmp_path}/",
            *(str(tmp_path), str(corpus)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-4000:]
