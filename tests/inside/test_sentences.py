"""The parts of a cosine, and leaving out tokens: against transformers in float64, and against the cosine itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minibert import SentenceTransformer, inside
from tests.support.sentence_modules import MEAN, dense, model_with_modules, random_tensors

MODES = ("mean", "cls", "weightedmean", "lasttoken")


@pytest.fixture(scope="module")
def exact_minilm(minilm_folder: Path) -> Any:
    from transformers import BertModel

    return BertModel.from_pretrained(minilm_folder, dtype=torch.float64).eval()


def states(theirs: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return theirs(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()


def pooled(mode: str, x: np.ndarray) -> np.ndarray:
    n = len(x)
    weights = {
        "mean": [1 / n] * n,
        "cls": [1.0] + [0.0] * (n - 1),
        "lasttoken": [0.0] * (n - 1) + [1.0],
        "weightedmean": [(i + 1) / (n * (n + 1) / 2) for i in range(n)],
        "mean_sqrt_len_tokens": [n**-0.5] * n,
    }[mode]
    return np.array(weights)[:, None] * x


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


# --- parts of a cosine ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [*MODES, "mean_sqrt_len_tokens"])
def test_each_part_is_that_of_the_formula(
    mode: str, minilm_sentences: SentenceTransformer, exact_minilm: Any, tokenizer: Any
) -> None:
    a, b = "the river bank was flooded", "a bank that lends money"
    result = inside.explain_similarity(minilm_sentences, a, b, pooling=mode)
    x, y = (pooled(mode, states(exact_minilm, tokenizer(text)["input_ids"])) for text in (a, b))
    lengths = np.linalg.norm(x.sum(axis=0)) * np.linalg.norm(y.sum(axis=0))
    np.testing.assert_allclose(result.parts, [[u @ v / lengths for v in y] for u in x], atol=2e-7)
    assert result.tokens_a == ["[CLS]", *a.split(), "[SEP]"]
    assert result.tokens_b == ["[CLS]", "a", "bank", "that", "lend", "##s", "money", "[SEP]"]
    assert result.cosine == pytest.approx(cosine(x.sum(axis=0), y.sum(axis=0)), abs=1e-7)
    best = result.largest(3)
    assert [part for *_, part in best] == sorted(result.parts.ravel(), key=lambda part: -abs(part))[:3]
    assert len(result.largest(10**6)) == result.parts.size


IDENTITY = "torch.nn.modules.linear.Identity"
NORMALIZE: Any = ("Normalize", {}, None)
MODULES: dict[str, list[Any]] = {
    "dense": [MEAN, dense(24, 10, IDENTITY)],
    "dense without bias, normalize": [MEAN, dense(24, 10, IDENTITY, bias=False), NORMALIZE],
    "residual": [MEAN, dense(24, 24, IDENTITY, use_residual=True)],
    "residual with a matrix": [MEAN, dense(24, 7, IDENTITY, use_residual=True)],
    "normalize before dense": [MEAN, NORMALIZE, dense(24, 9, IDENTITY)],
    "layer norm": [
        MEAN,
        ("LayerNorm", {"dimension": 24}, random_tensors(norm_weight=(24,), norm_bias=(24,))),
        dense(24, 5, IDENTITY),
    ],
    "two poolings": [
        ("Pooling", {"embedding_dimension": 24, "pooling_mode": ["mean", "cls"]}, None),
        dense(48, 6, IDENTITY),
    ],
    "square root": [("Pooling", {"embedding_dimension": 24, "pooling_mode": "mean_sqrt_len_tokens"}, None)],
}


@pytest.mark.parametrize("steps", MODULES.values(), ids=MODULES)
def test_linear_modules_keep_the_sum(steps: list[Any], tmp_path: Path) -> None:
    new = any(step[0] == "LayerNorm" for step in steps)
    model = SentenceTransformer(model_with_modules(tmp_path / "model", steps, new=new))
    a, b = "a cat sat on the mat", "hello, world"
    x, y = model.encode([a, b]).astype(np.float64)
    result = inside.explain_similarity(model, a, b)
    assert result.cosine == pytest.approx(cosine(x, y), abs=1e-6)
    cut = SentenceTransformer(model_with_modules(tmp_path / "cut", steps, new=new), truncate_dim=4)
    x, y = cut.encode([a, b]).astype(np.float64)
    assert inside.explain_similarity(cut, a, b).cosine == pytest.approx(cosine(x, y), abs=1e-6)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompts_are_tokens_too(include_prompt: bool, minilm_folder: Path) -> None:
    model = SentenceTransformer(minilm_folder, prompts={"query": "find: ", "document": ""})
    model.set_pooling_include_prompt(include_prompt)
    x = model.encode("a river", prompt_name="query").astype(np.float64)
    y = model.encode("a bank").astype(np.float64)
    result = inside.explain_similarity(model, "a river", "a bank", prompt_names=("query", None))
    assert result.tokens_a[:4] == ["[CLS]", "find", ":", "a"]
    assert result.parts[:3].any() == include_prompt
    assert result.cosine == pytest.approx(cosine(x, y), abs=1e-6)
    left = inside.leave_one_out(model, "a river", "a bank", prompt_name="query")
    assert left.tokens == ["a", "river"], "those of the prompt stay"


# --- leaving out tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_leaving_out_is_running_the_shorter_text(
    mode: str, minilm_sentences: SentenceTransformer, exact_minilm: Any, tokenizer: Any
) -> None:
    text, other = "embeddings of the river bank", "a bank that lends money"

    def vector(ids: list[int]) -> np.ndarray:
        x = states(exact_minilm, ids)
        return x.mean(axis=0) if mode == "mean" else x.max(axis=0)

    ids, target = tokenizer(text)["input_ids"], vector(tokenizer(other)["input_ids"])
    whole = cosine(vector(ids), target)
    changes = [whole - cosine(vector([*ids[:i], *ids[i + 1 :]]), target) for i in range(1, len(ids) - 1)]
    result = inside.leave_one_out(minilm_sentences, text, other, pooling=mode)
    assert result.tokens == ["em", "##bed", "##ding", "##s", "of", "the", "river", "bank"]
    assert result.positions.tolist() == list(range(1, 9))
    np.testing.assert_allclose(result.changes, changes, atol=1e-6)
    assert result.score == pytest.approx(whole, abs=1e-6)
    same = inside.leave_one_out(minilm_sentences, text, minilm_sentences.encode(other, pooling=mode), pooling=mode)
    np.testing.assert_allclose(same.changes, result.changes, atol=1e-6)
    by_function = inside.leave_one_out(minilm_sentences, text, lambda vectors: vectors[:, 3], pooling=mode)
    assert by_function.changes.shape == (8,)
    assert inside.leave_one_out(minilm_sentences, "", other).changes.shape == (0,)
