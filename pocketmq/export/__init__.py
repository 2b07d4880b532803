"""Export of a topic's messages to a file, from a cluster or from a store without a broker."""
