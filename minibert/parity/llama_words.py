"""The ids of llama.cpp's tokenizer of BERT: words lose vowel signs, and Korean syllables all but their first letter.

BERT decomposes each letter (NFD) and drops the marks without a width (category Mn). llama.cpp drops all marks, so also
the vowel signs of Hindi, Bengali and Tamil (Mc), and keeps only the first letter of a decomposition.

Source: https://github.com/ggml-org/llama.cpp/blob/b4000/src/llama-vocab.cpp, llm_tokenizer_wpm_session::preprocess.
"""

from __future__ import annotations

import dataclasses
import itertools
import unicodedata
from typing import Any

import numpy as np

from minibert.bert.config import BertConfig
from minibert.parity.diagnosis.catalogue import with_words
from minibert.parity.diagnosis.mistake import Mistake
from minibert.parity.truth import InapplicableError, Padded

_CONTINUED = "##"


def llama_word(word: str) -> str:
    """Return a word as llama.cpp looks it up."""
    first = (unicodedata.normalize("NFD", letter)[0] for letter in unicodedata.normalize("NFC", word))
    return "".join(letter for letter in first if not unicodedata.category(letter).startswith("M"))


def words_of_ids(tokenizer: Any, ids: list[int]) -> list[list[int]]:
    """Return the ids of each word; a word begins with a token without "##"."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    begins = [0, *(i for i, token in enumerate(tokens) if i and not token.startswith(_CONTINUED)), len(tokens)]
    return [ids[begin:end] for begin, end in itertools.pairwise(begins)]


def llama_mistake(tokenizer: Any) -> Mistake:
    """Return the mistake of these ids, for the inputs of a tokenizer of WordPiece; of another one, it is not possible.

    A word that is [UNK] in the inputs stays so, because its letters are not known.
    """

    def changed(ids: list[int]) -> list[tuple[int, int]]:
        """Return the new ids, each with the index of the old one whose token type it has."""
        made, begin = list[tuple[int, int]](), 0
        for own in words_of_ids(tokenizer, ids):
            word = "".join(token.removeprefix(_CONTINUED) for token in tokenizer.convert_ids_to_tokens(own))
            old = begin
            begin += len(own)
            if llama_word(word) != unicodedata.normalize("NFC", word):
                own = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(llama_word(word)))
            made += [(id, old) for id in own]
        return made

    def inputs(right: Padded, config: BertConfig) -> Padded:
        if right.embeds is not None or not any(token.startswith(_CONTINUED) for token in tokenizer.vocab):
            raise InapplicableError("the tokenizer is not one of WordPiece, or the inputs are not ids")
        ids, types, mask = right.ids.copy(), right.types.copy(), right.mask.copy()
        for row in range(len(ids)):
            columns = np.flatnonzero(right.mask[row])
            pairs = changed(right.ids[row, columns].tolist())
            if len(pairs) > len(columns):
                raise InapplicableError("a row has no room for these ids")
            kept = columns[: len(pairs)]
            ids[row, kept] = [id for id, _ in pairs]
            types[row, kept] = [right.types[row, columns[old]] for _, old in pairs]
            mask[row, columns[len(pairs) :]], ids[row, columns[len(pairs) :]] = False, tokenizer.pad_token_id or 0
        if np.array_equal(ids, right.ids) and np.array_equal(mask, right.mask):
            raise InapplicableError("no word has vowel signs or syllables")
        return dataclasses.replace(right, ids=ids, types=types, mask=mask)

    return with_words("T2.llama", Mistake(("words", "probs"), inputs=inputs))
