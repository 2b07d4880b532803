"""Messages of a topic written to a file: from a cluster, or from a store without a broker."""
