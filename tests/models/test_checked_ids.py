"""No unchecked id reaches a kernel: all ways to a forward, with ids, token types and positions beyond the tables.

A kernel would read memory outside the table: a signal, or a wrong number.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertModel, BertTokenizer, SentenceTransformer, embed_tokens
from minibert.bert.ops import LayerNorm, Linear
from minibert.bert.packed import PackedBatch, cumulate
from minibert.corpus.embed import embed_corpus
from minibert.corpus.extract import extract_corpus
from minibert.corpus.sources import Source
from minibert.models.inputs import pack
from tests.support import outcomes
from tests.support.checkpoints import VOCABULARY
from tests.support.report import REPORT

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")

V, TYPES, P = len(VOCABULARY), 2, 512

# Three valid tokens; each case changes one number of one array.
GOOD: dict[str, Any] = {
    "token_ids": [5, 6, 7],
    "token_types": [0, 1, 1],
    "positions": [0, 1, 2],
    "cu_seqlens": [0, 3],
    "mask": [[True, True, True]],
}
BEYOND = [
    (name, value, limit)
    for name, limit in (("token_ids", V), ("token_types", TYPES), ("positions", P))
    for value in (limit, -1, 10**6, 2**31 - 1, -(2**31))
]


def packed(**changes: Any) -> PackedBatch:
    return PackedBatch(**{name: np.array(value) for name, value in {**GOOD, **changes}.items()})


@pytest.fixture(scope="module")
def model(small_folder: Path) -> BertModel:
    return BertModel.from_pretrained(small_folder)


# --- a packed batch made by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value", "limit"), BEYOND)
def test_a_forward_refuses_numbers_beyond_the_tables(model: BertModel, name: str, value: int, limit: int) -> None:
    for place in (0, 2):
        changed = [*GOOD[name]]
        changed[place] = value
        batch = packed(**{name: changed})
        message = rf"{name} of sequence 0 at {place} is {value}; valid are 0 to {limit - 1} "
        with pytest.raises(ValueError, match=message):
            model.run_packed(batch, [2])
        with pytest.raises(ValueError, match=message):
            next(model.states(batch, [2]))


def test_other_batches_that_do_not_fit_the_model(model: BertModel) -> None:
    mask = np.ones((3, 2)) == [[0, 0], [1, 1], [1, 0]]
    for changes, word in (
        ({"token_ids": [5, 6, V], "cu_seqlens": [0, 0, 2, 3], "mask": mask}, "token_ids of sequence 2 at 0 "),
        ({"token_ids": [0, 1, 2], "inputs_embeds": np.zeros((3, 23), np.float32)}, "inputs_embeds has 23 features"),
    ):
        with pytest.raises(ValueError, match=word):
            model.run_packed(packed(**changes), [2])
    ids = [np.zeros(2, int), np.zeros(3, int)]
    with pytest.raises(ValueError, match="2 token_ids and 3 token_types"):
        PackedBatch.from_sequences(model.config, ids, ids[::-1])


VECTORS = np.zeros((3, 24), np.float32)
MISMATCHES: list[tuple[str, type[Exception], list[Any]]] = [
    ("token_ids", ValueError, [[5, 6, 2**40], [5, 6, 2**32], [[5, 6, 7]], 5, {"inputs_embeds": VECTORS}]),
    ("token_ids", TypeError, [[True, True, True]]),
    ("token_types", ValueError, [[0, 1]]),
    ("token_types", TypeError, [[0.0, 1.0, 1.0]]),
    ("positions", ValueError, [np.array([0, 1, 2**64 - 1], np.uint64), [0, 1, 2, 3]]),
    ("cu_seqlens", ValueError, [[0, 10**6], [0, 2], [1, 3], [0, 5, 3], np.zeros(0, int)]),
    ("cu_seqlens", ValueError, [{"cu_seqlens": [0, 5, 3], "mask": np.ones((2, 3), bool)}]),
    ("cu_seqlens", ValueError, [{"cu_seqlens": [0, 2], "mask": [[True, True]]}]),
    ("mask", ValueError, [[[1, 1, 1]], [True]]),
    ("inputs_embeds", ValueError, [VECTORS[:2], VECTORS.astype(float), VECTORS[:, 0]]),
]


@pytest.mark.parametrize(("name", "error", "values"), MISMATCHES)
def test_arrays_that_do_not_belong_together_are_refused(name: str, error: type[Exception], values: list[Any]) -> None:
    for value in values:
        with pytest.raises(error, match=name):
            packed(**(value if isinstance(value, dict) else {name: value}))


def test_a_batch_keeps_copies_that_cannot_be_changed(model: BertModel) -> None:
    arrays = {name: np.array(value) for name, value in GOOD.items()}
    batch = PackedBatch(**arrays)
    before = model.run_packed(batch, [2]).hidden_states[2]
    for name, array in arrays.items():
        own = getattr(batch, name)
        assert not np.shares_memory(own, array)
        with pytest.raises(ValueError, match="read-only"):
            own[0] = own[0]
        array.fill(99)
    np.testing.assert_array_equal(model.run_packed(batch, [2]).hidden_states[2], before)


def test_every_way_to_a_batch_gives_arrays_that_cannot_be_changed(model: BertModel) -> None:
    ids, mask = np.arange(2, 14).reshape(3, 4), np.array([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1]])
    embeds = np.ones((3, 4, model.config.hidden_size), np.float32)
    whole = [
        pack(model.config, ids, mask, ids % 2, ids),
        pack(model.config, ids.astype(np.int32), mask.astype(bool)),
        pack(model.config, None, None, inputs_embeds=embeds),
        PackedBatch.from_sequences(model.config, [*ids], [*(ids % 2)]),
    ]
    for batch in [*whole, *(step for parent in whole for _, step in parent.steps(5))]:
        batch._check_layout()
        assert batch.private() is batch
        for name in ("token_ids", "token_types", "positions", "cu_seqlens", "mask", "columns"):
            array = getattr(batch, name)
            assert array.dtype == (np.bool_ if name == "mask" else np.int32), name
            assert not array.flags.writeable, name
            assert not any(np.shares_memory(array, given) for given in (ids, mask)), name


def test_more_tokens_than_int32_counts() -> None:
    with pytest.raises(ValueError, match="2,147,483,648 tokens"):
        cumulate(np.array([2**31 - 1, 1]))


# --- batches that could still be changed ------------------------------------------------------------------------------


class Careless(PackedBatch):
    def __post_init__(self) -> None:
        """Do not copy or check the arrays."""


def careless(batch: PackedBatch) -> PackedBatch:
    arrays = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return Careless(**{name: None if array is None else array.copy() for name, array in arrays.items()})


@pytest.mark.parametrize(
    "copied", [lambda batch: pickle.loads(pickle.dumps(batch)), copy.deepcopy, copy.copy, dataclasses.replace, careless]
)
def test_a_copy_of_a_batch_cannot_be_changed_either(model: BertModel, copied: Any) -> None:
    batch = packed()
    made = copied(batch)
    expected = model.run_packed(batch, [2]).hidden_states[2]
    np.testing.assert_array_equal(model.run_packed(made, [2]).hidden_states[2], expected)
    if copied is not careless:
        with pytest.raises(ValueError, match="read-only"):
            made.cu_seqlens[1] = 5000
    made.cu_seqlens.flags.writeable = True
    made.cu_seqlens[1] = 5000
    with pytest.raises(ValueError, match="cu_seqlens"):
        model.run_packed(made, [2])


def test_the_limits_of_ids_cannot_be_changed(model: BertModel) -> None:
    for name in ("config", "weights", "ops"):
        with pytest.raises(AttributeError):
            setattr(model, name, getattr(model, name))
    weights = model.weights
    norm = LayerNorm("norm", np.ones(9, np.float32), np.ones(9, np.float32), 1e-12)
    for changes, message in (
        ({"config": dataclasses.replace(model.config, vocab_size=40_000)}, r"words has .*40000"),
        ({"words": weights.word_embeddings[:10]}, r"words has shape \(10, 24\)"),
        ({"position_embeddings": weights.position_embeddings[:16]}, r"position_embeddings has shape \(16, 24\)"),
        ({"layers": weights.layers[:1]}, "There are 1 layers; the config says 2"),
        ({"embeddings_norm": norm}, "norm has shape"),
        ({"pooler": weights.layers[0].intermediate}, r"pooler has shape \(40, 24\)"),
        ({"embeddings_norm": dataclasses.replace(weights.embeddings_norm, bias=norm.bias)}, r"norm.bias has shape .9,"),
        ({"pooler": model.ops.prepare(Linear(("pooler.dense",), np.ones((24, 24)), norm.bias))}, r"bias .* \(9,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(weights, **changes)


def test_columns_cannot_be_changed() -> None:
    batch = packed()
    batch.columns.flags.writeable = True
    batch.columns[:] = 9999
    private = batch.private()
    assert private is not batch
    np.testing.assert_array_equal(private.columns, packed().columns)


@pytest.mark.parametrize(
    ("error", "values"), [(ValueError, [[99], [-1], [-1, 2]]), (TypeError, [["a"], [True], [1.0]])]
)
def test_layers_that_do_not_exist(model: BertModel, error: type[Exception], values: list[Any]) -> None:
    for layers in values:
        with pytest.raises(error, match="layers"):
            next(model.states(packed(), layers))
    with pytest.raises(ValueError, match="layers"):
        next(model.states(packed(), []))


# --- all other ways, in processes -------------------------------------------------------------------------------------


def test_every_way_is_checked(small_folder: Path, tokenizer: BertTokenizer, tmp_path: Path) -> None:
    """A tokenizer of more words than the model has."""
    sentences = SentenceTransformer(small_folder)
    sentences.tokenizer = tokenizer
    (tmp_path / "a.txt").write_text("embeddings")
    source, google = Source(str(tmp_path / "a.txt"), "text"), {"format": "google", "layers": [-1]}
    for way in (
        lambda: sentences.encode("embeddings"),
        lambda: sentences.encode("embeddings", output_value="token_embeddings"),
        lambda: embed_tokens(sentences.model, tokenizer, "embeddings"),
        lambda: extract_corpus(sentences.model, tokenizer, [source], tmp_path / "g.jsonl", **google),
        lambda: embed_corpus(sentences, [source], tmp_path / "out.npy"),
    ):
        with pytest.raises(ValueError, match="valid are 0 to "):
            way()


RACE = """
# Another process writes bad ids into shared memory; the forward computes with good ones, or refuses them.
import subprocess
model = load()
ids = np.memmap(HOME / "ids", np.int64, "w+", shape=(1, 4))
ids[:] = 7
writer = subprocess.Popen([sys.executable, "-c", '''
import os, random, sys
import numpy as np
ids = np.memmap(sys.argv[1], np.int64, "r+", shape=(1, 4))
parent = os.getppid()
while os.getppid() == parent:
    for number in (2**31 - 1, 7):
        ids[:] = number
        for _ in range(random.randrange(300)): pass
''', str(HOME / "ids")])
refused, computed = 0, 0
try:
    while min(refused, computed) < COUNT:
        try:
            model.embeddings(ids)
            computed += 1
        except ValueError:
            refused += 1
finally:
    writer.kill(); writer.wait()
"""


@pytest.mark.parametrize("count", [5_000, pytest.param(500_000, marks=pytest.mark.slow)])
def test_ids_that_change_while_they_are_read(outcome_model: Path, count: int) -> None:
    outcomes.run(f"COUNT = {count}\n{RACE}", outcome_model)
    REPORT.append(f"{count} forwards with ids that change, {count} refused")
