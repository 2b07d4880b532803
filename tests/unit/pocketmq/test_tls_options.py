"""``--tls`` and its parts apply to every connection that a command opens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from client.config import ClientOptions
from pocketmq.cli import root
from remoting.security.tls import Tls
from tests.harness.certificates import self_signed


def test_options_of_a_command_replace_those_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = str(self_signed(tmp_path).cert)
    # Set first, so that they are removed after the test.
    for name in ("TLS", "TLS_CA", "TLS_CHECK_HOSTNAME"):
        monkeypatch.setenv(f"POCKETMQ_CLIENT_{name}", "")
    given = ["--tls", "--tls-ca", ca, "--no-tls-check-hostname"]
    result = CliRunner().invoke(root, ["health", "--nameserver", "127.0.0.1:1", *given])
    assert result.exit_code == 1
    assert "Connection refused" in result.output
    assert ClientOptions.gather({}).tls == Tls(ca=ca, check_hostname=False)
    CliRunner().invoke(root, ["health", "--nameserver", "127.0.0.1:1", "--no-tls"])
    assert ClientOptions.gather({}).tls is None
    assert os.environ["POCKETMQ_CLIENT_TLS_CA"] == ca


def test_a_ca_file_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETMQ_CLIENT_TLS_CA", "")
    for command in (["health"], ["topic", "list"]):
        result = CliRunner().invoke(root, [*command, "--tls-ca", "none.pem"])
        assert result.exit_code != 0
        assert "the CA file none.pem can't be used: No such file or directory" in result.output
