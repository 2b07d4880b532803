"""Requests of brokers, clients and administrators to the name server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remoting.protocol.bodies import encode
from remoting.protocol.bodies.registration import RegisterBrokerBody
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers import admin

Ask = Callable[..., Command]
SUCCESS = ResponseCode.SUCCESS
ERROR = ResponseCode.SYSTEM_ERROR
T = TopicConfig("t", 4, 8, 6)


def register(
    *topics: TopicConfig,
    name: str = "broker-a",
    address: str = "10.0.0.1:10911",
    broker_id: int = 0,
    counter: int = 1,
    body: bytes | None = None,
    cluster: str = "c",
    **fields: Any,
) -> Command:
    header = admin.RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr=address,
        cluster_name=cluster,
        ha_server_addr=address + "2",
        broker_id=broker_id,
        **fields,
    )
    if body is None:
        table = {topic.topic_name: topic for topic in topics}
        wrapper = TopicConfigSerializeWrapper(table, DataVersion(1, counter))
        body = encode(RegisterBrokerBody(wrapper))
    return Command.request(RequestCode.REGISTER_BROKER, header, body=body)


def route_of(topic: str, **fields: Any) -> Command:
    header = admin.GetRouteInfoRequestHeader(topic=topic, **fields)
    return Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)


def put(namespace: str, key: str, value: str) -> Command:
    header = admin.PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
    return Command.request(RequestCode.PUT_KV_CONFIG, header)
