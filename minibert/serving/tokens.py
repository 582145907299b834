"""The tokens of a request: of texts and pairs, cut to a limit, and token ids that a client sends."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple, TypeAlias

import numpy as np

from minibert._utils.validation import Int64Array, check_int
from minibert.encode.plan import Plan
from minibert.serving.reading import in_turns
from minibert.serving.settings import ServiceError, blamed_on
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.windows import CHARACTERS_AT_ONCE, TokenWindows, encode_pairs, in_chunks

Pair: TypeAlias = tuple[str, str | None]
"""A pair of texts, or one text and None."""

_COUNTED = 2**16  # characters: the tokens of a longer text are not counted to its end only to refuse it
_MOST_PAIRED = 2**18  # characters of a text whose pair must be tokenized whole
_MOST_WHOLE = 2**20  # characters of a text that cannot be cut at a space
_MOST_SPLIT = 2**20  # characters of a text that is split into windows
_CHARACTERS_PER_TOKEN = 8  # English has 4 to 5, with its spaces
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


def encodings_of(inputs: Sequence[Pair], windows: TokenWindows) -> list[Encoding]:
    """Tokenize texts (their second part is None) and pairs, and cut them as the whole ones would be cut.

    With the truncation "silent" a part of a long text is tokenized first, and the whole text only if the part does not
    decide its tokens. With "error" the tokens of texts that are too long are counted, if they are not much too long.

    Raises
    ------
    ServiceError
        A text takes too much memory, or cannot be cut to the limit.
    """
    exact = windows.truncation == "error"
    whole = [(windows.prompt + first, second) for first, second in inputs]
    pairs = whole if exact else [_shortened(pair, windows) for pair in whole]
    encodings = _tokenize(pairs, windows, exact=exact)
    unsure = [i for i, pair in enumerate(pairs) if pair != whole[i] and not _is_sure(pair, encodings[i])]
    for i, encoding in zip(unsure, _tokenize([whole[i] for i in unsure], windows, exact=False), strict=True):
        encodings[i] = encoding
    return encodings


def tokenized(inputs: Sequence[Pair], windows: TokenWindows) -> Tokenized:
    """Tokenize texts and pairs; only texts can be split. Errors are as in `encodings_of`."""
    indices = {pair: i for i, pair in enumerate(dict.fromkeys(inputs))}
    rows, n_characters = [indices[pair] for pair in inputs], sum(map(_size_of, inputs))
    if windows.truncation != "split":
        return Tokenized(windows, [[encoding] for encoding in encodings_of([*indices], windows)], rows, n_characters)
    texts = [text for text, _ in indices]
    if max(map(len, texts), default=0) > _MOST_SPLIT:
        raise ServiceError("too_large", f"a text that is split may have {_MOST_SPLIT} characters; send its parts.")
    with blamed_on(None, errors=ValueError):
        groups = [group for _, groups in in_turns(windows.of(texts, range(len(texts)))) for group in groups]
    return Tokenized(windows, groups, rows, n_characters)


def _tokenize(inputs: Sequence[Pair], windows: TokenWindows, *, exact: bool) -> list[Encoding]:
    encodings, tokenizer, limit = list[Encoding](), windows.tokenizer, windows.max_length
    for part in in_turns([*in_chunks(inputs, len(inputs) + 1, _size_of, CHARACTERS_AT_ONCE)]):
        if any(second is not None and max(len(first), len(second)) > _MOST_PAIRED for first, second in part):
            message = f"a text of a pair has more than {_MOST_PAIRED} characters; shorten it."
            raise ServiceError("too_large", message)  # a pair takes much memory
        counted = exact and all(_size_of(pair) <= _COUNTED for pair in part)
        with blamed_on(None, errors=ValueError):
            encodings += map(_without_rest, encode_pairs(tokenizer, part, range(len(part)), limit, exact=counted))
    return encodings


def _size_of(pair: Pair) -> int:
    """Count the characters of a text, or of both texts of a pair."""
    return len(pair[0]) + len(pair[1] or "")


def _shortened(pair: Pair, windows: TokenWindows) -> Pair:
    """Return a text or a pair without the end of its last text, if that is long; see `_enough_of`."""
    first, second = pair
    if second is None:
        return _enough_of(first, windows), None
    return first, _enough_of(second, windows) if windows.tokenizer.truncation_side == "right" else second


def _enough_of(text: str, windows: TokenWindows) -> str:
    """Return a part of a long text, from the side that is kept, that should have more tokens than the limit.

    It ends where the tokenizer can cut the text with any text beside it. If this part is cut to the limit, its tokens
    are the tokens of the whole text too; if not, the whole text must be tokenized.
    """
    tokenizer, most = windows.tokenizer, _CHARACTERS_PER_TOKEN * windows.max_length
    left = tokenizer.truncation_side == "left"
    if len(text) <= most:
        return text
    place = tokenizer.last_cut(text[:-most] if left else text[:most])
    if place is None:
        if len(text) > _MOST_WHOLE:
            raise ServiceError("too_large", f"a text of {len(text)} characters cannot be cut at spaces; shorten it.")
        return text
    return text[place:] if left else text[:place]


def _is_sure(pair: Pair, encoding: Encoding) -> bool:
    """Return whether the tokens are final, although the end of the text was not tokenized.

    The longer text of a pair is cut first. If fewer tokens are kept of the first text than of the second, and not
    because half of an odd number was taken, then the first one is whole, and the rest of the second changes nothing.
    """
    if not encoding.n_truncated or pair[1] is None:
        return bool(encoding.n_truncated)
    kept = np.diff(np.flatnonzero(encoding.special_tokens_mask))  # one more than the tokens of the first, and the last
    return bool(kept[0] + 1 < kept[-1])


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
