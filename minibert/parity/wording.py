"""The sentences of a diagnosis."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from minibert.bert.config import BertConfig
from minibert.parity.finding import Finding
from minibert.parity.mistake import Mistake, symbol_of
from minibert.parity.mistakes import MISTAKES
from minibert.parity.subject import Padded
from minibert.trace.names import EMBEDDINGS, LAYER, POOLER

__all__ = ["ROWS_RIGHT", "Places", "cannot_tell", "finding_of", "renamed", "separate_by", "unknown"]


Site: TypeAlias = tuple[str, int | None]
"""The symbol of a value in trace/table.py, and its layer."""

_WHERE = {"embeddings": "in the embeddings", "attention": "after attention", "output": "after the feed forward"}
_WHERE |= {f"{block}_sum": where for block, where in _WHERE.items()}
_PATHS = {entry.symbol: entry.path.removeprefix("encoder.layer.{i}.") for entry in LAYER}


def _sites(mistake: Mistake, names: Iterable[str]) -> set[Site]:
    """Return where a mistake is made in the computation of some names."""
    where = ((name.split("."), symbol_of(name)) for name in names if mistake.acts_at(name))
    return {(symbol, int(path[2]) if path[0] == "encoder" else None) for path, symbol in where}


class Places(NamedTuple):
    """Where a mistake was found, and where it is contradicted; no places if the dump cannot tell the layer."""

    found: frozenset[Site] = frozenset()
    absent: frozenset[Site] = frozenset()

    @classmethod
    def of(
        cls,
        segments: Mapping[str, frozenset[str]],
        mistake: Mistake,
        names: Iterable[str],
        contradicted: Iterable[str],
    ) -> Places:
        """Find the places of a mistake that explains names and that other names contradict."""
        found = [_sites(mistake, segments[name]) for name in names] if mistake.parts else []
        if any(len({layer for _, layer in sites}) > 1 for sites in found):
            return cls()
        anywhere = dataclasses.replace(mistake, names=None)
        absent = [_sites(anywhere, segments[name]) for name in contradicted]
        every = frozenset[Site]().union(*found)
        return cls(every, frozenset[Site]().union(*absent) - every)

    def together(self, other: Places) -> Places:
        """Return the places of the same mistake, found twice."""
        found = self.found | other.found
        return Places(found, (self.absent | other.absent) - found) if self.found and other.found else Places()

    def text(self, mistake: Mistake, num_layers: int) -> str:
        """Say where the mistake is: ", after attention, in layers 3, 4"."""
        layers_of: dict[str, set[int | None]] = {}
        for symbol, layer in self.found:
            layers_of.setdefault(symbol, set()).add(layer)
        layers = {layer for _, layer in self.found}
        beside = {symbol for symbol, layer in self.absent if layer in layers} - {"embeddings"}
        partial = mistake.id in MISTAKES and mistake.symbols != MISTAKES[mistake.id].symbols
        if not beside and not partial:
            return self._layers(layers, num_layers)
        alike: dict[frozenset[int | None], list[str]] = {}
        for symbol in (one for one in mistake.symbols if one in layers_of):
            alike.setdefault(frozenset(layers_of[symbol]), []).append(symbol)
        return "".join(
            f", {' and '.join(dict.fromkeys(_WHERE.get(one, f'in {_PATHS.get(one, one)}') for one in symbols))}"
            + (self._layers({*found}, num_layers) if found != {None} else "")
            for found, symbols in alike.items()
        )

    def _layers(self, found: set[int | None], count: int) -> str:
        layers = sorted(layer for layer in found if layer is not None)
        elsewhere = {layer for _, layer in self.absent if layer is not None}
        embeddings = any(symbol.startswith("embeddings") for symbol, _ in self.found) and None in found
        if not layers:
            return ", in the embeddings only" if embeddings and elsewhere else ""
        first = "in the embeddings and " if embeddings else ""
        if len(layers) == count > 1:
            return f", {first}in all {count} layers"
        silent = sorted({*range(count)} - {*layers} - elsewhere)
        text = f", {first}in layer{'s' if layers[1:] else ''} {', '.join(map(str, layers))}"
        if silent:
            others = f"layer{'s' if silent[1:] else ''} {', '.join(map(str, silent))}"
            return f"{text} (this dump does not show it in {others}, or its absence)"
        return f"{text} only" if len(layers) == 1 < count and not first else text


def _with_config(text: str, config: BertConfig) -> str:
    """Put the values of this model into a text of the catalogue, which is for any model."""
    values = {"hidden_act": config.hidden_act, "layer_norm_eps": f"{config.layer_norm_eps:g}"}
    for field, value in values.items():
        text = text.replace(f"config.json has another {field}", f"config.json has {value}")
    return text


def finding_of(
    mistake: Mistake,
    names: tuple[str, ...],
    explained: float,
    alternatives: Sequence[Mistake],
    separate: str,
    config: BertConfig,
    places: Places,
) -> Finding:
    """Return the finding for a mistake that explains names."""
    where = places.text(mistake, config.num_hidden_layers)
    text = f"{mistake.text}{where}"
    if alternatives:
        others = "; or ".join(other.text for other in alternatives[:5])
        text = f"This dump cannot tell which{where}: {mistake.text}; or {others}"
    text = _with_config(text, config)
    ids = tuple(other.id for other in alternatives)
    return Finding(text, mistake.id, names, explained, mistake.remedy, ids, separate)


def separate_by(mistake: Mistake, alternatives: Sequence[Mistake], inputs: Padded) -> str:
    """Say what would tell mistakes apart: a name to dump, or rows that the inputs do not have."""
    if not alternatives:
        return ""
    symbols = [set(one.symbols) for one in (mistake, *alternatives)]
    places = sorted(symbols[0].union(*symbols[1:]) - symbols[0].intersection(*symbols[1:]))
    if places:
        return f"Dump every name; {', '.join(places[:4])} of `minibert parity names` would tell."
    kinds = {one.kind for one in (mistake, *alternatives)}
    wanted = ["padding", "a hole in the mask"] if kinds & {"A5", "A6"} else []
    wanted += ["a second segment", "padding on the left"] if kinds & {"E1", "E3", "E5"} else []
    missing = [row for row in wanted or _ROWS if not _ROWS[row](inputs)]
    if missing:
        return f"Give a row with {', and one with '.join(missing)}, as the probe has them."
    return (
        "Give more and longer texts. If that does not tell them apart, they give the same numbers with this model, and "
        "repairing either one is enough."
    )


def _hidden(inputs: Padded, *, before: bool) -> bool:
    """Return whether a place is hidden that has visible places after it, and with `before` also before it."""
    count = inputs.mask.cumsum(axis=1)
    return bool((~inputs.mask & (count < count[:, -1:]) & ((count > 0) == before)).any())


# What rows of the inputs can show.
_ROWS: dict[str, Callable[[Padded], bool]] = {
    "a second segment": lambda inputs: bool((inputs.types * inputs.mask).any()),
    "padding": lambda inputs: not bool(inputs.mask.all()),
    "a hole in the mask": lambda inputs: _hidden(inputs, before=True),
    "padding on the left": lambda inputs: _hidden(inputs, before=False),
}


ROWS_RIGHT = " right"
"""The words of `facts` that say that some rows are right."""

_FORMULAS = {entry.symbol: f"{entry.symbol} = {entry.formula}" for entry in (*EMBEDDINGS, *LAYER, *POOLER)}
_DUMP_STATES = "Dump the hidden states, hidden_states.0 and the next ones."
_OTHER_MODEL = (
    "The values are far from the true ones: perhaps the port has other ids or another checkpoint. Compare input_ids "
    "and embeddings.word_embeddings.weight first."
)


def unknown(
    names: Sequence[str],
    facts: str,
    segments: Mapping[str, frozenset[str]],
    *,
    wide: bool,
    untried: Sequence[str] = (),
    far: bool = False,
) -> Finding:
    """Return the finding for names that no known mistake explains.

    `untried` are those for which several mistakes at once were not tried; `far` means that the error of the first one
    is more than half of the value.
    """
    first = names[0]
    if wide:
        text = f"{first} is wrong, and no single known mistake explains it"
        text += f" ({facts})" if facts else ""
        text += ". This dump cannot tell where it begins: there is no name before it."
        text += " Several mistakes at once were not tried."
        remedy = f"{_OTHER_MODEL} {_DUMP_STATES}" if far and ROWS_RIGHT not in facts else _DUMP_STATES
        if ROWS_RIGHT in facts:
            remedy = f"Compare the input_ids, the mask and the token types of the rows that are wrong. {remedy}"
        return Finding(text, "", tuple(names), 0.0, remedy)
    like = f" and {len(names) - 1} more names of this kind" if len(names) > 1 else ""
    before = len(segments[first])
    where = "this op alone" if before == 1 else f"one of the {before} ops before it"
    text = f"{first}{like}: wrong, though what goes in is right; {where}, with no known cause"
    remedy = "Compare the weights of this module with the checkpoint, then its formula with minibert/bert/reference.py"
    formula = _FORMULAS.get(symbol_of(first))
    remedy += f": {formula}." if formula and before == 1 else "."
    if before > 1:
        missing = sorted(segments[first] - {first})
        remedy = f"Dump every name of this part, so that one op is left: {', '.join(missing[:3])}, ..."
    if far and first.startswith("embeddings"):
        remedy = f"{_OTHER_MODEL} Then: {remedy}"
    text = f"{text} ({facts})" if facts else text
    if untried:
        more = f" and {len(untried) - 1} more" if len(untried) > 1 else ""
        text += f". Several mistakes at once were not tried for {untried[0]}{more}"
    return Finding(text, "", tuple(names), 0.0, remedy)


def cannot_tell(names: Sequence[str], *, wide: bool) -> Finding:
    """Return the finding for small differences that no op makes alone."""
    if wide:
        text = f"{names[0]} is a little outside the budget. This dump cannot tell where that begins: "
        return Finding(f"{text}there is no name before it.", "", tuple(names), 0.0, _DUMP_STATES)
    text = (
        f"{names[0]} is outside the budget, but each op is right on the inputs that it was given: small differences "
        "add up, or the values of another run were dumped"
    )
    return Finding(text, "", tuple(names), 0.0, "Dump all names in one run, and compare the inputs of both sides.")


def renamed(found: Mapping[str, str], matching: Sequence[Mistake]) -> Finding:
    """Return the finding for arrays that are the values of other names."""
    name, source = next(iter(found.items()))
    more = f", and {len(found) - 1} more names are wrong like this" if len(found) > 1 else ""
    text = f"{name} holds the values of {source}{more}"
    if not matching:
        return Finding(text, "", tuple(found), 1.0, "Dump the output of the module with this name.")
    best, *others = matching
    ids = tuple(other.id for other in others)
    return Finding(
        f"{best.text}: {text}", best.id, tuple(found), 1.0, best.remedy, ids, "Dump more names." if ids else ""
    )
