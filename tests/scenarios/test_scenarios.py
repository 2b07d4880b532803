"""Every scenario has the outcome in its text: without sockets, in processes, at Apache's brokers.

After an intended change, ``python -m tests.scenarios --update NAME`` rewrites the text, for review.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import processes
from tests.scenarios.clusters import BROKERS, OurProcesses, Running
from tests.scenarios.running import run_in_real_time, run_virtually
from tests.scenarios.script import Script, names

pytestmark = pytest.mark.timeout(300)


def text_of(script: Script) -> str:
    return "\n".join(script.lines) + "\n"


@pytest.mark.parametrize("name", names("virtual"))
def test_the_scenario_runs_as_written_without_sockets(name: str, tmp_path: Path) -> None:
    script = Script.load(name)
    assert run_virtually(script, tmp_path) == text_of(script)


@pytest.fixture(scope="module")
def our_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurProcesses]:
    with processes(tmp_path_factory.mktemp("processes"), brokers=BROKERS) as running:
        yield OurProcesses(running)


@pytest.mark.slow
@pytest.mark.parametrize("name", names("processes"))
def test_the_scenario_runs_as_written_over_processes(
    name: str, our_processes: OurProcesses
) -> None:
    script = Script.load(name)
    assert run_in_real_time(script, our_processes) == text_of(script)


@pytest.fixture(scope="module")
def apaches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    # Only here: without Java the others still run.
    from tests.interop.apache import apache, second_broker

    home = tmp_path_factory.mktemp("apache")
    with (
        apache("4.9.7", home) as first,
        second_broker("4.9.7", home / "b", first.nameserver, BROKERS[1]),
    ):
        yield Running("apache", first.nameserver)


@pytest.mark.interop
@pytest.mark.parametrize("name", names("apache"))
def test_the_scenario_runs_as_written_at_apaches_brokers(name: str, apaches: Running) -> None:
    script = Script.load(name)
    assert run_in_real_time(script, apaches) == text_of(script)


def test_an_unknown_step_is_an_error(tmp_path: Path) -> None:
    script = Script.parse("wrong", "a goes home\n")
    with pytest.raises(ValueError, match="wrong, line 1: what is 'a goes home'"):
        run_virtually(script, tmp_path)


def test_only_changed_expectations_are_rewritten() -> None:
    text = "topic T has 4 queues\n# why\n-> as it was\n-> [apache] elsewhere\nwait 1s\n-> nothing\n"
    script = Script.parse("some", text)
    assert script.with_outcomes({0: ["as it was"], 4: ["nothing"]}, "ours") == text.replace(
        "# why\n-> as it was\n-> [apache] elsewhere\n",
        "-> as it was\n-> [apache] elsewhere\n# why\n",
    )
    assert "-> now so\n" in script.with_outcomes({0: ["now so"], 4: []}, "ours")
