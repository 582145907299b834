"""`Lesson`: a real model and a text, and the right result of each call of a function."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from minibert._utils.validation import brief
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.learn.cases import Case, Cases
from minibert.learn.mistakes import as_list, run
from minibert.models.bert import BertModel
from minibert.models.stored import named_arrays
from minibert.tokenizer.bert_tokenizer import BertTokenizer

TEXT = "The river bank is flooded."
PAIR = "Money is safe there."

# The exercises are not checked on more tokens than this, so that a solution in plain loops is fast enough.
_MOST_TOKENS = 24


class Lesson:
    """A model, and what the functions are checked on.

    Parameters
    ----------
    model : str or path
        A BERT with GELU: a hub id or a folder.
    text, pair : str
        Two texts, one after the other, on which all exercises are checked.

    Raises
    ------
    ValueError
        The model is not a BERT with GELU. For other errors see `BertModel.from_pretrained`.
    """

    def __init__(self, model: str = DEFAULT_MODEL, text: str | None = None, pair: str = PAIR) -> None:
        text = TEXT if text is None else text
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text={brief(text)}; expected a text with at least one word.")
        self.text = text
        self.model = BertModel.from_pretrained(model, backend="numpy", compute_type="float32")
        config = self.model.config
        if (config.model_type, config.activation) != ("bert", "gelu"):
            kind = f"model_type={config.model_type!r} and hidden_act={config.hidden_act!r}"
            raise ValueError(f"{model} has {kind}; the exercises are for 'bert' and 'gelu'.")
        self.tokenizer = BertTokenizer.from_pretrained(model)
        self.vocabulary = dict(self.tokenizer.vocab)
        second = pair if config.type_vocab_size > 1 else None
        encoded = self.tokenizer(text, second, truncation=True, max_length=_MOST_TOKENS, return_tensors="np")
        self.inputs: dict[str, Any] = {key: np.asarray(value) for key, value in encoded.items()}
        names = ("num_hidden_layers", "num_attention_heads", "layer_norm_eps")
        self.config: dict[str, Any] = {name: getattr(config, name) for name in names}
        self.weights = {
            name.removeprefix("bert."): np.asarray(array) for name, array in named_arrays(self.model.weights)
        }

    @functools.cache  # noqa: B019 (a lesson lives as long as its process)
    def right(self, exercise: str, index: int, *, plain: bool = False) -> list[Any]:
        """Return the right result of a case, tokens or arrays: in float64, or of plain code in float32."""
        arguments = self.cases(exercise)[index].arguments
        if plain and exercise == "softmax":  # with logsumexp: it is right, too, and has a larger error
            below = arguments[0] - (most := arguments[0].max(axis=-1, keepdims=True))
            return [np.exp(arguments[0] - (most + np.log(np.exp(below).sum(axis=-1, keepdims=True))))]
        return as_list(run(exercise, *arguments, dtype=np.float32 if plain else np.float64))

    @functools.cached_property
    def _cases(self) -> Cases:
        words = (self.vocabulary, bool(self.tokenizer.do_lower_case))
        ids, types = self.inputs["input_ids"][0], self.inputs["token_type_ids"][0]
        return Cases(self.text, words, ids, types, self.weights, self.config)

    @functools.cache  # noqa: B019
    def cases(self, exercise: str) -> list[Case]:
        """Return the calls of an exercise; see `Cases`."""
        return self._cases.of(exercise)
