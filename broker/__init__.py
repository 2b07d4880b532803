"""PocketMQ: broker."""
