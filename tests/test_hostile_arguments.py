"""Replace every argument of the public functions by about 110 unsuitable values, one at a time.

Allowed results are an answer, or a TypeError, ValueError, MemoryError, OSError or one of minibert's own errors, with a
readable message. Another library's exception, AttributeError, IndexError, OverflowError, RecursionError and NumPy's
warnings are faults. An answer with NaN is a fault too, unless an argument has NaN.
"""

from __future__ import annotations

import dataclasses
import inspect
import random
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction  # noqa: F401  # for VALUES
from pathlib import Path
from types import SimpleNamespace  # noqa: F401  # for VALUES
from typing import Any

import numpy as np
import pytest

import minibert
import minibert.inside
from minibert import (
    BertConfig,
    BertModel,
    BertTokenizer,
    CrossEncoder,
    Edit,
    MultiVectorEncoder,
    SentenceTransformer,
    SparseEncoder,
    exact,
    plot,
    search,
    similarity,
)
from minibert.checkpoint.files import locate
from minibert.integrations import ChromaEmbeddingFunction, LangChainEmbeddings
from minibert.scikit import MinibertTransformer
from minibert.vectors import layers as vectors
from tests.support.checkpoints import random_checkpoint
from tests.support.multi_vectors import bert_folder, native
from tests.support.refusals import Raises, array, itself, nested  # noqa: F401  # for VALUES
from tests.support.report import REPORT
from tests.support.sentence_heads import MASKED, SEQUENCE, model_folder
from tests.support.task_models import CLASS_OF, NLI_LABELS, task_folder

ALLOWED = (TypeError, ValueError, MemoryError, OSError, minibert.ModelFormatError, minibert.DownloadError)
SAMPLE, SEED = 2000, 20


class Index:
    def __index__(self) -> int:
        return 1


def grid() -> np.ndarray:
    return np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


# Expressions, so that each case gets its own value.
VALUES = r"""
    None; True; False; np.True_; ...; NotImplemented; 0; -1; 3; 2**63 - 1; 2**63; -2**63 - 1; 2**64; 10**30; 10**5000;
    -10**5000; [10**5000]; [[10**5000]]; {10**5000: 10**5000}; np.int8(100); np.int8(-128); np.uint8(255);
    np.uint64(2**64 - 1); Index(); 0.5; 1e308; -0.0; float('nan'); float('inf'); np.float16('nan'); 1j;
    np.complex64(1j); Fraction(1, 3); np.datetime64('2020-01-01'); ''; ' '; 'abc'; '3'; 'a\ud800'; '\0'; '\a';
    'ab ' * 300; np.str_('cat'); b''; b'abc'; bytearray(b'abc'); memoryview(b'abc'); []; (); {}; {1, 2}; range(3);
    slice(None); [None]; ['a', None]; ['a', 3]; ['a', ['b']]; ['a', '\udfff']; [[1], [1, 2]]; [0, 0]; {'a': 1};
    {1: 'a'}; [{}]; nested(3000); nested(40); (x for x in ['a', 'b']); itself(); object(); dict;
    lambda *_, **__: None; lambda *_, **__: 'text'; SimpleNamespace(shape=(3, 4), dtype='float32'); Raises(); array();
    KeyError('x'); Path('no such folder'); np.array(1.0); np.array(1); np.array(None, object); np.array('abc');
    np.zeros(0, 'f4'); np.zeros((0, 4), 'f4'); np.zeros((3, 0), 'f4'); np.zeros((1,) * 20);
    np.arange(12).reshape(3, 4); np.ones((3, 4), bool); np.full((3, 4), 2**62); grid().astype(object);
    np.array([nested(2000), None], object); np.array(['a', 'b']); np.array([b'a', b'b']);
    np.zeros(3, [('a', 'f4'), ('b', 'i4')]); grid().astype(complex); np.zeros((3, 4), 'M8[s]');
    np.where(grid() > 0.5, np.float32('nan'), grid()); np.where(grid() > 0.5, np.inf, grid());
    grid() * np.float64(1e300); grid() * np.float64(1e-300); grid() * np.float32(3e38); grid().astype('f2');
    grid().astype(np.longdouble); grid().astype('>f4'); grid()[::-1, ::-1];
    np.lib.stride_tricks.as_strided(grid(), (3, 4), (0, 4)); np.lib.stride_tricks.as_strided(grid(), (3, 4), (4, 4));
    np.broadcast_to(np.float32(1), (3, 4)); np.ma.masked_greater(grid(), 0.5); grid().view(np.matrix);
    [grid(), grid()[:2]]
    """
HOSTILE = [expression.strip() for expression in VALUES.split(";")]


@dataclasses.dataclass(frozen=True)
class Call:
    """A function, correct arguments, and the names of the arguments that are replaced."""

    name: str
    function: Callable[..., Any]
    given: dict[str, Any]
    replaced: list[str]


def setting(owner: Any, name: str, then: Callable[[Any], Any]) -> Callable[..., Any]:
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


class Calls(list[Call]):
    """A growing list of calls. A parameter whose name is in `correct` gets this value if no other is given."""

    def __init__(self, correct: dict[str, Any]) -> None:
        super().__init__()
        self.correct = correct

    def add(self, call: str, function: Callable[..., Any], /, **given: Any) -> None:
        """Add a call whose parameters are all replaced: those of the signature and those that are given."""
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        given = {name: self.correct[name] for name in names if name in self.correct} | given
        self.append(Call(call, function, given, [*dict.fromkeys([*names, *given])]))

    def vary(self, call: str, function: Callable[..., Any], /, **given: Any) -> None:
        """Add a call that replaces only what is given here."""
        self.add(call, function, **given)
        self[-1].replaced[:] = given

    def methods(self, owner: Any, without: str, then: Callable[[Any], Any] = repr, /, **given: Any) -> None:
        """Add the public methods that take arguments, and the properties that can be set; each gets what it knows."""
        for name in dir(type(owner)):
            member = inspect.getattr_static(owner, name)
            if (name.startswith("_") and name != "__call__") or name in without.split():
                continue
            if isinstance(member, property):
                if member.fset is not None:
                    value = given.get(name, getattr(owner, name))
                    self.vary(f"{type(owner).__name__}.{name} =", setting(owner, name, then), value=value)
            elif callable(method := getattr(owner, name)) and (known := inspect.signature(method).parameters):
                own = {key: value for key, value in given.items() if key in known}
                self.add(f"{type(owner).__name__}.{name}", method, **own)


# Methods of many classes that only raise, or that take what another method of the library made.
OF_BATCHES = "pack stop_of run_packed run_steps states steps compute results output_bytes finish"
INNER = "cuda forward to resolve_prompt windows too_long stop_multi_process_pool encode_multi_process"
# Options of the constructors of sentence models, and of the calls that compute vectors, which `**` takes.
LOAD = {
    "prompts": {"query": "q "}, "default_prompt_name": None, "device": None, "cache_folder": None, "revision": None,
    "local_files_only": True, "token": None, "backend": "numpy", "num_threads": 1, "compute_type": None,
    "trust_remote_code": False, "model_kwargs": {}, "processor_kwargs": {}, "config_kwargs": {}, "modules": None,
}  # fmt: skip
ENCODE = {
    "prompt_name": "query", "prompt": None, "batch_size": 32, "layers": None, "layer_pooling": "concat",
    "pooling": None, "special_tokens": True, "stride": 0, "normalize_embeddings": True, "truncate_dim": 5,
}  # fmt: skip


# A correct call of each task.
TASK_CALLS: dict[str, dict[str, Any]] = {
    "fill-mask": {"inputs": "a [MASK]", "top_k": 2, "targets": ["cat"], "tokenizer_kwargs": {}},
    "text-classification": {"inputs": ["a cat", "b"], "top_k": 1, "function_to_apply": "softmax"},
    "token-classification": {"inputs": "a cat", "aggregation_strategy": "max", "stride": 2, "ignore_labels": ["O"]},
    "question-answering": {"inputs": {"question": "who?", "context": "a cat"}, "top_k": 2, "max_answer_len": 3,
                           "doc_stride": 1},
    "zero-shot-classification": {"sequences": "a cat", "candidate_labels": ["a", "b"], "multi_label": True,
                                 "hypothesis_template": "It is {}."},
    "next-sentence": {"inputs": {"text": "a", "text_pair": "b"}},
    "feature-extraction": {"inputs": "a cat", "return_tensors": True, "tokenize_kwargs": {}},
}  # fmt: skip


def calls(folder: Path) -> list[Call]:
    model, tokenizer = BertModel.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    sentences = SentenceTransformer(folder)
    sentences.max_seq_length = 12
    config, H = model.config, model.config.hidden_size
    rng = np.random.default_rng(3)
    matrix, many, states = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (130, 4), (3, 2, 4)))
    embedded = minibert.embed_tokens(model, tokenizer, ["the cat sat", "a cat"], layers=[0, 1])
    texts = ["the cat sat", "hello world", "", "a cat and a dog by the river bank of the first man"]
    batch = tokenizer(texts, padding=True, return_tensors="np")
    inputs = {name: value[:2, :5].copy() for name, value in batch.items()}
    trace, places = model.trace(**inputs, tokens=tokenizer), minibert.word_occurrences("cat", embedded, tokenizer)
    trace.save(folder / "trace.npz")
    found = Calls({
        "name_or_path": folder, "model_name_or_path": folder, "local_files_only": True, "backend": "numpy",
        "files": locate(folder), "save_directory": folder / "saved", "path": folder / "trace.npz",
        "model": model, "tokenizer": tokenizer, "texts": texts, "text": "a cat", "inputs": texts, "word": "cat",
        "sentences": None, "truncation": "silent", "mode": False, "requires_grad": False, "include_prompt": True,
        "input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"],
        "token_type_ids": inputs["token_type_ids"], "position_ids": np.arange(5)[None], "allow_noop": True,
        "record": "pooler", "index": 1, "name": "pooler", "key": "pooler", "layer": 0,
        "embeddings": matrix, "embeddings1": matrix, "embeddings2": matrix, "a": matrix, "b": matrix[::-1],
        "query_embeddings": many, "corpus_embeddings": many, "query_chunk_size": 7, "corpus_chunk_size": 9,
        "start": 0, "end": 5, "how": "mean", "i": 1, "char": 1, "width": 5, "truncate_dim": 3, "progress": None,
        "tokens": ["a", "cat"], "ids": [2, 8], "token_ids": [2, 8, 3], "sequences": [[2, 8, 3]], "max_length": 8,
        "token_ids_0": [2, 8, 3], "already_has_special_tokens": True, "encoded_inputs": {"input_ids": [[2, 8, 3]]},
        "input": texts,
    })  # fmt: skip
    add, vary = found.add, found.vary

    add("BertConfig", BertConfig, **dataclasses.asdict(config))
    add("BertConfig.from_dict", BertConfig.from_dict, fields=config.to_dict())
    vary("BertConfig.from_dict, a field", lambda **x: BertConfig.from_dict(config.to_dict() | x), **config.to_dict())
    for kind in (BertConfig, BertTokenizer, BertModel):
        add(f"{kind.__name__}.from_pretrained", kind.from_pretrained, **{"token": None} if kind is BertConfig else {})
        add(f"{kind.__name__}.from_files", kind.from_files)
    vary("BertModel.from_files", BertModel.from_files, config=None, output_hidden_states=True, num_threads=1)
    vary("BertModel()", BertModel, weights=model.weights, ops=model.ops, output_hidden_states=1, output_attentions=0)
    add("SentenceTransformer", SentenceTransformer, **LOAD)
    add("locate", locate)

    found.methods(
        model, f"{INNER} {OF_BATCHES} stream with_ops from_files from_pretrained", tokens=tokenizer, num_layers=1,
        output_hidden_states=[0, 1], output_attentions=0, record=["hidden_states.*", "*.probs"],
        edit={"embeddings": Edit.scale(0.5)},
    )  # fmt: skip
    embeds = rng.standard_normal((2, 5, H)).astype(np.float32)
    vary("model(inputs_embeds=)", model, input_ids=None, token_type_ids=None, inputs_embeds=embeds)
    vary("model.stream", lambda **x: list(model.stream(**x)), **inputs, record="pooler", num_layers=2)
    add("model.embeddings", model.embeddings)
    for name, right in ("word_embeddings", [[1, 2]]), ("position_embeddings", [[1, 2]]), ("LayerNorm", np.ones((2, H))):
        vary(name, lambda table=name, *, value: getattr(model.embeddings, table)(value), value=right)
    add("to", lambda device: (model.to(device), batch.to(device), sentences.to(device)), device="cpu")
    add("exact.forward", exact.forward, **inputs, record="pooler", num_layers=None, tokens=None)

    def edited(name: str, edit: Any) -> Any:
        return model.trace(**inputs, edit={name: edit}, allow_noop=True)

    for name, value in {"embeddings": 0.5, "*.scores": lambda scores: scores, "pooler": np.zeros(H)}.items():
        add(f"edit[{name}]", edited, name=name, edit=value)
    vary("Edit.zero(features=)", lambda **x: edited("pooler", Edit.zero(**x)), features=[0, 2])
    add("Edit.function", lambda function: edited("pooler", Edit.function(function)), function=np.abs)
    add("head_mask", lambda mask: model.trace(**inputs, edit=minibert.head_mask(mask)), mask=np.ones((2, 3)))
    found.methods(trace, "load page show value_of output_map")
    add("Trace.page", trace.page, path=folder / "page.html")
    add("Trace.load", minibert.Trace.load)

    found.methods(
        tokenizer, "from_files from_pretrained check_asked add_special_token warn_of_unknown",
        lambda one: (one("a cat"), one.decode([2, 3])), truncation=True, padding=True,
    )  # fmt: skip
    ways = {"padding": True, "truncation": True, "stride": 1, "pad_to_multiple_of": 4, "return_length": True,
            "return_overflowing_tokens": True, "return_offsets_mapping": True}  # fmt: skip
    vary("tokenizer(texts)", tokenizer, text=texts, **ways, max_length=8)
    vary("tokenizer(pairs)", tokenizer, text=texts, text_pair=texts, padding="max_length", truncation=True)
    vary("tokenizer(words)", tokenizer, text=[["a", "cat"]], is_split_into_words=True, truncation=True)
    vary("encode, padded", tokenizer.encode, padding="max_length", truncation=True, return_tensors="np")
    for name in ("padding_side", "truncation_side"):
        change = setting(tokenizer, name, lambda one: one(texts, padding=True, truncation=True, max_length=8))
        add(f"tokenizer.{name} =", change, value="left")
    for name in ("tokens", "word_ids", "sequence_ids", "char_to_token", "char_to_word"):
        add(f"batch.{name}", getattr(batch, name))
    for name in ("token_to_chars", "token_to_word", "token_to_sequence"):
        add(f"batch.{name}", getattr(batch, name), token=1)
    for name in ("word_to_tokens", "word_to_chars"):
        add(f"batch.{name}", getattr(batch, name), word=1)
    vary("tokenizer.pad(options)", tokenizer.pad, encoded_inputs=[{"input_ids": [2]}, {"input_ids": [2, 3]}],
         padding="max_length", pad_to_multiple_of=4, padding_side="left", return_tensors="np")  # fmt: skip

    def used(one: SentenceTransformer) -> Any:
        return one.encode_query(texts), one.encode(texts), one.get_embedding_dimension(), repr(one)

    found.methods(sentences, f"{INNER} __call__ plan", used, max_seq_length=9, similarity_fn_name="dot",
                  prompts={"query": "q"}, path=folder / "sentences")  # fmt: skip
    add("default_prompt_name =", setting(sentences, "default_prompt_name", used), value="query")
    encode = sentences.encode
    options = ENCODE | {"truncation": "silent"}
    vary("encode(options)", encode, **options, return_info=True, task="query", pool=None, chunk_size=2)
    vary("encode(split)", encode, truncation="split", stride=1, prompt="a ")
    vary("encode(tokens)", encode, output_value="token_embeddings", layers=[0, -1], truncate_dim=None)
    vary("encode(all)", encode, output_value=None, pooling="max")
    for name, function in ("encode", encode), ("encode_iter", sentences.encode_iter):
        vary(f"{name}(out=)", function, inputs=texts[:3], out=np.zeros((3, 3), np.float32), truncate_dim=3)
    for precision in similarity.PRECISIONS:
        vary(f"encode({precision})", encode, inputs=texts, precision=precision, truncate_dim=9)
        vary("quantize_embeddings", similarity.quantize_embeddings, embeddings=matrix, precision=precision,
             ranges=[[-1.0] * 4, [1.0] * 4], calibration_embeddings=many)  # fmt: skip
        vary("quantize_embeddings, alone", similarity.quantize_embeddings, embeddings=many, precision=precision)
    vary("encode_iter", sentences.encode_iter, **options, chunk_size=2)
    vary("encode_chunks", sentences.encode_chunks, **options, chunk_size=2, return_info=True)

    scorer = CrossEncoder(model_folder(folder / "pairs", SEQUENCE, num_labels=1), backend="numpy")
    add("CrossEncoder.predict", scorer.predict, inputs=[("a", "cat"), ("a", "b")], activation_fn="Tanh")
    add("CrossEncoder.rank", scorer.rank, query="a", documents=texts, top_k=2)
    sparse = SparseEncoder(model_folder(folder / "sparse", MASKED), backend="numpy")
    add("SparseEncoder.encode", sparse.encode, max_active_dims=3)
    add("SparseEncoder.decode", sparse.decode, embeddings=sparse.encode(texts), top_k=2)
    of_tokens = MultiVectorEncoder(native(bert_folder(folder / "bert"), folder / "tokens"), backend="numpy")
    add("MultiVectorEncoder.encode", of_tokens.encode, task="query", token_pooling=None)
    add("MultiVectorEncoder.similarity", of_tokens.similarity, embeddings1=[matrix], embeddings2=[matrix])
    for task, given in TASK_CALLS.items():
        labels = {"id2label": NLI_LABELS} if task == "zero-shot-classification" else {}
        pipe = minibert.pipeline(task, task_folder(folder / task, CLASS_OF[task], **labels), backend="numpy")
        length = "max_seq_len" if task == "question-answering" else "max_length"
        vary(f"pipeline({task})", pipe, **given, **{length: 20}, truncation=None, batch_size=1, padding=True)

    of_inside: dict[str, dict[str, Any]] = {
        **{name: {"trace": trace} for name in ("heads", "rollout", "norms")},
        **{name: {"inputs": inputs} for name in ("ablate_heads", "value_zeroing")},
        "patch": {"clean": inputs, "corrupt": inputs}, "compare_layers": {"trace_a": trace, "trace_b": trace},
        "explain_similarity": {"model": sentences, "a": "a cat", "b": "the cat"},
        "leave_one_out": {"model": sentences, "score": "the cat"},
    }  # fmt: skip
    for name, own in of_inside.items():
        add(f"inside.{name}", getattr(minibert.inside, name), **own)

    add("embed_tokens", minibert.embed_tokens, layers=[0, 1], layer_pooling="sum")
    add("word_occurrences", minibert.word_occurrences, texts=embedded)
    found.methods(embedded[0], "")
    add("in_context", places.places[0].in_context)
    add("combine_layers", minibert.combine_layers, hidden_states=[matrix, matrix])
    add("join_subwords", vectors.join_subwords, vectors=matrix)
    add("resolve_layers", lambda layers: vectors.resolve_layers(layers, 2), layers=[0, 1])
    for pair in similarity.SIMILARITY_FUNCTIONS.values():
        for function in (*pair, search.semantic_search, search.paraphrase_mining_embeddings):
            add(function.__name__, function)
    add("normalize_embeddings", similarity.normalize_embeddings)
    add("truncate_embeddings", similarity.truncate_embeddings)
    add("paraphrase_mining", search.paraphrase_mining, model=sentences, sentences=texts)
    add("community_detection", search.community_detection, threshold=0.9, min_community_size=2, batch_size=11)
    add("plot_hidden_values", plot.plot_hidden_values, vectors=states, layers=[0, 1], bins=4)
    add("plot_word_similarities", plot.plot_word_similarities, occurrences=places)
    add("plot_layers_pca", plot.plot_layers_pca, vectors=states, layers=[0, 1], labels=["a", "b", "a"])
    add("principal_components", plot.principal_components, x=matrix)

    names = [*inspect.signature(MinibertTransformer).parameters]
    scikit = {name: value for name, value in {**LOAD, **ENCODE}.items() if name in names}
    vary("MinibertTransformer", lambda **x: MinibertTransformer(folder, **x).transform(["a cat"]), **scikit)
    add("transform", MinibertTransformer(folder, backend="numpy", truncation="silent").transform, X=texts)
    chroma = ChromaEmbeddingFunction(folder, backend="numpy")
    old = chroma.get_config()
    found.methods(chroma, "", config=old, old_config=old, new_config=old)
    add("LangChainEmbeddings", LangChainEmbeddings, model=sentences)
    found.methods(LangChainEmbeddings(sentences), "aembed_documents aembed_query")
    return found


def fault_of(call: Call, name: str, hostile: str) -> tuple[str, str | None]:
    """Make one call; return the kind of its result, and the fault of the result, if any."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = eval(hostile)
            warnings.simplefilter("error", RuntimeWarning)  # NumPy warns of a wrong number
            answer = everything(call.function(**{**call.given, name: value}))
    except ALLOWED as error:
        if "Exceeds the limit" in str(error):
            return "error", f"Python's own {error!r}"
        return "error", None if str(error) else f"a {type(error).__name__} without a message"
    except Exception as error:
        return "error", "".join(traceback.format_exception_only(error))[:200]
    return "answer", "NaN" if "nan" not in hostile and "inf" not in hostile and holds_nan(answer) else None


def holds_nan(answer: Any) -> bool:
    if isinstance(answer, np.ndarray | np.floating):
        return answer.dtype.kind == "f" and bool(np.isnan(answer).any())
    return isinstance(answer, list | tuple) and any(map(holds_nan, answer))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Call]]:
    home = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.chdir(home)  # some methods write to the path that they get
        warnings.simplefilter("ignore", UserWarning)  # the model has no modules.json
        folder = random_checkpoint(home / "model", max_position_embeddings=64)
        yield calls(folder)


def check(cases: list[tuple[Call, str, str]]) -> None:
    outcomes: Counter[str] = Counter()
    faults = []
    for call, name, hostile in cases:
        outcome, fault = fault_of(call, name, hostile)
        outcomes[outcome] += 1
        if fault:
            faults.append(f"{call.name}, {name} = {hostile}: {fault}")
    REPORT.append(
        f"hostile arguments: {len(cases)} calls, {outcomes['answer']} answers, {outcomes['error']} typed errors"
    )
    assert not faults, "\n".join([f"{len(faults)} faults:", *faults[:200]])


def all_cases(found: list[Call]) -> list[tuple[Call, str, str]]:
    return [(call, name, hostile) for call in found for name in call.replaced for hostile in HOSTILE]


def test_the_correct_arguments_give_answers(found: list[Call]) -> None:
    """Without this test, a replaced argument could fail because of another argument."""
    wrong = []
    for call in found:
        try:
            everything(call.function(**call.given))
        except Exception as error:
            wrong.append(f"{call.name}: {error!r}")
    assert not wrong, "\n".join(wrong)


def test_hostile_arguments(found: list[Call]) -> None:
    check(random.Random(SEED).sample(all_cases(found), SAMPLE))


@pytest.mark.slow
def test_all_hostile_arguments(found: list[Call]) -> None:
    check(all_cases(found))
