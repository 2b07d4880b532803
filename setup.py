"""Compiles the core, where there is a compiler; what else there is to say is in pyproject.toml."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

REQUIRED = os.environ.get("POCKETMQ_REQUIRE_CORE", "0") not in {"", "0"}
"""Whether a build without the core fails, as those of releases and of CI do."""

CHECKS = os.environ.get("POCKETMQ_CORE_CHECKS", "0") not in {"", "0"}
"""Whether indices and Cython's own views are checked, as tests want it once."""

FLAGS = os.environ.get("POCKETMQ_CORE_FLAGS", "-O3").split()

sources = sorted(str(path) for top in ("remoting", "broker") for path in Path(top).rglob("*.pyx"))
extensions = [
    Extension(
        source.removesuffix(".pyx").replace("/", "."),
        [source],
        extra_compile_args=FLAGS,
        extra_link_args=[flag for flag in FLAGS if flag.startswith("-fsanitize")],
        optional=not REQUIRED,
    )
    for source in sources
]
directives = {
    "language_level": 3,
    "cdivision": True,
    **dict.fromkeys(("boundscheck", "wraparound", "initializedcheck"), CHECKS),
}
setup(ext_modules=cythonize(extensions, build_dir="build", compiler_directives=directives))
