"""Builds the compiled part of the message path while the package is built, where that works; where it does not, the package is pure Python.

    python hatch_build.py [DIRECTORY] [FLAG ...]     builds it by hand, into the package unless told otherwise

One build serves this and all later versions of Python (the stable ABI). It needs a C compiler and Python's headers, and no failure here
ever fails an installation: the reason is printed as a warning (`pip install -v` shows it).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = Path("src/magnetar/wire/pulsar")
SOURCE, BUILT = "_kernel.c", "_kernel.abi3.so"
SWITCH = "MAGNETAR_KERNEL"
"""`off` builds none, as it uses none."""


def build(directory: Path, flags: list[str] | None = None) -> Path:
    """Compile into `directory`. Raises OSError or CalledProcessError, with the compiler's words in `stderr`."""
    linker = shlex.split(os.environ.get("LDSHARED") or sysconfig.get_config_var("LDSHARED") or "")
    if not linker or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise OSError("this Python has no stable ABI for compiled modules here")
    if compiler := shlex.split(os.environ.get("CC", "")):
        linker[: len(shlex.split(sysconfig.get_config_var("CC")))] = compiler
    made = directory / f".{BUILT}.{os.getpid()}"
    command = [*linker, "-O2", "-fPIC", "-Wall", *(flags or [])]
    command += [f"-I{sysconfig.get_path('include')}", str(HERE / PACKAGE / SOURCE), "-o", str(made)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(directory / BUILT)  # a server that runs keeps the file that it has loaded
    finally:
        made.unlink(missing_ok=True)
    return directory / BUILT


def platform_tag() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # by hand
    BuildHookInterface = object  # type: ignore[assignment,misc]


class KernelBuild(BuildHookInterface):  # type: ignore[type-arg]  # the builder's configuration is not looked at
    """Found by hatchling, which asks for the one class of this kind in this file."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get(SWITCH) == "off":
            return
        try:
            made = build(HERE / PACKAGE)
        except (OSError, subprocess.CalledProcessError) as error:
            (HERE / PACKAGE / BUILT).unlink(missing_ok=True)  # never one of an earlier source
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
            self.app.display_warning(f"magnetar is installed without its compiled part, which is optional: {said}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform_tag()}"
        if version != "editable":  # there it lies in the package already
            build_data["force_include"][str(made)] = str(PACKAGE.relative_to("src") / BUILT)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / PACKAGE
    try:
        print(build(target, sys.argv[2:]))
    except subprocess.CalledProcessError as failure:
        sys.exit(failure.stderr)
