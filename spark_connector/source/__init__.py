"""Format ``rocketmq`` for reading: where planning and decoding meet Spark."""
