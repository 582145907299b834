"""The shape comments of encoder.py, heads.py and reference.py: read with `tokenize`, compared with the true shapes."""

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

from minibert.bert import encoder, heads, reference
from minibert.bert.ops import Linear

SOURCES = {
    Path(module.__file__).name: Path(module.__file__) for module in (encoder, heads, reference) if module.__file__
}

# Lines that make an array and do not give its shape, by function and assigned name, with the reason.
WITHOUT_COMMENT = {
    ("erf", "return"): "elementwise: the docstring states the shape, the lines before it repeat it",
    ("gelu", "return"): "elementwise: the function is one formula in x",
    ("gelu_tanh", "return"): "elementwise: the function is one formula in x",
    ("relu", "return"): "elementwise: the function is one formula in x",
    ("silu", "return"): "elementwise: the function is one formula in x",
    ("sigmoid", "return"): "elementwise: the function is one formula in x",
}

# All values differ, also from the multiples that comments name.
LENGTHS = (13, 17, 19, 23)
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 35,
    "num_attention_heads": 5,
    "intermediate_size": 131,
    "max_position_embeddings": 29,
    "type_vocab_size": 6,
    "num_hidden_layers": 2,
}


# These functions give `linear` one token of each sequence.
ONE_TOKEN_OF_EACH = [
    function.__code__
    for function in (encoder.pooler, heads.next_sentence, heads.sequence_classification, heads.multiple_choice)
]


# --- the comments ----------------------------------------------------------------------------------------------------

Line: TypeAlias = tuple[str, int]
"""A file's name and the number of a statement's last line."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """One alternative: `count` arrays ("" for a single one) of `dimensions`, or of the shape of x (None)."""

    count: str
    dimensions: tuple[str, ...] | None


class NotUnderstoodError(ValueError):
    """A comment that does not have one of the known forms."""


def parse_comment(text: str) -> list[list[Shape]]:
    """Return the alternatives of each name on the left; the caller, who knows the number of names, expands "3 x"."""
    return [
        [_parse_shape(alternative) for alternative in item.split(" or ")]
        for item in re.split(r", (?![^(]*\))", text.removeprefix("#").strip())
    ]


def _parse_shape(text: str) -> Shape:
    match = re.fullmatch(r"(?:(\d+|[A-Z]) x )?(?:\((\w+(?:, \w+)*,?)\)|shape of x)", text)
    if not match:
        raise NotUnderstoodError(text)
    dimensions = None if match[2] is None else tuple(part for part in re.split(r",\s*", match[2]) if part)
    return Shape(match[1] or "", dimensions)


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
    found: dict[int, Statement] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Statement):
            found.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node))
    return found


def assigned(statement: ast.Assign | ast.AnnAssign | ast.AugAssign, frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield each name on the left (or element, ``context[start:end]``) and its value after the statement has run."""
    for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
        for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            name = ast.unparse(part)
            yield name, eval(name, frame.f_globals, frame.f_locals)


def describe(value: Any) -> Value:
    if isinstance(value, np.ndarray):
        return value.shape
    if isinstance(value, list | tuple) and value and all(isinstance(item, np.ndarray) for item in value):
        return [item.shape for item in value]
    return None


def local_dimensions(frame: FrameType, dimensions: dict[str, int]) -> dict[str, int]:
    """Return the letters whose value depends on the running function: S, N and K, and T where [CLS] alone is left."""
    found: dict[str, int] = {}
    if "classifier" in frame.f_locals:
        found["N"] = frame.f_locals["classifier"].shape[0]
    if isinstance(linear := frame.f_locals.get("linear"), Linear):
        found["N"], found["K"] = linear.shape
    if frame.f_code is reference.matmul.__code__:
        found["N"], found["K"] = frame.f_locals["weight"].shape
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code is reference.attention.__code__ and "end" in caller.f_locals:
            found["S"] = int(caller.f_locals["end"] - caller.f_locals["start"])
        if caller.f_code in ONE_TOKEN_OF_EACH and caller is not frame and frame.f_code is not encoder.pooler.__code__:
            found["T"] = dimensions["B"]
        caller = caller.f_back
    return found


# --- the comparison --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Report:
    """The result: the checked lines, how often they ran, and all faults as "file:line: message"."""

    checked: dict[Line, int]
    problems: list[str]


def check(sources: dict[str, str], observations: Sequence[Observation], lengths: Sequence[int]) -> Report:
    """Compare the comments of these sources with the shapes that their lines made."""
    report = Report({}, [])

    def complain(line: Line, message: str) -> None:
        problem = f"{line[0]}:{line[1]}: {message}"
        if problem not in report.problems:
            report.problems.append(problem)

    by_line: dict[Line, list[Observation]] = {}
    for observation in observations:
        by_line.setdefault(observation.line, []).append(observation)

    for file, source in sources.items():
        for number, comment in trailing_comments(source).items():
            line = (file, number)
            report.checked[line] = len(by_line.get(line, []))
            for message in check_comment(comment, by_line.get(line, []), lengths):
                complain(line, message)

    for line, seen_here in by_line.items():
        for seen in seen_here:
            for name, value in zip(seen.names, seen.values, strict=True):
                excused = line in report.checked or (seen.function, name) in WITHOUT_COMMENT
                if value is not None and seen.computed and not excused:
                    complain(line, f"{name} in {seen.function} is {value} and says no shape")
    return report


def check_comment(comment: str, executions: Sequence[Observation], lengths: Sequence[int]) -> Iterator[str]:
    """Yield the faults of one comment."""
    if not executions:
        yield f"never executed: {comment}"
        return
    try:
        items = parse_comment(comment)
    except NotUnderstoodError:
        yield f"not understood: {comment}"
        return
    matched: set[tuple[int, int]] = set()
    for seen in executions:
        yield from compare(items, seen, lengths, matched)
    if len(matched) < sum(map(len, items)):
        yield f"never the case, at least in part: {comment}"


def compare(
    items: list[list[Shape]], seen: Observation, lengths: Sequence[int], matched: set[tuple[int, int]]
) -> Iterator[str]:
    """Yield the faults; record in `matched` which alternative of which item was true."""
    places = list(range(len(items)))  # the item that describes each name
    single = items[0][0]
    distributed = len(items) == 1 and len(seen.names) > 1 and single.count == str(len(seen.names))
    if distributed:
        places = [0] * len(seen.names)
    if len(places) != len(seen.names):
        yield f"says {len(places)} shapes for {', '.join(seen.names)}"
        return
    for place, name, value in zip(places, seen.names, seen.values, strict=True):
        if value is None:  # not computed in this run; `matched` shows that another run computes it
            continue
        said = [dataclasses.replace(s, count="") if distributed else s for s in items[place]]
        held = [j for j, shape in enumerate(said) if holds(shape, value, seen, lengths)]
        matched.update((place, j) for j in held)
        if not held:
            yield f"{name} in {seen.function} is {value}, the comment says {' or '.join(map(str, said))}"


def holds(shape: Shape, value: Value, seen: Observation, lengths: Sequence[int]) -> bool:
    if not shape.count:
        return isinstance(value, tuple) and value == resolve(shape, seen, seen.dimensions)
    count = int(shape.count) if shape.count.isdigit() else seen.dimensions.get(shape.count)
    if not isinstance(value, list) or len(value) != count:
        return False
    per_sequence = len(lengths) if shape.count == "B" else 0
    bindings = [{**seen.dimensions, **({"S": lengths[i]} if per_sequence else {})} for i in range(count)]
    return all(one == resolve(shape, seen, bound) for one, bound in zip(value, bindings, strict=True))


def resolve(shape: Shape, seen: Observation, dimensions: dict[str, int]) -> Value:
    """Return the numbers that a comment means; None if a letter does not have a value."""
    if shape.dimensions is None:
        return seen.x
    sizes = []
    for dimension in shape.dimensions:
        multiple, letter = re.fullmatch(r"(\d*)(\w*)", dimension).groups()  # type: ignore[union-attr]
        if letter and letter not in dimensions:
            return None
        sizes.append(int(multiple or 1) * (dimensions[letter] if letter else 1))
    return tuple(sizes)


# --- the forward -----------------------------------------------------------------------------------------------------
