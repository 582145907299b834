"""What `SentenceTransformer` and `SparseEncoder` share: single texts, their tokens, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence

from minibert.sentence.model_habits import ModelHabits
from minibert.sentence.options import texts_at_once
from minibert.similarity import SIMILARITY_FUNCTIONS
from minibert.tokenizer.encodings import TokenizedBatch
from minibert.tokenizer.texts import as_texts, check_inputs
from minibert.tokenizer.windows import TokenWindows, count_tokens

__all__ = ["TextHabits"]


class TextHabits(ModelHabits):
    """The methods of a model of single texts that need nothing but its tokenizer, its prompts and its limit."""

    SUPPORTED_SIMILARITY_FN_NAMES = tuple(SIMILARITY_FUNCTIONS)

    def get_embedding_dimension(self) -> int:
        """Return the length of the vectors; the model itself has this method."""
        raise NotImplementedError

    def get_sentence_embedding_dimension(self) -> int:
        """Return the same as `get_embedding_dimension`. This is its name before sentence-transformers 6."""
        return self.get_embedding_dimension()

    def tokenize(self, texts: str | Sequence[str]) -> TokenizedBatch:
        """Return the ids and masks of texts, cut to `max_seq_length` and padded to the longest: int64 arrays (B, S)."""
        return self.tokenizer(texts, padding=True, truncation=True, max_length=self.max_seq_length, return_tensors="np")

    def num_tokens(self, texts: Sequence[str], prompt_name: str | None = None, prompt: str | None = None) -> list[int]:
        """Count the tokens of each of B texts, with its prompt and the special tokens, before anything is cut."""
        windows = self._windows(self.resolve_prompt(prompt, prompt_name), 32, "silent", 0)
        texts, single = as_texts("texts", texts)
        if single:
            raise TypeError("texts is one str; expected a sequence of str, such as [text].")
        check_inputs(texts)
        return [count_tokens(group)[0] for _, groups in windows.of(texts, range(len(texts))) for group in groups]

    def _windows(self, prompt: str, batch_size: int, truncation: str, stride: int) -> TokenWindows:
        return TokenWindows(
            self.tokenizer,
            prompt=prompt,
            max_length=self.max_seq_length,
            truncation=truncation,
            stride=stride,
            texts_at_once=texts_at_once(batch_size),
        )
