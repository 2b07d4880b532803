"""The Spark benchmarks; their comparison with Spark's Kafka source is the part ``kafka``.

Maven Central does not have Spark's Kafka source for the newest versions (its token provider was
last published for 4.0.0), and ours needs 4.2 or later. So Kafka's runs in a Spark 4.0 in a separate
process (``kafka_lane``), pinned in ``requirements.lock`` and kept in ``.tools`` with its jars
(``pom.xml``), and ours in the installed Spark. Both have the same settings. Both JVMs and both
brokers run all the time, and one is measured at a time: Kafka, ours, ours, Kafka and so on. The
Kafka broker is that of ``benchmarks.clients``.

The messages are the same: bodies of random bytes whose lengths vary by a fifth, a key, a tag and a
unique id, four queues or partitions, no compression. For RocketMQ the three are properties; for
Kafka one is the key and all are headers. There are two comparisons:

* all columns of both sources, with ``includeHeaders`` for Kafka; the bar applies to this one;
* ``body`` alone with ``value`` alone.

To renew the lock file, run ``echo 'pyspark==4.0.1' | uv pip compile --generate-hashes --no-deps
--no-emit-index-url --no-annotate --no-header - -o benchmarks/spark/requirements.lock``.
"""
