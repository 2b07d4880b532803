"""A group of brokers in controller mode, simulated: the machines are real, the rest is a model."""
