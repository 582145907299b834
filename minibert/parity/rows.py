"""`Row`, one compared name, and `Result`, all that a comparison found: plain data."""

from __future__ import annotations

import dataclasses

from minibert.parity.finding import Finding

__all__ = ["FORMAT", "Result", "Row"]

FORMAT = 1
"""The number of the format of `Report.to_json`."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One value of the dump beside the truth; only places that are not masked count.

    Parameters
    ----------
    name : str             the canonical name
    given : str            its name in the dump
    level : str            "float32", "float16", "bfloat16" or "wrong"
    ratio : float          RMS error, in units of the RMS error of a plain float32 forward
    worst : float          largest error, in units of the largest error of that forward
    rms, largest : float   the errors themselves
    relative : float       RMS error over the RMS of the true values
    unit : float           the RMS error of the plain float32 forward
    at : tuple of int      the place of the largest error, in padded form
    value, true : float    the port's value there, and the true one
    layout : str           how the array lay in the dump; "" for the form of a trace
    holds : str            another name whose value the array has; "" if there is none
    half : dict            the ratio in units of a float16 and a bfloat16 forward, if these were computed
    """

    name: str
    given: str
    level: str
    ratio: float
    worst: float
    rms: float
    largest: float
    relative: float
    unit: float
    at: tuple[int, ...]
    value: float
    true: float
    layout: str = ""
    holds: str = ""
    half: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Result:
    """All that `minibert.parity.check` found; see `Report`, which adds what can be done with it.

    Parameters
    ----------
    verdict : str
        "bits": the numbers of minibert, bit for bit. "float32", "float16", "bfloat16": what a correct forward of this
        precision gives. "wrong": something else.
    first : str or None
        The first wrong name in the order of the forward pass, if the verdict is "wrong".
    names : list of Row
        All compared names in that order.
    diagnosis : list of Finding
        What explains the difference; the best explanation first.
    budget : str or float
        The precision that was allowed, or a number of units.
    notes : list of str
        What else was seen, such as layouts and names that were not compared.
    unknown : list of str
        Names in the dump that mean nothing here.
    model : str
        A description of the model.
    misfits : list of str
        Names in the dump that mean a value, but whose shape fits no layout of it. They were not compared.
    warnings : list of str
        What makes the verdict less certain than it looks: a layout that only the values decided, names of one value
        with different numbers, values that the dump cannot tell apart.
    """

    verdict: str
    first: str | None
    names: list[Row]
    diagnosis: list[Finding]
    budget: str | float
    allowed: bool
    notes: list[str] = dataclasses.field(default_factory=list)
    unknown: list[str] = dataclasses.field(default_factory=list)
    model: str = ""
    misfits: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
