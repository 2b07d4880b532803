"""Reading and repairing a store without a broker."""
