"""The sink of format ``rocketmq``: writes data frames to topics."""
