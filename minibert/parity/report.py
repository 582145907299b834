"""`Report`: the result of a comparison, and what can be done with it."""

from __future__ import annotations

from typing import Any

from minibert.parity.render import as_json, as_junit, as_markdown, as_text
from minibert.parity.rows import Result

__all__ = ["Report"]


class Report(Result):
    """The result of `minibert.parity.check`; `verdict`, `first`, `names` and `diagnosis` are those of `Result`."""

    @property
    def exit_code(self) -> int:
        """0 if everything that was compared is within the budget, else 1."""
        return 0 if self.allowed else 1

    def raise_for_divergence(self) -> None:
        """Raise an AssertionError with the text of the report if something is outside the budget.

        Raises
        ------
        AssertionError
        """
        if not self.allowed:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return as_text(self)

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object; "format" is its number. Numbers that are not finite are strings."""
        return as_json(self)

    def to_markdown(self) -> str:
        """Return the report for a comment on a pull request."""
        return as_markdown(self)

    def to_junit(self) -> str:
        """Return the report as JUnit XML: one test case for each name."""
        return as_junit(self)
