"""JSON files of models, changed in their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def change_json(path: Path, *without: str, **fields: Any) -> dict[str, Any]:
    """Add fields to the object in a file, or take fields out; return it. A file that is not there is made."""
    content = {**(read_json(path) if path.exists() else {}), **fields}
    content = {name: value for name, value in content.items() if name not in without}
    write_json(path, content)
    return content
