"""The known mistakes of BERT ports, by id; simulation.py makes the dump of a port with such mistakes.

An id is a kind of mistake and a variant. ``"G1.tanh@3"`` is the same mistake in layer 3 only, and
``"G1.tanh+N1.1e-5"`` is two mistakes at once. The kinds: G activation, N LayerNorm, A attention, E inputs and
embeddings, T ids, W weights, C residual and order, D dropout and precision, K heads, P the vector of a text, H names of
states, R rotary positions, F the gate.

`_ROWS` has all that a mistake computes, and which models can have it; its text and its remedy are on the page
mistakes.md, with those of the mistakes that are read from a port's values (`with_words`). The order is that of `_ROWS`:
of mistakes that explain a value equally well, the first one is named, so the plain formula is before those that are
near it.

>>> from minibert import BertModel, BertTokenizer
>>> from minibert.parity.diagnosis import MISTAKES, simulate
>>> name = "sentence-transformers/all-MiniLM-L6-v2"
>>> tokenizer, model = BertTokenizer.from_pretrained(name), BertModel.from_pretrained(name)
>>> inputs = tokenizer(["the river bank", "a longer text than that"], padding=True, return_tensors="np")
>>> wrong = simulate(model, inputs, "G1.tanh")
>>> len(wrong), wrong["encoder.layer.5"].shape
(91, (2, 7, 384))
>>> MISTAKES["G1.tanh"].text
'hidden_act: in the feed forward gelu_tanh is applied; config.json has another hidden_act'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np

from minibert.bert.config import BertConfig
from minibert.bert.reference import softmax
from minibert.parity.diagnosis import recipes
from minibert.parity.diagnosis.formulas import attention, norms, precision, rotary, tensors, tokens
from minibert.parity.diagnosis.forward import head_activation
from minibert.parity.diagnosis.mistake import Mistake, part_mistake
from minibert.parity.symbols import DENSE, ENTRIES, IN_LAYER, NORMS, names_of_layer, symbols_of
from minibert.parity.truth import Model, Padded, to_bfloat16, to_float16, to_tf32

_MODULES = {entry.symbol: entry.path.removeprefix("encoder.layer.{i}.") for entry in ENTRIES}
_SUMS = ("attention_sum", "output_sum")
_ATTENDED = (*IN_LAYER[:3], "intermediate_dense", "gate", "up", "attention", "output")
_TRANSPOSED = (*DENSE[:4], "pooler_dense", "transform_dense")
_WITH_BIAS = (*DENSE[:7], "logits", "transform_dense", "predictions", "projected")


# Of which models a mistake is harmless, and which models can have it.


def _always(config: BertConfig) -> bool:
    return True


def _has_small_eps(config: BertConfig) -> bool:
    return config.layer_norm_eps <= 1e-9  # below the rounding of a variance in float32, and of its root


def _ends_with_norms(model: Model) -> bool:
    return model.config.family.forward == "bert"


def _begins_with_norms(model: Model) -> bool:
    return model.config.family.forward == "norm_first"


def _normalises_embeddings(model: Model) -> bool:
    return model.config.family.has_embeddings_norm


def _scales_words(model: Model) -> bool:
    return bool(model.config.token_dropout)


def _has_texts(model: Model) -> bool:
    return model.config.type_vocab_size > 1


def _adds_types(model: Model) -> bool:
    return model.config.has_token_types


def _restarts(model: Model) -> bool:
    return _has_texts(model) and not model.config.family.counts_tokens


def _learns_positions(model: Model) -> bool:
    return not model.config.family.theta


def _rotaries(model: Model) -> list[dict[str, Any]]:
    return [layer.rotary.parameters for layer in model.weights.layers if layer.rotary is not None]


def _has_two_rotaries(model: Model) -> bool:
    return len({layer.rotary for layer in model.weights.layers}) > 1


def _scales_positions(model: Model) -> bool:
    return any(own["rope_type"] != "default" for own in _rotaries(model))


def _divides_frequencies(model: Model) -> bool:
    return any(own["rope_type"] == "linear" for own in _rotaries(model))


def _has_two_maps_in_head(model: Model) -> bool:
    return model.weights.pooler is not None or "transform" in symbols_of(model)


# Mistakes that come in several variants, with the models that can have them.


def _with_base(base: float) -> Mistake:
    """Return the mistake of another base of the rotary positions."""
    mistake = rotary.rotary(lambda own, layers: {"rope_theta": base})
    return mistake.but(fits=lambda model: any(own["rope_theta"] != base for own in _rotaries(model)))


def _head_curve(name: str) -> Mistake:
    """Return the mistake of another activation after the first linear map of a head, a key of `CURVES`."""

    def fits(model: Model) -> bool:
        activation = head_activation(model)
        return activation != name and (name, activation) != ("none", "tanh")  # this is G3.pooler

    return norms.curve(name, "pooler", "transform_act").but(fits=fits)


def _head_pooling(name: str, pooling: str) -> Mistake:
    """Return the mistake of a head that pools otherwise; `name` is that of `classifier_pooling`."""

    def fits(model: Model) -> bool:
        pools = not {"pooler", "sequences"}.isdisjoint(model.result_kinds)
        own = model.config.classifier_pooling or "cls"
        return pools and name != {"bos": "cls", "late": "mean"}.get(own, own)

    return recipes.pooled_for_head(pooling).but(fits=fits)


def _without_bias(*symbols: str) -> Mistake:
    """Return the mistake of linear maps without their biases."""
    mistake, paths = tensors.weights(symbols, tensors.without_bias), [_MODULES[symbol] for symbol in symbols]
    return mistake.but(fits=lambda model: any(map(model.config.has_bias, paths)))


def _masks(id: str, change: Callable[[Padded, BertConfig], Any], *ends: str) -> dict[str, Mistake]:
    """Return the mistakes of another mask, one for each way to treat a row whose mask has no ones (see `mask_as`)."""
    return {f"{id}{end}": attention.mask_as(change, end[1:]) for end in ends}


def _second_text(inputs: Padded, config: BertConfig) -> Any:
    return inputs.types > 0


_SWAPPED = tokens.fed(types=lambda inputs, config: inputs.mask.astype(np.int64), mask=_second_text)

# The mistakes without the words of the page.
_ROWS: dict[str, Mistake] = {
    # --- activation
    "G1.tanh": norms.curve("gelu_tanh"),
    "G2.ggml": norms.curve("gelu in a table of float16").but(rounds=True),
    "G3.quick": norms.curve("quick_gelu"),
    "G3.relu": norms.curve("relu"),
    "G3.silu": norms.curve("silu"),
    "G3.none": norms.curve("none"),
    "G3.leaky": norms.curve("leaky_relu"),
    "G3.tanh": norms.curve("tanh"),
    "G1.erf": norms.curve("gelu"),
    "G3.erf-3": norms.curve("gelu with a short erf"),
    # this erf is within 1.5e-7 of the true one
    "G3.erf-5": norms.curve("gelu with a longer erf").but(harmless=lambda config: config.activation == "gelu"),
    "G3.pooler": norms.curve("none", "pooler").but(fits=lambda model: head_activation(model) == "tanh"),
    **{f"G4.{name}": _head_curve(name) for name in ("tanh", "relu", "gelu", "gelu_tanh", "silu", "none")},
    # --- LayerNorm
    **{f"N1.{eps}": norms.norm(float(eps)) for eps in ("1e-5", "1e-6", "0.001", "1e-7", "1e-12")},
    "N1.zero": norms.norm(0.0).but(harmless=_has_small_eps),
    "N2.1e-6": norms.norm(1e-6, "outside"),
    "N2.1e-5": norms.norm(1e-5, "outside"),
    "N3.unbiased": norms.norm(None, "unbiased"),
    "N2.outside": norms.norm(None, "outside").but(harmless=_has_small_eps),
    "N3.annotated": norms.norm(1e-6, "unbiased", "outside"),
    "N4.last": part_mistake("output", norm=norms.last_norm_skipped).but(fits=_ends_with_norms),
    "N4.no-attention": part_mistake("attention", norm=norms.no_norm).but(fits=_ends_with_norms),
    "N4.no-output": part_mistake("output", norm=norms.no_norm).but(fits=_ends_with_norms),
    "N4.swapped": norms.norm(None, "swapped"),
    "N4.plain": norms.norm(None, "no weight", "no bias"),
    "N4.no-weight": norms.norm(None, "no weight"),
    "N4.no-bias": norms.norm(None, "no bias").but(fits=lambda model: model.config.has_bias("output.LayerNorm")),
    "N4.rms": norms.norm(None, "mean").but(fits=lambda model: not model.config.family.has_rms_norm),
    "N4.mean": norms.norm(None, "mean").but(fits=lambda model: model.config.family.has_rms_norm),
    "N5.float16": part_mistake(NORMS, norm=norms.norm_in_float16),
    "W3.norms": part_mistake(("attention", "output"), norm=norms.other_norm).but(fits=_ends_with_norms),
    # --- attention
    "A1.none": attention.scaled(lambda size, config: math.sqrt(size)),
    "A2.hidden": attention.scaled(lambda size, config: math.sqrt(size / config.hidden_size)),
    "A2.heads": attention.scaled(lambda size, config: math.sqrt(size / config.num_attention_heads)),
    "A2.twice": attention.scaled(lambda size, config: 1 / math.sqrt(size)),
    "A3.split": part_mistake(("scores", "context"), split=attention.split_wrongly),
    "A3.merge": part_mistake("context", merge=attention.merge_wrongly),
    "A3.both": part_mistake(("scores", "context"), split=attention.split_wrongly, merge=attention.merge_wrongly),
    "A3.interleaved": part_mistake(
        ("scores", "context"), split=attention.split_interleaved, merge=attention.merge_interleaved
    ),
    "A4.query-key": attention.instead(1, 0, 2),
    "A4.query-value": attention.instead(2, 1, 0),
    "A4.key-value": attention.instead(0, 2, 1),
    "A4.by-head": part_mistake(IN_LAYER[:3], dense=attention.sliced_by_head).but(fits=attention.stacks_three),
    "A16.in-turn": part_mistake(("scores", "context"), share=attention.tiled).but(
        fits=lambda model: model.config.num_key_value_heads not in (None, 1, model.config.num_attention_heads)
    ),
    "A5.none": attention.mask(lambda scores, visible: scores),
    "A6.minus-ten": attention.leaking(-10.0),
    "A6.added": attention.mask(lambda scores, visible: scores + visible),
    "A6.multiplied": attention.mask(lambda scores, visible: scores * visible),
    "A6.after": part_mistake("probs", mask=lambda inner, here, scores, visible: scores, softmax=attention.zeroed),
    **_masks("A6.inverted", lambda inputs, config: ~inputs.mask, "", "-alike", "-zeros"),
    **_masks("A6.nothing", lambda inputs, config: np.zeros_like(inputs.mask), "-alike", "-zeros"),
    "A6.padding": attention.mask_as(lambda inputs, config: inputs.ids != (config.pad_token_id or 0)),
    # exp(-10000) is 0 in every format, unless the scores are in the thousands
    "A6.ten-thousand": attention.leaking(-1e4).but(harmless=_always),
    "A6.second-text": attention.mask_as(_second_text).but(fits=_has_texts),
    **_masks("A6.second-text", _second_text, "-alike", "-zeros"),
    "A6.first-text": attention.mask_as(lambda inputs, config: inputs.types == 0).but(fits=_has_texts),
    "A6.length": attention.mask_as(attention.length),
    "A7.causal": part_mistake("probs", mask=attention.causal),
    "A8.rope": rotary.rope(False).but(fits=_learns_positions),
    "A8.rope-pairs": rotary.rope(True).but(fits=_learns_positions),
    "R1.other": rotary.rotary(rotary.of_the_others).but(fits=_has_two_rotaries),
    **{f"R1.{base}": _with_base(base) for base in (10_000, 1_000, 20_000, 80_000, 160_000, 500_000)},
    "R1.unscaled": rotary.rotary(lambda own, layers: {"rope_type": "default"}).but(fits=_scales_positions),
    "R1.no-ntk": rotary.rotary(rotary.before_ntk).but(fits=_divides_frequencies),
    "R1.whole-factor": rotary.rotary(rotary.whole_factor).but(fits=_divides_frequencies),
    "R2.pairs": part_mistake(rotary.ROTATED, rotate=rotary.in_pairs),
    "R2.backwards": part_mistake(rotary.ROTATED, rotation=rotary.backwards),
    "R2.none": part_mistake(rotary.ROTATED, rotate=lambda inner, here, x, num_heads, rotation: x),
    # scores depend on the distance of two tokens only
    "R3.plus-1": tokens.fed(positions=lambda inputs, config: inputs.positions + 1).but(
        symbols=rotary.ROTATED, harmless=_always
    ),
    "A13.exchanged": part_mistake(
        (*rotary.ROTATED, "scores"), window=rotary.exchanged_window, **rotary.rotary(rotary.of_the_others).parts
    ).but(fits=rotary.has_windows),
    "A13.narrow": rotary.window(lambda size, width: size - 1),
    "A13.wide": rotary.window(lambda size, width: size + 1),
    "A13.full": rotary.window(lambda size, width: width).but(fits=rotary.counts_both_sides),
    "A13.half": rotary.window(lambda size, width: width // 2).but(fits=rotary.counts_one_side),
    "A13.none": rotary.window(lambda size, width: None),
    "A14.borders": part_mistake("context", weigh=attention.without_borders).but(
        mixes_rows=True,
        fits=lambda model: not model.config.family.has_relative_bias,
        needs=lambda inputs: inputs.mask.any(axis=1).sum() > 1,
    ),
    "A9.queries": attention.softmax_over(-2),
    "A9.heads": attention.softmax_over(1),
    "A10.none": attention.bias(lambda bias, config: np.zeros_like(bias)),
    "A10.transposed": attention.bias(lambda bias, config: bias.swapaxes(1, 2)),
    "A10.scaled": attention.bias(lambda bias, config: bias / bias.dtype.type(math.sqrt(config.head_size))),
    "A10.one-way": attention.buckets(attention.one_way),
    "A10.linear": attention.buckets(lambda distances: np.minimum(np.abs(distances), 15) + 16 * (distances > 0)),
    "A9.float16": part_mistake("probs", softmax=attention.softmax_in_float16).but(rounds=True),
    "A15.flash": attention.flash(),
    "A15.ggml": attention.flash("intermediate", activation=norms.table_of_gelu),
    # the maximum cancels, as long as nothing overflows
    "A9.no-shift": part_mistake("probs", softmax=attention.softmax_without_shift).but(harmless=_always),
    # --- ids, types, positions, embeddings
    "E1.first": tokens.fed(types=lambda inputs, config: np.zeros_like(inputs.types)),
    "E1.second": tokens.fed(types=lambda inputs, config: np.ones_like(inputs.types)),
    "E1.inverted": tokens.fed(types=lambda inputs, config: 1 - inputs.types),
    "E3.plus-1": tokens.positions(lambda inputs, pad: inputs.positions + 1),
    "E3.plus-2": tokens.positions(lambda inputs, pad: inputs.positions + 2),
    "E3.zero": tokens.positions(lambda inputs, pad: np.zeros_like(inputs.positions)),
    "E3.visible": tokens.positions(lambda inputs, pad: np.maximum(inputs.mask.cumsum(axis=1) - 1, 0)),
    "E3.visible-1": tokens.positions(lambda inputs, pad: inputs.mask.cumsum(axis=1)),
    "E3.segments": tokens.positions(tokens.restart).but(fits=_restarts),
    "E3.backwards": tokens.positions(lambda inputs, pad: inputs.positions[:, ::-1]),
    "E6.columns": tokens.positions(lambda inputs, pad: np.indices(inputs.ids.shape)[1], counted=True),
    "E6.zero": tokens.positions(lambda inputs, pad: np.maximum(inputs.positions - pad - 1, 0), counted=True),
    "E6.pad": tokens.positions(lambda inputs, pad: np.maximum(inputs.positions - 1, 0), counted=True),
    "E6.padding": tokens.positions(lambda inputs, pad: np.indices(inputs.ids.shape)[1] + pad + 1, counted=True),
    "E6.mask": tokens.positions(lambda inputs, pad: inputs.mask.cumsum(axis=1) * inputs.mask + pad, counted=True),
    "E5.swapped": _SWAPPED,
    "E5.swapped-alike": _SWAPPED.but(parts=attention.mask_as(_second_text, "alike").parts),
    "E5.swapped-zeros": _SWAPPED.but(parts=attention.mask_as(_second_text, "zeros").parts),
    "E2.missing": tokens.total(lambda words, types, positions: words + positions).but(fits=_adds_types),
    "E4.positions": tokens.total(lambda words, types, positions: words + types).but(fits=_learns_positions),
    "E4.scaled": tokens.total(
        lambda words, types, positions: words * words.dtype.type(np.sqrt(words.shape[-1])) + types + positions
    ),
    "E4.sinusoids": part_mistake("positions", rows=tokens.sinusoids),
    # the order of a sum of three numbers
    "E4.order": tokens.total(lambda words, types, positions: words + (positions + types)).but(harmless=_always),
    "E7.added": tokens.total(tokens.added).but(
        fits=lambda model: not model.config.family.has_token_types, from_values=True
    ),
    "E9.none": part_mistake("embeddings", scale=lambda inner, here, words, scale: words).but(fits=_scales_words),
    "E8.padded": part_mistake("projected", dense=tensors.filled_up),
    "E4.norm": part_mistake("embeddings", norm=norms.no_norm).but(fits=_normalises_embeddings),
    "T1.unknown": tokens.fed(ids=tokens.unknown),
    "T1.ones": tokens.fed(ids=lambda inputs, config: np.ones_like(inputs.ids)),
    "T1.zeros": tokens.fed(ids=lambda inputs, config: np.zeros_like(inputs.ids)),
    "T1.types": tokens.fed(ids=lambda inputs, config: inputs.types),
    "T1.inverted": tokens.fed(ids=lambda inputs, config: (1 - inputs.ids) % config.vocab_size),
    "T1.shifted": tokens.fed(ids=lambda inputs, config: (inputs.ids + 1) % config.vocab_size),
    **{f"P4.cut-{length}": tokens.cut(length) for length in (64, 128, 256)},
    # --- weights
    **{f"W1.{_MODULES[symbol]}": tensors.weights(symbol, tensors.transposed) for symbol in _TRANSPOSED},
    "W1.embeddings_project": tensors.weights(
        "projected", lambda weight, bias: (weight.reshape(weight.T.shape).T, bias)
    ),
    **{f"W2.{_MODULES[symbol]}": _without_bias(symbol) for symbol in _WITH_BIAS},
    # the same for all keys, so that softmax cancels it, unless the keys are rotated
    "W2.attention.self.key": _without_bias("key").but(harmless=lambda config: not config.family.theta),
    "W2.attention.self": _without_bias(*IN_LAYER[:3]),
    "W2.all": _without_bias(*DENSE[:6]).but(symbols=DENSE),
    "W3.shifted": tensors.weights_of(lambda i, count: (i + 1) % count),
    "W3.reversed": tensors.weights_of(lambda i, count: count - 1 - i),
    "W3.first": tensors.weights_of(lambda i, count: 0),
    # --- residual and order
    "C1.no-attention": part_mistake("attention_sum", add=lambda inner, here, dense, residual: dense),
    "C1.no-output": part_mistake("output_sum", add=lambda inner, here, dense, residual: dense),
    "C1.none": part_mistake(_SUMS, add=lambda inner, here, dense, residual: dense),
    "C1.twice": part_mistake(_SUMS, add=lambda inner, here, dense, residual: dense + residual + residual),
    "C1.before-norm": part_mistake(_SUMS, add=tensors.sum_before_norm),
    "C1.layer-input": part_mistake("output_sum", add=tensors.layer_input),
    "C1.pre-norm": part_mistake(_ATTENDED, dense=tensors.norm_in_front, norm=norms.no_norm).but(fits=_ends_with_norms),
    "C1.norm-inside": part_mistake(("attention", "output"), norm=tensors.norm_before_sum).but(fits=_ends_with_norms),
    "C2.norm-after": part_mistake(
        ("normed", "attention_normed", "attention", "output"), norm=norms.no_norm, add=tensors.norm_behind
    ).but(fits=_begins_with_norms),
    "N4.first": part_mistake(IN_LAYER[:3], dense=tensors.norm_of_input).but(
        fits=lambda model: _begins_with_norms(model) and _normalises_embeddings(model),
        names=frozenset(names_of_layer(0)),
    ),
    "N4.final": part_mistake("final", norm=norms.no_norm),
    "F1.exchanged": rotary.gated(lambda gate, up: (up, gate)),
    "F1.weights": part_mistake(("gate", "up"), dense=lambda inner, here, x, linear, i: inner(here, x, linear, 1 - i)),
    "F1.no-up": rotary.gated(lambda gate, up: (gate, np.ones_like(up))),
    # --- heads
    "K1.no-pooler": part_mistake(tensors.LOGITS, dense=tensors.without_pooler).but(fits=_has_two_maps_in_head),
    "K2.cls": _head_pooling("cls", "cls"),
    "K2.mean": _head_pooling("mean", "mean"),
    "K2.max": _head_pooling("max", "max"),
    "K2.last": _head_pooling("last", "lasttoken"),
    "K2.padding": _head_pooling("padding", "mean of all columns, padding too"),
    "K3.no-norm": part_mistake("transform", norm=norms.no_norm),
    "K4.reversed": tensors.changed_logits(lambda logits: logits[..., ::-1]),
    "K4.softmax": tensors.changed_logits(softmax),
    "K4.sigmoid": tensors.changed_logits(lambda logits: 1 / (1 + np.exp(-logits))),
    # --- dropout and precision
    "D1.dropout": part_mistake(
        ("embeddings", "probs", *_SUMS), norm=precision.drop, softmax=precision.drop, add=precision.drop_dense
    ).but(from_values=True),
    **{f"D2.{name}-weights": precision.rounded_weights(rounding) for name, rounding in precision.ROUNDINGS.items()},
    "D2.float16-words": part_mistake("words", rows=lambda inner, here, table, ids: to_float16(inner(here, table, ids))),
    "D2.int8": precision.product(precision.dynamic_int8).but(rounds=True, mixes_rows=True),
    "D2.float16": precision.stored(to_float16).but(rounds=True),
    "D2.bfloat16": precision.stored(to_bfloat16).but(rounds=True),
    "D2.tf32": precision.product(lambda x, weight: (to_tf32(x), to_tf32(weight))).but(rounds=True),
    "D3.float16": part_mistake(DENSE, product=precision.sums_in_float16).but(rounds=True),
    # --- vectors of texts
    "P1.padding": recipes.pooled("mean of all columns, padding too").but(needs=lambda inputs: not inputs.mask.all()),
    "P2.cls": recipes.pooled("cls"),
    "P2.mean": recipes.pooled("mean"),
    "P2.max": recipes.pooled("max"),
    "P2.last": recipes.pooled("lasttoken"),
    "P2.pooler": recipes.pooled("pooler").but(fits=lambda model: model.weights.pooler is not None),
    "P2.weighted": recipes.pooled("weightedmean"),
    "P2.sum": recipes.pooled("sum"),
    "P2.special": recipes.pooled("mean of the tokens without the first and the last one"),
    "P2.column": recipes.pooled("cls of all columns, padding too").but(
        needs=lambda inputs: not inputs.mask[:, 0].all()
    ),
    "P2.first-last": recipes.pooled("mean of the first and last state"),
    "P2.second-last": recipes.pooled("mean of the last state but one"),
    "P3.raw": recipes.lengths("none"),
    "P3.unit": recipes.lengths("unit"),
    "P3.twice": recipes.lengths("twice"),
    # --- names
    "H1.late": tokens.renamed(("output", "final"), lambda i, states: states[max(i - 1, 0)]),
    "H1.early": tokens.renamed(
        ("embeddings", "output", "final"), lambda i, states: states[min(i + 1, len(states) - 1)]
    ),
    "H1.look-up": tokens.renamed(
        ("embeddings",), lambda i, states: states[i] if i else "embeddings.word_embeddings"
    ).but(fits=lambda model: _normalises_embeddings(model) and model.weights.embeddings_project is None),
    "H1.before-norm": tokens.renamed(
        ("embeddings", "output"), lambda i, states: f"{states[i]}{'.output' if i else ''}.LayerNorm.input"
    ).but(fits=_ends_with_norms),
}


def read_page(page: str) -> dict[str, tuple[str, str]]:
    """Return the text and the remedy of each id on a page such as mistakes.md."""
    words: dict[str, tuple[str, str]] = {}
    above: dict[str, str] = {}
    for block in page.split("\n\n"):
        if block.startswith("> "):
            remedy = " ".join(line.removeprefix("> ") for line in block.splitlines())
            words |= {id: (text, remedy) for id, text in above.items()}
            above = {}
        elif block.startswith("- "):
            items = (" ".join(item.split()) for item in block.removeprefix("- ").split("\n- "))
            above |= dict(item.removeprefix("`").split("` ", 1) for item in items)
    return words


_WORDS = read_page((files(__package__) / "mistakes.md").read_text(encoding="utf-8"))


def with_words(id: str, mistake: Mistake, **facts: object) -> Mistake:
    """Return a mistake with an id of the page, its text and its remedy; `facts` are what the text has in braces."""
    text, cure = _WORDS[id]
    return mistake.but(id=id, template=text.format(**facts) if facts else text, cure=cure)


MISTAKES = {id: with_words(id, row) for id, row in _ROWS.items()}
"""All mistakes by id."""
