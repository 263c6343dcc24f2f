"""Small files between processes of one machine: whoever reads sees one that is whole, or none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4


def write_document(path: Path, document: object) -> None:
    """Replace a JSON file at once; directories are made. Not synced: it describes a process, which a lost machine takes along."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        temporary.write_text(json.dumps(document, default=str), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_document(path: Path) -> dict[str, Any] | None:
    """None when there is no such file, or something else than a JSON object in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
