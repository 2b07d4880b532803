"""The TLS settings of servers, and certificates that are replaced while a server runs."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from broker.config import BrokerConfig
from nameserver.config import NameServerConfig
from remoting.runtime.clock import SystemClock
from remoting.runtime.settings import ConfigError
from remoting.security.server_tls import ServerTls, TlsServerSettings
from remoting.security.tls import TlsError
from tests.harness.certificates import Pair, self_signed

KINDS = [BrokerConfig, NameServerConfig]
CERT = {"tls.server.certPath": "cert.pem", "tls.server.keyPath": "key.pem"}
CLIENTS = {"tls.server.authClient": "true", "tls.server.trustCertPath": "ca.pem"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "permissive"),
        (CERT, "permissive"),
        ({**CERT, "tls.server.mode": "Enforcing"}, "enforcing"),
        ({"tls.server.mode": "disabled"}, "disabled"),
        ({**CERT, **CLIENTS, "tls.server.need.client.auth": "require"}, "permissive"),
    ],
)
def test_rocketmqs_settings_are_accepted(
    kind: type[TlsServerSettings], settings: dict[str, str], expected: str
) -> None:
    assert kind.from_sources(overrides=settings).tls_server_mode == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tls.server.mode": "strict"}, "must be permissive or enforcing or disabled"),
        ({"tls.server.mode": "enforcing"}, "needs a certificate: set tls.server.certPath"),
        ({"tls.server.keyPath": "key.pem"}, "tls.server.keyPath needs tls.server.certPath"),
        ({"tls.test.mode.enable": "true"}, "nobody can verify a certificate that is made"),
        ({**CERT, "tls.server.need.client.auth": "require"}, "would accept any certificate"),
        ({**CERT, "tls.server.authClient": "true"}, "needs tls.server.trustCertPath"),
    ],
)
def test_settings_that_would_not_protect_are_refused(
    kind: type[TlsServerSettings], settings: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        kind.from_sources(overrides=settings)


@pytest.mark.parametrize("settings", [{}, {**CERT, "tls.server.mode": "disabled"}])
def test_without_a_certificate_and_when_disabled_there_is_no_tls(settings: dict[str, str]) -> None:
    assert ServerTls.of(BrokerConfig.from_sources(overrides=settings), SystemClock()) is None


@pytest.mark.parametrize("kind", KINDS)
def test_rocketmqs_file_of_tls_settings_is_read_last(
    kind: type[TlsServerSettings], tmp_path: Path
) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        "tls.test.mode.enable=false\ntls.server.need.client.auth=none\n"
        "tls.server.keyPath=/etc/a.key\ntls.server.keyPassword=hunter2\n"
        "tls.server.certPath=/etc/a.pem\ntls.server.authClient=false\n"
        "tls.server.trustCertPath=/etc/ca.pem\ntls.client.keyPath=/etc/b.key\n"
        "tls.client.keyPassword=hunter3\ntls.client.certPath=/etc/b.pem\n"
        "tls.client.authServer=false\ntls.client.trustCertPath=/etc/ca.pem\n"
    )
    given = {"tls.config.file": str(file), "tls.server.certPath": "/etc/other.pem"}
    settings = kind.from_sources(env={"POCKETMQ_TLS_SERVER_MODE": "enforcing"}, overrides=given)
    assert settings.tls_server_cert == Path("/etc/other.pem")
    assert settings.tls_server_key == Path("/etc/a.key")
    assert settings.tls_server_key_password == "hunter2"
    assert settings.tls_server_mode == "enforcing"
    assert "hunter" not in f"{settings!r}{settings.as_properties()}"
    with pytest.raises(ConfigError, match=r"none\.properties can't be read: No such file"):
        kind.from_sources(overrides={"tls.config.file": str(tmp_path / "none.properties")})


class Files:
    """The files of a server, which can be replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pair = Pair(folder / "cert.pem", folder / "key.pem")

    def put(self, other: Pair) -> None:
        for new, old in zip(other, self.pair, strict=True):
            fresh = self._folder / "new"
            shutil.copyfile(new, fresh)
            fresh.replace(old)

    def tls(self) -> ServerTls:
        given = {
            "tls.server.certPath": str(self.pair.cert),
            "tls.server.keyPath": str(self.pair.key),
        }
        tls = ServerTls.of(TlsServerSettings.from_sources(overrides=given), SystemClock())
        assert tls is not None
        return tls


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    folder = tmp_path_factory.mktemp("pairs")
    return [self_signed(folder, str(days), days=days) for days in (30, 90, 5, -1)]


@pytest.fixture
def files(tmp_path: Path, pairs: list[Pair]) -> Files:
    files = Files(tmp_path)
    files.put(pairs[0])
    return files


def test_replaced_files_are_used(files: Files, pairs: list[Pair]) -> None:
    tls = files.tls()
    tls.open()
    before = tls.context
    assert tls.days_left == 29
    assert not tls.refresh()
    files.put(pairs[1])
    assert tls.refresh()
    assert tls.context is not before
    assert tls.days_left == 89


def test_broken_files_keep_the_certificate_and_are_reported_once(
    files: Files, pairs: list[Pair], caplog: pytest.LogCaptureFixture
) -> None:
    tls = files.tls()
    tls.open()
    before = tls.context
    shutil.copyfile(pairs[1].cert, files.pair.cert)
    for _ in range(5):
        assert not tls.refresh()
    assert tls.context is before
    assert "mismatch" in tls.problem
    files.pair.cert.unlink()
    for _ in range(5):
        assert not tls.refresh()
    assert [line.rpartition("can't be used: ")[2] for line in caplog.messages] == [
        "key values mismatch",
        "No such file or directory",
    ]
    files.put(pairs[1])
    assert tls.refresh()
    assert not tls.problem


def test_a_pair_that_is_being_replaced_is_not_reported(
    files: Files, pairs: list[Pair], caplog: pytest.LogCaptureFixture
) -> None:
    tls = files.tls()
    tls.open()
    shutil.copyfile(pairs[1].cert, files.pair.cert)
    assert not tls.refresh()
    shutil.copyfile(pairs[1].key, files.pair.key)
    assert tls.refresh()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_certificate_that_expires_soon_is_reported(
    files: Files, pairs: list[Pair], caplog: pytest.LogCaptureFixture
) -> None:
    tls = files.tls()
    tls.open()
    tls.warn()
    assert not caplog.messages
    for pair, text in ((pairs[2], "expires soon"), (pairs[3], "has expired")):
        files.put(pair)
        assert tls.refresh()
        caplog.clear()
        tls.warn()
        tls.warn()
        (line,) = caplog.messages
        assert text in line
        assert f"days_left={tls.days_left}" in line


def test_files_that_cannot_be_used_at_the_start_are_an_error(files: Files) -> None:
    files.pair.key.unlink()
    with pytest.raises(TlsError, match=r"cert\.pem and the key .* can't be used: No such file"):
        files.tls().open()
