"""The systemd units in deploy/: their sandbox, and that it leaves the servers what they need."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from broker.config import BrokerConfig
from nameserver.config import NameServerConfig
from tests.support.tour import HOME

STATE = Path("/var/lib/pocketmq")
BROKER, NAME_SERVER = (
    HOME / "deploy" / f"pocketmq-{name}.service" for name in ("broker", "nameserver")
)
UNITS = pytest.mark.parametrize("unit", [BROKER, NAME_SERVER], ids=lambda unit: unit.stem)
EXPOSURE_MAX = 2.0
"""Of systemd's scale from 0 to 10, where it calls less than 2 OK and a unit without a sandbox has
9.2; a network server can't have much less."""


def directives(unit: Path) -> list[tuple[str, str]]:
    lines = unit.read_text().splitlines()
    return [(key, value) for key, _, value in (line.partition("=") for line in lines) if value]


def option(unit: Path, name: str) -> str:
    """Return the value of an option of the unit's command."""
    words = shlex.split(dict(directives(unit))["ExecStart"])
    return words[words.index(name) + 1]


def sandbox(unit: Path) -> list[str]:
    own = ("#", "[", "Description", "After", "Environment", "ExecStart", "TimeoutStopSec")
    return [line for line in unit.read_text().splitlines() if not line.startswith(own)]


def test_both_units_have_the_same_sandbox() -> None:
    assert sandbox(BROKER) == sandbox(NAME_SERVER)
    assert "NoNewPrivileges=yes" in sandbox(BROKER)


@UNITS
def test_only_the_state_directory_is_written(unit: Path) -> None:
    found = dict(directives(unit))
    assert found["ProtectSystem"] == "strict"
    assert STATE.parent / found["StateDirectory"] == STATE
    assert not re.search("^(ReadWritePaths|LogsDirectory|RuntimeDirectory)", unit.read_text(), re.M)


def test_what_the_servers_write_is_below_the_state_directory() -> None:
    key, _, value = option(NAME_SERVER, "--set").partition("=")
    name_server = NameServerConfig.from_sources(overrides={key: value, "aclEnable": "true"})
    broker = BrokerConfig.from_sources(
        overrides={"storePathRootDir": option(BROKER, "--store"), "aclEnable": "true"}
    )
    for path in (
        name_server.kv_config_path,
        name_server.audit_path,
        broker.store_path_root_dir,
        broker.audit_path,
        broker.accounts_file,
    ):
        assert path is not None
        assert path.is_relative_to(STATE)


@pytest.mark.systemd
@UNITS
def test_systemd_accepts_the_unit_and_its_sandbox(unit: Path, tmp_path: Path) -> None:
    # verify wants the program to exist.
    installed = tmp_path / unit.name
    installed.write_text(unit.read_text().replace("/opt/pocketmq/bin/pocketmq", "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(installed)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert unit.name not in checked.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(installed)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (exposure,) = re.findall(r"exposure level for .*: ([0-9.]+)", rated.stdout)
    assert float(exposure) <= EXPOSURE_MAX
