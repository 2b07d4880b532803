"""Requests of brokers and tools to a controller of RocketMQ 5, and its notice to brokers."""

from __future__ import annotations

from remoting.protocol.command import Header, Int, Long, header


@header
class GetMetaDataResponseHeader(Header):
    """Answer to CONTROLLER_GET_METADATA_INFO; ``peers`` is ``id:host:port;`` for each."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


@header
class GetNextBrokerIdRequestHeader(Header):
    """CONTROLLER_GET_NEXT_BROKER_ID."""

    cluster_name: str
    broker_name: str


@header
class GetNextBrokerIdResponseHeader(Header):
    """Answer to CONTROLLER_GET_NEXT_BROKER_ID: the lowest id, from 1 on, that nobody has."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Long


@header
class ApplyBrokerIdRequestHeader(Header):
    """CONTROLLER_APPLY_BROKER_ID: the same code gets the same id again."""

    cluster_name: str
    broker_name: str
    applied_broker_id: Long
    register_check_code: str


@header
class ApplyBrokerIdResponseHeader(Header):
    """Answer to CONTROLLER_APPLY_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None


@header
class RegisterBrokerToControllerRequestHeader(Header):
    """CONTROLLER_REGISTER_BROKER; ``invokeTime`` is in ms since 1970, here and below."""

    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_address: str
    invoke_time: Long = 0


@header
class RegisterBrokerToControllerResponseHeader(Header):
    """Answer to CONTROLLER_REGISTER_BROKER, with the master if one is alive."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


@header
class ElectMasterRequestHeader(Header):
    """CONTROLLER_ELECT_MASTER; ``designateElect``: this broker or none."""

    cluster_name: str
    broker_name: str
    broker_id: Long
    designate_elect: bool = False
    invoke_time: Long = 0


@header
class MasterHeader(Header):
    """The master of a group, if there is one, and the epoch of its set of replicas in sync.

    NOTIFY_BROKER_ROLE_CHANGED; answer to CONTROLLER_ELECT_MASTER, and without the set's epoch to
    CONTROLLER_GET_REPLICA_INFO.
    """

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


@header
class GetReplicaInfoRequestHeader(Header):
    """CONTROLLER_GET_REPLICA_INFO."""

    broker_name: str


@header
class AlterSyncStateSetRequestHeader(Header):
    """CONTROLLER_ALTER_SYNC_STATE_SET, by the master of this epoch."""

    broker_name: str
    master_broker_id: Long
    master_epoch: Int
    invoke_time: Long = 0


@header
class AlterSyncStateSetResponseHeader(Header):
    """Answer to CONTROLLER_ALTER_SYNC_STATE_SET."""

    new_sync_state_set_epoch: Int = 0


@header
class CleanBrokerDataRequestHeader(Header):
    """CLEAN_BROKER_DATA: forget a group, or the replicas with these ids, separated by ``;``."""

    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Long = 0
