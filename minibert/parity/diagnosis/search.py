"""`Search`: which mistakes explain a wrong value of a port. causes.py asks, name by name.

Mistakes are simulated from the port's own values on (replay.py): mistakes of the catalogue, and mistakes that the
values suggest (suggested.py): dropout, other ids, the weights of another layer. A mistake is accepted if the rest of
the difference is within the budget and it makes no right name wrong. If it makes one wrong, it is tried again, only
where it explains something. If no single mistake explains the name, mistakes in one of their ops are tried, and then up
to three at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.mistake import CAN_SPARE_ROWS, Mistake
from minibert.parity.diagnosis.replay import Measured, Replay
from minibert.parity.symbols import symbol_of
from minibert.parity.truth import InapplicableError, mask_of, rms, unmasked

BUDGET = 4.0
"""The RMS error that is right, in units of a plain float32 forward's."""

# A mistake must remove this part of a difference, beside leaving an error within the budget; one that rounds must
# remove the second part, and may leave more.
_REMOVED, _ROUNDED = 0.7, 0.75

# A simulation of one row in float32 is repeated in float64 and all rows if it removes this part of the difference.
_PROMISING = 0.4

# Errors that differ by less, in units, differ by rounding only, which is another one on each machine. Of such mistakes
# the order of `MISTAKES` decides.
_ALIKE = 0.25

# How many mistakes at once, how many of the best are combined, and how much each one must remove for that.
_AT_ONCE, _BEAM, _USEFUL = 3, 4, 0.05

# For how many names two and three mistakes at once are tried without success. Each such trial is hundreds of forwards.
_FAILURES = 3

# The share of the features of a head that differ if the whole head is wrong; some may be right by chance.
_WHOLE = 0.9


class WrongPart(NamedTuple):
    """The features of a value that are wrong, if the others are right; `heads` if these are whole heads."""

    columns: npt.NDArray[np.bool_]
    heads: npt.NDArray[np.bool_] | None

    def __str__(self) -> str:
        if self.heads is not None:
            return f"head{'s' if self.heads.sum() > 1 else ''} {listed(np.flatnonzero(self.heads))}"
        return run_of("feature", self.columns)


def run_of(noun: str, chosen: npt.NDArray[np.bool_]) -> str:
    """Say which of them are chosen: "features 1533 to 1535 (the last 3)", or how many if they do not form a run."""
    numbers, total = np.flatnonzero(chosen), len(chosen)
    count, first, last = len(numbers), numbers[0], numbers[-1]
    if last - first + 1 != count:
        return f"{count} of {total} {noun}s"
    end = "last" if last == total - 1 else "first" if first == 0 else ""
    listed = f"{noun} {first}" if count == 1 else f"{noun}s {first} to {last}"
    return f"{listed} of {total} (the {end} {'one' if count == 1 else count})" if end else f"{listed} of {total}"


def listed(numbers: IntArray) -> str:
    """Return numbers with commas between them."""
    return ", ".join(map(str, numbers))


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
    more : mistakes with the ids that the catalogue does not have

    Attributes
    ----------
    measured : dict of Measured     each name of the port, beside a forward without mistakes
    chosen : list of Mistake        the mistakes that were found
    unknown : list of str           names that no mistake explains
    trials_left : int               for how many names several mistakes at once are still tried
    untried : list of str           names for which several mistakes at once were not tried
    """

    def __init__(self, replay: Replay, budget: float, more: Sequence[Mistake] = ()) -> None:
        self.replay, self.budget, self.more = replay, budget, more
        self.model, self.inputs = replay.model, replay.inputs
        self.measured = replay.measure()
        self.chosen: list[Mistake] = []
        self.unknown: list[str] = []
        self.untried: list[str] = []
        self.trials_left = _FAILURES
        # Of the target, the rows that `quick_rest` tries, and their errors.
        self._rows: tuple[object, list[int]] = (None, [])
        self._errors: dict[tuple[str, tuple[int | None, int | None]], float] = {}

    def within_budget(self, measured: Measured) -> bool:
        """Return whether the error of a name is within the budget."""
        return measured.error <= self.budget * measured.unit

    def wrong(self) -> list[str]:
        """Return the names that are outside the budget without mistakes."""
        return [name for name, measured in self.measured.items() if not self.within_budget(measured)]

    def has_several_layers(self, name: str) -> bool:
        """Return whether more than one layer is computed for a name."""
        stages = self.replay.spans[self.replay.span_of(name)].stages
        return sum(0 <= stage < self.model.config.num_hidden_layers for stage in stages) > 1

    def computed(self, name: str, extra: Sequence[Mistake] = (), **options: Any) -> FloatArray:
        """Return a value that follows from the port's own values before it, with the chosen mistakes and others."""
        return self.replay.run([*self.chosen, *extra], self.replay.span_of(name), compute=[name], **options)[name]

    def rows_that_differ(self, name: str, exact: FloatArray) -> tuple[dict[int, float], dict[int, float]]:
        """Return the errors of the wrong rows and of the right rows; rows without visible positions are in neither."""
        port, mask = self.replay.port[name], mask_of(name, self.inputs.mask)
        rows = [[unmasked(array[i : i + 1], mask[i : i + 1]) for array in (port, exact)] for i in range(len(mask))]
        limit = 2 * self.budget * self.measured[name].unit
        errors = {i: rms(row - true) for i, (row, true) in enumerate(rows) if row.size}
        wrong = {i: error for i, error in errors.items() if not error <= limit}
        return wrong, {i: error for i, error in errors.items() if i not in wrong}

    def differing(self, name: str, exact: FloatArray) -> npt.NDArray[np.bool_]:
        """Return which numbers of a value are wrong; those that a float32 computation rounds are not."""
        rounding, unit = self.computed(name, dtype=np.float32) - exact, np.asarray(self.measured[name].unit)
        if exact.ndim == 3:
            unit = np.maximum(unit, np.sqrt(np.square(rounding[self.inputs.mask]).mean(axis=0)))
        return ~(np.abs(self.replay.port[name] - exact) <= 10 * self.budget * unit)

    def part_that_differs(self, name: str, exact: FloatArray) -> WrongPart | None:
        """Return the features, or the heads, of a value that are wrong; None if all are, or if it has neither."""
        mask, count = self.inputs.mask, self.model.config.num_attention_heads
        if exact.ndim < 3:
            return None
        differs = self.differing(name, exact)
        if exact.ndim == 4:
            wrong = np.any(differs & (mask[:, None, :, None] & mask[:, None, None, :]), axis=(0, 2, 3))
            return WrongPart(wrong, wrong) if 0 < wrong.sum() < count else None
        columns, heads = np.any(differs[mask], axis=0), None
        if self.replay.names.specs[name].num_heads:
            shares = columns.reshape(count, -1).mean(axis=1)
            if ((shares == 0) | (shares > _WHOLE)).all():
                heads = shares > 0
                columns = heads.repeat(len(columns) // count)
        return WrongPart(columns, heads) if 0 < columns.sum() < len(columns) else None

    # --- which mistakes -----------------------------------------------------------------------------------------------

    def explaining(self, candidates: Iterable[Mistake], target: str, remaining: Sequence[str]) -> list[Trial]:
        """Return the candidates that explain the target, the best one first."""
        rests = [(self.quick_rest(target, [mistake]), mistake) for mistake in candidates]
        return self._good_trials([(mistake,) for rest, mistake in rests if rest <= 1 - _PROMISING], target, remaining)

    def in_one_op(self, target: str, remaining: Sequence[str]) -> list[Trial]:
        """Return the mistakes that explain the target if the port makes them in only one of their ops."""
        symbols = {symbol_of(name) for name in self.replay.segments[target]}
        narrowed = [
            mistake.but(symbols=(symbol,))
            for mistake in self.candidates(target)
            if mistake.parts and "layer" not in mistake.parts and len(symbols & {*mistake.symbols}) > 1
            for symbol in mistake.symbols
            if symbol in symbols
        ]
        return self.explaining(narrowed, target, remaining)

    def several(self, target: str, remaining: Sequence[str]) -> list[Trial]:
        """Try two and three mistakes at once, the best first; stop trying after three names without success."""
        if not self.trials_left:
            self.untried.append(target)
            return []
        candidates = self.candidates(target)
        beam: list[tuple[float, tuple[Mistake, ...]]] = [(1.0, ())]
        for _ in range(_AT_ONCE):  # sets of one, two and three mistakes: the best ones with each candidate
            longer: dict[frozenset[str], tuple[float, tuple[Mistake, ...]]] = {}
            for before, mistakes in beam:
                for mistake in candidates:
                    ids = frozenset({mistake.id, *(other.id for other in mistakes)})
                    if len(ids) == len(mistakes) + 1 and ids not in longer:
                        rest = self.quick_rest(target, [*mistakes, mistake], largest=True)
                        if rest < (1 - _USEFUL) * before:
                            longer[ids] = (rest, (*mistakes, mistake))
            beam = sorted(longer.values(), key=lambda pair: pair[0])[:_BEAM]
            near = [mistakes for rest, mistakes in beam if rest <= 1 - _PROMISING and len(mistakes) > 1]
            if trials := self._good_trials(near, target, remaining):
                return trials
        self.trials_left -= 1
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

    def candidates(self, target: str) -> list[Mistake]:
        """Return the mistakes that could make this name wrong, beside those that are already made there."""
        # A harmless mistake explains the value that it changes, and nothing that follows.
        alone, config, replay = len(self.replay.segments[target]) == 1, self.model.config, self.replay
        # Trials of one layer are short.
        right = [*self.rows_that_differ(target, self.computed(target))[1]] if self.has_several_layers(target) else []
        made = {mistake.id for mistake in self.chosen if replay.affected(mistake, [target])}
        return [
            mistake
            for mistake in MISTAKES.values()
            if mistake.dump is None
            and not mistake.from_values
            and mistake.is_for(self.model)
            and mistake.id not in made
            and (alone or not mistake.is_harmless(config))
            and replay.affected(mistake, [target])
            and (not right or self._may_spare(mistake, right))
        ]

    def _may_spare(self, mistake: Mistake, rows: list[int]) -> bool:
        """Return whether a mistake can leave these rows right: only one with inputs, mask, pooling or vector can."""
        if mistake.inputs is None:
            return mistake.vector is not None or not mistake.parts.keys().isdisjoint(CAN_SPARE_ROWS)
        try:
            right = self.inputs.rows(rows)
            wrong = mistake.inputs(self.inputs, self.model.config).rows(rows)
        except InapplicableError:
            return False
        fields = ((getattr(right, name), getattr(wrong, name)) for name in ("ids", "types", "positions"))
        same = all(np.array_equal(own[right.mask], made[right.mask]) for own, made in fields)
        return same and np.array_equal(right.mask, wrong.mask)

    # --- trials -------------------------------------------------------------------------------------------------------

    def quick_rest(self, target: str, mistakes: Sequence[Mistake], *, largest: bool = False) -> float:
        """Return the share of a name's error that these and the chosen mistakes leave in one wrong row, in float32.

        It is the shortest one, or that with the largest error. The columns behind its last token are left out if no
        mistake reads them.
        """
        key, ends = (target, len(self.chosen)), self.inputs.ends
        if self._rows[0] != key:
            wrong, _ = self.rows_that_differ(target, self.computed(target))
            rows = [min(wrong, key=ends.__getitem__), max(wrong, key=wrong.__getitem__)] if wrong else []
            self._rows = key, rows
        made, span = [*self.chosen, *mistakes], self.replay.span_of(target)
        rows = [] if any(mistake.mixes_rows for mistake in made) else self._rows[1][largest:][:1]
        is_local = self.replay.is_masked and all(mistake.is_local for mistake in made)
        for part in (*((row, int(ends[row]) if is_local else None) for row in rows), (None, None)):
            replay = self.replay.part(*part)
            if (target, part) not in self._errors:
                self._errors[target, part] = replay.error(target, replay.run((), span, compute=[target])[target])
            try:
                value = replay.run(made, span, compute=[target], dtype=np.float32)[target]
            except InapplicableError:  # perhaps in this row only
                continue
            rest = replay.error(target, value) / self._errors[target, part]
            return rest if np.isfinite(rest) else math.inf
        return math.inf

    def _good_trials(self, sets: Iterable[tuple[Mistake, ...]], target: str, remaining: Sequence[str]) -> list[Trial]:
        """Try sets of mistakes in float64; return the trials that explain the target, the best first."""
        trials = [self._fitting_trial(mistakes, target, remaining) for mistakes in sets]
        good = [trial for trial in trials if trial is not None and target in trial.explained]
        alike = min((trial.rest for trial in good), default=0) + _ALIKE
        return sorted(good, key=lambda t: (-len(t.explained), len(t.contradicted), len(t.mistakes), max(t.rest, alike)))

    def _fitting_trial(self, mistakes: tuple[Mistake, ...], target: str, remaining: Sequence[str]) -> Trial | None:
        """Try mistakes wherever they can be made; if right names contradict that, only where they explain something."""
        everywhere = self._trial(mistakes, target, remaining)
        if everywhere is not None and any("layer" in mistake.parts for mistake in mistakes):
            # It says which weights all layers have. What is true of one layer only is a fitted mistake.
            affected = {name for mistake in mistakes for name in self.replay.affected(mistake, remaining)}
            fits = not everywhere.contradicted and 2 * len(everywhere.explained) >= len(affected)
            return everywhere if fits else None
        if everywhere is None or not everywhere.contradicted:
            return everywhere
        names = frozenset[str]().union(*(self.replay.segments[name] for name in everywhere.explained))
        try:
            narrowed = tuple(mistake.only(names) for mistake in mistakes)
        except ValueError:
            return None
        trial = self._trial(narrowed, target, remaining)
        return None if trial is None or trial.contradicted else trial._replace(contradicted=everywhere.contradicted)

    def _trial(self, mistakes: tuple[Mistake, ...], target: str, remaining: Sequence[str]) -> Trial | None:
        """Compute every name that the mistakes change; return None if they do not explain the target."""
        together = [*self.chosen, *mistakes]
        names = {name for mistake in mistakes for name in self.replay.affected(mistake, self.measured)} | {target}
        try:
            # First the span of the target, because most sets fail there.
            made = self.replay.measure(together, only=self.replay.span_of(target), compute=names)
            if not self._explains(made[target], mistakes):
                return None
            if len({self.replay.span_of(name) for name in names}) > 1:
                made = self.replay.measure(together, compute=names)
        except InapplicableError:
            return None
        explained = frozenset(name for name in remaining if name in made and self._explains(made[name], mistakes))
        right = names - {*remaining, *self.unknown}
        contradicted = frozenset(name for name in right if name in made and not self.within_budget(made[name]))
        return Trial(mistakes, explained, contradicted, made[target].ratio)

    def _explains(self, measured: Measured, mistakes: Sequence[Mistake]) -> bool:
        full_error = self.measured[measured.name].error
        rounds = any(mistake.rounds for mistake in (*self.chosen, *mistakes))
        if rounds and measured.error <= (1 - _ROUNDED) * full_error:
            return True
        return self.within_budget(measured) and not measured.error > (1 - _REMOVED) * full_error
