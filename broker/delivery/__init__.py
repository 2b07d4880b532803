"""Delayed messages, redelivery and long polls."""
