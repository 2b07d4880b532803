"""PocketMQ: client."""
