"""Checkpoints that were trained, beside transformers and float64: every hidden state, the heads, int8 and int16.

The end of the run prints the table of benchmarks/README.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import minibert
from tests.support.real_checkpoints import CHECKPOINTS, Checkpoint
from tests.support.report import REPORT

pytestmark = pytest.mark.real

HEADER = "| model | layers x width | largest / RMS: state, input of a map | RMS error: theirs, ratio | int8 | int16 |"
CLASSES = {"bert": "BertModel", "albert": "AlbertModel"}


def _inputs(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return the texts' ids, each token looked up by itself: these vocabularies have tokenizers of their own."""
    words = checkpoint.words
    rows = [[words.get(token, words["[UNK]"]) for token in text] for text in checkpoint.texts]
    longest = max(map(len, rows))
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": np.array([row + [0] * (longest - len(row)) for row in rows]), "attention_mask": mask}


def _theirs(checkpoint: Checkpoint, name: str, **options: Any) -> Any:
    kind = getattr(transformers, name)
    return kind.from_pretrained(checkpoint.folder, dtype=torch.float32, **options).eval()


def _run(model: Any, inputs: dict[str, np.ndarray], **options: Any) -> Any:
    with torch.no_grad():
        return model(**{name: torch.as_tensor(x) for name, x in inputs.items()}, **options)


def _largest(model: Any, inputs: dict[str, np.ndarray]) -> float:
    """Return the largest |x| / RMS of the inputs of all linear maps of the layers."""
    shown, found = torch.as_tensor(inputs["attention_mask"].astype(bool)), []

    def look(module: Any, given: tuple[torch.Tensor, ...]) -> None:
        if given[0].shape[:2] == shown.shape:
            x = given[0][shown]
            found.append(float(x.abs().max() / x.pow(2).mean().sqrt()))

    layers = [module for name, module in model.named_modules() if "layer" in name]
    hooks = [each.register_forward_pre_hook(look) for each in layers if isinstance(each, torch.nn.Linear)]
    _run(model, inputs)
    for hook in hooks:
        hook.remove()
    return max(found)


def _pooled(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return (np.asarray(states, np.float64) * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """Return the mean of 1 - cosine."""
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.mean(1 - (a * b).sum(1) / lengths))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in made:
            made[name] = CHECKPOINTS[name](tmp_path_factory.mktemp("real"))
        return made[name]

    return get


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_hidden_state_is_nearer_to_float64_than_that_of_transformers(folders: Any, name: str) -> None:
    checkpoint: Checkpoint = folders(name)
    inputs, kind = _inputs(checkpoint), CLASSES[checkpoint.model_type]
    mask = inputs["attention_mask"]
    shown = mask.astype(bool)
    their_model = _theirs(checkpoint, kind)
    single = _run(their_model, inputs, output_hidden_states=True).hidden_states
    exact_model = their_model.double()
    exact = [x.numpy() for x in _run(exact_model, inputs, output_hidden_states=True).hidden_states]
    load = getattr(minibert, kind).from_pretrained
    with load(checkpoint.folder) as model:
        states = model(**inputs, output_hidden_states=True).hidden_states
        sizes = f"{model.config.num_hidden_layers} x {model.config.hidden_size}"
    ratios, errors, outliers = [], [], []
    for ours, other, right in zip(states, single, exact, strict=True):
        error, their_error = (np.sqrt(np.mean((x - right)[shown] ** 2)) for x in (ours, other.numpy()))
        ratios.append(error / their_error)
        errors.append(their_error / np.sqrt(np.mean(right[shown] ** 2)))
        outliers.append(np.abs(right[shown]).max() / np.sqrt(np.mean(right[shown] ** 2)))
    pooled, low = _pooled(exact[-1], mask), {}
    for compute_type in ("int8", "int16"):
        with load(checkpoint.folder, compute_type=compute_type) as model:
            low[compute_type] = _apart(_pooled(model(**inputs).last_hidden_state, mask), pooled)
    if HEADER not in REPORT:
        REPORT.extend([HEADER, "|---|---|--:|--:|--:|--:|"])
    largest = f"{max(outliers):.0f}, {_largest(exact_model, inputs):.0f}"
    REPORT.append(
        f"| {name} | {sizes} | {largest} | {max(errors):.1e}, {max(ratios):.2f} "
        f"| {low['int8']:.1e} | {low['int16']:.1e} |"
    )
    assert max(ratios) <= 1.0
    assert low["int8"] < 2e-3
    assert low["int16"] < 1e-6


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rxnfp, masked LM", "BertForMaskedLM"),
        ("rxnfp, classifier", "BertForSequenceClassification"),
        ("AntiBERTy", "BertForMaskedLM"),
        ("splade-tiny", "BertForMaskedLM"),
    ],
)
def test_heads_give_the_answers_of_float64(folders: Any, name: str, kind: str) -> None:
    checkpoint: Checkpoint = folders(name)
    inputs = _inputs(checkpoint)
    if kind.endswith("MaskedLM"):  # every seventh token is masked
        inputs["input_ids"][:, 5::7] = checkpoint.words["[MASK]"]
    shown = inputs["attention_mask"].astype(bool) if kind.endswith("MaskedLM") else slice(None)
    wanted = _run(_theirs(checkpoint, kind).double(), inputs).logits.numpy()[shown]
    for compute_type, agree in (("float32", 1.0), ("int16", 1.0), ("int8", 0.97)):
        with getattr(minibert, kind).from_pretrained(checkpoint.folder, compute_type=compute_type) as model:
            logits = model(**inputs).logits[shown]
        assert np.mean(logits.argmax(-1) == wanted.argmax(-1)) >= agree
        if compute_type == "float32":
            np.testing.assert_allclose(logits, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_a_reactions_fingerprint_is_the_state_of_cls(folders: Any) -> None:
    checkpoint: Checkpoint = folders("rxnfp, fingerprint")
    inputs = _inputs(checkpoint)
    wanted = _run(_theirs(checkpoint, "BertModel").double(), inputs).last_hidden_state[:, 0].numpy()
    with minibert.BertModel.from_pretrained(checkpoint.folder) as model:
        found = model(**inputs).last_hidden_state[:, 0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6)


def test_attentions_map_atoms_as_those_of_transformers(folders: Any) -> None:
    # rxnmapper reads head 5 of layer 10: the atoms of the reactants that a product's atom attends to.
    checkpoint: Checkpoint = folders("rxnmapper (ALBERT)")
    inputs = _inputs(checkpoint)
    eager = _theirs(checkpoint, "AlbertModel", attn_implementation="eager")
    wanted = _run(eager, inputs, output_attentions=True).attentions[10][:, 5].numpy()
    with minibert.AlbertModel.from_pretrained(checkpoint.folder) as model:
        found = model(**inputs, output_attentions=True).attentions[10][:, 5]
    for text, ours, theirs in zip(checkpoint.texts, found, wanted, strict=True):
        length, arrow = len(text), text.index(">>")
        np.testing.assert_allclose(ours[:length, :length], theirs[:length, :length], rtol=0, atol=5e-6)
        atoms = [place for place, token in enumerate(text) if token[:1].isalpha()]
        product, reactants = ([place for place in atoms if (place > arrow) == after] for after in (True, False))
        pairs = [x[np.ix_(product, reactants)].argmax(1).tolist() for x in (ours, theirs)]
        assert pairs[0] == pairs[1]
        same = [text[a].lower() == text[reactants[b]].lower() for a, b in zip(product, pairs[0], strict=True)]
        assert np.mean(same) > 0.8, "an atom of the product attends to one of its own element"
