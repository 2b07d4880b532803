"""Consumer and producer groups: members, offsets, queue locks, settings, health."""
