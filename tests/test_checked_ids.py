"""No unchecked id reaches a kernel: all ways to a forward, with ids, token types and positions beyond the tables.

A kernel would read memory outside the table. So each way runs in a program in a process of its own. The program must
end with a ValueError or TypeError, not with a signal and not with a number.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertModel, ModelFormatError, SentenceTransformer
from minibert.bert.ops import LayerNorm
from minibert.bert.packed import PackedBatch
from tests.support import outcomes
from tests.support.checkpoints import VOCABULARY, random_checkpoint
from tests.support.report import REPORT
from tests.support.tokenizer_files import tokenizer_json

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
@pytest.mark.parametrize("place", [0, 2])
def test_a_forward_refuses_numbers_beyond_the_tables(
    model: BertModel, name: str, value: int, limit: int, place: int
) -> None:
    changed = [*GOOD[name]]
    changed[place] = value
    batch = packed(**{name: changed})
    with pytest.raises(ValueError, match=rf"{name} of sequence 0 at {place} is {value}; valid are 0 to {limit - 1} "):
        model.forward_packed(batch, hidden_states=[2])
    with pytest.raises(ValueError, match=f"{name} of sequence 0"):
        next(model.states(batch, [2]))


def test_the_message_names_the_sequence_and_the_token(model: BertModel) -> None:
    batch = packed(token_ids=[5, 6, V], cu_seqlens=[0, 0, 2, 3], mask=np.ones((3, 2)) == [[0, 0], [1, 1], [1, 0]])
    with pytest.raises(ValueError, match=r"token_ids of sequence 2 at 0 is .*Use the tokenizer that belongs to"):
        model.forward_packed(batch, hidden_states=[2])


VECTORS = np.zeros((3, 24), np.float32)
TOGETHER = "cu_seqlens and mask do not belong together"


@pytest.mark.parametrize(
    ("name", "error", "more", "value"),
    [
        (name, error, more, value)
        for name, error, more, values in (
            ("token_ids", ValueError, "does not fit into int32", ([5, 6, 2**40], [5, 6, 2**32])),
            ("positions", ValueError, "18446744073709551615", (np.array([0, 1, 2**64 - 1], np.uint64),)),
            ("token_types", TypeError, "expected integers", ([0.0, 1.0, 1.0],)),
            ("token_ids", TypeError, "bool", ([True, True, True],)),
            ("token_ids", ValueError, "expected one dimension", ([[5, 6, 7]], 5)),
            ("token_types", ValueError, "2 token_types and 3 positions", ([0, 1],)),
            ("positions", ValueError, "3 token_types and 4 positions", ([0, 1, 2, 3],)),
            ("cu_seqlens", ValueError, TOGETHER, ([0, 10**6], [0, 2], [1, 3], [0, 5, 3], np.zeros(0, int))),
            ("mask", ValueError, "expected a bool array", ([[1, 1, 1]], [True])),
            ("inputs_embeds", ValueError, "", (VECTORS[:2], VECTORS.astype(float), VECTORS[:, 0])),
            ("token_ids", ValueError, "token_ids 0, 1", ({"inputs_embeds": VECTORS},)),
            ("cu_seqlens", ValueError, TOGETHER, ({"cu_seqlens": [0, 5, 3], "mask": np.ones((2, 3), bool)},)),
            ("cu_seqlens", ValueError, "number of tokens, 3", ({"cu_seqlens": [0, 2], "mask": [[True, True]]},)),
        )
        for value in values
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(
    name: str, error: type[Exception], more: str, value: Any
) -> None:
    with pytest.raises(error) as caught:
        packed(**(value if isinstance(value, dict) else {name: value}))
    assert name in str(caught.value)
    assert more in str(caught.value)


def test_word_vectors_of_another_width_are_refused(model: BertModel) -> None:
    batch = packed(token_ids=[0, 1, 2], inputs_embeds=np.zeros((3, 23), np.float32))
    with pytest.raises(ValueError, match="inputs_embeds has 23 features; the model has 24"):
        model.forward_packed(batch, hidden_states=[2])


def test_a_batch_keeps_copies_that_cannot_be_changed(model: BertModel) -> None:
    arrays = {name: np.array(value) for name, value in GOOD.items()}
    batch = PackedBatch(**arrays)
    before = model.forward_packed(batch, hidden_states=[2]).hidden_states[2]
    for name, array in arrays.items():
        own = getattr(batch, name)
        assert not np.shares_memory(own, array)
        with pytest.raises(ValueError, match="read-only"):
            own[0] = own[0]
        array.fill(99)
    np.testing.assert_array_equal(model.forward_packed(batch, hidden_states=[2]).hidden_states[2], before)


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64, np.uint64, ">i4", "<i8"])
def test_every_kind_of_integers_makes_the_same_batch(model: BertModel, kind: Any) -> None:
    changes = {name: np.array(GOOD[name], kind) for name in ("token_ids", "token_types", "positions", "cu_seqlens")}
    batch, expected = packed(**changes), packed()
    for name in changes:
        assert getattr(batch, name).dtype == np.dtype(np.int32)
        np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))


# --- batches that could still be changed ------------------------------------------------------------------------------


def copies_of(batch: PackedBatch) -> dict[str, PackedBatch]:
    class Careless(PackedBatch):
        def __post_init__(self) -> None:
            """Do not copy or check the arrays."""

    arrays = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {
        "a pickle": pickle.loads(pickle.dumps(batch)),
        "a deep copy": copy.deepcopy(batch),
        "a copy": copy.copy(batch),
        "one with a field replaced": dataclasses.replace(batch),
        "a subclass": Careless(**{name: None if array is None else array.copy() for name, array in arrays.items()}),
    }


@pytest.mark.parametrize("how", ["a pickle", "a deep copy", "a copy", "one with a field replaced", "a subclass"])
def test_a_copy_of_a_batch_cannot_be_changed_either(model: BertModel, how: str) -> None:
    batch = packed()
    made = copies_of(batch)[how]
    expected = model.forward_packed(batch, hidden_states=[2]).hidden_states[2]
    np.testing.assert_array_equal(model.forward_packed(made, hidden_states=[2]).hidden_states[2], expected)
    if how != "a subclass":
        with pytest.raises(ValueError, match="read-only"):
            made.cu_seqlens[1] = 5000
    made.cu_seqlens.flags.writeable = True
    made.cu_seqlens[1] = 5000
    with pytest.raises(ValueError, match="cu_seqlens and mask do not belong together"):
        model.forward_packed(made, hidden_states=[2])


def test_the_limits_of_ids_cannot_be_changed(model: BertModel) -> None:
    for name in ("config", "weights", "ops"):
        with pytest.raises(AttributeError):
            setattr(model, name, getattr(model, name))
    weights = model.weights
    norm = LayerNorm("norm", np.ones(9, np.float32), np.ones(9, np.float32), 1e-12)
    for changes, message in (
        ({"config": dataclasses.replace(model.config, vocab_size=40_000)}, r"word_embeddings has .*40000"),
        ({"word_embeddings": weights.word_embeddings[:10]}, r"word_embeddings has shape \(10, 24\)"),
        ({"position_embeddings": weights.position_embeddings[:16]}, r"position_embeddings has shape \(16, 24\)"),
        ({"layers": weights.layers[:1]}, "There are 1 layers; the config says 2"),
        ({"embeddings_norm": norm}, "norm has shape"),
        ({"pooler": weights.layers[0].intermediate}, r"pooler has shape \(40, 24\)"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(weights, **changes)


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        *(([99], ValueError), ([-1], ValueError), ([-1, 2], ValueError), ([], ValueError)),
        *((["a"], TypeError), ([True], TypeError), ([1.0], TypeError)),
    ],
)
def test_layers_that_do_not_exist(model: BertModel, layers: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="layers"):
        next(model.states(packed(), layers))
    if layers:
        with pytest.raises(error, match="an index of hidden_states="):
            model.forward_packed(packed(), hidden_states=layers)


def test_each_sequence_has_as_many_types_as_ids() -> None:
    ids = [np.zeros(2, int), np.zeros(3, int)]
    with pytest.raises(ValueError, match="Sequence 0 has 2 token_ids and 3 token_types; expected one type per id"):
        PackedBatch.from_sequences(ids, ids[::-1])


# --- a template -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*has no modules.json")
@pytest.mark.parametrize("type_id", [2, 7, 1000, 2**31, 2**32 - 1])
def test_a_template_with_a_type_that_the_model_does_not_have_is_refused_at_load(tmp_path: Path, type_id: int) -> None:
    folder = random_checkpoint(tmp_path / "model")
    fields = tokenizer_json(VOCABULARY)
    for piece in fields["post_processor"]["single"]:
        next(iter(piece.values()))["type_id"] = type_id
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(ModelFormatError, match="type_vocab_size"):
        SentenceTransformer(folder)


# --- all other ways, in processes -------------------------------------------------------------------------------------

SWAPPED = """
from minibert import BertModel, BertTokenizer, SentenceTransformer, embed_tokens
from minibert.bert.packed import PackedBatch
st = SentenceTransformer(HOME)
print(st.encode(["a", "the cat sat"]).shape)
big = BertTokenizer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
"""
WAYS = {
    "a tokenizer of more words": """
        st.tokenizer = big
        st.encode("embeddings")
        """,
    "tokens by a tokenizer of more words": """
        st.tokenizer = big
        st.encode("embeddings", output_value="token_embeddings")
        """,
    "embed_tokens by a tokenizer of more words": """
        embed_tokens(st.model, big, "embeddings")
        """,
    "google features by a tokenizer of more words": """
        from minibert.corpus.extract import google_lines
        list(google_lines(st.model, big, [(0, "embeddings")], layers=[-1]))
        """,
    "a corpus by a tokenizer of more words": """
        from minibert.corpus.embed import embed_corpus
        from minibert.corpus.sources import Source
        st.tokenizer = big
        (HOME / "a.txt").write_text("embeddings")
        embed_corpus(st, [Source(str(HOME / "a.txt"), "text")], HOME / "out.npy")
        """,
    "a model of fewer positions, by hand": """
        model = BertModel.from_pretrained(HOME / "short")
        ids = np.full(40, 7)
        model.forward_packed(PackedBatch.from_sequences([ids], [0 * ids]), hidden_states=[1])
        """,
    "ids of 10**6 by hand": """
        ids = np.array([10**6])
        st.model.forward_packed(PackedBatch.from_sequences([ids], [0 * ids]), hidden_states=[1])
        """,
}


@pytest.fixture(scope="module")
def swapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = random_checkpoint(tmp_path_factory.mktemp("swapped"))
    random_checkpoint(folder / "short", max_position_embeddings=16)
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_a_forward_is_checked(swapped: Path, way: str) -> None:
    outcome, printed = outcomes.run(SWAPPED + outcomes.textwrap.dedent(WAYS[way]), swapped)
    REPORT.append(outcomes.line(f"unchecked ids, {way}", Counter([outcome])))
    assert outcome == "typed error", printed
    assert "ValueError: " in printed
    assert "valid are 0 to " in printed


def test_a_model_of_fewer_positions_truncates_texts_to_them(swapped: Path) -> None:
    program = """
        st.model = BertModel.from_pretrained(HOME / "short")
        text = "the cat sat on the mat by the river bank with the dog and his hat and her hat"
        assert st.max_seq_length == 16
        expected = SentenceTransformer(HOME / "short").encode(text, truncation="silent")
        np.testing.assert_array_equal(st.encode(text, truncation="silent"), expected)
        st.encode(text)
        """
    program = SWAPPED + outcomes.textwrap.dedent(program)
    outcome, printed = outcomes.run(program, swapped)
    assert outcome == "ok", printed
    assert "The text has more than 16 tokens" in printed


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


@pytest.mark.parametrize("count", [20_000, pytest.param(500_000, marks=pytest.mark.slow)])
def test_ids_that_change_while_they_are_read(outcome_model: Path, count: int) -> None:
    outcome, printed = outcomes.run(f"COUNT = {count}\n{RACE}", outcome_model)
    REPORT.append(outcomes.line(f"{count} forwards with ids that change, {count} refused", Counter([outcome])))
    assert outcome == "ok", printed
