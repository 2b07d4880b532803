"""The three ways to write a command's header."""
