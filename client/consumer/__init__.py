"""Push and pull consumers."""
