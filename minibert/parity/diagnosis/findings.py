"""`diagnose`: which known mistakes explain the difference between a port and the truth, said in findings.

1. Names: is an array the true value of another name?
2. Replay (replay.py): which names are wrong, computed from the port's own values before them?
3. For each wrong name, from the first on: which mistakes explain it (search.py)?
4. Mistakes that explain the same names equally well are listed together; one mistake in several layers is one cause.

What is left has no known cause, and that is said.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from minibert._utils.validation import FloatArray, counted
from minibert.parity.diagnosis.catalogue import MISTAKES, simulate
from minibert.parity.diagnosis.formulas import find_recipe, run_of
from minibert.parity.diagnosis.forward import DENSE, Arrays, Forward, Mistake, both_names, states_of, symbol_of
from minibert.parity.diagnosis.replay import Replay
from minibert.parity.diagnosis.search import BUDGET, Search, Trial
from minibert.parity.diagnosis.suggested import LAYER_OF, dropout, suggest, variants
from minibert.parity.truth import HALF_PRECISIONS, VECTOR, Model, Padded, mask_of, rms, round_to, visible
from minibert.trace.names import LAYER, rows_of


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


class Cause(NamedTuple):
    """A mistake that was accepted, the mistakes that would do as well, and the names that contradict it."""

    mistake: Mistake
    alternatives: tuple[Mistake, ...]
    contradicted: frozenset[str]


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
    def of(cls, segments: Mapping[str, frozenset[str]], cause: Cause, names: Iterable[str]) -> Sites:
        """Find the sites of a cause that explains some names and is contradicted by others."""
        found = [_sites(cause.mistake, segments[name]) for name in names] if cause.mistake.parts else []
        if any(len({layer for _, layer in sites}) > 1 for sites in found):
            return cls()
        anywhere = dataclasses.replace(cause.mistake, names=None)
        absent = [_sites(anywhere, segments[name]) for name in cause.contradicted]
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


# The part of a difference that rounding may leave of one factor, or of one bias.
_SAME = 1e-3

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
    entries = itertools.chain(*rows_of(search.model.value_names().sizes).values())
    remedy += next((f": {one.symbol} = {one.formula}." for one in entries if one.symbol == symbol_of(first)), ".")
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


def facts(search: Search, name: str, labels: Sequence[str]) -> Facts:
    """Describe which rows, heads and features of a name differ, and how; `labels` are those of the rows."""
    exact, given, mask = search.computed(name), search.replay.port[name], mask_of(name, search.inputs.mask)
    values = visible(given, mask)
    if not np.isfinite(values).all():
        return Facts((f"it holds {int((~np.isfinite(values)).sum())} of {values.size} values that are not finite",))
    wrong, right = search.rows_that_differ(name, exact)
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
            if not (columns := tokens.any(axis=0)).all():
                numbers.insert(1, run_of("column", columns))
    elif exact.ndim == 4:
        sums = given.sum(axis=-1)[np.broadcast_to(mask[:, None, :], given.shape[:3])]
        if symbol_of(name) == "probs" and np.abs(sums - 1).max(initial=0) > 1e-4:
            range_of_sums = " to ".join(dict.fromkeys(f"{one:.6g}" for one in (sums.min(), sums.max())))
            numbers.append(f"the probs of a token do not sum to 1, but to {range_of_sums}")
    true = visible(exact, mask)
    factor = float(true @ values) / max(float(true @ true), 1e-300)
    if rms(values - factor * true) < _SAME * rms(values - true):
        numbers.append(f"it is {factor:.6g} times the right value")
    if symbol_of(name) in DENSE and exact.ndim == 3:
        rows = (given - exact)[mask]
        if len(rows) > 1 and rms(rows - rows.mean(axis=0)) < _SAME * rms(rows):
            same.append("the difference is the same for every token, so the bias is wrong")
    if not np.isin(values, (0, 1, -1)).all():  # these are numbers of every format
        stored = [one for one in reversed(HALF_PRECISIONS) if np.array_equal(values, round_to(one, values))]
        same += [f"all its values are {one} numbers" for one in stored[:1]]
    return Facts((*same, *numbers), tuple(same), bool(wrong and right))


def _only(noun: str, wrong: Sequence[object], right: Sequence[object]) -> list[str]:
    """Say which rows or heads are wrong, if others are right."""
    if not wrong or not right:
        return []
    plural = [("s", "are") if some[1:] else ("", "is") for some in (wrong, right)]
    texts = [some_of([*map(str, some)]) for some in (wrong, right)]
    return [f"{noun}{plural[0][0]} {texts[0]} only; {noun}{plural[1][0]} {texts[1]} {plural[1][1]} right"]


# --- the diagnosis ----------------------------------------------------------------------------------------------------

# How many mistakes of a port are looked for, one after the other, and how many kinds of unknown ones are described.
_MOST = 8


def diagnose(
    model: Model,
    inputs: Padded,
    port: Arrays,
    wrong: Sequence[str],
    *,
    budget: float = BUDGET,
    vectors: FloatArray | None = None,
    rows: Sequence[str] = (),
    holds: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Say which known mistakes explain the difference between a port and the truth.

    Parameters
    ----------
    model : BertModel, or a model with a head
    inputs : Padded
    port : mapping of canonical names to padded arrays
        "sentence_embedding" is the name of one vector per text. Hidden places may hold anything.
    wrong : the names of `port` whose difference from the truth is outside the budget
    budget : float
        The RMS error that is right, in units of a plain float32 forward's.
    vectors : the true vectors of the texts, if `port` has vectors
    rows : what each row of the inputs is, for example its text
    holds : mapping of names of `port` to the names whose values they hold, if that is known

    Returns
    -------
    list of Finding
        The ones that explain most first; empty if nothing is wrong.
    """
    if not wrong:
        return []
    recipe = None
    if VECTOR in port and vectors is not None:
        states = states_of(model.config)
        values = {name: value for name, value in Forward(model, inputs).run_all() if name in (*states, "pooler")}
        recipe = find_recipe(values, inputs, states, np.asarray(vectors, np.float64))
    search = Search(Replay(model, inputs, port, recipe), budget)
    return list(_Diagnosis(search, port, list(wrong), rows).findings(holds or {}))


def explain(
    model: Model, inputs: Mapping[str, Any], name: str, value: FloatArray, known: Any = "*", *, several: bool = True
) -> list[Finding]:
    """Say which known mistakes make a wrong value of one formula.

    Parameters
    ----------
    model : BertModel, or a model with a head
    inputs : mapping
        As the model takes them.
    name : str
        The name of the value in trace/names.py, which is the result of the formula.
    value : float array in padded form
    known : str or several
        Patterns of the names, as for `BertModel.trace`, whose right values went into the formula. The formula is what
        leads from them to `name`: with all of them one op, with "hidden_states.*" a layer.
    several : bool
        Whether two and three mistakes at once are tried, which takes some seconds.

    Returns
    -------
    list of Finding
        The ones that explain most first. Their `candidates` are ids of `MISTAKES`; () if no known mistake explains the
        value. [] if it is right.
    """
    right = simulate(model, inputs, (), record=[*([known] if isinstance(known, str) else known), name])
    port = dict(itertools.takewhile(lambda one: one[0] != name, right.items())) | {name: np.asarray(value)}
    search = Search(Replay(model, Padded.of(model.config, inputs), port), BUDGET)
    search.trials_left *= several
    return list(_Diagnosis(search, port, [name]).findings({})) if search.wrong() else []


def namings(moved: Mapping[str, str], names: Collection[str], states: Sequence[str]) -> list[Mistake]:
    """Return the naming mistakes that would mislabel exactly the names in `moved`, and none of the others."""
    sums = ["embeddings.LayerNorm.input", *(f"{state}.output.LayerNorm.input" for state in states[1:])]
    true = {name: np.zeros(0) for name in (*states, *sums, "embeddings.word_embeddings")}
    found = []
    for mistake in MISTAKES.values():
        if mistake.dump is not None:
            made = mistake.dump(dict(true), states)
            changed = {name for name, value in made.items() if value is not true[name] and name in names}
            if changed == moved.keys() and all(made[name] is true.get(held) for name, held in moved.items()):
                found.append(mistake)
    return found


class _Diagnosis:
    """The findings about one port."""

    def __init__(self, search: Search, port: Arrays, wrong: list[str], rows: Sequence[str] = ()) -> None:
        self._search, self._port, self._wrong, self._rows = search, port, wrong, rows
        self._states = states_of(search.model.config)
        self._causes: list[Cause] = []

    def findings(self, holds: Mapping[str, str]) -> Iterator[Finding]:
        """Yield the findings; `holds` maps mislabelled names to the names whose values they hold."""
        search, remaining = self._search, self._search.wrong()
        moved = holds or self._moved()
        if moved and (holds or moved.keys() == {*self._wrong}):
            # A mistake that leaves out the last step of a name looks the same.
            matching = namings(moved, self._port, self._states)
            first = [name for name in remaining if name in moved]
            trials = search.singles(first[0], remaining) if first else []
            same = [trial.mistakes[0] for trial in trials if trial.explained >= set(first)]
            if matching or not same:
                yield mislabelled(moved, [*matching, *(same if matching else [])])
                yield from self._with_names(moved)
                return
        late = dict(itertools.pairwise(reversed(self._states)))
        if moved and moved.items() <= late.items() and (shifted := self._shifted(late)):
            yield from shifted
            return
        if not remaining:
            name = self._wrong[0]
            known = name in search.measured
            if known or name == VECTOR:
                yield cannot_tell(self._wrong, alone=known and search.has_several_layers(name))
            else:
                yield self._wrong_head(name)
            return
        if dropped := dropout(search, remaining):
            names, rate = dropped
            mistake = MISTAKES["D1.dropout"]
            text = f"{mistake.text}; about {100 * rate:.0f} % of {names[0]} are zero"
            yield Finding(text, mistake.id, tuple(names), 1.0, mistake.remedy)
            remaining = [name for name in remaining if name not in names]
        while remaining and len(self._causes) < _MOST:
            remaining = self._explain(remaining)
        search.unknown += remaining
        # States that are counted from the first layer's output look like weights of the next layer.
        is_early = self._states[0] in search.unknown and any(one.id == "W3.shifted" for one in search.chosen)
        if is_early and (shifted := self._shifted(dict(itertools.pairwise(self._states)))):
            yield from shifted
            return
        yield from self._known()
        yield from self._unknown()

    def _explain(self, remaining: list[str]) -> list[str]:
        """Explain the first of the remaining names, and others with it; return those that still remain."""
        search = self._search
        target = remaining[0]
        trials: list[Trial] = []
        if np.isfinite(search.measured[target].error):  # nothing that is computed equals NaN
            trials = search.singles(target, remaining) or search.fitting(suggest(search, target), target, remaining)
            if not trials and not search.has_several_layers(target):
                trials = search.in_one_op(target, remaining)
                trials = trials or search.fitting(variants(search, target), target, remaining)
                trials = trials or search.several(target, remaining)
        if not trials:
            search.unknown.append(target)
            return remaining[1:]
        best = trials[0]
        count, narrow = len(best.mistakes), bool(best.contradicted)
        # A mistake in all layers is a better cause than another one that would have to be in some layers only.
        same = [
            trial
            for trial in trials
            if (trial.explained, len(trial.mistakes), bool(trial.contradicted)) == (best.explained, count, narrow)
            and not trial.contradicted > best.contradicted  # right names refute it in other ops
        ]
        best, *same = search.by_hidden_keys(same)
        # Of several mistakes at once, alternatives are not listed one by one.
        alternatives = tuple(trial.mistakes[0] for trial in same) if count == 1 else ()
        self._causes += [Cause(mistake, alternatives, best.contradicted) for mistake in best.mistakes]
        search.chosen += best.mistakes
        return [name for name in remaining if name not in best.explained]

    def _wrong_head(self, name: str) -> Finding:
        """Return the finding for wrong logits; of what the dump does not hold, the activation before them is tried."""
        search, last, weights = self._search, self._states[-1], self._search.model.weights
        if name == "classifier" and weights.pooler is not None and weights.head is not None:
            dense: Any = weights.head.classifier
            values = dict(Forward(search.model, search.inputs).run_all())
            for mistake in MISTAKES.values():
                if mistake.symbols == ("pooler",) and mistake.is_for(search.model):
                    forward = Forward(search.model, search.inputs, [mistake])
                    logits = forward.run("pooler", {last: values[last]})["pooler"] @ dense.weight.T + dense.bias
                    error = visible(self._port[name] - logits, search.inputs.mask)
                    if rms(error) <= 1e-5 * rms(logits):
                        return Finding(mistake.text, mistake.id, (name,), 1.0, mistake.remedy)
        text = f"{name} is wrong, and no name before it: the head, or its input if this dump does not hold it"
        remedy = (
            "Dump the input of the head too. Compare the head's weights with the checkpoint, then its formula with "
            "minibert/bert/heads.py. The values are logits, before softmax or sigmoid, in the order of id2label."
        )
        return Finding(text, "", (name,), 0.0, remedy)

    # --- names --------------------------------------------------------------------------------------------------------

    def _moved(self) -> dict[str, str]:
        """Find arrays that are the true values of other names."""
        wrong = [name for name in self._wrong if name != VECTOR and np.ndim(self._port[name]) == 3]
        inputs, found = self._search.inputs, dict[str, str]()
        for name, value in Forward(self._search.model, inputs).run_all() if wrong else ():
            shown = visible(value, inputs.mask)
            for given in wrong:
                if np.shape(self._port[given]) == value.shape and given != name and given not in found:
                    with np.errstate(all="ignore"):
                        error = np.linalg.norm(visible(self._port[given], inputs.mask) - shown)
                    if error <= 1e-5 * np.linalg.norm(shown):
                        found[given] = name
        return found

    def _shifted(self, holds: Mapping[str, str]) -> list[Finding]:
        """Return what is wrong if the states are off by one, and known mistakes explain the rest; [] if they do not."""
        moved = {name: holds[name] for name in self._search.measured if name in holds}
        others = self._with_names(moved) if self._search.measured.keys() <= {*holds, *holds.values()} else []
        if not others or not all(finding.mistake for finding in others):
            return []
        return [mislabelled(moved, namings(moved, self._port, self._states)), *others]

    def _with_names(self, moved: Mapping[str, str]) -> list[Finding]:
        """Return what is wrong if the arrays have the names whose values they hold."""
        port: dict[str, FloatArray] = {}
        for name, array in self._port.items():
            held = moved.get(name, name)
            if not np.array_equal(port.setdefault(held, array), array, equal_nan=True):
                return []
        search = Search(Replay(self._search.model, self._search.inputs, port), self._search.budget)
        return list(_Diagnosis(search, port, list(port), self._rows).findings({})) if search.wrong() else []

    # --- what is said -------------------------------------------------------------------------------------------------

    def _known(self) -> Iterator[Finding]:
        """Yield the causes that were found; one mistake in several layers is one cause."""
        search = self._search
        merged: dict[tuple[str, str], tuple[Cause, tuple[str, ...], Sites]] = {}
        for one, names in self._needed():
            sites = Sites.of(search.replay.segments, one, names)
            key = (one.mistake.id, one.mistake.text)
            if key in merged:
                first, before, earlier = merged[key]
                names = tuple(name for name in search.replay.port if name in {*before, *names})
                ids = {other.id for other in one.alternatives}
                alike = tuple(other for other in first.alternatives if other.id in ids)
                one, sites = first._replace(alternatives=alike), earlier.together(sites)
            merged[key] = (one, names, sites)
        for key, (one, names, sites) in merged.items():
            mistake = one.mistake
            others = {layer for other in merged if other != key for _, layer in merged[other][2].found}
            if mistake.id.startswith(LAYER_OF):  # which changes nothing in this layer
                others.add(int(mistake.id.removeprefix(LAYER_OF)))
            where = sites.text(mistake, len(self._states) - 1, others)
            said = f"{mistake.text}{where}"
            if one.alternatives:
                either = "; or ".join(other.text for other in (mistake, *one.alternatives[:5]))
                said = f"This dump cannot tell which{where}: {either}"
            config = search.model.config  # the catalogue is for any model
            family = config.family
            for field, value in (("hidden_act", config.hidden_act), ("layer_norm_eps", f"{config.layer_norm_eps:g}")):
                fixed = field in family.ignored and field not in family.fields
                source = config.model_type if fixed else "config.json"
                said = said.replace(f"config.json has another {field}", f"{source} has {value}")
                said = said.replace(field, family.fields.get(field, field))
            alternatives = tuple(other.id for other in one.alternatives)
            separate = separate_by(mistake, one.alternatives)
            remedy, types = mistake.remedy, "word + token_type + position embeddings, three"
            if not family.has_token_types:
                remedy = remedy.replace(types, "word + position embeddings, two")
            yield Finding(said, mistake.id, names, self._share(names), remedy, alternatives, separate)

    def _needed(self) -> Iterator[tuple[Cause, tuple[str, ...]]]:
        """Yield each cause with the names that are wrong without it; a cause without such names is not one."""
        search = self._search
        for one in list(self._causes):
            others = [mistake for mistake in search.chosen if mistake is not one.mistake]
            known = [name for name in search.measured if name not in search.unknown]
            affected = search.replay.affected(one.mistake, known)
            without = search.replay.measure(others, compute=affected)
            made = search.replay.measure(search.chosen, compute=affected)
            names = tuple(
                name
                for name in affected
                if not search.within_budget(without[name]) and not made[name].error > 0.5 * without[name].error
            )
            if names:
                yield one, names
            else:
                search.chosen = others

    def _share(self, names: Sequence[str]) -> float:
        """Return the least share of a name's squared difference, in units, that the chosen mistakes remove."""
        after = self._search.replay.measure(self._search.chosen, compute=names)
        before = {name: self._search.measured[name].error for name in names}
        shares = (1 - (after[name].error / error) ** 2 if np.isfinite(error) else 1.0 for name, error in before.items())
        return max(0.0, min(shares, default=0.0))

    def _unknown(self) -> Iterator[Finding]:
        """Yield a finding for each kind of name that no mistake explains."""
        search = self._search
        groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        evidence: dict[str, Facts] = {}
        for name in (name for name in search.unknown if name in search.measured):
            evidence[name] = facts(search, name, self._rows)
            finite = np.isfinite(search.measured[name].error)
            groups.setdefault((symbol_of(name) or name if finite else "", evidence[name].same), []).append(name)
        kinds = list(groups.values())
        for names in kinds[:_MOST]:
            yield unknown(search, names, evidence[names[0]])
        if kinds[_MOST:]:
            shown = ", ".join(names[0] for names in kinds[_MOST:])
            every = tuple(name for names in kinds[_MOST:] for name in names)
            text = f"Also wrong, though what goes in is right, and with no known cause: {shown}"
            yield Finding(text, "", every, 0.0, "")
