"""The format ``rocketmq.store``: reads a store directory without a broker."""
