"""`TokenPlan`: what happens to each text of a call that gives a vector for each token (late interaction, ColBERT).

    windows of tokens -> queries made longer -> hidden states -> tokens that are kept -> modules -> fewer vectors

Source: sentence-transformers 6.2, base/modules/transformer.py and multi_vector_encoder/modules/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from minibert._utils.torch_interop import Scores
from minibert._utils.validation import IntArray, brief, check_bool, check_choice, check_int
from minibert.bert.ops import AttentionInput, AttentionOutput, Ops, Queries, WrappedOps
from minibert.bert.packed import PackedBatch
from minibert.encode.modules import Step
from minibert.encode.run import CHUNK_SIZE, EncodedTexts, encode_distinct
from minibert.models.bert import BertModel
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.windows import TokenWindows
from minibert.vectors.multi_vectors import TokenPooling, check_names


class Transformer:
    """The first module: the model, the tokenizer, and the lengths of texts. Settings can be changed.

    Attributes
    ----------
    query_length, document_length : int or None
        The most tokens of a query and of a document; None means the model's `max_seq_length`.
    query_expansion : dict or None
        What makes short queries longer. "length" is their number of tokens; "strategy" is "fixed", which also cuts
        longer queries to it, or "min"; "token" is added, by default the mask token. With "attend", all tokens attend to
        the added ones; without it none does, and the added ones attend to the other tokens of the query.
    """

    query_length: int | None
    document_length: int | None

    def __init__(self, auto_model: BertModel, tokenizer: BertTokenizer, settings: Mapping[str, Any]) -> None:
        self.auto_model, self.tokenizer = auto_model, tokenizer
        for name in ("query_length", "document_length"):
            length, least = settings.get(name), tokenizer.num_special_tokens_to_add()
            setattr(self, name, None if length is None else check_int(name, length, least, also=", or None"))
        self.query_expansion = settings.get("query_expansion")

    @property
    def query_expansion(self) -> dict[str, Any] | None:
        """See above."""
        return self._query_expansion

    @query_expansion.setter
    def query_expansion(self, value: Mapping[str, Any] | None) -> None:
        self._query_expansion = None if value is None else self._checked("query_expansion", value)

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
        Tokens to leave out, such as ``list(string.punctuation)``. What is not a token of the vocabulary has no effect.
    skiplist_tasks : str or list of str, optional
        The tasks for which they are left out; default: ["document"], which is also that of texts without a task.
    keep_only_token_ids : list of int, optional
        Of texts that are not queries, keep these tokens only.
    """

    skiplist_words: list[str] | None = None
    skiplist_tasks: str | list[str] | None = None
    keep_only_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        self.skiplist_words = check_names("skiplist_words", [] if self.skiplist_words is None else self.skiplist_words)
        self.skiplist_tasks = check_names("skiplist_tasks", self.skiplist_tasks)
        for number in self.keep_only_token_ids or ():
            check_int("keep_only_token_ids", number, 0)

    def resolve_with_tokenizer(self, tokenizer: object) -> None:
        """Do nothing: the words are looked up in each call; sentence-transformers has this method for changed words."""

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
        """Compute attention. Positions and columns are those of the keys, and then of all tokens."""
        T, K = len(inputs.query), len(self.keys)
        changed: dict[str, Any] = {"key": inputs.key[self.keys], "value": inputs.value[self.keys]}
        changed["queries"] = Queries(np.arange(K, K + T), inputs.cu_seqlens)
        for name, field in (("bias", "columns"), ("rotation", "positions"), ("window", "columns")):
            if (given := getattr(inputs, name)) is not None:
                places = getattr(given, field)
                changed[name] = given._replace(**{field: np.concatenate([places[self.keys], places])})
        return self.inner.attention(inputs._replace(**changed, cu_seqlens=self.cu_seqlens), **wanted)


@dataclasses.dataclass(frozen=True)
class TokenPlan:
    """The work of one call.

    Parameters
    ----------
    first : Transformer
    windows : TokenWindows
        Turns texts into windows of tokens; each text has one.
    task : str or None
    steps : tuple
        The modules after the Transformer: Step, MultiVectorMask, TokenPooling.
    whole : bool
        Make a dict of all tokens of a text, not an array of those that are kept.
    """

    first: Transformer
    windows: TokenWindows = dataclasses.field(compare=False)
    task: str | None
    steps: tuple[Any, ...]
    whole: bool = False

    pooling: ClassVar[tuple[str, ...]] = ("none",)

    @property
    def model(self) -> BertModel:
        """The model that computes."""
        return self.first.auto_model

    def run(
        self,
        texts: Iterable[str],
        *,
        chunk_size: int = CHUNK_SIZE,
        progress: Callable[[int], object] | None = None,
        exact: bool = False,
    ) -> Iterator[EncodedTexts]:
        """Compute the vectors of each text, a chunk of texts at a time, as `Plan.run` does.

        The vectors of a chunk are an array of objects, which are arrays (tokens, width), float32, or dicts.
        """

        def compute(groups: list[list[Encoding]], _: Sequence[int]) -> npt.NDArray[np.object_]:
            return np.fromiter(self.tokens([group[0] for group in groups]), dtype=object)

        return encode_distinct(self.windows, texts, compute, chunk_size, progress, exact=exact)

    def tokens(self, encodings: Sequence[Encoding]) -> Iterator[Any]:
        """Compute the vectors of the tokens of each text."""
        first, task, steps, depth = self.first, self.task, self.steps, self.model.config.num_hidden_layers
        prompt = {"prompt_length": self.windows.num_prompt_tokens} if self.windows.num_prompt_tokens else {}
        expansion = first.query_expansion if task == "query" else None
        ids, types = [one.ids for one in encodings], [one.token_types for one in encodings]
        if expansion:
            more = [(0, max(0, expansion["length"] - len(one))) for one in ids]
            number: Any = first.id_of(expansion["token"])
            ids = [np.pad(one, n, constant_values=number) for one, n in zip(ids, more, strict=True)]
            types = [np.pad(one, n) for one, n in zip(types, more, strict=True)]
        masks = [step for step in steps if isinstance(step, MultiVectorMask)]
        vocab = first.tokenizer.vocab if masks else {}
        pools = [i for i, step in enumerate(steps) if isinstance(step, TokenPooling) and step.applies_to(task)]
        pooled, whole_rows = min(pools, default=len(steps)), self.whole and not pools
        batch = PackedBatch.from_sequences(self.model.config, ids, types)
        given = zip(encodings, ids, types, strict=True)
        for _, step in self.model.steps(batch):
            sizes, texts = np.diff(step.cu_seqlens), [next(given) for _ in range(step.num_sequences)]
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
            x = states[depth][rows]
            for module in steps[:pooled]:
                x = module(x) if isinstance(module, Step) else x
            found: Any = np.split(x, np.cumsum([0, *rows])[step.cu_seqlens[1:-1]])
            for module in steps[pooled:]:
                if isinstance(module, TokenPooling):
                    found = module.pool(found, task=task)
                elif isinstance(module, Step):
                    found = [module(one) for one in found]
            for i, (vectors, (_, token_ids, token_types)) in enumerate(zip(found, texts, strict=True)):
                place = slice(*step.cu_seqlens[i : i + 2])
                one = {"input_ids": token_ids, "token_type_ids": token_types, "token_embeddings": vectors.view(Scores)}
                one["attention_mask"] = kept[place] if whole_rows else np.ones(len(vectors), np.bool_)
                one |= {"query_expansion_positions": added[place]} if expansion else {}
                yield one | prompt | {"modality": "text"} if self.whole else one["token_embeddings"]
