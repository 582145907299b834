"""Recording does not change a bit, whatever is recorded: heads, steps, threads, streams, memory, unusual batches."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert
from minibert import BertModel, exact
from minibert.bert import reference
from minibert.models.steps import TOKENS_PER_STEP
from tests.support.head_models import CLASSES, inputs_of
from tests.support.random_checkpoints import random_checkpoint

BACKENDS = ("kernels", "numpy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("small") / "model", type_vocab_size=3)


def batch(model: Any, rows: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    return inputs_of("BertModel", rows=rows, length=length, seed=seed, vocab_size=model.config.vocab_size)


def same(a: Any, b: Any) -> None:
    """Compare two outputs bit for bit."""
    assert a.keys() == b.keys()
    for key in a.keys():  # noqa: SIM118
        first, second = (value if isinstance(value, tuple) else (value,) for value in (a[key], b[key]))
        for x, y in zip(first, second, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y, err_msg=key)


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_change_of_the_output_does_not_change_the_trace(backend: str, folder: Path) -> None:
    model = BertModel.from_pretrained(folder, backend=backend, output_attentions=True)
    for inputs in (batch(model, 9, 21), {"input_ids": [[5, 6, 7]]}):
        trace = model.trace(**inputs)
        before = {name: np.array(trace[name]) for name in trace.names}
        for value in trace.output.to_tuple():
            for array in value if isinstance(value, tuple) else (value,):
                array.fill(7)
        for name, array in before.items():
            np.testing.assert_array_equal(trace[name], array, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("record", ["*", (), "encoder.layer.*.output.dense", "*.scores", ["*.query", "pooler.dense"]])
def test_recording_changes_no_bit(record: Any, backend: str, folder: Path) -> None:
    model = BertModel.from_pretrained(folder, backend=backend, output_attentions=True)
    inputs = batch(model, 9, 21)
    plain, trace = model(**inputs), model.trace(**inputs, record=record)
    same(trace.output, plain)
    for name, arrays in (("hidden_states", plain.hidden_states), ("attentions", plain.attentions)):
        for i, array in enumerate(arrays):
            if f"{name}.{i}" in trace:
                np.testing.assert_array_equal(trace[f"{name}.{i}"], array)


@pytest.mark.parametrize("kind", CLASSES)
def test_heads_are_traced(kind: str, folder_of: Any) -> None:
    model = getattr(minibert, kind).from_pretrained(folder_of(kind), output_attentions=True)
    inputs = inputs_of(kind, rows=90, length=20)
    assert inputs["attention_mask"].sum() > (TOKENS_PER_STEP // 2)
    trace = model.trace(**inputs)
    same(trace.output, model(**inputs))
    for key, result in trace.output.items():
        if key.endswith("logits") and "qa_outputs" not in trace:
            np.testing.assert_array_equal(trace[key].reshape(result.shape), result)
    if "qa_outputs" in trace:
        np.testing.assert_array_equal(trace["qa_outputs"][..., 1], trace.output.end_logits)


def test_a_head_with_a_large_vocabulary_is_recorded_in_parts(folder_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder computes at most 16 MB of logits at once; here less, so that a small model needs several parts."""
    from minibert.models import base

    monkeypatch.setattr(base, "SLICE_BYTES", 4 * 97 * 7)
    model = minibert.BertForMaskedLM.from_pretrained(folder_of("BertForMaskedLM"))
    inputs = inputs_of("BertForMaskedLM", rows=9)
    trace = model.trace(**inputs)
    np.testing.assert_array_equal(trace["logits"], model(**inputs).logits)
    halved = model.trace(**inputs, edit={"logits": lambda x: x / 2})
    np.testing.assert_array_equal(halved.output.logits, model(**inputs).logits / 2)
    for site in model.stream(**inputs, record="logits"):
        np.testing.assert_array_equal(site.array, trace["logits"][site.sequence][site.columns])


def test_a_batch_of_several_steps(folder: Path) -> None:
    model = BertModel.from_pretrained(folder)
    inputs = batch(model, 150, 40)
    assert inputs["attention_mask"].sum() > 2 * TOKENS_PER_STEP
    trace = model.trace(**inputs)
    plain = model(**inputs, output_attentions=True)
    same(trace.output, model(**inputs))
    np.testing.assert_array_equal(trace["attentions.1"], plain.attentions[1])
    for b in (0, 77, 149):
        alone = model.trace(**{name: array[b : b + 1] for name, array in inputs.items()})
        for name in trace:
            np.testing.assert_array_equal(trace[name][b], alone[name][0], err_msg=name)


def test_several_threads_trace_at_once(folder: Path) -> None:
    model = BertModel.from_pretrained(folder, num_threads=2)
    inputs = [batch(model, 5, 17, seed) for seed in range(4)]
    edit = {"attentions.1": lambda p: p * 0}
    kinds: list[Callable[..., Any]] = [
        lambda **call: model(**call).last_hidden_state,
        lambda **call: model.trace(**call)["hidden_states.2"],
        lambda **call: model.trace(**call, record="pooler", edit=edit).output.last_hidden_state,
    ]
    expected = [[kind(**one) for one in inputs] for kind in kinds]

    def right(number: int) -> bool:
        kind, i = number % 3, number % 4
        return np.array_equal(kinds[kind](**inputs[i]), expected[kind][i])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(right, range(72)))


# --- inputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_batches(shape: tuple[int, int], folder: Path) -> None:
    model = BertModel.from_pretrained(folder)
    trace = model.trace(np.zeros(shape, dtype=np.int64))
    assert trace["hidden_states.1"].shape == (*shape, 24)
    assert trace["attentions.0"].shape == (shape[0], 3, shape[1], shape[1])
    assert trace["pooler"].shape == (shape[0], 24)
    assert list(model.stream(np.zeros(shape, dtype=np.int64), record="pooler")) == []


def test_vectors_instead_of_ids(folder: Path) -> None:
    model = BertModel.from_pretrained(folder)
    inputs = batch(model, 5, 9)
    vectors = model.get_input_embeddings()(inputs.pop("input_ids"))
    trace = model.trace(inputs_embeds=vectors, **inputs)
    shown = inputs["attention_mask"].astype(bool)
    np.testing.assert_array_equal(trace["embeddings.word_embeddings"][shown], vectors[shown])
    same(trace.output, model(inputs_embeds=vectors, **inputs))


def test_tokens(minilm: BertModel, tokenizer: Any) -> None:
    inputs = tokenizer(["embeddings", "a b c"], padding=True, return_tensors="np")
    words = [["[CLS]", "em", "##bed", "##ding", "##s", "[SEP]"], ["[CLS]", "a", "b", "c", "[SEP]"]]
    for given, expected in ((tokenizer, words), (words, words), (None, None)):
        assert minilm.trace(**inputs, record="pooler", tokens=given).tokens == expected
    vectors = {"inputs_embeds": minilm.get_input_embeddings()(inputs["input_ids"])}
    wrong: list[Any] = [words[:1], [["a"], ["b"]], "text", [[1, 2]], 3]
    for call, tokens, word in (*((inputs, one, "tokens") for one in wrong), (vectors, tokenizer, "inputs_embeds")):
        with pytest.raises(ValueError, match=word):
            minilm.trace(**call, tokens=tokens)


# --- the trace --------------------------------------------------------------------------------------------------------


def test_arrays_are_new_and_sequences_are_views(folder: Path) -> None:
    model = BertModel.from_pretrained(folder)
    inputs = batch(model, 5, 9)
    trace = model.trace(**inputs)
    trace["embeddings"][:] = 7
    trace.output.hidden_states[0][:] = 7
    np.testing.assert_array_equal(trace["embeddings"], model(**inputs).hidden_states[0])
    for b in range(5):
        columns = np.flatnonzero(inputs["attention_mask"][b])
        result = trace.sequence(b)
        assert ("pooler" in result) == bool(inputs["attention_mask"][b, 0])
        np.testing.assert_array_equal(result["encoder.layer.1"], trace["encoder.layer.1"][b, columns])
        probs = trace["attentions.1"][b][:, columns[:, None], columns]
        np.testing.assert_array_equal(result["encoder.layer.1.attention.self.probs"], probs)
        assert not any(array.flags.writeable for array in result.values())
    np.testing.assert_array_equal(trace.sequence(-1)["embeddings"], trace.sequence(4)["embeddings"])
    with pytest.raises(ValueError, match="index=5"):
        trace.sequence(5)


def test_a_pickle_of_a_trace_is_as_large_as_its_values(folder: Path) -> None:
    model = BertModel.from_pretrained(folder)
    trace = model.trace([[3, 4, 5]], record="pooler")
    assert trace.output_map(0) is not None
    data = pickle.dumps(trace)
    assert len(data) < 10_000
    again = pickle.loads(data)
    np.testing.assert_array_equal(again["pooler"], trace["pooler"])
    assert again.output_map(0) is None


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["BertModel", *CLASSES])
def test_a_stream_gives_what_a_trace_keeps(kind: str, folder: Path, folder_of: Any) -> None:
    model = getattr(minibert, kind).from_pretrained(folder if kind == "BertModel" else folder_of(kind))
    inputs = batch(model, 80, 30) if kind == "BertModel" else inputs_of(kind, rows=20)
    mask = inputs["attention_mask"].reshape(-1, inputs["attention_mask"].shape[-1])
    assert kind != "BertModel" or mask.sum() > TOKENS_PER_STEP
    trace, seen = model.trace(**inputs), set()
    for site in model.stream(**inputs):
        assert not site.array.flags.writeable
        np.testing.assert_array_equal(site.columns, np.flatnonzero(mask[site.sequence]))
        np.testing.assert_array_equal(site.array, trace.sequence(site.sequence)[site.name])
        seen.add((site.name, site.sequence))
    assert seen == {(name, b) for b in range(len(mask)) for name in trace.sequence(b)}


def test_a_stream_checks_at_once_and_can_stop(folder: Path) -> None:
    model = BertModel.from_pretrained(folder)
    with pytest.raises(ValueError, match="is not the name"):
        model.stream([[1, 2]], record="no")
    first = next(iter(model.stream([[1, 2]], record="hidden_states.*")))
    assert (first.name, first.layer, first.sequence, first.array.shape) == ("embeddings", None, 0, (2, 24))
    assert [site.name for site in model.stream([[1, 2]], num_layers=1, record="hidden_states.*")][
        -1
    ] == "encoder.layer.0"
    with pytest.raises(ValueError, match="changed nothing"):
        list(model.stream([[1, 2]], edit={"pooler": lambda x: x}))


def test_a_stream_keeps_nothing(folder: Path) -> None:
    """The memory of a stream does not grow with the number of texts."""
    model = BertModel.from_pretrained(folder)

    def peak(rows: int) -> int:
        inputs = batch(model, rows, 64)
        tracemalloc.start()
        for _ in model.stream(**inputs, record=["embeddings", "*.probs", "pooler"]):
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(16)
    assert peak(1000) < peak(100) + 900 * 64 * 8 * 8  # copies of ids, masks, types


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_trace_takes_the_memory_of_what_it_records(folder: Path) -> None:
    model = BertModel.from_pretrained(folder, output_hidden_states=False)
    inputs = batch(model, 200, 64)
    model.trace(**inputs, record="pooler")
    for record in ("hidden_states.*", "*.intermediate", "*"):
        tracemalloc.start()
        trace = model.trace(**inputs, record=record)
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert trace.nbytes == sum(array.nbytes for b in range(200) for array in trace.sequence(b).values()), (
            "the recorded values are packed"
        )
        assert kept < 1.3 * trace.nbytes + trace.output.last_hidden_state.nbytes + 3e6


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM"])
def test_too_much_is_refused_before_anything_is_computed(
    kind: str, folder: Path, folder_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = getattr(minibert, kind).from_pretrained(folder if kind == "BertModel" else folder_of(kind))
    ids = np.ones((64, 32), dtype=np.int64)
    trace = model.trace(ids)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("an op was called")

    ops = reference.OPS._replace(embed=never, linear=never, attention=never, layer_norm=never)
    monkeypatch.setattr("minibert._utils.system._ALWAYS_FITS", 0)
    monkeypatch.setattr("minibert._utils.system.available_memory", lambda: trace.nbytes)
    with pytest.raises(MemoryError, match=r"2,048 tokens .* stream\(\)"):
        model.with_ops(ops).trace(ids)
    assert len(model.trace(ids, record="embeddings")) == 1
    monkeypatch.setattr("minibert._utils.system.available_memory", lambda: 2 * trace.nbytes)
    assert len(model.trace(ids)) == len(trace)
    with pytest.raises(MemoryError, match="take"):
        exact.forward(model, ids)


def test_exact_refuses_what_is_not_a_model() -> None:
    with pytest.raises(TypeError, match=r"exact.forward was given a str; expected a model of minibert"):
        exact.forward("all-MiniLM-L6-v2", [[1]])  # type: ignore[arg-type]
