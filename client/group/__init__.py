"""Group membership: allocation strategies, rebalance, queue locks and start offsets."""
