"""Consumer groups over time, as scripts with expected output; see ``script``."""
