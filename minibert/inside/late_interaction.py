"""Which token of a document each token of a query has matched, in a model of late interaction."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
from minibert.tokenizer.texts import check_text


class TokenMatches(NamedTuple):
    """The products of the tokens of a query and a document.

    Parameters
    ----------
    query_tokens : list of m str
        With special tokens, markers, and those that make the query longer.
    document_tokens : list of n str
        Those that are kept; the model leaves out punctuation, for example.
    products : ndarray of shape (m, n), float64
    """

    query_tokens: list[str]
    document_tokens: list[str]
    products: FloatArray

    @property
    def score(self) -> float:
        """MaxSim: the sum of the largest product of each token of the query."""
        return float(self.products.max(axis=1).sum())

    def best(self) -> list[tuple[str, str, float]]:
        """Return (query token, the document's token that it has matched, their product), in the order of the query."""
        places = self.products.argmax(axis=1)
        pairs = zip(self.query_tokens, places.tolist(), self.products.max(axis=1).tolist(), strict=True)
        return [(token, self.document_tokens[j], product) for token, j, product in pairs]


def token_matches(model: MultiVectorEncoder, query: str, document: str) -> TokenMatches:
    """Compute the product of each token of a query with each token of a document; MaxSim takes the largest ones.

    Source: Khattab and Zaharia 2020 (arXiv 2004.12832), figure 1 and section 3.3. It uses the prompts of
    `encode_query` and `encode_document`.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the model pools tokens, so a token has no vector of its own; or no token is kept.
    """
    if not isinstance(model, MultiVectorEncoder):
        raise TypeError(f"model is a {type(model).__name__}; expected a MultiVectorEncoder.")
    calls, sides = (("query", query, model.encode_query), ("document", document, model.encode_document)), []
    for name, text, encode in calls:
        encoded = encode(check_text(text, name), output_value=None)
        kept = encoded["attention_mask"]
        if len(kept) != len(encoded["input_ids"]):
            raise ValueError(f"the model pools the tokens of a {name}; this needs a vector for each token.")
        if not kept.any():
            raise ValueError(f"the model keeps no token of the {name}.")
        tokens: Any = model.tokenizer.convert_ids_to_tokens(encoded["input_ids"][kept].tolist())
        sides.append((tokens, np.asarray(encoded["token_embeddings"], np.float64)[kept]))
    (query_tokens, x), (document_tokens, y) = sides
    return TokenMatches(query_tokens, document_tokens, x @ y.T)
