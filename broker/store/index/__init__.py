"""Messages found by their keys: RocketMQ's index files, and the thread that writes them."""
