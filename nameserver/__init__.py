"""The PocketMQ name server."""
