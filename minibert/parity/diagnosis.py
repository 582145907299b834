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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.parity.described import dropout, facts, with_mass
from minibert.parity.finding import Finding
from minibert.parity.fitted import fitted
from minibert.parity.forward import Forward, Model
from minibert.parity.heads import head_findings
from minibert.parity.mistake import Mistake, Recipe
from minibert.parity.mistakes import MISTAKES
from minibert.parity.padded import InapplicableError, Padded, visible
from minibert.parity.replay import Replay, encoder_of
from minibert.parity.search import Search
from minibert.parity.vectors import DUMP_MISTAKES, VECTOR, find_recipe, state_name
from minibert.parity.wording import cannot_tell, finding_of, renamed, separate_by, unknown

__all__ = ["diagnose"]

# Long rows take most of the time, so the causes are looked for in rows of at most this many places, if there are any.
# What is found there must explain the long rows too; if it does not, all rows are looked at.
_SHORT = 64

# All mistakes of a port that are looked for, one after the other.
_MOST = 8


def diagnose(
    model: Any,
    inputs: Mapping[str, Any],
    port: Mapping[str, FloatArray],
    wrong: Sequence[str],
    *,
    budget: float,
    vectors: FloatArray | None = None,
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

    Returns
    -------
    list of Finding
        The ones that explain most first; empty if nothing is wrong.
    """
    if not wrong:
        return []
    encoder = encoder_of(model)
    padded = Padded.of(encoder.config, inputs)
    rows, width = _short(padded)
    if rows:
        some = {name: _cut(array, rows, width) for name, array in port.items()}
        few = None if vectors is None else vectors[rows]
        diagnosis = _Diagnosis(encoder, padded.cut(rows, width), some, wrong, budget, few)
        findings = list(diagnosis.findings())
        if diagnosis.holds(padded, port):
            return findings
    return list(_Diagnosis(encoder, padded, port, wrong, budget, vectors).findings())


def _short(inputs: Padded) -> tuple[list[int], int]:
    """Return the short rows and their width, if the others make up most of the work; else no rows."""
    ends = [int(np.flatnonzero(row)[-1]) + 1 if row.any() else 0 for row in inputs.mask]
    rows = [i for i, end in enumerate(ends) if 0 < end <= _SHORT]
    width = max((ends[i] for i in rows), default=0)
    return (rows, width) if 4 * len(rows) * width <= inputs.mask.size else ([], 0)


def _cut(array: FloatArray, rows: list[int], width: int) -> FloatArray:
    array = np.asarray(array)[rows]
    return array[:, :, :width, :width] if array.ndim == 4 else array[:, :width] if array.ndim == 3 else array


@dataclasses.dataclass(frozen=True)
class _Cause:
    """A mistake that was accepted, the names it explains, and the mistakes that would do as well."""

    mistake: Mistake
    names: tuple[str, ...]
    alternatives: tuple[Mistake, ...]


class _Diagnosis:
    def __init__(
        self,
        model: Model,
        inputs: Padded,
        port: Mapping[str, FloatArray],
        wrong: Sequence[str],
        budget: float,
        vectors: FloatArray | None,
    ) -> None:
        self._model, self._inputs = model, inputs
        self._port, self._wrong = dict(port), list(wrong)
        self._search = Search(model, inputs, Replay(model, inputs, self._port, self._recipe(vectors)), budget)
        self._causes: list[_Cause] = []

    def findings(self) -> Iterator[Finding]:
        """Yield what was found."""
        search = self._search
        remaining = [name for name, place in search.places.items() if not search.right(place)]
        moved, matching = self._moved()
        if matching:
            # A mistake that leaves out the last step of a name looks the same.
            first = [name for name in remaining if name in moved]
            trials = search.singles(first[0], remaining) if first else []
            same = [trial.mistakes[0] for trial in trials if trial.fixed >= set(first)]
            yield renamed(moved, [*matching, *same])
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
        for cause in self._causes:
            yield finding_of(
                with_mass(search, cause.mistake),
                cause.names,
                self._explained(cause.names),
                cause.alternatives,
                separate_by(cause.mistake, cause.alternatives, self._inputs),
                self._model.config,
                wide=search.is_wide(cause.names[0]),
            )
        left = [name for name in search.unknown if name in search.places]
        if left:
            place = search.places[left[0]]
            yield unknown(
                left,
                facts(search, left),
                search.replay.segments,
                wide=search.is_wide(left[0]),
                untried=search.untried,
                far=bool(place.error > place.size / 2),
            )
        yield from (finding for finding in in_head if finding.mistake)

    def holds(self, inputs: Padded, port: Mapping[str, FloatArray]) -> bool:
        """Return whether the mistakes that were found here explain all of a port that has more rows."""
        chosen = self._search.chosen
        if not chosen or any(mistake.inputs is not None and mistake.id not in MISTAKES for mistake in chosen):
            return False
        replay = Replay(self._model, inputs, port, self._search.replay.recipe)
        whole = Search(self._model, inputs, replay, self._search.budget)
        whole.chosen = chosen
        return whole.is_explained()

    # --- names --------------------------------------------------------------------------------------------------------

    def _moved(self) -> tuple[dict[str, str], list[Mistake]]:
        """Find arrays that are the true values of other names, and the mistakes with names that move just these."""
        wrong = [name for name in self._wrong if name != VECTOR and np.ndim(self._port[name]) == 3]
        widths = {np.shape(self._port[name])[-1] for name in wrong}
        found: dict[str, str] = {}
        true: dict[str, FloatArray] = {}
        for name, value in Forward(self._model, self._inputs).run_all() if wrong else ():
            if value.ndim != 3 or value.shape[-1] not in widths:
                continue
            if name.startswith("embeddings") or name.endswith("LayerNorm.input") or name.count(".") == 2:
                true[name] = value
            limit = 1e-5 * self._rms(value)
            for given in wrong:
                if given == name or given in found or np.shape(self._port[given]) != value.shape:
                    continue
                if self._rms(np.asarray(self._port[given], np.float64) - value) <= limit:
                    found[given] = name
        depth = self._model.config.num_hidden_layers
        matching = []
        for mistake in DUMP_MISTAKES if set(found) == set(self._wrong) else ():
            assert mistake.dump is not None
            made = mistake.dump(dict(true), depth)
            moved = {name for name, value in made.items() if value is not true.get(name) and name in self._port}
            if moved == set(found) and all(made[name] is true.get(source) for name, source in found.items()):
                matching.append(mistake)
        return found, matching

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
            trials = search.several(target, remaining)
        if not trials:
            search.unknown.append(target)
            return remaining[1:]
        best = trials[0]
        count = len(best.mistakes)
        # A mistake in all layers is a better cause than another one that would have to be in some layers only.
        same = [
            trial
            for trial in trials
            if trial.fixed == best.fixed and len(trial.mistakes) == count and trial.form == best.form
        ]
        best, *same = search.by_hidden_keys(same)
        # Of several mistakes at once, alternatives are not listed one by one.
        alternatives = tuple(trial.mistakes[0] for trial in same) if count == 1 else ()
        for mistake in best.mistakes:
            touched = search.replay.touched(mistake, best.fixed)
            self._causes.append(_Cause(mistake, tuple(n for n in remaining if n in touched), alternatives))
        search.chosen += best.mistakes
        return [name for name in remaining if name not in best.fixed]

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
