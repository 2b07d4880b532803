"""Describes the machine of a benchmark, and detects other load on it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, Final

CALIBRATION_LOOPS: Final = 200_000
CALIBRATION_TRIES: Final = 5


def calibration_ms() -> float:
    """Return the time of a fixed loop in ms: it varies when other processes use the machine."""
    best = float("inf")
    for _ in range(CALIBRATION_TRIES):
        started = time.perf_counter()
        total = 0
        for number in range(CALIBRATION_LOOPS):
            total += number & 7
        best = min(best, time.perf_counter() - started)
    return best * 1000


def is_profile_guided() -> bool:
    """Return whether the interpreter was built with profile-guided optimisation."""
    flags = ("CONFIG_ARGS", "PY_CORE_CFLAGS", "PGO_PROF_USE_FLAG")
    text = " ".join(str(sysconfig.get_config_var(flag) or "") for flag in flags[:2])
    return "--enable-optimizations" in text or "-fprofile-use" in text


def facts() -> dict[str, Any]:
    """Return a description of the machine, the interpreter and the libraries."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "interpreter": str(Path(sys.executable).resolve()),
        "profile_guided": is_profile_guided(),
        "libraries": {name: _version(name) for name in ("uvloop", "orjson", "isal")},
        "java": _java(),
        "load_average": os.getloadavg(),
    }


def _version(name: str) -> str | None:
    if importlib.util.find_spec(name) is None:
        return None
    return importlib.metadata.version(name)


def _cpu() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _java() -> str:
    if shutil.which("java") is None:
        return "none"
    told = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return (told.stderr.splitlines() or ["unknown"])[0]
