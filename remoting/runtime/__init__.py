"""What every process needs around its connections: clock, log, settings, tasks, durable files."""
