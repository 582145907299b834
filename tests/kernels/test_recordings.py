"""Recordings: a forward whose tasks were written down for another text has the bits of one that describes its ops."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert.models.steps
from minibert import AutoModel, BertModel
from minibert.bert.packed import PackedBatch
from minibert.kernels import recordings
from tests.support.checkpoints import random_checkpoint
from tests.support.families import make


def recordings_of(model: Any) -> recordings.Recordings:
    """Return those of a model's ops, whose first argument is the `Resources`."""
    kept: recordings.Recordings = model.ops.recorder.args[0].recordings
    return kept


def states(model: Any, batch: PackedBatch, stop: int = 2) -> bytes:
    return b"".join(x.tobytes() for _, _, _, x in model.run_steps(batch, stop))


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "modernbert", "esm"])
def test_batches_that_differ_in_their_layout_do_not_share_a_recording(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, family, "Model")
    model = AutoModel.from_pretrained(tmp_path, backend="kernels", num_threads=2)
    rng = np.random.default_rng(0)
    batches = []
    for seed in range(12):
        mask = rng.random((2, 9)) < 0.7
        mask[:, 0] = True
        if seed % 3 == 0:  # the same lengths, with other columns
            mask = np.sort(mask, axis=1)[:, ::-1]
        T, lengths = mask.sum(), mask.sum(axis=1)
        places = np.nonzero(mask)[1] if seed % 2 else np.concatenate([np.arange(n) for n in lengths])
        types = rng.integers(0, max(1, model.config.type_vocab_size), T)
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
        batches.append(PackedBatch(rng.integers(5, 30, T), types, places + 2, cu_seqlens, mask))
    found = [states(model, batch) for batch in [*batches, *batches]]
    monkeypatch.setattr(minibert.models.steps, "TOGETHER_BYTES", 0)
    assert found == [states(model, batch) for batch in [*batches, *batches]]


def test_results_belong_to_the_caller(outcome_model: Path) -> None:
    model = BertModel.from_pretrained(outcome_model, backend="kernels")
    first = model(np.array([[2, 5, 6, 3]]))
    kept = [x.copy() for x in first.hidden_states]
    model(np.array([[2, 7, 8, 3]]))
    assert all(np.array_equal(x, y) for x, y in zip(kept, first.hidden_states, strict=True))
    first.hidden_states[0][:] = first.last_hidden_state[:] = np.nan
    assert np.isfinite(model(np.array([[2, 5, 6, 3]])).last_hidden_state).all()


def test_models_that_share_ops_have_recordings_of_their_own(tmp_path: Path) -> None:
    folders = [random_checkpoint(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    one, other = (BertModel.from_pretrained(folder, backend="kernels") for folder in folders)
    together = BertModel(other.weights, one.ops)
    ids = np.array([[2, 5, 6, 3]])
    expected = [model(ids).last_hidden_state.tobytes() for model in (one, other)]
    assert expected[0] != expected[1]
    assert [model(ids).last_hidden_state.tobytes() for model in (one, together) * 2] == expected * 2
    del other, together
    gc.collect()
    one(np.array([[2, 5, 3]]))
    assert {owner() for _, owner in recordings_of(one)._kept.values()} == {one.weights}  # the others are gone


def test_they_are_few_and_go_with_release_and_with_the_model(outcome_model: Path) -> None:
    model = BertModel.from_pretrained(outcome_model, backend="kernels")
    kept = recordings_of(model)
    for length in range(1, 60):
        batch = PackedBatch.from_sequences(model.config, [np.full(length, 7)], [np.zeros(length, np.int64)])
        assert states(model, batch) == states(model, batch)
        tokens = [len(recording.words) for recording, _ in kept._kept.values()]
        assert sum(tokens) <= recordings.MOST_TOKENS
        assert (length in tokens) is (length <= recordings.LONGEST)
    for rows in range(1, 9):
        model(np.zeros((rows, 3), np.int64), attention_mask=np.zeros((rows, 3), np.int64))
        assert all(len(recording.words) for recording, _ in kept._kept.values())
    weights = weakref.ref(model.weights)
    model.ops.release()
    assert not kept._kept
    states(model, batch)
    model(np.array([[2, 5, 6, 3]]))
    assert kept._kept
    model.close()
    gc.collect()
    assert weights() is None
    assert not kept._kept
