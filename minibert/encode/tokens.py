"""`TokenPlan`: what happens to each text of a call that gives a vector for each token (late interaction, ColBERT).

    windows of tokens -> queries made longer -> hidden states -> tokens that are kept -> modules -> fewer vectors

Source: sentence-transformers 6.2, base/modules/transformer.py and multi_vector_encoder/modules/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import warn_caller
from minibert._utils.torch_interop import Scores
from minibert._utils.validation import IntArray, brief, check_bool, check_choice, check_int
from minibert.bert.ops import AttentionInput, AttentionOutput, Ops, Queries, WrappedOps
from minibert.bert.packed import PackedBatch
from minibert.encode.modules import Step
from minibert.encode.run import TextPlan
from minibert.models.bert import BertModel
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.vectors.multi_vectors import TokenPooling, check_names


class Transformer:
    """The first module: the model, the tokenizer, and the lengths of texts. Settings can be changed.

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

    def attention(self, inputs: AttentionInput, **wanted: bool) -> AttentionOutput:
        """Compute attention. Positions and columns: first of the keys, and then of all tokens."""
        T, K = len(inputs.query), len(self.keys)
        changed: dict[str, Any] = {"key": inputs.key[self.keys], "value": inputs.value[self.keys]}
        seeing = np.arange(T)
        if inputs.window is not None:  # the last key of a sequence is the nearest one of the tokens behind it
            last = inputs.window.columns[self.keys[self.cu_seqlens[1:] - 1]]
            distances = inputs.window.columns - np.repeat(last, np.diff(inputs.cu_seqlens))
            seeing = np.flatnonzero(distances <= inputs.window.size)
        changed["query"] = inputs.query[seeing]
        changed["queries"] = Queries(K + seeing, np.searchsorted(seeing, inputs.cu_seqlens).astype(np.int32))
        for name, field in (("bias", "columns"), ("rotation", "positions"), ("window", "columns")):
            if (addition := getattr(inputs, name)) is not None:
                places = getattr(addition, field)
                changed[name] = addition._replace(**{field: np.concatenate([places[self.keys], places])})
        output = self.inner.attention(inputs._replace(**changed, cu_seqlens=self.cu_seqlens), **wanted)
        # The context of a token without a key in its window is 0, as that of torch's sdpa.
        context = np.zeros(inputs.query.shape, output.context.dtype)
        context[seeing] = output.context
        return output._replace(context=context)


@dataclasses.dataclass(frozen=True)
class TokenPlan(TextPlan):
    """The work of one call.

    Parameters
    ----------
    first : Transformer
    windows : TokenWindows
        Each text has one window.
    task : str or None
    steps : tuple
        The modules after the Transformer: Step, MultiVectorMask, TokenPooling.
    whole : bool
        Make a dict of all tokens of a text, not an array of those that are kept.
    """

    first: Transformer
    task: str | None
    steps: tuple[Any, ...]
    whole: bool = False

    @property
    def model(self) -> BertModel:
        """The model that computes."""
        return self.first.auto_model

    def compute(self, groups: list[list[Encoding]], indices: Sequence[int]) -> npt.NDArray[np.object_]:
        """Compute an array (tokens, width), float32, or a dict, of each text."""
        return np.fromiter(self.tokens([group[0] for group in groups]), dtype=object)

    def tokens(self, encodings: Sequence[Encoding]) -> Iterator[Any]:
        """Compute the vectors of the tokens of each text."""
        first, task, steps, depth = self.first, self.task, self.steps, self.model.config.num_hidden_layers
        prompt = {"prompt_length": self.windows.num_prompt_tokens} if self.windows.num_prompt_tokens else {}
        expansion = first.query_expansion if task == "query" else None
        ids, types = [text.ids for text in encodings], [text.token_types for text in encodings]
        if expansion:
            more = [(0, max(0, expansion["length"] - len(text))) for text in ids]
            number: Any = first.id_of(expansion["token"])
            ids = [np.pad(text, n, constant_values=number) for text, n in zip(ids, more, strict=True)]
            types = [np.pad(text, n) for text, n in zip(types, more, strict=True)]
        masks = [step for step in steps if isinstance(step, MultiVectorMask)]
        vocab = first.tokenizer.vocab if masks else {}
        pools = any(isinstance(step, TokenPooling) and step.applies_to(task) for step in steps)
        whole_rows = self.whole and not pools
        batch = PackedBatch.from_sequences(self.model.config, ids, types)
        columns = zip(encodings, ids, types, strict=True)
        for _, step in self.model.steps(batch):
            sizes, texts = np.diff(step.cu_seqlens), [next(columns) for _ in range(step.num_sequences)]
            lengths = np.array([len(encoding) for encoding, _, _ in texts])
            added = np.arange(step.num_tokens) - np.repeat(step.cu_seqlens[:-1], sizes) >= np.repeat(lengths, sizes)
            attend, model = expansion is None or expansion["attend"], self.model
            if not attend:
                keys, ends = np.flatnonzero(~added), np.cumsum([0, *lengths]).astype(np.int32)
                model = model.with_ops(ExpandedOps(model.ops, keys, ends).ops)
            ((_, states),) = model.states(step, [depth])
            kept = ~added | bool(attend or masks)
            for mask in masks:
                kept &= mask.keeps(step.token_ids, vocab, task)
            rows = kept | whole_rows
            x, ends = states[depth][rows], np.cumsum([0, *rows])[step.cu_seqlens[1:]]
            for module in steps:
                if isinstance(module, Step):
                    x = module(x)
                elif isinstance(module, TokenPooling):
                    pooled = module.pool(np.split(x, ends[:-1]), task=task)
                    x, ends = np.concatenate(pooled), np.cumsum([*map(len, pooled)])
            for i, (vectors, (_, token_ids, token_types)) in enumerate(zip(np.split(x, ends[:-1]), texts, strict=True)):
                place = slice(*step.cu_seqlens[i : i + 2])
                text = {"input_ids": token_ids, "token_type_ids": token_types, "token_embeddings": vectors.view(Scores)}
                text["attention_mask"] = kept[place] if whole_rows else np.ones(len(vectors), np.bool_)
                text |= {"query_expansion_positions": added[place]} if expansion else {}
                yield text | prompt | {"modality": "text"} if self.whole else text["token_embeddings"]
