"""Texts -> a trace, for the explanation and the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import brief, counted
from minibert.inside.representations import logit_lens
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.trace.names import Record
from minibert.trace.page.data import Guesses
from minibert.trace.trace import Trace


def trace_texts(
    model: Any, tokenizer: BertTokenizer, texts: Sequence[str], record: Record = "*"
) -> tuple[Trace, list[Encoding]]:
    """Tokenize texts, run the model on them, and record; return the trace and what the tokenizer made of each text.

    A text that has more tokens than the model or the tokenizer takes is truncated, and a warning says so.

    Parameters
    ----------
    model : BertModel, or a model with a head
    tokenizer : BertTokenizer
    texts : sequence of str
    record : as for `BertModel.trace`

    Raises
    ------
    TypeError, ValueError, MemoryError
    """
    if not isinstance(tokenizer, BertTokenizer):
        raise TypeError(f"the tokenizer is {brief(tokenizer)}; expected a BertTokenizer.")
    limit = model.config.max_position_embeddings
    if tokenizer.model_max_length is not None:
        limit = min(limit, tokenizer.model_max_length)
    encodings = tokenizer.encodings(list(texts), max_length=limit, truncation=True, exact=False)
    if long := [i for i, encoding in enumerate(encodings) if encoding.n_truncated]:
        warn_caller(
            f"{len(long)} of {counted(len(texts), 'text')} had more than {limit} tokens and "
            f"{'was' if len(long) == 1 else 'were'} cut (the first is at index {long[0]})."
        )
    lengths = [len(encoding) for encoding in encodings]
    mask = np.arange(max(lengths, default=0)) < np.array(lengths, dtype=np.int64)[:, None]
    ids, types = np.zeros(mask.shape, dtype=np.int64), np.zeros(mask.shape, dtype=np.int64)
    for i, encoding in enumerate(encodings):
        ids[i, : lengths[i]], types[i, : lengths[i]] = encoding.ids, encoding.token_types
    words = [list(encoding.tokens) for encoding in encodings]
    trace = model.trace(ids, mask.astype(np.int64), types, record=record, tokens=words)
    return trace, encodings


def page_guesses(model: Any, trace: Trace, tokenizer: BertTokenizer, k: int = 3) -> Guesses:
    """Return the k words that the masked-LM head of a model reads out of each hidden state, for `Trace.page`."""
    lens = logit_lens(model, trace, k)
    words: Any = [
        [[tokenizer.convert_ids_to_tokens(best.tolist()) for best in row] for row in state] for state in lens.ids
    ]
    return Guesses(lens.states, words, lens.probs)
