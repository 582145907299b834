"""`TokenPlan`: what happens to each text of a call that gives a vector for each token (late interaction, ColBERT).

    windows of tokens -> queries made longer -> hidden states -> tokens that are kept -> modules -> fewer vectors

Source: sentence-transformers 6.2, base/modules/transformer.py and multi_vector_encoder/modules/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import warn_caller
from minibert._utils.torch_interop import Scores
from minibert._utils.validation import FloatArray, IntArray, check_int
from minibert.bert.ops import AttentionInput, AttentionOutput, Ops, Queries, WrappedOps
from minibert.bert.packed import PackedBatch
from minibert.encode.modules import VectorModule
from minibert.encode.run import ObjectPlan
from minibert.models.bert import BertModel
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.vectors.multi_vectors import TokenPooling, check_names


class Expansion(NamedTuple):
    """What makes a short query longer: its number of tokens, the added token, and whether all tokens attend to it."""

    length: int
    token_id: int
    attend: bool


@dataclasses.dataclass(frozen=True)
class TokenPlan(ObjectPlan):
    """The work of one call.

    Parameters
    ----------
    windows : TokenWindows
        Each text has one window.
    model : BertModel
    expansion : Expansion, optional
        What makes the texts longer, which are then queries.
    task : str or None
    modules : tuple
        The modules after the Transformer: VectorModule, MultiVectorMask, TokenPooling.
    as_dicts : bool
        Make a dict of all tokens of a text, not an array of those that are kept.
    """

    model: BertModel
    expansion: Expansion | None
    task: str | None
    modules: tuple[Any, ...]
    as_dicts: bool = False

    def items(self, windows: list[Encoding], indices: Sequence[int]) -> Iterator[Any]:
        """Compute an array (tokens, width), float32, or a dict, of each text."""
        return self.tokens(windows)

    def tokens(self, encodings: Sequence[Encoding]) -> Iterator[Any]:
        """Compute the vectors of the tokens of each text, or its dict."""
        prompt = {"prompt_length": self.windows.num_prompt_tokens} if self.windows.num_prompt_tokens else {}
        pools = any(isinstance(module, TokenPooling) and module.applies_to(self.task) for module in self.modules)
        batch, added_of_all = self._expanded(encodings)
        for place, step in self.model.steps(batch):
            added = added_of_all[place]
            kept = self._kept(step, added)
            rows = kept | (self.as_dicts and not pools)
            ends = np.cumsum([0, *rows])[step.cu_seqlens[1:]]
            vectors = self._after_modules(self._states(step, added)[rows], ends)
            if not self.as_dicts:
                yield from (x.view(Scores) for x in vectors)
                continue
            for x, (start, end) in zip(vectors, pairwise(step.cu_seqlens), strict=True):
                ids, types = (array[start:end].astype(np.int64) for array in (step.token_ids, step.token_types))
                text = {"input_ids": ids, "token_type_ids": types, "token_embeddings": x.view(Scores)}
                text["attention_mask"] = np.ones(len(x), np.bool_) if pools else kept[start:end]
                text |= {"query_expansion_positions": added[start:end]} if self.expansion else {}
                yield text | prompt | {"modality": "text"}

    def _expanded(self, encodings: Sequence[Encoding]) -> tuple[PackedBatch, npt.NDArray[np.bool_]]:
        """Make short queries longer; return the batch, and which of its tokens were added."""
        ids, types = [text.ids for text in encodings], [text.token_types for text in encodings]
        lengths = np.array([len(text) for text in ids], np.int64)
        if expansion := self.expansion:
            numbers = [(0, max(0, expansion.length - length)) for length in lengths]
            ids = [np.pad(text, n, constant_values=expansion.token_id) for text, n in zip(ids, numbers, strict=True)]
            types = [np.pad(text, n) for text, n in zip(types, numbers, strict=True)]
        batch = PackedBatch.from_sequences(self.model.config, ids, types)
        return batch, batch.columns >= np.repeat(lengths, np.diff(batch.cu_seqlens))

    @property
    def _attends(self) -> bool:
        """Whether all tokens attend to the added ones; else none does."""
        return self.expansion is None or self.expansion.attend

    def _states(self, step: PackedBatch, added: npt.NDArray[np.bool_]) -> FloatArray:
        """Compute the last hidden states."""
        model, depth = self.model, self.model.config.num_hidden_layers
        if not self._attends:
            cu_seqlens = np.cumsum([0, *~added])[step.cu_seqlens].astype(np.int32)
            model = model.with_ops(ExpandedOps(model.ops, np.flatnonzero(~added), cu_seqlens).ops)
        ((_, states),) = model.states(step, [depth])
        return states[depth]

    def _kept(self, step: PackedBatch, added: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which tokens are kept: those of the masks; without a mask, all that others attend to."""
        masks = [module for module in self.modules if isinstance(module, MultiVectorMask)]
        kept = ~added | bool(self._attends or masks)
        for mask in masks:
            kept &= mask.keeps(step.token_ids, self.windows.tokenizer.vocab, self.task)
        return kept

    def _after_modules(self, x: FloatArray, ends: IntArray) -> list[FloatArray]:
        """Run the modules on the vectors of the kept tokens; a text's end at `ends`. Return an array per text."""
        for module in self.modules:
            if isinstance(module, VectorModule):
                x = module(x)
            elif isinstance(module, TokenPooling):
                pooled = module.pool(np.split(x, ends[:-1]), task=self.task)
                x, ends = np.concatenate(pooled), np.cumsum([*map(len, pooled)])
        return np.split(x, ends[:-1])


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


class ExpandedOps(WrappedOps):
    """The ops for a step in which no token attends to the last tokens of each sequence: they are queries, but not keys.

    Parameters
    ----------
    inner : Ops
    keys : int ndarray of shape (K,)
        The other tokens.
    cu_seqlens : int ndarray of shape (B + 1,)
        Where the keys of each sequence begin among the K.
    """

    def __init__(self, inner: Ops, keys: IntArray, cu_seqlens: IntArray) -> None:
        super().__init__(inner)
        self.keys, self.cu_seqlens = keys, cu_seqlens

    def attention(self, inputs: AttentionInput, **returned: bool) -> AttentionOutput:
        """Compute attention. Positions and columns: first of the keys, and then of all tokens."""
        T, K = len(inputs.query), len(self.keys)
        changed: dict[str, Any] = {"key": inputs.key[self.keys], "value": inputs.value[self.keys]}
        queries = np.arange(T)  # the tokens that have a key
        if inputs.window is not None:  # the last key of a sequence is the nearest one of the tokens behind it
            last = inputs.window.columns[self.keys[self.cu_seqlens[1:] - 1]]
            distances = inputs.window.columns - np.repeat(last, np.diff(inputs.cu_seqlens))
            queries = np.flatnonzero(distances <= inputs.window.size)
        changed["query"] = inputs.query[queries]
        changed["queries"] = Queries(K + queries, np.searchsorted(queries, inputs.cu_seqlens).astype(np.int32))
        for name, field in (("bias", "columns"), ("rotation", "positions"), ("window", "columns")):
            if (addition := getattr(inputs, name)) is not None:
                places = getattr(addition, field)
                changed[name] = addition._replace(**{field: np.concatenate([places[self.keys], places])})
        output = self.inner.attention(inputs._replace(**changed, cu_seqlens=self.cu_seqlens), **returned)
        # The context of a token without a key in its window is 0, as that of torch's sdpa.
        context = np.zeros(inputs.query.shape, output.context.dtype)
        context[queries] = output.context
        return output._replace(context=context)
