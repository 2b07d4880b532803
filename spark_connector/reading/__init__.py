"""Reading ranges of queues from brokers, on the executors: no Spark in here."""
