"""The source of format ``rocketmq``: batch and streaming readers of topics."""
