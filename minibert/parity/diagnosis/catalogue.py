"""The known mistakes of BERT ports, by id; `simulate` makes the dump of a port with such mistakes.

An id is a kind of mistake and a variant. ``"G1.tanh@3"`` is the same mistake in layer 3 only, and
``"G1.tanh+N1.1e-5"`` is two mistakes at once. The kinds: G activation, N LayerNorm, A attention, E inputs and
embeddings, T ids, W weights, C residual and order, D dropout and precision, K heads, P the vector of a text, H names of
states, R rotary positions, F the gate. The texts and remedies are on the page mistakes.md. Some mistakes are possible
in one family only (`_FITS`).

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

import dataclasses
import difflib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeAlias

import numpy as np

from minibert._utils.validation import FloatArray, brief, check_int
from minibert.bert.config import BertConfig
from minibert.bert.reference import softmax
from minibert.parity.diagnosis import formulas as wrong
from minibert.parity.diagnosis import recipes
from minibert.parity.diagnosis.forward import Forward, head_activation
from minibert.parity.diagnosis.mistake import Mistake, Recipe, part_mistake
from minibert.parity.symbols import DENSE, ENTRIES, NORMS, names_of, names_of_layer, states_of, symbols_of
from minibert.parity.truth import VECTOR, InapplicableError, Model, Padded, to_bfloat16, to_float16, to_tf32

_MODULES = {entry.symbol: entry.path.removeprefix("encoder.layer.{i}.") for entry in ENTRIES}
_SUMS = ("attention_sum", "output_sum")
_ATTENDED = (*wrong.IN_LAYER[:3], "intermediate_dense", "gate", "up", "attention", "output")
_OTHERS = ("quick", "relu", "silu", "none", "leaky", "erf-3", "erf-5", "tanh")
_OF_HEADS = ("tanh", "relu", "gelu", "gelu_tanh", "silu", "none")
_BASES = (1_000.0, 10_000.0, 20_000.0, 80_000.0, 160_000.0, 500_000.0)
_CUTS = (64, 128, 256)
_ACTIVATIONS = ("G1.tanh", "G1.erf", "G2.ggml", *(f"G3.{name}" for name in _OTHERS))


# What a port takes for the mask. The last ones are about rows whose mask has no ones (see `mask_as`).
_MASKS: dict[str, Callable[[Padded, BertConfig], Any]] = {
    "inverted": lambda inputs, config: ~inputs.mask,
    "length": wrong.length,
    "padding": lambda inputs, config: inputs.ids != (config.pad_token_id or 0),
    "first-text": lambda inputs, config: inputs.types == 0,
    "second-text": lambda inputs, config: inputs.types > 0,
    "nothing": lambda inputs, config: np.zeros_like(inputs.mask),
}
_EMPTY_ROWS = ("", "-alike", "-zeros")
_SWAPPED = wrong.fed(
    types=lambda inputs, config: inputs.mask.astype(np.int64), mask=lambda inputs, config: inputs.types > 0
)

# The mistakes without what the page says of them; those that the page does not have are left out.
_WHAT_IS: dict[str, Mistake] = {
    **{id: wrong.curve(name) for id, name in zip(_ACTIVATIONS, wrong.CURVES, strict=True)},
    "G3.pooler": wrong.curve("none", "pooler"),
    **{f"G4.{name}": wrong.curve(name, "pooler", "transform_act") for name in _OF_HEADS},
    "K1.no-pooler": part_mistake(wrong.LOGITS, dense=wrong.without_pooler),
    "K2.cls": recipes.pooled_for_head("cls"),
    "K2.mean": recipes.pooled_for_head("mean"),
    "K2.max": recipes.pooled_for_head("max"),
    "K2.last": recipes.pooled_for_head("lasttoken"),
    "K2.padding": recipes.pooled_for_head("mean of all columns, padding too"),
    "K3.no-norm": part_mistake("transform", norm=wrong.no_norm),
    "K4.reversed": wrong.changed_logits(lambda logits: logits[..., ::-1]),
    "K4.softmax": wrong.changed_logits(softmax),
    "K4.sigmoid": wrong.changed_logits(lambda logits: 1 / (1 + np.exp(-logits))),
    **{f"N1.{eps:g}".replace("e-0", "e-"): wrong.norm(eps) for eps in (1e-5, 1e-6, 1e-3, 1e-7, 1e-12)},
    "N1.zero": wrong.norm(0.0),
    "N2.outside": wrong.norm(None, "outside"),
    "N2.1e-6": wrong.norm(1e-6, "outside"),
    "N2.1e-5": wrong.norm(1e-5, "outside"),
    "N3.unbiased": wrong.norm(None, "unbiased"),
    "N3.annotated": wrong.norm(1e-6, "unbiased", "outside"),
    "N4.last": part_mistake("output", norm=wrong.last_norm_skipped),
    "N4.no-attention": part_mistake("attention", norm=wrong.no_norm),
    "N4.no-output": part_mistake("output", norm=wrong.no_norm),
    "N4.swapped": wrong.norm(None, "swapped"),
    "N4.plain": wrong.norm(None, "no weight", "no bias"),
    "N4.no-weight": wrong.norm(None, "no weight"),
    "N4.no-bias": wrong.norm(None, "no bias"),
    "N4.rms": wrong.norm(None, "rms"),
    "N5.float16": part_mistake(NORMS, norm=wrong.norm_in_float16),
    "W3.norms": part_mistake(("attention", "output"), norm=wrong.other_norm),
    "A1.none": wrong.scaled(lambda size, config: math.sqrt(size)),
    "A2.hidden": wrong.scaled(lambda size, config: math.sqrt(size / config.hidden_size)),
    "A2.heads": wrong.scaled(lambda size, config: math.sqrt(size / config.num_attention_heads)),
    "A2.twice": wrong.scaled(lambda size, config: 1 / math.sqrt(size)),
    "A3.split": part_mistake(("scores", "context"), split=wrong.split_wrongly),
    "A3.merge": part_mistake("context", merge=wrong.merge_wrongly),
    "A3.both": part_mistake(("scores", "context"), split=wrong.split_wrongly, merge=wrong.merge_wrongly),
    "A3.interleaved": part_mistake(("scores", "context"), split=wrong.split_interleaved, merge=wrong.merge_interleaved),
    "A4.query-key": wrong.instead(1, 0, 2),
    "A4.query-value": wrong.instead(2, 1, 0),
    "A4.key-value": wrong.instead(0, 2, 1),
    "A4.by-head": part_mistake(wrong.IN_LAYER[:3], dense=wrong.sliced_by_head),
    "A5.none": wrong.mask(lambda scores, visible: scores),
    "A6.minus-ten": wrong.leaking(-10.0),
    "A6.added": wrong.mask(lambda scores, visible: scores + visible),
    "A6.multiplied": wrong.mask(lambda scores, visible: scores * visible),
    "A6.after": part_mistake("probs", mask=lambda inner, here, scores, visible: scores, softmax=wrong.zeroed),
    **{f"A6.{id}{end}": wrong.mask_as(mask, end[1:]) for id, mask in _MASKS.items() for end in _EMPTY_ROWS},
    "A6.ten-thousand": wrong.leaking(-1e4),
    "A7.causal": part_mistake("probs", mask=wrong.causal),
    "A8.rope": wrong.rope(False),
    "A8.rope-pairs": wrong.rope(True),
    "R1.other": wrong.rotary(wrong.of_the_others),
    **{f"R1.{base:.0f}": wrong.rotary(functools.partial(wrong.with_base, base)) for base in _BASES},
    "R1.unscaled": wrong.rotary(lambda own, layers: {"rope_type": "default"}),
    "R1.no-ntk": wrong.rotary(wrong.before_ntk),
    "R1.whole-factor": wrong.rotary(wrong.whole_factor),
    "R2.pairs": part_mistake(wrong.ROTATED, rotate=wrong.in_pairs),
    "R2.backwards": part_mistake(wrong.ROTATED, rotation=wrong.backwards),
    "R2.none": part_mistake(wrong.ROTATED, rotate=lambda inner, here, x, num_heads, rotation: x),
    "R3.plus-1": dataclasses.replace(wrong.positions(lambda inputs, pad: inputs.positions + 1), symbols=wrong.ROTATED),
    "A13.exchanged": part_mistake(
        (*wrong.ROTATED, "scores"), window=wrong.exchanged_window, **wrong.rotary(wrong.of_the_others).parts
    ),
    "A13.narrow": wrong.window(lambda size, width: size - 1),
    "A13.wide": wrong.window(lambda size, width: size + 1),
    "A13.full": wrong.window(lambda size, width: width),
    "A13.none": wrong.window(lambda size, width: None),
    "A14.borders": part_mistake("context", weigh=wrong.without_borders),
    "F1.exchanged": wrong.gated(lambda gate, up: (up, gate)),
    "F1.weights": part_mistake(("gate", "up"), dense=lambda inner, here, x, linear, i: inner(here, x, linear, 1 - i)),
    "F1.no-up": wrong.gated(lambda gate, up: (gate, np.ones_like(up))),
    "N4.final": part_mistake("final", norm=wrong.no_norm),
    "N4.first": part_mistake(wrong.IN_LAYER[:3], dense=wrong.norm_of_input).only(names_of_layer(0)),
    "C2.norm-after": part_mistake(
        ("normed", "attention_normed", "attention", "output"), norm=wrong.no_norm, add=wrong.norm_behind
    ),
    "A9.queries": wrong.softmax_over(-2),
    "A9.heads": wrong.softmax_over(1),
    "A9.float16": part_mistake("probs", softmax=wrong.softmax_in_float16),
    "A9.no-shift": part_mistake("probs", softmax=wrong.softmax_without_shift),
    "A15.flash": part_mistake(("scores", "context"), **wrong.FLASH),
    "A15.ggml": part_mistake(("scores", "context", "intermediate"), **wrong.FLASH, activation=wrong.table_of_gelu),
    "A10.none": wrong.bias(lambda bias, config: np.zeros_like(bias)),
    "A10.transposed": wrong.bias(lambda bias, config: bias.swapaxes(1, 2)),
    "A10.scaled": wrong.bias(lambda bias, config: bias / bias.dtype.type(math.sqrt(config.head_size))),
    "A10.one-way": wrong.buckets(wrong.one_way),
    "A10.linear": wrong.buckets(lambda distances: np.minimum(np.abs(distances), 15) + 16 * (distances > 0)),
    "E1.first": wrong.fed(types=lambda inputs, config: np.zeros_like(inputs.types)),
    "E1.second": wrong.fed(types=lambda inputs, config: np.ones_like(inputs.types)),
    "E1.inverted": wrong.fed(types=lambda inputs, config: 1 - inputs.types),
    "E3.plus-1": wrong.positions(lambda inputs, pad: inputs.positions + 1),
    "E3.plus-2": wrong.positions(lambda inputs, pad: inputs.positions + 2),
    "E3.zero": wrong.positions(lambda inputs, pad: np.zeros_like(inputs.positions)),
    "E3.visible": wrong.positions(lambda inputs, pad: np.maximum(inputs.mask.cumsum(axis=1) - 1, 0)),
    "E3.visible-1": wrong.positions(lambda inputs, pad: inputs.mask.cumsum(axis=1)),
    "E3.segments": wrong.positions(wrong.restart),
    "E3.backwards": wrong.positions(lambda inputs, pad: inputs.positions[:, ::-1]),
    "E6.columns": wrong.positions(lambda inputs, pad: np.arange(inputs.ids.shape[1])[None].repeat(len(inputs.ids), 0)),
    "E6.zero": wrong.positions(lambda inputs, pad: np.maximum(inputs.positions - pad - 1, 0)),
    "E6.pad": wrong.positions(lambda inputs, pad: np.maximum(inputs.positions - 1, 0)),
    "E6.padding": wrong.positions(lambda inputs, pad: np.ones_like(inputs.ids).cumsum(axis=1) + pad),
    "E6.mask": wrong.positions(lambda inputs, pad: inputs.mask.cumsum(axis=1) * inputs.mask + pad),
    "E5.swapped": _SWAPPED,
    **{
        f"E5.swapped{end}": dataclasses.replace(_SWAPPED, parts=wrong.mask_as(_MASKS["second-text"], end[1:]).parts)
        for end in _EMPTY_ROWS[1:]
    },
    "E2.missing": wrong.total(lambda words, types, positions: words + positions),
    "E4.positions": wrong.total(lambda words, types, positions: words + types),
    "E4.scaled": wrong.total(
        lambda words, types, positions: words * words.dtype.type(np.sqrt(words.shape[-1])) + types + positions
    ),
    "E7.added": wrong.total(wrong.added),
    "E8.padded": part_mistake("projected", dense=wrong.filled_up),
    "E4.sinusoids": part_mistake("positions", rows=wrong.sinusoids),
    "E4.norm": part_mistake("embeddings", norm=wrong.no_norm),
    "E4.order": wrong.total(lambda words, types, positions: words + (positions + types)),
    "T1.unknown": wrong.fed(ids=wrong.unknown),
    "T1.ones": wrong.fed(ids=lambda inputs, config: np.ones_like(inputs.ids)),
    "T1.zeros": wrong.fed(ids=lambda inputs, config: np.zeros_like(inputs.ids)),
    "T1.types": wrong.fed(ids=lambda inputs, config: inputs.types),
    "T1.inverted": wrong.fed(ids=lambda inputs, config: (1 - inputs.ids) % config.vocab_size),
    "T1.shifted": wrong.fed(ids=lambda inputs, config: (inputs.ids + 1) % config.vocab_size),
    **{f"P4.cut-{length}": wrong.cut(length) for length in _CUTS},
    **{
        f"W1.{_MODULES[symbol]}": wrong.weights(symbol, wrong.transposed)
        for symbol in DENSE
        if symbol not in ("intermediate_dense", "output_dense", "projected")
    },
    "W1.embeddings_project": wrong.weights("projected", lambda weight, bias: (weight.reshape(weight.T.shape).T, bias)),
    **{f"W2.{_MODULES[symbol]}": wrong.weights(symbol, wrong.without_bias) for symbol in DENSE},
    "W2.attention.self": wrong.weights(wrong.IN_LAYER[:3], wrong.without_bias),
    "W2.all": wrong.weights(DENSE, wrong.without_bias),
    "W3.shifted": wrong.weights_of(lambda i, count: (i + 1) % count),
    "W3.reversed": wrong.weights_of(lambda i, count: count - 1 - i),
    "W3.first": wrong.weights_of(lambda i, count: 0),
    "C1.no-attention": part_mistake("attention_sum", add=lambda inner, here, dense, residual: dense),
    "C1.no-output": part_mistake("output_sum", add=lambda inner, here, dense, residual: dense),
    "C1.none": part_mistake(_SUMS, add=lambda inner, here, dense, residual: dense),
    "C1.twice": part_mistake(_SUMS, add=lambda inner, here, dense, residual: dense + residual + residual),
    "C1.before-norm": part_mistake(_SUMS, add=wrong.sum_before_norm),
    "C1.layer-input": part_mistake("output_sum", add=wrong.layer_input),
    "C1.pre-norm": part_mistake(_ATTENDED, dense=wrong.norm_in_front, norm=wrong.no_norm),
    "C1.norm-inside": part_mistake(("attention", "output"), norm=wrong.norm_before_sum),
    "D1.dropout": part_mistake(
        ("embeddings", "probs", *_SUMS), norm=wrong.drop, softmax=wrong.drop, add=wrong.drop_dense
    ),
    **{f"D2.{name}-weights": wrong.rounded_weights(rounding) for name, rounding in wrong.ROUNDINGS.items()},
    "D2.float16-words": part_mistake("words", rows=lambda inner, here, table, ids: to_float16(inner(here, table, ids))),
    "D2.int8": wrong.product(wrong.dynamic_int8),
    "D2.float16": wrong.stored(to_float16),
    "D2.bfloat16": wrong.stored(to_bfloat16),
    "D2.tf32": wrong.product(lambda x, weight: (to_tf32(x), to_tf32(weight))),
    "D3.float16": part_mistake(DENSE, product=wrong.sums_in_float16),
    "P1.padding": recipes.pooled("mean of all columns, padding too"),
    **{f"P2.{mode}": recipes.pooled(mode) for mode in ("cls", "mean", "max", "sum", "pooler")},
    "P2.last": recipes.pooled("lasttoken"),
    "P2.weighted": recipes.pooled("weightedmean"),
    "P2.special": recipes.pooled("mean of the tokens without the first and the last one"),
    "P2.column": recipes.pooled("cls of all columns, padding too"),
    "P2.first-last": recipes.pooled("mean of the first and last state"),
    "P2.second-last": recipes.pooled("mean of the last state but one"),
    "P3.raw": recipes.lengths("none"),
    "P3.unit": recipes.lengths("unit"),
    "P3.twice": recipes.lengths("twice"),
    "H1.late": wrong.renamed(("output", "final"), lambda i, states: states[max(i - 1, 0)]),
    "H1.early": wrong.renamed(("embeddings", "output", "final"), lambda i, states: states[min(i + 1, len(states) - 1)]),
    "H1.look-up": wrong.renamed(("embeddings",), lambda i, states: states[i] if i else "embeddings.word_embeddings"),
    "H1.before-norm": wrong.renamed(
        ("embeddings", "output"), lambda i, states: f"{states[i]}{'.output' if i else ''}.LayerNorm.input"
    ),
}

_ROUND = (
    "G2.ggml",
    "A9.float16",
    "A15.flash",
    "A15.ggml",
    "D2.int8",
    "D2.float16",
    "D2.bfloat16",
    "D2.tf32",
    "D3.float16",
)


# Mistakes that change a hidden state by rounding only, and the models of which this is true.
_HARMLESS: dict[str, Callable[[BertConfig], bool]] = {
    "G3.erf-5": lambda config: config.activation == "gelu",  # this erf is within 1.5e-7 of the true one
    "N1.zero": lambda config: config.layer_norm_eps <= 1e-9,  # 1e-12 is below the rounding of a variance in float32
    "N2.outside": lambda config: config.layer_norm_eps <= 1e-9,  # and below the rounding of the root
    "A6.ten-thousand": lambda config: True,  # exp(-10000) is 0 in every format, unless the scores are in the thousands
    "A9.no-shift": lambda config: True,  # the maximum cancels, as long as nothing overflows
    "R3.plus-1": lambda config: True,  # scores depend on the distance of two tokens only
    "E4.order": lambda config: True,  # the order of a sum of three numbers
    "W2.attention.self.key": lambda config: not config.family.theta,  # the same for all keys: softmax cancels it
}


def _has_bias(paths: Sequence[str], model: Model) -> bool:
    return any(map(model.config.has_bias, paths))


def _takes_more(length: int, model: Model) -> bool:
    return model.config.longest > length


def _rotaries(model: Model) -> list[dict[str, Any]]:
    return [layer.rotary.parameters for layer in model.weights.layers if layer.rotary is not None]


def _has_rotary(field: str, other: object, model: Model) -> bool:
    """Return whether the rotary positions of a layer have another value of a field."""
    return any(parameters[field] != other for parameters in _rotaries(model))


def _has_other_activation(name: str, model: Model) -> bool:
    activation = head_activation(model)
    return activation != name and (name, activation) != ("none", "tanh")  # this is G3.pooler


def _has_other_pooling(name: str, model: Model) -> bool:
    pools = not {"pooler", "first"}.isdisjoint(model.result_kinds)
    return pools and name != (model.config.classifier_pooling or "cls")


# Kinds of mistakes, and single ones, that a port of some models only can have.
_FITS: dict[str, Callable[[Model], bool]] = {
    **dict.fromkeys(("E1", "E5", "A6.first-text", "A6.second-text"), lambda model: model.config.type_vocab_size > 1),
    "E2": lambda model: model.config.has_token_types,
    **{f"P4.cut-{length}": functools.partial(_takes_more, length) for length in _CUTS},
    **{f"R1.{base:.0f}": functools.partial(_has_rotary, "rope_theta", base) for base in _BASES},
    "R1.other": lambda model: len({layer.rotary for layer in model.weights.layers}) > 1,
    "R1.unscaled": functools.partial(_has_rotary, "rope_type", "default"),
    "R1": lambda model: any(parameters["rope_type"] == "linear" for parameters in _rotaries(model)),
    **dict.fromkeys(("A8", "E4.positions", "E4.sinusoids"), lambda model: not model.config.family.theta),
    "F1": lambda model: model.config.family.is_gated,
    "A13": lambda model: any(layer.window is not None for layer in model.weights.layers),
    "A14": lambda model: not model.config.family.has_relative_bias,
    **dict.fromkeys(("C2", "N4.first"), lambda model: model.config.family.forward == "modernbert"),
    "N4.no-bias": functools.partial(_has_bias, ["output.LayerNorm"]),
    **dict.fromkeys(
        ("C1", "N4.last", "N4.no-attention", "N4.no-output", "W3.norms", "H1.before-norm"),
        lambda model: model.config.family.forward == "bert",
    ),
    **{f"W2.{_MODULES[name]}": functools.partial(_has_bias, [_MODULES[name]]) for name in DENSE},
    "W2.attention.self": functools.partial(_has_bias, ["attention.self.query"]),
    "P2.pooler": lambda model: model.weights.pooler is not None,
    "W2.all": functools.partial(_has_bias, [_MODULES[name] for name in DENSE[:6]]),
    "E7": lambda model: not model.config.family.has_token_types,
    "E3": lambda model: not model.config.family.counts_tokens,
    "E3.segments": lambda model: model.config.type_vocab_size > 1 and not model.config.family.counts_tokens,
    "E6": lambda model: model.config.family.counts_tokens,
    "A10": lambda model: model.config.family.has_relative_bias,
    "G3.pooler": lambda model: model.weights.pooler is not None and head_activation(model) == "tanh",
    **{f"G4.{name}": functools.partial(_has_other_activation, name) for name in _OF_HEADS},
    "K1": lambda model: model.weights.pooler is not None or "transform" in symbols_of(model),
    **{f"K2.{name}": functools.partial(_has_other_pooling, name) for name in ("cls", "mean", "max", "last", "padding")},
    "H1.look-up": lambda model: model.weights.embeddings_project is None,
}


def _read_page() -> dict[str, Mistake]:
    """Put the texts and the remedies of mistakes.md into the mistakes."""
    mistakes: dict[str, Mistake] = {}
    above: list[str] = []
    for block in (files(__package__) / "mistakes.md").read_text(encoding="utf-8").split("\n\n"):
        if block.startswith("> "):
            remedy = " ".join(line.removeprefix("> ") for line in block.splitlines())
            mistakes |= {id: dataclasses.replace(mistakes[id], cure=remedy) for id in above}
            above = []
        elif block.startswith("- "):
            for item in block.removeprefix("- ").split("\n- "):
                id, text = " ".join(item.split()).removeprefix("`").split("` ", 1)
                fits = _FITS.get(id, _FITS.get(id.partition(".")[0]))
                rules: dict[str, Any] = {"rounds": id in _ROUND, "harmless": _HARMLESS.get(id), "fits": fits}
                mistakes[id] = dataclasses.replace(_WHAT_IS[id], id=id, template=text, **rules)
                above.append(id)
    return mistakes


MISTAKES = _read_page()
"""All mistakes by id."""


Wrong: TypeAlias = str | Mistake | Sequence[str | Mistake]
"""What means mistakes: an id as for `find_mistakes`, a mistake, or several."""


def find_mistakes(mistake: Wrong, num_layers: int | None = None) -> list[Mistake]:
    """Return the mistakes that an id means: "G1.tanh", "G1.tanh@3" in one layer, "G1.tanh+N1.1e-5", or several.

    A kind without a variant, "G1", is its first variant.

    Raises
    ------
    TypeError, ValueError
        It is not an id; the message lists the nearest ones. Or the layer does not exist.
    """
    if isinstance(mistake, Mistake):
        return [mistake]
    if not isinstance(mistake, str):
        if not isinstance(mistake, Sequence) or not mistake:
            raise TypeError(f"mistake={brief(mistake)}; expected an id such as 'G1.tanh', or several.")
        return [known for item in mistake for known in find_mistakes(item, num_layers)]
    mistakes = []
    for part in mistake.split("+"):
        id, at, layer = part.strip().partition("@")
        known = MISTAKES.get(id) or next((other for other in MISTAKES.values() if other.kind == id), None)
        if known is None:
            kin = [other for other in MISTAKES if other.startswith(f"{id.partition('.')[0]}.")]
            nearest = ", ".join(kin or difflib.get_close_matches(id, MISTAKES, 5, 0.0))
            raise ValueError(f"There is no mistake {brief(id)}; the nearest ids are {nearest}.")
        if at:
            if not layer.isdecimal():
                raise ValueError(f"mistake={brief(part)}; after @ the number of a layer is expected: {id}@0.")
            number = check_int("the layer of the mistake", int(layer), 0, (num_layers or 2**31) - 1)
            known = known.only(names_of_layer(number))
        mistakes.append(known)
    return mistakes


# --- simulated ports --------------------------------------------------------------------------------------------------


def simulate(
    model: Model, inputs: Mapping[str, Any], mistake: Wrong, *, record: str | Sequence[str] = "*"
) -> dict[str, FloatArray]:
    """Run a model like a port with a mistake: in float32, padded, with numbers in masked positions too.

    Parameters
    ----------
    model : BertModel, or a model with a head
    inputs : mapping
        input_ids, attention_mask, token_type_ids, position_ids, as the model takes them.
    mistake : str, Mistake, or several
        As for `find_mistakes`. () means none: a port that is right.
    record : str or several
        The names to return, or patterns, as for `BertModel.trace`; "sentence_embedding" stands for one vector per text,
        their mean with length 1. The default is all names of the model, and the vector if the mistake is one with it.

    Returns
    -------
    dict of str to float32 ndarray
        In the padded form: (B, S, width), (B, A, S, S) for scores and probs, (B, width) for the pooler, the
        logits of a sequence and the vector.

    Raises
    ------
    TypeError, ValueError
        An input or an id is wrong; or this mistake is not possible with this model or these inputs.
    """
    mistakes = find_mistakes(mistake, model.config.num_hidden_layers) if mistake != () else []
    for single in mistakes:
        if not single.is_for(model):
            raise ValueError(f"{single.id} is not possible here: it is not a mistake of {model.config.model_type}.")
    padded = Padded.of(model.config, inputs)
    patterns = {record} if isinstance(record, str) else {*record}
    chosen = names_of(model).select([*patterns - {VECTOR}])
    if VECTOR in patterns or ("*" in patterns and any(single.vector is not None for single in mistakes)):
        chosen.append(VECTOR)
    try:
        values = forward_values(model, padded, mistakes, recipe=Recipe("mean", "unit"))
    except InapplicableError as error:
        raise ValueError(f"{'+'.join(single.id for single in mistakes)} is not possible here: {error}.") from None
    return {name: np.ascontiguousarray(values[name], dtype=np.float32) for name in chosen}


def forward_values(
    model: Model, inputs: Padded, mistakes: Sequence[Mistake], recipe: Recipe | None = None, dtype: Any = np.float32
) -> dict[str, FloatArray]:
    """Return by name every value of a forward pass with mistakes and, if a recipe is given, each text's vector.

    Raises
    ------
    InapplicableError
        A mistake is not possible with this model or these inputs.
    """
    forward, states = Forward(model, inputs, mistakes, dtype), states_of(model.config)
    values = dict(forward.run_all())
    if recipe is not None:
        values[VECTOR] = recipes.vector(values, forward.inputs, states, recipe, mistakes)
    for mistake in mistakes:
        if mistake.dump is not None:
            values = mistake.dump(values, states)
    return values
