"""Token ids that a client sends instead of a text: they are computed as they are, and never decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving.errors import ServiceError
from minibert.serving.prepared import Ids
from minibert.tokenizer.encodings import Encoding

__all__ = ["GivenIds", "too_long"]


class GivenIds:
    """Checks and cuts token ids.

    Ids of another model's tokenizer give vectors without a meaning. LangChain's OpenAIEmbeddings sends such ids. Ids
    are therefore accepted only if they begin with [CLS] and end with [SEP], or if the request says that they do not
    have special tokens.

    Parameters
    ----------
    model : SentenceTransformer
    limit : int
        Most tokens.
    add_special_tokens : bool
        Put [CLS] and [SEP] around ids that do not have them.
    truncation : {"mark", "error", "split"}
        "split" refuses too many ids, because windows are made of texts.
    """

    def __init__(self, model: SentenceTransformer, limit: int, add_special_tokens: bool, truncation: str) -> None:
        tokenizer = model.tokenizer
        self._tokenizer, self._size = tokenizer, model.model.config.vocab_size
        self._first, self._last = tokenizer.cls_token_id, tokenizer.sep_token_id
        self._limit, self._add, self._truncation = limit, add_special_tokens, truncation

    def encoding(self, index: int, ids: Sequence[int]) -> Encoding:
        """Return the encoding of the ids of input `index`.

        Raises
        ------
        ServiceError
            An id is not in the vocabulary, the ids have no special tokens, or there are too many of them.
        """
        if not ids:
            raise ServiceError("invalid", f"input[{index}] is empty; expected token ids.", param="input")
        bad = next((i for i, one in enumerate(ids) if not 0 <= one < self._size), None)
        if bad is not None:
            raise ServiceError(
                "invalid",
                f"input[{index}][{bad}] is not a token id of this model; expected numbers from 0 to {self._size - 1}. "
                f"{_HINT}",
                param="input",
            )
        row = [*ids]
        if row[0] != self._first or row[-1] != self._last or len(row) == 1:
            if not self._add:
                raise ServiceError(
                    "invalid",
                    f"input[{index}] is an array of token ids that does not begin with {self._first} ([CLS]) and end "
                    f"with {self._last} ([SEP]), so these may be ids of another tokenizer. Send texts. If the ids are "
                    f'of this model, send "add_special_tokens": true with them. {_HINT}',
                    param="input",
                )
            row = [self._first, *row, self._last]
        given = len(row)
        if given > self._limit:
            if self._truncation != "mark":
                raise too_long(index, self._limit, given)
            kept = self._limit - 2
            first = given - 1 - kept if self._tokenizer.truncation_side == "left" else 1
            inner = row[first : first + kept]
            row = [row[0], *inner, row[-1]]
        special = np.isin(row, self._tokenizer.all_special_ids).astype(np.int64)
        return Encoding(Ids(np.array(row), special, np.zeros_like(special)), None, given - len(row))


_HINT = "In langchain-openai, check_embedding_ctx_length=False makes the client send texts."


def too_long(index: int, limit: int, given: int, field: str = "input") -> ServiceError:
    """Return the error of an input that is longer than the limit."""
    return ServiceError(
        "too_long", f"{field}[{index}] has {given} tokens; the limit is {limit}.", limit=limit, given=given, param=field
    )
