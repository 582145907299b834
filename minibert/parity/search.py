"""`Search`: which mistakes explain a name of a port, tried one by one and several at once."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.parity.forward import Model
from minibert.parity.mistake import Mistake, symbol_of
from minibert.parity.mistakes import MISTAKES
from minibert.parity.replay import Place, Replay
from minibert.parity.subject import InapplicableError, Padded
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
    """Mistakes that explain a name, with all others that they explain, and those where they cannot be made."""

    mistakes: tuple[Mistake, ...]
    explained: frozenset[str]
    contradicted: frozenset[str]
    rest: float


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

    def partial(self, target: str, remaining: Sequence[str]) -> list[Trial]:
        """Return the mistakes that explain the target if they are made in one of their ops only."""
        symbols = {symbol_of(name) for name in self.replay.segments[target]}
        tried = [
            dataclasses.replace(mistake, symbols=(symbol,))
            for mistake in self._candidates(target)
            if mistake.parts and "layer" not in mistake.parts and len(symbols & {*mistake.symbols}) > 1
            for symbol in mistake.symbols
            if symbol in symbols
        ]
        return self.ranked([(mistake,) for mistake in self._promising(tried, target)], remaining, target)

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
        """Return the mistakes that could make this name wrong."""
        # A harmless mistake explains the value that it changes, and nothing that follows.
        alone, config = len(self.replay.segments[target]) == 1, self.model.config
        possible = [
            mistake
            for mistake in MISTAKES.values()
            if mistake.dump is None and mistake.kind != "D1"
            if alone or not mistake.is_harmless(config)
        ]
        return [
            mistake
            for mistake in possible
            if self.replay.touched(mistake, [target])
            and not any(one.id == mistake.id and self.replay.touched(one, [target]) for one in self.chosen)
        ]

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
        trials = [self._trial(mistakes, remaining, target) for mistakes in sets]
        good = [trial for trial in trials if trial is not None and target in trial.explained]
        return sorted(
            good, key=lambda one: (-len(one.explained), len(one.contradicted) > 0, len(one.mistakes), one.rest)
        )

    def _trial(self, mistakes: tuple[Mistake, ...], remaining: Sequence[str], target: str) -> Trial | None:
        """Try mistakes wherever they can be made; if right names contradict that, only where they explain something."""
        first = self._explained_by(mistakes, remaining, target)
        if first is None or not first.contradicted:
            return first
        places = frozenset[str]().union(*(self.replay.segments[name] for name in first.explained))
        try:
            narrowed = tuple(mistake.only(places) for mistake in mistakes)
        except ValueError:
            return None
        second = self._explained_by(narrowed, remaining, target)
        if second is None or second.contradicted:
            return None
        return second._replace(contradicted=first.contradicted)

    def _explained_by(self, mistakes: tuple[Mistake, ...], remaining: Sequence[str], target: str) -> Trial | None:
        """Try mistakes on every name that they touch."""
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
        explained = frozenset(name for name in remaining if name in made and self._explains(made[name], mistakes))
        own = {*remaining, *self.unknown}
        wrong = frozenset(name for name in touched if name in made and name not in own and not self.right(made[name]))
        return Trial(mistakes, explained, wrong, made[target].ratio)

    def _explains(self, place: Place, mistakes: Sequence[Mistake]) -> bool:
        before = self.places[place.name].error
        if any(mistake.rounds for mistake in (*self.chosen, *mistakes)) and place.error <= (1 - _ROUNDED) * before:
            return True
        return self.right(place) and not place.error > (1 - _REMOVED) * before
