"""Topics, brokers and name servers: their settings and state, and the key-value configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from client.admin.base import AdminBase, decoded
from client.errors import NotSupported, UsageError, remote_error
from client.network.remote import FOUND_OR_NOT, read_header
from client.network.routes import MASTER_ID, MAX_QUEUES
from client.positions import check_topic_name
from remoting.protocol.bodies import properties_text
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.bodies.stats import KVTable, TopicList, TopicOffset, TopicStatsTable
from remoting.protocol.bodies.topic import (
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.errors import BodyError
from remoting.protocol.headers.admin import (
    AddWritePermOfBrokerResponseHeader,
    BrokerNameRequestHeader,
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    HandOverRequestHeader,
    KVKeyRequestHeader,
    PromoteRequestHeader,
    PutKVConfigRequestHeader,
    TopicRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from remoting.protocol.names import (
    AUTO_CREATE_TOPIC,
    PERM_READ,
    PERM_WRITE,
    is_internal_topic,
)
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue

DEFAULT_QUEUES: Final = 8
HAND_OVER_TIMEOUT: Final = 60.0
"""Seconds; the broker answers within 50, also without an answer of the slave."""
_LETTERS: Final = {"r": PERM_READ, "w": PERM_WRITE}


class ClusterAdmin(AdminBase):
    """The part of ``Admin`` about topics, brokers and name servers."""

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = DEFAULT_QUEUES,
        permission: str = "rw",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a topic, or change it to these settings, at every master broker.

        Args:
            queues: read queues and write queues, per broker.
            permission: ``rw``, ``r``, ``w`` or an empty string.
            order: mark it as an order topic: message order takes precedence over availability.
            attributes: ``{"+message.type": "FIFO"}`` sets an attribute, ``{"-message.type": ""}``
                removes it; others stay. Brokers before 5.0 have no attributes.
            cluster: only at the masters of this cluster.
            brokers: only at the masters with these names.
        """
        check_topic_name(topic)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=_queue_count(topic, queues),
            write_queue_nums=queues,
            perm=_permission(topic, permission),
            order=order,
        )
        changes = [
            f"{name}={value}" if value else name for name, value in (attributes or {}).items()
        ]
        for address in (await self._masters(cluster, brokers)).values():
            await self._write_topic(address, config, ",".join(changes) or None)
        self._routes.table.forget(topic)

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: str | None = None,
        order: bool | None = None,
        everywhere: bool = False,
        brokers: Collection[str] | None = None,
    ) -> None:
        """Change the given settings at every broker that has the topic; others stay.

        With ``brokers``, change them at these only, which have to have the topic.

        With ``everywhere``, also create it at the brokers that ``brokers_without`` returns, with
        the settings that the first of its brokers has then.

        A different number of write queues changes the queue of most sharding keys: until consumers
        have handled the messages already stored, a key's newer messages may overtake older ones.

        To reduce the queues without loss, lower ``write_queues`` first, and ``read_queues`` once
        the queues to be removed have been read to their end.
        """
        check_topic_name(topic)
        configs = await self.topic_config(topic)
        if missing := set(brokers or ()) - configs.keys():
            raise UsageError(
                f"{', '.join(sorted(missing))} doesn't have the topic",
                topic=topic,
                hint=f"it is at {', '.join(sorted(configs))}",
            )
        if brokers is not None:
            configs = {name: configs[name] for name in brokers}
        lacking = await self.brokers_without(topic) if everywhere else []
        masters = await self._masters(names=[*configs, *lacking])
        for name, config in configs.items():
            reads, writes = read_queues or queues, write_queues or queues
            if reads is not None:
                config.read_queue_nums = _queue_count(topic, reads)
            if writes is not None:
                config.write_queue_nums = _queue_count(topic, writes)
            if permission is not None:
                config.perm = _permission(topic, permission)
            if order is not None:
                config.order = order
            await self._write_topic(masters[name], config)
        model = configs[min(configs)]
        attributes = [f"+{name}={value}" for name, value in (model.attributes or {}).items()]
        for name in lacking:
            await self._write_topic(masters[name], model, ",".join(attributes) or None)
        self._routes.table.forget(topic)

    async def brokers_without(self, topic: str) -> list[str]:
        """Return the masters that lack a topic which others of their cluster have.

        A send creates a topic only at the broker that it reaches.
        """
        having = await self._masters_of(topic)
        masters = [broker for broker in await self.brokers() if broker.id == MASTER_ID]
        clusters = {broker.cluster for broker in masters if broker.name in having}
        return [
            broker.name
            for broker in masters
            if broker.cluster in clusters and broker.name not in having
        ]

    async def _write_topic(
        self, address: str, config: TopicConfig, attribute_changes: str | None = None
    ) -> None:
        header = CreateTopicRequestHeader(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=attribute_changes,
        )
        await self._remote.call(
            address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, topic=config.topic_name
        )

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages, at every broker and name server."""
        check_topic_name(topic)
        for address in (await self._masters(cluster)).values():
            await self._remote.call(
                address,
                RequestCode.DELETE_TOPIC_IN_BROKER,
                TopicRequestHeader(topic=topic),
                topic=topic,
            )
        await self._name_servers.ask_all(
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster),
        )
        self._routes.table.forget(topic)

    async def topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted.

        Args:
            internal: include system, retry and dead-letter topics.
        """
        listed = await self._ask_name_server(
            TopicList, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        )
        names = set(listed.topic_list)
        if not internal:
            system = await self._ask_name_server(
                TopicList, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS
            )
            names = {
                name for name in names.difference(system.topic_list) if not is_internal_topic(name)
            }
        return sorted(names)

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return the topic's settings by broker name."""
        check_topic_name(topic)
        code = RequestCode.GET_TOPIC_CONFIG
        configs: dict[str, TopicConfig] = {}
        for name, address in (await self._readers(topic)).items():
            try:
                configs[name] = await self._ask(
                    TopicConfig, address, code, TopicRequestHeader(topic=topic), topic=topic
                )
            except NotSupported:
                configs[name] = await self._listed_config(address, topic)
        return configs

    async def _listed_config(self, address: str, topic: str) -> TopicConfig:
        """Return a topic's settings from the list of all: a 4.x broker has no other query."""
        config = (await self.topic_configs(address)).get(topic)
        if config is None:
            raise remote_error(
                ResponseCode.TOPIC_NOT_EXIST,
                "the broker doesn't have it",
                "its configuration",
                topic=topic,
                broker=address,
            )
        return config

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """Return the settings of all topics of one broker."""
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        return (await self._ask(TopicConfigSerializeWrapper, address, code)).topic_config_table

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return the topic's route as the name server sends it to clients."""
        check_topic_name(topic)
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        return await self._ask_name_server(TopicRouteData, code, header, topic=topic)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return first offset, next offset and time of the last message of each queue."""
        check_topic_name(topic)
        code = RequestCode.GET_TOPIC_STATS_INFO
        offsets: dict[MessageQueue, TopicOffset] = {}
        for address in (await self._readers(topic)).values():
            stats = await self._ask(
                TopicStatsTable, address, code, TopicRequestHeader(topic=topic), topic=topic
            )
            offsets |= stats.offset_table
        return dict(sorted(offsets.items()))

    async def system_topics(self, address: str) -> list[str]:
        """Return the system topics of a broker, sorted."""
        code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        return sorted((await self._ask(TopicList, address, code)).topic_list)

    # Brokers and name servers

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return a broker's runtime statistics (cf. mqadmin brokerStatus)."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        return (await self._ask(KVTable, address, code)).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return a broker's settings by RocketMQ's configuration keys."""
        code = RequestCode.GET_BROKER_CONFIG
        answer = await self._remote.call(address, code)
        try:
            return properties_text.parse(answer.body)
        except BodyError as error:
            raise remote_error(
                ResponseCode.SYSTEM_ERROR, str(error), "its configuration", broker=address
            ) from error

    async def update_broker_config(self, address: str, settings: Mapping[str, str]) -> None:
        """Change a broker's settings while it runs; all of them or, if it refuses one, none.

        Args:
            settings: by RocketMQ's configuration keys.
        """
        body = properties_text.render(settings)
        await self._remote.call(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def hand_over(self, master: str, slave: str, slave_id: int) -> None:
        """Make a slave the master, without loss; the old master becomes its slave.

        Returns when the new master serves. Only PocketMQ's brokers can do it.

        Args:
            master: the address of the master.
            slave: the address of the slave, as registered.
            slave_id: its broker id, which the old master gets.
        """
        await self._remote.call(
            master,
            OwnRequestCode.HAND_OVER,
            HandOverRequestHeader(slave_address=slave, slave_id=slave_id),
            timeout=HAND_OVER_TIMEOUT,
        )

    async def promote(self, broker: str, slave: str, *, force: bool = False) -> None:
        """Make a slave the master though the master is dead, which may lose messages.

        Args:
            broker: the broker's name.
            slave: the address of the slave.
            force: do it. Without, the error says how much would be lost.
        """
        step = PromoteRequestHeader.FORCE if force else PromoteRequestHeader.ASK
        await self._remote.call(
            slave,
            OwnRequestCode.PROMOTE,
            PromoteRequestHeader(broker_name=broker, step=step),
            timeout=HAND_OVER_TIMEOUT,
        )

    async def wipe_write_permission(self, broker: str) -> int:
        """Make producers stop using a broker, e.g. before maintenance.

        Returns:
            The number of topics changed: the maximum over the name servers.
        """
        answers = await self._name_servers.ask_all(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            BrokerNameRequestHeader(broker_name=broker),
        )
        kind = WipeWritePermOfBrokerResponseHeader
        return max(read_header(answer, kind, None, broker).wipe_topic_count for answer in answers)

    async def add_write_permission(self, broker: str) -> int:
        """Undo ``wipe_write_permission``."""
        answers = await self._name_servers.ask_all(
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            BrokerNameRequestHeader(broker_name=broker),
        )
        kind = AddWritePermOfBrokerResponseHeader
        return max(read_header(answer, kind, None, broker).add_topic_count for answer in answers)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a key of the key-value configuration at all name servers."""
        await self._name_servers.ask_all(
            RequestCode.PUT_KV_CONFIG,
            PutKVConfigRequestHeader(namespace=namespace, key=key, value=value),
        )

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Return a value of the name servers' key-value configuration, or None."""
        answer = await self._name_servers.ask(
            RequestCode.GET_KV_CONFIG,
            KVKeyRequestHeader(namespace=namespace, key=key),
            accept=FOUND_OR_NOT,
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        return read_header(answer, GetKVConfigResponseHeader, None, None).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a key of the key-value configuration at all name servers."""
        await self._name_servers.ask_all(
            RequestCode.DELETE_KV_CONFIG,
            KVKeyRequestHeader(namespace=namespace, key=key),
        )

    async def kv(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace."""
        code = RequestCode.GET_KVLIST_BY_NAMESPACE
        answer = await self._name_servers.ask(
            code, GetKVListByNamespaceRequestHeader(namespace=namespace), accept=FOUND_OR_NOT
        )
        if answer.code != ResponseCode.SUCCESS:
            return {}
        return decoded(KVTable, answer, code).table


def _queue_count(topic: str, queues: int) -> int:
    if not 0 < queues <= MAX_QUEUES:
        raise UsageError(f"a topic can't have {queues} queues", topic=topic, hint="use 1 or more")
    return queues


def _permission(topic: str, text: str) -> int:
    if set(text) - _LETTERS.keys():
        raise UsageError(f"permission can't be {text!r}", topic=topic, hint="use rw, r, w or ''")
    return sum(value for letter, value in _LETTERS.items() if letter in text)
