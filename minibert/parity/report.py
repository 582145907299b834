"""`Report`: the result of a comparison, as data, text, Markdown and JSON, with what a citation needs."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import itertools
import math
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.files import printable, read_bytes
from minibert._utils.validation import counted, some_of
from minibert._version import __version__
from minibert.models.inputs import INPUTS
from minibert.parity.dumps import Dump
from minibert.parity.finding import Finding
from minibert.parity.symbols import FIRST_STATES, both_names
from minibert.parity.truth import Subject

FORMAT = 2
"""The number of the format of `Report.to_json`."""

UNIT = (
    "RMS error of a plain float32 forward of this model on these inputs (NumPy, the operations in the order of "
    "transformers, the worse of two orders of summation), measured against a float64 forward"
)

# Rows of the table in a text, unless all are asked for; the others are right, and are counted.
_MOST_ROWS = 40

# A name of the dump is shown beside the canonical one, unless it is longer than this.
_LONGEST_LABEL = 40

# What the numbers of a place are, by how many there are.
_AXES = {2: "row, feature", 3: "row, token, feature", 4: "row, head, query, key"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One value of the dump compared with the truth; masked positions do not count.

    Parameters
    ----------
    name : str             the canonical name
    given : str            its name in the dump
    level : str            "float32", "float16", "bfloat16" or "wrong"
    ratio : float          RMS error, in units of the RMS error of a plain float32 forward
    worst : float          largest error, in units of the largest error of that forward
    rms, largest : float   the errors themselves
    relative : float       RMS error over the RMS of the true values
    unit : float           the RMS error of the plain float32 forward
    at : tuple of int      the place of the largest error, in padded form
    value, true : float    the port's value there, and the true one
    layout : str           how the array lay in the dump; "" for the form of a trace
    holds : str            another name whose value the array has; "" if there is none
    half : dict            the ratio in units of a float16 and a bfloat16 forward, if these were computed
    own : bool             it is wrong by itself, not because of the port's values before it, says the diagnosis
    """

    name: str
    given: str
    level: str
    ratio: float
    worst: float
    rms: float
    largest: float
    relative: float
    unit: float
    at: tuple[int, ...]
    value: float
    true: float
    layout: str = ""
    holds: str = ""
    half: dict[str, float] = dataclasses.field(default_factory=dict)
    own: bool = False


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `minibert.parity.check`.

    Parameters
    ----------
    verdict : str
        "bits": the numbers of minibert, bit for bit. "float32", "float16", "bfloat16": what a correct forward of this
        precision gives. "wrong": something else.
    first : str or None
        The first wrong name in the order of the forward pass, if the verdict is "wrong".
    names : list of Row
        All compared arrays in that order.
    diagnosis : list of Finding
        What explains the difference; the best explanation first.
    budget : str or float
        The precision that was allowed, or a number of units.
    allowed : bool
        Everything that was compared is within the budget.
    notes : list of str
        What else was seen, such as layouts and names that were not compared.
    unknown : list of str
        Names in the dump that mean nothing here.
    unseen : list of str
        Ids of known mistakes that the inputs cannot show, whatever the port computes.
    misfits : list of str
        Names in the dump that mean a value, but whose shape fits no layout of it. They were not compared.
    warnings : list of str
        What makes the verdict less certain than it looks: a layout that only the values decided, names of one value
        with different numbers, values that the dump cannot tell apart.
    about : dict of str to str
        What a citation needs: "model", "source", "weights", "config", "layers", "inputs", "date", "versions", "dump",
        "port", "budget" and "unit".
    """

    verdict: str
    first: str | None
    names: list[Row]
    diagnosis: list[Finding]
    budget: str | float
    allowed: bool
    notes: list[str] = dataclasses.field(default_factory=list)
    unknown: list[str] = dataclasses.field(default_factory=list)
    unseen: list[str] = dataclasses.field(default_factory=list)
    misfits: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    about: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 if all names with a meaning were compared and are within the budget, else 1."""
        return 0 if self.allowed and not self.misfits else 1

    def raise_for_divergence(self) -> None:
        """Raise an AssertionError with the text of the report if the exit code is not 0."""
        if self.exit_code:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, *, every_row: bool = False) -> str:
        """Return the report for a terminal of 120 columns; with `every_row`, a long table is not shortened."""
        return "\n".join(text for text in (self.table(every_row=every_row), self.findings()) if text)

    def table(self, *, every_row: bool = False) -> str:
        """Return the first part of the text: the headline and the table. They do not depend on the diagnosis."""
        rows = self._shown(every_row)
        lines = [self._headline(), *(f"Warning: {warning}" for warning in self.warnings)]
        lines += [f"  {key}: {self.about[key]}" for key in ("model", "inputs", "port") if self.about.get(key)]
        if rows:
            lines.append("  unit: RMS error of a plain float32 forward of this model on these inputs")
        width = max((len(_label(row)) for row in rows), default=0)
        axes = [_AXES.get(len(row.at), "place") for row in rows if row.level != "float32" and not row.holds]
        if axes:
            columns = f"relative  largest error at [{axes[0]}]: theirs instead of the true value"
            lines.append(f"  {'':{width}}  {'units':>9}  {columns}")
        previous: Row | None = None
        for row in self.names:
            if row in rows:
                mark = ">" if self._is_marked(row) else " "
                lines.append(f"{mark} {_label(row):{width}}  {_number(row.ratio):>9}{_detail(row)}".rstrip())
            elif previous is None or previous in rows:
                lines.append("  ...")
            previous = row
        return "\n".join(lines)

    def findings(self) -> str:
        """Return the second part of the text: causes, notes and unknown names; "" if there are none."""
        wrong = list(dict.fromkeys(row.name for row in self.names if row.level == "wrong"))
        own = list(dict.fromkeys(row.name for row in self.names if row.own))
        lines = []
        if 0 < len(own) < len(wrong):
            rest = counted(len(wrong) - len(own), "other name")
            lines.append(f"Wrong by {'itself' if len(own) == 1 else 'themselves'} (>): {some_of(own)}. Not so: {rest}.")
        for label, text in itertools.chain(*map(_paragraphs, self.diagnosis)):
            lines.append(f"{label}: {text}" if label else f"     {text}")
        lines += [f"Note: {note}" for note in self._notes()]
        if self.unknown:
            lines.append(f"Not compared, because the names are unknown: {some_of(self.unknown)}")
        return "\n".join(lines)

    def to_markdown(self, *, every_row: bool = False) -> str:
        """Return the report for a pull request or a paper: headline, table, causes, and what a citation needs."""
        lines = [f"**{self._headline()}**", "", *(f"> {warning}\n" for warning in self.warnings)]
        lines += ["| name | units | relative | largest error | |", "|---|--:|--:|--:|---|"]
        rows = self._shown(every_row)
        for row in rows:
            level = f"holds {both_names(row.holds)}" if row.holds else "wrong by itself" if row.own else row.level
            lines.append(
                f"| `{row.name}` | {_number(row.ratio)} | {_percent(row.relative)} | {row.largest:.1e} | {level} |"
            )
        if hidden := len(self.names) - len(rows):
            wrong = sum(row.level == "wrong" for row in self.names if row not in rows)
            lines += ["", f"Not shown: {counted(hidden, 'more name')}, {wrong or 'none'} of them wrong."]
        for label, text in itertools.chain(*map(_paragraphs, self.diagnosis)):
            lines += ["", f"**{label}:** {text}" if label else text]
        lines += ["", *(f"- {note}" for note in self._notes())]
        if self.unknown:
            lines += ["", f"Not compared, because the names are unknown: {some_of(self.unknown)}"]
        lines += ["", *(f"- {key}: {value}" for key, value in self.about.items() if value)]
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object; "format" is the version. Numbers that are not finite become strings."""
        return {"format": FORMAT, **_finite(dataclasses.asdict(self))}

    def _is_marked(self, row: Row) -> bool:
        return row.own or (row.name == self.first and row.level == "wrong")

    def _headline(self) -> str:
        """Return the verdict in a line, with the names that were dumped and not compared: notes are overlooked."""
        misfits = f"; NOT COMPARED, because of the shape: {some_of(self.misfits)}" if self.misfits else ""
        unknown = f"; {counted(len(self.unknown), 'unknown name')} not compared" if self.unknown else ""
        return f"{self._verdict()}{unknown}{misfits}"

    def _verdict(self) -> str:
        rows, wrong = self.names, [row for row in self.names if row.level == "wrong"]
        compared = counted(len(rows), "name")
        if self.verdict == "wrong":
            if not wrong:
                return f"WRONG: {self.first}"
            before = rows[: rows.index(wrong[0])]
            values = f"all {len(before)} values before it are" if len(before) > 1 else "the value before it is"
            right = f" ({values} right)" if before else ""
            first = _label(wrong[0])
            if not before and not wrong[0].name.startswith("embeddings"):
                return f"WRONG at {first} (nothing before it was compared); {len(wrong)} of {compared} wrong"
            return f"WRONG from {first} on{right}; {len(wrong)} of {compared} wrong"
        largest = _number(max((row.ratio for row in rows), default=0.0))
        sentence = {
            "bits": f"BITS: {compared} equal{'s' if len(rows) == 1 else ''} minibert bit for bit",
            "float32": f"FLOAT32: {compared} compared, all as exact as float32; the largest error is {largest} units",
            "float16": f"FLOAT16: {compared} compared; the errors are those of a forward in float16",
            "bfloat16": f"BFLOAT16: {compared} compared; the errors are those of a forward in bfloat16",
        }[self.verdict]
        if weights := self.about.get("weights of the port"):
            sentence = sentence.replace(":", f" with the weights of {weights}:", 1)
        return sentence + ("" if self.allowed else f", which is more than the budget allows ({self.budget})")

    def _notes(self) -> Iterator[str]:
        yield from self.notes
        if broken := next((row for row in self.names if not math.isfinite(row.largest)), None):
            place = f"{_label(broken)}[{', '.join(map(str, broken.at))}] is {broken.value:g}"
            yield f"{place}, and no name before it has such a number: look for 0/0, inf - inf and overflow."
        if self.unseen:
            yield f"These inputs cannot show {counted(len(self.unseen), 'known mistake')}: {some_of(self.unseen, 12)}."

    def _shown(self, every_row: bool) -> list[Row]:
        """Return the rows of a table: all, or the hidden states, the first ones, and the marked ones."""
        rows = self.names
        if every_row or len(rows) <= _MOST_ROWS:
            return rows
        wrong = [i for i, row in enumerate(rows) if row.level == "wrong" or row.holds]
        marked = [i for i in wrong if self._is_marked(rows[i])] or wrong
        chosen = {0, len(rows) - 1, *wrong[:3], *marked[:20]} | {j for i in marked[:3] for j in range(i - 2, i + 3)}
        chosen |= {i for i, row in enumerate(rows) if row.name in FIRST_STATES or row.name.count(".") == 2}
        if not wrong:
            chosen |= {*sorted(range(len(rows)), key=lambda i: -rows[i].ratio)[:10]}
        return [row for i, row in enumerate(rows) if i in chosen]


def _label(row: Row) -> str:
    """Return the name in the dump with the canonical one, or the canonical one alone if it says the same."""
    label = printable(row.given)
    return row.name if label.endswith(row.name) or len(label) > _LONGEST_LABEL else f"{label} ({row.name})"


def _detail(row: Row) -> str:
    if row.holds:
        return f"  holds {both_names(row.holds)}"
    if row.level == "float32":
        return ""
    place = ", ".join(map(str, row.at))
    level = "" if row.level == "wrong" else f"  {row.level}"
    if not math.isfinite(row.largest):
        return f"{level}  not finite, at [{place}]: {row.value:.6g} instead of {row.true:.6g}"
    largest = f"{row.largest:.1e} at [{place}]: {row.value:.6g} instead of {row.true:.6g}"
    return f"{level}  {_percent(row.relative):>8}  {largest}"


def _paragraphs(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each paragraph; the label is "" if it belongs to the one before."""
    yield "Why", finding.text
    if finding.explained:
        yield "", f"It explains {100 * finding.explained:.4g} % of the difference."
    if finding.alternatives:
        yield "", f"This dump does not tell it apart from: {', '.join(finding.alternatives)}."
    if finding.separate:
        yield "", f"To tell them apart: {finding.separate}"
    if finding.remedy:
        yield "Fix", finding.remedy


def _percent(relative: float) -> str:
    return f"{100 * relative:{'.2g' if relative < 0.995 else '.0f'}} %" if math.isfinite(relative) else "not finite"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.1f}" if value < 1000 else f"{value:.3g}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# --- what a citation needs: model, inputs, dump and this machine, with checksums -------------------------------------


def about(subject: Subject, inputs: Mapping[str, Any], source: str, dump: Any, arrays: Dump) -> dict[str, str]:
    """Return what a citation needs, by name; `source` says where the inputs are from, `arrays` are those of `dump`."""
    config, mask = subject.config, subject.pack(inputs).mask
    sizes = f"{config.num_hidden_layers} layers, hidden_size {config.hidden_size}"
    numbers = {name: np.asarray(inputs[name], "<f8") for name in INPUTS if name in inputs}
    shape = f"{counted(len(mask), 'row')} of {mask.shape[1]}, {counted(int(mask.sum()), 'token')}"
    kind = type(subject.model).__name__ if subject.head or config.model_type != "bert" else None
    facts = {"model": ", ".join(filter(None, [subject.name, kind, sizes]))}
    if subject.files is None:
        weights = {name: np.asarray(array, "<f4") for name, array in subject.weights().items()}
        facts["weights"] = f"float32 numbers by name, {_digest(weights)}"
        facts["config"] = f"its fields, {_digest({repr(config): np.zeros(0)})}"
    else:
        facts["source"] = subject.files.source
        facts["weights"] = ", ".join(_digest_of_file(path) for path in subject.files.checkpoint())
        stated = subject.files.require("config.json")
        facts["config"] = f"{printable(stated.name)} sha256 {hashlib.sha256(read_bytes(stated)).hexdigest()}"
    return facts | {
        "layers": "counted from 0; hidden_states.0 is the output of the embeddings, hidden_states.1 that of layer 0",
        "inputs": ", ".join(filter(None, [source, shape, _digest(numbers)])),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": f"minibert {__version__}, NumPy {np.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}",
        "dump": _dump_of(dump, arrays),
    }


def _dump_of(dump: Any, arrays: Dump) -> str:
    path = None if isinstance(dump, Mapping) else Path(os.fspath(dump))
    if path is not None and path.is_file():
        return _digest_of_file(path)
    name = "" if path is None else f"{printable(path.name)}, "
    return f"{name}{counted(len(arrays), 'array')}, {_digest(arrays)}"


def _digest(arrays: Mapping[str, Any]) -> str:
    """Return the beginning of the SHA-256 of arrays: of each the name, dtype and shape, and the numbers."""
    digest = hashlib.sha256()
    for name, value in arrays.items():
        for array in value if isinstance(value, list) else [value]:
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode(errors="surrogatepass"))
            digest.update(np.ascontiguousarray(array).data)
    return f"sha256 {digest.hexdigest()[:16]} (first 16 hex digits)"


def _digest_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return f"{printable(path.name)} sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
