"""The lists of hostile cases: damaged files of a model, unusual corpora.

    python -m tests.support.hostile_cases LIST NUMBER...

runs cases in processes of their own, and prints a line of JSON for each.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minibert import SentenceTransformer
from minibert.checkpoint import files as checkpoint_files
from minibert.checkpoint.files import DEFAULT_MODEL
from tests.support.checkpoints import SPECIAL_TOKENS, VOCABULARY
from tests.support.hostile import Case, FaultError, damaged, drive, mutated, text_of

TEXTS = ("the cat sat", "a", "", "héllo wörld, the 2nd man by the river bank", "[MASK] ## ＡＢ 😀", "cat " * 40)
_SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}


# --- the intact model -------------------------------------------------------------------------------------------------


def make_model(folder: Path) -> Path:
    """Make MiniLM's files with a vocabulary of about 180 tokens and small random weights; sharded/ has it in shards."""
    from safetensors.numpy import save_file

    files = checkpoint_files.locate(DEFAULT_MODEL)
    for name in (
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
    ):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(files.require(name).read_bytes())
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling | {"word_embedding_dimension": 24}))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_bytes(files.require(name).read_bytes())

    tokenizer = json.loads(files.require("tokenizer.json").read_text(encoding="utf-8"))
    stored = tokenizer["model"]["vocab"]
    words = [*SPECIAL_TOKENS, *(word for word in dict.fromkeys(VOCABULARY) if word in stored and word[0] != "[")]
    vocab = {word: number for number, word in enumerate(dict.fromkeys([*words, "[", "]"]))}
    tokenizer["model"]["vocab"] = vocab
    for token in tokenizer["added_tokens"]:
        token["id"] = vocab[token["content"]]
    for token in tokenizer["post_processor"]["special_tokens"].values():
        token["ids"] = [vocab[token["id"]]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocab), encoding="utf-8")

    config = json.loads(files.require("config.json").read_text()) | _SIZES | {"vocab_size": len(vocab)}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = _random_tensors(config)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shards = folder / "sharded"
    shards.mkdir()
    names = sorted(tensors)
    weight_map = {name: f"model-0000{place % 3 + 1}-of-00003.safetensors" for place, name in enumerate(names)}
    for shard in sorted(set(weight_map.values())):
        save_file({name: tensors[name] for name in names if weight_map[name] == shard}, shards / shard)
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())}, "weight_map": weight_map}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _random_tensors(config: dict[str, Any]) -> dict[str, np.ndarray]:
    H, F = config["hidden_size"], config["intermediate_size"]
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], H),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], H),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], H),
        "pooler.dense.weight": (H, H),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        path = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            shapes[f"{path}.attention.self.{part}.weight"] = (H, H)
        shapes[f"{path}.attention.output.dense.weight"] = (H, H)
        shapes[f"{path}.intermediate.dense.weight"] = (F, H)
        shapes[f"{path}.output.dense.weight"] = (H, F)
        norms += [f"{path}.attention.output.LayerNorm", f"{path}.output.LayerNorm"]
    tensors = {name: 0.3 * rng.standard_normal(shape) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        if not name.startswith("embeddings."):
            tensors[name.replace(".weight", ".bias")] = 0.1 * rng.standard_normal(shape[0])
    for name in norms:
        tensors |= {f"{name}.weight": 1 + 0.1 * rng.standard_normal(H), f"{name}.bias": 0.1 * rng.standard_normal(H)}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


@functools.cache
def intact() -> Path:
    """Return the folder of the intact model; the driver makes it once, before it forks."""
    return make_model(Path(tempfile.mkdtemp(prefix="minibert-hostile-")))


def copy_model(folder: Path) -> Path:
    """Copy the model, so that the case may damage its files."""
    shutil.copytree(intact(), folder / "model")
    return folder / "model"


def check_model(folder: str | Path, **options: Any) -> None:
    """Load a model and compute; the vectors must be finite, of the right shape, and the same alone and in a batch."""
    model = SentenceTransformer(folder, num_threads=1, **options)
    vectors = model.encode(TEXTS, truncation="silent")
    width = model.get_sentence_embedding_dimension()
    if vectors.shape != (len(TEXTS), width) or not np.isfinite(vectors).all():
        raise FaultError(f"WRONG NUMBER: {vectors.shape}, expected width {width}; finite: {np.isfinite(vectors).all()}")
    for place in (0, 3):
        if not np.array_equal(model.encode(TEXTS[place], truncation="silent"), vectors[place]):
            raise FaultError(f"WRONG NUMBER: text {place} has another vector alone than in a batch")
    inputs = model.tokenizer(list(TEXTS), padding=True, truncation=True, return_tensors="np")
    known = set(
        model.tokenizer.vocab.values()
    )  # ids above its length are correct, because a damaged vocabulary may have gaps
    for ids in inputs["input_ids"]:
        if not known.issuperset(int(token_id) for token_id in ids):
            raise FaultError("WRONG NUMBER: a token id is not in the vocabulary")
    if max(known) >= model.model.config.vocab_size:
        raise FaultError("WRONG NUMBER: the vocabulary has an id that the model does not have")
    model.tokenizer.decode(inputs["input_ids"][3])
    model.tokenizer(TEXTS[0], TEXTS[3])
    states = model.encode(TEXTS[0], output_value="token_embeddings")
    if not np.isfinite(states).all():
        raise FaultError("WRONG NUMBER: the vectors of tokens are not finite")


# --- tokenizer.json ---------------------------------------------------------------------------------------------------

_REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
_SPACE = {"add_prefix_space": True}
_STEPS: dict[str, tuple[Any, ...]] = {
    "normalizer": (
        *({"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")),
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": True,
            "lowercase": True,
        },
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Prepend", "prepend": "x" * 5000},
        _REPLACE,
        {"type": "Replace", "pattern": {"Regex": "a*"}, "content": "b" * 50},
        {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""},
        {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100_000},
        {"type": "Precompiled", "precompiled_charsmap": "/" * 86},
        {"type": "Precompiled", "precompiled_charsmap": ""},
        {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAB4AA=="},
    ),
    "pre_tokenizer": (
        *({"type": name} for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts")),
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "Digits", "individual_digits": True},
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "CharDelimiterSplit", "delimiter": "a"},
        {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed", "invert": True},
        {"type": "FixedLength", "length": 0},
    ),
    "post_processor": (
        {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        {"type": "BertProcessing", "sep": ["[SEP]", 2**31], "cls": ["[CLS]", 2**32 - 1]},
        {
            "type": "RobertaProcessing",
            "sep": ["[SEP]", 3],
            "cls": ["a", 9],
            "trim_offsets": True,
            "add_prefix_space": True,
        },
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    ),
    "decoder": (
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "Strip", "content": "a", "start": 2**31, "stop": 1000},
        *({"type": name} for name in ("ByteFallback", "Fuse")),
        _REPLACE,
    ),
}
_NESTED = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
_NUMBERS = (-1, 0, 1, 2, 3, 7, 180, 1000, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**64)


def tokenizer_case(number: int, folder: Path) -> bool:
    """Damage tokenizer.json, load the model, embed texts."""
    chance = random.Random(f"tokenizer {number}")
    model = copy_model(folder)
    path = model / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    kind = chance.randrange(10)
    if kind == 0:
        path.write_bytes(damaged(path.read_bytes(), chance))
    else:
        if kind in (1, 2):
            _put_steps(content, chance)
        elif kind == 3:
            _put_numbers(content, chance)
        elif kind == 4:
            _put_model(content, chance)
        elif kind == 5:
            _edit_vocabulary(content["model"]["vocab"], chance)
        if kind > 5 or chance.random() < 0.4:
            part = chance.choice((None, *content))
            if part is None:
                content = mutated(content, chance)
            else:
                content[part] = mutated(content[part], chance)
        path.write_bytes(text_of(content))
    check_model(model)
    return True


def _put_steps(content: dict[str, Any], chance: random.Random) -> None:
    name = chance.choice(list(_NESTED))
    steps = chance.choices(_STEPS[name], k=chance.choice((1, 1, 2, 3, 5, 8, 15, 17)))
    if chance.random() < 0.3:
        steps = [steps[0]] * chance.choice((2, 3, 10, 15, 36))
    root = steps[0] if len(steps) == 1 else {"type": "Sequence", _NESTED[name]: steps}
    for _ in range(chance.choice((0,) * 12 + (1, 1, 5, 15, 100))):
        root = {"type": "Sequence", _NESTED[name]: [root]}
    content[name] = root


def _put_numbers(content: dict[str, Any], chance: random.Random) -> None:
    """Change ids, and token types of the template."""
    template = content["post_processor"]
    value = chance.choice(_NUMBERS)
    kind = chance.randrange(5)
    if kind == 0:
        for piece in template["single"]:
            next(iter(piece.values()))["type_id"] = value
    elif kind == 1:
        for piece in template[chance.choice(("single", "pair"))]:
            next(iter(piece.values()))["type_id"] = chance.choice(_NUMBERS)
    elif kind == 2:
        chance.choice(list(template["special_tokens"].values()))["ids"] = [value] * chance.choice((1, 1, 2, 16, 17))
    elif kind == 3:
        template["single"] *= chance.choice((2, 5, 6, 1000))
    else:
        chance.choice(content["added_tokens"])["id"] = value


def _put_model(content: dict[str, Any], chance: random.Random) -> None:
    """Replace WordPiece by another kind of model over the same words."""
    words = list(content["model"]["vocab"])
    models: tuple[dict[str, Any], ...] = (
        {"type": "WordLevel", "vocab": content["model"]["vocab"], "unk_token": "[UNK]"},
        {
            "type": "Unigram",
            "vocab": [[word, -float(n)] for n, word in enumerate(words)],
            "unk_id": 1,
            "byte_fallback": True,
        },
        {"type": "Unigram", "vocab": [[word, chance.choice((0, -1e308, 1e308))] for word in words], "unk_id": 2**40},
        {"type": "BPE", "vocab": content["model"]["vocab"], "merges": [["c", "a"], ["t", "h"]], "unk_token": "[UNK]"},
        {"type": "BPE", "vocab": content["model"]["vocab"], "merges": ["a b c"], "dropout": 0.5, "unk_token": "[UNK]"},
        content["model"] | {"continuing_subword_prefix": chance.choice(("", "a", "##" * 100))},
        content["model"] | {"max_input_chars_per_word": chance.choice((0, 1, 10**6, 2**64 - 1))},
        content["model"] | {"unk_token": chance.choice(("", "x", "the"))},
    )
    content["model"] = chance.choice(models)


def _edit_vocabulary(vocab: dict[str, Any], chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 5, 100))):
        word = chance.choice(list(vocab))
        kind = chance.randrange(5)
        if kind == 0:
            del vocab[word]
        elif kind == 1:
            vocab[word] = chance.choice(_NUMBERS)
        elif kind == 2:
            vocab[chance.choice(("", "##", " ", "a" * 999, "a" * 50_000, "é", "\0", "[CLS] "))] = vocab.pop(word)
        elif kind == 3:
            other = chance.choice(list(vocab))
            vocab[word], vocab[other] = vocab[other], vocab[word]
        else:
            vocab[f"new {chance.random()}"] = vocab[word]


# --- safetensors ------------------------------------------------------------------------------------------------------

_DTYPES = ("F32", "F16", "BF16", "F64", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "f32", "", "F4", "I4")


def safetensors_case(number: int, folder: Path) -> bool:
    """Damage model.safetensors, or a shard or the index of a sharded model, load the model, embed texts."""
    chance = random.Random(f"safetensors {number}")
    model = copy_model(folder)
    path = model / "model.safetensors"
    if chance.random() < 0.25:
        path.unlink()
        for shard in (model / "sharded").iterdir():
            shard.rename(model / shard.name)
        path = chance.choice(sorted(model.glob("model*safetensors*")))
        if chance.random() < 0.7:
            path = model / "model.safetensors.index.json"
    if path.suffix == ".json":
        _damage_json(path, chance)
    elif chance.random() < 0.05:
        _put_special_file(path, chance)
    else:
        _damage_tensors(path, chance)
    check_model(model)
    return True


def _damage_json(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(damaged(data, chance) if chance.random() < 0.15 else text_of(mutated(json.loads(data), chance)))


def _damage_tensors(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    names = [name for name in header if name != "__metadata__"]
    name = chance.choice(names)
    first, last = header[name]["data_offsets"]
    kind = chance.randrange(9)
    if kind == 0:
        boundaries = [
            0,
            7,
            8,
            9,
            8 + length,
            len(data) - 1,
            *(8 + length + header[key]["data_offsets"][1] for key in names),
        ]
        at = chance.choice(boundaries) + chance.choice((-1, 0, 0, 1))
        path.write_bytes(data[: max(0, at)])
        return
    if kind == 1:
        at = chance.randrange(8 + length)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
        return
    if kind == 2:
        wrong = chance.choice((0, 1, length - 1, length + 1, len(data), 2**31, 2**63, 2**64 - 1, 10**8))
        path.write_bytes(wrong.to_bytes(8, "little") + data[8:])
        return
    if kind == 3:
        at = first + 4 * chance.randrange((last - first) // 4)
        value = chance.choice((np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 1e6, -1e6, 1e-45, -0.0))
        span = chance.choice((at + 4, last))
        rest[at:span] = np.full((span - at) // 4, value, np.float32).tobytes()
    elif kind == 4:
        del header[name]
    elif kind == 5:
        header[name]["shape"] = chance.choice(
            (header[name]["shape"][::-1], [], [0], [last], [-1], [2**62, 4], [1] * 70, header[name]["shape"] + [1])
        )
    elif kind == 6:
        header[name]["dtype"] = chance.choice(_DTYPES)
    elif kind == 7:
        header[name]["data_offsets"] = chance.choice(
            (
                [last, first],
                [0, 0],
                [first, last + 4],
                [first + 4, last],
                [0, 2**63],
                header[chance.choice(names)]["data_offsets"],
            )
        )
    else:
        header = mutated(header, chance)
    new = text_of(header)
    path.write_bytes(len(new).to_bytes(8, "little") + new + rest)


# --- the settings -----------------------------------------------------------------------------------------------------

_SETTINGS = (
    *("config.json", "config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "config_sentence_transformers.json", "vocab.txt"),
    "added_tokens.json",
)
# Settings that minibert reads and the intact files do not have.
_MORE: dict[str, dict[str, Any]] = {
    "config.json": {"torch_dtype": "float32", "is_decoder": False, "add_cross_attention": False},
    "1_Pooling/config.json": {"pooling_mode": ["mean", "max"], "include_prompt": True},
    "sentence_bert_config.json": {"query_length": 5, "processing_kwargs": {}, "transformer_task": "feature-extraction"},
    "tokenizer_config.json": {
        "added_tokens_decoder": {"0": {"content": "[PAD]", "special": True}},
        "extra_special_tokens": ["[X]"],
        "truncation_side": "left",
        "strip_accents": None,
        "max_len": 64,
    },
    "config_sentence_transformers.json": {
        "prompts": {"query": "q: ", "document": "", "a": "b"},
        "default_prompt_name": "query",
        "similarity_fn_name": "dot",
        "truncate_dim": 12,
    },
}
_SPECIAL = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/proc/self/mem",
    "/proc/self/maps",
    "/proc/kmsg",
    "/",
)


def settings_case(number: int, folder: Path) -> bool:
    """Damage a file of settings, or vocab.txt, load the model, embed texts."""
    chance = random.Random(f"settings {number}")
    model = copy_model(folder)
    name = chance.choice(_SETTINGS)
    path = model / name
    if name in ("vocab.txt", "added_tokens.json"):
        (model / "tokenizer.json").unlink()
    if name == "added_tokens.json":
        path.write_text(json.dumps({"[X]": 500, "the": 90}))
    if chance.random() < 0.1:
        _put_special_file(path, chance)
    elif name == "vocab.txt":
        path.write_bytes(damaged(path.read_bytes(), chance))
    else:
        if chance.random() < 0.5 and name in _MORE:
            path.write_text(json.dumps(json.loads(path.read_text()) | _MORE[name]))
        if name == "modules.json" and chance.random() < 0.5:
            _put_modules(model, chance)
            path = model / chance.choice(("modules.json", "2_Dense/config.json"))
        _damage_json(path, chance)
    check_model(model)
    return True


def _put_modules(model: Path, chance: random.Random) -> None:
    """Add a Dense module to the intact ones, with its weights."""
    from safetensors.numpy import save_file

    dense = model / "2_Dense"
    dense.mkdir()
    weights = np.random.default_rng(0).standard_normal((8, 24)).astype(np.float32)
    save_file({"linear.weight": weights, "linear.bias": weights[:, 0].copy()}, dense / "model.safetensors")
    settings = {
        "in_features": 24,
        "out_features": 8,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (dense / "config.json").write_text(json.dumps(settings))
    modules = json.loads((model / "modules.json").read_text())
    kind = chance.choice(("Dense", "Dense", "Dense", "LayerNorm", "Normalize", "Dropout"))
    modules.insert(2, {"idx": 2, "name": "2", "path": "2_Dense", "type": f"sentence_transformers.models.{kind}"})
    (model / "modules.json").write_text(json.dumps(modules))


def _put_special_file(path: Path, chance: random.Random) -> None:
    """Put a folder, a pipe, a socket, a device or a broken link in place of a file."""
    path.unlink(missing_ok=True)
    kind = chance.randrange(5)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        with socket.socket(socket.AF_UNIX) as listener:
            there = os.getcwd()
            os.chdir(path.parent)  # the path of a socket may have about 100 characters
            listener.bind(path.name)
            os.chdir(there)
    elif kind == 3:
        path.symlink_to(chance.choice((path.name, "nowhere", "../model")))
    else:
        path.symlink_to(chance.choice([device for device in _SPECIAL if os.path.exists(device)]))


# --- all lists --------------------------------------------------------------------------------------------------------


def _lists() -> dict[str, Callable[[contextlib.ExitStack], Case]]:
    """By name: a function that the driver calls once, before it forks, and that returns the case."""
    from tests.support.hostile_corpora import corpus_case

    def prepared(case: Case) -> Callable[[contextlib.ExitStack], Case]:
        def prepare(_: contextlib.ExitStack) -> Case:
            check_model(intact())  # so that everything is imported and compiled once
            return case

        return prepare

    return {
        "tokenizer.json": prepared(tokenizer_case),
        "safetensors": prepared(safetensors_case),
        "settings": prepared(settings_case),
        "corpus": prepared(corpus_case),
    }


def main(name: str, *numbers: str) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: shutil.rmtree(intact()))
        drive(_lists()[name](stack), map(int, numbers))


if __name__ == "__main__":
    from tests.support import hostile_cases  # by its name, so that this module, and its intact model, exist only once

    hostile_cases.main(*sys.argv[1:])
