"""Topics in Spark: ``format("rocketmq")``, ``format("rocketmq.store")`` and what stands behind."""
