"""RocketMQ's remoting protocol, and connections, servers and pools that use it."""
