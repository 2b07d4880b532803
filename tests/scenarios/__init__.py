"""The life of consumer groups, as stories with expected output; see ``script``."""
