"""`diagnose`: which known mistakes explain the difference between a port and the truth.

1. Names: is an array the true value of another name?
2. Replay (replay.py): which names are wrong, computed from the port's own values before them?
3. For each wrong name, from the first on: the mistakes of the catalogue, and those that from_values.py suggests, are
   simulated from the port's own values on. A mistake is accepted only if the rest of the difference is within the
   budget and it makes no right name wrong; if it does, it is tried only where it explains something. If no single
   mistake explains the name, mistakes in one of their ops are tried, and then up to three at once.
4. Mistakes that explain the same names equally well are listed together; one mistake in several layers is one cause.

What is left has no known cause, and that is said.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.parity.diagnosis import findings
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.findings import Finding, Sites
from minibert.parity.diagnosis.forward import Forward, Mistake, Model, state_name, symbol_of
from minibert.parity.diagnosis.from_values import LAYER_OF, find_dropout, mistakes_from_values
from minibert.parity.diagnosis.replay import Measured, Replay
from minibert.parity.diagnosis.simulation import find_recipe
from minibert.parity.truth import VECTOR, InapplicableError, Padded, mask_of, visible
from minibert.trace.names import LAYER

# A mistake must remove this part of a difference, beside leaving an error within the budget; one that rounds must
# remove the second part, and may leave more.
_REMOVED, _ROUNDED = 0.7, 0.75

# A simulation in float32 is repeated in float64 if it removes this part of the difference, or more.
_PROMISING = 0.4

# How many mistakes at once, how many of the best are combined, and how much each one must remove for that.
_AT_ONCE, _BEAM, _USEFUL = 3, 4, 0.05

# For how many names two and three mistakes at once are tried without success. Each such trial is hundreds of forwards.
_FAILURES = 3

# How many mistakes of a port are looked for, one after the other, and how many kinds of unknown ones are described.
_MOST = 8

# The values of a layer, in the order in which they are computed.
_SYMBOLS = tuple(entry.symbol for entry in LAYER)


def diagnose(
    model: Model,
    inputs: Padded,
    port: Mapping[str, FloatArray],
    wrong: Sequence[str],
    *,
    budget: float,
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
        depth = model.config.num_hidden_layers
        states = {*map(state_name, range(depth + 1)), "pooler"}
        values = {name: value for name, value in Forward(model, inputs).run_all() if name in states}
        recipe = find_recipe(values, inputs, depth, np.asarray(vectors, np.float64))
    search = Search(Replay(model, inputs, port, recipe), budget)
    return list(_Diagnosis(search, port, list(wrong), rows).findings(dict(holds or {})))


def namings(moved: Mapping[str, str], names: Collection[str], depth: int) -> list[Mistake]:
    """Return the naming mistakes that would mislabel exactly the names in `moved`, and none of the others."""
    states = [state_name(i) for i in range(depth + 1)]
    sums = [f"{state}{'.output' if i else ''}.LayerNorm.input" for i, state in enumerate(states)]
    true = {name: np.zeros(0) for name in (*states, *sums, "embeddings.word_embeddings")}
    found = []
    for mistake in MISTAKES.values():
        if mistake.dump is not None:
            made = mistake.dump(dict(true), depth)
            changed = {name for name, value in made.items() if value is not true[name] and name in names}
            if changed == moved.keys() and all(made[name] is true.get(held) for name, held in moved.items()):
                found.append(mistake)
    return found


class Trial(NamedTuple):
    """Mistakes that explain a name, with all names that they explain and all names that contradict them."""

    mistakes: tuple[Mistake, ...]
    explained: frozenset[str]
    contradicted: frozenset[str]
    rest: float


class Search:
    """The search: known facts about a port, and trials of mistakes on it.

    Parameters
    ----------
    replay : Replay         the port's values
    budget : float          the RMS error that is right, in units

    Attributes
    ----------
    measured : dict of Measured     each name of the port, beside a forward without mistakes
    chosen : list of Mistake        the mistakes that were found
    unknown : list of str           names that no mistake explains
    untried : list of str           those of them for which several mistakes at once were not tried
    """

    def __init__(self, replay: Replay, budget: float) -> None:
        self.replay, self.budget = replay, budget
        self.model, self.inputs = replay.model, replay.inputs
        self.measured: dict[str, Measured] = replay.measure()
        self.chosen: list[Mistake] = []
        self.unknown: list[str] = []
        self.untried: list[str] = []
        self._failures = 0
        self._layer_values: tuple[tuple[str, int] | None, dict[str, FloatArray]] = (None, {})

    def within_budget(self, one: Measured) -> bool:
        """Return whether the error of a name is within the budget."""
        return one.error <= self.budget * one.unit

    def span_of(self, name: str) -> int:
        """Return the index of the replay's span that computes a name."""
        return next(i for i, span in enumerate(self.replay.spans) if name in self.replay.names_in(span))

    def has_several_layers(self, name: str) -> bool:
        """Return whether more than one layer is computed for a name."""
        return sum(stage != "vector" for stage in self.replay.spans[self.span_of(name)]) > 2

    # --- which mistakes -----------------------------------------------------------------------------------------------

    def singles(self, target: str, remaining: Sequence[str]) -> list[Trial]:
        """Return the single mistakes of the catalogue that explain the target, the best one first."""
        return self.ranked(self._promising(self._candidates(target), target), remaining, target)

    def in_one_op(self, target: str, remaining: Sequence[str]) -> list[Trial]:
        """Return the mistakes that explain the target if the port makes them in only one of their ops."""
        symbols = {symbol_of(name) for name in self.replay.segments[target]}
        tried = [
            dataclasses.replace(mistake, symbols=(symbol,))
            for mistake in self._candidates(target)
            if mistake.parts and "layer" not in mistake.parts and len(symbols & {*mistake.symbols}) > 1
            for symbol in mistake.symbols
            if symbol in symbols
        ]
        return self.ranked(self._promising(tried, target), remaining, target)

    def several(self, target: str, remaining: Sequence[str]) -> list[Trial]:
        """Try two and three mistakes at once, the best first; stop trying after three names without success."""
        if self._failures == _FAILURES:
            self.untried.append(target)
            return []
        found = self._several(target, remaining)
        self._failures += not found
        return found

    def _several(self, target: str, remaining: Sequence[str]) -> list[Trial]:
        candidates = self._candidates(target)
        before = self.measured[target].error
        beam: list[tuple[float, tuple[Mistake, ...]]] = [(before, ())]
        for _ in range(_AT_ONCE):
            tried: dict[frozenset[str], tuple[float, tuple[Mistake, ...]]] = {}
            for error, chosen in beam:
                for mistake in candidates:
                    ids = frozenset({mistake.id, *(one.id for one in chosen)})
                    if len(ids) == len(chosen) + 1 and ids not in tried:
                        rest = self.attempt(target, [*chosen, mistake])
                        if rest < (1 - _USEFUL) * error or not np.isfinite(error):
                            tried[ids] = (rest, (*chosen, mistake))
            beam = sorted(tried.values(), key=lambda one: one[0])[:_BEAM]
            near = [chosen for rest, chosen in beam if rest <= (1 - _PROMISING) * before and len(chosen) > 1]
            trials = self.ranked(near, remaining, target)
            if trials or not beam:
                return trials
        return []

    def by_hidden_keys(self, trials: list[Trial]) -> list[Trial]:
        """Among trials that are equal at visible positions, keep those that give the port's probs of hidden keys."""
        names = [name for name in trials[0].explained if symbol_of(name) == "probs"][:1]
        if len(trials) < 2 or not names:
            return trials
        errors = []
        for trial in trials:
            made = self.replay.run([*self.chosen, *trial.mistakes], compute=names)
            errors.append(self.replay.error_with_hidden(names[0], made[names[0]]))
        limit = max(100 * min(errors), 1e-6)
        return [trial for trial, error in zip(trials, errors, strict=True) if error <= limit]

    def _candidates(self, target: str) -> list[Mistake]:
        """Return the mistakes that could make this name wrong, beside those that are already made there."""
        # A harmless mistake explains the value that it changes, and nothing that follows.
        alone, config, replay = len(self.replay.segments[target]) == 1, self.model.config, self.replay
        right = self._right_rows(target)
        made = {one.id for one in self.chosen if replay.affected(one, [target])}
        return [
            mistake
            for mistake in MISTAKES.values()
            if mistake.dump is None
            and mistake.kind != "D1"
            and mistake.id not in made
            and (alone or not mistake.is_harmless(config))
            and replay.affected(mistake, [target])
            and (not right or self._may_spare(mistake, right))
        ]

    def _right_rows(self, target: str) -> list[int]:
        """Return the rows of a target that are right; none if one layer is computed for it, whose trials are short."""
        if not self.has_several_layers(target):
            return []
        exact = self.replay.run(self.chosen, [self.span_of(target)], compute=[target])[target]
        limit = 2 * self.budget * self.measured[target].unit
        return findings.rows_that_differ(exact, self.replay.port[target], mask_of(target, self.inputs.mask), limit)[1]

    def _may_spare(self, mistake: Mistake, rows: list[int]) -> bool:
        """Return whether a mistake can leave these rows right: only one with the inputs, the mask or the vector can."""
        if mistake.inputs is None:
            return mistake.vector is not None or "mask" in mistake.parts
        try:
            one, other = (inputs.cut(rows) for inputs in (self.inputs, mistake.inputs(self.inputs, self.model.config)))
        except InapplicableError:
            return False
        fields = ((getattr(one, name), getattr(other, name)) for name in ("ids", "types", "positions"))
        same = all(np.array_equal(before[one.mask], after[one.mask]) for before, after in fields)
        return same and np.array_equal(one.mask, other.mask)

    # --- trials -------------------------------------------------------------------------------------------------------

    def _promising(self, candidates: Iterable[Mistake], target: str) -> list[tuple[Mistake]]:
        """Return the mistakes that remove most of the difference of a name, tried in float32."""
        before = self.measured[target].error
        errors = [(self.attempt(target, [mistake]), mistake) for mistake in candidates]
        return [(one,) for error, one in errors if error <= (1 - _PROMISING) * before or not np.isfinite(before)]

    def attempt(self, target: str, mistakes: Sequence[Mistake]) -> float:
        """Return the error of a name with these and the chosen mistakes, computed in float32 from its span on."""
        key = (target, len(self.chosen))
        if self._layer_values[0] != key:
            self._layer_values = (key, self.replay.values_of_layer(self.chosen, self.span_of(target), target))
        # The values of the target's layer that are computed before any of these mistakes acts.
        changed = {symbol for mistake in mistakes for symbol in mistake.symbols}
        kept = {*itertools.takewhile(lambda symbol: symbol not in changed, _SYMBOLS)} - {symbol_of(target)}
        known = {name: value for name, value in self._layer_values[1].items() if symbol_of(name) in kept}
        spans, together = [self.span_of(target)], [*self.chosen, *mistakes]
        try:
            made = self.replay.run(together, spans, compute=[target], known=known, dtype=np.float32)
        except InapplicableError:
            return math.inf
        error = self.replay.error(target, made[target])
        return error if np.isfinite(error) else math.inf

    def ranked(self, sets: Iterable[tuple[Mistake, ...]], remaining: Sequence[str], target: str) -> list[Trial]:
        """Try sets of mistakes in float64; return the sets that explain the target, the best first."""
        trials = [self._trial(mistakes, remaining, target) for mistakes in sets]
        good = [trial for trial in trials if trial is not None and target in trial.explained]
        return sorted(good, key=lambda one: (-len(one.explained), len(one.contradicted), len(one.mistakes), one.rest))

    def _trial(self, mistakes: tuple[Mistake, ...], remaining: Sequence[str], target: str) -> Trial | None:
        """Try mistakes wherever they can be made; if right names contradict that, only where they explain something."""
        first = self._tried(mistakes, remaining, target)
        if first is not None and any("layer" in mistake.parts for mistake in mistakes):
            # It says which weights all layers have. What is true of one layer only is a fitted mistake.
            affected = {name for mistake in mistakes for name in self.replay.affected(mistake, remaining)}
            return None if first.contradicted or 2 * len(first.explained) < len(affected) else first
        if first is None or not first.contradicted:
            return first
        sites = frozenset[str]().union(*(self.replay.segments[name] for name in first.explained))
        try:
            narrowed = tuple(mistake.only(sites) for mistake in mistakes)
        except ValueError:
            return None
        second = self._tried(narrowed, remaining, target)
        if second is None or second.contradicted:
            return None
        return second._replace(contradicted=first.contradicted)

    def _tried(self, mistakes: tuple[Mistake, ...], remaining: Sequence[str], target: str) -> Trial | None:
        """Try mistakes on every name that they affect."""
        together = [*self.chosen, *mistakes]
        names = {name for mistake in mistakes for name in self.replay.affected(mistake, self.measured)} | {target}
        try:
            # First the span of the target, because most sets fail there.
            made = self.replay.measure(together, spans=[self.span_of(target)], compute=names)
            if not self._explains(made[target], mistakes):
                return None
            if len({self.span_of(name) for name in names}) > 1:
                made = self.replay.measure(together, compute=names)
        except InapplicableError:
            return None
        explained = frozenset(name for name in remaining if name in made and self._explains(made[name], mistakes))
        right = names - {*remaining, *self.unknown}
        contradicted = frozenset(name for name in right if name in made and not self.within_budget(made[name]))
        return Trial(mistakes, explained, contradicted, made[target].ratio)

    def _explains(self, one: Measured, mistakes: Sequence[Mistake]) -> bool:
        before = self.measured[one.name].error
        if any(mistake.rounds for mistake in (*self.chosen, *mistakes)) and one.error <= (1 - _ROUNDED) * before:
            return True
        return self.within_budget(one) and not one.error > (1 - _REMOVED) * before


@dataclasses.dataclass(frozen=True)
class _Cause:
    """A mistake that was accepted, the mistakes that would do as well, and the names that contradict it."""

    mistake: Mistake
    alternatives: tuple[Mistake, ...]
    contradicted: frozenset[str]


class _Diagnosis:
    """The findings about one port."""

    def __init__(self, search: Search, port: Mapping[str, FloatArray], wrong: list[str], rows: Sequence[str]) -> None:
        self._search, self._port, self._wrong, self._rows = search, port, wrong, rows
        self._model, self._inputs = search.model, search.inputs
        self._causes: list[_Cause] = []

    def findings(self, holds: dict[str, str]) -> Iterator[Finding]:
        """Yield the findings; `holds` maps mislabelled names to the names whose values they hold."""
        search = self._search
        remaining = [name for name, one in search.measured.items() if not search.within_budget(one)]
        moved = holds or self._moved()
        if moved and (holds or moved.keys() == {*self._wrong}):
            # A mistake that leaves out the last step of a name looks the same.
            matching = namings(moved, self._port, self._model.config.num_hidden_layers)
            first = [name for name in remaining if name in moved]
            trials = search.singles(first[0], remaining) if first else []
            same = [trial.mistakes[0] for trial in trials if trial.explained >= set(first)]
            if matching or not same:
                yield findings.mislabelled(moved, [*matching, *(same if matching else [])])
                yield from self._with_names(moved)
                return
        states = [state_name(i) for i in range(self._model.config.num_hidden_layers + 1)]
        late = dict(itertools.pairwise(reversed(states)))
        if moved and moved.items() <= late.items() and (shifted := self._shifted(late)):
            yield from shifted
            return
        if not remaining:
            name = self._wrong[0]
            if name in search.measured:
                yield findings.cannot_tell(self._wrong, alone=search.has_several_layers(name))
            else:
                yield findings.cannot_tell(self._wrong, alone=False) if name == VECTOR else findings.wrong_head(name)
            return
        dropped = find_dropout(search.replay, remaining)
        if dropped is not None:
            yield dropped
            remaining = [name for name in remaining if name not in dropped.names]
        while remaining and len(self._causes) < _MOST:
            remaining = self._explain(remaining)
        search.unknown += remaining
        # States that are counted from the first layer's output look like weights of the next layer.
        is_early = "embeddings" in search.unknown and any(one.id == "W3.shifted" for one in search.chosen)
        if is_early and (shifted := self._shifted(dict(itertools.pairwise(states)))):
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
            trials = search.singles(target, remaining)
            if not trials:
                trials = search.ranked([(one,) for one in mistakes_from_values(search, target)], remaining, target)
            if not trials and not search.has_several_layers(target):
                trials = search.in_one_op(target, remaining) or search.several(target, remaining)
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
        self._causes += [_Cause(mistake, alternatives, best.contradicted) for mistake in best.mistakes]
        search.chosen += best.mistakes
        return [name for name in remaining if name not in best.explained]

    # --- names --------------------------------------------------------------------------------------------------------

    def _moved(self) -> dict[str, str]:
        """Find arrays that are the true values of other names."""
        wrong = [name for name in self._wrong if name != VECTOR and np.ndim(self._port[name]) == 3]
        found: dict[str, str] = {}
        for name, value in Forward(self._model, self._inputs).run_all() if wrong else ():
            same_shape = [given for given in wrong if np.shape(self._port[given]) == value.shape and given != name]
            shown = visible(value, self._inputs.mask)
            limit = 1e-5 * np.linalg.norm(shown)
            for given in [given for given in same_shape if given not in found]:
                with np.errstate(all="ignore"):
                    if np.linalg.norm(visible(self._port[given], self._inputs.mask) - shown) <= limit:
                        found[given] = name
        return found

    def _shifted(self, holds: Mapping[str, str]) -> list[Finding]:
        """Return what is wrong if the states are off by one, and known mistakes explain the rest; [] if they do not."""
        moved = {name: holds[name] for name in self._search.measured if name in holds}
        others = self._with_names(moved) if self._search.measured.keys() <= {*holds, *holds.values()} else []
        if not others or not all(finding.mistake for finding in others):
            return []
        return [findings.mislabelled(moved, namings(moved, self._port, self._model.config.num_hidden_layers)), *others]

    def _with_names(self, moved: Mapping[str, str]) -> list[Finding]:
        """Return what is wrong if the arrays have the names whose values they hold."""
        port: dict[str, FloatArray] = {}
        for name, array in self._port.items():
            held = moved.get(name, name)
            if not np.array_equal(port.setdefault(held, array), array, equal_nan=True):
                return []
        search = Search(Replay(self._model, self._inputs, port), self._search.budget)
        if all(map(search.within_budget, search.measured.values())):
            return []
        return list(_Diagnosis(search, port, list(port), self._rows).findings({}))

    # --- what is said -------------------------------------------------------------------------------------------------

    def _known(self) -> Iterator[Finding]:
        """Yield the causes that were found; one mistake in several layers is one cause."""
        search = self._search
        merged: dict[tuple[str, str], tuple[_Cause, tuple[str, ...], Sites]] = {}
        for one, names in self._needed():
            sites = Sites.of(search.replay.segments, one.mistake, names, one.contradicted)
            key = (one.mistake.id, one.mistake.text)
            if key in merged:
                first, before, earlier = merged[key]
                names = tuple(name for name in search.replay.port if name in {*before, *names})
                ids = {other.id for other in one.alternatives}
                alike = tuple(other for other in first.alternatives if other.id in ids)
                one, sites = dataclasses.replace(first, alternatives=alike), earlier.together(sites)
            merged[key] = (one, names, sites)
        for key, (one, names, sites) in merged.items():
            others = {layer for other in merged if other != key for _, layer in merged[other][2].found}
            if one.mistake.id.startswith(LAYER_OF):  # which changes nothing in this layer
                others.add(int(one.mistake.id.removeprefix(LAYER_OF)))
            where = sites.text(one.mistake, self._model.config.num_hidden_layers, others)
            said = f"{one.mistake.text}{where}"
            if one.alternatives:
                either = "; or ".join(other.text for other in (one.mistake, *one.alternatives[:5]))
                said = f"This dump cannot tell which{where}: {either}"
            config = self._model.config  # the catalogue is for any model
            for field, value in (("hidden_act", config.hidden_act), ("layer_norm_eps", f"{config.layer_norm_eps:g}")):
                said = said.replace(f"config.json has another {field}", f"config.json has {value}")
            yield Finding(
                text=said,
                mistake=one.mistake.id,
                names=names,
                explained=self._share(names),
                remedy=one.mistake.remedy,
                alternatives=tuple(other.id for other in one.alternatives),
                separate=findings.separate_by(one.mistake, one.alternatives),
            )

    def _needed(self) -> Iterator[tuple[_Cause, tuple[str, ...]]]:
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
        evidence: dict[str, findings.Facts] = {}
        for name in (name for name in search.unknown if name in search.measured):
            evidence[name] = findings.facts(search, name, self._rows)
            finite = np.isfinite(search.measured[name].error)
            groups.setdefault((symbol_of(name) or name if finite else "", evidence[name].same), []).append(name)
        kinds = list(groups.values())
        for names in kinds[:_MOST]:
            yield findings.unknown(search, names, evidence[names[0]])
        if kinds[_MOST:]:
            shown = ", ".join(names[0] for names in kinds[_MOST:])
            every = tuple(name for names in kinds[_MOST:] for name in names)
            text = f"Also wrong, though what goes in is right, and with no known cause: {shown}"
            yield Finding(text, "", every, 0.0, "")
