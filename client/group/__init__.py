"""How the members of a group share queues: strategies, rebalance, queue locks, start offsets."""
