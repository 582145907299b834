"""`diagnose`: which known mistakes explain the difference between a port and the truth, in findings.

1. Names: is an array the true value of another name?
2. Replay (replay.py): which names are wrong, computed from the port's own values before them?
3. For each wrong name, from the first on: which mistakes explain it (search.py)?
4. Mistakes that explain the same names equally well are listed together; one mistake in several layers is one cause.

What is left has no known cause, and that is said. The sentences are in sentences.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.parity.diagnosis import sentences
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.forward import Forward
from minibert.parity.diagnosis.mistake import Arrays, Mistake, Recipe, words_of
from minibert.parity.diagnosis.replay import Replay
from minibert.parity.diagnosis.search import BUDGET, Search, Trial
from minibert.parity.diagnosis.sentences import Cause, Facts, Sites
from minibert.parity.diagnosis.simulation import simulate
from minibert.parity.diagnosis.suggested import dropout, suggest, variants
from minibert.parity.finding import Finding
from minibert.parity.symbols import states_of, symbol_of
from minibert.parity.truth import VECTOR, Model, Padded, unmasked

# How many mistakes of a port are looked for, one after the other, and how many kinds of unknown ones are described.
_MOST = 8


def diagnose(
    model: Model,
    inputs: Padded,
    port: Arrays,
    wrong: Sequence[str],
    *,
    budget: float = BUDGET,
    recipe: Recipe | None = None,
    rows: Sequence[str] = (),
    holds: Mapping[str, str] | None = None,
    more: Sequence[Mistake] = (),
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
    recipe : how the vector of a text is made; None if that is not known
    rows : what each row of the inputs is, for example its text
    holds : mapping of names of `port` to the names whose values they hold, if that is known
    more : mistakes with the ids that the catalogue does not have, such as those that need a tokenizer

    Returns
    -------
    list of Finding
        The ones that explain most first; empty if nothing is wrong.
    """
    if not wrong:
        return []
    search = Search(Replay(model, inputs, port, recipe), budget, more)
    return _Diagnosis(search, port, list(wrong), rows).findings(holds or {})


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
        The name of the value in trace/layout.py: the result of the formula.
    value : float array in padded form
    known : str or several
        Patterns of names, as for `BertModel.trace`: the right values of these names went into the formula. The formula
        leads from them to `name`: with all names it is one op, with "hidden_states.*" a layer.
    several : bool
        Whether two and three mistakes at once are tried. That takes some seconds.

    Returns
    -------
    list of Finding
        The ones that explain most first. Their `candidates` are ids of `MISTAKES`; () if no known mistake explains the
        value. [] if it is right.
    """
    right = simulate(model, inputs, (), record=[*([known] if isinstance(known, str) else known), name])
    port = dict(itertools.takewhile(lambda item: item[0] != name, right.items())) | {name: np.asarray(value)}
    search = Search(Replay(model, Padded.of(model.config, inputs), port), BUDGET)
    search.trials_left *= several
    return _Diagnosis(search, port, [name]).findings({}) if search.wrong() else []


def namings(moved: Mapping[str, str], names: Collection[str], states: Sequence[str]) -> list[Mistake]:
    """Return the naming mistakes that would mislabel exactly the names in `moved`, and none of the others."""
    sums = ["embeddings.LayerNorm.input", *(f"{state}.output.LayerNorm.input" for state in states[1:])]
    true = {name: np.zeros(0) for name in (*states, *sums, "embeddings.word_embeddings")}
    matching = []
    for mistake in MISTAKES.values():
        if mistake.dump is not None:
            made = mistake.dump(dict(true), states)
            changed = {name for name, value in made.items() if value is not true[name] and name in names}
            if changed == moved.keys() and all(made[name] is true.get(held) for name, held in moved.items()):
                matching.append(mistake)
    return matching


class _Diagnosis:
    """The findings about one port."""

    def __init__(self, search: Search, port: Arrays, wrong: list[str], rows: Sequence[str] = ()) -> None:
        self._search, self._port, self._wrong, self._rows = search, port, wrong, rows
        self._states = states_of(search.model.config)
        self._causes: list[Cause] = []

    def findings(self, holds: Mapping[str, str]) -> list[Finding]:
        """Return the findings; `holds` maps mislabelled names to the names whose values they hold."""
        remaining, moved = self._search.wrong(), holds or self._moved()
        late = dict(itertools.pairwise(reversed(self._states)))
        return (
            (self._mislabelled(moved, remaining) if holds or moved.keys() == {*self._wrong} else [])
            or (self._shifted(late) if moved and moved.items() <= late.items() else [])
            or (self._wrong_ops(remaining) if remaining else [self._no_wrong_op()])
        )

    def _mislabelled(self, moved: Mapping[str, str], remaining: list[str]) -> list[Finding]:
        """Return what is wrong if all wrong arrays have other names; [] if a mistake in an op explains them."""
        # A mistake that leaves out the last step of a name looks the same.
        matching = namings(moved, self._port, self._states)
        first = [name for name in remaining if name in moved]
        trials = self._search.explaining(self._search.candidates(first[0]), first[0], remaining) if first else []
        same = [trial.mistakes[0] for trial in trials if trial.explained >= set(first)]
        if same and not matching:
            return []
        return [sentences.mislabelled(moved, [*matching, *(same if matching else [])]), *self._with_names(moved)]

    def _no_wrong_op(self) -> Finding:
        """Return the finding if each op is right on the values that the port gave it."""
        name, search = self._wrong[0], self._search
        if name == VECTOR and search.replay.recipe is None:
            return sentences.cannot_replay_vector()
        return sentences.cannot_tell(self._wrong, alone=name in search.measured and search.has_several_layers(name))

    def _wrong_ops(self, remaining: list[str]) -> list[Finding]:
        """Return the causes of wrong ops, one after the other, and what has no known cause."""
        search, findings = self._search, list[Finding]()
        if dropped := dropout(search, remaining):
            names, rate = dropped
            mistake = MISTAKES["D1.dropout"]
            text = f"{mistake.text}; about {100 * rate:.0f} % of {names[0]} are zero"
            findings.append(Finding(text, mistake.id, tuple(names), 1.0, mistake.remedy))
            remaining = [name for name in remaining if name not in names]
        while remaining and len(self._causes) < _MOST:
            remaining = self._explain(remaining)
        search.unknown += remaining
        # States that are counted from the first layer's output look like weights of the next layer.
        is_early = self._states[0] in search.unknown and any(mistake.id == "W3.shifted" for mistake in search.chosen)
        if is_early and (shifted := self._shifted(dict(itertools.pairwise(self._states)))):
            return [*findings, *shifted]
        return [*findings, *self._known(), *self._unknown()]

    def _explain(self, remaining: list[str]) -> list[str]:
        """Explain the first of the remaining names, and others with it; return those that still remain."""
        search, target = self._search, remaining[0]
        trials = self._trials(target, remaining)
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
            and not trial.contradicted > best.contradicted  # a proper superset: right names refute it in other ops
        ]
        best, *same = search.by_hidden_keys(same)
        # Of several mistakes at once, alternatives are not listed one by one.
        alternatives = tuple(trial.mistakes[0] for trial in same) if count == 1 else ()
        self._causes += [Cause(mistake, alternatives, best.contradicted) for mistake in best.mistakes]
        search.chosen += best.mistakes
        return [name for name in remaining if name not in best.explained]

    def _trials(self, target: str, remaining: list[str]) -> list[Trial]:
        """Return what explains a name: what is simple and quick to try comes first."""
        search = self._search
        if not np.isfinite(search.measured[target].error):  # nothing that is computed equals NaN
            return []
        trials = search.explaining(search.candidates(target), target, remaining)
        trials = trials or search.explaining(suggest(search, target), target, remaining)
        if trials or search.has_several_layers(target):
            return trials
        return (
            search.in_one_op(target, remaining)
            or search.explaining(variants(search, target), target, remaining)
            or search.several(target, remaining)
        )

    # --- names --------------------------------------------------------------------------------------------------------

    def _moved(self) -> dict[str, str]:
        """Find arrays that are the true values of other names."""
        wrong = [name for name in self._wrong if name != VECTOR and np.ndim(self._port[name]) == 3]
        inputs, moved = self._search.inputs, dict[str, str]()
        for name, value in Forward(self._search.model, inputs).run_all() if wrong else ():
            values = unmasked(value, inputs.mask)
            for own in wrong:
                if np.shape(self._port[own]) == value.shape and own != name and own not in moved:
                    with np.errstate(all="ignore"):
                        error = np.linalg.norm(unmasked(self._port[own], inputs.mask) - values)
                    if error <= 1e-5 * np.linalg.norm(values):
                        moved[own] = name
        return moved

    def _shifted(self, holds: Mapping[str, str]) -> list[Finding]:
        """Return what is wrong if the states are off by one, and known mistakes explain the rest; [] if they do not."""
        moved = {name: holds[name] for name in self._search.measured if name in holds}
        others = self._with_names(moved) if self._search.measured.keys() <= {*holds, *holds.values()} else []
        if not others or not all(finding.mistake for finding in others):
            return []
        return [sentences.mislabelled(moved, namings(moved, self._port, self._states)), *others]

    def _with_names(self, moved: Mapping[str, str]) -> list[Finding]:
        """Return what is wrong if the arrays have the names whose values they hold."""
        port: dict[str, FloatArray] = {}
        for name, array in self._port.items():
            held = moved.get(name, name)
            if not np.array_equal(port.setdefault(held, array), array, equal_nan=True):
                return []
        search = Search(Replay(self._search.model, self._search.inputs, port), self._search.budget)
        return _Diagnosis(search, port, list(port), self._rows).findings({}) if search.wrong() else []

    # --- what is said -------------------------------------------------------------------------------------------------

    def _known(self) -> Iterator[Finding]:
        """Yield the causes that were found; one mistake in several layers is one cause."""
        search = self._search
        merged: dict[tuple[str, str], tuple[Cause, tuple[str, ...], Sites]] = {}
        for cause, names in self._needed():
            sites = Sites.of(search.replay.segments, cause, names)
            key = (cause.mistake.id, cause.mistake.text)
            if key in merged:
                first, names_of_first, sites_of_first = merged[key]
                names = tuple(name for name in search.replay.port if name in {*names_of_first, *names})
                ids = {other.id for other in cause.alternatives}
                alike = tuple(other for other in first.alternatives if other.id in ids)
                cause, sites = first._replace(alternatives=alike), sites_of_first.together(sites)
            merged[key] = (cause, names, sites)
        for key, (cause, names, sites) in merged.items():
            mistake = cause.mistake
            others = {layer for other in merged if other != key for _, layer in merged[other][2].present}
            if mistake.source is not None:  # it changes nothing in this layer
                others.add(mistake.source)
            where = sites.text(mistake, len(self._states) - 1, others)
            words = words_of(search.model.config)  # the catalogue is for any model
            text = mistake.template.format(**words) + where
            if cause.alternatives:
                either = "; or ".join(other.template for other in (mistake, *cause.alternatives[:5]))
                text = f"This dump cannot tell which{where}: {either.format(**words)}"
            alternatives = tuple(other.id for other in cause.alternatives)
            separate = sentences.separate_by(mistake, cause.alternatives)
            remedy = mistake.cure.format(**words)
            places = tuple(sorted(sites.present, key=str))
            yield Finding(text, mistake.id, names, self._share(names), remedy, alternatives, separate, places)

    def _needed(self) -> Iterator[tuple[Cause, tuple[str, ...]]]:
        """Yield each cause with the names that are wrong without it; a cause without such names is not one."""
        search = self._search
        for cause in list(self._causes):
            others = [mistake for mistake in search.chosen if mistake is not cause.mistake]
            known = [name for name in search.measured if name not in search.unknown]
            affected = search.replay.affected(cause.mistake, known)
            without = search.replay.measure(others, compute=affected)
            made = search.replay.measure(search.chosen, compute=affected)
            names = tuple(
                name
                for name in affected
                if not search.within_budget(without[name]) and not made[name].error > 0.5 * without[name].error
            )
            if names:
                yield cause, names
            else:
                search.chosen = others

    def _share(self, names: Sequence[str]) -> float:
        """Return the least share of a name's squared difference, in units, that the chosen mistakes remove."""
        rest = self._search.replay.measure(self._search.chosen, compute=names)
        errors = {name: self._search.measured[name].error for name in names}
        shares = (1 - (rest[name].error / error) ** 2 if np.isfinite(error) else 1.0 for name, error in errors.items())
        return max(0.0, min(shares, default=0.0))

    def _unknown(self) -> Iterator[Finding]:
        """Yield a finding for each kind of name that no mistake explains."""
        search = self._search
        groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        evidence: dict[str, Facts] = {}
        for name in (name for name in search.unknown if name in search.measured):
            evidence[name] = sentences.facts(search, name, self._rows)
            finite = np.isfinite(search.measured[name].error)
            groups.setdefault((symbol_of(name) or name if finite else "", evidence[name].same), []).append(name)
        kinds = list(groups.values())
        for names in kinds[:_MOST]:
            yield sentences.unknown(search, names, evidence[names[0]])
        if kinds[_MOST:]:
            listed = ", ".join(names[0] for names in kinds[_MOST:])
            every = tuple(name for names in kinds[_MOST:] for name in names)
            text = f"Also wrong, with right inputs and no known cause: {listed}"
            yield Finding(text, "", every, 0.0, "")
