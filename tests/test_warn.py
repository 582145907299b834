"""Every warning names the line that called minibert, for every way to call it."""

from __future__ import annotations

import _thread
import json
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline

from minibert import SentenceTransformer, embed_tokens, pipeline
from minibert._utils.reporting import warn_caller
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.integrations import ChromaEmbeddingFunction, LangChainEmbeddings
from minibert.scikit import MinibertTransformer
from minibert.vectors.similarity import quantize_embeddings
from tests.support.checkpoints import sentence_model
from tests.support.command_line import run
from tests.support.task_models import task_folder

LONG = ["the cat", "the cat sat on the mat " * 3]
FEW = ["the cat", "a b c"]
MANY = pandas.DataFrame({"text": LONG})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model with a limit of five tokens, of a family whose prompts minibert knows."""
    folder = sentence_model(tmp_path_factory.mktemp("warn") / "model", sentence_bert_config={"max_seq_length": 5})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": "intfloat/e5-base"}))
    return folder


@pytest.fixture
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(folder)


def place_of(message: str, call: Callable[[], object]) -> tuple[str, int]:
    """Return the file and line that the only warning of a call names."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (found,) = [one for one in caught if message in str(one.message)]
    return found.filename, found.lineno


CUT = " cut"
CALLS: dict[str, tuple[str, Callable[[SentenceTransformer], object]]] = {
    "encode": (CUT, lambda model: model.encode(LONG)),
    "encode, int8": ("ranges come from 2 vectors", lambda model: model.encode(FEW, precision="int8")),
    "encode_query": (CUT, lambda model: model.encode_query(LONG)),
    "encode_query, no prompt": ("before each query", lambda model: model.encode_query(FEW)),
    "encode_iter": (CUT, lambda model: list(model.encode_iter(LONG))),
    "LangChain, documents": (CUT, lambda model: LangChainEmbeddings(model).embed_documents(LONG)),
    "tokenizer": ("max_length=3", lambda model: model.tokenizer(FEW, max_length=3, padding=True)),
    "embed_tokens": (CUT, lambda model: embed_tokens(model.model, model.tokenizer, LONG, max_length=5)),
    "quantize_embeddings": ("from 2 vectors", lambda model: quantize_embeddings(np.eye(2, dtype=np.float32), "uint8")),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_warning_names_the_line_that_called(model: SentenceTransformer, name: str) -> None:
    message, call = CALLS[name]
    lines = {line for _, _, line in call.__code__.co_lines()}  # type: ignore[attr-defined]
    filename, line = place_of(message, lambda: call(model))
    assert (filename, line in lines) == (__file__, True)


def test_a_warning_of_objects_that_load_the_model_themselves(folder: Path) -> None:
    def columns(transformer: MinibertTransformer) -> ColumnTransformer:
        return ColumnTransformer([("text", transformer, "text")])

    for call in (
        lambda: MinibertTransformer(str(folder)).transform(LONG),
        lambda: make_pipeline(MinibertTransformer(str(folder))).fit_transform(LONG),
        lambda: columns(MinibertTransformer(str(folder))).fit_transform(MANY),
        lambda: ChromaEmbeddingFunction(str(folder))(LONG),
    ):
        assert place_of(CUT, call) == (__file__, call.__code__.co_firstlineno)


def test_a_warning_without_a_caller_is_still_given() -> None:
    """A thread of minibert itself does not have a caller, so the warning names the outermost line."""
    names = {"__name__": "minibert.thread", "warn_caller": warn_caller, "done": threading.Event()}
    exec(compile("\ndef work():\n  warn_caller('told', RuntimeWarning)\n  done.set()", "<thread>", "exec"), names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _thread.start_new_thread(names["work"], ())  # threading.Thread would add its own frames
        assert names["done"].wait(10)
    (found,) = caught
    assert (str(found.message), found.category, found.filename, found.lineno) == ("told", RuntimeWarning, "<thread>", 3)


CHINESE = "我喜欢吃苹果"
UNKNOWN: dict[str, Callable[[SentenceTransformer], object]] = {
    "encode": lambda model: model.encode(["the cat", CHINESE]),
    "encode, windows": lambda model: model.encode(["the cat", CHINESE], truncation="split"),
    "tokenizer": lambda model: model.tokenizer(["the cat", CHINESE]),
    "embed_tokens": lambda model: embed_tokens(model.model, model.tokenizer, CHINESE),
}


def unknown_warnings(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True, action="always") as told:
        call()
    return [str(one.message) for one in told if "[UNK]" in str(one.message)]


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_text_that_the_vocabulary_does_not_know_is_told_once_a_model(name: str, folder: Path) -> None:
    for model in (SentenceTransformer(folder), SentenceTransformer(folder)):
        assert unknown_warnings(lambda model=model: model.encode(["", "the cat", "the cat 的"])) == []
        (message,) = unknown_warnings(lambda model=model: UNKNOWN[name](model))
        assert str(folder) in message
        assert unknown_warnings(lambda model=model: UNKNOWN[name](model)) == []


def test_the_real_model_tells_it_of_chinese_texts_on_the_command_line_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = SentenceTransformer(DEFAULT_MODEL)
    assert len(unknown_warnings(lambda: model.encode([CHINESE, "股票市场下跌"]))) == 1
    assert unknown_warnings(lambda: model.encode(["Straße, Äpfel ❤️ 5 %", "Привет"])) == []
    (tmp_path / "in.txt").write_text(f"the cat\n{CHINESE}\n{CHINESE}!\n")
    for arguments in (("embed", CHINESE), ("embed", "-i", f"{tmp_path}/in.txt", "-o", f"{tmp_path}/out.npy")):
        with warnings.catch_warnings(action="default"):
            code, _, err = run(capsys, *arguments)
        assert (code, err.count("[UNK]")) == (0, 1), err


def test_a_task_tells_it_too(tmp_path: Path) -> None:
    classify = pipeline("text-classification", str(task_folder(tmp_path, "BertForSequenceClassification")))
    assert len(unknown_warnings(lambda: [classify(CHINESE), classify([CHINESE, "the cat"])])) == 1
