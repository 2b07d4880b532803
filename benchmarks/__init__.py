"""The benchmarks of PocketMQ; they do not run as part of the tests."""
