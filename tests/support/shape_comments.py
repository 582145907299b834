"""The shape comments of the forward passes: read with `tokenize`, compared with the true shapes."""

from __future__ import annotations

import ast
import dataclasses
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import numpy as np

from minibert.bert import encoder, heads, norm_first, reference
from minibert.bert.ops import Linear, LookUp, Queries
from tests.support.checkpoints import sizes

SOURCES = {
    Path(module.__file__).name: Path(module.__file__)
    for module in (encoder, heads, norm_first, reference)
    if module.__file__
}

# Lines that make an array and do not give its shape, by function and assigned name, with the reason.
WITHOUT_COMMENT = {
    ("erf", "return"): "elementwise: the docstring states the shape, the lines before it repeat it",
    **{
        (name, "return"): "elementwise: the function is one formula in x"
        for name in ("gelu", "gelu_tanh", "relu", "silu", "sigmoid")
    },
}

# All values differ, also from the multiples that comments name.
LENGTHS = (13, 17, 19, 23)
SIZES = sizes(V=101, H=56, L=2, A=8, F=131, P=29, types=9)


# These functions give `linear` one token of each sequence.
ONE_TOKEN_OF_EACH = [encoder.pooler.__code__, heads.of_first_token.__code__]


# --- the comments ----------------------------------------------------------------------------------------------------

Line: TypeAlias = tuple[str, int]
"""A file's name and the number of a statement's last line."""


def trailing_comments(source: str) -> dict[int, str]:
    """Return line number -> the comment behind the code on that line."""
    comments: dict[int, str] = {}
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.start[0] in code_lines:
            comments[token.start[0]] = token.string
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT):
            code_lines.update(range(token.start[0], token.end[0] + 1))
    return comments


# --- the lines -------------------------------------------------------------------------------------------------------

Value: TypeAlias = tuple[int, ...] | list[tuple[int, ...]] | None
"""The shape of an array, the shapes of a list of arrays, or None for anything else."""


@dataclasses.dataclass(frozen=True)
class Observation:
    """One execution of one statement that assigns or returns.

    Parameters
    ----------
    line : Line
    function : str
    names : the names on the left, or "return"
    values : of each name
    dimensions : the letters that have a value there
    x : the shape of the local variable x, if it is an array
    computed : whether the statement makes something; ``return y`` does not
    """

    line: Line
    function: str
    names: tuple[str, ...]
    values: tuple[Value, ...]
    dimensions: dict[str, int]
    x: Value
    computed: bool


Statement: TypeAlias = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return


class Observer:
    """A trace function that records every assignment and return in the given files while a forward runs."""

    def __init__(self, paths: dict[str, Path], dimensions: dict[str, int]) -> None:
        self.observations: list[Observation] = []
        self._dimensions = dimensions
        self._files = {str(path): name for name, path in paths.items()}
        self._statements = {name: statements(path.read_text(encoding="utf-8")) for name, path in paths.items()}
        self._running: dict[FrameType, Statement | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = self._files.get(frame.f_code.co_filename)
        if file is None or frame.f_code.co_name.startswith("<"):
            return None
        if event in ("line", "return"):
            running = self._running.get(frame)
            here = self._statements[file].get(frame.f_lineno) if event == "line" else None
            if running is not None and running is not here:  # the statement has ended, so its names have their values
                if not isinstance(running, ast.Return):
                    self._note(file, frame, running, list(assigned(running, frame)))
                elif event == "return":
                    self._note(file, frame, running, [("return", argument)])
            self._running[frame] = here
        if event == "return":
            del self._running[frame]
        return self

    def _note(self, file: str, frame: FrameType, statement: Statement, named: list[tuple[str, Any]]) -> None:
        self.observations.append(
            Observation(
                line=(file, statement.end_lineno or 0),
                function=frame.f_code.co_name,
                names=tuple(name for name, _ in named),
                values=tuple(describe(value) for _, value in named),
                dimensions={**self._dimensions, **local_dimensions(frame, self._dimensions)},
                x=describe(frame.f_locals.get("x")),
                computed=not isinstance(statement.value, ast.Name),
            )
        )


def statements(source: str) -> dict[int, Statement]:
    """Return line number -> the assignment or return that covers it."""
    by_line: dict[int, Statement] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Statement):
            by_line.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node))
    return by_line


def assigned(statement: ast.Assign | ast.AnnAssign | ast.AugAssign, frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield each name on the left (or element, ``context[start:end]``) and its value after the statement has run."""
    for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
        for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            name = ast.unparse(part)
            yield name, eval(name, frame.f_globals, frame.f_locals)


def describe(value: Any) -> Value:
    if isinstance(value, np.ndarray):
        return value.shape
    if isinstance(value, LookUp | Queries):  # it makes no array
        return None
    if isinstance(value, list | tuple) and value and all(isinstance(item, np.ndarray) for item in value):
        return [item.shape for item in value]
    return None


def local_dimensions(frame: FrameType, dimensions: dict[str, int]) -> dict[str, int]:
    """Return the letters whose value depends on the running function: S, N and K, and T where [CLS] alone is left."""
    letters: dict[str, int] = {}
    if "classifier" in frame.f_locals:
        letters["N"] = frame.f_locals["classifier"].shape[0]
    if isinstance(linear := frame.f_locals.get("linear"), Linear):
        letters["N"], letters["K"] = linear.shape
    if frame.f_code is reference.rotate.__code__:
        letters["R"] = frame.f_locals["rotation"].table.shape[1]
    if frame.f_code is reference.matmul.__code__:
        letters["N"], letters["K"] = frame.f_locals["weight"].shape
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code is reference.attention.__code__ and "end" in caller.f_locals:  # it and what it calls
            letters["S"] = int(caller.f_locals["end"] - caller.f_locals["start"])
        if caller.f_code in ONE_TOKEN_OF_EACH and caller is not frame and frame.f_code is not encoder.pooler.__code__:
            letters["T"] = dimensions["B"]
        # Their x has B rows after pooling.
        if caller.f_code in (heads.result.__code__, heads.of_all_tokens.__code__) and caller is not frame:
            letters.setdefault("T", len(caller.f_locals["x"]))
        caller = caller.f_back
    return letters


# --- the comparison --------------------------------------------------------------------------------------------------


def check(sources: dict[str, str], observations: Sequence[Observation], lengths: Sequence[int]) -> list[str]:
    """Compare the comments of these sources with the shapes that their lines made; return all faults."""
    faults: dict[str, None] = {}  # each once
    commented = {
        (file, number): comment for file in sources for number, comment in trailing_comments(sources[file]).items()
    }
    for line, comment in commented.items():
        for fault in check_comment(comment, [seen for seen in observations if seen.line == line], lengths):
            faults[f"{line[0]}:{line[1]}: {fault}"] = None
    for seen in observations:
        for name, value in zip(seen.names, seen.values, strict=True):
            excused = seen.line in commented or (seen.function, name) in WITHOUT_COMMENT
            if value is not None and seen.computed and not excused:
                faults[f"{seen.line[0]}:{seen.line[1]}: {name} in {seen.function} is {value} and says no shape"] = None
    return list(faults)


def check_comment(comment: str, executions: Sequence[Observation], lengths: Sequence[int]) -> Iterator[str]:
    """Yield the faults of one comment."""
    items = [item.split(" or ") for item in re.split(r", (?![^(]*\))", comment.removeprefix("#").strip())]
    matched: set[tuple[int, str]] = set()
    for seen in executions:
        described = items
        if isinstance(several := seen.values[0], list) and len(several) == len(items) > 1:  # of ``return x, y``
            seen = dataclasses.replace(seen, names=seen.names * len(items), values=tuple(several))
        if len(items) == 1 and len(seen.names) > 1:  # "3 x (T, H)" describes three names
            count, _, shape = items[0][0].partition(" x ")
            described = [[shape]] * int(count)
        if len(described) != len(seen.names):
            yield f"says {len(described)} shapes for {', '.join(seen.names)}"
            continue
        for place, (name, value, said) in enumerate(zip(seen.names, seen.values, described, strict=True)):
            held = [text for text in said if value == expected(text, seen, lengths)]
            matched.update((place if described is items else 0, text) for text in held)
            if value is not None and not held:  # None: not computed in this run; another run computes it
                yield f"{name} in {seen.function} is {value}, the comment says {' or '.join(said)}"
    if len(matched) < sum(map(len, items)):
        yield f"never the case, at least in part: {comment}"


def expected(text: str, seen: Observation, lengths: Sequence[int]) -> Value:
    """Return what a comment means, "(T, 3H)" or "B x (A, S, S)"; None if a letter does not have a value."""
    if text == "shape of x":
        return seen.x
    count, _, shape = text.rpartition(" x ")
    formula = re.sub(r"(\d)([A-Za-z])", r"\1 * \2", shape)
    number = 1 if not count else int(count) if count.isdigit() else seen.dimensions.get(count, 0)
    own = [{"S": length} for length in lengths] if count == "B" else [{}] * number
    try:
        shapes: list[tuple[int, ...]] = [eval(formula, {}, seen.dimensions | more) for more in own]
    except NameError:
        return None
    return shapes if count else shapes[0]
