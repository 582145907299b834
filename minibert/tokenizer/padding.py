"""The lengths of rows: limits of truncation, and padding of rows that are kept as lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils.reporting import warn_caller
from minibert._utils.system import require_memory
from minibert._utils.torch_interop import is_tensor, to_array
from minibert._utils.validation import brief, check_choice, check_int, counted
from minibert.tokenizer.files import SIDES

PADDING = ("longest", "max_length", "do_not_pad")
STRATEGIES = ("longest_first", "only_first", "only_second")


# The columns that are padded besides input_ids, and the value of padding in each.
_FILLS = {"attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}


def choose_side(padding_side: str | None, own: str) -> str:
    """Return the side that is padded: the argument, else the tokenizer's own."""
    side = own if padding_side is None else padding_side
    check_choice("padding_side", side, SIDES)
    return side


def choose_limit(
    truncation: bool | str | None, max_length: int | None, padding: str, model_max_length: int | None
) -> tuple[str, int | None]:
    """Return the truncation strategy and the length for these arguments, with transformers' defaults."""
    if truncation is None:
        truncation = max_length is not None and padding == "do_not_pad"
    strategy = choose_strategy("truncation", truncation, (*STRATEGIES, "do_not_truncate"))
    needed = strategy != "do_not_truncate" or padding == "max_length"
    if max_length is not None:
        max_length = check_int("max_length", max_length, 1)
        if not needed:
            warn_caller(
                f"max_length={brief(max_length)} has no effect: add truncation=True to truncate texts to it, "
                "or padding='max_length' to pad them to it.",
            )
        return strategy, max_length
    if needed and model_max_length is None:
        raise ValueError(
            f"truncation={truncation!r}, padding={padding!r} need max_length=: neither tokenizer_config.json nor "
            "config.json says how many tokens this model takes."
        )
    return strategy, model_max_length


def choose_widths(
    lengths: list[int],
    padding: str,
    strategy: str,
    max_length: int | None,
    multiple: int | None,
    *,
    equal: bool,
    can_pad: bool,
) -> list[int]:
    """Return the width of each row with its padding; if `equal`, refuse rows of different width.

    Rows that are longer than `max_length` keep their length, as in transformers.
    """
    width = max(lengths, default=0)
    if padding != "do_not_pad":
        if not can_pad:
            raise ValueError("this tokenizer has no padding token; tokenize without padding=.")
        if padding == "max_length" and max_length is not None and lengths:
            if equal and width > max_length and min(lengths) < width:
                row = lengths.index(width)
                raise ValueError(f"row {row} has {width} tokens, max_length={max_length}; add truncation=True.")
            width = max_length
        if multiple is not None:
            multiple = check_int("pad_to_multiple_of", multiple, 1)
            if strategy != "do_not_truncate" and max_length is not None and max_length % multiple:
                raise ValueError(
                    f"max_length={brief(max_length)} is not a multiple of pad_to_multiple_of={brief(multiple)}; "
                    "change one of them."
                )
            width = -(-width // multiple) * multiple
        _check_memory(len(lengths), width)
        return [max(width, length) for length in lengths]
    if equal and min(lengths, default=0) < width:
        shortest = lengths.index(min(lengths))
        raise ValueError(
            f"rows of different length do not make an array: row {shortest} has {lengths[shortest]} tokens, "
            f"row {lengths.index(width)} has {width}; add padding=True."
        )
    return lengths


def _check_memory(rows: int, width: int) -> None:
    """Raise a MemoryError for rows that do not fit into memory: ids, types and mask, each of 8 bytes."""
    require_memory(3 * 8 * rows * width, f"{counted(rows, 'row')} of {brief(width)} tokens", "Give a smaller length.")


def choose_strategy(name: str, value: bool | str, choices: tuple[str, ...]) -> str:
    """Return the name of a strategy; True means the first of `choices`, False the last."""
    if isinstance(value, bool):
        return choices[0] if value else choices[-1]
    check_choice(name, value, choices)
    return value


def columns_of(encoded: Any) -> tuple[dict[str, Any], str | None]:
    """Return a batch, or a list of encodings, as columns of lists, and the kind of its values.

    Returns
    -------
    dict of str to list
    {None, "np", "pt"}
        "np" or "pt" if the ids are arrays or tensors.

    Raises
    ------
    TypeError, ValueError
        It is not such a batch or list, or there are no "input_ids".
    """
    if isinstance(encoded, Mapping):
        columns = dict(encoded)
    elif isinstance(encoded, Sequence) and encoded and all(isinstance(one, Mapping) for one in encoded):
        columns = {name: [one[name] for one in encoded] for name in encoded[0]}
    else:
        raise TypeError(
            f"encoded_inputs is {brief(encoded)}; expected the result of the tokenizer, or a list of such results."
        )
    if "input_ids" not in columns:
        raise ValueError(f"encoded_inputs holds {', '.join(map(brief, columns)) or 'nothing'}; it needs 'input_ids'.")
    ids = columns["input_ids"]
    first = ids[0] if isinstance(ids, list | tuple) and ids else ids
    kind = "pt" if is_tensor(first) else "np" if isinstance(first, np.ndarray) else None
    return {name: _plain(value) for name, value in columns.items()}, kind


def pad_columns(columns: dict[str, Any], width: int | None, side: str, pad_token_id: int) -> dict[str, Any]:
    """Pad each row of a batch to a width; a row of another column keeps its length.

    Parameters
    ----------
    columns : dict of str to list of B lists
    width : int, or None
        None pads nothing.
    side : {"right", "left"}
    pad_token_id : int
    """
    result = {}
    for name, rows in columns.items():
        fill = pad_token_id if name == "input_ids" else _FILLS.get(name)
        if width is None or fill is None:
            result[name] = rows
            continue
        fills = [[fill] * (width - len(row)) for row in rows]
        result[name] = [row + more if side == "right" else more + row for row, more in zip(rows, fills, strict=True)]
    return result


def _plain(value: Any) -> Any:
    """Return arrays and tensors, also in lists, as lists of Python numbers."""
    value = to_array(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
