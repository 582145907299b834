"""Draw the chart of the front page from the tables of benchmarks/README.md: `python -m benchmarks.chart`.

It writes `.github/chart.svg` and `.github/chart-dark.svg`, and two badges with facts of pyproject.toml. A test draws
all of them again and compares them with the files, so the chart has the figures of the tables.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parent.parent
_COLOURS = {  # of texts, of notes, of minibert's bars, of the other bars
    "light": ("#1f2328", "#59636e", "#0969da", "#afb8c1"),
    "dark": ("#f0f6fc", "#9198a1", "#4493f8", "#545d68"),
}
_WIDTH, _COLUMN, _ROW, _LABEL, _BAR = 440, 222, 18, 122, 38  # a phone shows it in 340 to 400 pixels
_PROCESSORS = {"AMD EPYC (family 25, model 17, avx512f)": "AMD EPYC (Zen 4)"}
_SPEED = ("speed", "speed with AMX", "texts", "all-mpnet-base-v2")


class Panel(NamedTuple):
    """Bars from one table: a title, and for each library its name, the text of its figure, and the figure."""

    title: str
    more_is_better: bool
    bars: list[tuple[str, str, float]]


def table(page: str, name: str) -> tuple[list[list[str]], str]:
    """Return the cells of a table, its head first, and the line about versions and machine below it.

    `name` is that of the table's markers, or the first cell of a table that has none.
    """
    place = re.search(rf"^<!-- {re.escape(name)} -->$|^\| {re.escape(name)} \|", page, re.MULTILINE)
    if place is None:
        raise ValueError(f"benchmarks/README.md does not have the table {name!r}.")
    text = page[place.start() :]
    lines = re.findall(r"^\|.*\|\n", text[: re.search(r"^(?!<!--|\|)", text, re.MULTILINE).start()], re.MULTILINE)
    note = re.search(r"^minibert \d.*", text, re.MULTILINE)
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [cells[0], *cells[2:]], note[0] if note else ""


def panels(page: str) -> list[Panel]:
    """Read what the chart shows."""
    (head, *rows), _ = table(page, "texts")
    (news,) = (row for row in rows if row[0] == "news")
    (names, *runs), _ = table(page, "runtime")
    (_, *sizes), _ = table(page, "package")
    (columns, *states), _ = table(page, "parity")
    start = names.index("first vector")
    last = states[6]  # of MiniLM: the state after its last layer
    return [
        Panel(f"Texts per second ({news[1]} tokens)", True, _bars(zip(head[2:], news[2:], strict=True))),
        Panel("Seconds to the first vector", False, _bars((run[0].split()[0], run[start]) for run in runs)),
        Panel("Megabytes without weights", False, _bars(row[:2] for row in sizes)),
        Panel("Rounding error, last layer", False, _bars(zip(columns[2:-1], last[2:-1], strict=True))),
    ]


def _bars(cells: Iterable[tuple[str, str]]) -> list[tuple[str, str, float]]:
    bars = []
    for name, cell in cells:
        label = re.split(r" \(| with |:| fused| f32", name)[0].replace('backend="numpy"', "minibert in NumPy")
        text = re.split(r" [(/]", cell.removesuffix(" s"))[0]
        bars.append((label, text, float(text.replace(",", ""))))
    return bars


def behind(page: str) -> list[str]:
    """Return the rows of speed that minibert loses: a ratio below 1.00 in a table of texts or of the forward pass."""
    found = []
    for name in _SPEED:
        (head, *rows), note = table(page, name)
        machine = " on a Xeon" if "Xeon" in note else ""
        for row in rows:
            for library, cell in zip(head, row, strict=True):
                if ratio := re.search(r"\b0\.\d\dx", cell):
                    found.append(f"{row[0]} {row[1]}{machine} ({library.split()[0]} {ratio[0]})")
    return found


def machine(page: str) -> str:
    """Return the processor of the chart's times and the number of threads; they must be from one machine."""
    notes = [table(page, name)[1] for name in ("texts", "runtime")]
    (found,) = {re.search(r"; (AMD.+?|Intel.+?), (\d+) threads", note).groups() for note in notes}
    return f"{_PROCESSORS[found[0]]}, {found[1]} threads"


def draw(page: str, theme: str) -> str:
    """Return the chart as SVG."""
    ink, grey, ours, others = _COLOURS[theme]
    parts: list[str] = []

    def text(x: float, y: float, content: str, style: str = "") -> None:
        parts.append(f'<text x="{x:g}" y="{y:g}"{style and " " + style}>{escape(content)}</text>')

    heights = [13, 13]
    for panel, column in zip(panels(page), (0, 0, 1, 1), strict=True):
        x, y = column * _COLUMN, heights[column]
        text(x, y, panel.title, 'font-weight="600"')
        figures = [figure for *_, figure in panel.bars]
        best = (max if panel.more_is_better else min)(figures)
        for label, shown, figure in panel.bars:
            y += _ROW
            length = max(_BAR * figure / max(figures), 2)
            colour = ours if label.startswith("minibert") else others
            fitted = f' textLength="{_LABEL - 6}" lengthAdjust="spacingAndGlyphs"' if len(label) > 18 else ""
            text(x, y + 4, label, f'fill="{ink if colour == ours else grey}"{fitted}')
            parts.append(
                f'<rect x="{x + _LABEL}" y="{y - 6}" width="{length:.1f}" height="12" rx="2" fill="{colour}"/>'
            )
            text(x + _LABEL + length + 4, y + 4, shown, 'font-weight="700"' if figure == best else "")
        heights[column] = y + 32
    y = max(heights) - 4
    note = (
        "MiniLM in float32. Best in bold: more texts; less time, space and error (RMS, beside float64). "
        f"All times are of one machine: {machine(page)}."
    )
    for line in textwrap.wrap(note, 66):
        text(0, y, line, f'fill="{grey}"')
        y += 16
    height = y - 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="12" fill="{ink}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def badge(label: str, fact: str) -> str:
    """Return a small picture with a label and a fact."""
    left, right = (10 + 6.6 * len(text) for text in (label, fact))
    texts = "".join(
        f'<text x="{x:g}" y="14" textLength="{width - 10:g}">{escape(text)}</text>'
        for x, width, text in ((5, left, label), (left + 5, right, fact))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:g}" height="20" fill="#fff" font-size="11" '
        f'font-family="Verdana, DejaVu Sans, sans-serif"><title>{escape(label)}: {escape(fact)}</title>'
        f'<rect width="{left + right:g}" height="20" rx="3" fill="#555"/>'
        f'<path d="M{left:g} 0h{right - 3:g}q3 0 3 3v14q0 3 -3 3h-{right - 3:g}z" fill="#0969da"/>{texts}</svg>\n'
    )


def pictures() -> dict[str, str]:
    """Return the names of the files in .github, and their contents."""
    page = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "chart.svg": draw(page, "light"),
        "chart-dark.svg": draw(page, "dark"),
        "python.svg": badge("Python", project["requires-python"]),
        "licence.svg": badge("licence", project["license"]),
    }


def main() -> None:
    """Write the files."""
    for name, content in pictures().items():
        (_ROOT / ".github" / name).write_text(content, encoding="utf-8", newline="\n")
        print(f".github/{name}")


if __name__ == "__main__":
    main()
