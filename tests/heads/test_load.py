"""`minibert.load`: the class that config.json names, or the one whose tensors are there."""

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
from tests.support.head_models import CLASSES, inputs_of, logits_of

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


@pytest.mark.parametrize("name", CLASSES)
def test_the_class_that_the_checkpoint_names(folder_of: FolderOf, name: str) -> None:
    model = minibert.load(folder_of(name), num_threads=1)
    assert type(model) is getattr(minibert, name)
    expected = getattr(minibert, name).from_pretrained(folder_of(name))(**inputs_of(name))
    for field, array in logits_of(model(**inputs_of(name))).items():
        assert array.tobytes() == expected[field].tobytes()


def test_a_model_without_a_head(tmp_path: Path) -> None:
    model = minibert.load(random_checkpoint(tmp_path), backend="numpy", output_attentions=True)
    assert type(model) is minibert.BertModel
    output = model(np.array([[1, 2]]))
    assert output.hidden_states is not None
    assert output.attentions is not None


@pytest.mark.parametrize(
    ("name", "architectures", "chosen"),
    [
        ("BertForMaskedLM", None, "BertForMaskedLM"),
        ("BertForMaskedLM", [], "BertForMaskedLM"),
        ("BertForPreTraining", None, "BertForPreTraining"),
        ("BertForPreTraining", ["BertForMaskedLM"], "BertForMaskedLM"),
        ("BertForPreTraining", ["BertForNextSentencePrediction"], "BertForNextSentencePrediction"),
        ("BertForPreTraining", ["Other", "BertForPreTraining"], "BertForPreTraining"),
        ("BertForQuestionAnswering", None, "BertForQuestionAnswering"),
        ("BertForTokenClassification", None, "BertForTokenClassification"),
        ("BertForSequenceClassification", ["BertForTokenClassification"], "BertForTokenClassification"),
    ],
)
def test_no_warning_without_a_contradiction(
    change: Callable[..., Path], name: str, architectures: Any, chosen: str
) -> None:
    folder = change(name, architectures)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(minibert.load(folder)).__name__ == chosen


@pytest.mark.parametrize(
    ("name", "options", "chosen", "message"),
    [
        (
            "BertForMaskedLM",
            {"architectures": ["BertForMaskedLM"], "drop": "cls."},
            "BertModel",
            r"config\.json names 'BertForMaskedLM', but .* does not have the tensors of its head, so it is loaded as",
        ),
        (
            "BertForSequenceClassification",
            {"architectures": ["BertForSequenceClassification"], "drop": "pooler"},
            "BertForTokenClassification",
            r"names 'BertForSequenceClassification', but .* does not have the tensors of its head\. It has those of "
            r"another head, so it is loaded as BertForTokenClassification\. To choose the class",
        ),
        (
            "BertForQuestionAnswering",
            {"architectures": ["BertModel"]},
            "BertForQuestionAnswering",
            "names 'BertModel', but .* has the tensors of a head, so it is loaded as BertForQuestionAnswering",
        ),
        (
            "BertForPreTraining",
            {"architectures": ["BertForEverything"]},
            "BertForPreTraining",
            "names 'BertForEverything', .* loaded as BertForPreTraining; BertForMaskedLM, BertForNext.* would fit too",
        ),
        (
            "BertForSequenceClassification",
            {"architectures": None},
            "BertForSequenceClassification",
            r"names no class, but .* BertForSequenceClassification; BertForTokenClassification would fit too",
        ),
        (
            "BertForMaskedLM",
            {"architectures": None, "add": "BertForQuestionAnswering"},
            "BertForMaskedLM",
            "names no class, but .* loaded as BertForMaskedLM; BertForQuestionAnswering would fit too",
        ),
    ],
)
def test_a_contradiction_is_said(
    change: Callable[..., Path], name: str, options: dict[str, Any], chosen: str, message: str
) -> None:
    folder = change(name, **options)
    with pytest.warns(UserWarning, match=message) as caught:
        model = minibert.load(folder)
    assert type(model).__name__ == chosen
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("architectures", ["BertForMaskedLM", {"a": 1}, 3, [3, None, ["x"]]])
def test_strange_architectures_name_no_class(change: Callable[..., Path], architectures: Any) -> None:
    assert type(minibert.load(change("BertForMaskedLM", architectures))).__name__ == "BertForMaskedLM"


def test_errors_are_those_of_from_pretrained(tmp_path: Path, folder_of: FolderOf) -> None:
    with pytest.raises(ModelFormatError):
        minibert.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    with pytest.raises(ModelFormatError, match="model_type='roberta' is not BERT"):
        minibert.load(tmp_path)
    with pytest.raises(ValueError, match="backend='gpu'"):
        minibert.load(folder_of("BertForMaskedLM"), backend="gpu")
    with pytest.raises(TypeError, match="unknown"):
        minibert.load(folder_of("BertForMaskedLM"), unknown=1)
    with pytest.raises(TypeError, match=r"config is a dict; expected a minibert\.BertConfig"):
        minibert.load(folder_of("BertForMaskedLM"), config={})


def test_load_stays_a_function() -> None:
    """A module minibert/load.py would replace it when it is imported."""
    assert callable(minibert.load)
    assert not (Path(minibert.__file__).parent / "load.py").exists()
