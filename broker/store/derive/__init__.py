"""What follows from the log: the entries of queues and the hashes of keys."""
