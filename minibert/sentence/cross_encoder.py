"""`CrossEncoder`: pairs of texts in, one score or several out, as sentence-transformers computes them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from minibert._utils.reproducible_math import softmax
from minibert._utils.torch_interop import Tensor
from minibert._utils.validation import FloatArray, brief, check_int
from minibert.encode.options import WindowOptions
from minibert.encode.run import TextPlan, check_finite, packed
from minibert.models.heads import BertForSequenceClassification
from minibert.sentence.activations import Activation, as_activation, stored_activation
from minibert.sentence.base import FINGERPRINT_TEXTS, SentenceModel, as_requested
from minibert.sentence.loading import one_of
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import as_texts, check_texts, checked_texts, shown
from minibert.tokenizer.windows import PairWindows

if TYPE_CHECKING:
    from minibert.sentence.keywords import Float32Array, Pair, PairKeywords, Pairs

# Old names of keywords -> the new ones.
_RENAMED = {
    "model_name": "model_name_or_path",
    "automodel_args": "model_kwargs",
    "tokenizer_args": "processor_kwargs",
    "config_args": "config_kwargs",
    "default_activation_function": "activation_fn",
}


class CrossEncoder(SentenceModel):
    """A model that reads two texts together and scores the pair, with sentence-transformers' names (version 6).

    Rerankers are such models: `rank` sorts documents by their score for a query. Answers are NumPy arrays and Python
    numbers, unless tensors are asked for. With minibert's kernels the score of a pair has the same bits alone, in any
    batch, with any number of threads and on every processor.

    Parameters
    ----------
    model_name_or_path : str or path
        A folder, or a hub id, of a BERT with a head for sequence classification. A short id is one of the organisation
        cross-encoder.
    prompts : dict of str to str, optional
        Texts to put before the first text of each pair, by name; they replace those that the model stores.
    num_labels : int, optional
        It must be the checkpoint's number of labels, because minibert never makes random weights.
    max_length : int, optional
        Most tokens of a pair, special tokens included; default: what the tokenizer and the model take.
    activation_fn : optional
        What turns logits (B, N) into scores: the name of a class in torch.nn, such as "Sigmoid" or "Identity"; an
        object of such a class; or any function of an array. Default: the model's, else Sigmoid for one label and
        Identity for several.
    keep_in_fp32_modules
        It changes nothing.
    **load
        As in `SentenceTransformer`, with the names of these keywords in older programs, such as
        `default_activation_function`.

    Attributes
    ----------
    model : BertForSequenceClassification
    tokenizer : BertTokenizer
    prompts : dict of str to str
    default_prompt_name : str or None
    model_card_data : ModelCardData, or the given object

    Errors are as in `SentenceTransformer`.
    """

    _call = "CrossEncoder"
    _organisation = "cross-encoder"
    _model = BertForSequenceClassification
    _prompt_names = ()
    _windows = PairWindows

    model: BertForSequenceClassification

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: Any = None,
        keep_in_fp32_modules: Sequence[str] | None = None,
        **load: Any,
    ) -> None:
        keywords = {"model_name_or_path": model_name_or_path, "activation_fn": activation_fn, **load}
        keywords.pop("classifier_dropout", None)  # of training only
        for old, new in _RENAMED.items():
            if old in keywords:
                keywords[new] = one_of(new, keywords.get(new), old, keywords.pop(old))
        name, activation_fn = keywords.pop("model_name_or_path"), keywords.pop("activation_fn")
        if max_length is not None:  # checked before anything is downloaded
            check_int("max_length", max_length, 1)
        files = self._load(name, keywords)
        if num_labels is not None and num_labels != self.num_labels:
            raise ValueError(f"num_labels={brief(num_labels)}, but {files.source} has {self.num_labels}. Leave it out.")
        if max_length is not None:
            self.max_length = max_length
        default = "Sigmoid" if self.num_labels == 1 else "Identity"
        self.activation_fn = activation_fn or stored_activation(files) or default

    # -- settings

    @property
    def num_labels(self) -> int:
        """The number of scores of each pair."""
        return self.model.config.num_labels

    @property
    def activation_fn(self) -> Activation:
        """The function that turns logits into scores. Settable: a name, an object of torch.nn, or a function."""
        return self._activation_fn

    @activation_fn.setter
    def activation_fn(self, value: Any) -> None:
        self._activation_fn = as_activation("activation_fn", value, self.model.ops)

    @property
    def default_activation_function(self) -> Activation:
        """The older name of `activation_fn`."""
        return self._activation_fn

    @property
    def max_length(self) -> int:
        """The older name of `max_seq_length`; settable."""
        return self.max_seq_length

    @max_length.setter
    def max_length(self, value: int) -> None:
        self._set_limit("max_length", value)

    # -- pairs to scores

    # fmt: off
    @overload
    def predict(self, inputs: Pair, *, convert_to_numpy: Literal[True] = ..., convert_to_tensor: Literal[False] = ...,
                **options: Unpack[PairKeywords]) -> np.float32 | Float32Array: ...
    @overload
    def predict(self, inputs: Pairs, *, convert_to_numpy: Literal[True] = ..., convert_to_tensor: Literal[False] = ...,
                **options: Unpack[PairKeywords]) -> Float32Array: ...
    @overload
    def predict(self, inputs: Pair | Pairs, *, convert_to_numpy: bool = ..., convert_to_tensor: Literal[True],
                **options: Unpack[PairKeywords]) -> Tensor: ...
    @overload
    def predict(self, inputs: Pair, *, convert_to_numpy: Literal[False], convert_to_tensor: Literal[False] = ...,
                **options: Unpack[PairKeywords]) -> Tensor: ...
    @overload
    def predict(self, inputs: Pairs, *, convert_to_numpy: Literal[False], convert_to_tensor: Literal[False] = ...,
                **options: Unpack[PairKeywords]) -> list[Tensor]: ...
    @overload  # other calls
    def predict(self, inputs: Any = ..., *arguments: Any, convert_to_numpy: bool = ..., convert_to_tensor: bool = ...,
                sentences: Any = ..., **options: Unpack[PairKeywords]) -> Any: ...
    # fmt: on
    def predict(  # type: ignore[misc]  # it does not take any number of arguments by position
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, batch_size: int = 32,
        show_progress_bar: bool | None = None, activation_fn: Any = None, apply_softmax: bool | None = False,
        convert_to_numpy: bool = True, convert_to_tensor: bool = False, device: object = None,
        pool: Mapping[str, Any] | None = None, chunk_size: int | None = None, *, truncation: str = "warn",
        sentences: Any = None, activation_fct: Any = None, num_workers: object = None, task: str | None = None,
        processing_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Score pairs of texts; equal pairs are computed once.

        Parameters
        ----------
        inputs : sequence or array of B pairs of str, or one pair
            `sentences` is its old name.
        prompt_name, prompt : str, optional
            A key of `prompts`, or a text, to put before the first text of each pair.
        batch_size : int
            Limits memory, see `SentenceTransformer.encode`. The result does not depend on it.
        show_progress_bar : bool, optional
            Show the number of pairs done and the time left, on the standard error.
        activation_fn : optional
            As in the constructor, for this call. `activation_fct` is its old name.
        apply_softmax : bool
            Turn the scores of several labels into probabilities that add up to 1.
        convert_to_numpy : bool
            False: a list of tensors of torch instead of one array; a tensor for one pair.
        convert_to_tensor : bool
            True: a tensor of torch instead of an array.
        device, pool, chunk_size, num_workers, task, processing_kwargs
            Arguments of sentence-transformers without effect here, see `SentenceTransformer.encode`.
        truncation : {"warn", "error", "silent"}
            What happens to a pair of more than `max_seq_length` tokens: tokens at the end of its longer text are cut
            off, with a warning; it is refused; or they are cut off silently.

        Returns
        -------
        float32 ndarray of shape (B,) if the model has one label, else (B, N); for one pair a number, or (N,)
            Tensors, if they are asked for.

        Raises
        ------
        ImportError
            Tensors are asked for, and torch is not installed.
        ModelFormatError
            The model computes NaN or infinity.
        TypeError, ValueError
            An argument is wrong. An input is not a pair of texts, or is too long with truncation="error"; its index is
            named.

        Examples
        --------
        >>> from minibert import CrossEncoder
        >>> model = CrossEncoder("cross-encoder/ms-marco-MiniLM-L6-v2")
        >>> scores = model.predict([("Where is the cat?", "A kitten naps."), ("Where is the cat?", "Stocks fell.")])
        >>> scores.shape, scores.dtype
        ((2,), dtype('float32'))
        >>> bool(model.predict(("Where is the cat?", "A kitten naps.")) == scores[0])
        True
        """
        pairs, single = as_pairs(one_of("inputs", inputs, "sentences", sentences))
        self._check_call(device, processing_kwargs, convert_to_tensor, convert_to_numpy)
        chosen = one_of("activation_fn", activation_fn, "activation_fct", activation_fct)
        activate = self.activation_fn if chosen is None else as_activation("activation_fn", chosen, self.model.ops)
        options = WindowOptions(prompt_name=prompt_name, prompt=prompt, batch_size=batch_size, truncation=truncation)
        scores = activate(self.plan(options).run_at_once(pairs, show_progress_bar, " pairs"))
        if scores.ndim == 2 and scores.shape[1] == 1:
            scores = scores[:, 0]
        if apply_softmax and scores.ndim > 1 and scores.size:
            scores = softmax(scores).astype(np.float32)
        return as_requested(scores[0] if single else scores, convert_to_tensor, convert_to_numpy, single)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Sort documents by their score for a query, the best first; equal scores keep the order of the documents.

        Parameters
        ----------
        query : str
        documents : sequence or column of str
        top_k : int, optional
            The most documents to return; default: all.
        return_documents : bool
            Also return the texts.
        **options
            The arguments of `predict`, by name; `apply_softmax` and `convert_to_...` have no effect.

        Returns
        -------
        list of dict
            "corpus_id" is the index of the document, "score" a float, "text" the document if it was asked for.

        Raises
        ------
        ModelFormatError, TypeError, ValueError
            As in `predict`; or the model has several labels.
        """
        if self.num_labels != 1:
            raise ValueError(f"rank needs a model with one label, and this one has {self.num_labels}. Use predict.")
        if top_k is not None:
            check_int("top_k", top_k, 1, also=", or None for all")
        if not isinstance(query, str):
            raise TypeError(f"query is a {type(query).__name__}; expected a str. For several queries call rank often.")
        texts, single = checked_texts("documents", documents)
        if single:
            raise TypeError("documents is one str; expected a sequence of str, such as [text].")
        for name in ("apply_softmax", "convert_to_numpy", "convert_to_tensor"):  # of older versions
            options.pop(name, None)
        scores = self.predict([(query, text) for text in texts], **options)
        if np.ndim(scores) != 1:
            raise ValueError(f"activation_fn gave shape {np.shape(scores)}; rank needs one score for each document.")
        order = sorted(range(len(texts)), key=lambda i: scores[i], reverse=True)[:top_k]
        return [
            {"corpus_id": i, "score": float(scores[i]), **({"text": texts[i]} if return_documents else {})}
            for i in order
        ]

    def plan(self, options: WindowOptions) -> PairPlan:
        """Return what happens to each pair of a call of `predict`; its run gives logits.

        Raises
        ------
        TypeError, ValueError
            An option is wrong, or does not fit the model.
        """
        return PairPlan(self.windows(options), self)

    def _results(self) -> Iterator[Any]:
        pairs = list(zip(FINGERPRINT_TEXTS, FINGERPRINT_TEXTS[1:] + FINGERPRINT_TEXTS[:1], strict=True))
        yield self.activation_fn(self.plan(WindowOptions(truncation="silent")).run_at_once(pairs))

    def logits_of(self, encodings: Sequence[Encoding]) -> FloatArray:
        """Compute the logits of B encodings, step by step: (B, N)."""
        depth = self.model.config.num_hidden_layers
        batch = packed(self.model.config, encodings)
        (result,) = self.model.results(batch)
        steps = self.model.bert.states(batch, [depth], result.tokens)
        logits = (self.model.compute("sequences", states[depth], step) for step, states in steps)
        return np.concatenate([np.zeros((0, self.num_labels), np.float32), *logits])

    # -- to files

    def _saved_settings(self) -> dict[str, Any]:
        return {"activation_fn": self.activation_fn.path()}


@dataclasses.dataclass(frozen=True)
class PairPlan(TextPlan):
    """The work of one call of a `CrossEncoder`, on pairs as `as_pairs` gives them."""

    encoder: CrossEncoder

    def compute(self, groups: list[list[Encoding]], indices: Sequence[int]) -> FloatArray:
        """Compute the logits of each pair: (B, N)."""
        logits = self.encoder.logits_of([window for (window,) in groups])
        check_finite(logits, indices)
        return logits


def as_pairs(inputs: Any) -> tuple[list[tuple[str, str]], bool]:
    """Return a pair or pairs of texts as a list of pairs, and whether it was one pair.

    Parameters
    ----------
    inputs : two str in a list, tuple or array; or a sequence, array of shape (B, 2) or table with B rows of two str

    Raises
    ------
    TypeError, ValueError
        It is something else. The message names the index.
    """
    if isinstance(inputs, str):
        raise TypeError(f"inputs is {shown(inputs)}; expected a pair of texts, (query, text), or a list of pairs.")
    if getattr(inputs, "ndim", 1) == 2 and hasattr(inputs, "to_numpy"):  # a table of pandas or Polars
        inputs = inputs.to_numpy()
    if isinstance(inputs, np.ndarray) and inputs.ndim == 2:
        inputs = inputs.tolist()
    values = inputs if isinstance(inputs, list | tuple) else as_texts("inputs", inputs)[0]
    single = len(values) > 0 and isinstance(values[0], str)
    if single:
        return [_as_pair(values, "inputs")], True
    return [_as_pair(value, f"inputs[{index}]") for index, value in enumerate(values)], False


def _as_pair(value: Any, name: str) -> tuple[str, str]:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} is {shown(value)}; expected a pair of texts: (query, text).")
    if len(value) != 2:
        raise ValueError(f"{name} has {len(value)} parts, {brief(value)}; expected a pair of texts: (query, text).")
    check_texts(value, name=name)
    return value[0], value[1]
