"""`explain`: each printed result computed again from the printed numbers; the width of the lines; bad input."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from minibert import BertModel, BertTokenizer
from minibert.cli import main
from minibert.inside.explain import Explanation, explain
from minibert.trace.layout import Layout
from tests.support.checkpoints import random_checkpoint

TEXT = "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."


class Printed(NamedTuple):
    """A step as it is printed: the numbers before the results by label, and the results by label."""

    symbol: str
    given: dict[str, list[float]]
    results: dict[str, list[float]]


def steps_of(explanation: Explanation) -> list[Printed]:
    """Return the numbers of each step, which are printed with 6 digits."""
    result = []
    for number, one in enumerate(explanation.steps, 1):
        assert one.number == number
        given, results = (
            {line.label: list(line.numbers) for line in one.lines if line.last == last} for last in (False, True)
        )
        result.append(Printed(one.step.entry.symbol, given, results))
    return result


def recomputed(function: Callable[..., float], given: list[float], printed: float) -> None:
    """Compare a result with the function of the numbers before it, which are float32."""
    assert function(*given) == pytest.approx(printed, rel=2e-5, abs=5e-6)


def sum_of_products(step: Printed, *, divided: bool = False) -> None:
    """Check the products, then the sum with what is added to it."""
    (_, x), (_, y) = list(step.given.items())[:2]
    for a, b, product in zip(x, y, step.given["products"], strict=True):
        recomputed(lambda a, b: a * b, [a, b], product)
    terms = [*step.given["products"]]
    terms += [
        number for label, numbers in step.given.items() if "other" in label or label == "b[0]" for number in numbers
    ]
    (result,) = next(iter(step.results.values()))
    if divided:
        bias = step.given.get("bias", [0.0])
        recomputed(lambda root, bias, *given: sum(given) / root + bias, [*step.given["sqrt(D)"], *bias, *terms], result)
    else:
        recomputed(lambda *given: sum(given), terms, result)
    assert list(step.results.values())[1][0] == result


def added(step: Printed) -> None:
    (results,) = step.results.values()
    for *parts, result in zip(*step.given.values(), results, strict=True):
        recomputed(lambda *given: sum(given), list(parts), result)


def multiplied(step: Printed) -> None:
    words, (factor,), results = *step.given.values(), *step.results.values()
    for number, result in zip(words, results, strict=True):
        recomputed(lambda x, y: x * y, [number, factor], result)


def _zeros(step: Printed) -> list[list[float]]:
    """Return the bias that an RMSNorm does not have."""
    return [] if "bias" in step.given else [[0.0] * 4]


def normalised(step: Printed) -> None:
    (x, *between, (eps,), weight, bias), (results,) = [*step.given.values(), *_zeros(step)], step.results.values()
    (mean,), (variance,) = between if len(between) == 2 else ([0.0], *between)
    for number, w, b, result in zip(x, weight, bias, results, strict=True):
        recomputed(
            lambda x, m, v, e, w, b: (x - m) / math.sqrt(v + e) * w + b, [number, mean, variance, eps, w, b], result
        )


def weighed(step: Printed) -> None:
    scores, (largest,), powers, (total,) = step.given.values()
    (probs,) = step.results.values()
    for score, power, prob in zip(scores, powers, probs, strict=True):
        recomputed(lambda s, m: math.exp(s - m), [score, largest], power)
        recomputed(lambda p, t: p / t, [power, total], prob)


def activated(step: Printed) -> None:
    """Check an activation and the numbers on the way to it, each of the row of numbers before."""
    (label, results), given = *step.results.items(), [*step.given.values()]
    functions: list[Callable[..., float]] = {
        "max(x, 0)": [lambda x: max(x, 0.0)],
        "tanh(x)": [math.tanh],
        "x / (1 + exp(-x))": [lambda x: math.exp(-x), lambda x, power: x / (1 + power)],
        "x / 2 * (1 + tanh)": [
            lambda x: x + 0.044715 * x**3,
            lambda x, cubic: math.tanh(math.sqrt(2 / math.pi) * cubic),
            lambda x, cubic, tanh: x / 2 * (1 + tanh),
        ],
    }.get(label, [lambda x: math.erf(x / math.sqrt(2)), lambda x, erf: x / 2 * (1 + erf)])
    for *row, result in zip(*given, results, strict=True):
        numbers = [*row, result]
        for n, function in enumerate(functions, 1):
            recomputed(function, numbers[:n], numbers[n])


def turned(step: Printed) -> None:
    (a, b), (cos, sin), (first, second) = step.given.values()
    recomputed(lambda a, b, cos, sin: a * cos - b * sin, [a, b, cos, sin], first)
    recomputed(lambda a, b, cos, sin: b * cos + a * sin, [a, b, cos, sin], second)
    (results,) = step.results.values()
    assert results[0] == pytest.approx(first, rel=1e-5)


def gated(step: Printed) -> None:
    *_, acted, up = step.given.values()
    (results,) = step.results.values()
    for *pair, result in zip(acted, up, results, strict=True):
        recomputed(lambda a, b: a * b, list(pair), result)


def looked_up(step: Printed, model: BertModel) -> None:
    tables = {
        "words": model.weights.word_embeddings,
        "types": model.weights.token_type_embeddings,
        "positions": model.weights.position_embeddings,
    }
    (row,) = step.given["row of the table"]
    np.testing.assert_allclose(tables[step.symbol][int(row), :4], step.results[step.symbol], rtol=1e-5, atol=1e-7)


def check(explanation: Explanation, model: Any) -> None:
    """Recompute each step; the results are those of the trace."""
    printed = steps_of(explanation)
    layout, last = Layout.of(explanation.trace.sizes), model.config.num_hidden_layers - 1 in explanation.layers
    entries = [
        *layout.embeddings,
        *chain(*map(layout.layer, explanation.layers)),
        *(layout.final + layout.pooler) * last,
    ]
    assert [step.symbol for step in printed] == [entry.symbol for entry in entries]
    kinds: dict[str, Callable[[Printed], None]] = {
        **dict.fromkeys(("embeddings_sum", "attention_sum", "output_sum"), added),
        **dict.fromkeys(("embeddings", "attention", "output"), normalised),
        **dict.fromkeys(("words", "types", "positions"), lambda step: looked_up(step, model)),
        "scores": lambda step: sum_of_products(step, divided=True),
        "probs": weighed,
        "intermediate": activated,
        "pooler": activated,
        **dict.fromkeys(("rotated_query", "rotated_key"), turned),
    }
    if model.config.family.is_gated:
        kinds["intermediate"] = gated
    if model.config.family.forward == "norm_first":
        kinds |= {"attention": added, "output": added}
        kinds |= dict.fromkeys(("normed", "attention_normed", "final"), normalised)
    if not model.config.family.has_embeddings_norm:
        kinds["embeddings"] = multiplied if model.config.token_dropout else added
    for step, numbers in zip(printed, explanation.steps, strict=True):
        kinds.get(step.symbol, sum_of_products)(step)
        array = explanation.trace[numbers.step.entry.path.format(i=numbers.layer)][0]
        assert array.shape == numbers.shape
        where = (0, explanation.token) if array.ndim == 3 else () if array.ndim == 1 else explanation.token
        results = list(step.results.values())[-1]
        np.testing.assert_allclose(results, array[where][: len(results)], rtol=1e-5, atol=1e-12)


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line)


@pytest.mark.parametrize(("token", "layers"), [(None, 0), (19, [2]), (-1, range(6)), (10, 5), (0, [0, 5])])
def test_each_printed_step_can_be_computed_again(
    minilm: BertModel, tokenizer: BertTokenizer, token: int | None, layers: Any
) -> None:
    explanation = explain(minilm, tokenizer, TEXT, token=token, layers=layers if isinstance(layers, int) else [*layers])
    check(explanation, minilm)
    assert max(map(columns, str(explanation).splitlines())) <= 80


@pytest.mark.parametrize("hidden_act", ["relu", "gelu", "gelu_new", "silu", "tanh"])
def test_other_models(hidden_act: str, tmp_path: Path) -> None:
    """One token; heads of one feature; each activation; a model without a pooler; unknown words."""
    sizes = {"hidden_size": 6, "num_attention_heads": 6, "num_hidden_layers": 2, "intermediate_size": 3}
    folder = random_checkpoint(tmp_path / "model", hidden_act=hidden_act, type_vocab_size=1, **sizes)
    tokenizer = BertTokenizer.from_pretrained(folder)
    for pooler in (True, False):
        model = BertModel.from_pretrained(folder, backend="numpy", add_pooling_layer=pooler)
        for text in ("the cat", "", "\u2603 \u4e2d\u6587 qqq"):
            check(explain(model, tokenizer, text, layers=[0, 1]), model)
        assert explain(model, tokenizer, "a", layers=[]).layers == []


@pytest.mark.parametrize("text", ["日本語" * 60, "x" * 400, "\u202e\x1b[31m \x00 \u05d0\u05d1", "\U0001f600" * 90])
def test_no_line_is_wider_than_80_columns(small_folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", text, "-m", str(small_folder), "--backend", "numpy", "--all"]) == 0
    out, _ = capsys.readouterr()
    assert max(map(columns, out.splitlines())) <= 80
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e]", out)


def test_the_options_of_the_command(small_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["explain", "the cat", "-m", str(small_folder), "--backend", "numpy"]
    depth = BertModel.from_pretrained(small_folder).config.num_hidden_layers
    for options, layers, word in (
        ([], 1, "LAYER 0"),
        (["--layer", "-1"], 1, f"LAYER {depth - 1} of"),
        (["--all"], depth, "LAYER"),
        (["--token", "-1"], 1, "token 3"),
    ):
        assert main([*common, *options]) == 0
        out = capsys.readouterr().out
        assert len(re.findall("^LAYER", out, re.MULTILINE)) == layers
        assert word in out
    for options in (["--token", "4"], ["--layer", str(depth)], ["--token", "x"]):
        assert main([*common, *options]) == 1
        assert options[0][2:] in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*common, "--layer", "0", "--all"])


def test_tokens_and_bad_arguments(minilm: BertModel, tokenizer: BertTokenizer) -> None:
    assert explain(minilm, tokenizer, TEXT, token="bank", layers=[]).token == 6
    assert explain(minilm, tokenizer, TEXT, token="Mississippi", layers=[]).token == 17
    for arguments, options, error, message in (
        ((minilm, tokenizer, 3), {}, TypeError, "text"),
        ((minilm, None, "a"), {}, TypeError, "BertTokenizer"),
        (("x", tokenizer, "a"), {}, TypeError, "model"),
        ((minilm, tokenizer, "a"), {"token": 9}, ValueError, "token=9"),
        ((minilm, tokenizer, "a"), {"token": "shore"}, ValueError, "token='shore'"),
        ((minilm, tokenizer, "a"), {"layers": 6}, ValueError, "layers=6"),
        ((minilm, tokenizer, "a"), {"layers": "all"}, TypeError, "layers="),
    ):
        with pytest.raises(error, match=message):
            explain(*arguments, **options)
