"""The tokens of a request: of texts and pairs, cut to a limit, and token ids that a client sends."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import Int64Array, check_int
from minibert.encode.plan import Plan
from minibert.serving.reading import in_turns
from minibert.serving.settings import ServiceError
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.windows import TokenWindows

MOST_CHARACTERS = 2**20
"""Limit of the characters of a text that is split, of one without spaces, and of a pair that is read whole."""

_COUNTED = 2**16  # characters: the tokens of a longer text are not counted to its end only to refuse it
_HINT = "In langchain-openai, check_embedding_ctx_length=False makes the client send texts."


class Tokenized(NamedTuple):
    """The tokens of a request. Equal inputs share their windows.

    Parameters
    ----------
    windows : TokenWindows
        They made the tokens.
    groups : list of lists of Encoding
        The windows of each distinct input.
    rows : list of int
        For each input the index of its windows.
    n_characters : int
        Of all inputs.
    """

    windows: TokenWindows
    groups: list[list[Encoding]]
    rows: list[int]
    n_characters: int = 0


def too_long(index: int, limit: int, encoding: Encoding, field: str = "input") -> ServiceError:
    """Return the error about an input that is longer than the limit; `encoding` is the input after the cut."""
    length = len(encoding) + encoding.n_truncated
    message = f"[{index}] has {length} tokens; the limit is {limit}."
    return ServiceError("too_long", message, limit=limit, given=length, param=field, of_param=True)


def _encoding_of(ids: Int64Array, special: Int64Array, types: Int64Array, n_truncated: int) -> Encoding:
    """Return an encoding of tokens if only their ids are known."""
    raw = SimpleNamespace(ids=ids, special_tokens_mask=special, type_ids=types)
    return Encoding(raw, np.arange(len(ids)), n_truncated)


def _without_rest(encoding: Encoding) -> Encoding:
    """Return a copy of an encoding that does not keep truncated tokens in memory."""
    if not encoding.n_truncated:
        return encoding
    return _encoding_of(encoding.ids, encoding.special_tokens_mask, encoding.token_types, encoding.n_truncated)


def tokenized(inputs: Sequence[Any], windows: TokenWindows) -> Tokenized:
    """Tokenize texts, or texts and pairs, as the windows do; texts that are too long are cut if they are not split.

    Raises
    ------
    ServiceError
        A text takes too much memory.
    """
    indices, groups = {text: i for i, text in enumerate(dict.fromkeys(inputs))}, list[list[Encoding]]()
    if windows.truncation == "split" and max(map(len, indices), default=0) > MOST_CHARACTERS:
        raise ServiceError("too_large", f"a text that is split may have {MOST_CHARACTERS} characters; send its parts.")
    for part in in_turns([*windows.chunks(indices, exact=False)]):
        longest = max(map(windows.length, part))
        counts = windows.truncation == "error" and longest <= _COUNTED
        try:
            found = windows.groups(part, range(len(part)), exact=counts)
        except ValueError as error:
            raise ServiceError("too_large" if longest > MOST_CHARACTERS else "invalid", str(error)) from error
        groups += [[_without_rest(group[0])] if len(group) == 1 else group for group in found]
    return Tokenized(windows, groups, [indices[text] for text in inputs], sum(map(windows.length, inputs)))


def tokens_of_ids(inputs: Sequence[Sequence[int]], plan: Plan, add_special_tokens: bool) -> Tokenized:
    """Return the tokens of rows of token ids, cut to the limit of the plan's windows.

    Ids of another model's tokenizer give vectors without a meaning. LangChain's OpenAIEmbeddings sends such ids. Ids
    are therefore accepted only if they begin with [CLS] and end with [SEP], or if the request says that they do not
    have special tokens.

    Raises
    ------
    ServiceError
        An id is not in the vocabulary, or the ids have no special tokens.
    """
    groups = [[_encoding_of_ids(f"[{i}]", ids, plan, add_special_tokens)] for i, ids in enumerate(inputs)]
    return Tokenized(plan.windows, groups, [*range(len(groups))])


def _encoding_of_ids(where: str, ids: Sequence[int], plan: Plan, add_special_tokens: bool) -> Encoding:
    tokenizer, size, limit = plan.windows.tokenizer, plan.model.config.vocab_size, plan.windows.max_length
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id

    def wrong_ids(problem: str) -> ServiceError:
        return ServiceError("invalid", f"{where}{problem}", param="input", of_param=True)

    try:
        row = [check_int("id", number) for number in ids]
    except TypeError as error:
        raise wrong_ids(f": {error}; expected a str, or token ids.") from error
    if not row:
        raise wrong_ids(" is empty; expected token ids.")
    if (bad := next((i for i, number in enumerate(row) if not 0 <= number < size), None)) is not None:
        raise wrong_ids(f"[{bad}] is not a token id of this model; expected numbers from 0 to {size - 1}. {_HINT}")
    if first is None or last is None:
        raise wrong_ids(" is an array of token ids; this model has no [CLS] and [SEP] to know them by. Send texts.")
    if row[0] != first or row[-1] != last or len(row) == 1:
        if not add_special_tokens:
            raise wrong_ids(
                f" is an array of token ids that does not begin with {first} ([CLS]) and end with {last} ([SEP]), so "
                "these may be ids of another tokenizer. Send texts. If the ids are of this model, send "
                f'"add_special_tokens": true with them. {_HINT}'
            )
        row = [first, *row, last]
    n_truncated = max(0, len(row) - limit)
    if n_truncated:
        start = n_truncated + 1 if tokenizer.truncation_side == "left" else 1
        row = [row[0], *row[start : start + limit - 2], row[-1]]
    special = np.isin(row, tokenizer.all_special_ids).astype(np.int64)
    return _encoding_of(np.array(row), special, np.zeros_like(special), n_truncated)
