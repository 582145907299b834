"""Random checkpoints of models with heads, made by transformers, and calls of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from minibert.bert.rows import HEADS
from tests.support.random_checkpoints import sizes, vary

CLASSES = tuple(HEADS)
POOLED = tuple(name for name, head in HEADS.items() if head.pooled)
WITH_LABELS = ("BertForSequenceClassification", "BertForTokenClassification")
WITH_WORDS = ("BertForPreTraining", "BertForMaskedLM")

SIZES: dict[str, Any] = {**sizes(V=97, H=24, L=2, A=3, F=40, P=40, types=3), "initializer_range": 0.2}
NUM_LABELS = 5


def make_model(
    folder: Path,
    kind: str,
    *,
    vocabulary: Sequence[str] = (),
    cased: bool = False,
    scale: Mapping[str, float] | None = None,
    changes: Mapping[str, torch.Tensor] | None = None,
    files: Mapping[str, Any] | None = None,
    seed: int = 0,
    **fields: Any,
) -> Path:
    """Save a random model of a class of transformers.

    Parameters
    ----------
    folder : Path
    kind : str
        The name of the class.
    vocabulary : sequence of str
        Save a tokenizer with these tokens.
    cased : bool
        The tokenizer keeps capital letters.
    scale : dict
        By the beginning of their names, parameters are multiplied, so that the scores of texts differ.
    changes : dict
        Values of parameters by name.
    files : dict
        Objects to write as JSON files, or to add to a file that is there.
    seed : int
    **fields
        Of the config.
    """
    labels = {"num_labels": NUM_LABELS} if kind in WITH_LABELS and not {"num_labels", "id2label"} & set(fields) else {}
    fields = SIZES | labels | ({"vocab_size": len(vocabulary)} if vocabulary else {}) | fields
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, kind)(transformers.BertConfig(**fields))
        vary(model, 0.3)
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                parameter.mul_(next((by for name, by in (scale or {}).items() if path.startswith(name)), 1.0))
            for path, value in (changes or {}).items():
                model.get_parameter(path).copy_(value)
    model.save_pretrained(folder)
    if vocabulary:
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocabulary), encoding="utf-8")
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": not cased}
        add_json(folder / "tokenizer_config.json", settings | {"model_max_length": fields["max_position_embeddings"]})
    for file, content in (files or {}).items():
        add_json(folder / file, content)
    return folder


def add_json(path: Path, content: Any) -> None:
    """Write an object, or add its keys to those of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() and isinstance(content, dict) else {}
    path.write_text(json.dumps({**old, **content} if isinstance(content, dict) else content), encoding="utf-8")


def their_model(folder: Path, name: str, attention: str = "sdpa") -> Any:
    """Load a checkpoint with transformers."""
    kind = getattr(transformers, name)
    return kind.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32).eval()


def inputs_of(name: str, *, rows: int = 5, length: int = 11, seed: int = 0, **sizes: int) -> dict[str, np.ndarray]:
    """Make a padded batch; rows have holes, one row shows nothing, and one row hides its first token."""
    sizes = {**SIZES, **sizes}
    generator = np.random.default_rng(seed)
    shape = (rows, 3, length) if name == "BertForMultipleChoice" else (rows, length)
    mask = np.arange(length) < generator.integers(1, length + 1, size=shape[:-1])[..., None]
    mask &= generator.random(shape) < 0.8
    mask[..., 0] = True
    flat = mask.reshape(-1, length)
    flat[0] = True
    if len(flat) >= 5:
        flat[3], flat[4, 0], flat[4, 1] = False, False, True
    return {
        "input_ids": generator.integers(sizes["vocab_size"], size=shape),
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": generator.integers(sizes["type_vocab_size"], size=shape),
    }


def run_theirs(model: Any, inputs: dict[str, np.ndarray], **options: Any) -> Any:
    with torch.no_grad():
        return model(**{key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in inputs.items()}, **options)


def logits_of(output: Any) -> dict[str, np.ndarray]:
    """Return the logits of an output, ours or theirs, by name."""
    return {key: np.asarray(output[key]) for key in output.keys() if key.endswith("logits")}  # noqa: SIM118


def visible(name: str, field: str, mask: np.ndarray) -> np.ndarray:
    """Return where the logits of a field are computed: at tokens, or in rows, that are not masked."""
    pooled = name in POOLED and field != "prediction_logits"
    return (mask[..., 0] if pooled else mask).astype(bool)
