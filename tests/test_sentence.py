"""SentenceTransformer against sentence-transformers: same files, same texts, at most 2e-6 apart."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from minibert import ModelFormatError, SentenceTransformer
from minibert.hub import DEFAULT_MODEL, locate
from tests.checkpoints import random_checkpoint
from tests.report import REPORT
from tests.text_data import VARIABLE, udhr_lines

TOLERANCE = 2e-6

TEXTS = [
    "",
    " ",
    "a",
    "The cat sat on the mat.",
    "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank.",
    "Größe, naïve café, ÅNGSTRÖM",
    "我喜欢北京烤鸭",
    "Привет, мир! مرحبا بالعالم",
    "🙂 emoji \u200d and \x07 control \ufffd characters",
    "[CLS] literal special tokens [SEP] [MASK]",
    "word " * 255,
    "long text that is cut " * 200,
    "x" * 300,
]


@pytest.fixture(scope="module")
def minilm() -> SentenceTransformer:
    return SentenceTransformer(DEFAULT_MODEL)


def theirs(folder: Path, texts: list[str], **options: object) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's and transformers' own making
        from sentence_transformers import SentenceTransformer as Original

        model = Original(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
        return model.encode(texts, **options)


def minilm_folder() -> Path:
    return locate(DEFAULT_MODEL).require("config.json").parent


def test_equals_sentence_transformers_on_the_real_model(minilm: SentenceTransformer) -> None:
    texts = TEXTS + list(udhr_lines()[::20] if os.environ.get(VARIABLE) else ())
    ours = minilm.encode(texts, truncation="silent")
    apart = np.abs(ours - theirs(minilm_folder(), texts)).max()
    REPORT.append(f"SentenceTransformer: {len(texts)} texts, at most {apart:.1e} from sentence-transformers")
    assert ours.dtype == np.float32
    assert ours.flags.c_contiguous
    assert apart <= TOLERANCE


def test_each_text_by_itself(minilm: SentenceTransformer) -> None:
    together = minilm.encode(TEXTS, truncation="silent")
    for text, vector in zip(TEXTS, together, strict=True):
        alone = minilm.encode(text, truncation="silent")
        assert alone.shape == (384,)
        np.testing.assert_allclose(alone, vector, atol=1e-6)


def test_empty_list_and_windows(minilm: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert minilm.encode([]).shape == (0, 384)
    whole = minilm.encode(TEXTS[:8])
    monkeypatch.setattr("minibert.sentence._TEXTS_AT_ONCE", 3)
    np.testing.assert_allclose(minilm.encode(TEXTS[:8]), whole, atol=1e-6)
    np.testing.assert_array_equal(minilm.encode(np.array(TEXTS[3:5])), minilm.encode(tuple(TEXTS[3:5])))


def test_cutting_is_never_silent_unless_asked(minilm: SentenceTransformer) -> None:
    long = "long " * 300
    with pytest.warns(UserWarning, match=r"1 of 2 texts have more than 256 tokens .*index 1"):
        minilm.encode(["short", long])
    with pytest.raises(ValueError, match=r"inputs\[1\] has 302 tokens, the limit is 256"):
        minilm.encode(["short", long], truncation="error")
    minilm.encode(long, truncation="silent")


def test_a_bad_text_is_named_by_its_index_in_the_whole_list(minilm: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match=r"inputs\[1500\]"):
        minilm.encode(["ok"] * 1500 + ["\ud800"])


def test_max_seq_length(minilm: SentenceTransformer) -> None:
    assert minilm.max_seq_length == 256  # tokenizer.json says 128, tokenizer_config.json 512
    model = SentenceTransformer(DEFAULT_MODEL)
    model.max_seq_length = 4
    np.testing.assert_allclose(
        model.encode("one two three four", truncation="silent"), minilm.encode("one two"), atol=1e-6
    )
    for wrong in (0, 1, 513, True, 2.0, None):
        with pytest.raises(ValueError, match="max_seq_length="):
            model.max_seq_length = wrong


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (["a", None], TypeError, r"inputs\[1\] is a NoneType"),
        (["a", float("nan")], TypeError, r"inputs\[1\] is a float"),
        ([["a", "b"]], TypeError, r"inputs\[0\] is a list"),
        (None, TypeError, "inputs is a NoneType"),
        (7, TypeError, "inputs is a int"),
        ((text for text in ["a"]), TypeError, "inputs is a generator"),
        (["a", "b\ud800"], ValueError, "surrogate"),
        (b"bytes", TypeError, "inputs is a bytes"),
        (np.array("a"), TypeError, "inputs is a ndarray"),
    ],
)
def test_bad_inputs(minilm: SentenceTransformer, inputs: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        minilm.encode(inputs)
    with pytest.raises(ValueError, match="truncation='cut'"):
        minilm.encode("a", truncation="cut")


# --- models of our own making ----------------------------------------------------------------------------------------


def sentence_model(
    folder: Path, modules: list[str] | None = None, pooling: dict[str, object] | None = None, **files: object
) -> Path:
    """A small random BERT with the files of a sentence-transformers model around it."""
    random_checkpoint(folder, hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40)
    kinds = modules or ["models.Transformer", "models.Pooling"]
    paths = ["", *(f"{i}_{kind.rpartition('.')[2]}" for i, kind in enumerate(kinds[1:], 1))]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for path in paths[1:]:
        (folder / path).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps(pooling or {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True})
    )
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


OLD = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
SMALL_TEXTS = ["", "the cat", "a b c d e f g", "the the the", "cat sat on the mat"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": OLD},
        {"pooling": {"embedding_dimension": 24, "pooling_mode": "cls", "include_prompt": True}},
        {"pooling": {"embedding_dimension": 24, "pooling_mode": "mean"}},
        {"modules": ["models.Transformer", "models.Pooling", "models.Normalize"], "pooling": OLD},
        {
            "modules": [
                "base.modules.transformer.Transformer",
                "sentence_transformer.modules.pooling.Pooling",
                "base.modules.normalize.Normalize",
            ]
        },
        {"config_sentence_transformers": {"prompts": {"query": "the cat "}, "default_prompt_name": "query"}},
        {"sentence_bert_config": {"max_seq_length": 5, "do_lower_case": False}},
    ],
    ids=["mean", "cls, old", "cls, v6", "mean, v6", "cls + normalize", "v6 types", "default prompt", "short limit"],
)
def test_equals_sentence_transformers_on_other_pipelines(tmp_path: Path, options: dict[str, object]) -> None:
    folder = sentence_model(tmp_path / "model", **options)
    ours = SentenceTransformer(folder).encode(SMALL_TEXTS, truncation="silent")
    np.testing.assert_allclose(ours, theirs(folder, SMALL_TEXTS), atol=TOLERANCE)


def test_prompts_and_normalize_embeddings(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "the cat ", "document": ""}, "default_prompt_name": None}
    folder = sentence_model(tmp_path / "model", config_sentence_transformers=prompts)
    model = SentenceTransformer(folder)
    for options in ({}, {"prompt_name": "query"}, {"prompt": "on "}, {"normalize_embeddings": True}):
        ours = model.encode(SMALL_TEXTS, **options)
        np.testing.assert_allclose(ours, theirs(folder, SMALL_TEXTS, **options), atol=TOLERANCE)
    with pytest.raises(ValueError, match="prompt_name='passage'; this model has 'query', 'document'"):
        model.encode("a", prompt_name="passage")
    with pytest.raises(TypeError, match="prompt is a int"):
        model.encode("a", prompt=3)


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
    np.testing.assert_allclose(model.encode(SMALL_TEXTS), theirs(folder, SMALL_TEXTS), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules": ["models.Transformer", "models.Pooling", "models.CNN"]}, "Transformer, Pooling, CNN"),
        ({"modules": ["models.Transformer", "models.Pooling", "models.evil.Exec"]}, "Exec"),
        ({"pooling": {"word_embedding_dimension": 24, "pooling_mode_splade": True}}, "pooling_mode_splade"),
        ({"pooling": {"pooling_mode": ["mean", "median"]}}, "median"),
        ({"pooling": {"pooling_mode": "mean", "include_prompt": "no"}}, "include_prompt='no'"),
        ({"pooling": {"pooling_mode": 3}}, "pooling"),
        ({"pooling": {"pooling_mode": [["mean"]]}}, "pooling"),
        ({"pooling": {"pooling_mode": {"a": 1}}}, "pooling"),
        ({"config_sentence_transformers": {"prompts": {"a": ""}, "default_prompt_name": ["a"]}}, "default_prompt_name"),
        ({"sentence_bert_config": {"max_seq_length": 1}}, "max_seq_length=1"),
        ({"pooling": {"pooling_mode": "mean", "embedding_dimension": 25}}, "25"),
        ({"modules_json": "text"}, "modules.json"),
        ({"modules_json": [{"type": "sentence_transformers.models.Transformer"}]}, "a type and a path"),
        ({"modules_json": [{"type": "my_code.Pooling", "path": ""}]}, "never run"),
        ({"modules_json": [{"type": "sentence_transformers.models.Transformer", "path": "../up"}]}, "modules.json"),
        ({"sentence_bert_config": {"max_seq_length": 0}}, "max_seq_length=0"),
        ({"sentence_bert_config": {"max_seq_length": "256"}}, "max_seq_length='256'"),
        ({"sentence_bert_config": {"transformer_task": "fill-mask"}}, "transformer_task='fill-mask'"),
        ({"sentence_bert_config": []}, "sentence_bert_config.json"),
        ({"config_sentence_transformers": {"prompts": ["a"]}}, "prompts"),
        ({"config_sentence_transformers": {"prompts": {"q": 3}}}, "prompts"),
        ({"config_sentence_transformers": {"default_prompt_name": "q"}}, "default_prompt_name"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(tmp_path: Path, options: dict, message: str) -> None:
    replaced = options.pop("modules_json", None)
    folder = sentence_model(tmp_path / "model", **options)
    if replaced is not None:
        (folder / "modules.json").write_text(json.dumps(replaced))
    with pytest.raises(ModelFormatError, match=message):
        SentenceTransformer(folder)
