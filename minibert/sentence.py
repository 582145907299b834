"""`SentenceTransformer`: texts in, one vector each out, as sentence-transformers computes them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.batch import PackedBatch
from minibert.errors import ModelFormatError
from minibert.files import read_json, read_json_object
from minibert.hub import DEFAULT_MODEL, ModelFiles, locate
from minibert.models import BertModel
from minibert.ops import FloatArray
from minibert.texts import refuse_lone_surrogate
from minibert.tokenizer import BertTokenizer
from minibert.vectors import POOLING, normalize

__all__ = ["SentenceTransformer"]

_TRUNCATION = ("warn", "error", "silent")

# Texts tokenized together: bounds the memory of a large corpus's encodings.
_TEXTS_PER_WINDOW = 1024
# Tokens whose last hidden state is held before it is pooled.
_TOKENS_PER_STEP = 8192

# Hub ids without an organisation that are not sentence-transformers' own.
_PLAIN_BERT = (
    "bert-base-uncased",
    "bert-base-cased",
    "bert-large-uncased",
    "bert-large-cased",
    "bert-base-multilingual-uncased",
    "bert-base-multilingual-cased",
    "bert-base-chinese",
    "bert-base-german-cased",
)


class SentenceTransformer:
    """A sentence-embedding model read from its modules.json: Transformer, Pooling (mean or cls) and Normalize.

    Parameters
    ----------
    name_or_path : str or path
        A folder, or a hub id; short ids such as "all-MiniLM-L6-v2" are sentence-transformers' own. A model without
        modules.json gets mean pooling, with a warning.
    revision, token, local_files_only
        As in `BertModel.from_pretrained`.
    cache_folder : path, optional
        As its cache_dir.
    backend, num_threads
        As in `BertModel.from_pretrained`.

    Attributes
    ----------
    model : BertModel
    tokenizer : BertTokenizer
    max_seq_length : int
        Tokens of one text, special tokens included; more are cut. Settable, up to the model's positions.

    Raises
    ------
    ModelFormatError
        A module, pooling mode or file is not one minibert implements; it is named.
    DownloadError
        The model is not here and could not be fetched.
    """

    def __init__(
        self,
        name_or_path: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        revision: str | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        backend: str | None = None,
        num_threads: int | None = None,
    ) -> None:
        files = locate(
            _full_name(name_or_path),
            revision=revision,
            cache_dir=cache_folder,
            token=token,
            local_files_only=local_files_only,
        )
        modules = _read_modules(files)
        self._pooling, self._normalizes, width = _read_pipeline(files, modules)
        self.prompts, self.default_prompt_name = _read_prompts(files)
        if modules and modules[0]["path"]:
            files = files.subfolder(modules[0]["path"])
        settings = _read_settings(files, "sentence_bert_config.json")
        self.tokenizer = BertTokenizer.from_files(files)
        _check_settings(settings, self.tokenizer)
        self.model = BertModel.from_files(
            files, output_hidden_states=False, add_pooling_layer=False, backend=backend, num_threads=num_threads
        )
        if width not in (None, self.model.config.hidden_size):
            raise ModelFormatError(
                f"{files.source}: the Pooling config is for vectors of {width}, the model's are of "
                f"{self.model.config.hidden_size} (hidden_size)."
            )
        limits = [self.tokenizer.model_max_length, self.model.config.max_position_embeddings]
        self._max_seq_length = min(limit for limit in (settings.get("max_seq_length"), *limits) if limit is not None)

    @property
    def max_seq_length(self) -> int:
        """Tokens of one text, special tokens included."""
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        most = self.model.config.max_position_embeddings
        least = self.tokenizer.num_special_tokens_to_add()
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(
                f"max_seq_length={value!r}; expected an int, {least} (the special tokens) to {most} "
                "(max_position_embeddings)."
            )
        self._max_seq_length = value

    def get_embedding_dimension(self) -> int:
        """Return the length of the vectors `encode` gives."""
        return self.model.config.hidden_size

    def encode(
        self,
        inputs: str | Sequence[str] | npt.NDArray[np.str_],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool = False,
        truncation: str = "warn",
    ) -> FloatArray:
        """Turn texts into vectors.

        Parameters
        ----------
        inputs : str or sequence of str
        prompt_name : str, optional
            A key of `prompts`; its text is put before each input. Default: the model's default prompt, if it has one.
        prompt : str, optional
            A text to put before each input; wins over `prompt_name`.
        normalize_embeddings : bool
            Scale the vectors to length 1 even where the model does not.
        truncation : {"warn", "error", "silent"}
            What to do when a text has more than `max_seq_length` tokens, before the rest is cut.

        Returns
        -------
        ndarray of shape (H,) for a str, (len(inputs), H) for a sequence; float32

        Raises
        ------
        TypeError, ValueError
            An input is not a text (its index is named), or is too long with truncation="error".
        """
        if truncation not in _TRUNCATION:
            raise ValueError(f"truncation={truncation!r}; expected one of {', '.join(map(repr, _TRUNCATION))}.")
        single = isinstance(inputs, str)
        texts = [inputs] if isinstance(inputs, str) else inputs
        unusual = isinstance(texts, bytes | np.ndarray) and np.ndim(texts) != 1
        if not isinstance(texts, Sequence | np.ndarray) or unusual:
            raise TypeError(f"inputs is a {type(inputs).__name__}; expected a str or a sequence of str.")
        prefix = self._resolve_prompt(prompt, prompt_name)
        vectors = np.empty((len(texts), self.get_embedding_dimension()), dtype=np.float32)
        cut: list[int] = []
        for first in range(0, len(texts), _TEXTS_PER_WINDOW):
            window = list(texts[first : first + _TEXTS_PER_WINDOW])
            vectors[first : first + len(window)] = self._encode_window(window, first, prefix, truncation, cut)
        if cut and truncation == "warn":
            warnings.warn(
                f"{len(cut)} of {len(texts)} texts have more than {self.max_seq_length} tokens and were cut "
                f"(the first is at index {cut[0]}). Silence this with truncation='silent'.",
                stacklevel=2,
            )
        if normalize_embeddings and not self._normalizes:
            vectors = normalize(vectors)
        return vectors[0] if single else vectors

    def _encode_window(self, texts: list[str], first: int, prefix: str, truncation: str, cut: list[int]) -> FloatArray:
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"inputs[{first + index}] is a {type(text).__name__}; expected a str.")
            refuse_lone_surrogate(text, f"inputs[{first + index}]")
        encodings = self.tokenizer.encodings([prefix + text for text in texts], max_length=self.max_seq_length)
        cut += [first + index for index, encoding in enumerate(encodings) if encoding.n_truncated]
        if cut and truncation == "error":
            tokens = self.max_seq_length + encodings[cut[0] - first].n_truncated
            raise ValueError(
                f"inputs[{cut[0]}] has {tokens} tokens, the limit is {self.max_seq_length} (max_seq_length). "
                "Shorten it, or allow cutting: truncation='warn'."
            )
        batch = PackedBatch.from_sequences([e.ids for e in encodings], [e.token_types for e in encodings])
        last = self.model.config.num_hidden_layers
        pooled = []
        for _, step in batch.steps(_TOKENS_PER_STEP):
            hidden_state = self.model.forward_packed(step, hidden_states=(last,)).hidden_states[last]
            pooled.append(self._pooling(hidden_state, step.cu_seqlens))
        vectors = np.concatenate(pooled)
        return normalize(vectors) if self._normalizes else vectors

    def _resolve_prompt(self, prompt: str | None, prompt_name: str | None) -> str:
        if prompt is not None:
            if not isinstance(prompt, str):
                raise TypeError(f"prompt is a {type(prompt).__name__}; expected a str.")
            return prompt
        name = prompt_name if prompt_name is not None else self.default_prompt_name
        if name is None:
            return ""
        if not isinstance(name, str) or name not in self.prompts:
            raise ValueError(f"prompt_name={name!r}; this model has {', '.join(map(repr, self.prompts)) or 'none'}.")
        return self.prompts[name]

    def __repr__(self) -> str:
        pooling = self._pooling.__name__.removesuffix("_pooling")
        steps = f"{self.model!r}, {pooling} pooling{', normalize' if self._normalizes else ''}"
        return f"SentenceTransformer({steps}, max_seq_length={self.max_seq_length})"


def _full_name(name_or_path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Put sentence-transformers' organisation before a short hub id, as that library does."""
    short = isinstance(name_or_path, str) and name_or_path and not set(name_or_path) & set("/\\.")
    if short and name_or_path not in _PLAIN_BERT and not os.path.exists(name_or_path):
        return f"sentence-transformers/{name_or_path}"
    return name_or_path


def _read_settings(files: ModelFiles, name: str) -> dict[str, Any]:
    path = files.find(name)
    return {} if path is None else read_json_object(path)


def _read_prompts(files: ModelFiles) -> tuple[dict[str, str], str | None]:
    """Read the prompts by name and the name of the default one."""
    name = "config_sentence_transformers.json"
    settings = _read_settings(files, name)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    texts = [*prompts.values()] if isinstance(prompts, dict) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise ModelFormatError(f"{files.source}: {name} must hold prompts as texts by name, not {prompts!r}.")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise ModelFormatError(f"{files.source}: {name} has default_prompt_name={default!r}, which is not a prompt.")
    return prompts, default


def _read_modules(files: ModelFiles) -> list[dict[str, str]]:
    """Read modules.json as data: each module's kind (the last word of its type) and path. Nothing is imported."""
    path = files.find("modules.json")
    if path is None:
        warnings.warn(
            f"{files.source} has no modules.json: it is not a sentence-embedding model. Using mean pooling over the "
            "last hidden state; cosines of a plain BERT say little about meaning.",
            stacklevel=4,
        )
        return []
    listed = read_json(path)
    modules = []
    for entry in listed if isinstance(listed, list) else [listed]:
        kind, folder = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(folder, str):
            raise ModelFormatError(f"{path} must hold a list of objects with a type and a path; found {entry!r}.")
        if not kind.startswith("sentence_transformers."):
            raise ModelFormatError(f"{path} asks for {kind}: code of the repository's own, which is never run.")
        if folder.startswith(("/", "\\")) or ".." in folder.replace("\\", "/").split("/"):
            raise ModelFormatError(f"{path} has the path {folder!r}, which leaves the model.")
        modules.append({"kind": kind.rpartition(".")[2], "path": folder.strip("/").removeprefix(".")})
    return modules


def _read_pipeline(files: ModelFiles, modules: list[dict[str, str]]) -> tuple[Callable[..., FloatArray], bool, Any]:
    """Return the pooling function, whether Normalize follows, and the width stated for the vectors (None if it is not).

    Any other sequence of modules is refused by name.
    """
    if not modules:
        return POOLING["mean"], False, None
    kinds = [module["kind"] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelFormatError(
            f"{files.source}: modules.json lists {', '.join(kinds) or 'nothing'}; minibert implements "
            "Transformer, Pooling and then, optionally, Normalize."
        )
    name = f"{modules[1]['path']}/config.json"
    config = read_json_object(files.require(name))
    modes = config.get("pooling_mode")
    if modes is None:
        prefix = "pooling_mode_"
        modes = [key.removeprefix(prefix) for key, on in config.items() if key.startswith(prefix) and on is True]
    modes = [modes] if isinstance(modes, str) else modes
    names = {"mean_tokens": "mean", "cls_token": "cls"}
    chosen = [names.get(str(mode), mode) for mode in modes] if isinstance(modes, list) else [modes]
    if len(chosen) != 1 or not isinstance(chosen[0], str) or chosen[0] not in POOLING:
        raise ModelFormatError(
            f"{files.source}: {name} asks for the pooling {', '.join(map(str, chosen)) or 'none'}; minibert "
            f"implements one of {', '.join(POOLING)}."
        )
    if config.get("include_prompt", True) is not True:
        raise ModelFormatError(f"{files.source}: {name} has include_prompt=false, which is not implemented.")
    width = config.get("embedding_dimension", config.get("word_embedding_dimension"))
    return POOLING[chosen[0]], "Normalize" in kinds, width


def _check_settings(settings: dict[str, Any], tokenizer: BertTokenizer) -> None:
    """Refuse what sentence_bert_config.json may ask for beyond the last hidden state of a text."""
    limit = settings.get("max_seq_length")
    least = tokenizer.num_special_tokens_to_add()
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < least):
        raise ModelFormatError(f"sentence_bert_config.json: max_seq_length={limit!r} must be an int, at least {least}.")
    if settings.get("do_lower_case") and not tokenizer.do_lower_case:
        raise ModelFormatError("sentence_bert_config.json lowercases for a cased tokenizer, which is not implemented.")
    for name, only in (("transformer_task", "feature-extraction"), ("module_output_name", "token_embeddings")):
        if settings.get(name, only) != only:
            raise ModelFormatError(f"sentence_bert_config.json: {name}={settings[name]!r} is not implemented.")
