"""The parts of the short way; see ``broker.hot_path``."""
