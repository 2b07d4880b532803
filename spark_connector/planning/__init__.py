"""Which offsets a query reads, and in which pieces: pure functions of what the brokers said."""
