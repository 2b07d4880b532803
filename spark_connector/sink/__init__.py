"""Writing frames to topics."""
