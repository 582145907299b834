"""`Report`: the result of a comparison as data, text, Markdown and JSON."""

from __future__ import annotations

import dataclasses
import math
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import minibert
from minibert._utils.files import printable
from minibert._utils.validation import counted
from minibert.parity.finding import Finding

__all__ = ["FORMAT", "Report", "Row", "as_findings", "as_table"]

FORMAT = 1
"""The number of the format of `Report.to_json`."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One value of the dump beside the truth; only places that are not masked count.

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


@dataclasses.dataclass(frozen=True)
class Result:
    """All that `minibert.parity.check` found; see `Report`, which adds what can be done with it.

    Parameters
    ----------
    verdict : str
        "bits": the numbers of minibert, bit for bit. "float32", "float16", "bfloat16": what a correct forward of this
        precision gives. "wrong": something else.
    first : str or None
        The first wrong name in the order of the forward pass, if the verdict is "wrong".
    names : list of Row
        All compared names in that order.
    diagnosis : list of Finding
        What explains the difference; the best explanation first.
    budget : str or float
        The precision that was allowed, or a number of units.
    notes : list of str
        What else was seen, such as layouts and names that were not compared.
    unknown : list of str
        Names in the dump that mean nothing here.
    model : str
        A description of the model.
    misfits : list of str
        Names in the dump that mean a value, but whose shape fits no layout of it. They were not compared.
    warnings : list of str
        What makes the verdict less certain than it looks: a layout that only the values decided, names of one value
        with different numbers, values that the dump cannot tell apart.
    """

    verdict: str
    first: str | None
    names: list[Row]
    diagnosis: list[Finding]
    budget: str | float
    allowed: bool
    notes: list[str] = dataclasses.field(default_factory=list)
    unknown: list[str] = dataclasses.field(default_factory=list)
    model: str = ""
    misfits: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)


# Rows of the table in a text; the others are right, and are counted.
_MOST_ROWS = 40

# A name of the dump is shown beside the canonical one, unless it is longer than this.
_LONGEST_GIVEN = 40

# What the numbers of a place are, by how many there are.
_AXES = {2: "row, feature", 3: "row, token, feature", 4: "row, head, query, key"}


def as_text(report: Result) -> str:
    """Return the report for a terminal of 120 columns."""
    return "\n".join(text for text in (as_table(report), as_findings(report)) if text)


def as_table(report: Result) -> str:
    """Return the first part of the text, the headline and the table, which do not depend on the diagnosis."""
    lines, shown = [_headline(report), *(f"Warning: {one}" for one in report.warnings)], _shown(report)
    if shown:
        lines.append("  unit: RMS error of a plain float32 forward of this model on these inputs")
    width = max((len(_label(row)) for row in shown), default=0)
    place = next((_AXES.get(len(row.at), "place") for row in shown if row.level != "float32" and not row.holds), None)
    if place is not None:
        columns = f"relative  largest error at [{place}]: theirs instead of the true value"
        lines.append(f"  {'':{width}}  {'units':>9}  {columns}")
    skipped = False
    for row in report.names:
        if row not in shown:
            if not skipped:
                lines.append("  ...")
            skipped = True
            continue
        skipped = False
        mark = ">" if row.name == report.first and row.level == "wrong" else " "
        lines.append(f"{mark} {_label(row):{width}}  {_number(row.ratio):>9}{_detail(row)}".rstrip())
    return "\n".join(lines)


def as_findings(report: Result) -> str:
    """Return the second part of the text: the causes, the notes, and the names that mean nothing; "" if none."""
    lines: list[str] = []
    for finding in report.diagnosis:
        lines += _finding_lines(finding)
    lines += [f"Note: {note}" for note in report.notes]
    if report.unknown:
        lines.append(f"Not compared, because the names are unknown: {_some(report.unknown)}")
    return "\n".join(lines)


def _headline(report: Result) -> str:
    """Return the verdict in a line, with the names that were dumped and not compared: notes are overlooked."""
    if not report.misfits:
        return _verdict(report)
    return f"{_verdict(report)}; NOT COMPARED, because of the shape: {_some(report.misfits)}"


def _verdict(report: Result) -> str:
    rows, wrong = report.names, [row for row in report.names if row.level == "wrong"]
    compared = counted(len(rows), "name")
    if report.verdict == "wrong":
        if not wrong:
            return f"WRONG: {report.first}" if report.first else "WRONG"
        before = rows[: rows.index(wrong[0])]
        right = f" ({counted(len(before), 'name')} before it: right)" if before else ""
        first = _label(wrong[0])
        if not before and not wrong[0].name.startswith("embeddings"):
            return f"WRONG at {first} (nothing before it was compared); {len(wrong)} of {compared} wrong"
        return f"WRONG from {first} on{right}; {len(wrong)} of {compared} wrong"
    largest = max((row.ratio for row in rows), default=0.0)
    said = {
        "bits": f"BITS: {compared} equal{'s' if len(rows) == 1 else ''} minibert bit for bit",
        "float32": f"FLOAT32: {compared} compared, all as exact as float32 is; the largest error is "
        f"{_number(largest)} units",
        "float16": f"FLOAT16: {compared} compared; the errors are those of a forward in float16",
        "bfloat16": f"BFLOAT16: {compared} compared; the errors are those of a forward in bfloat16",
    }[report.verdict]
    return said + ("" if report.allowed else f", which is more than the budget allows ({report.budget})")


def _label(row: Row) -> str:
    """Return the name in the dump with the canonical one, or the canonical one alone if it says the same."""
    given = printable(row.given)
    if given.endswith(row.name) or len(given) > _LONGEST_GIVEN:
        return row.name
    return f"{given} ({row.name})"


def _shown(report: Result) -> list[Row]:
    rows = report.names
    if len(rows) <= _MOST_ROWS:
        return rows
    wrong = [i for i, row in enumerate(rows) if row.level == "wrong" or row.holds]
    near = {j for i in wrong[:3] for j in range(i - 2, i + 3)} | {0, len(rows) - 1} | set(wrong[: _MOST_ROWS - 20])
    if not wrong:
        order = sorted(range(len(rows)), key=lambda i: -rows[i].ratio)
        near |= set(order[:10])
    return [row for i, row in enumerate(rows) if i in near]


def _detail(row: Row) -> str:
    if row.holds:
        return f"  holds {row.holds}"
    if row.level == "float32":
        return ""
    place = ", ".join(map(str, row.at))
    level = "" if row.level == "wrong" else f"  {row.level}"
    percent = 100 * row.relative
    relative = f"{percent:{'.2g' if percent < 99.5 else '.0f'}} %"
    if not math.isfinite(row.largest):
        return f"{level}  not finite, at [{place}]: {row.value:.6g} instead of {row.true:.6g}"
    return f"{level}  {relative:>8}  {row.largest:.1e} at [{place}]: {row.value:.6g} instead of {row.true:.6g}"


def _finding_lines(finding: Finding) -> list[str]:
    lines = [f"Why: {finding.text}"]
    if finding.explained:
        lines.append(f"     It explains {100 * finding.explained:.4g} % of the difference.")
    if finding.alternatives:
        lines.append(f"     This dump does not tell it apart from: {', '.join(finding.alternatives)}.")
    if finding.separate:
        lines.append(f"     To tell them apart: {finding.separate}")
    if finding.remedy:
        lines.append(f"Fix: {finding.remedy}")
    return lines


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.1f}" if value < 1000 else f"{value:.3g}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def as_markdown(report: Result) -> str:
    """Return the report in Markdown: a headline, the table of the names, the findings."""
    lines = [f"**{_headline(report)}**", "", *(f"> {one}\n" for one in report.warnings)]
    lines += ["| name | units | largest error | |", "|---|--:|--:|---|"]
    for row in _shown(report):
        level = f"holds {row.holds}" if row.holds else row.level
        lines.append(f"| `{row.name}` | {_number(row.ratio)} | {row.largest:.1e} | {level} |")
    hidden = len(report.names) - len(_shown(report))
    if hidden:
        lines += ["", f"{counted(hidden, 'more name')} as exact as these or better."]
    for finding in report.diagnosis:
        lines += [
            "",
            *(line.strip().replace("Why:", "**Why:**").replace("Fix:", "**Fix:**") for line in _finding_lines(finding)),
        ]
    lines += ["", *(f"- {note}" for note in report.notes)] if report.notes else []
    if report.unknown:
        lines += ["", f"Not compared: {_some(report.unknown)}"]
    return "\n".join(lines) + "\n"


def as_json(report: Result) -> dict[str, Any]:
    """Return the report as a JSON object."""
    content = dataclasses.asdict(report)
    return {"format": FORMAT, "minibert": minibert.__version__, **_finite(content)}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def as_junit(report: Result) -> str:
    """Return the report as JUnit XML; a name outside the budget is a failed test case."""
    findings = "\n".join(line for finding in report.diagnosis for line in _finding_lines(finding))
    cases = []
    for row in report.names:
        failed = row.level == "wrong" or (not report.allowed and row.level != "float32") or bool(row.holds)
        inner = ""
        if failed:
            message = f"{_number(row.ratio)} units; relative and largest error:{_detail(row)}"
            inner = f"<failure message={quoteattr(_xml(message))}>{escape(_xml(findings))}</failure>"
        cases.append(f'    <testcase classname="minibert.parity" name={quoteattr(_xml(row.name))}>{inner}</testcase>')
    if not report.names or (not report.allowed and not any("<failure" in case for case in cases)):
        inner = f"<failure message={quoteattr(_xml(_headline(report)))}>{escape(_xml(findings))}</failure>"
        cases.append(f'    <testcase classname="minibert.parity" name="verdict">{inner}</testcase>')
    failures = sum("<failure" in case for case in cases)
    head = f'<testsuite name="minibert parity" tests="{len(cases)}" failures="{failures}">'
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            "<testsuites>",
            f"  {head}",
            *cases,
            "  </testsuite>",
            "</testsuites>",
            "",
        ]
    )


def _xml(text: str) -> str:
    """Replace the characters that XML does not allow."""
    return "".join(
        c if c in "\t\n\r" or 32 <= ord(c) < 0xD800 or 0xE000 <= ord(c) < 0xFFFE or ord(c) > 0xFFFF else "?"
        for c in text
    )


def as_annotations(report: Result) -> str:
    """Return lines that GitHub Actions shows beside a commit; "" if everything is within the budget."""
    if report.allowed:
        return ""
    text = "\n".join([_headline(report), *(line for finding in report.diagnosis for line in _finding_lines(finding))])
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::error title=minibert parity::{escaped}"


class Report(Result):
    """The result of `minibert.parity.check`; `verdict`, `first`, `names` and `diagnosis` are those of `Result`."""

    @property
    def exit_code(self) -> int:
        """0 if everything that was compared is within the budget, else 1."""
        return 0 if self.allowed else 1

    def raise_for_divergence(self) -> None:
        """Raise an AssertionError with the text of the report if something is outside the budget.

        Raises
        ------
        AssertionError
        """
        if not self.allowed:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return as_text(self)

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object; "format" is its number. Numbers that are not finite are strings."""
        return as_json(self)

    def to_markdown(self) -> str:
        """Return the report for a comment on a pull request."""
        return as_markdown(self)

    def to_junit(self) -> str:
        """Return the report as JUnit XML: one test case for each name."""
        return as_junit(self)
