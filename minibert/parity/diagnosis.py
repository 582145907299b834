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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert.base.arrays import FloatArray
from minibert.parity import fits
from minibert.parity.finding import Finding
from minibert.parity.forward import Forward, InapplicableError, Model, Padded
from minibert.parity.mistake import Mistake, Recipe, symbol_of
from minibert.parity.mistakes import MISTAKES
from minibert.parity.mistakes_attention import leak_mistake, scale_mistake
from minibert.parity.mistakes_norms import eps_mistake
from minibert.parity.replay import Place, Replay, encoder_of, shown_values
from minibert.parity.vectors import DUMP_MISTAKES, VECTOR, find_recipe, state_name
from minibert.parity.wording import cannot_tell, finding_of, renamed, separate_by, unknown

__all__ = ["diagnose"]

# A mistake must remove this part of a difference, beside leaving an error within the budget.
_REMOVED = 0.7

# A mistake that rounds must remove this part, and may leave more than the budget.
_ROUNDED = 0.75

# A simulation in float32 is repeated in float64 if it removes this part of the difference, or more.
_PROMISING = 0.4

# How many mistakes at once, how many of the best are combined, and how much each one must remove for that.
_AT_ONCE, _BEAM, _USEFUL = 3, 4, 0.05

# All mistakes of a port that are looked for, one after the other.
_MOST = 8


def diagnose(
    model: Any,
    inputs: Mapping[str, Any],
    port: Mapping[str, FloatArray],
    *,
    truth: Mapping[str, FloatArray],
    unit: Mapping[str, float],
    budget: float,
) -> list[Finding]:
    """Say which known mistakes explain the difference between a port and the truth.

    Parameters
    ----------
    model : BertModel, a model with a head, or a SentenceTransformer
    inputs : mapping
        input_ids, attention_mask, token_type_ids, position_ids, as the model takes them.
    port, truth : mappings of canonical names to padded arrays
        "sentence_embedding" is the name of one vector per text. Hidden places of `port` may hold anything.
    unit : mapping of names to the RMS error of a plain float32 forward
    budget : float
        The RMS error that is right, in units.

    Returns
    -------
    list of Finding
        The ones that explain most first; empty if nothing is wrong.
    """
    encoder = encoder_of(model)
    padded = Padded.of(encoder.config, inputs)
    kept = {name: array for name, array in port.items() if name in truth and np.shape(array) == np.shape(truth[name])}
    wrong = [name for name, array in kept.items() if not _within(array, truth[name], padded, unit.get(name, 0), budget)]
    if not wrong:
        return []
    return list(_Diagnosis(encoder, padded, kept, wrong, truth, budget).findings())


def _within(array: FloatArray, true: FloatArray, inputs: Padded, unit: float, budget: float) -> bool:
    with np.errstate(all="ignore"):
        rest = shown_values(np.asarray(array, np.float64), inputs.mask) - shown_values(true, inputs.mask)
        error = math.sqrt(float(np.mean(np.square(rest)))) if rest.size else 0.0
    return error <= budget * unit  # NaN is not


class _Trial(NamedTuple):
    """A set of mistakes, tried on some names: which are right with it, which it makes wrong, and its least error."""

    mistakes: tuple[Mistake, ...]
    fixed: frozenset[str]
    broken: frozenset[str]
    rest: float
    form: int


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
        truth: Mapping[str, FloatArray],
        budget: float,
    ) -> None:
        self._model, self._inputs, self._budget = model, inputs, budget
        self._port, self._wrong, self._truth = dict(port), list(wrong), truth
        self._places: dict[str, Place] = {}
        self._replay: Replay
        self._chosen: list[Mistake] = []
        self._causes: list[_Cause] = []
        self._unknown: list[str] = []

    def findings(self) -> Iterator[Finding]:
        """Yield what was found."""
        recipe = self._recipe()
        self._replay = Replay(self._model, self._inputs, self._port, recipe)
        self._places = self._replay.places()
        remaining = [name for name in self._places if not self._right(self._places[name])]
        moved, matching = self._moved()
        if matching:
            # A mistake that leaves out the last step of a name looks the same.
            first = [name for name in remaining if name in moved]
            trials = self._singles(first[0], remaining) if first else []
            same = [trial.mistakes[0] for trial in trials if trial.fixed >= set(first)]
            yield renamed(moved, [*matching, *same])
            return
        if not remaining:
            yield cannot_tell(self._wrong)
            return
        first_places = dict(self._places)
        dropped = self._dropped(remaining)
        if dropped is not None:
            yield dropped
            remaining = [name for name in remaining if name not in dropped.names]
        while remaining and len(self._causes) < _MOST:
            remaining = self._explain(remaining)
        self._unknown += remaining
        for cause in self._causes:
            yield finding_of(
                self._with_mass(cause.mistake),
                cause.names,
                self._explained(cause.names, first_places),
                cause.alternatives,
                separate_by(cause.mistake, cause.alternatives, cause.names),
                0 if self._is_wide(cause.names[0]) else self._model.config.num_hidden_layers,
            )
        left = [name for name in self._unknown if name in first_places]
        if left:
            yield unknown(left, self._facts(left), self._replay.segments, wide=self._is_wide(left[0]))

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
            shown = shown_values(value, self._inputs.mask)
            return math.sqrt(float(np.mean(np.square(shown)))) if shown.size else 0.0

    def _recipe(self) -> Recipe | None:
        """Find out how the right vector is made."""
        if VECTOR not in self._port:
            return None
        values = dict(self._kept_states())
        depth = self._model.config.num_hidden_layers
        return find_recipe(values, self._inputs, depth, np.asarray(self._truth[VECTOR], np.float64))

    def _kept_states(self) -> Iterator[tuple[str, FloatArray]]:
        wanted = {state_name(i) for i in range(self._model.config.num_hidden_layers + 1)} | {"pooler"}
        for name, value in Forward(self._model, self._inputs).run_all():
            if name in wanted:
                yield name, value

    # --- explaining ---------------------------------------------------------------------------------------------------

    def _right(self, place: Place) -> bool:
        return place.error <= self._budget * place.unit

    def _span_of(self, name: str) -> int:
        return next(i for i, span in enumerate(self._replay.spans) if name in self._replay.names_in(span))

    def _is_wide(self, name: str) -> bool:
        """Return whether more than one layer is computed for a name."""
        return sum(stage != "vector" for stage in self._replay.spans[self._span_of(name)]) > 2

    def _explain(self, remaining: list[str]) -> list[str]:
        """Explain the first of the remaining names, and others with it; return those that still remain."""
        target = remaining[0]
        trials = self._singles(target, remaining)
        if not trials:
            trials = self._fitted(target, remaining)
        if not trials and not self._is_wide(target):
            trials = self._several(target, remaining)
        if not trials:
            self._unknown.append(target)
            return remaining[1:]
        best = trials[0]
        count = len(best.mistakes)
        # A mistake in all layers is a better cause than another one that would have to be in some layers only.
        same = [
            trial
            for trial in trials
            if trial.fixed == best.fixed and len(trial.mistakes) == count and trial.form == best.form
        ]
        best, *same = self._by_hidden_keys(same)
        # Of several mistakes at once, alternatives are not listed one by one.
        alternatives = tuple(trial.mistakes[0] for trial in same) if count == 1 else ()
        for mistake in best.mistakes:
            touched = self._replay.touched(mistake, best.fixed)
            self._causes.append(_Cause(mistake, tuple(n for n in remaining if n in touched), alternatives))
        self._chosen += best.mistakes
        return [name for name in remaining if name not in best.fixed]

    def _by_hidden_keys(self, trials: list[_Trial]) -> list[_Trial]:
        """Of trials that are equal at visible places, keep those that also give the port's probs of hidden keys."""
        names = [name for name in trials[0].fixed if symbol_of(name) == "probs"][:1]
        if len(trials) < 2 or not names:
            return trials
        errors = []
        for trial in trials:
            made = self._replay.run([*self._chosen, *trial.mistakes], compute=names)
            errors.append(self._replay.error_with_hidden(names[0], made[names[0]]))
        limit = max(100 * min(errors), 1e-6)
        return [trial for trial, error in zip(trials, errors, strict=True) if error <= limit]

    def _candidates(self, target: str) -> list[Mistake]:
        """Return the mistakes that could make this name wrong."""
        # A harmless mistake explains the value that it changes, and nothing that follows.
        alone, config = len(self._replay.segments[target]) == 1, self._model.config
        possible = [
            mistake
            for mistake in MISTAKES.values()
            if mistake.dump is None and mistake.kind != "D1" and not self._is_chosen(mistake)
            if alone or not mistake.is_harmless(config)
        ]
        return [mistake for mistake in possible if self._replay.touched(mistake, [target])]

    def _is_chosen(self, mistake: Mistake) -> bool:
        return any(one.id.split("@")[0] == mistake.id for one in self._chosen)

    def _singles(self, target: str, remaining: Sequence[str]) -> list[_Trial]:
        return self._ranked(
            [(mistake,) for mistake in self._promising(self._candidates(target), target)], remaining, target
        )

    def _promising(self, candidates: Iterable[Mistake], target: str) -> list[Mistake]:
        """Return the mistakes that remove most of the difference of a name, tried in float32."""
        before = self._places[target].error
        errors = [(self._try(target, [mistake]), mistake) for mistake in candidates]
        return [mistake for error, mistake in errors if error <= (1 - _PROMISING) * before or not np.isfinite(before)]

    def _try(self, target: str, mistakes: Sequence[Mistake]) -> float:
        """Return the error of a name with mistakes beside the chosen ones, computed in float32 from its span on."""
        try:
            made = self._replay.run(
                [*self._chosen, *mistakes], [self._span_of(target)], compute=[target], dtype=np.float32
            )
        except InapplicableError:
            return math.inf
        error = self._replay.error(target, made[target])
        return error if np.isfinite(error) else math.inf

    def _ranked(self, sets: Iterable[tuple[Mistake, ...]], remaining: Sequence[str], target: str) -> list[_Trial]:
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
            symbols = {symbol_of(name) for name in self._replay.segments[target]}
            yield tuple(mistake.at(symbols, layer) for mistake in mistakes)
        except ValueError:
            return

    def _layer_of(self, name: str) -> int | None:
        layers = [stage for stage in self._replay.spans[self._span_of(name)] if isinstance(stage, int)]
        return layers[0] if len(layers) == 1 else None

    def _trial(self, mistakes: tuple[Mistake, ...], remaining: Sequence[str], target: str, form: int) -> _Trial | None:
        """Try a set of mistakes on every name that it touches."""
        touched = {name for mistake in mistakes for name in self._replay.touched(mistake, self._places)}
        spans = sorted({self._span_of(name) for name in touched})
        try:
            # First the span of the target, because most sets fail there.
            made = self._replay.places(
                [*self._chosen, *mistakes], spans=[self._span_of(target)], compute=touched | {target}
            )
            if not self._explains(made[target], mistakes):
                return None
            if len(spans) > 1:
                made = self._replay.places([*self._chosen, *mistakes], compute=touched | {target})
        except InapplicableError:
            return None
        fixed = frozenset(name for name in remaining if name in made and self._explains(made[name], mistakes))
        own = {*remaining, *self._unknown}
        broken = frozenset(name for name in touched if name in made and name not in own and not self._right(made[name]))
        return _Trial(mistakes, fixed, broken, made[target].ratio, form)

    def _explains(self, place: Place, mistakes: Sequence[Mistake]) -> bool:
        before = self._places[place.name].error
        if any(mistake.rounds for mistake in (*self._chosen, *mistakes)) and place.error <= (1 - _ROUNDED) * before:
            return True
        return self._right(place) and not place.error > (1 - _REMOVED) * before

    def _several(self, target: str, remaining: Sequence[str]) -> list[_Trial]:
        """Try two and three mistakes at once, the best ones first."""
        candidates = self._candidates(target)
        before = self._places[target].error
        beam: list[tuple[float, tuple[Mistake, ...]]] = [(before, ())]
        for _ in range(_AT_ONCE):
            tried: dict[frozenset[str], tuple[float, tuple[Mistake, ...]]] = {}
            for error, chosen in beam:
                for mistake in candidates:
                    ids = frozenset({mistake.id, *(one.id for one in chosen)})
                    if len(ids) == len(chosen) + 1 and ids not in tried:
                        rest = self._try(target, [*chosen, mistake])
                        if rest < (1 - _USEFUL) * error or not np.isfinite(error):
                            tried[ids] = (rest, (*chosen, mistake))
            beam = sorted(tried.values(), key=lambda one: one[0])[:_BEAM]
            if not beam:
                return []
            near = [chosen for rest, chosen in beam if rest <= (1 - _PROMISING) * before and len(chosen) > 1]
            trials = self._ranked(near, remaining, target)
            if trials:
                return trials
        return []

    # --- fits ---------------------------------------------------------------------------------------------------------

    def _fitted(self, target: str, remaining: Sequence[str]) -> list[_Trial]:
        """Try mistakes whose number is fitted: an eps, a scale, a constant of the mask, ids."""
        symbols = {symbol_of(name) for name in self._replay.segments[target]}
        made: list[Mistake] = []
        if "words" in symbols:
            made += self._fitted_ids(target)
        if len(symbols) == 1:
            made += self._fitted_op(target, *symbols)
        elif not self._is_wide(target):
            norms, tens = {"embeddings", "attention", "output"}, tuple(range(-8, 0))
            families: list[tuple[set[str], Callable[[float], Mistake], Sequence[float]]] = [
                (norms, lambda t: eps_mistake(_rounded(10**t)), tens),
                (norms, lambda t: eps_mistake(_rounded(10**t), outside=True), tens),
                ({"scores"}, lambda t: _scaled(math.exp(t)), (-4, -3, -2, -1, -0.3, 0.3, 1, 2, 3, 4)),
                ({"probs"}, lambda t: leak_mistake(_rounded(t)), (-16, -12, -8, -6, -4, -2, -0.5, 2)),
            ]
            for needs, make, grid in families:
                found = self._search(target, make, grid) if needs & symbols else None
                if found is not None:
                    made.append(found)
        return self._ranked([(mistake,) for mistake in made], remaining, target)

    def _fitted_op(self, target: str, symbol: str) -> list[Mistake]:
        """Fit a number in closed form from the input and output of one op."""
        port, mask = self._replay.port, self._inputs.mask
        if symbol in ("embeddings", "attention", "output"):
            weights = self._model.weights
            path = target if symbol == "embeddings" else f"{target}.output"
            norm = weights.embeddings_norm
            if symbol != "embeddings":
                layer = weights.layers[int(target.split(".")[2])]
                norm = layer.attention_norm if symbol == "attention" else layer.output_norm
            eps = fits.fit_eps(port[f"{path}.LayerNorm.input"][mask], port[target][mask], norm)
            return [] if eps is None else [eps_mistake(_rounded(eps.eps), outside=eps.outside)]
        before = target.rpartition(".")[0]
        if symbol == "scores":
            row = int(mask.sum(axis=1).argmax())
            shown = mask[row]
            query, key = (port[f"{before}.{part}"][row][shown] for part in ("query", "key"))
            scale = fits.fit_scale(query, key, port[target][row][:, shown][:, :, shown], self._model.config)
            if scale is None:
                return []
            named = f" (query key^T times {scale.factor:.6g}{', ' if scale.name else ''}{scale.name})"
            return [_scaled(scale.factor * math.sqrt(self._model.config.head_size), named)]
        if symbol == "probs":
            leak = fits.fit_leak(port[f"{before}.scores"], port[target], mask)
            return [] if leak is None else [leak_mistake(_rounded(leak.constant))]
        return []

    def _search(self, target: str, make: Callable[[float], Mistake], grid: Sequence[float]) -> Mistake | None:
        """Find the number with the least error: the best of a grid, then golden section around it."""
        before = self._places[target].error
        errors = [self._try(target, [make(t)]) for t in grid]
        best = int(np.argmin(errors))
        if not errors[best] < (1 - _USEFUL) * before:
            return None
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        golden = (math.sqrt(5) - 1) / 2
        inner = [high - golden * (high - low), low + golden * (high - low)]
        found = [self._try(target, [make(t)]) for t in inner]
        for _ in range(24):
            if found[0] <= found[1]:
                high, inner[1], found[1] = inner[1], inner[0], found[0]
                inner[0] = high - golden * (high - low)
                found[0] = self._try(target, [make(inner[0])])
            else:
                low, inner[0], found[0] = inner[0], inner[1], found[1]
                inner[1] = low + golden * (high - low)
                found[1] = self._try(target, [make(inner[1])])
        t = inner[0] if found[0] <= found[1] else inner[1]
        return make(t) if min(found) <= (1 - _PROMISING) * before else None

    def _fitted_ids(self, target: str) -> list[Mistake]:
        """Find the ids that the port looked up, from its word embeddings or from the output of embeddings.LayerNorm."""
        if target not in ("embeddings.word_embeddings", "embeddings.LayerNorm.input", "embeddings"):
            return []
        inputs, weights = self._inputs, self._model.weights
        if inputs.embeds is not None:
            return []
        given = np.asarray(self._port[target], np.float64)
        ids = inputs.ids.copy()
        computed = self._replay.run(self._chosen, [0], compute=[target])[target]
        limit = 1e-4 * self._rms(computed)
        differs = inputs.mask & (np.abs(given - computed).max(axis=2, initial=0) > limit)
        if not differs.any() or not np.isfinite(given[differs]).all():
            return []
        table = weights.word_embeddings.astype(np.float64)
        for row, column in np.argwhere(differs)[:64]:
            rows = table
            if target != "embeddings.word_embeddings":
                rows = table + weights.token_type_embeddings[inputs.types[row, column]]
                rows = rows + weights.position_embeddings[inputs.positions[row, column]]
            if target == "embeddings":
                norm = weights.embeddings_norm
                rows = rows - rows.mean(axis=1, keepdims=True)
                rows = rows / np.sqrt((rows * rows).mean(axis=1, keepdims=True) + norm.eps) * norm.weight + norm.bias
            ids[row, column] = fits.fit_rows(rows, given[row, column][None])[0]
        first = tuple(int(i) for i in np.argwhere(differs)[0])
        text = (
            f"input_ids: the port looked up other ids at {int(differs.sum())} places; at row {first[0]}, column "
            f"{first[1]} it has {int(ids[first])}, the inputs have {int(inputs.ids[first])}"
        )
        remedy = MISTAKES["T1.unknown"].remedy
        return [
            Mistake(
                "T1.ids", text, remedy, ("words",), inputs=lambda given, config: dataclasses.replace(given, ids=ids)
            )
        ]

    def _dropped(self, remaining: Sequence[str]) -> Finding | None:
        """Find dropout: zeros, and all other values larger by one factor."""
        exact = self._replay.run(compute=remaining)
        mask, hit, rates = self._inputs.mask, [], []
        for name in remaining:
            if symbol_of(name) not in ("embeddings", "probs", "attention_sum", "output_sum"):
                continue
            wanted, given = exact[name], self._replay.port[name]
            if name.endswith("LayerNorm.input") and not name.startswith("embeddings"):
                dense = f"{name.removesuffix('LayerNorm.input')}dense"
                if dense not in self._replay.port:
                    continue
                residual = wanted - self._replay.port[dense]
                wanted, given = self._replay.port[dense], given - residual
                given = np.where(np.abs(given) < 1e-5 * np.abs(residual).max(initial=1), 0, given)
            rate = fits.fit_dropout(shown_values(wanted, mask), shown_values(given, mask))
            if rate is not None:
                hit.append(name)
                rates.append(rate)
        if not hit:
            return None
        states = {state_name(i + 1) for i in range(self._model.config.num_hidden_layers)}
        # A later hidden state has dropout in it too, but does not show it.
        hit += [
            name for name in remaining if name in states and name not in hit and len(self._replay.segments[name]) > 3
        ]
        mistake = MISTAKES["D1.dropout"]
        return Finding(
            f"{mistake.text}; about {100 * float(np.median(rates)):.0f} % of {hit[0]} are zero",
            *(mistake.id, tuple(hit), 1.0, mistake.remedy),
        )

    # --- what is said -------------------------------------------------------------------------------------------------

    def _explained(self, names: Sequence[str], before: Mapping[str, Place]) -> float:
        """Return the share of the squared difference, in units, that the chosen mistakes remove."""
        try:
            after = self._replay.places(self._chosen, compute=names)
        except InapplicableError:
            return 0.0
        shares = []
        for name in names:
            first, last = before[name].error, after[name].error
            shares.append(1.0 if not np.isfinite(first) else max(0.0, 1 - (last / first) ** 2))
        return min(shares, default=0.0)

    def _with_mass(self, mistake: Mistake) -> Mistake:
        """Add to a mistake with the mask how much of the attention hidden places get, if the port's probs say it."""
        for name in self._replay.port if mistake.kind in ("A5", "A6") else ():
            scores = f"{name.removesuffix('probs')}scores"
            if symbol_of(name) == "probs" and scores in self._replay.port:
                leak = fits.fit_leak(self._replay.port[scores], self._replay.port[name], self._inputs.mask)
                if leak is not None:
                    where = name.removesuffix(".probs")
                    where = name.removesuffix(".probs")
                    text = f"{mistake.text} (in {where}, up to {leak.mass:.0%} of a token's attention)"
                    return dataclasses.replace(mistake, text=text)
        return mistake

    def _facts(self, names: Sequence[str]) -> str:
        """Say which rows and heads of the first unexplained name differ."""
        name = names[0]
        place = self._places[name]
        exact = self._replay.run(self._chosen, [self._span_of(name)], compute=[name])[name]
        given = self._replay.port[name]
        with np.errstate(all="ignore"):
            differs = ~(np.abs(given - exact) <= 10 * self._budget * place.unit)
        mask = self._inputs.mask
        facts = []
        if exact.ndim == 3:
            tokens = differs.any(axis=2) & mask
            rows = np.flatnonzero(tokens.any(axis=1))
            if 0 < len(rows) < len(mask):
                facts.append(f"rows {', '.join(map(str, rows.tolist()[:8]))} only")
            elif 0 < tokens.sum() < mask.sum():
                facts.append(f"{int(tokens.sum())} of {int(mask.sum())} tokens")
            columns = np.flatnonzero((differs & mask[:, :, None]).any(axis=(0, 1)))
            if 0 < len(columns) < exact.shape[2]:
                facts.append(f"{len(columns)} of {exact.shape[2]} features")
            shown = mask.ravel()
            width = exact.shape[-1]
            order = fits.fit_columns(exact.reshape(-1, width)[shown], given.reshape(-1, width)[shown])
            if order is not None:
                facts.append("its columns are the right ones in another order")
            length = fits.fit_length(exact[mask], given[mask])
            if length is not None and length[1] < 1e-3:
                facts.append(f"it is {length[0]:.6g} times the right value")
        elif exact.ndim == 4:
            pairs = differs & (mask[:, None, :, None] & mask[:, None, None, :])
            heads = np.flatnonzero(pairs.any(axis=(0, 2, 3)))
            if 0 < len(heads) < exact.shape[1]:
                facts.append(f"heads {', '.join(map(str, heads.tolist()))} only")
        before = f"{name}.dense"
        if symbol_of(name) == "intermediate" and before in self._replay.port:
            points = (shown_values(self._replay.port[before], mask), shown_values(given, mask))
            curve = fits.fit_activation(*points)
            if curve is not None and curve[1] < 0.05 * place.size:
                facts.append(f"the nearest curve is {curve[0]}")
        precision = fits.precision_of(shown_values(given, mask))
        if precision in ("float16", "bfloat16"):
            facts.append(f"all its values are {precision} numbers")
        return "; ".join(facts)


def _rounded(number: float) -> float:
    """Round a fitted number to four digits, so that 1.0003e-05 is named 1e-05."""
    near = float(f"{number:.1g}")
    return near if abs(number / near - 1) < 2e-3 else float(f"{number:.6g}")


def _scaled(factor: float, more: str = "") -> Mistake:
    text = f"attention: the scores are {factor:.6g} times what they must be{more}"
    return scale_mistake("A2.fitted", text, lambda here, size: factor)
