"""Replace every argument of the public functions by about 80 unsuitable values, one at a time.

Allowed results are an answer, or a TypeError, ValueError, MemoryError, OSError or one of minibert's own errors, with a
readable message. Another library's exception, AttributeError, IndexError, OverflowError, RecursionError and NumPy's
warnings are faults. An answer with NaN is a fault too, unless an argument has NaN.
"""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minibert
from minibert import (
    BertConfig,
    BertModel,
    BertTokenizer,
    CrossEncoder,
    DownloadError,
    Edit,
    ModelFormatError,
    SentenceTransformer,
    SparseEncoder,
    Trace,
    exact,
    head_mask,
    plot,
    search,
    similarity,
)
from minibert.checkpoint.files import locate
from minibert.integrations import ChromaEmbeddingFunction, LangChainEmbeddings
from minibert.scikit import MinibertTransformer
from minibert.vectors import layers as vectors
from tests.support.checkpoints import random_checkpoint
from tests.support.report import REPORT
from tests.support.sentence_heads import MASKED, SEQUENCE, model_folder

ALLOWED = (TypeError, ValueError, MemoryError, OSError, ModelFormatError, DownloadError)
SAMPLE, SEED = 2500, 20
SELF = "encoder.layer.0.attention.self"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Raises:
    """A broken object of another library. It does not define `__bool__`, because that error would be the caller's."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")


class array:  # noqa: N801  # named as the standard library's, whose attributes reprlib then expects
    pass


class Index:
    def __index__(self) -> int:
        return 1


def ordinary() -> np.ndarray:
    return np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "np.True_": lambda: np.True_,
    "...": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "0": lambda: 0,
    "-1": lambda: -1,
    "3": lambda: 3,
    "2**63 - 1": lambda: 2**63 - 1,
    "2**63": lambda: 2**63,
    "-2**63 - 1": lambda: -(2**63) - 1,
    "2**64": lambda: 2**64,
    "10**30": lambda: 10**30,
    "10**5000": lambda: 10**5000,
    "-10**5000": lambda: -(10**5000),
    "[10**5000]": lambda: [10**5000],
    "[[10**5000]]": lambda: [[10**5000]],
    "{10**5000: 10**5000}": lambda: {10**5000: 10**5000},
    "int8 100": lambda: np.int8(100),
    "int8 -128": lambda: np.int8(-128),
    "uint8 255": lambda: np.uint8(255),
    "uint64 max": lambda: np.uint64(2**64 - 1),
    "an __index__": Index,
    "0.5": lambda: 0.5,
    "1e308": lambda: 1e308,
    "-0.0": lambda: -0.0,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "float16 nan": lambda: np.float16("nan"),
    "1j": lambda: 1j,
    "complex64": lambda: np.complex64(1j),
    "Fraction": lambda: Fraction(1, 3),
    "datetime64": lambda: np.datetime64("2020-01-01"),
    "''": lambda: "",
    "' '": lambda: " ",
    "'abc'": lambda: "abc",
    "'3'": lambda: "3",
    "lone surrogate": lambda: "a\ud800",
    "NUL": lambda: "\0",
    "bell": lambda: "\a",
    "long str": lambda: "ab " * 300,
    "np.str_": lambda: np.str_("cat"),
    "b''": lambda: b"",
    "b'abc'": lambda: b"abc",
    "bytearray": lambda: bytearray(b"abc"),
    "memoryview": lambda: memoryview(b"abc"),
    "[]": list,
    "()": tuple,
    "{}": dict,
    "set": lambda: {1, 2},
    "range": lambda: range(3),
    "slice": lambda: slice(None),
    "[None]": lambda: [None],
    "['a', None]": lambda: ["a", None],
    "['a', 3]": lambda: ["a", 3],
    "['a', ['b']]": lambda: ["a", ["b"]],
    "[surrogate]": lambda: ["a", "\udfff"],
    "[[1], [1, 2]]": lambda: [[1], [1, 2]],
    "[0, 0]": lambda: [0, 0],
    "{'a': 1}": lambda: {"a": 1},
    "{1: 'a'}": lambda: {1: "a"},
    "[{}]": lambda: [{}],
    "list 3,000 deep": lambda: nested(3000),
    "list 40 deep": lambda: nested(40),
    "generator": lambda: (x for x in ["a", "b"]),
    "endless repeat of itself": lambda: (lambda one: (one.append(one), one)[1])([]),
    "object()": object,
    "a class": lambda: dict,
    "a function": lambda: lambda *_, **__: None,
    "a function that gives text": lambda: lambda *_, **__: "text",
    "a namespace": lambda: SimpleNamespace(shape=(3, 4), dtype="float32"),
    "an object that raises": Raises,
    "a class named array": array,
    "an exception": lambda: KeyError("x"),
    "a path": lambda: Path("no such folder"),
    "0-d float": lambda: np.array(1.0),
    "0-d int": lambda: np.array(1),
    "0-d object": lambda: np.array(None, dtype=object),
    "0-d str": lambda: np.array("abc"),
    "shape (0,)": lambda: np.zeros(0, np.float32),
    "shape (0, 4)": lambda: np.zeros((0, 4), np.float32),
    "shape (3, 0)": lambda: np.zeros((3, 0), np.float32),
    "shape (1,) * 20": lambda: np.zeros((1,) * 20),
    "ints": lambda: np.arange(12).reshape(3, 4),
    "bools": lambda: np.ones((3, 4), bool),
    "huge int64": lambda: np.full((3, 4), 2**62),
    "object array": lambda: ordinary().astype(object),
    "object array of lists": lambda: np.array([nested(2000), None], dtype=object),
    "array of str": lambda: np.array(["a", "b"]),
    "array of bytes": lambda: np.array([b"a", b"b"]),
    "structured array": lambda: np.zeros(3, dtype=[("a", "f4"), ("b", "i4")]),
    "complex array": lambda: ordinary().astype(complex),
    "datetime array": lambda: np.zeros((3, 4), "M8[s]"),
    "NaN among floats": lambda: np.where(ordinary() > 0.5, np.float32("nan"), ordinary()),
    "infinity among floats": lambda: np.where(ordinary() > 0.5, np.inf, ordinary()),
    "1e300": lambda: ordinary().astype(np.float64) * 1e300,
    "1e-300": lambda: ordinary().astype(np.float64) * 1e-300,
    "float32 3e38": lambda: ordinary() * np.float32(3e38),
    "float16": lambda: ordinary().astype(np.float16),
    "long double": lambda: ordinary().astype(np.longdouble),
    "big endian": lambda: ordinary().astype(">f4"),
    "negative strides": lambda: ordinary()[::-1, ::-1],
    "zero strides": lambda: np.lib.stride_tricks.as_strided(ordinary(), (3, 4), (0, 4)),
    "overlapping rows": lambda: np.lib.stride_tricks.as_strided(ordinary(), (3, 4), (4, 4)),
    "read-only": lambda: np.broadcast_to(np.float32(1), (3, 4)),
    "masked array": lambda: np.ma.masked_greater(ordinary(), 0.5),
    "np.matrix": lambda: ordinary().view(np.matrix),
    "list of arrays": lambda: [ordinary(), ordinary()[:2]],
}


@dataclasses.dataclass(frozen=True)
class Call:
    """A function with correct arguments."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Callable[[], Any]]

    def __call__(self, changed: str | None = None, value: Any = None) -> Any:
        arguments = {name: make() for name, make in self.arguments.items()}
        if changed is not None:
            arguments[changed] = value
        positional = [arguments.pop(name) for name in self.arguments if name.startswith("*")]
        return self.function(*positional, **arguments)


def setting(owner: Any, name: str, then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that sets an attribute, uses the object, and restores the attribute."""

    def use(value: Any) -> Any:
        before = getattr(owner, name)
        try:
            setattr(owner, name, value)
            return then(owner)
        finally:
            setattr(owner, name, before)

    return use


def everything(value: Any) -> Any:
    """Consume iterators, so that they compute."""
    return list(value) if isinstance(value, Iterator) else value


def calls(folder: Path) -> list[Call]:
    """List every public function and method that takes an argument, with correct arguments."""
    model, tokenizer = BertModel.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    sentences = SentenceTransformer(folder)
    sentences.max_seq_length = 12
    config, files = model.config, locate(folder)
    H = config.hidden_size
    rng = np.random.default_rng(3)
    matrix = rng.standard_normal((3, 4)).astype(np.float32)
    many = rng.standard_normal((130, 4)).astype(np.float32)
    embedded = minibert.embed_tokens(
        model, tokenizer, ["the cat sat", "a cat"], layers=[0, 1], layer_pooling="tokens_first"
    )
    texts = ["the cat sat", "hello world", "", "a cat and a dog by the river bank of the first man"]
    batch = tokenizer(texts, padding=True, return_tensors="np")
    found: list[Call] = []

    def add(name: str, function: Callable[..., Any], **arguments: Any) -> None:
        found.append(Call(name, function, {key: lambda value=value: value for key, value in arguments.items()}))

    def add_one(name: str, function: Callable[[Any], Any], value: Any) -> None:
        found.append(Call(name, function, {"*": lambda: value}))

    where = {
        "revision": None, "cache_dir": None, "token": None, "local_files_only": True, "subfolder": "",
    }  # fmt: skip
    kept = {"output_hidden_states": True, "output_attentions": True}
    load = {"config": None, **kept, "add_pooling_layer": True, "backend": "numpy", "num_threads": 1}
    add("BertConfig", BertConfig, **dataclasses.asdict(config))
    add("BertConfig.from_dict", BertConfig.from_dict, fields=config.to_dict())
    for key in config.to_dict():
        add_one(
            f"BertConfig.from_dict, {key}",
            lambda value, key=key: BertConfig.from_dict({**config.to_dict(), key: value}),
            config.to_dict()[key],
        )
    for kind in (BertConfig, BertTokenizer, BertModel, SentenceTransformer):
        name = "model_name_or_path" if kind is SentenceTransformer else "name_or_path"
        if kind is SentenceTransformer:
            options = {
                **{"prompts": None, "default_prompt_name": None, "similarity_fn_name": None, "cache_folder": None},
                **{"revision": None, "local_files_only": True, "token": None, "truncate_dim": None, "device": None},
                **{"backend": "numpy", "num_threads": 1, "modules": None, "trust_remote_code": False},
                **{"model_kwargs": {}, "processor_kwargs": {}, "config_kwargs": {}, "use_auth_token": None},
            }
            add("SentenceTransformer", kind, **{name: folder, **options})
            continue
        own = load if kind is BertModel else {}
        add(f"{kind.__name__}.from_pretrained", kind.from_pretrained, **{name: folder, **where, **own})
        add(f"{kind.__name__}.from_files", kind.from_files, files=files, **own)
    add("BertModel()", BertModel, weights=model.weights, ops=model.ops, **kept)
    add("BertTokenizer()", BertTokenizer, loaded=None)

    inputs = {name: array[:2, :5].copy() for name, array in batch.items()}
    positions = np.arange(5)[None]
    wishes = {"output_hidden_states": [0, -1], "output_attentions": 0, "num_layers": 2}
    add("model()", model, **inputs, position_ids=positions, **wishes)
    add("model(inputs_embeds=)", model, inputs_embeds=rng.standard_normal((2, 5, H)).astype(np.float32), **wishes)
    add(
        "model.embeddings", model.embeddings, input_ids=inputs["input_ids"], token_type_ids=None, position_ids=positions
    )
    add_one("word_embeddings", model.embeddings.word_embeddings, [[1, 2]])
    add_one("position_embeddings", model.embeddings.position_embeddings, [[1, 2]])
    add_one("LayerNorm", model.embeddings.LayerNorm, rng.standard_normal((2, H)))
    add_one("model.to", model.to, "cpu")
    add_one("model.train", model.train, False)
    add_one("batch.to", batch.to, "cpu")

    looks = {"record": ["hidden_states.*", "*.probs"], "edit": {"embeddings": Edit.scale(0.5)}, "num_layers": 1}
    trace = model.trace(**inputs, tokens=tokenizer)
    add("model.trace", model.trace, **inputs, **looks, tokens=tokenizer, allow_noop=True)
    add("model.stream", lambda **x: everything(model.stream(**x)), **inputs, **looks, allow_noop=True)
    add("exact.forward", exact.forward, model=model, **inputs, record="pooler", num_layers=None, tokens=None)
    for name, value in {"embeddings": 0.5, "*.scores": lambda scores: scores, "pooler": np.zeros(H)}.items():
        add_one(
            f"edit[{name}]",
            lambda value, name=name: model.trace(**inputs, edit={name: value}, allow_noop=True),
            value,
        )
    add_one("an edit's name", lambda name: model.trace(**inputs, edit={name: Edit.zero()}), "pooler")
    part = {"tokens": 1, "sequences": 0, "heads": 1}
    for kind, own in {
        **{"zero": {}, "mean": {"over": "tokens"}, "scale": {"factor": 0.5}, "add": {"value": 1}},
        **{"replace": {"value": 0}, "patch": {"other": trace}, "noise": {"sd": 0.1, "seed": 1}},
    }.items():
        for name in (f"{SELF}.query", f"{SELF}.scores", f"{SELF}.probs"):

            def edited(kind: str = kind, name: str = name, **arguments: Any) -> Any:
                return model.trace(**inputs, edit={name: getattr(Edit, kind)(**arguments)}, allow_noop=True)

            where_keys = {} if name.endswith("query") else {"keys": 2}
            add(f"Edit.{kind}, {name}", edited, **own, **part, **where_keys)
    add("Edit.zero(features=)", lambda **x: model.trace(**inputs, edit={"pooler": Edit.zero(**x)}), features=[0, 2])
    add_one(
        "Edit.function", lambda f: model.trace(**inputs, edit={"pooler": Edit.function(f)}, allow_noop=True), np.abs
    )
    add("head_mask", lambda mask: model.trace(**inputs, edit=head_mask(mask), allow_noop=True), mask=np.ones((2, 3)))
    add_one("trace.select", trace.select, "pooler")
    add_one("trace.sequence", trace.sequence, 1)
    add_one("trace.get", trace.get, "pooler")
    add_one("trace.save", trace.save, folder / "trace.npz")
    trace.save(folder / "trace.npz")
    add_one("Trace.load", Trace.load, folder / "trace.npz")

    ways = {
        **{"add_special_tokens": True, "padding": True, "truncation": True, "max_length": 8, "stride": 1},
        **{"is_split_into_words": False, "pad_to_multiple_of": 4, "return_tensors": None},
        **{"return_token_type_ids": True, "return_attention_mask": True, "return_overflowing_tokens": True},
        **{"return_special_tokens_mask": True, "return_offsets_mapping": True, "return_length": True},
    }
    add("tokenizer()", tokenizer, text=texts, text_pair=None, **ways)
    add("tokenizer(pairs)", tokenizer, text=texts, text_pair=texts, padding="max_length", max_length=200)
    add("tokenizer(words)", tokenizer, text=[["a", "cat"]], is_split_into_words=True)
    some = {"max_length": 8, "truncation": True, "add_special_tokens": True}
    add("encodings", tokenizer.encodings, texts=texts, pairs=None, **some, is_split_into_words=False)
    add("windows", tokenizer.windows, texts=texts, max_length=8, stride=2, prompt="a ")
    ids = [[2, 8, 3], [2, 3]]
    add("pad", tokenizer.pad, encoded_inputs={"input_ids": ids}, padding=True, max_length=9, return_tensors="np")
    add("encode, padded", tokenizer.encode, text="a cat", padding="max_length", max_length=9, return_tensors="np")
    own = BertTokenizer.from_pretrained(folder)  # its tokens change
    add("add_tokens", own.add_tokens, new_tokens=["a"], special_tokens=False)
    add("add_special_tokens", own.add_special_tokens, special_tokens_dict={"pad_token": "[PAD]"})
    add("tokenize", tokenizer.tokenize, text="a cat", pair=None, add_special_tokens=True)
    add("encode", tokenizer.encode, text="a cat", text_pair=None, **some)
    clean = {"skip_special_tokens": True, "clean_up_tokenization_spaces": None}
    add("decode", tokenizer.decode, token_ids=[2, 8, 3], **clean)
    add("batch_decode", tokenizer.batch_decode, sequences=[[2, 8, 3]], **clean)
    add("convert_tokens_to_ids", tokenizer.convert_tokens_to_ids, tokens=["a", "cat"])
    add("convert_ids_to_tokens", tokenizer.convert_ids_to_tokens, ids=[2, 8], skip_special_tokens=False)
    add("num_special_tokens_to_add", tokenizer.num_special_tokens_to_add, pair=False)
    for side in ("padding_side", "truncation_side"):
        change = setting(tokenizer, side, lambda one: one(texts, padding=True, truncation=True, max_length=8))
        add_one(f"tokenizer.{side}", change, "left")

    info = {"special_tokens": True, "truncation": "warn", "stride": 0, "return_info": True}
    pooled = {"layers": None, "layer_pooling": "concat", "pooling": None, **info}
    named = {"prompt_name": "query", "prompt": None, "batch_size": 32}
    encode = {
        **{"inputs": texts, **named, "show_progress_bar": False, "output_value": "sentence_embedding"},
        **{"precision": "float32", "convert_to_numpy": True, "convert_to_tensor": False, "device": None},
        **{"normalize_embeddings": True, "truncate_dim": None, **pooled, "sentences": None, "pool": None},
        **{"chunk_size": None, "task": "query", "processing_kwargs": None},
    }
    add("encode(texts)", sentences.encode, **encode)
    add("encode(out=)", sentences.encode, inputs=texts[:3], truncate_dim=4, out=np.zeros((3, 4), np.float32))
    add("encode(split)", sentences.encode, inputs=texts, prompt="a ", truncation="split", stride=1)
    add("encode(tokens)", sentences.encode, inputs=texts, output_value="token_embeddings", layers=[0, -1])
    add("encode(all)", sentences.encode, inputs=texts, output_value=None, pooling="max", truncate_dim=3)
    for precision in similarity.PRECISIONS:
        add(f"encode({precision})", sentences.encode, inputs=texts, precision=precision, truncate_dim=9)
    options = {key: value for key, value in {**named, **pooled}.items() if key != "return_info"}
    options |= {"chunk_size": 2, "progress": lambda n: None, "normalize_embeddings": True, "truncate_dim": 5}
    add("encode_iter", lambda **x: everything(sentences.encode_iter(**x)), inputs=texts, **options)
    add("encode_iter(out=)", lambda **x: everything(sentences.encode_iter(**x)),
        inputs=texts[:3], truncate_dim=4, out=np.zeros((3, 4), np.float32))  # fmt: skip
    add(
        "encode_chunks",
        lambda **x: everything(sentences.encode_chunks(**x)),
        inputs=texts,
        **options,
        return_info=True,
    )
    add("encode_query", sentences.encode_query, inputs=texts, prompt_name=None, prompt=None)
    add("encode_document", sentences.encode_document, inputs="a cat", prompt_name=None, prompt=None)
    add("st.tokenize", sentences.tokenize, texts=texts)
    add("num_tokens", sentences.num_tokens, texts=texts, prompt_name=None, prompt=None)
    add("st.similarity", sentences.similarity, embeddings1=matrix, embeddings2=matrix)
    add("st.similarity_pairwise", sentences.similarity_pairwise, embeddings1=matrix, embeddings2=matrix)
    for name, right in (
        *(("max_seq_length", 9), ("similarity_fn_name", "dot"), ("prompts", {"query": "q"}), ("truncate_dim", 3)),
        *(("default_prompt_name", "query"),),
    ):

        def use(one: SentenceTransformer) -> Any:
            return one.encode_query(texts), one.encode(texts), one.get_embedding_dimension(), repr(one)

        add_one(f"st.{name}", setting(sentences, name, use), right)

    add("embed_tokens", minibert.embed_tokens, model=model, tokenizer=tokenizer, texts=texts, layers=[0, 1],
        layer_pooling="sum", is_split_into_words=False, truncation="warn", max_length=8)  # fmt: skip
    add("word_occurrences", minibert.word_occurrences, word="cat", texts=embedded, tokenizer=tokenizer, subwords="mean")
    add("words", embedded[0].words, subwords="mean")
    add("span", embedded[0].span, start=0, end=5, subwords="mean")
    add("span_tokens", embedded[0].span_tokens, start=0, end=5)
    place = minibert.word_occurrences("cat", embedded, tokenizer).places[0]
    add("in_context", place.in_context, width=5)
    add("combine_layers", minibert.combine_layers, hidden_states=[matrix, matrix], how="mean")
    add("join_subwords", vectors.join_subwords, vectors=matrix, how="mean")
    add_one("resolve_layers", lambda layers: vectors.resolve_layers(layers, 2), [0, 1])

    for name in similarity.SIMILARITY_FUNCTIONS:
        for function in similarity.SIMILARITY_FUNCTIONS[name]:
            add(function.__name__, function, a=matrix, b=matrix[::-1])
    add("normalize_embeddings", similarity.normalize_embeddings, embeddings=matrix)
    add("truncate_embeddings", similarity.truncate_embeddings, embeddings=matrix, truncate_dim=2)
    for precision in similarity.PRECISIONS:
        ranges = [[-1.0] * 4, [1.0] * 4]
        add(f"quantize({precision})", similarity.quantize_embeddings,
            embeddings=matrix, precision=precision, ranges=ranges, calibration_embeddings=many)  # fmt: skip
        add(f"quantize({precision}) alone", similarity.quantize_embeddings,
            embeddings=many, precision=precision, calibration_embeddings=None)  # fmt: skip
    chunks = {"query_chunk_size": 7, "corpus_chunk_size": 9, "top_k": 5}
    add("semantic_search", search.semantic_search, query_embeddings=many, corpus_embeddings=many, **chunks,
        score_function=similarity.cos_sim)  # fmt: skip
    add("paraphrase_mining_embeddings", search.paraphrase_mining_embeddings, embeddings=many, **chunks, max_pairs=50,
        score_function=similarity.cos_sim)  # fmt: skip
    add("paraphrase_mining", search.paraphrase_mining, model=sentences, sentences=texts, show_progress_bar=False,
        batch_size=2, **chunks, max_pairs=50, truncate_dim=None, prompt_name=None, prompt=None)  # fmt: skip
    add("community_detection", search.community_detection, embeddings=many, threshold=0.9, min_community_size=2,
        batch_size=11, show_progress_bar=False)  # fmt: skip

    for name in ("tokens", "word_ids", "sequence_ids"):
        add(f"batch.{name}", getattr(batch, name), i=1)
    add("batch.char_to_token", batch.char_to_token, i=1, char=1, sequence=0)
    add("batch.token_to_chars", batch.token_to_chars, i=1, token=1)

    pairs = minibert.word_occurrences("cat", embedded, tokenizer)
    states = rng.standard_normal((3, 2, 4)).astype(np.float32)
    add("plot_hidden_values", plot.plot_hidden_values, vectors=states, layers=[0, 1], bins=4)
    add("plot_word_similarities", plot.plot_word_similarities, occurrences=pairs)
    add("plot_layers_pca", plot.plot_layers_pca, vectors=states, layers=[0, 1], labels=["a", "b", "a"])
    add("principal_components", plot.principal_components, x=matrix, n_components=2)

    parameters = {
        **{"model_name_or_path": folder, "prompts": None, "truncate_dim": 4, "revision": None, "backend": "numpy"},
        **{"num_threads": 1, "pooling": None, "layers": None, "layer_pooling": "concat", "prompt_name": None},
        **{"normalize_embeddings": False, "prompt": None, "truncation": "silent", "stride": 0, "batch_size": 32},
    }
    add("MinibertTransformer", lambda **x: MinibertTransformer(**x).transform(["a cat"]), **parameters)
    add("transform", MinibertTransformer(folder, backend="numpy", truncation="silent").transform, X=texts)
    chroma = ChromaEmbeddingFunction(folder, backend="numpy")
    add("Chroma()", chroma, input=texts)
    add("Chroma.embed_query", chroma.embed_query, input=texts)
    add("Chroma.build_from_config", ChromaEmbeddingFunction.build_from_config, config=chroma.get_config())
    config_of = chroma.get_config
    add("Chroma.validate_config_update", chroma.validate_config_update, old_config=config_of(), new_config=config_of())
    add("LangChainEmbeddings", LangChainEmbeddings, model=sentences)
    chain = LangChainEmbeddings(sentences)
    add("embed_documents", chain.embed_documents, texts=texts)
    add("embed_query", chain.embed_query, text="a cat")
    add("validate_config", ChromaEmbeddingFunction.validate_config, config={"model_name_or_path": "x"})
    add("locate", locate, name_or_path=folder, **where)
    return found


# Arguments of the constructors and of the calls of CrossEncoder and SparseEncoder.
LOADED = {
    **{"cache_folder": None, "revision": None, "local_files_only": True, "token": None, "backend": "numpy"},
    **{"num_threads": 1, "prompts": {"query": "q "}, "default_prompt_name": None, "device": None, "modules": None},
    **{"trust_remote_code": False, "model_kwargs": {}, "processor_kwargs": {}, "config_kwargs": {}},
    **{"model_card_data": None},
}
CALLED = {
    **{"prompt_name": None, "prompt": None, "batch_size": 2, "show_progress_bar": False, "device": None},
    **{"pool": None, "chunk_size": None, "truncation": "silent", "task": None, "processing_kwargs": None},
}


def calls_of_heads(folder: Path) -> list[Call]:
    """List the public methods of CrossEncoder and SparseEncoder that take an argument, with correct arguments."""
    cross = CrossEncoder(model_folder(folder / "cross", SEQUENCE, num_labels=1))
    three = CrossEncoder(model_folder(folder / "three", SEQUENCE, num_labels=3))
    sparse = SparseEncoder(model_folder(folder / "sparse", MASKED))
    texts = ["the cat sat", "", "a cat and a dog by the river bank of the first man"]
    pairs = [("the cat", text) for text in texts]
    vectors = sparse.encode(texts, truncation="silent")
    found: list[Call] = []

    def add(name: str, function: Callable[..., Any], **arguments: Any) -> None:
        found.append(Call(name, function, {key: lambda value=value: value for key, value in arguments.items()}))

    def add_setting(owner: Any, name: str, then: Callable[[Any], Any], right: Any) -> None:
        found.append(Call(f"{type(owner).__name__}.{name}", setting(owner, name, then), {"*": lambda: right}))

    add("CrossEncoder", CrossEncoder, model_name_or_path=folder / "cross", num_labels=1, max_length=9,
        activation_fn="Sigmoid", **LOADED)  # fmt: skip
    kinds = {"convert_to_numpy": True, "convert_to_tensor": False}
    chosen = {"activation_fn": "Identity", "apply_softmax": False, **kinds, "num_workers": 0, **CALLED}
    for name, model in ("predict", cross), ("predict, three labels", three):
        add(name, model.predict, inputs=pairs, **chosen)
    add("predict(softmax)", three.predict, inputs=pairs[0], apply_softmax=True, activation_fn=np.tanh)
    add("rank", cross.rank, query="the cat", documents=texts, top_k=2, return_documents=True,
        **{name: value for name, value in chosen.items() if name not in ("task", "processing_kwargs")})  # fmt: skip
    found.append(Call("score_pairs", lambda **x: cross.score_pairs(pairs, **x), {
        "prompt": lambda: "q ", "batch_size": lambda: 2, "truncation": lambda: "silent"}))  # fmt: skip
    for name, right in ("activation_fn", "Sigmoid"), ("max_length", 9), ("max_seq_length", 9):
        add_setting(cross, name, lambda model: model.predict(pairs, truncation="silent"), right)

    add("SparseEncoder", SparseEncoder, model_name_or_path=folder / "sparse", similarity_fn_name="dot",
        max_active_dims=4, **LOADED)  # fmt: skip
    kinds = {"convert_to_tensor": True, "convert_to_sparse_tensor": False, "save_to_cpu": False}
    add("sparse.encode", sparse.encode, inputs=texts, **kinds, max_active_dims=3, stride=0, **CALLED)
    add("sparse.encode(split)", sparse.encode, inputs=texts, truncation="split", stride=1)
    for name in ("encode_query", "encode_document"):
        add(f"sparse.{name}", getattr(sparse, name), inputs=texts, truncation="silent", max_active_dims=3)
    add("sparse.encode_chunks", lambda **x: everything(sparse.encode_chunks(**x)), inputs=texts, chunk_size=2)
    add("sparse.tokenize", sparse.tokenize, texts=texts)
    add("sparse.num_tokens", sparse.num_tokens, texts=texts, prompt_name=None, prompt="q ")
    add("sparse.decode", sparse.decode, embeddings=vectors, top_k=2)
    for name in ("similarity", "similarity_pairwise"):
        add(f"sparse.{name}", getattr(sparse, name), embeddings1=vectors, embeddings2=vectors)
    add("sparse.sparsity", sparse.sparsity, embeddings=vectors)
    add("sparse.intersection", sparse.intersection, embeddings_1=vectors[0], embeddings_2=vectors)
    for name, right in (
        *(("similarity_fn_name", "cosine"), ("max_active_dims", 3), ("splade_pooling_chunk_size", 2)),
        *(("max_seq_length", 9),),
    ):

        def use(model: SparseEncoder) -> Any:
            return model.similarity(model.encode(texts, truncation="silent"), vectors)

        add_setting(sparse, name, use, right)
    return found


def fault_of(call: Call, changed: str, hostile: str) -> tuple[str, str | None]:
    """Make one call; return the kind of its result, and the fault of the result, if any."""
    value = HOSTILE[hostile]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)  # NumPy warns of a wrong number
            answer = everything(call(changed, value))
    except ALLOWED as error:
        if "Exceeds the limit" in str(error):
            return "error", f"Python's own {error!r}"
        return "error", None if str(error) else f"a {type(error).__name__} without a message"
    except Exception as error:
        return "error", f"{type(error).__name__}: {str(error)[:200]}"
    if "nan" not in hostile.lower() and "inf" not in hostile and holds_nan(answer):
        return "answer", "NaN"
    return "answer", None


def holds_nan(answer: Any) -> bool:
    if isinstance(answer, np.ndarray | np.floating):
        return answer.dtype.kind == "f" and bool(np.isnan(answer).any())
    return isinstance(answer, list | tuple) and any(map(holds_nan, answer))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Call]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        folder = random_checkpoint(tmp_path_factory.mktemp("hostile") / "model", max_position_embeddings=64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the model has no modules.json
            listed = [*calls(folder), *calls_of_heads(folder)]
        yield listed


def check(cases: list[tuple[Call, str, str]]) -> None:
    outcomes: Counter[str] = Counter()
    faults = []
    for call, changed, hostile in cases:
        outcome, fault = fault_of(call, changed, hostile)
        outcomes[outcome] += 1
        if fault:
            faults.append(f"{call.name}, {changed} = {hostile}: {fault}")
    REPORT.append(
        f"hostile arguments: {len(cases)} calls, {outcomes['answer']} answers, {outcomes['error']} typed errors"
    )
    assert not faults, "\n".join([f"{len(faults)} faults:", *faults[:200]])


def all_cases(found: list[Call]) -> list[tuple[Call, str, str]]:
    return [(call, changed, hostile) for call in found for changed in call.arguments for hostile in HOSTILE]


def test_the_correct_arguments_give_answers(found: list[Call]) -> None:
    """Without this test, a replaced argument could fail because of another argument."""
    for call in found:
        if call.name != "BertTokenizer()":  # its argument is made by the library only
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                everything(call())


def test_hostile_arguments(found: list[Call]) -> None:
    check(random.Random(SEED).sample(all_cases(found), SAMPLE))


@pytest.mark.slow
def test_all_hostile_arguments(found: list[Call]) -> None:
    check(all_cases(found))
