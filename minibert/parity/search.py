"""`Search`: which mistakes explain a name of a port, tried one by one and several at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.parity.forward import Model
from minibert.parity.mistake import Mistake, symbol_of
from minibert.parity.mistakes import MISTAKES
from minibert.parity.padded import InapplicableError, Padded
from minibert.parity.replay import Place, Replay
from minibert.trace.names import LAYER

__all__ = ["PROMISING", "USEFUL", "Search", "Trial"]

# A mistake must remove this part of a difference, beside leaving an error within the budget.
_REMOVED = 0.7

# A mistake that rounds must remove this part, and may leave more than the budget.
_ROUNDED = 0.75

# A simulation in float32 is repeated in float64 if it removes this part of the difference, or more.
PROMISING = 0.4

# How many mistakes at once, how many of the best are combined, and how much each one must remove for that.
_AT_ONCE, _BEAM, USEFUL = 3, 4, 0.05

# For how many names two and three mistakes at once are tried in vain. Each such trial is hundreds of simulations.
_VAIN = 3

# The values of a layer, in the order in which they are computed.
_SYMBOLS = tuple(entry.symbol for entry in LAYER)


class Trial(NamedTuple):
    """A set of mistakes, tried on some names: which are right with it, which it makes wrong, and its least error."""

    mistakes: tuple[Mistake, ...]
    fixed: frozenset[str]
    broken: frozenset[str]
    rest: float
    form: int


class Search:
    """What is known about a port so far, and trials of mistakes on it.

    Parameters
    ----------
    model : Model
    inputs : Padded
    replay : Replay         the port's values
    budget : float          the RMS error that is right, in units

    Attributes
    ----------
    places : dict of Place      each name of the port, beside a forward without mistakes
    chosen : list of Mistake    the mistakes that were found
    unknown : list of str       names that no mistake explains
    untried : list of str       those of them for which one mistake was tried, but not several at once
    """

    def __init__(self, model: Model, inputs: Padded, replay: Replay, budget: float) -> None:
        self.model, self.inputs, self.replay, self.budget = model, inputs, replay, budget
        self.places: dict[str, Place] = replay.places()
        self.chosen: list[Mistake] = []
        self.unknown: list[str] = []
        self.untried: list[str] = []
        self._vain = 0
        self._layer_values: tuple[tuple[str, int] | None, dict[str, FloatArray]] = (None, {})

    def right(self, place: Place) -> bool:
        """Return whether the error at a place is within the budget."""
        return place.error <= self.budget * place.unit

    def is_explained(self) -> bool:
        """Return whether the chosen mistakes explain every name."""
        try:
            made = self.replay.places(self.chosen)
        except InapplicableError:
            return False
        return all(self.right(place) or self._explains(place, ()) for place in made.values())

    def span_of(self, name: str) -> int:
        """Return the number of the replay's span that gives a name."""
        return next(i for i, span in enumerate(self.replay.spans) if name in self.replay.names_in(span))

    def is_wide(self, name: str) -> bool:
        """Return whether more than one layer is computed for a name."""
        return sum(stage != "vector" for stage in self.replay.spans[self.span_of(name)]) > 2

    def singles(self, target: str, remaining: Sequence[str]) -> list[Trial]:
        """Return the single mistakes of the catalogue that explain the target, the best first."""
        return self.ranked(
            [(mistake,) for mistake in self._promising(self._candidates(target), target)], remaining, target
        )

    def several(self, target: str, remaining: Sequence[str]) -> list[Trial]:
        """Try two and three mistakes at once, the best ones first; nothing after three names in vain."""
        if self._vain == _VAIN:
            self.untried.append(target)
            return []
        found = self._several(target, remaining)
        self._vain += not found
        return found

    def _several(self, target: str, remaining: Sequence[str]) -> list[Trial]:
        candidates = self._candidates(target)
        before = self.places[target].error
        beam: list[tuple[float, tuple[Mistake, ...]]] = [(before, ())]
        for _ in range(_AT_ONCE):
            tried: dict[frozenset[str], tuple[float, tuple[Mistake, ...]]] = {}
            for error, chosen in beam:
                for mistake in candidates:
                    ids = frozenset({mistake.id, *(one.id for one in chosen)})
                    if len(ids) == len(chosen) + 1 and ids not in tried:
                        rest = self.attempt(target, [*chosen, mistake])
                        if rest < (1 - USEFUL) * error or not np.isfinite(error):
                            tried[ids] = (rest, (*chosen, mistake))
            beam = sorted(tried.values(), key=lambda one: one[0])[:_BEAM]
            if not beam:
                return []
            near = [chosen for rest, chosen in beam if rest <= (1 - PROMISING) * before and len(chosen) > 1]
            trials = self.ranked(near, remaining, target)
            if trials:
                return trials
        return []

    def by_hidden_keys(self, trials: list[Trial]) -> list[Trial]:
        """Of trials that are equal at visible places, keep those that also give the port's probs of hidden keys."""
        names = [name for name in trials[0].fixed if symbol_of(name) == "probs"][:1]
        if len(trials) < 2 or not names:
            return trials
        errors = []
        for trial in trials:
            made = self.replay.run([*self.chosen, *trial.mistakes], compute=names)
            errors.append(self.replay.error_with_hidden(names[0], made[names[0]]))
        limit = max(100 * min(errors), 1e-6)
        return [trial for trial, error in zip(trials, errors, strict=True) if error <= limit]

    def _candidates(self, target: str) -> list[Mistake]:
        """Return the mistakes that could make this name wrong."""
        # A harmless mistake explains the value that it changes, and nothing that follows.
        alone, config = len(self.replay.segments[target]) == 1, self.model.config
        possible = [
            mistake
            for mistake in MISTAKES.values()
            if mistake.dump is None and mistake.kind != "D1" and not self._is_chosen(mistake)
            if alone or not mistake.is_harmless(config)
        ]
        return [mistake for mistake in possible if self.replay.touched(mistake, [target])]

    def _is_chosen(self, mistake: Mistake) -> bool:
        return any(one.id.split("@")[0] == mistake.id for one in self.chosen)

    def _promising(self, candidates: Iterable[Mistake], target: str) -> list[Mistake]:
        """Return the mistakes that remove most of the difference of a name, tried in float32."""
        before = self.places[target].error
        errors = [(self.attempt(target, [mistake]), mistake) for mistake in candidates]
        return [mistake for error, mistake in errors if error <= (1 - PROMISING) * before or not np.isfinite(before)]

    def attempt(self, target: str, mistakes: Sequence[Mistake]) -> float:
        """Return the error of a name with mistakes beside the chosen ones, computed in float32 from its span on."""
        try:
            made = self.replay.run(
                [*self.chosen, *mistakes],
                [self.span_of(target)],
                compute=[target],
                known=self._known(target, mistakes),
                dtype=np.float32,
            )
        except InapplicableError:
            return math.inf
        error = self.replay.error(target, made[target])
        return error if np.isfinite(error) else math.inf

    def _known(self, target: str, mistakes: Sequence[Mistake]) -> dict[str, FloatArray]:
        """Return the values of the target's layer that are computed before any of these mistakes acts."""
        key = (target, len(self.chosen))
        if self._layer_values[0] != key:
            self._layer_values = (key, self.replay.values_of_layer(self.chosen, self.span_of(target), target))
        changed = {symbol for mistake in mistakes for symbol in mistake.symbols}
        before = itertools.takewhile(lambda symbol: symbol not in changed, _SYMBOLS)
        kept = set(before) - {symbol_of(target)}
        return {name: value for name, value in self._layer_values[1].items() if symbol_of(name) in kept}

    def ranked(self, sets: Iterable[tuple[Mistake, ...]], remaining: Sequence[str], target: str) -> list[Trial]:
        """Try sets of mistakes in float64; return those that explain the target, the best first."""
        good = []
        for mistakes in sets:
            for number, form in enumerate(self._forms(mistakes, target)):
                trial = self._trial(form, remaining, target, number)
                if trial is not None and target in trial.fixed and not trial.broken:
                    good.append(trial)
                    break
        return sorted(good, key=lambda trial: (-len(trial.fixed), trial.form, len(trial.mistakes), trial.rest))

    def _forms(self, mistakes: tuple[Mistake, ...], target: str) -> Iterator[tuple[Mistake, ...]]:
        """Yield the mistakes in all layers, then in the layer of the target alone, then at the target alone."""
        yield mistakes
        layer = self._layer_of(target)
        try:
            if layer is not None:
                yield tuple(mistake.only(layer) for mistake in mistakes)
            symbols = {symbol_of(name) for name in self.replay.segments[target]}
            yield tuple(mistake.at(symbols, layer) for mistake in mistakes)
        except ValueError:
            return

    def _layer_of(self, name: str) -> int | None:
        layers = [stage for stage in self.replay.spans[self.span_of(name)] if isinstance(stage, int)]
        return layers[0] if len(layers) == 1 else None

    def _trial(self, mistakes: tuple[Mistake, ...], remaining: Sequence[str], target: str, form: int) -> Trial | None:
        """Try a set of mistakes on every name that it touches."""
        touched = {name for mistake in mistakes for name in self.replay.touched(mistake, self.places)}
        spans = sorted({self.span_of(name) for name in touched})
        try:
            # First the span of the target, because most sets fail there.
            made = self.replay.places(
                [*self.chosen, *mistakes], spans=[self.span_of(target)], compute=touched | {target}
            )
            if not self._explains(made[target], mistakes):
                return None
            if len(spans) > 1:
                made = self.replay.places([*self.chosen, *mistakes], compute=touched | {target})
        except InapplicableError:
            return None
        fixed = frozenset(name for name in remaining if name in made and self._explains(made[name], mistakes))
        own = {*remaining, *self.unknown}
        broken = frozenset(name for name in touched if name in made and name not in own and not self.right(made[name]))
        return Trial(mistakes, fixed, broken, made[target].ratio, form)

    def _explains(self, place: Place, mistakes: Sequence[Mistake]) -> bool:
        before = self.places[place.name].error
        if any(mistake.rounds for mistake in (*self.chosen, *mistakes)) and place.error <= (1 - _ROUNDED) * before:
            return True
        return self.right(place) and not place.error > (1 - _REMOVED) * before
