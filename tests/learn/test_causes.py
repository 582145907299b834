"""The causes that `check` names: known mistakes by their names, and never a false cause for an unknown one."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from minibert.learn.checking import _OTHERS, _lesson, judge
from minibert.learn.lesson import Lesson
from minibert.learn.right import MISREADINGS
from minibert.learn.student import Outcome, page
from minibert.parity.diagnosis import MISTAKES, simulate
from minibert.parity.truth import rms
from tests.learn.test_course import checked

LAYER = "encoder.layer.0"
SELF = f"{LAYER}.attention.self"
PROJECTED = [f"{SELF}.{name}" for name in ("query", "key", "value")]
ATTENDED = [f"{SELF}.{name}" for name in ("scores", "probs")] + [SELF]
EMBEDDED = [f"embeddings.{name}_embeddings" for name in ("word", "token_type", "position")]

# The names that a step computes; None means all of the model.
COMPUTED: dict[str, list[str] | None] = {
    "embed": [*EMBEDDED, "embeddings.LayerNorm.input"],
    "layer_norm": ["embeddings"],
    "linear": PROJECTED[:1],
    "softmax": [f"{SELF}.probs"],
    "head": ATTENDED,
    "attention": [*PROJECTED, *ATTENDED, f"{LAYER}.attention.output.dense"],
    "gelu": [f"{LAYER}.intermediate"],
    "layer": [
        *[*PROJECTED, *ATTENDED],
        *[f"{LAYER}.{name}" for name in ("attention.output.dense", "attention.output.LayerNorm.input", "attention")],
        *[
            f"{LAYER}.{name}"
            for name in ("intermediate.dense", "intermediate", "output.dense", "output.LayerNorm.input")
        ],
        LAYER,
    ],
    "bert": None,
}


def fitting() -> Iterator[tuple[str, str]]:
    """Yield each step with each mistake of the catalogue that can be made in it."""
    model = _lesson().model
    known = {
        id: one for id, one in MISTAKES.items() if one.is_for(model) and not one.dump and not id.startswith(_OTHERS)
    }
    for step, names in COMPUTED.items():
        for id, mistake in known.items():
            if names is None or (mistake.inputs and step == "embed") or any(map(mistake.acts_at, names)):
                yield step, id


def wrong_values(lesson: Lesson, step: str, id: str) -> list[list[Any]]:
    """Return the values of all cases of a step, of which those of the model have a mistake."""
    names, cases = COMPUTED[step], lesson.cases[step]
    right = [lesson.right(step, i) for i in range(len(cases))]
    if names is None:
        made = simulate(lesson.model, lesson.inputs, id, record=["hidden_states.*", "sentence_embedding"])
        return [[value[0] for value in made.values()], *right[1:]]
    mistake = MISTAKES[id].only(names) if MISTAKES[id].parts else MISTAKES[id]
    value = simulate(lesson.model, lesson.inputs, mistake, record=[cases[0].name])[cases[0].name][0]
    parts = np.split(value, lesson.config["num_attention_heads"], axis=1) if step == "head" else [value]
    return [*([part] for part in parts), *right[len(parts) :]]


def named_first(pairs: list[tuple[str, str]]) -> None:
    """Check that a mistake that changes the numbers is found, and named first in at least 90 percent of the cases."""
    lesson = _lesson()
    first: dict[tuple[str, str], bool] = {}
    for step, id in pairs:
        values = wrong_values(lesson, step, id)
        changed = any(
            rms(one - two) > 1e-5 * rms(two) for one, two in zip(values[0], lesson.right(step, 0), strict=True)
        )
        found = judge(lesson, step, Outcome(values=values))
        assert found.status == "wrong" or not changed, (step, id)
        if found.status == "wrong":
            assert not found.mistakes or id in found.mistakes, (step, id, found.mistakes)
            first[step, id] = found.mistakes[:1] == (id,)
    assert sum(first.values()) >= 0.9 * len(first), [pair for pair, named in first.items() if not named]


def test_each_known_mistake_has_a_hint() -> None:
    hints = page("hints.md")
    assert [id for _, id in fitting() if id not in hints and id.split(".")[0] not in hints] == []
    assert {f"T.{wrong}" for wrong in MISREADINGS} <= {id for id, hint in hints.items() if " => " in hint}


def test_known_mistakes_are_named_first() -> None:
    named_first(random.Random(0).sample([*fitting()], 15))


@pytest.mark.slow
def test_all_known_mistakes_are_named_first() -> None:
    named_first([*fitting()])


# --- code of students -------------------------------------------------------------------------------------------------

CENTERED = "    centered = x - x.mean(axis=-1, keepdims=True)\n"
RESULT = "centered / np.sqrt(variance + eps) * weight + bias"
POWERS = "np.exp(scores - scores.max(axis=-1, keepdims=True))"
WHOLE = "return np.exp(scores) / np.exp(scores).sum()"
MARK = 'is_mark = letter in SYMBOLS or unicodedata.category(letter).startswith("P")'

# Step, code, what is written instead, and the cause: "" if it is not known.
WRITTEN: list[tuple[str, str, str, str]] = [
    ("tokenize", "        end = len(word)\n", "        end = start + 1\n", "T.shortest"),
    ("tokenize", '"##" if start > 0 else ""', '""', "T.no-mark"),
    ("tokenize", '"##" if start > 0 else ""', '"##"', "T.mark-on-all"),
    ("tokenize", 'return ["[UNK]"]', 'return [*pieces, "[UNK]"]', "T.rest-unknown"),
    ("tokenize", 'return ["[UNK]"]', "return []", "T.unknown-dropped"),
    ("tokenize", "text.lower()", "text", "T.case"),
    ("tokenize", "if unicodedata.category(letter) != ", "if '' != ", "T.accents"),
    ("tokenize", MARK, "is_mark = False", "T.punctuation"),
    ("tokenize", 'f" {letter} "', '" "', "T.punctuation-dropped"),
    ("tokenize", MARK, "is_mark = letter in '!\"#$%&\\'()*+,-./:;<=>?@[\\\\]^_`{|}~'", "T.punctuation-ascii"),
    ("tokenize", "letter in SYMBOLS or ", "", "T.punctuation-category"),
    ("tokenize", '[*tokens, "[SEP]"]', "tokens[1:]", "T.special"),
    ("tokenize", '[*tokens, "[SEP]"]', "tokens", ""),
    ("tokenize", '["[CLS]"]', '["[SEP]"]', ""),
    ("tokenize", "spaced.split()", 'spaced.split(" ")', ""),
    ("tokenize", "        start = end\n", "        start = end\n        break\n", ""),
    ("embed", "positions[: len(token_ids)]", "positions[token_types]", ""),
    ("embed", "+ types[token_types]", "- types[token_types]", ""),
    ("embed", "words[token_ids]", "words[token_ids] * 2", ""),
    ("embed", "types[token_types]", "types[token_types].mean(axis=-1, keepdims=True)", ""),
    ("embed", "words[token_ids] + positions[: len(token_ids)] +", "words[token_ids] +", "E4.positions"),
    ("layer_norm", RESULT, "centered / (np.sqrt(variance) + eps) * weight + bias", "N2.outside"),
    ("layer_norm", RESULT, "centered / np.sqrt(variance + 1e-12) * weight + bias", "N1.1e-12"),
    ("layer_norm", RESULT, "centered / np.sqrt(variance) * weight + bias", "N1.zero"),
    ("layer_norm", CENTERED, "    centered = x - np.median(x, axis=-1, keepdims=True)\n", ""),
    ("layer_norm", RESULT, "centered / (variance + eps) * weight + bias", "layer_norm.no-root"),
    ("layer_norm", RESULT, "(x - x.mean()) / np.sqrt(x.var() + eps) * weight + bias", "layer_norm.whole"),
    ("layer_norm", RESULT, "centered / np.sqrt(variance + eps) * weight * weight + bias", ""),
    ("layer_norm", RESULT, "centered / np.sqrt(x.var() + eps) * weight + bias", ""),
    ("layer_norm", RESULT, "(centered + bias) / np.sqrt(variance + eps) * weight", ""),
    ("layer_norm", CENTERED, "    centered = x - x.mean()\n", ""),
    ("layer_norm", "(centered**2).mean(axis=-1, keepdims=True)", "(centered**2).mean()", ""),
    ("layer_norm", "(centered**2)", "abs(centered)", ""),
    ("layer_norm", CENTERED, "    centered = x - x.mean(axis=0)\n", ""),
    ("linear", "weight.T + bias", "weight.T * bias", ""),
    ("linear", "weight.T + bias", "weight.T - bias", ""),
    ("linear", "x @ weight.T", "abs(x) @ weight.T", ""),
    ("softmax", POWERS, "2.0 ** (scores - scores.max(axis=-1, keepdims=True))", ""),
    ("softmax", POWERS, "np.exp(scores.max(axis=-1, keepdims=True) - scores)", ""),
    ("softmax", "powers / powers.sum(axis=-1, keepdims=True)", "powers / powers.sum()", ""),
    ("softmax", "powers / powers.sum(axis=-1, keepdims=True)", "powers", ""),
    ("softmax", POWERS, "np.exp(scores)", "A9.no-shift"),
    ("softmax", "return powers / powers.sum(axis=-1, keepdims=True)", WHOLE, "softmax.whole"),
    ("softmax", "powers.sum(axis=-1, keepdims=True)", "powers.sum(axis=-2, keepdims=True)", ""),
    ("softmax", "powers.sum(axis=-1, keepdims=True)", "powers.max(axis=-1, keepdims=True)", ""),
    ("head", "query @ key.T", "key @ query.T", "head.swapped"),
    ("head", "math.sqrt(query.shape[1])", "math.sqrt(len(query))", "head.tokens"),
    ("head", "math.sqrt(query.shape[1])", "math.sqrt(1 + query.shape[1])", ""),
    ("head", "softmax(scores) @ value", "softmax(scores) @ key", ""),
    ("head", "softmax(scores) @ value", "softmax(scores.T) @ query", ""),
    ("head", "math.sqrt(query.shape[1])", "len(query)", ""),
    ("head", "math.sqrt(query.shape[1])", "query.shape[1] ** (1 / 3)", ""),
    ("head", "softmax(scores) @ value", "softmax(scores) @ value * 2", ""),
    ("head", "softmax(scores) @", "scores @", ""),
    ("head", "softmax(scores) @", "softmax(softmax(scores)) @", ""),
    ("attention", "np.concatenate(heads, axis=1)", "np.concatenate(heads[::-1], axis=1)", ""),
    ("attention", "[head(q, k, v)", "[v", ""),
    ("attention", "num_heads, axis=1", "1, axis=1", "attention.one-head"),
    (
        "attention",
        "return dense(np.concatenate(heads, axis=1), ",
        "return (lambda x, _: x)(np.concatenate(heads, axis=1), ",
        "attention.no-dense",
    ),
    ("attention", "head(q, k, v) for", "head(q, k, k) for", "A4.key-value"),  # in attention.self.value alone
    ("attention", "num_heads, axis=1", "2 * num_heads, axis=1", ""),
    ("attention", "return dense(np.concatenate", "return x + dense(np.concatenate", ""),
    ("gelu", "0.5 * x *", "x *", ""),
    ("gelu", "erf(x / math.sqrt(2))", "erf(x)", "gelu.no-root"),
    ("gelu", "erf(x / math.sqrt(2))", "erf(x / 2)", ""),
    ("gelu", "0.5 * x *", "0.5 *", ""),
    ("gelu", "(1 + erf", "(1 - erf", ""),
    (
        "layer",
        "norm(x + attention(x, weights, num_heads),",
        "norm(attention(x, weights, num_heads),",
        "C1.no-attention",
    ),
    ("layer", "gelu(linear(x", "np.tanh(linear(x", "G3.tanh"),
    ("layer", "gelu(linear(x", "abs(linear(x", ""),
    ("bert", "states[-1].mean(axis=0)", "states[-1].max(axis=0)", "P2.max"),
    ("bert", "mean / np.sqrt((mean**2).sum())", "mean", "P3.raw"),
    ("bert", "mean / np.sqrt((mean**2).sum())", "mean / mean.sum()", ""),
    ("bert", "mean / np.sqrt((mean**2).sum())", "mean / abs(mean).sum()", ""),
    (
        "layer",
        "return norm(x + linear(",
        "return norm(linear(x, weights['attention.self.query.weight'], 0) + linear(",
        "",
    ),
    ("bert", "layer_weights(weights, i), config", "layer_weights(weights, 0), config", "W3.first"),
]


# A third of them by default, because each takes up to a second.
PARAMETERS = [pytest.param(*one, marks=[pytest.mark.slow] * (i % 3 > 0)) for i, one in enumerate(WRITTEN)]


@pytest.mark.parametrize(("step", "old", "new", "cause"), PARAMETERS)
def test_code_with_a_mistake(step: str, old: str, new: str, cause: str) -> None:
    found = checked(step, (old, new))
    assert found.status == "wrong", found
    assert cause in found.mistakes or (not cause and not found.mistakes), found
    assert bool(found.hint) == bool(cause)
    assert found.cause or not cause
    assert sum(not one[-1] for one in WRITTEN) >= 30


def test_numbers_with_the_error_of_rounding_are_not_called_wrong() -> None:
    found = checked("embed", ("types[token_types]", "types[0]"))
    tokens = _lesson().cases["embed"][0].arguments[1]
    first = re.match(r"result\[(\d+), ", found.text)
    assert first, found
    assert int(first[1]) == list(tokens).index(1)


def test_what_wrong_numbers_have_in_common_is_said() -> None:
    for new, said in {"0 * x *": "each is 0", "x *": "each is 2 times the right number"}.items():
        assert f"; {said}." in checked("gelu", ("0.5 * x *", new)).text


def test_a_right_function_that_calls_a_wrong_one() -> None:
    found = checked("layer", ("0.5 * x *", "x *"))
    assert found.right
    assert "calls a function of yours" in found.text
