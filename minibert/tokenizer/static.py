"""The tokenizers of static models: tokenizer.json as it is, without special tokens around a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from minibert._utils.files import read_json_object
from minibert.checkpoint.files import ModelFiles
from minibert.errors import ModelFormatError
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.files import LoadedTokenizer, checked_vocab
from minibert.tokenizer.library_files import library_errors, read_library_tokenizer
from minibert.tokenizer.texts import Texts
from minibert.tokenizer.transformers_classes import GENERIC

_UNKNOWN = "\U00013080"
"""A hieroglyph, which hardly any vocabulary has. The library fails if it does not have the unknown token, either."""


class StaticTokenizer(BertTokenizer):
    """The tokenizer of sentence-transformers' StaticEmbedding."""

    @classmethod
    def read(cls, files: ModelFiles, vocab_size: int) -> Self:
        """Read tokenizer.json, and no other file; its truncation becomes `model_max_length`, not checked.

        Raises
        ------
        ModelFormatError
            The file is missing or damaged, or the vocabulary does not have the unknown token; or an id is not below
            `vocab_size`, the number of tokens that have a vector.
        """
        content = read_json_object(files.require("tokenizer.json"))
        path, tokenizer, vocab, stored = read_library_tokenizer(files, GENERIC, {})
        with library_errors(ModelFormatError, f"{path} does not work"):
            tokenizer.post_processor = None
            vocab = checked_vocab(tokenizer, vocab, path, {})
            unk_id = content["model"].get("unk_id")
            unk_token = content["model"].get("unk_token") if unk_id is None else tokenizer.id_to_token(unk_id)
            tokenizer.encode(_UNKNOWN)
        if (largest := max(vocab.values())) >= vocab_size:
            raise ModelFormatError(f"{path} has the id {largest}, but there are vectors of {vocab_size} tokens only.")
        named = {"unk_token": unk_token, "pad_token": stored.pop("pad_token", None)}
        named = {name: token for name, token in named.items() if token in vocab}
        limit = (content.get("truncation") or {}).get("max_length")
        more: dict[str, Any] = {"special_tokens": named, "model_max_length": limit, **stored}
        return cls(LoadedTokenizer(tokenizer=tokenizer, vocab=vocab, source=files.source, **more))


class Model2VecTokenizer(StaticTokenizer):
    """The tokenizer of model2vec, which cuts and leaves out more.

    A text is cut to `max_length` times `characters` characters, and then to `max_length` tokens. Of these, those that
    the vocabulary does not have are left out. `characters` is the median of the lengths of all tokens.

    Source: model2vec 0.10, model.py.
    """

    def __init__(self, loaded: LoadedTokenizer) -> None:
        super().__init__(loaded)
        self.characters = int(np.median([len(token) for token in loaded.vocab]))

    def encodings(
        self, texts: Texts, pairs: Texts | None = None, *, max_length: int | None = None, **options: Any
    ) -> list[Encoding]:
        """Tokenize texts as `BertTokenizer.encodings` does. Tokens that are left out do not count as truncated."""
        limit = self.model_max_length if max_length is None else max_length
        size = None if limit is None or self.truncation_side == "left" else limit * self.characters
        encodings = super().encodings([text[:size] for text in texts], pairs, max_length=max_length, **options)
        for i, text in enumerate(texts):
            if size is not None and len(text) > size:
                (rest,) = super().encodings([text[size:]], truncation=False)
                encodings[i] = dataclasses.replace(encodings[i], n_truncated=encodings[i].n_truncated + len(rest))
        return self._known(encodings)

    def windows(self, texts: Sequence[str], **options: Any) -> list[list[Encoding]]:
        """Tokenize texts into windows as `BertTokenizer.windows` does."""
        return [self._known(windows) for windows in super().windows(texts, **options)]

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return what decides the ids of a text, with the rule about unknown words."""
        return {**super().fingerprint_parts(), "unknown": "left out"}

    def _known(self, encodings: list[Encoding]) -> list[Encoding]:
        unknown = self.unk_token_id
        return [
            encoding.take(np.flatnonzero(encoding.ids != unknown)) if unknown in encoding.ids else encoding
            for encoding in encodings
        ]
