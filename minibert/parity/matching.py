"""Identify the arrays of a dump by name (in several spellings), shape and value, and the order of their axes."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from minibert._utils.files import printable
from minibert._utils.validation import FloatArray, brief, counted
from minibert.bert.families import FAMILIES
from minibert.bert.packed import PackedBatch
from minibert.models.inputs import INPUTS
from minibert.models.stored import modern_name
from minibert.parity.dumps import Array, Dump
from minibert.parity.symbols import states_of
from minibert.parity.truth import VECTOR, Subject
from minibert.trace.names import Spec

_VECTOR_NAMES = {
    *(VECTOR, "sentence_embeddings", "sentence_vector", "sentence_vectors", "vector", "vectors", "embedding"),
    *("embeddings", "text_embeds", "data", "output", "pooled", "result"),
}
_TOKENS_NAMES = {"token_embeddings", "last_hidden", "last_hidden_states", "hidden_state", "encoder_output"}
# Names of hidden states that do not say whether the look-up is number 0: layer_03, model.layers.3.output,
# tf_bert_model/bert/encoder/layer_._3/output, hiddenStates[3].
_LOOSE = re.compile(
    r"(?:.*[._/-])?(?:layers?|blocks?|h|hidden|states?|hidden_?states?|encoder_?layers?|l_out)"
    r"[._/\[-]*0*(\d{1,4})\]?(?:[._/-]?(?:out|outputs?|hidden_?states?))?(?::0)?$"
)
# An array with a loose name is another value if it is that far from all states that the dump has by exact names.
_FAR = 0.5
_LONGEST = 200
_SEVERAL = {"hidden_states", "all_hidden_states", "layers", "states", "encoder_states"}
_FIELDS = "|".join({family.field: None for family in FAMILIES.values()})
_PREFIX = re.compile(rf"^(?:(?:{_FIELDS}|model|0\.auto_model|0\.model)\.)+")
_INPUT_NAMES = {"ids": "input_ids", "tokens": "input_ids", "segment_ids": "token_type_ids", "mask": "attention_mask"}


@dataclasses.dataclass(frozen=True, eq=False)
class Meaning:
    """One dumped array, and the name of the value that it holds.

    Parameters
    ----------
    name : str           the canonical name, or `VECTOR`
    label : str          its name in the dump
    value : ndarray, or a list of one for each text
    other_name : str     the name if the dump counts the embeddings as number 0; "" if it has no number
    group : str          the name without its number; the names of a group are counted in one way
    guessed : bool       the name does not say which value it is
    """

    name: str
    label: str
    value: Array | list[Array]
    other_name: str = ""
    group: str = ""
    guessed: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Matched:
    """The contents of a dump: inputs, weights, values (also several with one name), unknown names, notes."""

    inputs: list[tuple[str, Array]]
    weights: list[tuple[str, Array]]
    values: list[Meaning]
    unknown: list[str]
    notes: list[str]


def inputs_in(dump: Dump, renamed: Mapping[str, str] | None = None) -> list[tuple[str, Array]]:
    """Return the inputs of a model that a dump holds, by their names.

    Raises
    ------
    ValueError
        `renamed` has a name that is not in the dump.
    """
    renamed = renamed or {}
    missing = [name for name in renamed if name not in dump]
    if missing:
        raise ValueError(f"The map has the names {brief(missing)}, which are not in the dump: {brief(list(dump))}.")
    names = ((_input_name(renamed.get(key, key), value), value) for key, value in dump.items())
    return [(name, value) for name, value in names if name is not None and not isinstance(value, list)]


def _input_name(name: str, value: Array | list[Array]) -> str | None:
    """Return the name of the input that an array is; an additive mask, of shape (B, 1, 1, S), is not one."""
    name = _INPUT_NAMES.get(name, name)
    is_array = not isinstance(value, list) and (value.ndim < 3 or name == "inputs_embeds")
    return name if name in INPUTS and is_array else None


def match(dump: Dump, subject: Subject, batch: PackedBatch, renamed: Mapping[str, str] | None = None) -> Matched:
    """Identify each array of a dump; `renamed` has names in the dump, and the names of values that they mean.

    Raises
    ------
    ValueError
        `renamed` has a name that is not in the dump, or means no value.
    """
    renamed, weights = renamed or {}, subject.weights()
    matched = Matched(inputs_in(dump, renamed), [], [], [], [])
    family = subject.config.family
    shared = [key for key in dump if family.shared_layers and family.shared_layers in key]
    if shared:
        matched.notes.append(
            f"{counted(len(shared), 'name')} of shared layers were not compared: of which layer are they?"
        )
    for key, value in dump.items():
        name, label = renamed.get(key, key), printable(key)
        if key in shared and key not in renamed:
            continue
        if shared:  # names of modules, of which one may be another module in BERT: ALBERT's pooler is the dense map
            name = family.bert_path(_PREFIX.sub("", name))
        if _input_name(name, value) is not None:
            continue
        if (weight := _PREFIX.sub("", modern_name(name))) in weights and not isinstance(value, list):
            matched.weights.append((weight, value))
        elif key in renamed and name != VECTOR:
            matched.values.append(Meaning(subject.names.resolve(name)[0], label, value))  # or it raises
        else:
            meanings = _values(name, label, value, subject, batch)
            matched.values.extend(meanings)
            matched.unknown.extend([] if meanings else [label])
    if len(matched.unknown) > 1:
        _match_behind_prefix(matched, dump, subject)
    if not matched.values and len(matched.unknown) == 1:
        (value,) = (value for key, value in dump.items() if printable(key) in matched.unknown)
        matched.values.extend(_by_shape(matched.unknown[0], value, subject, batch))
        if matched.values:
            matched.unknown.clear()
    order = {name: i for i, name in enumerate((*subject.names.specs, VECTOR))}
    matched.values.sort(key=lambda meaning: order[meaning.name])
    return matched


def _match_behind_prefix(matched: Matched, dump: Dump, subject: Subject) -> None:
    """Match names that all have one prefix, such as /m/embeddings/LayerNorm/... of an exported module "m"."""
    values = {printable(key): value for key, value in dump.items()}
    behind: dict[str, dict[str, str]] = {}
    for label in matched.unknown:
        for end in [i for i, character in enumerate(label[:_LONGEST]) if character in "./" and i][:4]:
            resolved = subject.names.find(label[end:]) or subject.names.find(label[end + 1 :])
            if resolved is not None:
                behind.setdefault(label[:end], {})[label] = resolved[0]
                break
    if len(behind) != 1:  # of two prefixes, such as query and passage, none is better
        return
    ((prefix, names),) = behind.items()
    if len(names) > max(1, len(matched.values)):  # fewer may be something else, such as gradients
        matched.values.extend(Meaning(name, label, values[label]) for label, name in names.items())
        matched.unknown[:] = [label for label in matched.unknown if label not in names]
        matched.notes.append(f"{counted(len(names), 'name')} were read without the prefix {prefix}.")


def _states(label: str, value: Array, names: Sequence[str]) -> list[Meaning]:
    return [Meaning(name, f"{label}[{i}]", state) for i, (name, state) in enumerate(zip(names, value, strict=True))]


def _values(name: str, label: str, value: Array | list[Array], subject: Subject, batch: PackedBatch) -> list[Meaning]:
    depth, states = subject.config.num_hidden_layers, states_of(subject.config)
    shape = () if isinstance(value, list) else value.shape
    flat_vectors = subject.pipeline is not None and shape == (len(batch.mask) * subject.pipeline.widths[-1],)
    vectors = (len(shape) == 2 and shape[0] == len(batch.mask)) or flat_vectors
    if name.lower() in _VECTOR_NAMES and vectors and name != "pooled":
        return [Meaning(VECTOR, label, value)]
    resolved = subject.names.find(name)
    if resolved is not None:
        return [Meaning(resolved[0], label, value)]
    if name.lower() in _SEVERAL and not isinstance(value, list):
        if len(shape) == 1 and shape[0] % (depth + 1) == 0:  # a file without a header
            return _states(label, value.reshape(depth + 1, -1), states)
        if len(shape) >= 3 and shape[0] == depth + 1:
            return _states(label, value, states)
        if len(shape) >= 3 and shape[0] == depth:
            pairs = enumerate(zip(states[1:], states, strict=False))
            return [Meaning(own, f"{label}[{i}]", value[i], zero_based, label) for i, (own, zero_based) in pairs]
    if name.lower() in ("attentions", "all_attentions") and not isinstance(value, list) and shape[:1] == (depth,):
        return [Meaning(f"encoder.layer.{i}.attention.self.probs", f"{label}[{i}]", value[i]) for i in range(depth)]
    loose = _LOOSE.match(name.lower()) if len(name) < _LONGEST else None
    if loose is not None and int(loose[1]) <= depth:
        number, group = int(loose[1]), f"{name[: loose.start(1)]}#{name[loose.end(1) :]}"
        if number == depth:  # numbers from 0 to depth, or from 1 on: hidden states
            return [Meaning(states[-1], label, value, "", group)]
        return [Meaning(states[number + 1], label, value, states[number], group)]
    return [Meaning(states[-1], label, value)] if name.lower() in _TOKENS_NAMES else []


def _by_shape(label: str, value: Array | list[Array], subject: Subject, batch: PackedBatch) -> list[Meaning]:
    """Guess what the only array of a dump is, if its name is unknown: all hidden states, vectors, or the last state."""
    (B, S), H, states = batch.mask.shape, subject.config.hidden_size, states_of(subject.config)
    if isinstance(value, list):
        return []
    if value.shape in ((len(states), B, S, H), (len(states) * B * S * H,)):
        return _states(label, value.reshape(len(states), B, S, H), states)
    for name in (VECTOR, states[-1]):
        if name in subject.specs and align(value, name, subject, batch, lambda array, name: 0.0) is not None:
            return [Meaning(name, label, value, guessed=True)]
    return []


def shape_of(value: Array | list[Array]) -> str:
    """Return the shape of a dumped array for messages; a list has one array for each text."""
    return f"({counted(len(value), 'text')})" if isinstance(value, list) else str(value.shape)


# --- layouts -> the padded form of a trace; where two shapes fit, the error decides ----------------------------------


class Aligned(NamedTuple):
    """An array in padded form; `layout` describes the dumped form, "" if it was padded already.

    `by_value` says that its shape fits the usual layout too, and that only its values decided for another one.
    """

    array: FloatArray
    layout: str
    by_value: bool = False


# The layouts of each kind, the usual one first: texts B, tokens S, features W, heads A of D features, all tokens that
# are not masked T, queries Q and keys K. "(B S)" is one axis.
_PADDED = {"tokens": "B S W", "pairs": "B A Q K", "pooled": "B W"}
_LAYOUTS = {
    "tokens": ("B S W", "S B W", "B W S", "(B S) W", "W (B S)", "(B S W)", "(S B W)", "(B W S)"),
    "packed": ("T W", "W T", "(T W)", "(W T)"),
    "heads": ("B A S D", "B S A D", "S B A D", "(B A) S D", "B A D S"),
    "packed heads": ("T A D", "A T D"),
    "pairs": ("B A Q K", "B Q A K", "B Q K A", "A B Q K", "(B A) Q K", "(A B) Q K", "(B A Q K)"),
    "pooled": ("B W", "W B", "(B W)"),
}


_LETTERS = str.maketrans("WQK", "HSS")  # the letters that the pages use


Error: TypeAlias = Callable[[FloatArray, str], float]
"""The relative error of an array beside the value of a name; it decides between names and layouts."""


def align(value: Array | list[Array], name: str, subject: Subject, batch: PackedBatch, error: Error) -> Aligned | None:
    """Convert a dumped value to the padded form of a name; return None if its shape does not fit any layout."""
    spec = subject.specs[name]
    num_heads = spec.num_heads or subject.config.num_attention_heads
    candidates = _of_texts(value, spec, batch) if isinstance(value, list) else _of_array(value, spec, batch, num_heads)
    by_layout: dict[str, Array] = {}
    for array, layout in candidates:
        by_layout.setdefault(layout, np.ascontiguousarray(array))
    aligned = [Aligned(array, layout) for layout, array in by_layout.items()]
    if len(aligned) < 2:
        return aligned[0] if aligned else None
    errors = [error(candidate.array, name) for candidate in aligned]
    best = int(np.argmin([np.inf if np.isnan(e) else e for e in errors]))
    # The first one is the usual one. A wrong value may by chance be a little nearer in another layout.
    return aligned[best]._replace(by_value=best > 0) if not errors[best] > 0.1 * errors[0] else aligned[0]


def _of_array(value: Array, spec: Spec, batch: PackedBatch, num_heads: int) -> Iterator[tuple[Array, str]]:
    (B, S), T, W = batch.mask.shape, batch.num_tokens, spec.width
    sizes = {"B": B, "S": S, "T": T, "W": W, "A": num_heads, "D": W // num_heads, "Q": S, "K": S}
    if spec.kind == "pairs":
        sizes["A"] = W
    for layout in _LAYOUTS[spec.kind]:
        yield from _arranged(value, layout, _PADDED[spec.kind], sizes)
    if spec.kind != "tokens":
        if spec.kind == "pooled" and value.ndim == 3 and value.size == B * W:  # (B, 1, H)
            yield value.reshape(B, W), str(value.shape)
        return
    for layout in _LAYOUTS["packed"]:
        for packed, form in _arranged(value, layout, "T W", sizes):
            yield batch.pad(packed), f"{form or '(T, H)'}, without padding"
    if value.ndim == 3 and value.shape[0] == B and value.shape[2] == W and value.shape[1] != S:
        yield from _of_other_length(value, batch)
    if spec.num_heads:
        for layout in _LAYOUTS["heads"]:
            for array, form in _arranged(value, layout, "B S A D", sizes):
                yield array.reshape(B, S, W), form or "(B, S, A, D)"
        for layout in _LAYOUTS["packed heads"]:
            for packed, form in _arranged(value, layout, "T A D", sizes):
                yield batch.pad(packed.reshape(T, W)), f"{form or '(T, A, D)'}, without padding"
    if spec.name == "embeddings.position_embeddings" and B != 1 and value.shape in ((1, S, W), (S, W)):
        yield np.broadcast_to(value.reshape(1, S, W), (B, S, W)), "one array for all texts"
    if (value.ndim > 2 and value.shape[0] == 1 != B) or (value.ndim > 3 and 1 in value.shape):
        yield from _of_array(value.reshape([size for size in value.shape if size != 1]), spec, batch, num_heads)


def _arranged(value: Array, layout: str, padded: str, sizes: dict[str, int]) -> Iterator[tuple[Array, str]]:
    """Yield an array with the axes of `padded`, if it has the shape of the layout; for one text, B may be left out."""
    for own_layout in (layout, layout.replace("B", "").strip()) if sizes["B"] == 1 else (layout,):
        axes = [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\w", own_layout)]
        if value.shape != tuple(math.prod(sizes[axis] for axis in group) for group in axes):
            continue
        order = [axis for group in axes for axis in group]
        split = value.reshape([sizes[axis] for axis in order])
        missing = [axis for axis in padded.split() if axis not in order]
        split = split.reshape((1,) * len(missing) + split.shape)
        array = split.transpose([[*missing, *order].index(axis) for axis in padded.split()])
        letters = [" ".join(group).translate(_LETTERS) for group in axes]
        if len(letters) == 1:
            yield array, f"numbers without a shape, ({letters[0].replace(' ', ', ')})"
        else:
            yield array, "" if own_layout == padded else f"({', '.join(letters)})"


def _of_other_length(value: Array, batch: PackedBatch) -> Iterator[tuple[Array, str]]:
    """Cut or fill padding on the right, unless tokens that are not masked would be lost."""
    B, S = batch.mask.shape
    length = value.shape[1]
    if not batch.mask[:, length:].any():
        padded = np.zeros((B, S, value.shape[2]), value.dtype)
        padded[:, :length] = value[:, :S]
        yield padded, f"{length} columns instead of {S}"


def _of_texts(value: list[Array], spec: Spec, batch: PackedBatch) -> Iterator[tuple[Array, str]]:
    """Place the arrays of single texts, each of the tokens that are not masked."""
    lengths = np.diff(batch.cu_seqlens).tolist()
    if len(value) != len(lengths):
        return
    arrays: list[Array] = []
    for numbers, length in zip(value, lengths, strict=True):
        array, expected = np.asarray(numbers), spec.shape(1, length)[1:]
        while len(array) == 1 and array.ndim > max(2, len(expected)):
            array = array[0]
        if array.shape != expected:
            return
        arrays.append(array)
    if spec.kind == "pairs":
        padded = batch.pad_pairs([array.astype(np.result_type(*arrays)) for array in arrays], spec.width)
    else:
        padded = np.stack(arrays) if spec.kind == "pooled" else batch.pad(np.concatenate(arrays))
    yield padded, "one array for each text"


# --- the place of each array ------------------------------------------------------------------------------------------

NEARER = 100.0
"""A value is taken for another one if it is nearer to it by this factor."""


class Placed(NamedTuple):
    """One array: canonical name, name in the dump, array in padded form, and the layout in the dump."""

    name: str
    label: str
    array: FloatArray
    layout: str


class Placement(NamedTuple):
    """The result of `place`: arrays in the order of the forward pass, names that were not compared, notes, warnings.

    `misfits` have a shape that does not fit; `unknown` have a loose name, and are far from the value that it may mean.
    """

    arrays: list[Placed]
    misfits: list[str]
    unknown: list[str]
    notes: list[str]
    warnings: list[str]


def place(meanings: list[Meaning], subject: Subject, batch: PackedBatch, error: Error) -> Placement:
    """Convert all arrays that fit to padded form."""
    placement, specs = Placement([], [], [], [], []), subject.specs
    exact = {meaning.name for meaning in meanings if not meaning.group} & {*states_of(subject.config)}
    tried: list[tuple[Meaning, dict[str, Aligned]]] = []
    for meaning in meanings:
        if meaning.name not in specs:
            remedy = "give a SentenceTransformer to compare them"
            placement.notes.append(f"{meaning.label} holds sentence vectors; {remedy}.")
            continue
        names = filter(None, (meaning.name, meaning.other_name))
        fitting = {name: aligned for name in names if (aligned := align(meaning.value, name, subject, batch, error))}
        if fitting:
            tried.append((meaning, fitting))
        else:
            placement.misfits.append(meaning.label)
            placement.notes.append(_not_compared(meaning, specs[meaning.name].shape(*batch.mask.shape)))
    from_embeddings = _counted_from_embeddings(tried, error)
    taken: list[tuple[Meaning, str]] = []
    for meaning, fitting in tried:
        name = meaning.other_name if meaning.other_name and meaning.group in from_embeddings else meaning.name
        if meaning.group and name in exact and not any(error(fitting[name].array, other) < _FAR for other in exact):
            placement.unknown.append(meaning.label)
            placement.notes.append(
                f"{meaning.label} is far from {name}, whose exact name is there, so it is not compared."
            )
            continue
        taken.append((meaning, name))
        placement.arrays.append(Placed(name, meaning.label, fitting[name].array, fitting[name].layout))
        if fitting[name].by_value:
            placement.warnings.append(
                f"{meaning.label} was read as {fitting[name].layout} because of its values; its shape fits the usual "
                "layout too. If the port means the usual one, its axes are exchanged."
            )
    guessed = [(meaning.label, name) for meaning, name in taken if meaning.guessed or meaning.group]
    if guessed:
        more = f" and {len(guessed) - 1} more as in the table" if len(guessed) > 1 else ""
        placement.notes.append(f"{guessed[0][0]} was taken for {guessed[0][1]}{more}, by value.")
    order = {name: i for i, name in enumerate(specs)}
    placement.arrays.sort(key=lambda placed: order[placed.name])
    return placement


def _counted_from_embeddings(tried: list[tuple[Meaning, dict[str, Aligned]]], error: Error) -> set[str]:
    """Return the groups of names whose number 0 is the embeddings: the one way of counting must fit more arrays."""
    votes = Counter[str]()
    for meaning, fitting in tried:
        if meaning.other_name:
            own, other = (error(fitting[name].array, name) for name in (meaning.name, meaning.other_name))
            votes[meaning.group] += int(other < own / NEARER) - int(own < other / NEARER)
        elif meaning.group:  # the number of layers: no output of a layer that is counted from 0 has it
            votes[meaning.group] += len(tried)
    return {group for group, count in votes.items() if count > 0}


def _not_compared(meaning: Meaning, expected: tuple[int, ...]) -> str:
    text = f"{meaning.label} has shape {shape_of(meaning.value)}; expected {expected}."
    size = 0 if isinstance(meaning.value, list) else meaning.value.size
    for factor, precision in ((2, "float64"), (0.5, "float16")):
        if size == factor * math.prod(expected) and np.ndim(meaning.value) == 1:
            text += f" It is as long as {precision} numbers would be: write float32."
    if not isinstance(meaning.value, list) and meaning.value.shape[1:] == expected[1:]:
        text += f" It has {counted(len(meaning.value), 'text')}, the inputs have {expected[0]}: were these the inputs?"
    return f"{text} It was not compared."
