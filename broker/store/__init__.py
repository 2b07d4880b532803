"""The store: a commit log, a queue of positions for each queue of a topic, RocketMQ's files."""
