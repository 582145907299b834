"""The models with heads: ids in, logits out. Their names, inputs and outputs are those of transformers.

`load`, `AutoModel` and the AutoModelFor... classes choose the class of a checkpoint.

Each class takes the inputs of `BertModel.__call__` and gives them to its `bert`, a `BertModel` with the same weights
and ops. While that runs, step by step, the head of bert/heads.py computes the logits of each step.

- hidden_states and attentions are given only if they are asked for, as in transformers. (`BertModel` itself keeps
  hidden states unless it is told not to.)
- Logits of masked tokens are zeros, and so are those of a sequence whose [CLS] is masked if its head reads [CLS].
- If an input is a tensor of torch, the output holds tensors. ``return_dict=False`` gives a tuple.
- Other keywords of transformers, such as ``head_mask=``, are taken at values that change nothing.
- There is no loss: ``labels=`` is refused, because minibert does not train.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import FloatArray, IntArray
from minibert.bert import heads
from minibert.bert.config import BertConfig
from minibert.bert.families import Family, architectures
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import HEADS
from minibert.checkpoint.files import ModelFiles
from minibert.models import outputs
from minibert.models.bert import BertModel
from minibert.models.inputs import as_numbers, check_ids, pack
from minibert.models.loading import find_heads, find_model
from minibert.models.options import Selection, lists_keywords
from minibert.models.pretrained import BertPreTrainedModel, class_of

SLICE_BYTES = 1 << 24
"""The most bytes of logits that are computed at once, before they are copied to their places."""

_Output = TypeVar("_Output", bound=outputs.ModelOutput)


# --- the logits of a batch: filled step by step, in padded form, with zeros for masked tokens ---


class Logits:
    """The logits of a head of `BertModel.run_packed`, zeros until they are computed, step by step.

    Parameters
    ----------
    model : BertHead
    compute : callable
        For a head that reads [CLS]: (x of shape (t, H), step) -> one row for each sequence of the step that shows its
        first token. For a head of tokens: (rows of the last hidden state, of shape (n, H)) -> n rows; it is called with
        at most `SLICE_BYTES` of logits at once, so that it does not double the memory of a large vocabulary.
    shape : tuple of int
        The last axis is that of the logits of one sequence or token.
    places : int ndarray
        The row of each result; the other rows stay zeros.
    tokens : int ndarray, optional
        For a head of tokens: which of the T tokens each result belongs to, in increasing order.
    """

    def __init__(
        self, model: BertHead[Any], compute: Callable[..., FloatArray], shape: Any, places: Any, tokens: Any = None
    ) -> None:
        self._compute, self._shape, self._dtype = compute, shape, np.dtype(model._result_dtype)
        self._places, self._tokens, self._done = places, tokens, 0
        self._rows_at_once = max(1, model._slice_bytes // (4 * shape[-1]))

    @property
    def nbytes(self) -> int:
        """The size of all logits in bytes."""
        return self._dtype.itemsize * math.prod(self._shape)

    @functools.cached_property
    def logits(self) -> FloatArray:
        """The logits; their memory is allocated at the first use, after `BertModel` has checked `nbytes`."""
        return np.zeros(self._shape, dtype=self._dtype)

    def __call__(self, x: FloatArray, step: PackedBatch, tokens: slice) -> None:
        """Compute the logits of a step."""
        flat = self.logits.reshape(-1, self._shape[-1])
        if self._tokens is None:
            rows = self._compute(x, step)
            flat[self._places[self._done : self._done + len(rows)]] = rows
            self._done += len(rows)
            return
        first, last = np.searchsorted(self._tokens, [tokens.start, tokens.stop])
        for start in range(first, last, self._rows_at_once):
            some = slice(start, min(start + self._rows_at_once, last))
            flat[self._places[some]] = self._compute(x[self._tokens[some] - tokens.start])


def _token_places(batch: PackedBatch, positions: IntArray | None) -> tuple[IntArray, IntArray]:
    """Return the rows of a result that have numbers, and the token of each, in increasing order.

    The result has a row for each token position of the padded batch, or for each of n requested `positions`, (n, 2).
    """
    if positions is None:
        return np.flatnonzero(batch.mask), np.arange(batch.num_tokens)
    rows, columns = positions.T
    shown = np.flatnonzero(batch.mask[rows, columns])
    # A token's index among the T tokens is the number of tokens before it that are not masked.
    tokens = (np.cumsum(batch.mask) - 1).reshape(batch.mask.shape)[rows[shown], columns[shown]]
    order = np.argsort(tokens, kind="stable")
    return shown[order], tokens[order]


def check_positions(positions: npt.ArrayLike, shape: tuple[int, ...]) -> IntArray:
    """Return positions in a padded batch of this shape as an int array of n rows and columns, (n, 2).

    Raises
    ------
    TypeError, ValueError
        They are not pairs of integers, or one is outside the batch; the message says which.
    """
    found = np.array(as_numbers("positions", positions))
    if found.size == 0 and not isinstance(positions, np.ndarray):
        return np.zeros((0, 2), dtype=np.int64)
    if found.ndim != 2 or found.shape[1] != 2:
        raise ValueError(f"positions has shape {found.shape}; expected (n, 2), as np.argwhere(ids == mask_token_id).")
    rows = check_ids("positions[:, 0]", found[:, 0], shape[0], "rows of the batch", ndim=1)
    return np.stack([rows, check_ids("positions[:, 1]", found[:, 1], shape[1], "columns of the batch", ndim=1)], axis=1)


# --- the models ------------------------------------------------------------------------------------------------------


class BertHead(BertPreTrainedModel[_Output]):
    """The base class of the models with heads. Threads may share a model, because it does not change.

    Attributes
    ----------
    bert : BertModel        the model without the head, with the same weights and ops
    config : BertConfig     read-only; id2label names a classifier's labels
    weights : Weights       read-only; `weights.head` are those of the head
    ops : Ops               read-only
    """

    _head: ClassVar[str]
    _output_type: ClassVar[Any]  # a class of models/outputs.py
    bert: BertModel

    def __init_subclass__(cls) -> None:
        if cls.__name__ in HEADS:
            cls._head = cls.__name__

    def _make_parts(self, hidden_states: Selection, attentions: Selection) -> None:
        needed, there = HEADS[self._head], self.weights.head and HEADS[self.weights.head.name].rows
        if not set(needed.rows) <= set(there or ()) or (needed.pooled and self.weights.pooler is None):
            found = "no head" if self.weights.head is None else f"the head of {self.weights.head.name}"
            name = type(self).__name__
            raise ValueError(f"{name} was given weights with {found}. Use {name}.from_pretrained.")
        kind = class_of(BertModel, self.config.family)
        bert = kind(self.weights, self.ops, output_hidden_states=hidden_states, output_attentions=attentions)
        vars(self).update({"bert": bert, self.base_model_prefix: bert})

    @property
    def num_labels(self) -> int:
        """The number of labels in the config; if the head is a classifier, each result has as many logits."""
        return self.config.num_labels

    @property
    def _dense(self) -> Any:
        """The last linear map of the head; the constructor has checked that it is there."""
        return getattr(self.weights.head, HEADS[self._head].rows[-1].field)

    def _compute(self, inputs: Mapping[str, Any], kept: Mapping[str, Any], num_layers: Any, positions: Any) -> Any:
        batch = self._pack(inputs)
        filled = self._logits_of(batch, positions)
        states = self.bert.run_packed(batch, heads=filled, **kept)
        return self._output([head.logits for head in filled], states.hidden_states, states.attentions, inputs)

    def word_logits(self, x: FloatArray) -> FloatArray:
        """Compute the logits of the masked-LM head for some tokens: (t, H) -> (t, V)."""
        predictions: Any = self.weights.head and self.weights.head.predictions
        return heads.masked_lm(x, predictions, self.config, self.ops)

    def _logits_of(self, batch: PackedBatch, positions: npt.ArrayLike | None) -> list[Logits]:
        """Return the logits of each head; they are computed while the model runs."""
        found, shape = list[Logits](), batch.mask.shape
        if self._has_decoder:
            asked = None if positions is None else check_positions(positions, shape)
            shape = (*(shape if asked is None else asked.shape[:1]), self.config.vocab_size)
            found.append(Logits(self, self.word_logits, shape, *_token_places(batch, asked)))
        if HEADS[self._head].pooled:
            shape, places = (batch.num_sequences, self._dense.shape[0]), np.flatnonzero(batch.shows_first)
            found.append(Logits(self, self.logits_of_sequences, shape, places))
        elif not self._has_decoder:
            found.append(Logits(self, self._of_tokens, (*shape, self._dense.shape[0]), *_token_places(batch, None)))
        return found

    def logits_of_sequences(self, x: FloatArray, step: PackedBatch) -> FloatArray:
        """Compute the logits of a head that reads [CLS], for the sequences of a step that show it."""
        pooler: Any = self.weights.pooler
        activation = self.config.family.activation(self._head, "tanh")
        return heads.of_first_token(x, pooler, self._dense, step, self.ops, activation)

    def _of_tokens(self, x: FloatArray) -> FloatArray:
        return heads.of_each_token(x, self._dense, self.ops)

    def _output(self, logits: list[FloatArray], hidden_states: Any, attentions: Any, inputs: Mapping[str, Any]) -> Any:
        """Make the output of a call."""
        return self._output_type(*logits, hidden_states, attentions)

    # --- for trace and stream, see models/tracing.py ------------------------------------------------------------------

    _whole_steps = False

    @property
    def _slice_bytes(self) -> int:
        return sys.maxsize if self._whole_steps else SLICE_BYTES

    def _after_states(self, x: FloatArray, step: PackedBatch) -> None:
        if self._has_decoder:
            self.word_logits(x)
        if HEADS[self._head].pooled:
            self.logits_of_sequences(x, step)
        elif not self._has_decoder:
            self._of_tokens(x)


class BertForMaskedLM(BertHead[outputs.MaskedLMOutput]):
    """BERT with the masked-LM head: for each token, a logit of each word of the vocabulary.

    ``logits`` have the shape (B, S, V), or (n, V) in the order of ``positions=``.
    """

    _output_type = outputs.MaskedLMOutput


class BertForNextSentencePrediction(BertHead[outputs.NextSentencePredictorOutput]):
    """BERT with the next-sentence head, which says whether the second text of a pair follows the first one.

    ``logits`` have the shape (B, 2): "it follows", "it is a random one". A pair is one sequence, as
    ``tokenizer(first, second)`` gives it.
    """

    _output_type = outputs.NextSentencePredictorOutput


class BertForPreTraining(BertHead[outputs.BertForPreTrainingOutput]):
    """BERT with both heads of its pre-training, masked LM and next sentence, which are computed in one forward."""

    _output_type = outputs.BertForPreTrainingOutput


class BertForSequenceClassification(BertHead[outputs.SequenceClassifierOutput]):
    """BERT with a classifier of whole sequences; ``config.problem_type`` says what its logits mean.

    ``logits`` have the shape (B, num_labels). Single label: softmax over the labels. Multi label: a sigmoid of each.
    Regression: the number itself. The logits are computed in the same way.
    """

    _output_type = outputs.SequenceClassifierOutput


class BertForTokenClassification(BertHead[outputs.TokenClassifierOutput]):
    """BERT with a classifier of tokens, for example for named entities.

    ``logits`` have the shape (B, S, num_labels).
    """

    _output_type = outputs.TokenClassifierOutput


class BertForQuestionAnswering(BertHead[outputs.QuestionAnsweringModelOutput]):
    """BERT with a head that finds the answer to a question in a text: its first and its last token.

    ``start_logits`` and ``end_logits`` have the shape (B, S).
    """

    _output_type = outputs.QuestionAnsweringModelOutput

    def _output(self, logits: list[FloatArray], hidden_states: Any, attentions: Any, inputs: Mapping[str, Any]) -> Any:
        starts, ends = (np.ascontiguousarray(logits[0][:, :, i]) for i in range(2))
        return outputs.QuestionAnsweringModelOutput(starts, ends, hidden_states, attentions)


class BertForMultipleChoice(BertHead[outputs.MultipleChoiceModelOutput]):
    """BERT with a head that scores the choices of a question against each other.

    ``logits`` have the shape (B, choices). The inputs have the shape (B, choices, S), `inputs_embeds` (B, choices, S,
    H): each choice is a sequence, the question, then the answer. position_ids may have the shape (1, 1, S).
    hidden_states and attentions are given with B x choices sequences, as in transformers, and messages count rows
    through all choices.
    """

    _output_type = outputs.MultipleChoiceModelOutput

    def _pack(self, inputs: Mapping[str, Any]) -> PackedBatch:
        return pack(self.config, **_flatten_choices(inputs))

    def _output(self, logits: list[FloatArray], hidden_states: Any, attentions: Any, inputs: Mapping[str, Any]) -> Any:
        given = inputs["input_ids"] if inputs["inputs_embeds"] is None else inputs["inputs_embeds"]
        return outputs.MultipleChoiceModelOutput(logits[0].reshape(np.shape(given)[:2]), hidden_states, attentions)


def _flatten_choices(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with B x choices rows; `pack` checks the rest."""
    arrays = {name: as_numbers(name, value) for name, value in inputs.items() if value is not None}
    given = arrays.get("input_ids", arrays.get("inputs_embeds"))
    leading = (0, 1) if given is None else given.shape[:2]  # `pack` says what is missing
    for name, array in arrays.items():
        allowed = [leading, (1, 1)] if name == "position_ids" else [leading]
        if array.ndim != (4 if name == "inputs_embeds" else 3) or array.shape[:2] not in allowed:
            raise ValueError(
                f"{name} has shape {array.shape}; expected (B, choices, S), one axis more for inputs_embeds, and "
                f"the same {leading} in all inputs."
            )
    if leading[1] == 0:
        raise ValueError("The input has no choices; give at least one for each row.")
    return {name: array.reshape(math.prod(array.shape[:2]), *array.shape[2:]) for name, array in arrays.items()}


# --- the class of a checkpoint ----------------------------------------------------------------------------------------

Model: TypeAlias = BertModel | BertHead[Any]


@lists_keywords()
def load(name_or_path: str | os.PathLike[str] | None = None, **harmless: Any) -> Model:
    """Load a model with the head that its checkpoint has; the arguments are those of `BertModel.from_pretrained`.

    The class is the one that config.json names in ``architectures`` if the checkpoint has the tensors of its head.
    Otherwise the tensors decide, and a warning says so. A checkpoint without a head is a `BertModel`.

    Returns
    -------
    BertModel, or one of the classes with a head
        `BertModel` keeps all hidden states by default, a model with a head keeps none.

    Warns
    -----
    UserWarning
        config.json and the tensors disagree, or the tensors fit several classes and config.json names none of them.

    Raises
    ------
    ModelFormatError, DownloadError, TypeError, ValueError
        As for `BertModel.from_pretrained`.
    """
    files, options, family = find_model("minibert.load", name_or_path, harmless, load)
    return choose_class(files, family).from_files(files, options)


def choose_class(files: ModelFiles, family: Family) -> type[Model]:
    """Choose the class of a checkpoint by its config.json and its tensors' names; warn if the two disagree."""
    names, found = architectures(files.settings("config.json")), find_heads(files, family)
    for name in names:
        if name in found or (name == "BertModel" and not found):
            return globals()[name]
    chosen = found[0] if found else "BertModel"  # the first one in `HEADS` that fits: it uses most of the tensors
    certain = not names and all(name == chosen or is_part(name, chosen) for name in found)
    if any(name in HEADS for name in names) or (found and not certain):
        says = f"names {family.own_class(names[0])[:60]!a}" if names else "names no class"
        there = ", ".join(map(family.own_class, found)) or "no head"
        warn_caller(
            f"config.json {says}, but {files.source} has the tensors of {there}, so it is loaded as "
            f"{family.own_class(chosen)}. To choose the class, call its from_pretrained."
        )
    return globals()[chosen]


def is_part(name: str, whole: str) -> bool:
    """Return whether a class has some of the modules of another one, and no other modules."""
    return set(HEADS[name].rows) < set(HEADS[whole].rows)


class _Auto:
    def __init__(self, *arguments: object, **keywords: object) -> None:
        name = type(self).__name__
        raise TypeError(f"{name} does not make objects. Call {name}.from_pretrained(name_or_path).")


class AutoModel(_Auto):
    """The model of a checkpoint: `from_pretrained` gives the `BertModel` of its family, such as `RobertaModel`."""

    _model: ClassVar[type[BertPreTrainedModel[Any]]] = BertModel

    @classmethod
    @lists_keywords()
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **harmless: Any) -> Any:
        """Load a model, as the `from_pretrained` of its class does; types without BERT's forward are refused by name.

        Raises
        ------
        ModelFormatError
            The checkpoint is of such a type, or does not have this head; or as in `BertModel.from_pretrained`.
        """
        call, kind = f"{cls.__name__}.from_pretrained", cls._model
        files, options, family = find_model(call, name_or_path, harmless, cls.from_pretrained)
        if kind is BertForPreTraining and family.field not in ("bert", "electra"):
            kind = BertForMaskedLM  # the pre-training of the others has one task
        return kind.from_files(files, options)


def _auto(model: type[BertHead[Any]]) -> type[AutoModel]:
    """Make the class AutoModelFor... of a model with a head."""
    text = f"The model of a checkpoint with this head: `from_pretrained` gives the `{model.__name__}` of its family."
    name = model.__name__.replace("Bert", "AutoModel")
    return type(name, (AutoModel,), {"_model": model, "__doc__": text, "__module__": __name__})


AutoModelForMaskedLM = _auto(BertForMaskedLM)
AutoModelForMultipleChoice = _auto(BertForMultipleChoice)
AutoModelForNextSentencePrediction = _auto(BertForNextSentencePrediction)
AutoModelForPreTraining = _auto(BertForPreTraining)
AutoModelForQuestionAnswering = _auto(BertForQuestionAnswering)
AutoModelForSequenceClassification = _auto(BertForSequenceClassification)
AutoModelForTokenClassification = _auto(BertForTokenClassification)


class AutoConfig(_Auto):
    """The config of a checkpoint of any family: `from_pretrained` gives a `BertConfig`."""

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> BertConfig:
        """Read a config, as `BertConfig.from_pretrained` does; types without BERT's forward are refused by name."""
        return BertConfig.from_pretrained(name_or_path, **options)
