"""The findings of a diagnosis in words: what is wrong, and where; what differs without a known cause; what to do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from minibert._utils.validation import counted, some_of
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.mistake import Mistake
from minibert.parity.diagnosis.search import Search, run_of
from minibert.parity.finding import Finding
from minibert.parity.symbols import DENSE, ENTRIES, both_names, symbol_of
from minibert.parity.truth import HALF_PRECISIONS, VECTOR, mask_of, rms, round_to, unmasked
from minibert.trace.layout import Layout


def mislabelled(moved: Mapping[str, str], mistakes: Sequence[Mistake]) -> Finding:
    """Return the finding for arrays that hold the values of other names; mistakes are the causes."""
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
    symbols = [set(other.symbols) for other in (mistake, *alternatives)]
    places = sorted(symbols[0].union(*symbols[1:]) - symbols[0].intersection(*symbols[1:]))
    if places:
        return f"Dump every name; {', '.join(places[:4])} of `minibert parity names` would tell."
    return (
        "Give more and longer texts, with all that the probe has: a second segment, a hole in the mask, padding on the "
        "left. If that does not tell them apart, they give the same numbers with this model, and repairing either one "
        "is enough."
    )


# The part of a difference that rounding may leave of one factor, or of one bias.
_SAME = 1e-3

_DUMP_STATES = "Dump the hidden states, hidden_states.0 and the next ones."
_OTHER_MODEL = (
    "The values are far from the true ones: perhaps the port has other ids or another checkpoint. Compare input_ids "
    "and embeddings.word_embeddings.weight first."
)


def unknown(search: Search, names: Sequence[str], seen: Facts) -> Finding:
    """Return the finding for names of one kind that no known mistake explains; `seen` describes the first one."""
    first, evidence = names[0], ""
    measured, segment = search.measured[first], search.replay.segments[first]
    far = measured.error > measured.size / 2
    if seen.texts:
        evidence = f" ({'the first one: ' if len(names) > 1 else ''}{'; '.join(seen.texts)})"
    if search.has_several_layers(first):
        text = (
            f"{first} is wrong, and no single known mistake explains it{evidence}. This dump cannot tell where it "
            "begins: there is no name before it. Only one mistake at a time was tried."
        )
        remedy = f"{_OTHER_MODEL} {_DUMP_STATES}" if far else _DUMP_STATES
        if seen.some_rows:
            remedy = f"Compare input_ids, mask and token types of the rows that are wrong. {_DUMP_STATES}"
        return Finding(text, "", tuple(names), 0.0, remedy)
    like = f" and {counted(len(names) - 1, 'more name')} of this kind" if len(names) > 1 else ""
    where = "this op alone" if len(segment) == 1 else f"one of the {len(segment)} ops before it"
    text = f"{first}{like}: wrong, and its inputs are right; {where}, with no known cause{evidence}"
    untried = [name for name in search.untried if name in names]
    if untried:
        text += f". Only one mistake at a time was tried for {some_of(untried, 1)}"
    remedy = "Compare the weights of this module with the checkpoint, then its formula with minibert/bert/reference.py"
    entries = (entry for _, entry in Layout.of(search.replay.names.sizes).rows())
    remedy += next((f": {row.symbol} = {row.formula}." for row in entries if row.symbol == symbol_of(first)), ".")
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


def cannot_replay_vector() -> Finding:
    """Return the finding for a wrong vector of a text that more than a pooling and its length make."""
    text = (
        f"{VECTOR} is outside the budget. Only one pooling, with or without Normalize, is examined; this model has more"
    )
    return Finding(text, "", (VECTOR,), 0.0, "Compare the pooled vector and the result of each module with `encode`'s.")


# --- evidence ---------------------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """Facts about a wrong value; values that are described together must have the same `same`."""

    texts: tuple[str, ...]
    same: tuple[str, ...] = ()
    some_rows: bool = False


def facts(search: Search, name: str, labels: Sequence[str]) -> Facts:
    """Describe which rows, heads and features of a name differ, and how; `labels` name the rows."""
    exact, port, mask = search.computed(name), search.replay.port[name], mask_of(name, search.inputs.mask)
    values = unmasked(port, mask)
    if not np.isfinite(values).all():
        return Facts((f"it holds {int((~np.isfinite(values)).sum())} of {values.size} values that are not finite",))
    wrong, right = map(list, search.rows_that_differ(name, exact))
    same = _only("row", [f"{i} ({labels[i]})" if i < len(labels) else str(i) for i in wrong], right)
    numbers: list[str] = []
    where = search.part_that_differs(name, exact)
    if where is not None and where.heads is not None:
        same += _only("head", np.flatnonzero(where.heads).tolist(), np.flatnonzero(~where.heads).tolist())
    elif where is not None:
        numbers.append(str(where))
    if exact.ndim == 3:
        tokens = search.differing(name, exact).any(axis=2) & mask
        if not same and 0 < tokens.sum() < mask.sum():
            numbers.insert(0, f"{int(tokens.sum())} of {int(mask.sum())} tokens")
            if not (columns := np.any(tokens, axis=0)).all():
                numbers.insert(1, run_of("column", columns))
    elif exact.ndim == 4:
        sums = port.sum(axis=-1)[np.broadcast_to(mask[:, None, :], port.shape[:3])]
        if symbol_of(name) == "probs" and np.abs(sums - 1).max(initial=0) > 1e-4:
            range_of_sums = " to ".join(dict.fromkeys(f"{total:.6g}" for total in (sums.min(), sums.max())))
            numbers.append(f"the probs of a token do not sum to 1, but to {range_of_sums}")
    true = unmasked(exact, mask)
    factor = float(true @ values) / max(float(true @ true), 1e-300)
    if rms(values - factor * true) < _SAME * rms(values - true):
        numbers.append(f"it is {factor:.6g} times the right value")
    if symbol_of(name) in DENSE and exact.ndim == 3:
        rows = (port - exact)[mask]
        if len(rows) > 1 and rms(rows - rows.mean(axis=0)) < _SAME * rms(rows):
            same.append("the difference is the same for every token, so the bias is wrong")
    if not np.isin(values, (0, 1, -1)).all():  # these are numbers of every format
        stored = [form for form in reversed(HALF_PRECISIONS) if np.array_equal(values, round_to(form, values))]
        same += [f"all its values are {form} numbers" for form in stored[:1]]
    return Facts((*same, *numbers), tuple(same), bool(wrong and right))


def _only(noun: str, wrong: Sequence[object], right: Sequence[object]) -> list[str]:
    """Say which rows or heads are wrong, if others are right."""
    if not wrong or not right:
        return []
    plural = [("s", "are") if numbers[1:] else ("", "is") for numbers in (wrong, right)]
    texts = [some_of([*map(str, numbers)]) for numbers in (wrong, right)]
    return [f"{noun}{plural[0][0]} {texts[0]} only; {noun}{plural[1][0]} {texts[1]} {plural[1][1]} right"]


# --- where a mistake is ---------------------------------------------------------------------------------------------


class Cause(NamedTuple):
    """A mistake that was accepted, the mistakes that would do as well, and the names that contradict it."""

    mistake: Mistake
    alternatives: tuple[Mistake, ...]
    contradicted: frozenset[str]


Places: TypeAlias = frozenset[tuple[str, int | None]]
"""Symbols of values in trace/layout.py, each with its layer."""

_WHERE = {"embeddings": "in the embeddings", "attention": "after attention", "output": "after the feed forward"}
_WHERE |= {f"{block}_sum": where for block, where in _WHERE.items()}
_WHERE |= {e.symbol: f"in {e.path.removeprefix('encoder.layer.{i}.')}" for e in ENTRIES if e.symbol not in _WHERE}


def _places(mistake: Mistake, names: Iterable[str]) -> Places:
    """Return where a mistake is made in the computation of some names."""
    where = ((name.split("."), symbol_of(name)) for name in names if mistake.acts_at(name))
    return frozenset((symbol, int(path[2]) if path[0] == "encoder" else None) for path, symbol in where)


def _layers(layers: Collection[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, sorted(layers)))}"


class Sites(NamedTuple):
    """The sites where a mistake was found and where values contradict it; both empty if the layer is unknown."""

    present: Places = frozenset()
    absent: Places = frozenset()

    @classmethod
    def of(cls, segments: Mapping[str, frozenset[str]], cause: Cause, names: Iterable[str]) -> Sites:
        """Find the sites of a cause that explains some names and is contradicted by others."""
        by_name = [_places(cause.mistake, segments[name]) for name in names] if cause.mistake.parts else []
        if any(len({layer for _, layer in places}) > 1 for places in by_name):
            return cls()
        anywhere = cause.mistake.but(names=None)
        absent = [_places(anywhere, segments[name]) for name in cause.contradicted]
        every = Places().union(*by_name)
        return cls(every, Places().union(*absent) - every)

    def together(self, other: Sites) -> Sites:
        """Combine the sites of the same mistake that was found twice."""
        present = self.present | other.present
        return Sites(present, (self.absent | other.absent) - present) if self.present and other.present else Sites()

    def text(self, mistake: Mistake, num_layers: int, others: Collection[int | None]) -> str:
        """Say where the mistake is: ", after attention, in layers 3, 4"; other causes explain the layers `others`."""
        if mistake.id in MISTAKES and MISTAKES[mistake.id].names:  # its text says where
            return ""
        layers = {layer for _, layer in self.present}
        beside = {symbol for symbol, layer in self.absent if layer in layers} - {"embeddings"}
        whole = mistake.id not in MISTAKES or mistake.symbols == MISTAKES[mistake.id].symbols
        if whole and not beside:
            return self._in_layers(layers, num_layers, others)
        alike: dict[frozenset[int | None], list[str]] = {}
        for symbol in mistake.symbols:
            of_symbol = frozenset(layer for other, layer in self.present if other == symbol)
            if of_symbol:
                alike.setdefault(of_symbol, []).append(_WHERE.get(symbol, f"in {symbol}"))
        return "".join(
            f", {' and '.join(dict.fromkeys(where))}"
            + (self._in_layers({*of_symbol}, num_layers, others) if of_symbol != {None} else "")
            for of_symbol, where in alike.items()
        )

    def _in_layers(self, places: set[int | None], count: int, others: Collection[int | None]) -> str:
        layers = {layer for layer in places if layer is not None}
        elsewhere = {layer for _, layer in self.absent if layer is not None}
        embeddings = None in places and any(symbol.startswith("embeddings") for symbol, _ in self.present)
        if not layers:
            return ", in the embeddings only" if embeddings and elsewhere else ""
        first = "in the embeddings and " if embeddings else ""
        if len(layers) == count > 1:
            return f", {first}in all {count} layers"
        text = f", {first}in {_layers(layers)}"
        silent = {*range(count)} - layers - elsewhere - {*others}
        if silent:
            return f"{text} (this dump does not say whether it is in {_layers(silent)})"
        return f"{text} only" if len(layers) == 1 < count and not first else text
