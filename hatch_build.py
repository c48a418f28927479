"""Build hook that adds compiled machine code to wheels for a platform, from the folder in STREAMSVM_MACHINE_CODE_IN.

`release/machine_code.py` creates the folder. Without the variable, the wheel is for all platforms, and numba compiles.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class MachineCode(BuildHookInterface):
    """Adds the extension module with machine code, which CPython 3.11 and later can load, and sets the wheel's tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("STREAMSVM_MACHINE_CODE_IN")
        if version != "standard" or folder is None:
            return
        files = [Path(folder, f"_machine_code.{suffix}") for suffix in ("abi3.so", "json")]
        if missing := [path for path in files if not path.is_file()]:
            raise FileNotFoundError(f"{missing[0]} is missing: run python release/machine_code.py to create it")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["force_include"] |= {str(path): f"streamsvm/core/compiling/{path.name}" for path in files}
