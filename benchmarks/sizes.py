"""Print the lines of code of each folder: without docstrings, comments and blank lines."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(source: str) -> int:
    """Return how many lines of a module have a token that is neither a comment nor part of a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def main() -> None:
    """Print the table."""
    for root in ("minibert", "tests", "benchmarks"):
        files: Counter[str] = Counter()
        lines: Counter[str] = Counter()
        for path in sorted((_ROOT / root).rglob("*.py")):
            inner = path.relative_to(_ROOT / root).parts
            folder = f"{root}/{inner[0]}" if len(inner) > 1 else f"{root}/*.py"
            files[folder] += 1
            lines[folder] += lines_of_code(path.read_text(encoding="utf-8"))
        for folder in sorted(files):
            print(f"{folder:28}{files[folder]:5}{lines[folder]:8,}")
        print(f"{root:28}{files.total():5}{lines.total():8,}\n")


if __name__ == "__main__":
    main()
