"""Compute the vectors of texts, a chunk of texts at a time and each distinct text once; choose layers and tokens.

Layers are numbered as in transformers: 0 is the embeddings' output, i is layer i, negative ones count from the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import cut_texts, warn_caller
from minibert._utils.torch_interop import Scores
from minibert._utils.validation import FloatArray, IntArray, check_bool, check_choice
from minibert.bert import encoder
from minibert.bert.config import BertConfig
from minibert.bert.packed import PackedBatch
from minibert.errors import ModelFormatError
from minibert.models.bert import BertModel
from minibert.sentence.modules import Pipeline, pool, pooling_modes
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_texts
from minibert.tokenizer.windows import TextInfo, TokenWindows, count_tokens, in_chunks
from minibert.vectors.layers import COMBINED, LayerSelection, combine_layers, resolve_layers
from minibert.vectors.similarity import check_truncate_dim, normalize_embeddings


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodeOptions:
    """The options that say how a text becomes a vector. All functions that compute sentence vectors take them.

    The fields are arguments of `SentenceTransformer.encode`, which describes them.
    """

    prompt_name: str | None = None
    prompt: str | None = None
    batch_size: int = 32
    normalize_embeddings: bool = False
    truncate_dim: int | None = None
    layers: LayerSelection | None = None
    layer_pooling: str = "concat"
    pooling: str | Sequence[str] | None = None
    special_tokens: bool = True
    truncation: str = "warn"
    stride: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.layers, Iterator):  # an iterator can be read once, but options may be used again
            object.__setattr__(self, "layers", tuple(self.layers))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The layers and the pooling of one call of `encode`.

    Parameters
    ----------
    layers : tuple of int
        Hidden states to use, 0 to L; the forward stops after the deepest one.
    layer_pooling : {"concat", "sum", "mean"}
        How several hidden states are combined. bert-as-service concatenates them.
    modes : tuple of str
        Names of `POOLING_MODES`, or "pooler" or "none" alone.
    special_tokens : bool
        Whether [CLS] and [SEP] count in pooling.
    include_prompt : bool
        Whether the tokens of a prompt (and the [CLS] before them) count in pooling.
    """

    layers: tuple[int, ...]
    layer_pooling: str
    modes: tuple[str, ...]
    special_tokens: bool
    include_prompt: bool

    def width(self, hidden_size: int) -> int:
        """Return the length of the pooled vectors; with the pooling "none", of a token's vector."""
        per_token = hidden_size * (len(self.layers) if self.layer_pooling == "concat" else 1)
        return per_token * len(self.modes)


def make_recipe(model: BertModel, pipeline: Pipeline, options: EncodeOptions) -> Recipe:
    """Check a caller's options against the model and return them as a recipe.

    The pooling "first_last" is the mean over the tokens of the mean of layer 1 and the last one; "pooler" is the
    model's pooler. The default of `layers` is the last one.

    Raises
    ------
    TypeError, ValueError
        A name is unknown, the model does not have a layer or a pooler, or two arguments exclude each other.
    """
    layers, layer_pooling, include_prompt = options.layers, options.layer_pooling, pipeline.include_prompt
    modes = pooling_modes(pipeline.pooling if options.pooling is None else options.pooling)
    depth = model.config.num_hidden_layers
    chosen = (depth,) if layers is None else resolve_layers(layers, depth)
    check_choice("layer_pooling", layer_pooling, COMBINED)
    special_tokens = check_bool("special_tokens", options.special_tokens)
    given = ["layers="] * (layers is not None) + ["special_tokens=False"] * (not special_tokens)
    if modes[0] in ("first_last", "pooler") and given:
        raise ValueError(f"pooling={modes[0]!r} fixes layers and tokens; leave out {' and '.join(given)}.")
    if modes == ("first_last",):
        if layer_pooling not in ("concat", "mean"):  # the default, and what it means
            raise ValueError(f"pooling='first_last' is a mean; leave out layer_pooling={layer_pooling!r}.")
        return Recipe((min(1, depth), depth), "mean", ("mean",), True, include_prompt)
    if modes == ("pooler",) and model.weights.pooler is None:
        raise ValueError("pooling='pooler', but this checkpoint does not have a pooler; give another pooling.")
    return Recipe(chosen, layer_pooling, modes, special_tokens, include_prompt)


def pool_encodings(model: BertModel, recipe: Recipe, encodings: Sequence[Encoding], prompt_length: int) -> FloatArray:
    """Compute one vector per encoding.

    Parameters
    ----------
    recipe : Recipe, not "none"
    encodings : sequence of B Encoding
    prompt_length : int
        Tokens at the start of every encoding that belong to the prompt, [CLS] included.

    Returns
    -------
    ndarray of shape (B, recipe.width(H)), float32
    """
    pooled = [np.zeros((0, recipe.width(model.config.hidden_size)), dtype=np.float32)]
    for first, step, state, from_pooler in _run(model, recipe, encodings):
        if from_pooler is not None:
            pooled.append(from_pooler)
            continue
        counts = None
        if not recipe.special_tokens or (not recipe.include_prompt and prompt_length):
            in_step = encodings[first : first + step.num_sequences]
            counts = np.concatenate([_counts(recipe, encoding, prompt_length) for encoding in in_step])
        pooled.append(pool(state, step.cu_seqlens, recipe.modes, counts))
    return np.concatenate(pooled)


def token_vectors(model: BertModel, recipe: Recipe, encodings: Sequence[Encoding]) -> list[FloatArray]:
    """Compute the vectors of all tokens: one array (S, width) per encoding. The recipe may leave out special tokens."""
    vectors: list[FloatArray] = []
    for first, step, state, _ in _run(model, recipe, encodings):
        for b, tokens in enumerate(np.split(state, step.cu_seqlens[1:-1])):
            special = encodings[first + b].special_tokens_mask == 1
            vectors.append(tokens.copy() if recipe.special_tokens else tokens[~special])
    return vectors


def _counts(recipe: Recipe, encoding: Encoding, num_prompt_tokens: int) -> np.ndarray:
    counts = np.ones(len(encoding), dtype=np.bool_)
    if not recipe.special_tokens:
        counts &= encoding.special_tokens_mask == 0
    if not recipe.include_prompt:
        counts[:num_prompt_tokens] = False
    return counts


def _run(
    model: BertModel, recipe: Recipe, encodings: Sequence[Encoding]
) -> Iterator[tuple[int, PackedBatch, FloatArray, FloatArray | None]]:
    """Yield for each step: its first encoding's index, the packed step, its combined states, the pooler's output."""
    if not encodings:
        return
    batch = packed(model.config, encodings)
    pooler = model.weights.pooler if recipe.modes == ("pooler",) else None
    first = 0
    for step, found in model.states(batch, recipe.layers):
        states = [found[layer] for layer in recipe.layers]
        state = states[0] if len(states) == 1 else combine_layers(states, recipe.layer_pooling)
        yield first, step, state, None if pooler is None else encoder.pooler(state, pooler, step, model.ops)
        first += step.num_sequences


def packed(config: BertConfig, encodings: Sequence[Encoding]) -> PackedBatch:
    """Return encodings as a packed batch."""
    return PackedBatch.from_sequences(config, [e.ids for e in encodings], [e.token_types for e in encodings])


def check_finite(logits: FloatArray, indices: Sequence[int]) -> None:
    """Raise a ModelFormatError for a row of logits with NaN or infinity; `indices` are those of the inputs."""
    for row in np.flatnonzero(~np.isfinite(logits).all(axis=1)):
        raise ModelFormatError(f"the model computes NaN or infinity for inputs[{indices[int(row)]}]: it is damaged.")


CHUNK_SIZE = 10_000
"""Texts of a chunk. Within it equal texts are computed once, and texts are sorted by length."""


@dataclasses.dataclass(frozen=True, eq=False)
class EncodeTask:
    """The work of one call: a model, and the options with which it turns each text into vectors.

    Parameters
    ----------
    model : BertModel
    pipeline : Pipeline
    recipe : Recipe
    windows : TokenWindows
    with_info : bool
        Also make a `TextInfo` per text.
    exact : bool
        Count all tokens of texts that are cut; see `TokenWindows.of`.
    """

    model: BertModel
    pipeline: Pipeline
    recipe: Recipe
    windows: TokenWindows
    with_info: bool
    exact: bool


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedTexts:
    """The results of one chunk of n texts, in the order of the input.

    Parameters
    ----------
    vectors : ndarray of shape (n, width), float32, or SparseVectors
    n_tokens : int ndarray of shape (n,)
        Tokens of each whole text, with its prompt and the special tokens.
    n_truncated : int ndarray of shape (n,)
        How many of these were cut off. With truncation="silent" and without `info` a long text is not tokenized to its
        end. Its number is then at least 1 but may be too small, and `n_tokens` is this number plus its window's tokens.
    info : tuple of n TextInfo
        Empty if the call did not ask for it.
    """

    vectors: Any
    n_tokens: IntArray
    n_truncated: IntArray
    info: tuple[TextInfo, ...] = ()


@dataclasses.dataclass
class CutTexts:
    """A count of the texts that were cut."""

    num_texts: int = 0
    num_cut: int = 0
    first: int = 0

    def add(self, n_truncated: IntArray) -> Self:
        """Count some texts, and return the count; `n_truncated` says how many tokens of each were cut off."""
        cut = np.flatnonzero(n_truncated)
        if len(cut) and not self.num_cut:
            self.first = self.num_texts + int(cut[0])
        self.num_texts += len(n_truncated)
        self.num_cut += len(cut)
        return self

    def warn(self, max_seq_length: int, *, things: str = "texts", splits: bool = True) -> None:
        """Warn if texts were cut, with their number; `splits` says whether the caller offers truncation="split"."""
        if self.num_cut:
            whole = ", or use all of a text with truncation='split'" if splits else ""
            said = cut_texts(self.num_cut, self.num_texts, max_seq_length, self.first, things)
            warn_caller(f"{said} Silence this with truncation='silent'{whole}.")


def sentence_width(task: EncodeTask, truncate_dim: int | None) -> int:
    """Return the length of a task's sentence vectors after they are cut to `truncate_dim` features.

    Raises
    ------
    TypeError, ValueError
        The pooling is "none", its vectors do not have the length that the next module expects, or `truncate_dim` is
        wrong.
    """
    if task.recipe.modes == ("none",):
        raise ValueError("pooling='none' gives vectors of tokens, and this call needs one vector of each text.")
    kept = check_truncate_dim(truncate_dim)
    width = task.recipe.width(task.model.config.hidden_size)
    fixed = [name for name in task.pipeline.names if name != "Normalize"]
    if fixed:
        if width != task.pipeline.widths[0]:
            raise ValueError(f"layers= and pooling= give {width} features; {fixed[0]} takes {task.pipeline.widths[0]}.")
        width = task.pipeline.widths[-1]
    return width if kept is None else min(width, kept)


def encode_texts(
    task: EncodeTask, texts: Iterable[str], *, width: int, normalize: bool, size: int, progress: Callable[[int], object]
) -> Iterator[EncodedTexts]:
    """Compute one vector per text, `size` texts at a time. Each distinct text among them is computed once.

    Parameters
    ----------
    task : EncodeTask
    texts : iterable of str
    width : int
        Features to keep of each vector: see `sentence_width`.
    normalize : bool
        Scale the kept features to length 1.
    size : int
        Texts that are held in memory at a time.
    progress : callable
        Called with the number of texts done since its last call.

    Raises
    ------
    TypeError, ValueError
        An input is not a text, or cannot be tokenized as the task says. The message names its index.
    """

    def compute(groups: list[list[Encoding]], _: Sequence[int]) -> FloatArray:
        found = _sentence_vectors(task, groups)[:, :width]
        return normalize_embeddings(found) if normalize else found

    return encode_distinct(task.windows, texts, compute, size, progress, exact=task.exact, info=task.with_info)


def encode_distinct(
    windows: TokenWindows,
    texts: Iterable[Any],
    compute: Callable[[list[list[Encoding]], Sequence[int]], npt.NDArray[Any]],
    size: int,
    progress: Callable[[int], object],
    *,
    exact: bool,
    info: bool = False,
) -> Iterator[EncodedTexts]:
    """Compute an item of any kind for each text or pair, as `encode_texts` does vectors.

    Parameters
    ----------
    compute : (the windows of each of n texts, the indices of the texts in the caller's input) -> array of n items
    exact, info : bool
        As in `EncodeTask`.
    """
    first = 0
    for chunk in in_chunks(texts, size):
        chosen, rows = windows.distinct(chunk, first)
        order = np.argsort(rows, kind="stable")  # indices of texts in the chunk; equal texts follow one another
        starts = np.searchsorted(rows[order], np.arange(len(chosen) + 1))
        vectors: npt.NDArray[Any] | None = None
        counts, described = list[tuple[int, int]](), list[TextInfo]()
        chosen_texts, indices = [chunk[i] for i in chosen], [first + i for i in chosen]
        for part, groups in windows.of(chosen_texts, indices, exact=exact):
            members = order[starts[part.start] : starts[part.stop]]
            found = compute(groups, indices[part])
            vectors = np.empty((len(chunk), *found.shape[1:]), found.dtype) if vectors is None else vectors
            vectors[members] = found[rows[members] - part.start]
            counts += map(count_tokens, groups)
            described += map(windows.describe, groups) if info else ()
            del groups, found  # frees their memory before the next texts are tokenized
            progress(len(members))
        n_tokens, n_truncated = np.array(counts, dtype=np.int64)[rows].T
        yield EncodedTexts(vectors, n_tokens, n_truncated, tuple(described[row] for row in rows if info))
        first += len(chunk)


def encode_tokens(
    task: EncodeTask, texts: Sequence[str], width: int | None
) -> tuple[list[Any], IntArray, list[TextInfo]]:
    """Compute the token vectors of n texts, or a dict per text with its token vectors, ids and sentence vector.

    Parameters
    ----------
    task : EncodeTask
    texts : sequence of n str
    width : int, optional
        Return dicts, each with a sentence vector of this length. This takes a second forward.

    Returns
    -------
    list of n ndarrays of shape (S, H'), or of n dicts
        H' is the recipe's width.
    n_truncated : int ndarray of shape (n,)
        Tokens of each text that were cut off.
    list of n TextInfo
        Empty if `with_info` of the task is False.

    Raises
    ------
    TypeError, ValueError
        As `encode_texts`.
    """
    result, n_truncated, info = list[Any](), list[int](), list[TextInfo]()
    prompt_length = task.windows.num_prompt_tokens
    check_texts(texts)
    for _, groups in task.windows.of(texts, range(len(texts)), exact=task.exact):
        n_truncated += (count_tokens(group)[1] for group in groups)
        info += map(task.windows.describe, groups) if task.with_info else ()
        encodings = [group[0] for group in groups]
        tokens = [vectors.view(Scores) for vectors in token_vectors(task.model, task.recipe, encodings)]
        if width is None:
            result += tokens
            continue
        for encoding, vectors, sentence in zip(encodings, tokens, _sentence_vectors(task, groups), strict=True):
            result.append(
                {
                    "input_ids": encoding.ids,
                    "token_type_ids": encoding.token_types,
                    "attention_mask": np.ones(len(encoding), dtype=np.int64),
                    "token_embeddings": vectors,
                    "sentence_embedding": sentence[:width],
                    "modality": "text",
                    **({"prompt_length": prompt_length} if prompt_length else {}),
                }
            )
    return result, np.array(n_truncated, dtype=np.int64), info


def _sentence_vectors(task: EncodeTask, groups: list[list[Encoding]]) -> FloatArray:
    """Compute one vector per text from its windows, and run the modules after the pooling: (texts, widths[-1])."""
    flat = [window for group in groups for window in group]
    pooled = pool_encodings(task.model, task.recipe, flat, task.windows.num_prompt_tokens)
    if len(flat) > len(groups):
        pooled = task.windows.average(pooled, groups)
    return task.pipeline.finish(pooled)
