"""`diagnose`: which known mistakes explain the difference between a port and the truth.

1. Names: is an array the true value of another name?
2. Replay (replay.py): which names are wrong, computed from the port's own values before them?
3. For each wrong name, from the first on: the mistakes of the catalogue, and those that fits.py suggests, are simulated
   from the port's own values on. A mistake is accepted only if the rest of the difference is within the budget and it
   makes no right name wrong. If no single mistake does it, up to three are tried at once.
4. Mistakes that explain the same names equally well are listed together.

What is left has no known cause, and that is said.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.parity.described import dropout, facts, with_mass
from minibert.parity.finding import Finding
from minibert.parity.fitted import fitted
from minibert.parity.forward import Forward, Model
from minibert.parity.heads import head_findings
from minibert.parity.mistake import Mistake, Recipe, symbol_of
from minibert.parity.replay import Replay, encoder_of
from minibert.parity.search import Search
from minibert.parity.subject import InapplicableError, Padded, visible
from minibert.parity.vectors import DUMP_MISTAKES, VECTOR, find_recipe, state_name
from minibert.parity.wording import Places, cannot_tell, finding_of, renamed, separate_by, unknown
from minibert.trace.names import EMBEDDINGS, LAYER

__all__ = ["diagnose"]

# How many mistakes of a port are looked for, one after the other, and how many kinds of unknown ones are described.
_MOST = 8


def diagnose(
    model: Any,
    inputs: Mapping[str, Any],
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
    model : BertModel, a model with a head, or a SentenceTransformer
    inputs : mapping
        input_ids, attention_mask, token_type_ids, position_ids, as the model takes them.
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
    encoder = encoder_of(model)
    padded = Padded.of(encoder.config, inputs)
    return list(_Diagnosis(encoder, padded, port, wrong, budget, vectors, rows, dict(holds or {})).findings())


@dataclasses.dataclass(frozen=True)
class _Cause:
    """A mistake that was accepted, the mistakes that would do as well, and the names that contradict it."""

    mistake: Mistake
    alternatives: tuple[Mistake, ...]
    contradicted: frozenset[str]


class _Diagnosis:
    def __init__(
        self,
        model: Model,
        inputs: Padded,
        port: Mapping[str, FloatArray],
        wrong: Sequence[str],
        budget: float,
        vectors: FloatArray | None,
        rows: Sequence[str],
        holds: dict[str, str],
    ) -> None:
        self._model, self._inputs = model, inputs
        self._port, self._wrong = dict(port), list(wrong)
        self._rows, self._holds = rows, holds
        self._search = Search(model, inputs, Replay(model, inputs, self._port, self._recipe(vectors)), budget)
        self._causes: list[_Cause] = []

    def findings(self) -> Iterator[Finding]:
        """Yield what was found."""
        search = self._search
        remaining = [name for name, place in search.places.items() if not search.right(place)]
        moved = self._holds or self._moved()
        if moved and (self._holds or set(moved) == set(self._wrong)):
            # A mistake that leaves out the last step of a name looks the same.
            matching = self._moves(moved)
            first = [name for name in remaining if name in moved]
            trials = search.singles(first[0], remaining) if first else []
            same = [trial.mistakes[0] for trial in trials if trial.explained >= set(first)]
            if matching or not same:
                yield renamed(moved, [*matching, *(same if matching else [])])
                yield from self._with_names(moved)
                return
        # What the encoder makes wrong goes on through the head; only what the head adds to that is said of it.
        after = [name for name in self._wrong if name not in search.places and name != VECTOR]
        in_head = list(head_findings(self._model, self._inputs, self._port, after))
        if not remaining:
            wide = self._wrong[0] in search.places and search.is_wide(self._wrong[0])
            yield from in_head or [cannot_tell(self._wrong, wide=wide)]
            return
        dropped = dropout(search, remaining)
        if dropped is not None:
            yield dropped
            remaining = [name for name in remaining if name not in dropped.names]
        while remaining and len(self._causes) < _MOST:
            remaining = self._explain(remaining)
        search.unknown += remaining
        states = {state_name(i): state_name(i + 1) for i in range(self._model.config.num_hidden_layers)}
        if "embeddings" in search.unknown and search.places.keys() <= states.keys():
            # States that are counted from the first layer's output look like weights of the next layer.
            moved = {name: states[name] for name in search.places}
            others = self._with_names(moved)
            if all(finding.mistake for finding in others) and any(one.id == "W3.shifted" for one in search.chosen):
                yield from [renamed(moved, self._moves(moved)), *others]
                return
        yield from self._known()
        yield from self._unknown()
        yield from (finding for finding in in_head if finding.mistake)

    def _with_names(self, moved: Mapping[str, str]) -> list[Finding]:
        """Return what is wrong if the arrays have the names whose values they hold."""
        port = {moved.get(name, name): array for name, array in self._port.items()}
        inner = _Diagnosis(self._model, self._inputs, port, list(port), self._search.budget, None, self._rows, {})
        wrong = len(port) == len(self._port) and not all(map(inner._search.right, inner._search.places.values()))
        return list(inner.findings()) if wrong else []

    def _known(self) -> Iterator[Finding]:
        """Yield the causes that were found; one mistake in several layers is one cause."""
        search = self._search
        merged: dict[tuple[str, str], tuple[_Cause, tuple[str, ...], Places]] = {}
        for cause, names in self._attributed():
            places = Places.of(search.replay.segments, cause.mistake, names, cause.contradicted)
            key = (cause.mistake.id, cause.mistake.text)
            if key in merged:
                first, before, others = merged[key]
                both = tuple(name for name in search.replay.port if name in {*before, *names})
                alike = [one for one in first.alternatives if one.id in {other.id for other in cause.alternatives}]
                first = dataclasses.replace(first, alternatives=tuple(alike))
                merged[key] = (first, both, others.together(places))
            else:
                merged[key] = (cause, names, places)
        for cause, names, places in merged.values():
            yield finding_of(
                with_mass(search, cause.mistake),
                names,
                self._explained(names),
                cause.alternatives,
                separate_by(cause.mistake, cause.alternatives, self._inputs),
                self._model.config,
                places,
            )

    def _attributed(self) -> Iterator[tuple[_Cause, tuple[str, ...]]]:
        """Yield each cause with the names that are wrong without it; a cause without such names is not one."""
        search = self._search
        for cause in list(self._causes):
            others = [mistake for mistake in search.chosen if mistake is not cause.mistake]
            touched = [
                name for name in search.replay.touched(cause.mistake, search.places) if name not in search.unknown
            ]
            without = search.replay.places(others, compute=touched)
            with_it = search.replay.places(search.chosen, compute=touched)
            names = tuple(
                name
                for name in touched
                if not search.right(without[name]) and not with_it[name].error > 0.5 * without[name].error
            )
            if names:
                yield cause, names
            else:
                search.chosen = others
                self._causes.remove(cause)

    def _unknown(self) -> Iterator[Finding]:
        """Yield a finding for each kind of name that no mistake explains."""
        search = self._search
        groups: dict[tuple[str, str], list[str]] = {}
        said: dict[str, str] = {}
        for name in search.unknown:
            if name in search.places:
                said[name] = facts(search, name, self._rows)
                kind = "" if "not finite" in said[name] else symbol_of(name) or name
                groups.setdefault((kind, re.sub(r"[\d.e+-]+", "", said[name])), []).append(name)
        kinds = list(groups.values())
        for names in kinds[:_MOST]:
            place = search.places[names[0]]
            yield unknown(
                names,
                said[names[0]],
                search.replay.segments,
                wide=search.is_wide(names[0]),
                untried=[name for name in search.untried if name in names],
                far=bool(place.error > place.size / 2),
            )
        if kinds[_MOST:]:
            first = ", ".join(names[0] for names in kinds[_MOST:])
            every = tuple(name for names in kinds[_MOST:] for name in names)
            text = f"Also wrong, though what goes in is right, and with no known cause: {first}"
            yield Finding(text, "", every, 0.0, "")

    # --- names --------------------------------------------------------------------------------------------------------

    def _moved(self) -> dict[str, str]:
        """Find arrays that are the true values of other names."""
        wrong = [name for name in self._wrong if name != VECTOR and np.ndim(self._port[name]) == 3]
        widths = {np.shape(self._port[name])[-1] for name in wrong}
        found: dict[str, str] = {}
        for name, value in Forward(self._model, self._inputs).run_all() if wrong else ():
            if value.ndim != 3 or value.shape[-1] not in widths:
                continue
            limit = 1e-5 * self._rms(value)
            for given in wrong:
                if given == name or given in found or np.shape(self._port[given]) != value.shape:
                    continue
                if self._rms(np.asarray(self._port[given], np.float64) - value) <= limit:
                    found[given] = name
        return found

    def _moves(self, found: Mapping[str, str]) -> list[Mistake]:
        """Return the mistakes with names that give just these names the values of others."""
        depth = self._model.config.num_hidden_layers
        names = [entry.path.format(i=i) for i in range(depth) for entry in (*EMBEDDINGS, *LAYER)]
        true = {name: np.zeros(0) for name in names}
        matching = []
        for mistake in DUMP_MISTAKES:
            assert mistake.dump is not None
            made = mistake.dump(dict(true), depth)
            moved = {name for name, value in made.items() if value is not true[name] and name in self._port}
            if moved == set(found) and all(made[name] is true.get(source) for name, source in found.items()):
                matching.append(mistake)
        return matching

    def _rms(self, value: FloatArray) -> float:
        with np.errstate(all="ignore"):
            shown = visible(value, self._inputs.mask)
            return math.sqrt(float(np.mean(np.square(shown)))) if shown.size else 0.0

    def _recipe(self, vectors: FloatArray | None) -> Recipe | None:
        """Find out how the right vector is made."""
        if VECTOR not in self._port or vectors is None:
            return None
        values = dict(self._kept_states())
        depth = self._model.config.num_hidden_layers
        return find_recipe(values, self._inputs, depth, np.asarray(vectors, np.float64))

    def _kept_states(self) -> Iterator[tuple[str, FloatArray]]:
        wanted = {state_name(i) for i in range(self._model.config.num_hidden_layers + 1)} | {"pooler"}
        for name, value in Forward(self._model, self._inputs).run_all():
            if name in wanted:
                yield name, value

    # --- explaining ---------------------------------------------------------------------------------------------------

    def _explain(self, remaining: list[str]) -> list[str]:
        """Explain the first of the remaining names, and others with it; return those that still remain."""
        search = self._search
        target = remaining[0]
        if not np.isfinite(search.places[target].error):  # nothing that is computed equals NaN
            search.unknown.append(target)
            return remaining[1:]
        trials = search.singles(target, remaining)
        if not trials:
            trials = search.ranked([(mistake,) for mistake in fitted(search, target)], remaining, target)
        if not trials and not search.is_wide(target):
            trials = search.partial(target, remaining) or search.several(target, remaining)
        if not trials:
            search.unknown.append(target)
            return remaining[1:]
        best = trials[0]
        count = len(best.mistakes)
        # A mistake in all layers is a better cause than another one that would have to be in some layers only.
        same = [
            trial
            for trial in trials
            if trial.explained == best.explained
            and len(trial.mistakes) == count
            and bool(trial.contradicted) == bool(best.contradicted)
        ]
        best, *same = search.by_hidden_keys(same)
        # Of several mistakes at once, alternatives are not listed one by one.
        alternatives = tuple(trial.mistakes[0] for trial in same) if count == 1 else ()
        self._causes += [_Cause(mistake, alternatives, best.contradicted) for mistake in best.mistakes]
        search.chosen += best.mistakes
        return [name for name in remaining if name not in best.explained]

    def _explained(self, names: Sequence[str]) -> float:
        """Return the share of the squared difference, in units, that the chosen mistakes remove."""
        try:
            after = self._search.replay.places(self._search.chosen, compute=names)
        except InapplicableError:
            return 0.0
        shares = []
        for name in names:
            first, last = self._search.places[name].error, after[name].error
            shares.append(1.0 if not np.isfinite(first) else max(0.0, 1 - (last / first) ** 2))
        return min(shares, default=0.0)
