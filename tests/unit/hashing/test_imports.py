"""The server uses the scalar modules: they may not cost it numpy (70 ms and 11 MiB)."""

from __future__ import annotations

import subprocess
import sys

SCALAR_MODULES = (
    "bundles", "consistent", "crc", "errors", "fnv", "java_hash", "ketama", "key_encoding", "key_types", "mapping", "murmur3",
    "ranges", "ring", "spark_sql", "sticky", "vnode",
)  # fmt: skip


def test_scalar_modules_do_not_import_numpy() -> None:
    imports = "; ".join(f"import magnetar.hashing.{module}" for module in SCALAR_MODULES)
    code = f"import sys; {imports}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
