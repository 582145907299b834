"""The modules of a `MultiVectorEncoder` that have settings: `Transformer`, and the mask of tokens.

Source: sentence-transformers 6.2, base/modules/transformer.py and multi_vector_encoder/modules/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import IntArray, brief, check_bool, check_choice, check_int
from minibert.models.bert import BertModel
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.vectors.multi_vectors import check_names


class Transformer:
    """``model[0]`` under its name in sentence-transformers: the model, the tokenizer, and settings that can be changed.

    Attributes
    ----------
    query_length, document_length : int or None
        The most tokens of a query and of a document; None means the model's `max_seq_length`.
    query_expansion : dict or None
        What makes short queries longer. "length" is their number of tokens. "strategy" is "min", or "fixed": then
        longer queries are cut to this length. "token" is added, by default the mask token. With "attend", all tokens
        attend to the added ones; without it none does, and the added ones attend to the other tokens of the query.
    """

    query_length: int | None
    document_length: int | None
    query_expansion: dict[str, Any] | None

    def __init__(self, auto_model: BertModel, tokenizer: BertTokenizer, settings: Mapping[str, Any]) -> None:
        self.auto_model, self.tokenizer = auto_model, tokenizer
        for name in ("query_length", "document_length", "query_expansion"):
            setattr(self, name, settings.get(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "query_expansion" and value is not None:
            value = self._checked(name, value)
        elif name in ("query_length", "document_length") and value is not None:
            check_int(name, value, self.tokenizer.num_special_tokens_to_add(), also=", or None")
        super().__setattr__(name, value)

    def _checked(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole of the settings of an expansion."""
        usual: dict[str, Any] = {"strategy": None, "attend": False, "token": None, "length": None}
        if not isinstance(value, Mapping) or not value.keys() <= usual.keys():
            raise ValueError(f"{name}={brief(value)} has unknown keys; expected {', '.join(usual)}, or None.")
        value, tokenizer, config = {**usual, **value}, self.tokenizer, self.auto_model.config
        check_choice(f"{name}['strategy']", value["strategy"], ("fixed", "min"))
        check_int(f"{name}['length']", value["length"], tokenizer.num_special_tokens_to_add(), config.longest)
        if self.query_length is not None and self.query_length < value["length"]:
            raise ValueError(f"query_length={self.query_length} is less than {name}['length']={value['length']}.")
        if self.id_of(value["token"]) is None:
            raise ValueError(f"{name}['token']={brief(value['token'])}; the vocabulary does not have it.")
        check_bool(f"{name}['attend']", value["attend"])
        if tokenizer.padding_side == "left":
            raise ValueError(f"{name} is not implemented for a tokenizer with padding_side='left'.")
        return value

    def id_of(self, token: str | None) -> int | None:
        """Return the id of the token that makes queries longer; None if the tokenizer does not have it."""
        ids = self.tokenizer
        if token is None:
            return ids.eos_token_id if ids.mask_token_id is None else ids.mask_token_id
        return ids.vocab.get(token) if isinstance(token, str) else None


@dataclasses.dataclass(eq=False)
class MultiVectorMask:
    """The module that chooses the tokens whose vectors are kept. Attributes can be changed.

    Parameters
    ----------
    skiplist_words : list of str, optional
        Tokens to leave out, such as ``list(string.punctuation)``. A word that is not a token of the vocabulary has no
        effect, and is named in a warning when the model is loaded.
    skiplist_tasks : str or list of str, optional
        The tasks for which they are left out; default: ["document"]. A text without a task is a document.
    keep_only_token_ids : list of int, optional
        Of texts that are not queries, keep these tokens only.
    """

    skiplist_words: list[str] | None = None
    skiplist_tasks: str | list[str] | None = None
    keep_only_token_ids: list[int] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("skiplist"):
            value = check_names(name, [] if value is None and name == "skiplist_words" else value)
        elif name == "keep_only_token_ids" and value is not None:
            value = [check_int(name, number, 0) for number in (value if isinstance(value, list | tuple) else [value])]
        super().__setattr__(name, value)

    def resolve_with_tokenizer(self, tokenizer: BertTokenizer) -> None:
        """Warn about words that are not in the vocabulary. Words are looked up in each call, so changed ones count."""
        vocab = tokenizer.vocab
        if unknown := [word for word in self.skiplist_words or () if word not in vocab]:
            warn_caller(
                f"skiplist_words: the vocabulary does not have {', '.join(map(repr, unknown))}. In a text they become "
                f"other tokens, such as {tokenizer.unk_token}, and these are kept."
            )

    def keeps(self, ids: IntArray, vocab: Mapping[str, int], task: str | None) -> npt.NDArray[np.bool_]:
        """Return which tokens are kept, given their ids."""
        kept = np.ones(ids.shape, np.bool_)
        if (task or "document") in (self.skiplist_tasks or ()):
            kept &= ~np.isin(ids, [vocab[word] for word in self.skiplist_words or () if word in vocab])
        if task != "query" and self.keep_only_token_ids:
            kept &= np.isin(ids, self.keep_only_token_ids)
        return kept
