"""A setting that nothing reads is a promise that is not kept."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from magnetar.processes.configurations import CONFIGURATIONS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "magnetar"
TEXT = "".join(path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py")))


@pytest.mark.parametrize("name", sorted({field.name for kind in CONFIGURATIONS for field in dataclasses.fields(kind)}))
def test_every_setting_is_read(name: str) -> None:
    assert re.search(rf"(config|settings|self)\.{name}\b", TEXT), f"nothing reads {name}"
