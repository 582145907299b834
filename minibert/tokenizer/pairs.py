"""Texts and pairs of texts -> their tokens, cut to a length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding

__all__ = ["encode_pairs"]


def encode_pairs(
    tokenizer: BertTokenizer,
    inputs: Sequence[tuple[str, str | None]],
    indices: Sequence[int],
    max_length: int,
    *,
    strategy: str = "longest_first",
    prompt: str = "",
    exact: bool = True,
) -> list[Encoding]:
    """Tokenize texts and pairs, and cut them to a length; texts and pairs may be mixed.

    Parameters
    ----------
    tokenizer : BertTokenizer
    inputs : sequence of pairs of str; the second one may be None
    indices : sequence of int
        The caller's index of each input, for messages.
    max_length : int
        The most tokens of an input, special tokens included. `n_truncated` of an encoding says whether it was cut.
    strategy : {"longest_first", "only_first", "only_second"}
        Which text of a pair is cut, at its end.
    prompt : str
        Put before each first text.
    exact : bool
        As in `BertTokenizer.encodings`.

    Raises
    ------
    ValueError
        An input cannot be cut to this length by this strategy.
    """
    found: dict[int, Encoding] = {}
    for paired in (False, True):
        some = [i for i, (_, second) in enumerate(inputs) if (second is not None) == paired]
        if not some:
            continue
        texts = [prompt + inputs[i][0] for i in some]
        seconds: Any = [inputs[i][1] for i in some] if paired else None
        chosen = strategy if paired else "longest_first"
        try:
            encodings = tokenizer.encodings(texts, seconds, max_length=max_length, truncation=chosen, exact=exact)
        except ValueError as error:
            where = f"inputs from index {indices[some[0]]}"
            raise ValueError(f"{where}: {error} Shorten the other text, or give another truncation=.") from error
        found.update(zip(some, encodings, strict=True))
    return [found[i] for i in range(len(inputs))]
