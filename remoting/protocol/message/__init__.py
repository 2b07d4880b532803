"""A message as it is stored and sent: record, properties, tags, ids, batches, compression."""
