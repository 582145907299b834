"""Run the examples of one page, in order, in this process, each in a namespace and a folder of its own.

Standard input has a JSON list of examples. An example is a folder and steps: ["python", code], ["minibert",
arguments] or ["file", name, text]. Standard output gets one JSON list: for each example [exit code, stdout, stderr]. An
example ends with its first step that fails.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def _step(kind: str, *values: Any) -> int:
    if kind == "file":
        name, text = values
        Path(name).write_text(text, encoding="utf-8", newline="\n")
        return 0
    if kind == "minibert":
        from minibert.cli import main

        return main(*values)
    (code,) = values
    exec(compile(code, "<example>", "exec", dont_inherit=True), {"__name__": "__main__"})
    return 0


def _run(folder: str, steps: list[list[Any]]) -> tuple[int, str, str]:
    os.chdir(folder)
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for step in steps:
            try:
                code = _step(*step)
            except SystemExit as left:  # argparse's
                code = left.code if isinstance(left.code, int) else int(left.code is not None)
            except Exception:
                traceback.print_exc()
                code = 1
            if code:
                break
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    print(json.dumps([_run(folder, steps) for folder, steps in json.load(sys.stdin)]))
