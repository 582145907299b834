"""GGUF files: the bits of safetensors and of the package gguf, what a file does not hold, and what is refused."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import minibert
from minibert import BertConfig, BertModel, ModelFormatError, SentenceTransformer
from minibert.checkpoint import table
from minibert.checkpoint.gguf import read_gguf, read_header
from minibert.checkpoint.tensors import read_tensor
from minibert.cli import main
from tests.support.checkpoints import VOCABULARY, random_checkpoint
from tests.support.damage import damaged_bytes
from tests.support.families import family_folder, make, train
from tests.support.gguf_files import (
    ARCHITECTURES,
    Stored,
    gguf_bytes,
    gguf_of,
    llama_names,
    metadata_of,
    random_blocks,
    stored,
)

# The number of a type in a file, and the begin of the SHA-256 of what gguf 0.19.0 makes of 32 `random_blocks`.
TYPES = {
    "Q4_0": (2, "ee4465acf64cbac4"),
    "Q4_1": (3, "946d2817312f5e15"),
    "Q5_0": (6, "53ac9fea4a969b75"),
    "Q5_1": (7, "9483581db1548342"),
    "Q8_0": (8, "9f473b26faae2a13"),
    "Q2_K": (10, "6351357e58e702c5"),
    "Q3_K": (11, "9d3bcc4dfc765c18"),
    "Q4_K": (12, "879157e5124bb7e5"),
    "Q5_K": (13, "b7017ea7881e1681"),
    "Q6_K": (14, "2f4ee6fe0fe6048d"),
    "IQ4_NL": (20, "1d654451b2f73e44"),
}
IDS = np.random.default_rng(0).integers(5, 60, (3, 11))
LOST = pytest.mark.filterwarnings("ignore:.*a GGUF does not hold")


def states(model: Any, ids: np.ndarray = IDS) -> list[np.ndarray]:
    return list(model(ids, output_hidden_states=True).hidden_states)


def small(folder: Path, **sizes: int) -> BertConfig:
    random_checkpoint(folder, **sizes)
    return BertConfig.from_pretrained(folder)


def words_of(folder: Path) -> list[str]:
    return (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()


# --- what is read -----------------------------------------------------------------------------------------------------


def test_minilm_in_float32_is_the_same_model(tmp_path: Path, minilm_folder: Path, minilm: BertModel) -> None:
    path = tmp_path / "minilm.gguf"
    path.write_bytes(gguf_of(minilm_folder, minilm.config, words_of(minilm_folder)))
    ids = np.random.default_rng(1).integers(1000, 30000, (4, 20))
    np.testing.assert_array_equal(states(BertModel.from_pretrained(path), ids), states(minilm, ids))
    with pytest.warns(UserWarning, match=r"max_seq_length \(texts are cut at 512 .*Dense") as caught:
        model = SentenceTransformer(path)
    assert len(caught) == 1
    theirs = SentenceTransformer(minilm_folder)
    texts = ["Hello World", "Café ½ unbelievable [MASK]", "हिन्दी", "a" * 120]
    np.testing.assert_array_equal(model.encode(texts), theirs.encode(texts))
    assert model.tokenizer.vocab == theirs.tokenizer.vocab
    assert model.tokenizer.all_special_tokens == theirs.tokenizer.all_special_tokens
    assert (model.max_seq_length, theirs.max_seq_length) == (512, 256)
    config = BertConfig.from_pretrained(path)
    assert config.layer_norm_eps == 1e-12  # the file has 9.999999960041972e-13
    assert BertModel.from_pretrained(path)(ids).pooler_output is None
    saved = tmp_path / "saved"
    model.save_pretrained(saved)  # this is how to convert a file
    np.testing.assert_array_equal(SentenceTransformer(saved).encode(texts), model.encode(texts))


@pytest.mark.parametrize("name", TYPES)
def test_a_quantised_type_has_the_bits_of_the_package(tmp_path: Path, name: str, monkeypatch: Any) -> None:
    kind, expected = TYPES[name]
    columns = 256 if name.endswith("K") else 32
    (tmp_path / "x.gguf").write_bytes(gguf_bytes({}, {"x": (kind, (32, columns), random_blocks(kind, 32))}))
    array = np.empty((32, columns), np.float32)
    monkeypatch.setattr("minibert.checkpoint.tensors.BUFFER_BYTES", 5 * 4 * columns)
    [tensor] = read_gguf(tmp_path / "x.gguf").tensors.values()
    read_tensor(tensor, array)
    assert hashlib.sha256(array.tobytes()).hexdigest()[:16] == expected
    stored_table = table.StoredTable(tensor)
    rows, places = stored_table.look_up(np.array([3, 31, 3]))
    np.testing.assert_array_equal(rows[places], array[[3, 31, 3]])
    np.testing.assert_array_equal(np.asarray(stored_table), array)
    middle = np.empty((16, columns), np.float32)
    read_tensor(tensor.block(1, 2), middle)
    np.testing.assert_array_equal(middle, array[16:])


@pytest.mark.parametrize("name", ["F16", "BF16", *TYPES])
def test_states_are_those_of_the_dequantised_arrays(tmp_path: Path, name: str) -> None:
    config = small(tmp_path / "plain", hidden_size=256, intermediate_size=256, num_attention_heads=4, vocab_size=60)
    arrays = load_file(tmp_path / "plain/model.safetensors")
    tensors: dict[str, Stored] = {}
    for own, array in llama_names(arrays).items():
        if array.ndim < 2 or name == "F16":
            tensors[own] = stored(array.astype(np.float16) if array.ndim == 2 else array)
        elif name == "BF16":
            tensors[own] = stored((array.view(np.uint32) >> 16).astype(np.uint16))
        else:
            blocks = array.size // (256 if name.endswith("K") else 32)
            tensors[own] = TYPES[name][0], array.shape, random_blocks(TYPES[name][0], blocks)
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(metadata_of(config), tensors))
    for tensor in read_header(path):
        arrays[tensor.name] = np.empty(tensor.shape, np.float32)
        read_tensor(tensor, arrays[tensor.name])
    save_file(arrays, tmp_path / "plain/model.safetensors")
    for compute_type in ("float32", "int8"):
        ours, plain = (
            BertModel.from_pretrained(place, compute_type=compute_type, add_pooling_layer=False)
            for place in (path, tmp_path / "plain")
        )
        np.testing.assert_array_equal(states(ours), states(plain))


@pytest.mark.parametrize("family", ["distilbert", "roberta", "xlm-roberta", *ARCHITECTURES])
def test_other_families(tmp_path: Path, family: str) -> None:
    """RoBERTa's table of positions is cut: position 0 is the first token."""
    make(tmp_path / "plain", family, **({"hidden_act": "gelu"} if "roberta" in family else {}))  # it is not stored
    theirs = minibert.load(tmp_path / "plain")
    tensors = llama_names({name: array.numpy() for name, array in theirs.named_parameters()})
    if theirs.config.padding_id is not None:
        tensors["position_embd.weight"] = tensors["position_embd.weight"][theirs.config.padding_id + 1 :]
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(metadata_of(theirs.config), {name: stored(array) for name, array in tensors.items()}))
    ours = minibert.load(path)
    ids = np.random.default_rng(1).integers(50, 99, (3, 9))  # without padding
    np.testing.assert_array_equal(states(ours, ids), states(theirs, ids))
    assert ours.config.model_type == (family if family in ("distilbert", *ARCHITECTURES) else "bert")
    assert ours.config.max_length == theirs.config.max_length


@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_a_classifier_whose_dense_map_is_in_the_file(tmp_path: Path, family: str) -> None:
    make(tmp_path / "plain", family, "ForSequenceClassification", num_labels=1)
    theirs = minibert.load(tmp_path / "plain")
    tensors = llama_names({name: array.numpy() for name, array in theirs.named_parameters()})
    if family == "roberta":
        tensors["position_embd.weight"] = tensors["position_embd.weight"][theirs.config.padding_id + 1 :]
    tensors["cls.output.weight"] = tensors["cls.output.weight"][0]  # llama.cpp's quantiser stores one row so
    path = tmp_path / "x.gguf"
    data = metadata_of(theirs.config) | {"bert.classifier.output_labels": ["good"], "bert.pooling_type": 4}
    path.write_bytes(gguf_bytes(data, {name: stored(array) for name, array in tensors.items()}))
    ours = minibert.load(path)
    ids = np.random.default_rng(1).integers(50, 99, (3, 9))  # without padding
    np.testing.assert_array_equal(ours(ids).logits, theirs(ids).logits)
    assert ours.config.id2label == {0: "good"}


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_tokenizers_of_other_models(tmp_path: Path, family: str) -> None:
    texts = ["the quick fox jumps over the lazy dog", "Ünïcode ½ 東京 tests  spaces"]
    folder = family_folder(tmp_path / "plain", family, train(family, texts * 9, 300))
    theirs = minibert.AutoTokenizer.from_pretrained(folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    names = {"bos": "<s>", "eos": "</s>", "unknown": "<unk>", "seperator": "</s>", "padding": "<pad>", "mask": "<mask>"}
    data: dict[str, Any] = {f"tokenizer.ggml.{name}_token_id": theirs.vocab[text] for name, text in names.items()}
    tokens = [*theirs.vocab, f"[PAD{len(theirs.vocab)}]"]  # the converter fills a vocabulary up
    data |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [5]}
    if family == "roberta":
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        data |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "roberta-bpe", "tokenizer.ggml.merges": merges}
    else:
        scores = [float(score) for _, score in model["vocab"]]
        data |= {"tokenizer.ggml.model": "t5", "tokenizer.ggml.scores": scores + [-1e4] * (len(tokens) - len(scores))}
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_of_small(tmp_path, **data))
    ours = minibert.AutoTokenizer.from_pretrained(path)
    for text in (*texts, "a fox <mask> jumps", "Ω unknown", ""):
        assert ours(text, "pair").input_ids == theirs(text, "pair").input_ids
    assert ours.vocab == theirs.vocab


def gguf_of_small(folder: Path, words: list[str] | None = None, **more: Any) -> bytes:
    config = small(folder / "small", vocab_size=len(more.get("tokenizer.ggml.tokens", VOCABULARY[:60])))
    return gguf_of(folder / "small", config, words, **more)


def test_words_of_older_files(tmp_path: Path) -> None:
    """They name [unused0] without the sign of a word, [CLS] by its own name, and nothing about case."""
    words = [*VOCABULARY[:54], "##ing", "[unused0]", "Paris", "a]", "##[", "▁"]
    path = tmp_path / "x.gguf"

    def read(**more: Any) -> Any:
        data = metadata_of(small(tmp_path / "small", vocab_size=60), words, **more)
        data["tokenizer.ggml.tokens"][55] = "[unused0]"
        data["tokenizer.ggml.cls_token_id"] = data.pop("tokenizer.ggml.bos_token_id")
        tensors = llama_names(load_file(tmp_path / "small/model.safetensors"))
        path.write_bytes(gguf_bytes(data, {name: stored(array) for name, array in tensors.items()}))
        return minibert.AutoTokenizer.from_pretrained(path)

    tokenizer = read()
    assert list(tokenizer.vocab) == words
    assert tokenizer.cls_token == "[CLS]"
    assert tokenizer.tokenize("Paris") == ["Paris"]
    assert read(**{"tokenizer.ggml.normalizer.lowercase": True}).tokenize("Paris") == ["[UNK]"]


@LOST
def test_the_file_of_a_model_of_ollama(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    content = gguf_of_small(tmp_path, VOCABULARY[:60])
    digest = hashlib.sha256(content).hexdigest()
    layers = [{"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'0' * 64}"}]
    layers.append({"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"})
    (tmp_path / "blobs").mkdir()
    (tmp_path / f"blobs/sha256-{digest}").write_bytes(content)
    manifests = tmp_path / "manifests"
    for name in ("registry.ollama.ai/library/small/latest", "registry.ollama.ai/me/own/v1", "hf.co/org/x-GGUF/Q8_0"):
        (manifests / name).parent.mkdir(parents=True)
        (manifests / name).write_text(json.dumps({"layers": layers}))
    expected = SentenceTransformer(tmp_path / f"blobs/sha256-{digest}").encode("the")
    for name in ("small", "small:latest", "me/own:v1", "hf.co/org/x-GGUF:Q8_0"):
        np.testing.assert_array_equal(SentenceTransformer(f"ollama:{name}").encode("the"), expected)
    assert main(["info", "-m", "ollama:small"]) == 0
    assert "ollama:small" in capsys.readouterr().out
    for name in ("small:v2", "other", "../../blobs", "", "a/b/c/d:e"):
        with pytest.raises(ValueError, match="ollama pull"):
            minibert.load(f"ollama:{name}")
    with pytest.raises(ValueError, match="ollama:small:latest"):
        minibert.load("small:latest")
    (manifests / "hf.co/org/x-GGUF/Q8_0").write_text(json.dumps({"layers": layers[:1]}))
    (tmp_path / f"blobs/sha256-{digest}").unlink()
    for name in ("small", "hf.co/org/x-GGUF:Q8_0"):
        with pytest.raises(ModelFormatError, match="no GGUF file"):
            minibert.load(f"ollama:{name}")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_a_file_cannot_tell_is_refused(tmp_path: Path) -> None:
    config, path = small(tmp_path / "small"), tmp_path / "x.gguf"
    tensors = {name: stored(a) for name, a in llama_names(load_file(tmp_path / "small/model.safetensors")).items()}
    row = np.zeros((3, config.hidden_size), np.float32)
    pieces = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["<s>", "<pad>", "▁▁a"]}
    cases: list[tuple[dict[str, Any], Mapping[str, Stored], str]] = [
        ({}, {"cls.output.weight": stored(row)}, "pooler"),  # a BERT with labels
        ({}, {"cls.weight": stored(row)}, "pooler"),  # one with two labels of the usual names
        ({"general.architecture": "llama"}, {}, "'llama'; minibert has bert"),
        (pieces | {"tokenizer.ggml.padding_token_id": 1}, {}, "words are not BERT's"),  # CamemBERT
        ({"bert.embedding_length": 768}, {}, "embedding_length 24, its metadata 768"),  # transformers 5.24 and nomic
        ({"bert.block_count": 12}, {}, "block_count"),
        ({"bert.attention.head_count": 5}, {}, "num_attention_heads"),
        ({"split.count": 2}, {}, "part of a model"),
        ({"general.type": "adapter"}, {}, "adapter"),
        ({"general.alignment": 0}, {}, "alignment"),
    ]
    for metadata, more, message in cases:
        path.write_bytes(gguf_bytes(metadata_of(config) | metadata, tensors | more))
        with pytest.raises(ModelFormatError, match=rf"x\.gguf.*{message}"):
            minibert.load(path)
    path.write_bytes(gguf_bytes(metadata_of(config), {**tensors, "token_embd.weight": (16, (60, 24), b"")}))
    with pytest.raises(ModelFormatError, match="the type 16 of ggml"):
        minibert.load(path)
    path.write_bytes(gguf_bytes({k: v for k, v in metadata_of(config).items() if "head" not in k}, tensors))
    with pytest.raises(ModelFormatError, match=r"lacks 'bert\.attention\.head_count'"):
        minibert.load(path)
    path.write_bytes(gguf_bytes(metadata_of(config) | {"tokenizer.ggml.model": "llama"}, tensors))
    assert len(states(minibert.load(path))) == config.num_hidden_layers + 1  # the encoder does not need its words
    path.write_bytes(
        gguf_bytes(metadata_of(config) | {"tokenizer.ggml.model": "llama"} | {"tokenizer.ggml.tokens": ["a"]}, tensors)
    )
    with pytest.raises(ModelFormatError, match="tokenizer is 'llama'"):
        minibert.AutoTokenizer.from_pretrained(path)


def _header(entries: int, tensors: int, rest: bytes) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, entries) + rest


KEY = struct.pack("<Q", 1) + b"k"
HOSTILE = {
    "entries": _header(2**63, 0, b""),
    "tensors": _header(0, 2**40, b""),
    "a long key": _header(1, 0, struct.pack("<Q", 2**62) + b"k" * 99),
    "a long array": _header(1, 0, KEY + struct.pack("<IIQ", 9, 0, 2**62)),
    "a long array of texts": _header(1, 0, KEY + struct.pack("<IIQ", 9, 8, 2**61 + 1) + bytes(4096)),
    "texts without an end": _header(1, 0, KEY + struct.pack("<IIQ", 9, 8, 9) + struct.pack("<Q", 2**64 - 9) * 99),
    "an array of arrays": _header(1, 0, KEY + struct.pack("<IIQ", 9, 9, 3) + bytes(99)),
    "metadata of a new type": _header(1, 0, KEY + struct.pack("<I", 99) + bytes(99)),
    "a text that is not UTF-8": _header(1, 0, KEY + struct.pack("<IQ", 8, 1) + b"\xff"),
    "version 1": struct.pack("<4sIQQ", b"GGUF", 1, 0, 0),
    "big-endian": struct.pack(">4sIQQ", b"GGUF", 3, 0, 0),
    "many dimensions": _header(0, 1, KEY + struct.pack("<I", 2**31) + bytes(99)),
    "no size": _header(0, 1, KEY + struct.pack("<IQIQ", 1, 0, 0, 0) + bytes(99)),
    "large sizes": _header(0, 1, KEY + struct.pack("<I4QIQ", 4, *[2**30] * 4, 0, 0) + bytes(99)),
    "an offset": _header(0, 1, KEY + struct.pack("<IQIQ", 1, 1, 0, 2**63) + bytes(99)),
    "one place for two": _header(0, 2, b"".join(KEY[:8] + n + struct.pack("<IQIQ", 1, 8, 0, 0) for n in (b"a", b"b"))),
    "a name twice": _header(0, 2, b"".join(KEY + struct.pack("<IQIQ", 1, 8, 0, o) for o in (0, 32)) + bytes(199)),
    "a part of a block": _header(0, 1, KEY + struct.pack("<IQIQ", 1, 33, 8, 0) + bytes(199)),
    "nothing": b"",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_at_once(tmp_path: Path, case: str) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE[case])
    begun = time.perf_counter()
    with pytest.raises(ValueError, match=r"hostile\.gguf"):
        minibert.load(path)
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files_are_refused_or_read(tmp_path: Path, count: int) -> None:
    path, chance, outcomes = tmp_path / "x.gguf", random.Random(0), Counter[str]()
    whole = gguf_of_small(tmp_path, VOCABULARY[:60])
    header = len(whole) - path_size(whole)
    for _ in range(count):
        path.write_bytes(damaged_bytes(whole[:header], chance) + whole[header:])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                SentenceTransformer(path, backend="numpy")
            outcomes["read"] += 1
        except ValueError as error:
            outcomes["refused" if str(path) in str(error) else f"useless message: {error}"] += 1
    assert {*outcomes} == {"read", "refused"}
    assert outcomes["refused"] > 0.6 * count


def path_size(whole: bytes) -> int:
    """Return the bytes of the numbers in a file."""
    return len(whole) - whole.rindex(b"layer_output_norm.bias")


@pytest.mark.slow
def test_what_the_package_itself_gives(tmp_path: Path) -> None:
    """The package is fetched into a virtual environment of its own; it writes a file and prints what it reads in it."""
    for kind, _ in TYPES.values():
        (tmp_path / f"{kind}.blocks").write_bytes(random_blocks(kind, 32))
    program = f"""
import gguf, hashlib, numpy as np, pathlib
writer = gguf.GGUFWriter("all.gguf", "bert")
writer.add_token_list(["a", "b"])
for number in {[kind for kind, _ in TYPES.values()]}:
    kind = gguf.GGMLQuantizationType(number)
    data = np.fromfile(f"{{number}}.blocks", np.uint8).reshape(32, -1)
    writer.add_tensor(kind.name, data, raw_dtype=kind)
writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
for tensor in gguf.GGUFReader("all.gguf").tensors:
    print(tensor.name, hashlib.sha256(gguf.dequantize(tensor.data, tensor.tensor_type).tobytes()).hexdigest()[:16])
"""
    python = tmp_path / "environment/bin/python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "gguf==0.19.0"], check=True)
    printed = subprocess.run([python, "-c", program], check=True, cwd=tmp_path, capture_output=True, text=True).stdout
    assert dict(line.split() for line in printed.splitlines()) == {name: digest for name, (_, digest) in TYPES.items()}
    for name, tensor in read_gguf(tmp_path / "all.gguf").tensors.items():
        array = np.empty(tensor.shape, np.float32)
        read_tensor(tensor, array)
        assert hashlib.sha256(array.tobytes()).hexdigest()[:16] == TYPES[name][1]
