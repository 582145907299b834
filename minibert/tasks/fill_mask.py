"""fill-mask: the words that fit at each [MASK] of a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils.reproducible_math import as_score, largest, softmax
from minibert._utils.validation import FloatArray, brief, check_int
from minibert.errors import ModelFormatError
from minibert.tasks.base import TaskPipeline, TextOptions
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_text
from minibert.tokenizer.too_long import TooLong
from minibert.tokenizer.windows import in_chunks

# The most bytes of logits that are kept at once; each [MASK] has 4 V.
_LOGITS_AT_ONCE = 1 << 26


@dataclasses.dataclass(kw_only=True)
class FillMaskOptions(TextOptions):
    """The arguments of fill-mask.

    Parameters
    ----------
    top_k : int, optional
        Words for each [MASK]; default 5.
    targets : str or list of str, optional
        Answer with these words only. Each must be one token of the vocabulary. The probabilities stay those among all
        words.
    tokenizer_kwargs : mapping, optional
        `truncation` and `max_length`, as transformers takes them.
    """

    top_k: int | None = None
    targets: str | Sequence[str] | None = None
    tokenizer_kwargs: Any = None
    mapping = "tokenizer_kwargs"
    target_ids: Any = dataclasses.field(default=None, init=False)  # of `targets`; the pipeline sets it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k is not None:
            self.top_k = check_int("top_k", self.top_k, 1)


class FillMaskPipeline(TaskPipeline):
    """Texts with [MASK] -> the words that fit there, the most probable first, as transformers gives them.

    An answer is a list of dicts: "score" (probability among all words of the vocabulary), "token" (id), "token_str",
    "sequence" (the text with this word). A text with several [MASK] has one such list for each of them, and the
    probabilities of one [MASK] do not depend on the words at the others.
    """

    task = "fill-mask"
    options = FillMaskOptions

    def __init__(self, model: Any, tokenizer: BertTokenizer, **arguments: Any) -> None:
        if tokenizer.mask_token_id is None:
            raise ValueError("the tokenizer has no mask token, so a text cannot have a gap. Use that of the model.")
        super().__init__(model, tokenizer, **arguments)

    def __call__(self, inputs: Any, *, batch_size: int | None = None, **arguments: Any) -> Any:
        """Find the words for one text, a list of texts, or an iterable of texts.

        Parameters
        ----------
        inputs : str, list of str, or iterable of str
        batch_size : int, optional
        **arguments
            Arguments of `FillMaskOptions`; they replace the pipeline's.

        Returns
        -------
        list of dicts for one text; list of such lists for a list
            A list of one text gives the answer of that text, as in transformers. For an iterable, an iterator.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong, a text has no [MASK], or a target is not one word of the vocabulary.
        """
        kind, answers = self._call(inputs, batch_size, arguments)
        return answers[0] if kind == "several" and isinstance(inputs, list) and len(answers) == 1 else answers

    def _options(self, arguments: Mapping[str, Any]) -> FillMaskOptions:
        options: FillMaskOptions = super()._options(arguments)
        options.target_ids = self._target_ids(options)
        return options

    def _tokenize(
        self, inputs: list[str], first: int, options: FillMaskOptions, too_long: TooLong
    ) -> list[list[Encoding]]:
        groups = super()._tokenize(inputs, first, options, too_long)
        for index, (encoding,) in enumerate(groups, first):
            if not (encoding.ids == self.tokenizer.mask_token_id).any():
                lost = "; it may be in the part that was cut off" if encoding.n_truncated else ""
                raise ValueError(f"inputs[{index}] has no {self.tokenizer.mask_token}{lost}. Write it into the text.")
        return groups

    def _run(self, windows: list[Encoding], batch_size: int) -> Any:
        def size(window: Encoding) -> int:
            return 4 * self.model.config.vocab_size * int((window.ids == self.tokenizer.mask_token_id).sum())

        for chunk in in_chunks(windows, batch_size, size, _LOGITS_AT_ONCE):
            yield from self._compute(chunk)

    def _compute(self, windows: Sequence[Encoding]) -> list[FloatArray]:
        inputs = self._inputs(windows)
        masks = (inputs["input_ids"] == self.tokenizer.mask_token_id) & (inputs["attention_mask"] == 1)
        logits = self.model(**inputs, positions=np.argwhere(masks), return_dict=True).logits
        return np.split(logits, np.cumsum(masks.sum(axis=1))[:-1])

    def _answer(self, value: str, windows: list[Encoding], logits: list[FloatArray], options: FillMaskOptions) -> Any:
        (encoding,) = windows
        ids = encoding.ids
        places = np.flatnonzero(ids == self.tokenizer.mask_token_id)
        targets = options.target_ids
        single = len(places) == 1
        rows = []
        for place, of_words in zip(places, logits[0], strict=True):
            candidates = np.arange(len(of_words)) if targets is None else targets
            top_k = min(5 if options.top_k is None else options.top_k, len(candidates))
            best = candidates[largest(of_words[candidates], top_k)]  # softmax keeps the order
            ranked = zip(best, softmax(of_words)[best], strict=True)
            rows.append([self._word(ids, int(place), int(token), as_score(share), single) for token, share in ranked])
        return rows[0] if single else rows

    def _word(self, ids: Any, place: int, token: int, score: float, single: bool) -> dict[str, Any]:
        filled = ids.copy()
        filled[place] = token
        filled = filled[filled != self.tokenizer.pad_token_id]
        # With several masks the others stay in the text, as in transformers.
        return {
            "score": score,
            "token": token,
            "token_str": self._text([token], False),
            "sequence": self._text(filled.tolist(), single),
        }

    def _text(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Return the text of ids. Many models have rows for more ids than the vocabulary; these have no text."""
        known = [id for id in ids if self.tokenizer.backend_tokenizer.id_to_token(id) is not None]
        return str(self.tokenizer.decode(known, skip_special_tokens=skip_special_tokens))

    def _target_ids(self, options: FillMaskOptions) -> Any:
        """Return the ids of the targets, each once, in the order of the ids; None if there are no targets."""
        if options.targets is None:
            return None
        targets: Any = [options.targets] if isinstance(options.targets, str) else options.targets
        if not isinstance(targets, list | tuple | set | frozenset | np.ndarray):
            raise TypeError(f"targets={brief(targets)}; expected a word, or a list of words.")
        if not len(targets):
            raise ValueError("targets is empty; give at least one word, or leave targets out.")
        vocab = self.tokenizer.vocab
        ids = sorted({self._target_id(target, vocab) for target in targets})
        if ids[-1] >= self.model.config.vocab_size:
            raise ModelFormatError(f"the id {ids[-1]} of a target is not in the model. Use the model's tokenizer.")
        return np.array(ids, dtype=np.int64)

    def _target_id(self, target: Any, vocab: Mapping[str, int]) -> int:
        check_text(target, "a word of targets")
        if target in vocab:
            return vocab[target]
        ids = self.tokenizer.encode(target, add_special_tokens=False)
        if len(ids) == 1 and ids[0] != self.tokenizer.unk_token_id:
            return int(ids[0])  # the same word, as the tokenizer writes it: in lower case, for example
        tokens = self.tokenizer.convert_ids_to_tokens(ids[:8])
        parts = f"its tokens are {', '.join(map(repr, tokens))}" if tokens else "it has no tokens"
        raise ValueError(f"targets has {brief(target)}, which is not one token: {parts}. Give one of tokenizer.vocab.")
