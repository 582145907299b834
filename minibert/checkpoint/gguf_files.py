"""The files of a model that a GGUF file stands for: they are made of its metadata, and none is written.

Ollama keeps GGUF files under the name of their digest; `ollama_file` finds one by the name that Ollama gives a model.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minibert._utils.files import MadeFile, is_plain_name, is_regular_file, read_json_object
from minibert._utils.reporting import warn_caller
from minibert.checkpoint.gguf import Gguf, read_gguf
from minibert.checkpoint.hub import WEIGHTS
from minibert.errors import ModelFormatError

OLLAMA = "ollama:"
"""What the name of a model of Ollama begins with in minibert."""

_POOLING = {1: "mean", 2: "cls", 3: "lasttoken"}
_SPECIAL = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}
_CLASSES = {"bert": "BertTokenizer", "t5": "XLMRobertaTokenizer", "roberta-bpe": "RobertaTokenizer"}
_CONTROL, _UNUSED = 3, 5  # the types of special tokens, and of tokens that fill the vocabulary up


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as GGUF does; the names of Ollama's files do not say it."""
    if os.path.isfile(path):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return file.read(4) == b"GGUF"
    return False


class GgufFiles:
    """The files of a model that a GGUF file holds, for `ModelFiles`; its weights are the file itself."""

    def __init__(self, path: Path, name: str = "") -> None:
        self._path, self._gguf = path, read_gguf(path)
        self._made: dict[str, Path] = {WEIGHTS: path}
        self._name, self.source = name or str(path), f"{name} (file {path})" if name else f"file {path}"

    def find(self, filename: str, *, needed: bool = False) -> Path | None:
        """Return the file itself for the weights, a made file for settings, or None."""
        if filename in _MAKERS and filename not in self._made:
            try:
                content = _MAKERS[filename](self._gguf)
                if content and filename == "modules.json":
                    _warn(self._name, _config(self._gguf)["max_position_embeddings"])
            except (ValueError, KeyError, TypeError, IndexError) as error:
                what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
                raise ModelFormatError(
                    f"{self._path} cannot be used: {what}. Use another file of the model."
                ) from error
            if content is not None:
                self._made[filename] = made = MadeFile(self._path, filename)
                made.content = json.dumps(content).encode()
        return self._made.get(filename)

    def names(self, prefix: str) -> list[str]:
        """Name the file itself: nothing else is there."""
        return [] if prefix else [self._path.name]


@functools.cache
def _warn(name: str, limit: int) -> None:
    """Say once for each file what it does not hold."""
    warn_caller(
        f"{name}: a GGUF does not hold max_seq_length (texts are cut at {limit} tokens), modules such as Dense and "
        "LayerNorm (vectors are scaled to length 1) and hidden_act (the usual one is computed). If the original model "
        "has others, its vectors differ."
    )


# --- the content of the files -----------------------------------------------------------------------------------------


def _config(gguf: Gguf) -> dict[str, Any]:
    """Make config.json: sizes are those of the tensors, because the metadata can be that of another model."""
    kind, shapes = gguf.model_type, {name: tensor.shape for name, tensor in gguf.tensors.items()}
    vocab_size, hidden_size = shapes["token_embd.weight"]
    layers = sum(name.endswith(".attn_output.weight") for name in shapes)
    for key, size in (("embedding_length", hidden_size), ("block_count", layers)):
        if gguf.of_model(key) != size:
            raise ValueError(f"its tensors have {key} {size}, its metadata {gguf.of_model(key)}: heads are not known")
    config = {
        "model_type": kind,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": gguf.of_model("attention.head_count"),
        "hidden_dim" if kind == "distilbert" else "intermediate_size": shapes["blk.0.ffn_down.weight"][1],
        "layer_norm_eps": _eps(gguf),
        "pad_token_id": gguf.metadata.get("tokenizer.ggml.padding_token_id", 0),
        "type_vocab_size": shapes.get("token_types.weight", (1,))[0],
    }
    if kind in ("bert", "distilbert"):
        config["max_position_embeddings"] = shapes["position_embd.weight"][0]
    else:
        config["max_position_embeddings"] = gguf.of_model("context_length")
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": gguf.of_model("rope.freq_base")}
    if kind == "eurobert":
        config |= {"num_key_value_heads": gguf.of_model("attention.head_count_kv"), "rms_norm_eps": _eps(gguf)}
    elif kind == "modernbert":
        local = {"rope_type": "default", "rope_theta": gguf.of_model("rope.freq_base_swa")}
        config["rope_parameters"] = {"full_attention": config["rope_parameters"], "sliding_attention": local}
        config["local_attention"] = gguf.of_model("attention.sliding_window")
        config["global_attn_every_n_layers"] = gguf.of_model("attention.sliding_window_pattern")
        config["norm_eps"] = _eps(gguf)
    if rows := shapes.get("cls.output.weight"):
        config["architectures"] = [f"{'DistilBert' if kind == 'distilbert' else 'Bert'}ForSequenceClassification"]
        config["id2label"] = {i: f"LABEL_{i}" for i in range(rows[0])}
        with contextlib.suppress(KeyError):
            config["id2label"] = dict(enumerate(gguf.of_model("classifier.output_labels")))
    return config


def _eps(gguf: Gguf) -> float:
    """Return layer_norm_eps, which has 32 bits in the file; llama.cpp calls that of ModernBERT RMSNorm's."""
    try:
        eps = gguf.of_model("attention.layer_norm_epsilon")
    except KeyError:
        eps = gguf.of_model("attention.layer_norm_rms_epsilon")
    return float(f"{eps:.6g}")


def _tokens(gguf: Gguf) -> tuple[str, list[str]]:
    """Return the class of transformers that has such a tokenizer, and its tokens."""
    model, tokens = gguf.metadata["tokenizer.ggml.model"], gguf.metadata["tokenizer.ggml.tokens"]
    model = gguf.metadata["tokenizer.ggml.pre"] if model == "gpt2" else model
    if model not in _CLASSES:
        raise ValueError(f"its tokenizer is {model!r}; minibert reads {', '.join(_CLASSES)}")
    types = gguf.metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    count = len(tokens)
    while count and types[count - 1] == _UNUSED and tokens[count - 1].endswith(f"[PAD{count - 1}]"):
        count -= 1
    if model == "bert":
        return _CLASSES[model], [_word(token, types[i]) for i, token in enumerate(tokens[:count])]
    return _CLASSES[model], tokens[:count]


def _word(token: str, kind: int) -> str:
    """Return a word as WordPiece has it: llama.cpp marks the begin of a word, and not what follows."""
    if token.startswith("▁"):
        return token[1:]
    return token if kind == _CONTROL or re.fullmatch(r"\[.+\]", token) else f"##{token}"


def _tokenizer_config(gguf: Gguf) -> dict[str, Any]:
    named, tokens = _tokens(gguf)
    ids = {name: gguf.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL.items()}
    ids |= {name: ids[other] for name, other in (("cls", "bos"), ("sep", "eos")) if ids[name] is None}
    is_bert = named == "BertTokenizer"
    kept = {
        name: place for name, place in ids.items() if place is not None and not (is_bert and name in ("bos", "eos"))
    }
    settings = {"tokenizer_class": named, **{f"{name}_token": tokens[place] for name, place in kept.items()}}
    if is_bert:
        # Older files do not say it. A lower-casing tokenizer has no use for words with capital letters.
        lower = not any(re.match("(##)?[A-Z]", token) for token in tokens)
        settings["do_lower_case"] = gguf.metadata.get("tokenizer.ggml.normalizer.lowercase", lower)
        settings["strip_accents"] = gguf.metadata.get("tokenizer.ggml.normalizer.strip_accents")
        settings["tokenizer_class"] = "DistilBertTokenizer" if gguf.model_type == "distilbert" else named
    return settings


def _tokenizer(gguf: Gguf) -> dict[str, Any]:
    """Make tokenizer.json; what the class adds is not in it."""
    (named, tokens), normalizer = _tokens(gguf), None
    model: dict[str, Any] = {"type": "WordPiece", "vocab": {token: place for place, token in enumerate(tokens)}}
    model |= {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    if named == "RobertaTokenizer":
        model = {"type": "BPE", "vocab": model["vocab"], "merges": gguf.metadata["tokenizer.ggml.merges"]}
    elif named == "XLMRobertaTokenizer":
        unknown, scores = (gguf.metadata[f"tokenizer.ggml.{key}"] for key in ("unknown_token_id", "scores"))
        model = {"type": "Unigram", "vocab": [*zip(tokens, scores, strict=False)], "unk_id": unknown}
        if table := gguf.metadata.get("tokenizer.ggml.precompiled_charsmap"):
            normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(table)).decode()}
    return {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "model": model}


def _pooling(gguf: Gguf) -> dict[str, Any] | None:
    with contextlib.suppress(KeyError):
        return {"pooling_mode": _POOLING[gguf.of_model("pooling_type")]}
    return None


def _modules(gguf: Gguf) -> list[dict[str, str]] | None:
    """Make modules.json; None for a model without a pooling. Ollama and llama.cpp scale vectors to length 1."""
    if _pooling(gguf) is None:
        return None
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    return [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]


_MAKERS: Mapping[str, Callable[[Gguf], Any]] = {
    "config.json": _config,
    "tokenizer.json": _tokenizer,
    "tokenizer_config.json": _tokenizer_config,
    "modules.json": _modules,
    "1_Pooling/config.json": _pooling,
}


# --- the names of Ollama ----------------------------------------------------------------------------------------------


def ollama_file(name: str) -> Path:
    """Return the GGUF file of a model that Ollama has: "ollama:all-minilm", "ollama:org/model:tag" or with a host.

    Raises
    ------
    ValueError
        Ollama does not have it.
    ModelFormatError
        A file of Ollama is missing or damaged, or the model is not one GGUF file.
    """
    model, _, tag = name.removeprefix(OLLAMA).partition(":")
    before = ("registry.ollama.ai", "library")[: max(0, 2 - model.count("/"))]
    manifest = "/".join(("manifests", *before, model, tag or "latest"))
    stated = os.environ.get("OLLAMA_MODELS")
    folders = [Path(stated)] if stated else [Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    folder = next((one for one in folders if is_plain_name(manifest) and is_regular_file(one / manifest)), None)
    if folder is None:
        raise ValueError(
            f"{name!r} is not among the models of Ollama in {' and '.join(map(str, folders))}; `ollama list` names "
            f"them. Fetch it with `ollama pull {name.removeprefix(OLLAMA)}`, or set OLLAMA_MODELS."
        )
    layers = read_json_object(folder / manifest).get("layers")
    for layer in layers if isinstance(layers, list) else ():
        match layer:
            case {"mediaType": "application/vnd.ollama.image.model", "digest": str(digest)}:
                blob = folder / "blobs" / digest.replace(":", "-")
                if re.fullmatch("sha256:[0-9a-f]{64}", digest) and is_gguf(blob):
                    return blob
    raise ModelFormatError(f"{folder / manifest} names no GGUF file that is there. Fetch it again with `ollama pull`.")
