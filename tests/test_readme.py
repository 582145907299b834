"""Every README.md is correct: its Python blocks and `minibert` lines print the shown output, its links are not broken.

The examples of a page run in one process, so that the libraries are imported once per page and not once per block. Each
example has its own namespace and folder: it fails if it needs a name or a file of another one. The lines of one `sh`
block share a folder. Where a line names a model of the hub, a random one takes its place in that folder, and the output
is not compared; with a network (`-m network`) the model is the true one, and the output is that of the page.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import chart
from minibert.cli import main
from minibert.sentence.facts import describe
from tests.support.outcomes import PATIENCE
from tests.support.splade_tiny import REASON as SPLADE_REASON
from tests.support.splade_tiny import splade_tiny

ROOT = Path(__file__).parent.parent
RUNNER = ROOT / "tests" / "support" / "page_runner.py"


def pages() -> list[Path]:
    folders = [ROOT / name for name in ("minibert", "benchmarks", "tests")]
    return [ROOT / "README.md", *sorted(page for folder in folders for page in folder.rglob("README.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


PAGES = {name_of(page): page.read_text(encoding="utf-8") for page in pages()}
BENCHMARKS = PAGES["benchmarks/README.md"]


# --- the content of a page --------------------------------------------------------------------------------------------

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    """A block, and the text block after it if there is only an empty line between them."""

    language: str
    code: str
    shown: str | None


def examples(text: str) -> list[Example]:
    blocks = list(_BLOCK.finditer(text))
    found = []
    for block, after in zip_longest(blocks, blocks[1:]):
        follows = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
        found.append(Example(block[1], block[2], after[2] if after is not None and follows else None))
    return [example for example in found if example.language not in ("text", "dockerfile")]


def steps(example: Example) -> list[list[Any]]:
    """Return the steps of a block for page_runner.py, without the commands that set up an environment."""
    if uses_engine(example):
        return []  # tests/engines runs these
    if example.language == "python":
        return [["python", example.code]]
    found: list[list[Any]] = []
    for command in commands(example):
        if made := re.fullmatch(r"printf '([^']*)' > (\S+)", command):  # so that no shell is needed
            found.append(["file", made[2], made[1].replace("\\n", "\n").replace("\\t", "\t")])
        elif command.startswith("minibert "):
            found.append(["minibert", shlex.split(command)[1:]])
    return found


def uses_engine(example: Example) -> bool:
    """Return whether an example needs Ray, Spark or Dask."""
    return re.search(r"^(?:import|from) (?:ray|pyspark|dask)\b| --on ray", example.code, re.MULTILINE) is not None


def commands(example: Example) -> list[str]:
    """Return the single commands of a shell block."""
    assert not re.search(r"\\$", example.code, re.MULTILINE), "a command must be one line"
    return [command for line in example.code.splitlines() for command in line.split(" && ")]


RUN = {
    f"{name}-{number}": (name, number)
    for name, text in PAGES.items()
    for number, example in enumerate(examples(text))
    if steps(example)
}


# Models of the hub that lines of the pages name -> random models that take their place without a network.
STAND_INS: dict[str, tuple[str, dict[str, Any]]] = {
    "dslim/bert-base-NER": ("BertForTokenClassification", {"id2label": {0: "O", 1: "B-PER", 2: "B-LOC"}}),
    "nlptown/bert-base-multilingual-uncased-sentiment": ("BertForSequenceClassification", {"num_labels": 5}),
    "deepset/bert-base-cased-squad2": ("BertForQuestionAnswering", {}),
    "cross-encoder/ms-marco-MiniLM-L6-v2": (
        "BertForSequenceClassification",
        {"num_labels": 1, "max_position_embeddings": 128},
    ),
}


# --- blocks and command lines -----------------------------------------------------------------------------------------


def models_of(example: Example) -> list[str]:
    """Return the models that the lines of a block name."""
    return re.findall(r" -m (\S+)", example.code) if example.language == "sh" else []


def is_stood_in(example: Example) -> bool:
    """Return whether a random model replaces one of the hub, so that only the form of the output is known."""
    return not {*models_of(example)}.isdisjoint(STAND_INS)


def put_models(example: Example, folder: Path) -> None:
    """Put the models that a block names into its folder, where they are found before the hub is asked."""
    for name in {*models_of(example)}:
        target = folder / name
        if name == "splade-tiny" and (tiny := splade_tiny()) is not None:
            shutil.copytree(tiny, target)
        elif name in STAND_INS:
            from tests.support.sentence_heads import model_folder

            target.parent.mkdir(parents=True, exist_ok=True)
            kind, fields = STAND_INS[name]
            model_folder(target, kind, **fields)


def run_page(text: str, folder: Path, *, stand_ins: bool = True) -> list[tuple[int, str, str]]:
    """Run a page, without the commands that set up an environment; return each example's exit code, stdout, stderr."""
    jobs = []
    for number, example in enumerate(examples(text)):
        (folder / str(number)).mkdir()
        if stand_ins or not is_stood_in(example):
            put_models(example, folder / str(number))
        jobs.append([str(folder / str(number)), steps(example)])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER)],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=PATIENCE,
        cwd=folder,
        # One thread of BLAS: with more, they wait for each other in small products, and parity/README.md takes 10 times
        # as long.
        env={
            **{**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
            **{"COLUMNS": "100", "OPENBLAS_NUM_THREADS": "1"},
        },
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[tuple[int, str, str]]]:
    """Return a function from a page's name to its results; each page runs once."""
    return functools.cache(lambda name: run_page(PAGES[name], tmp_path_factory.mktemp("page")))


def assert_as_shown(example: Example, result: tuple[int, str, str], *, stand_ins: bool = True) -> None:
    code, out, err = result
    assert (code, err) == (0, "")
    assert example.shown is not None or example.language != "python", "a Python block without its output"
    if stand_ins and is_stood_in(example):
        assert out.strip()
    elif example.shown is not None:
        assert_same_output(out, example.shown)


def assert_same_output(found: str, shown: str) -> None:
    """Compare outputs; the last digit of a decimal number may differ, because another machine may round differently.

    A page may show the end of an output only: then its first line is "...".
    """
    if shown.startswith("...\n"):
        shown = shown.removeprefix("...\n")
        lines = found.splitlines()
        assert len(lines) > len(shown.splitlines())
        found = "\n".join(lines[-len(shown.splitlines()) :])
    decimal = re.compile(r"-?\d+\.\d+|-?\d+\.")
    assert decimal.sub("#", found).split() == decimal.sub("#", shown).split()
    for number, expected in zip(decimal.findall(found), decimal.findall(shown), strict=True):
        assert float(number) == pytest.approx(float(expected), abs=1.1 * 10.0 ** -len(expected.partition(".")[2]))


@pytest.mark.parametrize(("name", "number"), RUN.values(), ids=list(RUN))
def test_examples(name: str, number: int, results: Callable[[str], list[tuple[int, str, str]]]) -> None:
    example = examples(PAGES[name])[number]
    if ('find_spec("cognition")' in example.code or "splade-tiny" in models_of(example)) and splade_tiny() is None:
        pytest.skip(SPLADE_REASON)
    assert_as_shown(example, results(name)[number])


@pytest.mark.network
def test_examples_with_models_of_the_hub(tmp_path: Path) -> None:
    named = [one for text in PAGES.values() for one in examples(text) if is_stood_in(one)]
    assert {model for example in named for model in models_of(example)} == {*STAND_INS}
    text = "\n".join(f"```{one.language}\n{one.code}```\n\n```text\n{one.shown or ''}```\n" for one in named)
    for example, result in zip(named, run_page(text, tmp_path, stand_ins=False), strict=True):
        assert_as_shown(example, result, stand_ins=False)


@pytest.mark.network
def test_the_models_of_the_guide_load_and_have_the_licence_that_it_says() -> None:
    guide = PAGES["minibert/sentence/README.md"].partition("## Which model?")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .* \| `(\S+)` \| (\S+) \| (\d+) million \|$", guide, re.MULTILINE)
    assert len(rows) == 9
    for name, licence, millions in rows:
        described = describe(name)
        assert described["unsupported"] == []
        assert described["facts"].get("licence", ["apache-2.0"]) == [licence.lower()]
        assert round(described["facts"].get("parameters", 8e6) / 1e6) == int(millions)


# --- verbs and flags --------------------------------------------------------------------------------------------------


def verbs() -> set[str]:
    """Read the verbs of the command line from its help."""
    return set(re.findall(r"^    ([a-z-]+)(?: |$)", help_of(), re.MULTILINE))


@pytest.mark.parametrize("name", PAGES)
def test_verbs_and_flags_in_the_prose_exist(name: str) -> None:
    prose = _BLOCK.sub("", PAGES[name])
    assert set(re.findall(r"`minibert ([a-z-]+)", prose)) <= verbs()
    assert unknown_flags(prose) == []
    modules = re.findall(r"python -m ((?:minibert|benchmarks)[\w.]*\w)", PAGES[name])
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []
    assert [file for file in re.findall(r"\btests/[\w/]+\.py", PAGES[name]) if not (ROOT / file).is_file()] == []


def help_of(*arguments: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        main([*arguments, "--help"])
    return out.getvalue()


def unknown_flags(prose: str) -> list[str]:
    """The commands `minibert VERB ...` of a prose with a flag that the verb does not have. They may be incomplete."""
    found = []
    for command in re.findall(r"`(minibert [a-z-]+ [^`]*)`", prose):
        _, verb, *words = shlex.split(command)
        shown = help_of(verb, *words[: verb in ("learn", "parity")])  # these have verbs of their own
        flags = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", shown))
        found += [command for word in words if word.startswith("-") and word.partition("=")[0] not in flags]
    return found


def test_every_verb_is_in_the_pages_and_most_are_run() -> None:
    assert set(re.findall(r"`minibert ([a-z-]+)`", PAGES["minibert/cli/README.md"])) == verbs()
    every = [step for page in PAGES.values() for example in examples(page) for step in steps(example)]
    ran = {step[1][0] for step in every if step[0] == "minibert"}
    assert verbs() - ran == {"doctor", "serve"}


# --- links and figures ------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", _BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*pages(), *sorted((ROOT / ".github").glob("*.md"))], ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"(?:\]\(|src(?:set)?=\")(?!https?:)([^)\s\"]+)[)\"]", _BLOCK.sub("", text)):
        path, _, anchor = target.partition("#")
        if workflow := re.fullmatch(r"\.\./\.\./actions/workflows/([^/]+)(?:/badge\.svg)?", path):  # a page of GitHub
            path = f".github/workflows/{workflow[1]}"
        assert (page.parent / path).exists(), target
        assert not anchor or anchor in anchors((page.parent / path).read_text(encoding="utf-8") if path else text)


def test_the_figures_of_a_row_of_the_front_page_are_in_one_section_of_the_benchmarks() -> None:
    number = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?")
    sections = [set(number.findall(section)) for section in re.split(r"^#+ ", BENCHMARKS, flags=re.MULTILINE)]
    cell = r"(?: \*{0,2}\d[\d.,e-]*x?\*{0,2})? "
    rows = re.findall(rf"^\| [^|\n]+ ((?:\|{cell})+\|)$", PAGES["README.md"], re.MULTILINE)
    assert len(rows) == 8
    for row in rows:
        assert any(set(number.findall(row)) <= section for section in sections), row


def test_the_figures_in_the_sentences_of_the_front_page_are_those_of_the_tables() -> None:
    (columns, *states), _ = chart.table(BENCHMARKS, "parity")
    (ratio,) = re.findall(r"MiniLM's last state: ([\d.]+)", PAGES["README.md"])
    assert ratio == states[6][columns.index("ratio")]
    (share,) = re.findall(r"take ([\d.]+) of OpenVINO's time", PAGES["README.md"])
    (times,) = re.findall(r"^\| ModernBERT-base \| 1 x 8,192 \| ([\d.]+) .* \| ([\d.]+) \(", BENCHMARKS, re.MULTILINE)
    assert share == f"{float(times[0]) / float(times[1]):.2f}"
    (faster,) = re.findall(r"It shows where others are faster.*?The \[service", PAGES["README.md"], re.DOTALL)
    assert sorted(re.findall(r"0\.\d\d", faster)) == sorted(re.findall(r"0\.\d\d", " ".join(chart.behind(BENCHMARKS))))
    mistakes = re.findall(r"^\| MiniLM \| all names \| (.*) \|$", BENCHMARKS, re.MULTILINE)
    (ports, detected, *_), (_, missed, _, cosine, *_) = (row.split(" | ") for row in mistakes)
    sentence = r"detects (\d+) of (\d+) \[known[^*]*?\s(\d+) of them pass `cosine >= 0.999`"
    words = re.findall(sentence, PAGES["README.md"])
    assert words == [(detected, ports, cosine)]
    assert missed == "0"


def test_the_chart_has_the_figures_of_the_tables() -> None:
    for name, content in chart.pictures().items():
        there = (ROOT / ".github" / name).read_text(encoding="utf-8")
        assert there == content, f"python -m benchmarks.chart writes .github/{name} again"
    drawn = chart.draw(BENCHMARKS, "light")
    assert "EPYC" in drawn
    moved = re.sub(r"(<!-- runtime -->.*?)family 25, model 17", r"\1family 26, model 2", BENCHMARKS, flags=re.DOTALL)
    with pytest.raises(ValueError, match="too many values"):
        chart.draw(moved, "light")  # times of two machines
    ours = (r"\| news \| \d+ \|", r"\| minibert \|(?: \S+ \|){3}", r"\| minibert \([^)]*\) \|", r"\|  \| 6 \|")
    for row in ours:
        figure = re.search(rf"^{row} ([^ |]+)", BENCHMARKS, re.MULTILINE)
        assert figure is not None
        assert f">{figure[1]}<" in drawn
    lost = re.sub(r"(?m)(^\| short \| 14 \| \S+ \| )\S+ \(\S+\)", r"\g<1>691 (0.91x)", BENCHMARKS)
    assert "short 14 (sentence-transformers 0.91x)" in chart.behind(lost)
