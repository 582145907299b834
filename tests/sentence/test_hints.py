"""What a message of shared code advises works in each class that can say it: each keyword is tried as it is written."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minibert import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from tests.support.checkpoints import sentence_model
from tests.support.multi_vectors import bert_folder, native
from tests.support.sentence_heads import MASKED, SEQUENCE, model_folder

LONG = "the cat sat on the mat " * 60
CLASSES = {
    SentenceTransformer: "encode",
    SparseEncoder: "encode",
    MultiVectorEncoder: "encode",
    CrossEncoder: "predict",
}
# Keywords of a call that somebody gives, and that are refused or warned of in at least one class.
CALLS: dict[str, dict[str, Any]] = {
    "too long, cut": {},
    "too long, refused": {"truncation": "error"},
    "another truncation": {"truncation": "cut"},
    "stride": {"stride": 3},
    "device": {"device": "cuda"},
    "two prompts": {"prompt": "the", "prompt_name": "query"},
    "no such prompt": {"prompt_name": "nothing"},
    "pool": {"pool": "none"},
    "precision": {"precision": "int8"},
    "token values": {"output_value": "nothing"},
    "processing": {"processing_kwargs": {"text": {}}},
}
LOADS: dict[str, dict[str, Any]] = {
    "device": {"device": "cuda"},
    "backend": {"backend": "onnx"},
    "float16": {"model_kwargs": {"torch_dtype": "float16"}},
    "half": {"model_kwargs": {"dtype": torch.float16}},
    "built in": {"prompts": "builtin"},
    "modules": {"modules": [torch.nn.Identity()]},
    "layers": {"config_kwargs": {"num_hidden_layers": 1}},
    "code": {"trust_remote_code": "yes"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[type, Path]:
    home = tmp_path_factory.mktemp("hints")
    return {
        SentenceTransformer: sentence_model(home / "sentence"),
        SparseEncoder: model_folder(home / "sparse", MASKED),
        MultiVectorEncoder: native(bert_folder(home / "bert"), home / "tokens"),
        CrossEncoder: model_folder(home / "pairs", SEQUENCE, num_labels=1),
    }


def messages(call: Callable[[], object]) -> list[str]:
    """Return what a call warns of, and its error."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            call()
        except (TypeError, ValueError, RuntimeError) as error:
            return [*(str(warning.message) for warning in seen), str(error)]
    return [str(warning.message) for warning in seen]


def advised(message: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the keywords with values that a message advises; not those that the call had."""
    found = re.findall(r"\b([a-z_]+)=('[\w-]*'|\{'\w+': \.\.\.\}|True|False|\d+)", message)
    had = {*given}.union(*(value for value in given.values() if isinstance(value, dict)))
    pairs = [(name, ast.literal_eval(value.replace("...", "'the '"))) for name, value in found]
    return [{name: value} for name, value in pairs if name not in had or given.get(name, value) != value]


def follow(kind: type, call: Callable[..., object], given: dict[str, Any]) -> int:
    """Try each keyword that the messages of a call advise; return how many there were."""
    followed = 0
    for message in messages(lambda: call(**given)):
        for keyword in advised(message, given):
            again = {name: value for name, value in given.items() if not name.endswith("_kwargs")} | keyword
            told = messages(lambda again=again: call(**again))
            assert message not in told, (kind.__name__, given, keyword, told)
            assert not any("unexpected keyword" in one or "has no keyword" in one for one in told), (message, told)
            followed += 1
    return followed


@pytest.mark.parametrize("kind", CLASSES)
def test_hints_of_calls(kind: type, folders: dict[type, Path]) -> None:
    model = kind(str(folders[kind]))
    model.max_seq_length = 64
    texts: Any = [LONG, "the cat"] if kind is not CrossEncoder else [("the cat", LONG)]
    method = getattr(model, CLASSES[kind])
    followed = [follow(kind, lambda **given: method(texts, **given), given) for given in CALLS.values()]
    assert sum(followed) >= 4, dict(zip(CALLS, followed, strict=True))


@pytest.mark.parametrize("kind", CLASSES)
def test_hints_of_loading(kind: type, folders: dict[type, Path]) -> None:
    of_method = {"layers"} & {*inspect.signature(getattr(kind, CLASSES[kind])).parameters}

    def load(**given: Any) -> None:
        late = {name: given.pop(name) for name in of_method & {*given}}
        model = kind(str(folders[kind]), **given)
        getattr(model, CLASSES[kind])(["the cat", "a cat"], **late)

    followed = [follow(kind, load, given) for given in LOADS.values()]
    assert sum(followed) >= 3, dict(zip(LOADS, followed, strict=True))


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not CrossEncoder])
def test_hints_of_scores(kind: type, folders: dict[type, Path]) -> None:
    """A method of tensors that arrays do not have: the expression that the message gives makes such a tensor."""
    model = kind(str(folders[kind]))
    array = model.similarity(model.encode(["the cat"]), model.encode(["the dog", "a cat"]))
    for name in ("float", "topk", "unsqueeze"):
        with pytest.raises(AttributeError, match=name) as refused:
            getattr(array, name)
        for expression in re.findall(r"\btorch\.\w+\(\w+\)", str(refused.value)) or ["none"]:
            assert callable(getattr(eval(expression, {"torch": torch, "array": array}), name))
        assert not re.search(r"\w+\(\.\.\., (\w+)=", str(refused.value))  # no keyword of one class only
