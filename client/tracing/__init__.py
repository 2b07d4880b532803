"""Interceptors that trace messages: RocketMQ's message trace, and OpenTelemetry."""
