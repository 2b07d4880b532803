"""A client's connections: name servers, routes, heartbeats, and the calls on brokers."""
