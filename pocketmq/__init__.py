"""PocketMQ: pocketmq."""
