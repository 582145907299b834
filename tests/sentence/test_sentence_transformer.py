"""SentenceTransformer and sentence-transformers: same files, same texts, vectors that differ by at most 2e-6."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from sentence_transformers import SentenceTransformer as Original
from sentence_transformers import util
from sentence_transformers.util.misc import ORIGINAL_TRANSFORMER_MODELS

from minibert import BertTokenizer, SentenceTransformer
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.cli import main
from minibert.corpus.sources import InputLine
from minibert.corpus.writers import VectorWriter
from minibert.sentence.loading import builtin_prompts, full_name
from minibert.tokenizer.windows import TokenWindows
from minibert.vectors.similarity import quantize_embeddings
from tests.support.checkpoints import locate_minilm, random_checkpoint, sentence_model, their_vectors
from tests.support.families import family_folder, train
from tests.support.refusals import Refused, check_refused
from tests.support.report import REPORT
from tests.support.text_data import VARIABLE, udhr_lines
from tests.support.tokenizer_files import AWKWARD_TEXTS

TOLERANCE = 2e-6

TEXTS = [*AWKWARD_TEXTS, "word " * 255, "long text that is cut " * 200]


@pytest.mark.parametrize("every", [80, pytest.param(3, marks=pytest.mark.slow)])
def test_equals_sentence_transformers(minilm_sentences: SentenceTransformer, every: int) -> None:
    """Compare vectors, scores, bits and integers, also those of lines in 45 languages."""
    numbered = [f"text {number}" for number in range(100)]  # the ranges of int8 need at least 100 texts
    texts = [*TEXTS, *numbered, *(dict.fromkeys(udhr_lines()[::every]) if os.environ.get(VARIABLE) else ())]
    ours, expected = minilm_sentences.encode(texts, truncation="silent"), their_vectors(locate_minilm(), texts)
    apart = np.abs(ours - expected).max()
    assert apart <= TOLERANCE
    scores = minilm_sentences.similarity(ours[:100], ours)
    np.testing.assert_allclose(scores, util.cos_sim(expected[:100], expected).numpy(), atol=TOLERANCE)
    differing = 0.0
    for precision in ("int8", "uint8", "binary", "ubinary"):
        few = minilm_sentences.encode(texts[-100:], precision=precision, truncation="silent")
        np.testing.assert_array_equal(few, util.quantize_embeddings(ours[-100:], precision))
        quantized, theirs = quantize_embeddings(ours, precision), util.quantize_embeddings(expected, precision)
        assert (quantized.dtype, quantized.shape) == (theirs.dtype, theirs.shape)
        if precision.endswith("int8"):
            steps = np.abs(quantized.astype(int) - theirs.astype(int))
            assert steps.max() <= 1  # a rounding error may cross the boundary of a step
            differing = max(differing, float((steps > 0).mean()))
    REPORT.append(
        f"SentenceTransformer: {len(texts)} texts, at most {apart:.1e} from sentence-transformers; "
        f"{100 * differing:.3f} % of the 8 bit numbers differ by one step"
    )
    assert differing < 1e-3


def test_empty_list_and_windows(minilm_sentences: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert minilm_sentences.encode([]).shape == (0, 384)
    whole = minilm_sentences.encode(TEXTS[:8])
    monkeypatch.setattr("minibert.sentence.base._TEXTS_AT_ONCE", 3)
    np.testing.assert_allclose(minilm_sentences.encode(TEXTS[:8]), whole, atol=1e-6)
    np.testing.assert_array_equal(
        minilm_sentences.encode(np.array(TEXTS[3:5])), minilm_sentences.encode(tuple(TEXTS[3:5]))
    )


def test_truncation_is_never_silent_unless_asked(minilm_sentences: SentenceTransformer) -> None:
    long = "long " * 300
    with pytest.warns(UserWarning, match=r"1 of 2 texts have more than 256 tokens .*index 1"):
        minilm_sentences.encode(["short", long])
    with pytest.raises(ValueError, match=r"inputs\[1\] has 302 tokens, the limit is 256"):
        minilm_sentences.encode(["short", long], truncation="error")
    minilm_sentences.encode(long, truncation="silent")


def test_max_seq_length(minilm_sentences: SentenceTransformer) -> None:
    assert minilm_sentences.max_seq_length == 256  # tokenizer.json says 128, tokenizer_config.json 512
    model = SentenceTransformer(DEFAULT_MODEL)
    model.max_seq_length = 4
    np.testing.assert_allclose(
        model.encode("one two three four", truncation="silent"), minilm_sentences.encode("one two"), atol=1e-6
    )
    model.max_seq_length = np.int64(5)
    assert type(model.max_seq_length) is int
    for wrong in (0, 1, 513, True, 2.0, None):
        error = ValueError if type(wrong) is int else TypeError
        with pytest.raises(error, match=r"max_seq_length=.*; expected an int, 2 to 512"):
            model.max_seq_length = wrong


@pytest.mark.parametrize("of_the_tokenizer", [8, 24, 10**30])
@pytest.mark.parametrize("of_the_model", [None, 6, 16])
def test_the_limit_is_the_one_sentence_transformers_takes(
    tmp_path: Path, of_the_tokenizer: int, of_the_model: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """sentence_bert_config.json replaces the tokenizer's limit, whether it is lower or higher."""
    folder = sentence_model(tmp_path / "model", sentence_bert_config={"max_seq_length": of_the_model})
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": of_the_tokenizer}))
    model = SentenceTransformer(folder)
    assert model.max_seq_length == (of_the_model or min(of_the_tokenizer, model.model.config.max_position_embeddings))
    texts = ["cat sat on the mat " * 3]
    np.testing.assert_allclose(model.encode(texts, truncation="silent"), their_vectors(folder, texts), atol=TOLERANCE)
    assert main(["info", "-m", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["max_seq_length"] == model.max_seq_length


@pytest.mark.parametrize(
    "name", ["bert-base-german-dbmdz-cased", "BERT-base-uncased", "all-MiniLM-L6-v2", "tests", "a/b", "", "e5"]
)
def test_short_names_are_completed_as_theirs(name: str) -> None:
    plain = "/" in name or not name or Path(name).exists() or name.lower() in ORIGINAL_TRANSFORMER_MODELS
    assert full_name(name) == (name if plain else f"sentence-transformers/{name}")


def test_bad_arguments(minilm_sentences: SentenceTransformer) -> None:
    encode, given = minilm_sentences.encode, {"inputs": "long " * 300}
    table: Refused = {
        ("inputs", TypeError): (
            *(["a", None], ["a", float("nan")], [["a", "b"]], ["a", 3], ["a", b"b"], np.array([["a"], ["b"]])),
            *(np.array([1.5]), {"a": "b"}, None, 7, (text for text in ["a"]), b"bytes"),
        ),
        ("inputs", ValueError): (["a", "b\ud800"], ["ok"] * 1500 + ["\ud800"]),
        ("batch_size", ValueError): (0, -3),
        ("device", ValueError): ("cuda", ["cpu", "cuda:1"]),
        ("processing_kwargs", ValueError): ({"text": {"max_length": 4}},),
        ("output_value", ValueError): ("sentences",),
        ("precision", ValueError): ("float64", "int8"),  # one vector does not have ranges
        ("truncate_dim", ValueError): (0,),
        ("truncation", ValueError): ("cut", "error"),
        ("stride", ValueError): (3,),
        ("prompt", ValueError): ("\ud800",),
        ("prompt_name", ValueError): (3, "passage"),
        ("sentences", TypeError): ("b",),
        ("out", TypeError): (np.zeros(384, dtype=int), [0.0] * 384),
        ("out", ValueError): (np.zeros(383), np.broadcast_to(np.float32(1), 384).copy()[None]),
    }
    check_refused(encode, given, table)
    for options, message in (
        ({"truncation": "split", "stride": -1}, "stride=-1"),
        ({"truncation": "split", "stride": 254}, "stride=254 must be less"),
        ({"truncation": "split", "prompt": "long " * 260}, "none is left for the text"),
        ({"out": np.zeros(384), "precision": "binary"}, "precision"),
        ({"output_value": "token_embeddings", "precision": "int8"}, "precision='int8' is only for sentence vectors"),
        ({"pooling": "none", "normalize_embeddings": True}, "normalize_embeddings"),
        ({"pooling": "none", "truncation": "split"}, "truncation"),
        ({"pooling": "none", "output_value": None}, "pooling='none'"),
    ):
        with pytest.raises(ValueError, match=message):
            encode(**given, **options)


def test_columns_of_texts(minilm_sentences: SentenceTransformer) -> None:
    texts = TEXTS[2:6]
    expected = minilm_sentences.encode(texts)
    columns = (tuple(texts), np.array(texts), np.array(texts, dtype=object), pandas.Series(texts, index=[3, 2, 1, 0]))
    for column in (*columns, pyarrow.array(texts), pyarrow.chunked_array([texts[:1], texts[1:]])):
        np.testing.assert_array_equal(minilm_sentences.encode(column), expected)
    np.testing.assert_array_equal(minilm_sentences.encode(sentences=texts), expected)
    with pytest.raises(TypeError, match=r"inputs\[1\] is NoneType"):
        minilm_sentences.encode(pyarrow.array(["a", None]))


def test_kinds_of_output(minilm_sentences: SentenceTransformer, capsys: pytest.CaptureFixture[str]) -> None:
    texts = TEXTS[:6]
    vectors = minilm_sentences.encode(texts)
    listed = minilm_sentences.encode(texts, convert_to_numpy=False)
    assert isinstance(listed, list)
    np.testing.assert_array_equal(np.stack(listed), vectors)
    tokens = minilm_sentences.encode(texts, output_value="token_embeddings")
    dicts = minilm_sentences.encode(texts, output_value=None)
    original = Original(str(locate_minilm()), device="cpu")
    their_tokens = original.encode(texts, output_value="token_embeddings")
    their_dicts = original.encode(texts, output_value=None)
    for ours, one, theirs_, other in zip(tokens, dicts, their_tokens, their_dicts, strict=True):
        np.testing.assert_allclose(ours, theirs_.numpy(), atol=1e-5)
        assert set(one) <= set(other)
        mask = other["attention_mask"].numpy() == 1
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"].numpy()[mask])
        np.testing.assert_array_equal(one["token_embeddings"], ours)
        np.testing.assert_allclose(one["sentence_embedding"], other["sentence_embedding"].numpy(), atol=TOLERANCE)
    short = minilm_sentences.encode(texts, output_value=None, truncate_dim=5)
    np.testing.assert_array_equal([one["sentence_embedding"] for one in short], [v[:5] for v in vectors])
    assert short[1]["token_embeddings"].shape == dicts[1]["token_embeddings"].shape
    assert minilm_sentences.encode("a", output_value="token_embeddings").shape == (3, 384)
    assert minilm_sentences.encode([], output_value="token_embeddings") == []
    assert minilm_sentences.encode([], precision="ubinary").shape == (0, 48)
    half = minilm_sentences.encode(texts, precision="float16")
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, vectors.astype(np.float16))
    for options in ({}, {"output_value": None}, {"spans": "sentences"}):
        capsys.readouterr()
        minilm_sentences.encode(texts, show_progress_bar=True, **options)
        assert "100%" in (shown := capsys.readouterr().err)
        assert "6/6" in shown


def test_parts_of_equal_texts(minilm_sentences: SentenceTransformer) -> None:
    """They are computed once, and each text has arrays of its own; but each text has its own spans."""
    text = "The river bank was flooded."
    spans = [[(0, 3)], [(4, 9), (10, 14)], [(0, 3)]]
    for vectors, own in zip(minilm_sentences.encode([text] * 3, spans=spans), spans, strict=True):
        np.testing.assert_array_equal(vectors, minilm_sentences.encode(text, spans=own))
    first, second = minilm_sentences.encode([text] * 2, output_value="token_embeddings")
    dicts = minilm_sentences.encode([text] * 2, output_value=None)
    for one, other in ((first, second), (dicts[0]["token_embeddings"], dicts[1]["token_embeddings"])):
        np.testing.assert_array_equal(one, other)
        assert type(one) is type(other)
        assert not np.shares_memory(one, other)


class Shrinking(Sequence[str]):
    """Texts of which some are gone when they are read."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        return ["a"][index]


def test_texts_that_are_fewer_than_their_number(minilm_sentences: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="Of 3 texts only 1 could be read"):
        minilm_sentences.encode(Shrinking())


def test_float16_does_not_overflow(minilm_sentences: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="greatest number of float16"):
        VectorWriter(str(tmp_path / "o.jsonl"), False, 2, "float16", True, "").write(
            [io.BytesIO()], 0, [InputLine("a", 0, "f", 1)], np.array([[7e4, 1]], np.float32)
        )


def test_out_and_truncate_dim(minilm_sentences: SentenceTransformer, tmp_path: Path) -> None:
    texts = TEXTS[:6]
    vectors = minilm_sentences.encode(texts)
    file = np.memmap(tmp_path / "vectors", dtype=np.float16, mode="w+", shape=(6, 384))
    assert minilm_sentences.encode(texts, out=file) is file
    np.testing.assert_array_equal(file, vectors.astype(np.float16))
    one = np.full(384, np.nan, dtype=np.float32)
    minilm_sentences.encode(texts[3], out=one)
    np.testing.assert_allclose(one, vectors[3], atol=1e-6)

    np.testing.assert_array_equal(minilm_sentences.encode(texts, truncate_dim=10), vectors[:, :10])
    short = minilm_sentences.encode(texts, truncate_dim=10, normalize_embeddings=True)
    np.testing.assert_allclose(
        short, their_vectors(locate_minilm(), texts, truncate_dim=10, normalize_embeddings=True), atol=TOLERANCE
    )
    model = SentenceTransformer(truncate_dim=12)
    assert model.get_embedding_dimension() == model.get_sentence_embedding_dimension() == 12
    np.testing.assert_array_equal(model.encode(texts), vectors[:, :12])
    assert model.encode(texts, truncate_dim=500).shape == (6, 384)


# --- long texts ------------------------------------------------------------------------------------------------------

LONG = " ".join(f"Sentence number {i} tells of bank {i % 7} and the river, naïve café 北京." for i in range(60))


def test_return_info_counts_tokens(minilm_sentences: SentenceTransformer) -> None:
    whole = len(minilm_sentences.tokenizer.encode(LONG))
    vectors, info = minilm_sentences.encode(["", "two words", LONG], truncation="silent", return_info=True)
    assert vectors.shape == (3, 384)
    assert [(one.n_tokens, one.n_truncated) for one in info] == [(2, 0), (4, 0), (whole, whole - 256)]
    assert [one.windows[0] for one in info[:2]] == [(0, 0), (0, 9)]
    (start, end), kept = info[2].windows[0], minilm_sentences.tokenizer.encodings([LONG], max_length=256)[0]
    assert (start, end) == (0, kept.offsets[-2, 1])
    _, one = minilm_sentences.encode("two words", prompt="query: ", return_info=True)
    assert (one.n_tokens, one.windows) == (6, ((0, 9),))


@pytest.mark.parametrize("stride", [0, 20])
@pytest.mark.parametrize("prompt", [None, "query: "])
def test_split_into_windows(minilm_sentences: SentenceTransformer, stride: int, prompt: str | None) -> None:
    """The windows contain every token, overlap by the stride, and their vectors' weighted mean is the text's."""
    options = {"truncation": "split", "stride": stride, "prompt": prompt, "return_info": True}
    vector, info = minilm_sentences.encode(LONG, **options)
    text_tokens = [tuple(offsets) for offsets in minilm_sentences.tokenizer.encodings([LONG])[0].offsets[1:-1]]
    room = 256 - 2 - (2 if prompt else 0)
    held = [[t for t in text_tokens if start <= t[0] and t[1] <= end] for start, end in info.windows]
    assert info.n_tokens == len(text_tokens) + 2 + (2 if prompt else 0)
    assert info.n_truncated == 0
    assert [len(tokens) for tokens in held[:-1]] == [room] * (len(held) - 1)
    assert {t for tokens in held for t in tokens} == set(text_tokens)
    for one, after in pairwise(held):
        assert len(set(one) & set(after)) == stride

    # The mean of the windows' means, before Normalize; each window is computed alone.
    model = minilm_sentences.model
    means, weights = [], []
    for start, end in info.windows:
        inputs = minilm_sentences.tokenizer((prompt or "") + LONG[start:end], return_tensors="np")
        means.append(model(**inputs).last_hidden_state[0].mean(axis=0))
        weights.append(inputs["input_ids"].shape[1] - 2 - (2 if prompt else 0))
    assert weights == [len(tokens) for tokens in held]
    mean = np.average(np.stack(means).astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=TOLERANCE)


def test_split_leaves_short_texts_alone() -> None:
    model = SentenceTransformer(backend="kernels")
    plain = model.encode(TEXTS[:5])
    together = model.encode([*TEXTS[:5], LONG], truncation="split", stride=5)
    np.testing.assert_array_equal(together[:5], plain)
    np.testing.assert_array_equal(model.encode(LONG, truncation="split", stride=5), together[5])


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """Apart from the result and the texts, 20,000 texts need no more memory than a chunk of 10,000."""
    folder = sentence_model(tmp_path / "model")
    model = SentenceTransformer(folder)
    model.encode(["the cat"] * 100)
    peaks = []
    for count in (10_000, 20_000):
        texts = [f"the cat sat on the mat {i % 500}" for i in range(count)]
        tracemalloc.start()
        vectors = model.encode(texts)
        peaks.append(tracemalloc.get_traced_memory()[1] - vectors.nbytes)
        tracemalloc.stop()
    REPORT.append(f"encode: {peaks[0] / 2**20:.1f} and {peaks[1] / 2**20:.1f} MB for 10,000 and 20,000 texts")
    assert peaks[1] < 1.2 * peaks[0] + 2**20


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_encode_query_and_document(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "the cat ", "document": "on the mat "}, "default_prompt_name": "document"}
    folder = sentence_model(tmp_path / "model", config_sentence_transformers=prompts)
    for given in ({}, {"prompts": {"query": "", "task": "dog "}, "default_prompt_name": "task"}):
        both = SentenceTransformer(folder, **given), Original(str(folder), device="cpu", **given)
        assert both[0].prompts == both[1].prompts
        assert both[0].default_prompt_name == both[1].default_prompt_name
        for method in ("encode", "encode_query", "encode_document"):
            for options in ({}, {"prompt": "hello "}, {"prompt_name": "query"}, {"prompt": ""}):
                ours, expected = (getattr(model, method)(SMALL_TEXTS, **options) for model in both)
                np.testing.assert_allclose(ours, expected, atol=TOLERANCE)
            ours, expected = (getattr(model, method)(SMALL_TEXTS, None, "dog ") for model in both)  # by position
            np.testing.assert_allclose(ours, expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("stored", "used"),
    [({"passage": "the "}, "the "), ({"corpus": "a ", "passage": "the "}, "the "), ({"corpus": "a "}, "a "), ({}, "")],
)
def test_encode_document_takes_the_first_prompt_there_is(tmp_path: Path, stored: dict[str, str], used: str) -> None:
    folder = sentence_model(tmp_path / "model", config_sentence_transformers={"prompts": stored})
    model = SentenceTransformer(folder)
    np.testing.assert_array_equal(model.encode_document("cat"), model.encode("cat", prompt=used))
    np.testing.assert_array_equal(model.encode_query("cat"), model.encode("cat"))


SEARCH = "Represent this sentence for searching relevant passages: "


@pytest.mark.parametrize(
    ("name", "query", "passage"),
    [
        ("intfloat/e5-small", "query: ", "passage: "),
        ("intfloat/multilingual-e5-small", "query: ", "passage: "),
        ("BAAI/bge-base-en-v1.5", SEARCH, ""),
        ("BAAI/bge-large-zh-v1.5", "为这个句子生成表示以用于检索相关文章：", ""),
        ("mixedbread-ai/mxbai-embed-large-v1", SEARCH, ""),
    ],
)
def test_prompts_of_the_card(tmp_path: Path, name: str, query: str, passage: str) -> None:
    folder = sentence_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": name}))
    model = SentenceTransformer(folder)
    with pytest.warns(UserWarning, match=re.escape(f"trained with {query!r} before each query")):
        plain = model.encode_query("the cat")
    np.testing.assert_array_equal(plain, model.encode_query("the cat"))  # it warns only once
    if passage:
        with pytest.warns(UserWarning, match=re.escape(f"{passage!r} before each passage")):
            model.encode_document("the cat")
    model.encode_document("the cat")
    builtin = SentenceTransformer(folder, prompts="builtin")
    np.testing.assert_array_equal(builtin.encode_query("the cat"), model.encode("the cat", prompt=query))
    np.testing.assert_array_equal(builtin.encode_document("the cat"), model.encode("the cat", prompt=passage))
    own = {"prompts": {"query": "mine: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(own))
    assert SentenceTransformer(folder, prompts="builtin").prompts["query"] == "mine: "
    SentenceTransformer(folder).encode_query("the cat")


@pytest.mark.parametrize("name", ["intfloat/e5-mistral-7b-instruct", "BAAI/bge-m3", "me/e5-small", "e5-small", 3, None])
def test_other_names_have_no_prompts(name: object) -> None:
    assert builtin_prompts(name) == {}


# --- models made by the tests ----------------------------------------------------------------------------------------


OLD = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
SMALL_TEXTS = ["", "the cat", "a b c d e f g", "the the the", "cat sat on the mat"]


def test_a_model_in_a_subfolder(tmp_path: Path) -> None:
    """The first sentence-transformers models keep the Transformer in 0_BERT."""
    folder = sentence_model(tmp_path / "model")
    whole = SentenceTransformer(folder).encode(SMALL_TEXTS)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["path"] = "0_BERT"
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "0_BERT").mkdir()
    for file in list(folder.iterdir()):
        if file.is_file() and file.name != "modules.json":
            shutil.move(file, folder / "0_BERT" / file.name)
    np.testing.assert_array_equal(SentenceTransformer(folder).encode(SMALL_TEXTS), whole)


def test_without_modules_json_mean_pooling_with_a_warning(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path / "plain", hidden_size=24, num_attention_heads=3, num_hidden_layers=1)
    with pytest.warns(UserWarning, match=r"no modules.json.*mean pooling"):
        model = SentenceTransformer(folder)
    np.testing.assert_allclose(model.encode(SMALL_TEXTS), their_vectors(folder, SMALL_TEXTS), atol=TOLERANCE)


# --- parts of a text --------------------------------------------------------------------------------------------------

LATE = "The river bank is flooded.  Embeddings\tof it were  computed: 中文, naïve ½ and 🦀🦀!"
PARTS = [(0, 26), (26, len(LATE)), (28, 38), (0, 9), (7, 12), (30, 34), (0, len(LATE))]


def owners(text: str, offsets: np.ndarray) -> list[int]:
    """The character of a text that has each token."""
    return [next((i for i in range(start, end) if not text[i].isspace()), start) for start, end in offsets.tolist()]


@pytest.mark.parametrize("prompt", ["", "query: ", "the river "])
@pytest.mark.parametrize("layers", [None, [2, -2]])
def test_a_span_is_the_mean_of_its_tokens_in_the_whole_text(
    minilm_sentences: SentenceTransformer, prompt: str, layers: list[int] | None
) -> None:
    model, texts = minilm_sentences, [LATE, "A cat. " * 30, "one"]
    spans = [PARTS, np.array([[7 * i, 7 * i + 6] for i in range(30)]), []]
    found = model.encode(texts, spans=spans, prompt=prompt, layers=layers)
    for text, parts, vectors in zip(texts, spans, found, strict=True):
        batch = model.tokenizer([prompt + text], return_offsets_mapping=True, return_special_tokens_mask=True)
        states = model.model(batch["input_ids"], output_hidden_states=True).hidden_states
        state = np.concatenate([states[i][0] for i in layers or [-1]], axis=1).astype(np.float64)
        of_text = np.array(batch["special_tokens_mask"][0]) == 0
        places = np.array(owners(prompt + text, np.array(batch["offset_mapping"][0]))) - len(prompt)
        assert vectors.shape == (len(parts), state.shape[1])
        for (start, end), vector in zip(parts, vectors, strict=True):
            mean = state[of_text & (places >= start) & (places < end)].mean(axis=0)
            np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=0, atol=1e-6)
    alone = model.encode(LATE, spans=PARTS, prompt=prompt, layers=layers)
    np.testing.assert_array_equal(found[0], alone)
    halved = model.encode(LATE, spans=PARTS, truncate_dim=64, normalize_embeddings=True, convert_to_tensor=True).numpy()
    np.testing.assert_allclose(np.linalg.norm(halved, axis=1), 1, atol=1e-6)
    assert halved.shape == (len(PARTS), 64)


def test_spans_are_those_of_the_published_procedure(minilm_sentences: SentenceTransformer) -> None:
    """The functions chunk_by_sentences and chunked_pooling of github.com/jina-ai/late-chunking, in NumPy."""
    model, text = (
        minilm_sentences,
        "Berlin is the capital of Germany. It has 3.7 million inhabitants. The city is a state.",
    )
    batch = model.tokenizer([text], return_offsets_mapping=True)
    ids, offsets = batch["input_ids"][0], batch["offset_mapping"][0]
    ends = [
        (i, offsets[i][1])
        for i, token_id in enumerate(ids)
        if token_id == model.tokenizer.convert_tokens_to_ids(".")
        and (offsets[i + 1][0] > offsets[i][1] or ids[i + 1] == model.tokenizer.sep_token_id)
    ]
    assert len(ends) == 3
    rows = [(first, last + 1) for (first, _), (last, _) in pairwise([(0, 0), *ends])]
    rows = [(first + 1, last) for first, last in rows]
    state = model.model(batch["input_ids"]).last_hidden_state[0]
    pooled = np.array([state[first:last].sum(axis=0) / (last - first) for first, last in rows])
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    found = model.encode(text, spans=[*pairwise([0, *(place for _, place in ends)])])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_the_sentences_of_a_text_are_spans(minilm_sentences: SentenceTransformer) -> None:
    texts = [
        'He paid $2.50 to J.R. "Really?" she asked… Yes!! \u200b "No." (It is.)\nThe end\t\n \n  A title \n\nMore? 😀',
        "今日は晴れ。「本当？」はい！ Ok",
        "\n no stop ",
        "...",
        "",
    ]
    wanted = [
        [
            *(
                "He paid $2.50 to J.R.",
                '"Really?"',
                "she asked…",
                "Yes!!",
                '\u200b "No."',
                "(It is.)",
                "The end",
                "A title",
            ),
            "More? 😀",
        ],
        ["今日は晴れ。", "「本当？」", "はい！", "Ok"],
        ["no stop"],
        [],
        [],
    ]
    found, info = minilm_sentences.encode(texts, spans="sentences", return_info=True)
    assert [[text[slice(*span)] for span in one.spans] for text, one in zip(texts, info, strict=True)] == wanted
    for text, one, vectors in zip(texts, info, found, strict=True):
        np.testing.assert_array_equal(vectors, minilm_sentences.encode(text, spans=one.spans))
    np.testing.assert_array_equal(minilm_sentences.encode(texts[0], spans="sentences"), found[0])
    with pytest.raises(ValueError, match=r"the text is too long, only its characters 0 to"):
        minilm_sentences.encode("One sentence. " * 200, spans="sentences", truncation="silent")
    with pytest.raises(ValueError, match="spans='words'"):
        minilm_sentences.encode(texts, spans="words")


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "modernbert"])
def test_each_token_of_a_text_belongs_to_one_part(tmp_path: Path, family: str) -> None:
    """Whatever the borders, with and without the spaces between words, and where one character has several tokens."""
    folder = family_folder(tmp_path / "model", family, train(family, [LATE, "The river bank."], 300))
    tokenizer = BertTokenizer.from_pretrained(folder)
    windows = TokenWindows(tokenizer, prompt="a ", max_length=512, truncation="error", stride=0, at_once=9)
    (window,) = windows.tokenizer.encodings(["a " + LATE])
    places = owners("a " + LATE, window.offsets)
    assert family == "bert" or len({*places}) < len(places) - 2
    is_text = np.flatnonzero((window.special_tokens_mask == 0) & (np.array(places) >= 2))
    words = [found.span() for found in re.finditer(r"\S+", LATE)]
    rows, starts = windows.members(window, LATE, words, "spans")
    np.testing.assert_array_equal(rows, [row for row in is_text if not ("a " + LATE)[places[row]].isspace()])
    assert len(starts) == len(words) + 1
    generator = np.random.default_rng(0)
    for _ in range(50):
        places = sorted({0, *generator.integers(0, len(LATE), 3).tolist(), len(LATE)})
        with contextlib.suppress(ValueError):  # a part without a token
            np.testing.assert_array_equal(windows.members(window, LATE, [*pairwise(places)], "spans")[0], is_text)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 3), (5, 5)], r"spans\[0\]\[1\]=\(5, 5\) has no token"),
        ([(26, 28)], "has no token"),
        ([(-1, 3)], r"the text has the characters 0 to"),
        ([(4, 3)], r"the text has the characters 0 to"),
        ([(0, 999)], r"the text has the characters 0 to"),
        ([(0.0, 3)], "expected two ints"),
        ([(0, 3, 4)], "expected two ints"),
        ([3, 4], "expected two ints"),
    ],
)
def test_wrong_spans_are_refused(minilm_sentences: SentenceTransformer, spans: list[Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        minilm_sentences.encode(LATE, spans=spans)
    with pytest.raises(ValueError, match="1 lists for 2 texts"):
        minilm_sentences.encode([LATE, LATE], spans=[[(0, 3)]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "cls"}, "'cls'"),
        ({"pooling": ["mean", "max"]}, r"'mean \+ max'"),
        ({"pooling": "none"}, "'none'"),
        ({"truncation": "split"}, "truncation='split'"),
        ({"precision": "int8"}, "precision='int8'"),
        ({"out": np.zeros((1, 384))}, "out="),
        ({"output_value": "token_embeddings"}, "output_value"),
    ],
)
def test_options_that_do_not_fit_spans_are_refused(
    minilm_sentences: SentenceTransformer, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        minilm_sentences.encode(LATE, spans=[(0, 3)], **options)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("last", ["word", "각"])
def test_a_span_that_was_cut_off_is_an_error(side: str, last: str) -> None:
    model = SentenceTransformer(DEFAULT_MODEL)
    model.tokenizer.truncation_side, model.max_seq_length = side, 12
    words = [(6 * i, 6 * i + 5) for i in range(30)]
    text = " ".join([f"{last:5}"] * 30)
    with pytest.warns(UserWarning, match="12 tokens and was cut"):
        _, info = model.encode([text], spans=[[]], return_info=True)
    start, end = info[0].windows[0]
    inside = [span for span in words if start <= span[0] and span[0] + len(last) <= end]
    sure = inside if last == "word" else inside[:-1] if side == "right" else inside[1:]  # a syllable has three tokens
    assert sure
    found = model.encode(text, spans=sure, truncation="silent")
    assert found.shape == (len(sure), 384)
    for span in {*words} - {*sure}:
        with pytest.raises(ValueError, match="the text is too long, only its characters"):
            model.encode(text, spans=[sure[0], span], truncation="silent")
    with pytest.raises(ValueError, match="12"):
        model.encode(text, spans=sure, truncation="error")
