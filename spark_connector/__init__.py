"""The Spark connector: the data sources ``rocketmq`` (topics) and ``rocketmq.store`` (stores)."""
