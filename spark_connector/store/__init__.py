"""``format("rocketmq.store")``: a store's directory read by Spark, without a broker."""
