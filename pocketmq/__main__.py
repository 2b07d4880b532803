"""The command line: ``pocketmq`` and ``python -m pocketmq`` are the same."""

from __future__ import annotations

from pocketmq.cli import main

if __name__ == "__main__":
    main()
