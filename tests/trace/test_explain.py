"""`explain`: each printed result computed again from the printed numbers; the width of the lines; bad input."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from minibert import BertForMaskedLM, BertModel, BertTokenizer
from minibert.cli import main
from minibert.inside.explain import Explanation, explain
from minibert.trace.names import EMBEDDINGS, LAYER, POOLER
from tests.support.checkpoints import random_checkpoint
from tests.support.sentence_heads import model_folder

TEXT = "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."


class Printed(NamedTuple):
    """A step as it is printed: the numbers before the results by label, and the results by label."""

    symbol: str
    given: dict[str, list[float]]
    results: dict[str, list[float]]


def parse(text: str) -> list[Printed]:
    """Read the steps from the lines alone."""
    steps: list[Printed] = []
    for line in text.splitlines():
        if head := re.match(r"^ ?(\d+)  (\w+) = ", line):
            steps.append(Printed(head[2], {}, {}))
            assert int(head[1]) == len(steps)
        elif steps and re.match(r"^     [ =] \S", line):
            numbers = [float(number) for number in line[28:].split()]
            (steps[-1].results if line[5] == "=" else steps[-1].given)[line[7:28].strip()] = numbers
    return steps


def half_a_digit(number: float) -> float:
    """The most that rounding to 6 digits changes."""
    return 0.5 * 10.0 ** (math.floor(math.log10(abs(number))) - 5) if number else 0.0


def recomputed(function: Callable[..., float], given: list[float], printed: float) -> None:
    """Compare a printed result with the function of the printed numbers, whose last digits are rounded."""
    value = function(*given)
    allowed = half_a_digit(printed) + 2e-6 * abs(printed) + 1e-7
    for i, number in enumerate(given):
        moved = [*given[:i], number + half_a_digit(number), *given[i + 1 :]]
        allowed += abs(function(*moved) - value)
    assert value == pytest.approx(printed, abs=allowed, rel=0)
    assert allowed < 1e-3 * max(1.0, abs(printed))


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
        recomputed(lambda root, *given: sum(given) / root, [*step.given["sqrt(D)"], *terms], result)
    else:
        recomputed(lambda *given: sum(given), terms, result)
    assert list(step.results.values())[1][0] == result


def added(step: Printed) -> None:
    (results,) = step.results.values()
    for *parts, result in zip(*step.given.values(), results, strict=True):
        recomputed(lambda *given: sum(given), list(parts), result)


def normalised(step: Printed) -> None:
    (x, (mean,), (variance,), (eps,), weight, bias), (results,) = step.given.values(), step.results.values()
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
    ((label, results),) = step.results.items()
    (first, *others) = step.given.values()
    plain = {"max(x, 0)": lambda x: max(x, 0.0), "tanh(x)": math.tanh}
    if label in plain:
        for x, result in zip(first, results, strict=True):
            recomputed(plain[label], [x], result)
        return
    if label == "x / (1 + exp(-x))":
        for x, power, result in zip(first, *others, results, strict=True):
            recomputed(lambda x: math.exp(-x), [x], power)
            recomputed(lambda x, p: x / (1 + p), [x, power], result)
        return
    if label == "x / 2 * (1 + tanh)":
        for x, cubic, tanh, result in zip(first, *others, results, strict=True):
            recomputed(lambda x: x + 0.044715 * x**3, [x], cubic)
            recomputed(lambda c: math.tanh(math.sqrt(2 / math.pi) * c), [cubic], tanh)
            recomputed(lambda x, t: x / 2 * (1 + t), [x, tanh], result)
        return
    (second,) = others
    for x, erf, result in zip(first, second, results, strict=True):
        if "erf(x / sqrt(2))" in step.given:
            recomputed(lambda x: math.erf(x / math.sqrt(2)), [x], erf)
            recomputed(lambda x, e: x / 2 * (1 + e), [x, erf], result)
        else:
            raise AssertionError(step.given)


def looked_up(step: Printed, model: BertModel) -> None:
    tables = {
        "words": model.weights.word_embeddings,
        "types": model.weights.token_type_embeddings,
        "positions": model.weights.position_embeddings,
    }
    (row,) = step.given["row of the table"]
    np.testing.assert_allclose(tables[step.symbol][int(row), :4], step.results[step.symbol], rtol=1e-5, atol=1e-7)


def check(explanation: Explanation, model: Any) -> None:
    """Recompute each step of the printed text; the results are those of the trace."""
    printed = parse(str(explanation))
    layers = [entry.symbol for entry in LAYER] * len(explanation.layers)
    last = model.config.num_hidden_layers - 1 in explanation.layers and model.weights.pooler is not None
    expected = [entry.symbol for entry in EMBEDDINGS] + layers + [entry.symbol for entry in POOLER] * last
    assert [step.symbol for step in printed] == expected
    kinds: dict[str, Callable[[Printed], None]] = {
        **dict.fromkeys(("query", "key", "value", "context", "pooler_dense"), sum_of_products),
        **dict.fromkeys(("attention_dense", "intermediate_dense", "output_dense"), sum_of_products),
        **dict.fromkeys(("embeddings_sum", "attention_sum", "output_sum"), added),
        **dict.fromkeys(("embeddings", "attention", "output"), normalised),
        "scores": lambda step: sum_of_products(step, divided=True),
        "probs": weighed,
        "intermediate": activated,
        "pooler": lambda step: (
            [
                recomputed(math.tanh, [x], y)
                for x, y in zip(step.given["pooler_dense"], step.results["tanh of each"], strict=True)
            ]
            and None
        ),
        **dict.fromkeys(("words", "types", "positions"), lambda step: looked_up(step, model)),
    }
    for step, numbers in zip(printed, explanation.steps, strict=True):
        kinds[step.symbol](step)
        layer = numbers.layer
        array = explanation.trace[numbers.step.entry.path.format(i=layer)][0]
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


def test_other_models(tmp_path: Path) -> None:
    """One token; heads of one feature; another activation; a model without a pooler; a model with a head."""
    sizes = {"hidden_size": 6, "num_attention_heads": 6, "num_hidden_layers": 2, "intermediate_size": 3}
    folder = random_checkpoint(tmp_path / "model", hidden_act="relu", **sizes)
    tokenizer = BertTokenizer.from_pretrained(folder)
    for model in (
        BertModel.from_pretrained(folder, backend="numpy"),
        BertModel.from_pretrained(folder, backend="numpy", add_pooling_layer=False),
    ):
        check(explain(model, tokenizer, "the cat", layers=[0, 1]), model)
        check(explain(model, tokenizer, "", layers=1), model)
        assert explain(model, tokenizer, "a", layers=[]).layers == []


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "silu", "tanh"])
def test_activations(hidden_act: str, tmp_path: Path) -> None:
    """And one layer, one row of token types, a text of one token, unknown words."""
    folder = random_checkpoint(tmp_path / "model", num_hidden_layers=1, type_vocab_size=1, hidden_act=hidden_act)
    model, tokenizer = BertModel.from_pretrained(folder, backend="numpy"), BertTokenizer.from_pretrained(folder)
    for text in ("the cat", "", "\u2603 \u4e2d\u6587 qqq"):
        check(explain(model, tokenizer, text), model)


def test_a_token_by_its_word(minilm: BertModel, tokenizer: BertTokenizer) -> None:
    assert explain(minilm, tokenizer, TEXT, token="bank", layers=[]).token == 6
    assert explain(minilm, tokenizer, TEXT, token="Mississippi", layers=[]).token == 17
    with pytest.raises(ValueError, match=r"token='shore'; the text has no such token. Its tokens are \['\[CLS\]'"):
        explain(minilm, tokenizer, TEXT, token="shore")


def test_a_token_and_its_number_stay_in_one_line(minilm: BertModel, tokenizer: BertTokenizer) -> None:
    explanation = explain(minilm, tokenizer, TEXT, layers=[])
    lines = str(explanation).split("\n\n")[0].splitlines()[2:]
    shown = [part for line in lines for part in line.split("  ")]
    assert shown == [f"{i} {token}" for i, token in enumerate(explanation.tokens)]


def test_the_lines_of_code_are_there(minilm: BertModel, tokenizer: BertTokenizer) -> None:
    import minibert.bert

    folder = Path(minibert.bert.__file__).parent
    for one in explain(minilm, tokenizer, "a").steps:
        for file, number, text in one.step.lines:
            assert (folder / file).read_text(encoding="utf-8").splitlines()[number - 1].strip() == text


@pytest.mark.parametrize(
    "text", ["日本語" * 60, "x" * 400, "\u202e\x1b[31m \x00 \u05d0\u05d1", "a " * 2000, "\U0001f600" * 90]
)
def test_no_line_is_wider_than_80_columns(small_folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", text, "-m", str(small_folder), "--backend", "numpy", "--all"]) == 0
    out, err = capsys.readouterr()
    assert max(map(columns, out.splitlines())) <= 80
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e]", out)
    assert ("were cut" in err or "was cut" in err) == (len(text) > 1000)


def test_the_options_of_the_command(small_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["explain", "the cat", "-m", str(small_folder), "--backend", "numpy"]
    depth = BertModel.from_pretrained(small_folder).config.num_hidden_layers
    shown = []
    for options in ([], ["--layer", "-1"], ["--all"], ["--token", "-1"]):
        assert main([*common, *options]) == 0
        shown.append(capsys.readouterr().out)
    assert [len(re.findall("^LAYER", out, re.MULTILINE)) for out in shown] == [1, 1, depth, 1]
    assert f"LAYER {depth - 1} of" in shown[1]
    assert "token 3" in shown[3]
    for options, message in (
        (["--token", "4"], "token=4; expected an int, -4 to 3"),
        (["--layer", str(depth)], f"layers={depth}; expected an int"),
        (["--token", "x"], "the text has no such token"),
    ):
        assert main([*common, *options]) == 1
        assert message in capsys.readouterr().err
    for options in (["--layer", "0", "--all"], ["--layer", "x"]):
        with pytest.raises(SystemExit, match="2"):
            main([*common, *options])


def test_bad_arguments(minilm: BertModel, tokenizer: BertTokenizer) -> None:
    for arguments, options, error, message in (
        ((minilm, tokenizer, 3), {}, TypeError, "expected one text, a str"),
        ((minilm, None, "a"), {}, TypeError, "expected a BertTokenizer"),
        (("x", tokenizer, "a"), {}, TypeError, "explain was given a str as the model"),
        ((minilm, tokenizer, "a"), {"token": 9}, ValueError, "token=9"),
        ((minilm, tokenizer, "a"), {"layers": 6}, ValueError, "layers=6"),
        ((minilm, tokenizer, "a"), {"layers": "all"}, TypeError, "layers='a'"),
    ):
        with pytest.raises(error, match=message):
            explain(*arguments, **options)


def test_a_model_with_a_head(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", "BertForMaskedLM")
    model = BertForMaskedLM.from_pretrained(folder, backend="numpy")
    check(explain(model, BertTokenizer.from_pretrained(folder), "the cat", layers=0), model)
