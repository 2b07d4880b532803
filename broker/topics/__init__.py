"""Topics: their table, the pace of their creation, and queues spread over other brokers."""
