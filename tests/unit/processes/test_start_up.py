"""What a start of `magnetar standalone` costs, counted: modules, and source that is compiled while they are imported.

Both only grow by accident. Whoever needs more raises the bound and says in the commit what for; `python -X importtime` helps.
"""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
compiled = 0
def count(event, args):
    global compiled
    compiled += event == "compile" and args[1] == "<string>"
sys.addaudithook(count)
import magnetar.cli.servers.serve
from magnetar.processes import pulsar_keys
from magnetar.processes.configurations import StandaloneConfig
StandaloneConfig(port=0)
of_settings = compiled
import magnetar.standalone
print(json.dumps({
    "modules": sorted(sys.modules),
    "compiled": compiled,
    "of_settings": of_settings,
    "lists_read": pulsar_keys._document.cache_info().currsize,
}))
"""

NOT_NEEDED = {"importlib.resources", "jinja2", "kazoo", "numpy", "pulsar", "rich", "starlette", "websockets", "zipfile"}
"""What only some commands, pages or clients need."""

MODULES_MAX = 696
"""Of magnetar's, the library's and others' modules."""

COMPILED_MAX = 1_110
"""Methods that dataclasses make for themselves and annotations of named tuples: each is some 20 to 100 us."""

COMPILED_FOR_SETTINGS_MAX = 100


def test_a_start_imports_and_compiles_no_more_than_before() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    assert NOT_NEEDED & set(found["modules"]) == set()
    assert len(found["modules"]) <= MODULES_MAX
    assert found["compiled"] <= COMPILED_MAX
    assert found["of_settings"] <= COMPILED_FOR_SETTINGS_MAX
    assert found["lists_read"] == 0, "the list of Pulsar's keys is read for a start that was given none of them"
