"""Every benchmark that is a program, in its smallest size."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sizes import size

ROOT = Path(__file__).parents[3]
PROGRAMS = {
    "benchmarks.floor": "--rounds 1 --only send-1x1",
    "benchmarks.everyday": "--rounds 1 --seconds 1",
    "benchmarks.store": "--rounds 1 --gigabytes 0.002 --queues 8 --seconds 1",
}
BESIDE_OTHERS = {
    "benchmarks": "--quick --only start",
    "benchmarks.clients": "--quick --only pocketmq,nats-py",
}
ELSEWHERE = {
    "benchmarks.before_after": "test_store_benchmarks.py",
    "benchmarks.signed": "test_loadgen.py",
    "benchmarks.spark": "tests/spark/test_benchmark.py",
}
"""Programs whose parts another file tests."""

STARTED_BY_PROGRAMS = re.compile(r"benchmarks\.(floor_python|.*\blane)|.*_lane")

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]


def output_of(program: str, words: str) -> str:
    command = [sys.executable, "-m", program, *words.split()]
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=280
    )
    # A missed bar, which is 1, is no failure: nobody compares these figures.
    assert run.returncode in {0, 1}, run.stderr
    assert "Traceback" not in run.stderr, run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("program", size(ci=["benchmarks.floor"], soak=list(PROGRAMS)))
def test_a_program_prints_its_figures(program: str) -> None:
    assert re.search(r"\d", output_of(program, PROGRAMS[program]))


# They build a wheel and measure for minutes: their parts are tested beside them.
@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.parametrize("program", size(ci=["benchmarks"], soak=list(BESIDE_OTHERS)))
def test_a_program_that_compares_prints_its_table(program: str) -> None:
    text = output_of(program, BESIDE_OTHERS[program])
    assert "not measured" not in text
    assert re.search(r"\d", text)


def test_every_program_is_tested() -> None:
    programs = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for path in (ROOT / "benchmarks").rglob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    }
    own = {program for program in programs if not STARTED_BY_PROGRAMS.fullmatch(program)}
    assert own == PROGRAMS.keys() | BESIDE_OTHERS.keys() | ELSEWHERE.keys()
