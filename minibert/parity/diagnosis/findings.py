"""`Finding`: one statement of a diagnosis, with its evidence: rows, heads, biases, dropout, a model's head."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, counted
from minibert.bert import reference
from minibert.bert.ops import PreparedLinear
from minibert.parity.diagnosis import fits
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.formulas import CURVES
from minibert.parity.diagnosis.forward import DENSE, Mistake, Model, both_names, state_name, symbol_of
from minibert.parity.diagnosis.replay import Replay, rms
from minibert.parity.truth import HALF_PRECISIONS, Padded, mask_of, round_to, visible
from minibert.trace.names import EMBEDDINGS, HEADS, LAYER, POOLER, Entry

if TYPE_CHECKING:
    from minibert.parity.diagnosis.search import Search


@dataclasses.dataclass(frozen=True)
class Finding:
    """A cause of a difference, or the statement that no known cause explains it.

    Parameters
    ----------
    text : str
        What differs and where; it names the config field or the op.
    mistake : str
        The id of the mistake that explains the difference best, "" if none does. It is one of `catalogue.MISTAKES`, or
        that of a mistake whose number was fitted, or that was read from the port's values, such as "T1.ids".
    names : tuple of str
        The names whose difference this finding is about, in the order of the forward pass.
    explained : float
        The share of the difference that disappears with this mistake in the float64 forward, 0 to 1.
    remedy : str
        What to change in the port.
    alternatives : tuple of str
        Ids of other mistakes that explain this dump equally well.
    separate : str
        What to dump, or which inputs to give, to tell the alternatives apart; "" if there are none.
    """

    text: str
    mistake: str
    names: tuple[str, ...]
    explained: float
    remedy: str
    alternatives: tuple[str, ...] = ()
    separate: str = ""

    @property
    def candidates(self) -> tuple[str, ...]:
        """The ids of all mistakes that explain the dump."""
        return (self.mistake, *self.alternatives) if self.mistake else ()


def some_of(names: Sequence[str], most: int = 8) -> str:
    """Return the first names and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# --- where a mistake is -----------------------------------------------------------------------------------------------

Site: TypeAlias = tuple[str, int | None]
"""The symbol of a value in trace/names.py, and its layer."""

_WHERE = {"embeddings": "in the embeddings", "attention": "after attention", "output": "after the feed forward"}
_WHERE |= {f"{block}_sum": where for block, where in _WHERE.items()}
_WHERE |= {e.symbol: f"in {e.path.removeprefix('encoder.layer.{i}.')}" for e in LAYER if e.symbol not in _WHERE}


def _sites(mistake: Mistake, names: Iterable[str]) -> set[Site]:
    """Return where a mistake is made in the computation of some names."""
    where = ((name.split("."), symbol_of(name)) for name in names if mistake.acts_at(name))
    return {(symbol, int(path[2]) if path[0] == "encoder" else None) for path, symbol in where}


def _listed(layers: Iterable[int]) -> str:
    numbers = [str(layer) for layer in sorted(layers)]
    return f"layer{'s' if numbers[1:] else ''} {', '.join(numbers)}"


class Sites(NamedTuple):
    """The sites where a mistake was found and where values contradict it; both empty if the layer is unknown."""

    found: frozenset[Site] = frozenset()
    absent: frozenset[Site] = frozenset()

    @classmethod
    def of(
        cls,
        segments: Mapping[str, frozenset[str]],
        mistake: Mistake,
        names: Iterable[str],
        contradicted: Iterable[str],
    ) -> Sites:
        """Find the sites of a mistake that explains some names and is contradicted by others."""
        found = [_sites(mistake, segments[name]) for name in names] if mistake.parts else []
        if any(len({layer for _, layer in sites}) > 1 for sites in found):
            return cls()
        anywhere = dataclasses.replace(mistake, names=None)
        absent = [_sites(anywhere, segments[name]) for name in contradicted]
        every = frozenset[Site]().union(*found)
        return cls(every, frozenset[Site]().union(*absent) - every)

    def together(self, other: Sites) -> Sites:
        """Combine the sites of the same mistake that was found twice."""
        found = self.found | other.found
        return Sites(found, (self.absent | other.absent) - found) if self.found and other.found else Sites()

    def text(self, mistake: Mistake, num_layers: int, others: Collection[int | None]) -> str:
        """Say where the mistake is: ", after attention, in layers 3, 4"; other causes explain the layers `others`."""
        layers = {layer for _, layer in self.found}
        beside = {symbol for symbol, layer in self.absent if layer in layers} - {"embeddings"}
        whole = mistake.id not in MISTAKES or mistake.symbols == MISTAKES[mistake.id].symbols
        if whole and not beside:
            return self._in_layers(layers, num_layers, others)
        alike: dict[frozenset[int | None], list[str]] = {}
        for symbol in mistake.symbols:
            of_symbol = frozenset(layer for one, layer in self.found if one == symbol)
            if of_symbol:
                alike.setdefault(of_symbol, []).append(_WHERE.get(symbol, f"in {symbol}"))
        return "".join(
            f", {' and '.join(dict.fromkeys(where))}"
            + (self._in_layers({*found}, num_layers, others) if found != {None} else "")
            for found, where in alike.items()
        )

    def _in_layers(self, found: set[int | None], count: int, others: Collection[int | None]) -> str:
        layers = {layer for layer in found if layer is not None}
        elsewhere = {layer for _, layer in self.absent if layer is not None}
        embeddings = None in found and any(symbol.startswith("embeddings") for symbol, _ in self.found)
        if not layers:
            return ", in the embeddings only" if embeddings and elsewhere else ""
        first = "in the embeddings and " if embeddings else ""
        if len(layers) == count > 1:
            return f", {first}in all {count} layers"
        text = f", {first}in {_listed(layers)}"
        silent = {*range(count)} - layers - elsewhere - {*others}
        if silent:
            return f"{text} (this dump does not say whether it is in {_listed(silent)})"
        return f"{text} only" if len(layers) == 1 < count and not first else text


# --- the sentences ----------------------------------------------------------------------------------------------------


def mislabelled(moved: Mapping[str, str], mistakes: Sequence[Mistake]) -> Finding:
    """Return the finding for mislabelled arrays, which hold the values of other names, with mistakes as causes."""
    name, source = next(iter(moved.items()))
    more = f"; the same is true of {counted(len(moved) - 1, 'other name')}" if len(moved) > 1 else ""
    text = f"{both_names(name)} holds the values of {both_names(source)}{more}"
    if not mistakes:
        return Finding(text, "", tuple(moved), 1.0, "Dump the output of the module with this name.")
    best, ids = mistakes[0], tuple(other.id for other in mistakes[1:])
    separate = "Dump more names." if ids else ""
    return Finding(f"{best.text}: {text}", best.id, tuple(moved), 1.0, best.remedy, ids, separate)


def separate_by(mistake: Mistake, alternatives: Sequence[Mistake]) -> str:
    """Say which measurement would distinguish the mistakes."""
    if not alternatives:
        return ""
    symbols = [set(one.symbols) for one in (mistake, *alternatives)]
    places = sorted(symbols[0].union(*symbols[1:]) - symbols[0].intersection(*symbols[1:]))
    if places:
        return f"Dump every name; {', '.join(places[:4])} of `minibert parity names` would tell."
    return (
        "Give more and longer texts, with all that the probe has: a second segment, a hole in the mask, padding on the "
        "left. If that does not tell them apart, they give the same numbers with this model, and repairing either one "
        "is enough."
    )


_FORMULAS = {entry.symbol: f"{entry.symbol} = {entry.formula}" for entry in (*EMBEDDINGS, *LAYER, *POOLER)}
_DUMP_STATES = "Dump the hidden states, hidden_states.0 and the next ones."
_OTHER_MODEL = (
    "The values are far from the true ones: perhaps the port has other ids or another checkpoint. Compare input_ids "
    "and embeddings.word_embeddings.weight first."
)


def unknown(search: Search, names: Sequence[str], seen: Facts) -> Finding:
    """Return the finding for names of one kind that no known mistake explains; `seen` describes the first one."""
    first, shown = names[0], ""
    measured, segment = search.measured[first], search.replay.segments[first]
    far = measured.error > measured.size / 2
    if seen.texts:
        shown = f" ({'the first one: ' if len(names) > 1 else ''}{'; '.join(seen.texts)})"
    if search.has_several_layers(first):
        text = (
            f"{first} is wrong, and no single known mistake explains it{shown}. This dump cannot tell where it begins: "
            "there is no name before it. Combinations of mistakes were not tried."
        )
        remedy = f"{_OTHER_MODEL} {_DUMP_STATES}" if far else _DUMP_STATES
        if seen.some_rows:
            remedy = f"Compare input_ids, mask and token types of the rows that are wrong. {_DUMP_STATES}"
        return Finding(text, "", tuple(names), 0.0, remedy)
    like = f" and {counted(len(names) - 1, 'more name')} of this kind" if len(names) > 1 else ""
    where = "this op alone" if len(segment) == 1 else f"one of the {len(segment)} ops before it"
    text = f"{first}{like}: wrong, though what goes in is right; {where}, with no known cause{shown}"
    untried = [name for name in search.untried if name in names]
    if untried:
        more = f" and {len(untried) - 1} more" if len(untried) > 1 else ""
        text += f". Combinations of mistakes were not tried for {untried[0]}{more}"
    remedy = "Compare the weights of this module with the checkpoint, then its formula with minibert/bert/reference.py"
    remedy += f": {_FORMULAS[symbol_of(first)]}." if symbol_of(first) in _FORMULAS else "."
    if len(segment) > 1:
        missing = sorted(segment - {first})
        remedy = f"Dump every name of this part, so that one op is left: {', '.join(missing[:3])}, ..."
    if far and first.startswith("embeddings"):
        remedy = f"{_OTHER_MODEL} Then: {remedy}"
    return Finding(text, "", tuple(names), 0.0, remedy)


def cannot_tell(names: Sequence[str], *, alone: bool) -> Finding:
    """Return the finding for small differences that no single op causes."""
    text, remedy = (
        "is outside the budget, but each op is right on the inputs that it was given: small differences add up, or the "
        "values of another run were dumped",
        "Dump all names in one run, and compare the inputs of both sides.",
    )
    if alone:
        text = "is a little outside the budget. This dump cannot tell where that begins: there is no name before it."
        remedy = _DUMP_STATES
    return Finding(f"{names[0]} {text}", "", tuple(names), 0.0, remedy)


# --- evidence ---------------------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """Facts about a wrong value; values that are described together must have the same `same`."""

    texts: tuple[str, ...]
    same: tuple[str, ...] = ()
    some_rows: bool = False


def facts(search: Search, name: str, rows: Sequence[str]) -> Facts:
    """Describe which rows, heads and features of a name differ, and how; `rows` are labels of the rows."""
    replay, limit = search.replay, search.budget * search.measured[name].unit
    exact = replay.run(search.chosen, [search.span_of(name)], compute=[name])[name]
    given, mask = replay.port[name], mask_of(name, replay.inputs.mask)
    values = visible(given, mask)
    if not np.isfinite(values).all():
        return Facts((f"it holds {int((~np.isfinite(values)).sum())} of {values.size} values that are not finite",))
    wrong, right = rows_that_differ(exact, given, mask, 2 * limit)
    labels = [f"{i} ({rows[i]})" if i < len(rows) and rows[i] else str(i) for i in wrong]
    same = _only("row", labels, right)
    numbers: list[str] = []
    differs = ~(np.abs(given - exact) <= 10 * limit)
    if exact.ndim == 3:
        tokens = differs.any(axis=2) & mask
        if not same and 0 < tokens.sum() < mask.sum():
            numbers.append(f"{int(tokens.sum())} of {int(mask.sum())} tokens")
        columns = np.flatnonzero((differs & mask[:, :, None]).any(axis=(0, 1)))
        if 0 < len(columns) < exact.shape[2]:
            numbers.append(f"{len(columns)} of {exact.shape[2]} features")
        if fits.fit_columns(exact[mask], given[mask]) is not None:
            same.append("its columns are the right ones in another order")
        length = fits.fit_length(exact[mask], given[mask])
        if length is not None and length[1] < 1e-3:
            numbers.append(f"it is {length[0]:.6g} times the right value")
    elif exact.ndim == 4:
        pairs = differs & (mask[:, None, :, None] & mask[:, None, None, :])
        heads = pairs.any(axis=(0, 2, 3))
        same += _only("head", np.flatnonzero(heads).tolist(), np.flatnonzero(~heads).tolist())
        sums = given.sum(axis=-1)[np.broadcast_to(mask[:, None, :], given.shape[:3])]
        if symbol_of(name) == "probs" and np.abs(sums - 1).max(initial=0) > 1e-4:
            span_of_sums = " to ".join(dict.fromkeys(f"{one:.6g}" for one in (sums.min(), sums.max())))
            numbers.append(f"the probs of a token do not sum to 1, but to {span_of_sums}")
    same += _bias(replay, name, given - exact)
    if not np.isin(values, (0, 1, -1)).all():  # these are numbers of every format
        stored = [one for one in reversed(HALF_PRECISIONS) if np.array_equal(values, round_to(one, values))]
        same += [f"all its values are {one} numbers" for one in stored[:1]]
    return Facts((*same, *numbers), tuple(same), bool(wrong and right))


def rows_that_differ(
    exact: FloatArray, given: FloatArray, mask: npt.NDArray[np.bool_], limit: float
) -> tuple[list[int], list[int]]:
    """Return the wrong rows and the right rows; rows without visible positions are in neither list."""
    wrong: list[int] = []
    right: list[int] = []
    for i in range(len(mask)):
        one, other = (visible(array[i : i + 1], mask[i : i + 1]) for array in (exact, given))
        if one.size:
            (right if rms(other - one) <= limit else wrong).append(i)
    return wrong, right


def _only(noun: str, wrong: Sequence[object], right: Sequence[object]) -> list[str]:
    """Say which rows or heads are wrong, if others are right."""
    if not wrong or not right:
        return []
    plural = [("s", "are") if some[1:] else ("", "is") for some in (wrong, right)]
    texts = [some_of([*map(str, some)]) for some in (wrong, right)]
    return [f"{noun}{plural[0][0]} {texts[0]} only; {noun}{plural[1][0]} {texts[1]} {plural[1][1]} right"]


def _bias(replay: Replay, name: str, difference: FloatArray) -> list[str]:
    """Say that the difference of a linear map is the same for every token, and which bias that would be."""
    if symbol_of(name) not in DENSE or difference.ndim != 3:
        return []
    rows = difference[replay.inputs.mask]
    mean = rows.mean(axis=0)
    size = rms(mean)
    if len(rows) < 2 or not rms(rows - mean) < 1e-3 * size:
        return []
    text = "the difference is the same for every token, so the bias is wrong"
    layer = replay.model.weights.layers[int(name.split(".")[2])]
    biases = {
        path: bias
        for linear in (layer.query_key_value, layer.attention_output, layer.intermediate, layer.output)
        for path, bias in zip(linear.paths, np.split(linear.bias, len(linear.paths)), strict=True)
    }
    found = biases.pop(name) + mean
    near = [path for path, bias in biases.items() if bias.shape == found.shape and rms(bias - found) < 1e-3 * size]
    return [f"{text}: it is that of {near[0]}" if near else text]


def dropout(replay: Replay, remaining: Sequence[str]) -> Finding | None:
    """Detect dropout: some values are zero, and all others are larger by one factor."""
    exact = replay.run(compute=remaining)
    mask, hit, rates = replay.inputs.mask, [], []
    for name in remaining:
        if symbol_of(name) not in ("embeddings", "probs", "attention_sum", "output_sum"):
            continue
        wanted, given = exact[name], replay.port[name]
        if symbol_of(name).endswith("_sum"):
            dense = f"{name.removesuffix('LayerNorm.input')}dense"
            if dense not in replay.port:
                continue
            residual = wanted - replay.port[dense]
            wanted, given = replay.port[dense], given - residual
            given = np.where(np.abs(given) < 1e-5 * np.abs(residual).max(initial=1), 0, given)
        rate = fits.fit_dropout(visible(wanted, mask), visible(given, mask))
        if rate is not None:
            hit.append(name)
            rates.append(rate)
    if not hit:
        return None
    # A later hidden state has dropout in it too, but does not show it.
    states = {state_name(i + 1) for i in range(replay.model.config.num_hidden_layers)}
    hit += [name for name in remaining if name in states and name not in hit and len(replay.segments[name]) > 3]
    mistake = MISTAKES["D1.dropout"]
    text = f"{mistake.text}; about {100 * float(np.median(rates)):.0f} % of {hit[0]} are zero"
    return Finding(text, mistake.id, tuple(hit), 1.0, mistake.remedy)


# --- the head of a model ----------------------------------------------------------------------------------------------

# Rows of a value that are compared, because a row of logits can have as many numbers as the vocabulary.
_HEAD_ROWS = 256

# An error is that of float32 if it is at most this part of the value's RMS. A sum of a few thousand products has less.
_FLOAT32 = 1e-5


def _log_softmax(x: FloatArray) -> FloatArray:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


_APPLIED: dict[str, Callable[[FloatArray], FloatArray]] = {
    "softmax": reference.softmax,
    "log_softmax": _log_softmax,
    "sigmoid": reference.ACTIVATION_FUNCTIONS["sigmoid"],
    "tanh": np.tanh,
}


def head_findings(
    model: Model, inputs: Padded, port: Mapping[str, FloatArray], wrong: Sequence[str]
) -> Iterator[Finding]:
    """Yield the findings about the head: each wrong name that does not follow from the port's own earlier values."""
    head = model.weights.head
    entries = HEADS[head.name] if head is not None and wrong else ()
    known = {
        name: visible(np.asarray(array), inputs.mask).reshape(-1, np.shape(array)[-1])[:_HEAD_ROWS].astype(np.float64)
        for name, array in (port.items() if entries else ())
        if np.ndim(array) in (2, 3)
    }
    for entry in (entry for entry in entries if entry.path in wrong):
        words = entry.formula.replace("(", " ").replace(")", " ").split()
        before = [other.path for other in entries if other.symbol in words and other is not entry]
        last = "pooler" if "pooler" in words else state_name(model.config.num_hidden_layers)
        source = before[0] if before else last
        if source in known:
            yield from _of_head(model, entry, known[source], known[entry.path])
            continue
        text = f"{entry.path} is wrong. This dump does not hold what goes in, and cannot tell whether the head is wrong"
        yield Finding(text, "", (entry.path,), 0.0, f"Dump {source} too.")


def _of_head(model: Model, entry: Entry, x: FloatArray, given: FloatArray) -> Iterator[Finding]:
    """Say what a value of the head is, if it is not that which follows from x."""
    head, name = model.weights.head, entry.path
    assert head is not None
    predictions = head.predictions
    maps: list[PreparedLinear | None] = [head.classifier, head.qa_outputs, head.seq_relationship]
    maps += [predictions.transform, predictions.decoder] if predictions is not None else []
    linear = next((one for one in maps if one is not None and entry.weights in one.paths), None)
    tried: list[tuple[FloatArray, str, str, str]] = []
    if linear is not None:
        weight, bias = linear.weight.astype(np.float64), linear.bias.astype(np.float64)
        exact: FloatArray = x @ weight.T + bias
        text = f"weights: {name}.bias is missing"
        tried.append((exact - bias, "W2.head", text, f"Load the tensor {name}.bias and add it."))
        for function, apply in _APPLIED.items():
            text = f"head: {name} holds {function} of the logits; the value is the logits themselves"
            tried.append((apply(exact), "H2.applied", text, f"Dump the value before {function}."))
        order = fits.fit_columns(exact, given)
        if order is not None:
            text = f"head: the columns of {name} are the right ones in another order: {order[:12].tolist()}"
            tried.append((exact[:, order], "H2.labels", text, "Take the order of id2label in config.json."))
        if weight.shape[0] == weight.shape[1]:
            text = f"weights: {name}.weight is transposed"
            tried.append((x @ weight + bias, "W1.head", text, "A weight is (outputs, inputs): y = x W^T + b."))
    elif entry.symbol == "transform_act":
        exact = reference.ACTIVATION_FUNCTIONS[model.config.activation](x)
        for applied, curve in CURVES.items():
            text = f"hidden_act: in {name} {applied} is applied; config.json has {model.config.hidden_act}"
            tried.append((curve(x), "G1.head", text, "The head applies hidden_act of config.json too."))
    else:
        assert predictions is not None
        exact = reference.layer_norm(x, predictions.transform_norm)
    if rms(given - exact) <= _FLOAT32 * rms(exact):
        return
    limit = min(0.01 * rms(given - exact), 1e-4 * rms(given))
    for made, id, text, remedy in tried:
        if rms(given - made) <= limit:
            yield Finding(text, id, (name,), 1.0, remedy)
            return
    text = f"{name}: wrong, though what goes in is right; this op alone, with no known cause"
    remedy = "Compare its weights with the checkpoint, then its formula with minibert/bert/heads.py."
    yield Finding(text, "", (name,), 0.0, remedy)
