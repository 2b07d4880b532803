"""What a name server can be told: RocketMQ's ``namesrv.conf`` keys and a few of PocketMQ's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Self

from nameserver.limits import MAX_BROKERS, MAX_ROUTE_ENTRIES
from remoting.settings import Refused, Settings, boolean, host, integer, path, refused, setting

DEFAULT_PORT: Final = 9876

_WITHOUT_EFFECT = """
    rocketmqHome productEnvName clusterTest configBlackList
    serverWorkerThreads serverSelectorThreads serverCallbackExecutorThreads
    serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverSocketSndBufSize
    serverSocketRcvBufSize serverSocketBacklog serverPooledByteBufAllocatorEnable
    serverNettyWorkerGroupEnable serverShutdownWaitSeconds useEpollNativeSelector
    writeBufferHighWaterMark writeBufferLowWaterMark bindAddress enableShutdownGracefully
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity
    defaultThreadPoolNums defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity
    notifyMinBrokerIdChanged needWaitForService waitSecondsForService
"""
_CONTROLLER = "PocketMQ's name server has no controller in it; take the key out"


@dataclass(frozen=True, kw_only=True)
class NameServerConfig(Settings):
    """A name server's settings, each under RocketMQ's key (cf. NamesrvConfig)."""

    KEYS_WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(_WITHOUT_EFFECT.split())
    REFUSED_KEYS: ClassVar[Mapping[str, Refused]] = {
        "useTLS": refused("PocketMQ doesn't speak TLS yet; take the key out"),
        "enableControllerInNamesrv": refused(_CONTROLLER),
        "supportActingMaster": refused("PocketMQ knows no acting master; take the key out"),
        "deleteTopicWithBrokerRegistration": refused(
            "PocketMQ forgets topics by DELETE_TOPIC_IN_NAMESRV only; take the key out"
        ),
        "enableTopicList": refused("PocketMQ always answers topic lists", "true", ""),
        "enableAllTopicList": refused("PocketMQ always answers topic lists", "true", ""),
    }

    bind_host: str = setting("pocketmqBindHost", host, "127.0.0.1")
    listen_port: int = setting("listenPort", integer(0, 65535), DEFAULT_PORT)
    kv_config_path: Path = setting(  # noqa: RUF009 - declares a field
        "kvConfigPath", path, factory=lambda: Path.home() / "namesrv" / "kvConfig.json"
    )
    config_store_path: Path | None = setting("configStorePath", path, None)  # noqa: RUF009 - a field
    """Where UPDATE_NAMESRV_CONFIG writes; the file it was read from, else nowhere."""
    order_message_enable: bool = setting("orderMessageEnable", boolean, False)
    """Whether routes carry the order topics' configuration."""
    return_order_topic_config_to_broker: bool = setting(
        "returnOrderTopicConfigToBroker", boolean, True
    )
    scan_not_active_broker_interval_ms: int = setting(
        "scanNotActiveBrokerInterval", integer(100, 3_600_000), 5_000
    )
    server_channel_max_idle_time_s: int = setting(
        "serverChannelMaxIdleTimeSeconds", integer(1, 86_400), 120
    )
    max_connections: int = setting("pocketmqMaxConnections", integer(1, 1_000_000), 10_000)
    max_brokers: int = setting("pocketmqMaxBrokers", integer(1, 100_000), MAX_BROKERS)
    max_route_entries: int = setting(
        "pocketmqMaxRouteEntries", integer(1, 10_000_000), MAX_ROUTE_ENTRIES
    )

    @classmethod
    def from_sources(
        cls,
        file: Path | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> Self:
        """As ``Settings.from_sources``; changes are stored in the file that was read."""
        config = super().from_sources(file, env, overrides)
        if file is None or config.config_store_path is not None:
            return config
        return replace(config, config_store_path=file)
