"""Python imports this at its start in the servers that ``tests.chaos.alterations`` alters."""

from tests.chaos.alterations import apply

apply()
