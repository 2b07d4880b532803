"""PocketMQ: nameserver."""
