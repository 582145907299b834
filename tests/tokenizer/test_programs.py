"""Programs that depend on the layout of special tokens and on tokens with spaces, with a model of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers

import minibert
from minibert.cli import main
from minibert.inside import heads
from tests.models.test_families import SIZES, make
from tests.support import outcomes
from tests.support.family_tokenizers import family_folder, train
from tests.support.marks import needs_fork
from tests.support.text_data import english_texts
from tests.test_runtime import JOIN

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # no modules.json, cut texts
FAMILIES = ("roberta", "xlm-roberta", "distilbert")
TEXTS = ["All are free to rest, and to think.", "to think", "Everyone has the right to rest.", "men and women " * 30]


@pytest.fixture(params=FAMILIES)
def make_model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function: a kind of model -> a folder with a random one and a trained tokenizer."""
    family_folder(tmp_path, request.param, train(request.param, english_texts(), 300), model_max_length=30)
    monkeypatch.setitem(SIZES, "vocab_size", len(transformers.AutoTokenizer.from_pretrained(tmp_path)))

    def make_model(kind: str, **options: Any) -> Path:
        make(tmp_path, request.param, kind, **options)
        return tmp_path

    return make_model


def compare(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict | list):
        assert len(ours) == len(theirs)
        for key in theirs if isinstance(theirs, dict) else range(len(theirs)):
            compare(ours[key], theirs[key])
    else:
        assert ours == (pytest.approx(theirs, abs=2e-5) if isinstance(theirs, float | np.floating) else theirs)


def test_pairs(make_model: Any) -> None:
    folder = str(make_model("ForSequenceClassification", num_labels=1))
    pairs = [(one, other) for one in TEXTS for other in TEXTS[::-1]]
    theirs = sentence_transformers.CrossEncoder(folder, device="cpu").predict(pairs)
    np.testing.assert_allclose(minibert.CrossEncoder(folder).predict(pairs), theirs, rtol=0, atol=2e-5)
    options: Any = {"padding": True, "truncation": True}
    inputs = minibert.AutoTokenizer.from_pretrained(folder)(*zip(*pairs, strict=True), return_tensors="np", **options)
    reference = transformers.AutoTokenizer.from_pretrained(folder)(
        *map(list, zip(*pairs, strict=True)), return_tensors="pt", **options
    )
    with torch.no_grad():
        logits = transformers.AutoModelForSequenceClassification.from_pretrained(folder)(**reference).logits
    found = minibert.AutoModelForSequenceClassification.from_pretrained(folder)(**inputs).logits
    np.testing.assert_allclose(found, logits.numpy(), rtol=0, atol=2e-5)


def test_tasks(make_model: Any) -> None:
    labels = dict(enumerate(("O", "B-A", "I-A", "B-B", "I-B")))
    for task, kind, options in (
        *(
            ("token-classification", "ForTokenClassification", {"aggregation_strategy": how})
            for how in ("none", "first")
        ),
        ("fill-mask", "ForMaskedLM", {"top_k": 4}),
    ):
        folder = make_model(kind, **({"id2label": labels, "label2id": {}} if "Token" in kind else {}))
        theirs = transformers.pipeline(task, model=str(folder), device="cpu", **options)
        ours = minibert.pipeline(task, folder, **options)
        mask = ours.tokenizer.mask_token
        for text in TEXTS[:3]:
            given = f"to {mask} and{mask}" if task == "fill-mask" else text
            compare(ours(given), theirs(given))


def test_words_and_windows(make_model: Any, tmp_path: Path) -> None:
    folder = str(make_model("Model"))
    ours, theirs = minibert.SentenceTransformer(folder), sentence_transformers.SentenceTransformer(folder, device="cpu")
    assert ours.max_seq_length == theirs.max_seq_length == 30
    for model in (ours, theirs):
        model.set_pooling_include_prompt(False)
    vectors = [model.encode(TEXTS, prompt="query: ") for model in (ours, theirs)]
    np.testing.assert_allclose(*vectors, rtol=0, atol=2e-5)
    assert ours.encode(TEXTS, truncation="split").shape == (4, 24)
    bert, tokenizer = minibert.AutoModel.from_pretrained(folder), minibert.AutoTokenizer.from_pretrained(folder)
    found = minibert.word_occurrences("to", minibert.embed_tokens(bert, tokenizer, TEXTS[:2]), tokenizer)
    assert [(one.text_index, one.start) for one in found.places] == [(0, 13), (0, 26), (1, 0)]
    inputs = tokenizer(TEXTS[:2], padding=True, return_tensors="np")
    tokens = [encoding.tokens for encoding in inputs.encodings]
    kinds = heads(bert.trace(**inputs, record="attentions.*", tokens=tokens))
    assert kinds.cls is not None
    assert kinds.sep is not None
    assert (kinds.cls > 0).all()
    assert (kinds.sep > 0).all()
    (tmp_path / "in.txt").write_text(f"{TEXTS[0]} ||| {TEXTS[1]}\n")
    files = [f"--input_file={tmp_path / 'in.txt'}", f"--output_file={tmp_path / 'out.jsonl'}"]
    assert main(["extract", "-m", folder, "--format", "google", "--layers=-1", *files]) == 0
    whole = tokenizer(TEXTS[0], TEXTS[1])
    assert (tmp_path / "out.jsonl").read_text().count('"token": ') == len(whole["input_ids"])


FORKS = """
import ctypes, multiprocessing
import minibert
PATIENCE = 60
TEXTS = [f"all men are born free, number {i}" for i in range(40)]
tokenizer = minibert.AutoTokenizer.from_pretrained(HOME)
sentences, pairs = minibert.SentenceTransformer(HOME), minibert.CrossEncoder(HOME)
pipe = minibert.pipeline("text-classification", HOME)
WAYS = {
    "texts": lambda: tokenizer(TEXTS)["input_ids"],
    "pairs": lambda: tokenizer(TEXTS, TEXTS[::-1], return_offsets_mapping=True).data,
    "words": lambda: tokenizer([text.split() for text in TEXTS], is_split_into_words=True).data,
    "pieces of a long text": lambda: tokenizer(" ".join(TEXTS * 30))["input_ids"],
    "windows": lambda: [len(one) for one in tokenizer.windows([" ".join(TEXTS)] * 3, max_length=20)],
    "vectors": lambda: sentences.encode(TEXTS).tolist(),
    "lazy vectors": lambda: [one.tolist() for one in sentences.encode_iter(iter(TEXTS))],
    "scores": lambda: pairs.predict(list(zip(TEXTS, TEXTS[::-1]))).tolist(),
    "answers": lambda: pipe(TEXTS),
}
def same(*ways):
    signal.alarm(30)  # ends a child that hangs
    wrong = [way for way in ways or WAYS if WAYS[way]() != EXPECTED[way]]
    if wrong: print("WRONG NUMBER:", wrong, flush=True)
    return not wrong
def same_where_it_is_set():
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    return same()
def fork_of_c(work):
    child = ctypes.PyDLL(None).fork()  # as a server in C does it, without the functions that Python calls at a fork
    if not child: os._exit(42 if work() else 1)
    return child
def child_and_its_child():
    join(fork(lambda: same("texts")))
    return same("texts")
if __name__ == "__main__":
    EXPECTED = {"texts": WAYS["texts"]()}
    join(fork_of_c(lambda: same("texts")))  # before there are other Python threads, which would need these functions
    EXPECTED = {way: compute() for way, compute in WAYS.items()}
    os.environ.update({"TOKENIZERS_PARALLELISM": "false"} if os.environ.pop("LATER", None) else {})
    join(fork(same_where_it_is_set), fork(child_and_its_child))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        if not all(pool.map_async(same, ["texts", "scores"]).get(PATIENCE)): print("WRONG NUMBER")
    def often():
        while not done: tokenizer(TEXTS)
    done = []
    caller = threading.Thread(target=often); caller.start()
    for _ in range(5): join(fork(lambda: same("texts")))
    done.append(1); caller.join()
"""


@needs_fork
@pytest.mark.parametrize("later", [{}, {"LATER": "1"}])
@pytest.mark.parametrize("make_model", ["distilbert"], indirect=True)
def test_a_forked_child_does_not_wait_for_threads_of_the_library(make_model: Any, later: dict[str, str]) -> None:
    folder = make_model("ForSequenceClassification", num_labels=1)
    outcomes.run(JOIN + FORKS, folder, TOKENIZERS_PARALLELISM="true", **later)
