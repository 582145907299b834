"""Right solutions in five styles are right; a teacher chooses the model and the text."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert.learn
from minibert.learn.right import RIGHT
from tests.learn.test_course import functions, small_model

erf = np.vectorize(math.erf, otypes=[float])


def loops() -> dict[str, Any]:
    """Sums in plain loops over tokens and features."""

    def embed(token_ids: Any, token_types: Any, words: Any, positions: Any, types: Any) -> Any:
        return [
            [a + b + c for a, b, c in zip(words[token], positions[t], types[token_types[t]], strict=True)]
            for t, token in enumerate(token_ids)
        ]

    def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
        rows = []
        for row in x:
            mean = sum(row) / len(row)
            deviation = math.sqrt(sum((one - mean) ** 2 for one in row) / len(row) + eps)
            rows.append([(one - mean) / deviation * w + b for one, w, b in zip(row, weight, bias, strict=True)])
        return np.array(rows)

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        result = np.zeros((len(x), len(weight)), np.float32)
        for k in range(x.shape[1]):  # one product after the other
            result += x[:, k, None] * weight[:, k]
        return result + bias

    def softmax(scores: Any) -> Any:
        if len(scores.shape) > 1:
            return np.array([softmax(row) for row in scores])
        powers = [math.exp(one - max(scores)) for one in scores]
        return [one / sum(powers) for one in powers]

    def head(query: Any, key: Any, value: Any) -> Any:
        rows = []
        for q in query:
            shares = softmax(np.array([sum(a * b for a, b in zip(q, k, strict=True)) for k in key]) / math.sqrt(len(q)))
            rows.append(sum(share * v for share, v in zip(shares, value, strict=True)))
        return np.array(rows)

    return {name: one for name, one in locals().items() if name in RIGHT}


def einsum() -> dict[str, Any]:
    def head(query: Any, key: Any, value: Any) -> Any:
        powers = np.exp(np.einsum("id,jd->ij", query, key, optimize=False) / np.sqrt(query.shape[-1]))
        return np.einsum("ij,jd,i->id", powers, value, 1 / np.einsum("ij->i", powers))

    return {
        "linear": lambda x, weight, bias: np.einsum("tk,nk->tn", x, weight) + bias,
        "head": head,
        "softmax": lambda scores: np.einsum(
            "...j,...->...j", p := np.exp(scores - scores.max(-1, keepdims=True)), 1 / np.einsum("...j->...", p)
        ),
    }


def batched() -> dict[str, Any]:
    """All heads at once, in arrays of three axes."""

    def attention(x: Any, weights: Any, num_heads: int) -> Any:
        def dense(x: Any, name: str) -> Any:
            return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

        q, k, v = (
            dense(x, f"attention.self.{one}").reshape(len(x), num_heads, -1) for one in ("query", "key", "value")
        )
        q, k, v = (one.transpose(1, 0, 2) for one in (q, k, v))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        context = powers / powers.sum(axis=-1, keepdims=True) @ v
        return dense(context.transpose(1, 0, 2).reshape(x.shape), "attention.output.dense")

    return {"attention": attention, "gelu": lambda x: x - x * 0.5 * (1 - erf(x / 2**0.5))}


def float32() -> dict[str, Any]:
    """Each step is rounded to float32, also what is between them."""

    def rounded(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: np.asarray(function(*arguments), np.float32)

    names = functions()
    rounding = {name: rounded(names[name]) for name in RIGHT if name not in ("tokenize", "bert", "gelu", "batch")}

    def gelu(x: Any) -> Any:
        inner = erf(np.float32(x) / np.sqrt(np.float32(2))).astype(np.float32)
        return np.float32(0.5) * x * (np.float32(1) + inner)

    return {**rounding, "gelu": gelu}


def tensors() -> dict[str, Any]:
    """Functions of torch, which take and give tensors."""
    from torch.nn import functional

    def tensor(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: function(*(torch.tensor(x) if isinstance(x, np.ndarray) else x for x in given))

    return {
        "layer_norm": tensor(lambda x, weight, bias, eps: functional.layer_norm(x, x.shape[-1:], weight, bias, eps)),
        "linear": tensor(functional.linear),
        "softmax": tensor(lambda scores: scores.softmax(-1)),
        "gelu": tensor(functional.gelu),
        "head": tensor(lambda q, k, v: functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]),
    }


@pytest.mark.parametrize("style", [loops, einsum, batched, float32, tensors])
def test_right_solutions_in_other_styles(style: Callable[[], dict[str, Any]]) -> None:
    names, changed = functions(), style()
    names.update(changed)
    for exercise in [*changed, *([] if style is tensors else ["layer", "bert"])]:
        found = minibert.learn.check(exercise, names[exercise])
        assert found.status == "right", found
        assert not found.text, found


def test_a_function_may_change_the_dict_of_weights() -> None:
    names = functions()

    def attention(x: Any, weights: Any, num_heads: int) -> Any:
        result = names["attention"](x, weights, num_heads)
        weights.clear()
        return result

    for _ in range(2):
        assert minibert.learn.check("attention", attention).right


def test_a_teacher_chooses_model_and_text(tmp_path: Path) -> None:
    names, options = functions(), {"model": str(small_model(tmp_path)), "text": "The bank. THE BANK!"}
    for exercise in ("tokenize", "attention", "bert"):
        assert minibert.learn.check(exercise, names[exercise], **options).right, exercise
    with pytest.raises(ValueError, match="text=' '"):
        minibert.learn.check("gelu", names["gelu"], text=" ")
    with pytest.raises(ValueError, match="softmax"):
        minibert.learn.check("soft_max", names["softmax"])
    with pytest.raises(ValueError, match="hidden_act='relu'"):
        minibert.learn.check("gelu", names["gelu"], model=small_model(tmp_path / "relu", hidden_act="relu"))
