"""`Edits`: check, apply and report all edits of one forward pass.

A sequence's values are (S, width), (A, S, S) for scores and probs, or (width,) for the values of [CLS] alone. An edit
gets a copy. Numbers that it leaves as they are keep their bits, also in everything that is computed from them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray, brief, check_indices, counted
from minibert.bert.packed import PackedBatch
from minibert.trace.edits import Change, Edit, EditValue, Where, as_edit, copied_array
from minibert.trace.names import Names, Spec
from minibert.trace.trace import EditReport, Site, Trace

# --- one change of one value ------------------------------------------------------------------------------------------


# Kind of a value -> the axes of one sequence's array, as `Where` calls them.
_AXES = {"tokens": ("tokens", "features"), "pairs": ("heads", "tokens", "keys"), "pooled": ("features",)}

# Kind of a value -> the axes over which there is a mean, and their numbers in the array.
_MEANS = {
    "tokens": {"tokens": -2, "features": -1},
    "pairs": {"tokens": -2, "features": -1, "heads": 0},
    "pooled": {"features": -1},
}

# Operation -> the new numbers, of the old ones and those that were given.
_ARITHMETIC: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "zero": lambda part, numbers: numbers,
    "replace": lambda part, numbers: numbers,
    "scale": np.multiply,
    "add": np.add,
}


class Target:
    """A value of the model and its batch; edits are checked against it and applied to it."""

    def __init__(self, spec: Spec, names: Names, batch: PackedBatch, columns: Sequence[IntArray]) -> None:
        self.spec = spec
        self.batch = batch
        self.columns = columns
        self.shape = spec.shape(*batch.mask.shape)
        self._counted = 0 if spec.kind == "pairs" else -1  # the axis of an array of one axis: heads, or features

    # --- where --------------------------------------------------------------------------------------------------------

    def check_where(self, where: Where) -> None:
        """Raise an error for indices that this value does not have."""
        spec, (num_sequences, length) = self.spec, self.batch.mask.shape
        names = [*_AXES[spec.kind], *(("heads",) if spec.num_heads and spec.kind == "tokens" else ())]
        counts = {"heads": spec.num_heads, "features": spec.width, "sequences": num_sequences}
        for name, value in where.given():
            if name != "sequences" and name not in names:
                raise ValueError(
                    f"{spec.name} does not have {name}; it has {', '.join(names)} and sequences. Attention "
                    "heads are separate in query, key, value, scores, probs and attention.self."
                )
            if name in counts:
                what = "attention heads" if name == "heads" else name
                check_indices(name, value.tolist(), counts[name], what=what, expected="an int or several")
            elif value.dtype.kind == "b" and value.shape != (num_sequences, length):
                raise ValueError(f"{name} has shape {value.shape}; expected {(num_sequences, length)}, the batch's.")
            elif value.dtype.kind != "b" and value.size and not (value.min() >= 0 and value.max() < length):
                raise ValueError(
                    f"{name}={brief(value.tolist())}; the columns of this batch are 0 to {length - 1}, and negative "
                    "ones are not counted from the end, because padding may be there."
                )
        if where.heads is not None and where.features is not None:
            raise ValueError("heads and features are both given; a head is a range of features, so give one of them.")

    def axes(self, where: Where, sequence: int) -> tuple[IntArray, ...] | None:
        """Return the indices that an edit changes, one array for each axis of the sequence's value; or None.

        They have the order in which the user gave them, because numbers for a part are in that order.
        """
        if where.sequences is not None and sequence not in where.sequences % self.batch.num_sequences:
            return None
        axes = tuple(self._axis(name, where, sequence) for name in _AXES[self.spec.kind])
        return axes if all(len(axis) for axis in axes) else None

    def _axis(self, name: str, where: Where, sequence: int) -> IntArray:
        chosen, width = getattr(where, name), self.spec.width
        if name in ("heads", "features"):
            if name == "features" and where.heads is not None:
                by_head = np.arange(width).reshape(self.spec.num_heads, -1)
                return by_head[_once(where.heads % self.spec.num_heads)].reshape(-1)
            return np.arange(width) if chosen is None else _once(chosen % width)
        columns = self.columns[sequence]
        if chosen is None:
            return np.arange(len(columns))
        if chosen.dtype.kind == "b":
            return np.flatnonzero(chosen[sequence, columns])
        asked = _once(chosen)
        return np.searchsorted(columns, asked)[np.isin(asked, columns)]

    # --- values -------------------------------------------------------------------------------------------------------

    def check(self, change: Change) -> None:
        """Raise an error for a change that this value cannot have, before anything is computed."""
        self.check_where(change.where)
        spec = self.spec
        if change.operation in ("scale", "add", "replace"):
            self._check_numbers(change)
        elif change.operation == "patch":
            self._check_patch(change.value, change.where)
        elif change.operation == "mean" and change.value not in _MEANS[spec.kind]:
            raise ValueError(
                f"over={change.value!r} is not an axis of {spec.name}, which has {' and '.join(_MEANS[spec.kind])}."
            )

    def _check_numbers(self, change: Change) -> None:
        value, shape, spec = change.value, self.shape, self.spec
        if np.isneginf(value).any() and not (spec.name.endswith(".scores") and change.operation != "scale"):
            raise ValueError(f"-inf is possible in scores only, not in {spec.name}. Give finite numbers.")
        # As many as there are features (or heads), or chosen ones.
        places = (self.axes(change.where, sequence) for sequence in range(shape[0]))
        widths = {spec.width, *(len(axes[self._counted]) for axes in places if axes is not None)}
        if value.ndim == 0 or (value.ndim == 1 and len(value) in widths):
            return
        if value.ndim == len(shape) and all(n in (1, m) for n, m in zip(value.shape, shape, strict=True)):
            return
        each = "attention head" if spec.kind == "pairs" else "feature"
        raise ValueError(
            f"the array has shape {value.shape}; {spec.name} is {shape} in this batch. Expected that shape (1 for an "
            f"axis that does not matter), ({spec.width},) for each {each}, or one number."
        )

    def _check_patch(self, other: Trace, where: Where) -> None:
        spec, mask = self.spec, self.batch.mask
        if spec.name not in other.names:
            raise ValueError(f"The other trace does not have {spec.name}. Record it there: record={spec.name!r}.")
        if other.shapes[spec.name][1:] != self.shape[1:] or len(other.mask) not in (1, len(mask)):
            raise ValueError(
                f"{spec.name} is {other.shapes[spec.name]} in the other trace and {self.shape} here. Give both texts "
                "in batches of the same width, with padding='max_length', and as many texts, or one text there."
            )
        for sequence in range(len(mask)):
            if self.axes(where, sequence) is None:
                continue
            theirs = other.mask[sequence if len(other.mask) == len(mask) else 0]
            if not np.array_equal(theirs, mask[sequence]):
                raise ValueError(
                    f"Sequence {sequence} has {counted(int(mask[sequence].sum()), 'token')} here and "
                    f"{int(theirs.sum())} in the other trace, or they are in other columns. Values can be patched "
                    "between texts with the same mask; choose others with sequences=."
                )

    def apply(self, change: Change, site: Site) -> FloatArray | None:
        """Return the new value of a sequence as a new array; None if the change does not reach this sequence."""
        axes = self.axes(change.where, site.sequence)
        if axes is None:
            return None
        value = site.array.copy()
        places = np.ix_(*axes)
        part = value[places]
        if change.operation == "function":
            new = _call(change.value, part, site)
        else:
            with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN are refused below
                new = self._new_part(change, site, part, axes)
        if new is None:
            return None
        with np.errstate(over="ignore"):
            value[places] = new
        is_scores, where = site.name.endswith(".scores"), f"{site.name}, sequence {site.sequence}"
        if not (np.isfinite(value) | (np.isneginf(value) & is_scores)).all():
            raise ValueError(
                f"{change.operation} made NaN or infinity in {where}. Expected finite numbers"
                f"{' or -inf' if is_scores else ''}."
            )
        if is_scores and np.isneginf(value.max(axis=-1, initial=-np.inf)).any():
            raise ValueError(
                f"{change.operation} made all scores of one token -inf in {where}, so its probs are not defined. "
                "Leave at least one finite score in each row."
            )
        return value

    def _new_part(self, change: Change, site: Site, part: FloatArray, axes: tuple[IntArray, ...]) -> Any:
        if change.operation in _ARITHMETIC:
            return _ARITHMETIC[change.operation](part, self._numbers(change.value, site, axes))
        if change.operation == "mean":
            means = site.array.mean(axis=_MEANS[self.spec.kind][change.value], keepdims=True, dtype=np.float64)
            return np.broadcast_to(means, site.array.shape)[np.ix_(*axes)]
        other: Trace = change.value
        theirs = other.value_of(site.name, site.sequence if len(other.mask) == self.batch.num_sequences else 0)
        return None if theirs is None else theirs[np.ix_(*axes)]

    def _numbers(self, value: FloatArray, site: Site, axes: tuple[IntArray, ...]) -> FloatArray:
        """Return the numbers of an array for the chosen part of one sequence."""
        if value.ndim == 0:
            return value
        if value.ndim == 1:
            chosen = axes[self._counted]
            part = value if len(value) == len(chosen) else value[chosen]
            return part if self._counted else part[:, None, None]
        names = _AXES[self.spec.kind]
        places = [site.columns[at] if name in ("tokens", "keys") else at for name, at in zip(names, axes, strict=True)]
        return np.asarray(np.broadcast_to(value, self.shape)[site.sequence][np.ix_(*places)])


def _once(indices: npt.NDArray[Any]) -> IntArray:
    """Return each index once, in the order of the first ones."""
    return np.array(list(dict.fromkeys(indices.tolist())), dtype=np.int64)


def _call(function: Callable[..., Any], part: FloatArray, site: Site) -> FloatArray | None:
    """Call a function of the user with a copy, and check what it returns."""
    copy = part.copy()
    result = function(copy, site) if _takes_site(function) else function(copy)
    if result is None:
        if not np.array_equal(copy, part):
            raise ValueError(f"The function of {site.name} changed its array, but returned None. Return the array.")
        return None
    array = copied_array(f"The result of the function of {site.name}", result)
    if array.dtype.kind not in "biuf" or array.shape != part.shape:
        kind = f"{array.dtype} values of shape {array.shape}"
        raise ValueError(f"The function of {site.name} returned {kind}; expected numbers of shape {part.shape}.")
    return array


def _takes_site(function: Callable[..., Any]) -> bool:
    """Return whether a function has a second parameter without a default; it gets the `Site`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions in C do not have a signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([p for p in parameters if p.kind in kinds and p.default is p.empty]) >= 2


# --- all changes of one forward ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tally:
    """The counts of what one item of ``edit=`` has changed so far."""

    pattern: str
    edit: Edit
    names: tuple[str, ...]
    counts: FloatArray = dataclasses.field(default_factory=lambda: np.zeros(5))

    def add(self, before: FloatArray, after: FloatArray) -> None:
        """Count a value before and after the edit."""
        both = np.isfinite(before) & np.isfinite(after)
        old, new = (np.where(both, array, 0).astype(np.float64) for array in (before, after))
        self.counts += [1, (before != after).sum(), before.size, np.square(old).sum(), np.square(new - old).sum()]

    def report(self) -> EditReport:
        """Return the counts as an `EditReport`."""
        fired, changed, numbers, *squares = self.counts
        before, change = (float(np.sqrt(square / max(numbers, 1))) for square in squares)
        return EditReport(self.pattern, str(self.edit), self.names, int(fired), int(changed), before, change)


class Edits:
    """All edits of one forward pass: they are checked first and then applied; `reports` says what they changed.

    Parameters
    ----------
    edit : mapping of a name or pattern to an `Edit`, an array, a number or a function; or None
    names : Names
    batch : PackedBatch

    Raises
    ------
    TypeError, ValueError
        An item means no name of the model, or does not fit the values that it names. Nothing has been computed then.
    """

    def __init__(self, edit: Mapping[str, EditValue] | None, names: Names, batch: PackedBatch) -> None:
        if edit is not None and not isinstance(edit, Mapping):
            raise TypeError(f"edit={brief(edit)}; expected a dict of names to changes: {{'pooler': Edit.zero()}}.")
        self._tallies: list[Tally] = []
        self._by_name: dict[str, list[Tally]] = {}
        self._targets: dict[str, Target] = {}
        self._columns = [np.flatnonzero(row) for row in batch.mask]
        for pattern, value in (edit or {}).items():
            if not isinstance(pattern, str):
                raise TypeError(f"edit holds the name {brief(pattern)}; expected a str: {{'pooler': Edit.zero()}}.")
            try:
                self._add(Tally(pattern, as_edit(value), names.match(pattern)), names, batch)
            except (TypeError, ValueError) as error:
                raise type(error)(f"edit[{pattern!r}]: {error}") from None

    def _add(self, tally: Tally, names: Names, batch: PackedBatch) -> None:
        """Check an item of ``edit=``, and keep it."""
        if (resolved := names.find(tally.pattern)) is not None and resolved[1]:
            raise ValueError(f"{tally.pattern} has another shape than {resolved[0]}; edit the latter.")
        self._tallies.append(tally)
        for name in tally.names:
            target = self._targets.setdefault(name, Target(names.specs[name], names, batch, self._columns))
            for change in tally.edit.changes:
                target.check(change)
            self._by_name.setdefault(name, []).append(tally)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def check_after(self, name: str, array: npt.NDArray[Any]) -> None:
        """Raise a ValueError if a value that was computed from changed ones overflows its dtype; scores may be -inf."""
        if not self._tallies or np.isfinite(array).all():
            return
        if not name.endswith(".scores") or not (np.isfinite(array) | np.isneginf(array)).all():
            patterns = ", ".join(tally.pattern for tally in self._tallies)
            raise ValueError(
                f"{name} holds NaN or infinity after the edits ({patterns}), "
                f"because numbers became too large for {array.dtype}. Change the values by smaller numbers."
            )

    def apply(self, name: str, sequence: int, array: FloatArray) -> FloatArray:
        """Return the new value of one sequence; the same object if no edit reached it."""
        target = self._targets[name]
        for tally in self._by_name[name]:
            before, fired = array, False
            for change in tally.edit.changes:
                view = array.view()
                view.flags.writeable = False  # a function gets the site, and must not change what was recorded
                site = Site(name, target.spec.layer, sequence, self._columns[sequence], view)
                new = target.apply(change, site)
                if new is not None:
                    array, fired = new, True
            if fired:
                tally.add(before, array)
        return array

    def reports(self, *, allow_noop: bool) -> list[EditReport]:
        """Return the report of each item.

        Raises
        ------
        ValueError
            An item reached no value, or it left all bits as they were, and `allow_noop` is False.
        """
        reports = [tally.report() for tally in self._tallies]
        for report in reports:
            if allow_noop or report.changed:
                continue
            why = f"was applied {counted(report.fired, 'time')} and changed nothing: the numbers were the same before"
            if not report.fired:
                why = "reached no value: the tokens or sequences are masked or empty, or the function returned None"
            raise ValueError(f"edit[{report.pattern!r}], {report.description}, {why}. Change it, or allow_noop=True.")
        return reports
