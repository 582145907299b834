"""What a trace is made of: the kinds of values, the report of an edit, the check of tokens."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from minibert._utils.validation import FloatArray, IntArray, brief

__all__ = ["EditReport", "Site", "Value", "check_tokens"]

Value = FloatArray | list[FloatArray]
"""A recorded value as it is kept: rows of T tokens or of the sequences that show [CLS]; or an (A, S, S) for each."""


class Site(NamedTuple):
    """One value of one sequence.

    Parameters
    ----------
    name : str
    layer : int or None        None outside the layers
    sequence : int             its row in the padded batch
    columns : int ndarray      the column in the padded batch of each of its S tokens
    array : ndarray            (S, width), (A, S, S) for scores and probs, or (width,) for the values of [CLS] alone
    """

    name: str
    layer: int | None
    sequence: int
    columns: IntArray
    array: FloatArray


@dataclasses.dataclass(frozen=True)
class EditReport:
    """What one item of ``edit=`` did.

    Parameters
    ----------
    pattern : str              its key
    description : str          the change, in words
    names : tuple of str       the names that the key means
    fired : int                how many values, of one name and one sequence each, it was applied to
    changed : int              how many numbers have other bits afterwards
    before_rms : float         root mean square of these values before the change
    change_rms : float         root mean square of the change
    """

    pattern: str
    description: str
    names: tuple[str, ...]
    fired: int
    changed: int
    before_rms: float
    change_rms: float


def check_tokens(tokens: object, lengths: IntArray) -> None:
    """Raise a ValueError if tokens are not one list of str for each sequence, of its length."""
    rows = list(tokens) if isinstance(tokens, list | tuple) else None
    if rows is None or not all(isinstance(row, list | tuple) and all(isinstance(t, str) for t in row) for row in rows):
        raise ValueError(f"tokens={brief(tokens)}; expected a list of str for each sequence.")
    if [len(row) for row in rows] != lengths.tolist():
        raise ValueError(
            f"tokens has lists of {brief([len(row) for row in rows])} tokens; the sequences have "
            f"{brief(lengths.tolist())} tokens that are not masked."
        )
