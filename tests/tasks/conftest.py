"""Random checkpoints for the tasks, made once, and the pipelines on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import minibert
from tests.support.report import REPORT
from tests.support.task_models import CLASS_OF, ENTITY_LABELS, NLI_LABELS, task_folder

LABELS: dict[str, dict[str, Any]] = {
    "token-classification": {"id2label": ENTITY_LABELS},
    "zero-shot-classification": {"id2label": NLI_LABELS},
}


@pytest.fixture(scope="session")
def folder_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function: a task and the options of `task_folder` -> a folder with a model, each made once."""
    made: dict[str, Path] = {}

    def folder_for(task: str, **options: Any) -> Path:
        key = repr((task, sorted(options.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp(task) / "model"
            made[key] = task_folder(folder, CLASS_OF[task], **{**LABELS.get(task, {}), **options})
        return made[key]

    return folder_for


@pytest.fixture(scope="session")
def ours(folder_for: Callable[..., Path]) -> Callable[..., Any]:
    """Return a function: a task -> its pipeline on a small random model with a made vocabulary."""
    made: dict[str, Any] = {}

    def ours(task: str, **arguments: Any) -> Any:
        key = repr((task, sorted(arguments.items())))
        if key not in made:
            made[key] = minibert.pipeline(task, folder_for(task, length=64), **arguments)
        return made[key]

    return ours


@pytest.fixture(scope="session")
def counted() -> Iterator[Callable[[str, int], None]]:
    """Return a function that counts the cases of a task; the sums are printed at the end of the run."""
    counts: dict[str, int] = {}

    def count(task: str, number: int) -> None:
        counts[task] = counts.get(task, 0) + number

    yield count
    if counts:
        listed = ", ".join(f"{task} {number}" for task, number in sorted(counts.items()))
        REPORT.append(f"tasks beside transformers: {sum(counts.values())} cases ({listed})")
