"""A second copy of the store: RocketMQ's replication between a master and its slaves."""
