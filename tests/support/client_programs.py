"""Programs that use another library, each run in a process of its own, because a stand-in is for a whole process."""

from __future__ import annotations

import importlib.metadata
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.compare import difference
from tests.support.outcomes import python
from tests.support.report import REPORT

TEXTS = [
    "A cat sleeps.",
    "The kitten naps on the mat.",
    "Stocks fell sharply.",
    "The bank raised its rates.",
    "A dog barks at the cat.",
    "Bonds and stocks fell.",
    "The river bank was flooded.",
    "It rained on the mat.",
]

# `answer(value)` prints the result; `CALLS` counts the texts that minibert's encode got.
_PRELUDE = """
import json, os, sys
import numpy as np

MODEL = os.environ["CLIENT_MODEL"]
CALLS = []

def count():
    from minibert import SentenceTransformer
    encode = SentenceTransformer.encode
    def counted(self, inputs=None, *arguments, **options):
        texts = options.get("sentences") if inputs is None else inputs
        CALLS.append(1 if isinstance(texts, str) else len(texts))
        return encode(self, inputs, *arguments, **options)
    counted.__signature__ = __import__("inspect").signature(encode)
    SentenceTransformer.encode = counted

def plain(value):
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value

def local_task():
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    nothing = dict.fromkeys(
        "reference date domains task_subtypes license annotations_creators dialect sample_creation bibtex_citation"
        .split())

    class LocalTask(AbsTaskSTS):
        metadata = TaskMetadata(
            name="LocalSTS", description="pairs of TEXTS", type="STS", category="t2t", modalities=["text"],
            eval_splits=["test"], eval_langs=["eng-Latn"], main_score="cosine_spearman",
            dataset={"path": "none", "revision": "1"}, **nothing)
        min_score, max_score = 0, 5

        def load_data(self, **kwargs):
            pairs = [(a, b) for a in TEXTS for b in TEXTS]
            scores = [float(len({*a.split()} & {*b.split()})) for a, b in pairs]
            columns = {"sentence1": [a for a, _ in pairs], "sentence2": [b for _, b in pairs], "score": scores}
            self.dataset = DatasetDict({"test": Dataset.from_dict(columns)})
            self.data_loaded = True

    return LocalTask()

def answer(value):
    print("\\nANSWER " + json.dumps({"value": plain(value), "texts": sum(CALLS)}))
"""


def needs(*distributions: str) -> None:
    """Skip the test unless all of these are installed; their versions are printed at the end of the run."""
    for name in distributions:
        try:
            line = f"client {name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
        if line not in REPORT:
            REPORT.append(line)


def run_client(program: str, folder: Path, model: Path, *, first: str = "") -> dict[str, Any]:
    """Run `first` and then the program in a folder of their own; return the value of its `answer`, and the texts."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "program.py"
    file.write_text(_PRELUDE + f"TEXTS = {TEXTS!r}\n" + first + "\n" + textwrap.dedent(program), encoding="utf-8")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = python(str(file), folder=folder, CLIENT_MODEL=str(model), **offline)
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert done.returncode == 0, done.stderr
    assert len(answers) == 1, done.stdout + done.stderr
    return json.loads(answers[0].removeprefix("ANSWER "))


MINIBERT = "count()"
STAND_IN = "import minibert.compat.sentence_transformers; count()"


def assert_close(result: Any, expected: Any, *, atol: float = 2e-6) -> None:
    """Compare two answers: everything equal, numbers within `atol`."""
    assert (problem := difference(result, expected, atol=atol)) is None, problem
