"""Nothing of the console is imported before somebody looks at it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import magnetar.admin.app, magnetar.admin.server, magnetar.standalone, magnetar.processes.broker
loaded = [name for name in sys.modules if name.startswith(("jinja2", "magnetar.admin.console"))]
assert loaded == [], loaded
"""


def test_a_server_does_not_import_the_console() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
