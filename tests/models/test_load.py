"""`minibert.load`: the class that config.json names, or the class whose tensors the file has."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import minibert
from minibert import ModelFormatError
from tests.support.checkpoints import random_checkpoint

FolderOf = Callable[[str], Path]


@pytest.fixture
def change(folder_of: FolderOf, tmp_path: Path) -> Callable[..., Path]:
    """Return a function: copy a checkpoint, name other architectures, and drop or add tensors."""

    def change(name: str, architectures: Any, *, drop: str = "-", add: str | None = None) -> Path:
        config = json.loads((folder_of(name) / "config.json").read_text())
        config["architectures"] = architectures
        if architectures is None:
            del config["architectures"]
        tensors = {k: v for k, v in load_file(folder_of(name) / "model.safetensors").items() if drop not in k}
        if add is not None:
            tensors |= {k: v for k, v in load_file(folder_of(add) / "model.safetensors").items() if k not in tensors}
            config["id2label"] = json.loads((folder_of(add) / "config.json").read_text()).get("id2label")
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return change


def test_a_model_without_a_head(tmp_path: Path) -> None:
    model = minibert.load(random_checkpoint(tmp_path), backend="numpy", output_attentions=True)
    assert type(model) is minibert.BertModel
    output = model(np.array([[1, 2]]))
    assert output.hidden_states is not None
    assert output.attentions is not None


NO_CONTRADICTION = [
    *(
        ("BertForMaskedLM", named, "BertForMaskedLM")
        for named in (None, [], "BertForMaskedLM", {"a": 1}, 3, [3, ["x"]])
    ),
    *((name, None, name) for name in ("BertForPreTraining", "BertForQuestionAnswering", "BertForTokenClassification")),
    ("BertForPreTraining", ["BertForMaskedLM"], "BertForMaskedLM"),
    ("BertForPreTraining", ["BertForNextSentencePrediction"], "BertForNextSentencePrediction"),
    ("BertForPreTraining", ["Other", "BertForPreTraining"], "BertForPreTraining"),
    ("BertForSequenceClassification", ["BertForTokenClassification"], "BertForTokenClassification"),
]


@pytest.mark.parametrize(("name", "architectures", "chosen"), NO_CONTRADICTION)
def test_no_warning_without_a_contradiction(
    change: Callable[..., Path], name: str, architectures: Any, chosen: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(minibert.load(change(name, architectures))).__name__ == chosen


SEQUENCE, MASKED, QUESTIONS = "BertForSequenceClassification", "BertForMaskedLM", "BertForQuestionAnswering"
CONTRADICTIONS = [
    (MASKED, {"architectures": [MASKED], "drop": "cls."}, "BertModel", MASKED),
    (SEQUENCE, {"architectures": [SEQUENCE], "drop": "pooler"}, "BertForTokenClassification", SEQUENCE),
    (QUESTIONS, {"architectures": ["BertModel"]}, QUESTIONS, "'BertModel'"),
    ("BertForPreTraining", {"architectures": ["BertForEverything"]}, "BertForPreTraining", "'BertForEverything'"),
    (SEQUENCE, {"architectures": None}, SEQUENCE, "BertForTokenClassification, so"),
    (MASKED, {"architectures": None, "add": QUESTIONS}, MASKED, f"{QUESTIONS}, so"),
]


@pytest.mark.parametrize(("name", "options", "chosen", "word"), CONTRADICTIONS)
def test_a_contradiction_is_said(
    change: Callable[..., Path], name: str, options: dict[str, Any], chosen: str, word: str
) -> None:
    folder = change(name, **options)
    with pytest.warns(UserWarning, match=word) as caught:
        model = minibert.load(folder)
    assert type(model).__name__ == chosen
    assert [word in str(one.message) and f"loaded as {chosen}" in str(one.message) for one in caught] == [True]
    assert caught[0].filename == __file__


def test_errors_are_those_of_from_pretrained(tmp_path: Path, folder_of: FolderOf) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"model_type": "deberta"}))
    for folder, options, error, word in (
        (tmp_path, {}, ModelFormatError, "config.json"),
        (other, {}, ModelFormatError, "model_type='deberta'"),
        (folder_of(MASKED), {"backend": "gpu"}, ValueError, "backend='gpu'"),
        (folder_of(MASKED), {"unknown": 1}, TypeError, "unknown"),
        (folder_of(MASKED), {"config": {}}, TypeError, "config"),
    ):
        with pytest.raises(error, match=word):
            minibert.load(folder, **options)
