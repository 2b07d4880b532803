"""Compiles the core where there is a compiler; POCKETMQ_REQUIRE_CORE=1 makes a failure an error."""

from os import cpu_count, environ
from pathlib import Path
from tempfile import TemporaryDirectory

from Cython.Build import cythonize
from setuptools import Extension, setup

required = environ.get("POCKETMQ_REQUIRE_CORE") == "1"
checks = environ.get("POCKETMQ_CORE_CHECKS") == "1"  # of indices, for tests
flags = environ.get("POCKETMQ_CORE_FLAGS", "-O3 -fwrapv").split()
directives = dict.fromkeys(("boundscheck", "wraparound", "initializedcheck"), checks)
core = [
    Extension(".".join(path.with_suffix("").parts), [str(path)], [], extra_link_args=flags)
    for package in ("remoting", "broker")
    for path in Path(package).rglob("*.pyx")
]
with TemporaryDirectory() as build:  # one that stays would hold modules that are gone
    modules = cythonize(
        core, build_dir=build, compiler_directives={**directives, "cdivision": True}
    )
    for module in modules:
        module.extra_compile_args = flags
        module.optional = not required
    options = {"build": {"build_base": build}, "build_ext": {"parallel": cpu_count() or 1}}
    try:
        setup(ext_modules=modules, options=options)
    except SystemExit as failure:
        why = " (POCKETMQ_REQUIRE_CORE=1 asks for the compiled core)" if required else ""
        raise SystemExit(f"{failure}{why}") from failure
