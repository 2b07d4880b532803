"""The typed headers of commands, one module per family of requests."""
