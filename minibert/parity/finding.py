"""`Finding`: a cause of a difference: its mistake, names and layers, and the text for people."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """A cause of a difference, or the statement that no known cause explains it.

    Parameters
    ----------
    text : str
        What differs and where; it names the config field or the op.
    mistake : str
        The id of the mistake that explains the difference best, "" if none does: a key of `catalogue.MISTAKES`, or the
        id of a mistake that was read from the port's values, such as "T1.ids".
    names : tuple of str
        The names whose difference this finding is about, in the order of the forward pass.
    explained : float
        The share of the difference that disappears with this mistake in the float64 forward, 0 to 1.
    remedy : str
        What to change in the port.
    alternatives : tuple of str
        Ids of other mistakes that explain this dump equally well.
    separate : str
        What to dump, or which inputs to give, to tell the alternatives apart; "" if there are none.
    sites : tuple of (str, int or None)
        Where the mistake is made: the symbol of a value in trace/layout.py, and its layer, None outside of the layers;
        () if the dump does not say it.
    """

    text: str
    mistake: str
    names: tuple[str, ...]
    explained: float
    remedy: str
    alternatives: tuple[str, ...] = ()
    separate: str = ""
    sites: tuple[tuple[str, int | None], ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers in which the mistake is; () if they are not known."""
        return tuple(sorted({layer for _, layer in self.sites if layer is not None}))

    @property
    def candidates(self) -> tuple[str, ...]:
        """The ids of all mistakes that explain the dump."""
        return (self.mistake, *self.alternatives) if self.mistake else ()
