"""The settings of a name server, and its limits.

The keys are RocketMQ's (``namesrv.conf``) and a few of PocketMQ's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Self

from remoting.access.audit import AUTO, audit_path, audit_setting
from remoting.addresses import is_loopback
from remoting.runtime.settings import RefusedKey, boolean, host, integer, path, refused, setting
from remoting.security.server_tls import TLS_REFUSED_KEYS, TlsServerSettings

MAX_BROKERS: Final = 2_000
"""Registered broker addresses; the largest known clusters have several hundred."""

MAX_ROUTE_ENTRIES: Final = 1_000_000
"""Pairs of a topic and a broker, about 300 MB: for example 100,000 topics at ten brokers each."""

MAX_FILTER_SERVERS: Final = 64
"""Filter servers of one broker, a feature of 3.x; brokers since 4.0 send none."""

MAX_NAME_LENGTH: Final = 255
"""Characters of a cluster's, broker's or topic's name and of an address."""

MAX_QUEUES: Final = 65_536
"""Queues of a topic at one broker. Larger numbers in a registration are reduced to this, because
clients build a list of the queues."""

MAX_KV_ENTRIES: Final = 100_000
"""Entries of the key-value table in all namespaces."""

MAX_KV_TEXT_LENGTH: Final = 65_536
"""Characters of a namespace, a key or a value; an order topic's value has about 20 per broker."""

MAX_KV_BYTES: Final = 32 * 1024 * 1024
"""Size of all texts of the key-value table as JSON, namespaces included."""

MAX_WATCHED_TOPICS: Final = 10_000
"""Topics whose route changes one connection may subscribe to."""

MAX_WATCHES: Final = 1_000_000
"""The same limit for all connections together, about 200 MB."""

BROKER_TIMEOUT_MS: Final = 120_000
"""A broker is removed after this long without a registration or heartbeat."""

MAX_BROKER_TIMEOUT_MS: Final = 3_600_000
"""The longest timeout that a broker may request instead of the default."""

DEFAULT_PORT: Final = 9876


class LimitError(Exception):
    """A request would exceed a limit of a table; nothing was changed."""


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
    useTLS tls.client.keyPath tls.client.keyPassword tls.client.certPath tls.client.authServer
    tls.client.trustCertPath
"""
RUNTIME_KEYS: Final = frozenset(
    {"orderMessageEnable", "returnOrderTopicConfigToBroker", "scanNotActiveBrokerInterval"}
    | {"pocketmqMaxBrokers", "pocketmqMaxRouteEntries"}
)
"""Settings that a request may change; all others need a restart."""

_CONTROLLER = "PocketMQ's name server has no controller; remove the key"


@dataclass(frozen=True, kw_only=True)
class NameServerConfig(TlsServerSettings):
    """A name server's settings, each under RocketMQ's key (cf. NamesrvConfig)."""

    KEYS_WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(_WITHOUT_EFFECT.split())
    REFUSED_KEYS: ClassVar[Mapping[str, RefusedKey]] = {
        **TLS_REFUSED_KEYS,
        "enableControllerInNamesrv": refused(_CONTROLLER),
        "supportActingMaster": refused("PocketMQ has no acting master; remove the key"),
        "deleteTopicWithBrokerRegistration": refused(
            "PocketMQ forgets topics by DELETE_TOPIC_IN_NAMESRV only; remove the key"
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
    """The file that UPDATE_NAMESRV_CONFIG writes, by default the file that was read at the start;
    None: changes are not saved."""
    acl_enable: bool = setting("aclEnable", boolean, False)
    """Whether requests that change something must be signed; see ``nameserver.permissions``."""
    acl_file: Path | None = setting("pocketmqAclFile", path, None)  # noqa: RUF009 - a field
    """The accounts; if None, ``plain_acl.yml`` beside the key-value table."""
    audit_log: str = setting("pocketmqAuditLog", audit_setting, AUTO)
    """See ``audit_path``."""
    order_message_enable: bool = setting("orderMessageEnable", boolean, False)
    """Whether routes contain the configuration of order topics."""
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

    @property
    def audit_path(self) -> Path | None:
        """The file of the audit log; None: none is written."""
        return audit_path(self.audit_log, self.kv_config_path.parent, acl_enable=self.acl_enable)

    @property
    def open_to_network(self) -> bool:
        """Whether everybody who reaches the server from another machine may change routes."""
        return not self.acl_enable and not is_loopback(self.bind_host)

    @classmethod
    def from_sources(
        cls,
        file: Path | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> Self:
        """Build the settings; see ``Settings.from_sources``. Changes are saved in ``file``."""
        config = super().from_sources(file, env, overrides)
        if file is None or config.config_store_path is not None:
            return config
        return replace(config, config_store_path=file)
