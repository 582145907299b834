"""`Finding`: one thing that a diagnosis says about a dump."""

from __future__ import annotations

import dataclasses

__all__ = ["Finding"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A cause of a difference, or the statement that no known cause explains it.

    Parameters
    ----------
    text : str
        What differs and where; it names the config field or the op.
    mistake : str
        The id of the mistake that explains the difference best, "" if none does. It is one of `mistakes.MISTAKES`, or
        that of a mistake whose number was fitted, or that was read from the port's values, such as "T1.ids".
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
    """

    text: str
    mistake: str
    names: tuple[str, ...]
    explained: float
    remedy: str
    alternatives: tuple[str, ...] = ()
    separate: str = ""

    @property
    def candidates(self) -> tuple[str, ...]:
        """The ids of all mistakes that explain this dump."""
        return (self.mistake, *self.alternatives) if self.mistake else ()
