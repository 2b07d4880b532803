"""What a broker tells name servers about itself, as the commands that say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec import structs

from broker.config import BrokerConfig
from remoting.addresses import address_text
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.registration import (
    RegisterBrokerBody,
    body_crc32,
    encode_compressed,
)
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.registration import (
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from remoting.protocol.names import PERM_READ, PERM_WRITE

SHORTEST_PERIOD_MS: Final = 10_000
LONGEST_PERIOD_MS: Final = 60_000
"""``registerNameServerPeriod`` is brought within these (cf. BrokerController.start)."""

LARGE_BODY_BYTES: Final = 8 * 1024 * 1024
"""A registration above this is compressed unasked: some 50,000 topics, half of a frame's limit."""

_READ_WRITE: Final = PERM_READ | PERM_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a broker tells about itself, and how."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    permission: int = _READ_WRITE
    """Of the broker; all topics get it when it lacks reading or writing."""
    compressed: bool = False
    force: bool = True
    """Register each period; else only when the name server knows another data version."""
    period: float = 30.0
    timeout: float = 6.0

    @classmethod
    def of(cls, config: BrokerConfig, port: int) -> Announcement:
        """What a broker with this configuration tells that listens on ``port``."""
        host = config.advertised_host
        ha_port = port + 1 if config.ha_listen_port is None else config.ha_listen_port
        period_ms = config.register_name_server_period_ms
        return cls(
            cluster=config.cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=address_text((host, port)),
            ha_address=address_text((config.broker_ip2 or host, ha_port)),
            permission=config.broker_permission,
            compressed=config.compressed_register,
            force=config.force_register,
            period=min(max(period_ms, SHORTEST_PERIOD_MS), LONGEST_PERIOD_MS) / 1000,
            timeout=config.register_broker_timeout_ms / 1000,
        )

    def register(self, wrapper: TopicConfigSerializeWrapper) -> Command:
        """REGISTER_BROKER with these topics."""
        if self.permission & _READ_WRITE != _READ_WRITE:
            wrapper = _with_permission(wrapper, self.permission)
        content = RegisterBrokerBody(wrapper)
        body = b"" if self.compressed else encode(content)
        compressed = self.compressed or len(body) > LARGE_BODY_BYTES
        if compressed:
            body = encode_compressed(content)
        header = RegisterBrokerRequestHeader(
            broker_name=self.broker_name,
            broker_addr=self.address,
            cluster_name=self.cluster,
            ha_server_addr=self.ha_address,
            broker_id=self.broker_id,
            compressed=compressed,
            body_crc32=body_crc32(body),
        )
        return Command.request(RequestCode.REGISTER_BROKER, header, body=body)

    def query_version(self, version: DataVersion) -> Command:
        """QUERY_DATA_VERSION: is this the newest that the name server knows?"""
        header = QueryDataVersionRequestHeader(
            broker_name=self.broker_name,
            broker_addr=self.address,
            cluster_name=self.cluster,
            broker_id=self.broker_id,
        )
        return Command.request(RequestCode.QUERY_DATA_VERSION, header, body=encode(version))

    def unregister(self) -> Command:
        """UNREGISTER_BROKER: the good-bye."""
        header = UnRegisterBrokerRequestHeader(
            broker_name=self.broker_name,
            broker_addr=self.address,
            cluster_name=self.cluster,
            broker_id=self.broker_id,
        )
        return Command.request(RequestCode.UNREGISTER_BROKER, header)


def _with_permission(
    wrapper: TopicConfigSerializeWrapper, permission: int
) -> TopicConfigSerializeWrapper:
    """All topics with the broker's own permission, when it lacks reading or writing."""
    table: dict[str, TopicConfig] = {
        name: structs.replace(topic, perm=permission)
        for name, topic in wrapper.topic_config_table.items()
    }
    return TopicConfigSerializeWrapper(table, wrapper.data_version)
