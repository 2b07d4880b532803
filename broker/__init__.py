"""The PocketMQ broker."""
