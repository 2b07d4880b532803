"""Bodies of what brokers and tools exchange with a controller of RocketMQ 5."""

from __future__ import annotations

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long
from remoting.protocol.bodies.route import BrokerMemberGroup


class SyncStateSet(Body):
    """The controller's ids of the replicas that have every acknowledged message."""

    sync_state_set: list[Long] = field(default_factory=list)
    sync_state_set_epoch: Int = 0


class ElectMasterResponseBody(Body):
    """Answer to CONTROLLER_ELECT_MASTER."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[Long] = field(default_factory=list)


class ReplicaIdentity(Body):
    """A replica, as its controller sees it."""

    alive: bool = False
    broker_address: str | None = None
    broker_id: Long = 0
    broker_name: str | None = None


class ReplicasInfo(Body):
    """The replicas of a broker name."""

    in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    master_address: str | None = None
    master_broker_id: Long | None = None
    master_epoch: Int = 0
    not_in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    sync_state_set_epoch: Int = 0


class BrokerReplicasInfo(Body):
    """Answer to CONTROLLER_GET_SYNC_STATE_DATA, by broker name."""

    replicas_info_table: dict[str, ReplicasInfo] = field(default_factory=dict)


class EpochSpan(Body):
    """The part of a log that one master has written; the last part ends at 2**63 - 1."""

    end_offset: Long = 0
    epoch: Int = 0
    start_offset: Long = 0


class EpochEntryCache(Body):
    """Answer to GET_BROKER_EPOCH_CACHE."""

    broker_id: Long = 0
    broker_name: str = ""
    cluster_name: str = ""
    epoch_list: list[EpochSpan] = field(default_factory=list)
    max_offset: Long = 0
