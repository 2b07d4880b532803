"""Spark's own Kafka source beside ours, each in its Spark, in turns.

Spark's Kafka source can't be had from Maven Central for the newest versions (its token provider
was last published for 4.0.0), and ours needs 4.2 or later. So Kafka's runs in a Spark 4.0 in a
process of its own (``lane``), pinned in ``requirements.lock`` and kept in ``.tools`` with its jars
(``pom.xml``), and ours in the Spark that is installed. Both have the same settings, both JVMs and
both brokers are up all the time, and one works at a time: Kafka, ours, ours, Kafka and so on. The
Kafka broker is the one of ``benchmarks.clients``.

The messages are alike: bodies of random bytes whose lengths vary by a fifth, a key, a tag and a
unique id of their own, four queues or partitions, nothing compressed. For RocketMQ the three are
properties, for Kafka one is the key and all are headers. Two comparisons:

* all columns of ours with all of Kafka's, ``includeHeaders`` on: that is the one with a bar;
* ``body`` with ``value`` alone.

The lock file is renewed with ``echo 'pyspark==4.0.1' | uv pip compile --generate-hashes --no-deps
--no-emit-index-url --no-annotate --no-header - -o benchmarks/spark_kafka/requirements.lock``.
"""
