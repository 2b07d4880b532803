"""A name server's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from nameserver.config import NameServerConfig
from remoting.runtime.settings import ConfigError


def config(**keys: str) -> NameServerConfig:
    return NameServerConfig.from_sources(None, {}, keys)


def test_defaults_are_rocketmqs() -> None:
    read = config()
    assert (read.listen_port, read.bind_host) == (9876, "127.0.0.1")
    assert read.kv_config_path == Path.home() / "namesrv" / "kvConfig.json"
    assert read.config_store_path is None
    assert not read.order_message_enable


def test_changes_are_stored_in_the_file_that_was_read(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=0\nrocketmqHome=/opt/rocketmq\n")
    read = NameServerConfig.from_sources(file)
    assert read.config_store_path == file
    assert read.ignored_keys == ("rocketmqHome",)
    elsewhere = NameServerConfig.from_sources(file, {}, {"configStorePath": "/x"})
    assert elsewhere.config_store_path == Path("/x")


@pytest.mark.parametrize(
    "key", ["tls.test.mode.enable", "enableControllerInNamesrv", "supportActingMaster"]
)
def test_what_would_be_dangerous_to_ignore_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        config(**{key: "true"})
    assert config(**{key: "false"}) == config()


def test_every_key_that_apaches_name_server_reports_is_known() -> None:
    reported = """
        serverSocketBacklog writeBufferHighWaterMark serverWorkerThreads serverSelectorThreads
        serverChannelMaxIdleTimeSeconds writeBufferLowWaterMark serverSocketRcvBufSize
        serverAsyncSemaphoreValue kvConfigPath configStorePath clusterTest orderMessageEnable
        serverSocketSndBufSize serverOnewaySemaphoreValue serverCallbackExecutorThreads listenPort
        rocketmqHome productEnvName useEpollNativeSelector serverPooledByteBufAllocatorEnable
    """
    assert set(reported.split()) <= NameServerConfig.known_keys()
