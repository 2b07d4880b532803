"""The named limits of copying, each with its reason. Sizes in bytes unless the name says so."""

from __future__ import annotations

from typing import Final

STEP_BYTES: Final = 32 * 1024 * 1024
"""Copied by one call: a tenth of a second, after which the progress bar moves and ^C is heard."""

PLAIN_STEP_BYTES: Final = 1024 * 1024
"""The same where the system can't copy by itself and the bytes pass through this process."""

MAX_STARTS: Final = 10
"""How often copying begins anew because retention took what was to be copied next."""

MAX_FAULTS: Final = 1000
"""Places of damage that a report names; the others are counted."""

MAX_STATE_READS: Final = 20
"""How often a state file is read that is not there, or not whole: it may be being replaced."""

STATE_PAUSE_SECONDS: Final = 0.02
"""Between two of these reads."""

SYNC_THREADS: Final = 8
"""Files synced at once: a journal takes what comes together for little more than one of them."""

DELIVERY_SLACK_MS: Final = 60_000
"""With an end in the past: what was due so long before it is taken to have been delivered."""
