"""Tables of refused values: (argument, type of error) -> values, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

Refused = Mapping[tuple[str, type[Exception]], Iterable[Any]]


def check_refused(function: Callable[..., Any], given: Mapping[str, Any], table: Refused) -> None:
    """Check that each value raises exactly this error, and that the message names the argument."""
    for (name, error), values in table.items():
        for value in values:
            with pytest.raises(error, match=rf"\b{name}\b") as caught:
                function(**{**given, name: value})
            assert type(caught.value) is error, f"{name}={value!r}: {caught.value!r}"
