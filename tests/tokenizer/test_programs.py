"""Programs that depend on the layout of special tokens and on tokens with spaces, with a model of each kind."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from tokenizers import AddedToken

import minibert
from minibert.cli import main
from minibert.inside import heads
from tests.kernels.test_runtime import JOIN
from tests.support import outcomes
from tests.support.families import SIZES, family_folder, make, train
from tests.support.marks import needs_fork
from tests.support.text_data import english_texts

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # no modules.json, cut texts
FAMILIES = ("roberta", "xlm-roberta", "distilbert", "modernbert")
TEXTS = ["All are free to rest, and to think.", "to think", "Everyone has the right to rest.", "men and women " * 30]


@pytest.fixture(params=FAMILIES)
def make_model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function: a kind of model -> a folder with a random one and a trained tokenizer."""
    family_folder(tmp_path, request.param, train(request.param, english_texts(), 300), model_max_length=30)
    monkeypatch.setitem(SIZES, "vocab_size", len(transformers.AutoTokenizer.from_pretrained(tmp_path)))

    def make_model(kind: str, **options: Any) -> Path:
        make(tmp_path, request.param.replace("modernbert", "distilbert"), kind, **options)
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


@pytest.mark.parametrize("make_model", ["modernbert"], indirect=True)
def test_words_and_answers_begin_at_a_letter(make_model: Any) -> None:
    """The tokens of ModernBERT hold the space before a word, and so do their offsets."""
    folder = make_model("ForQuestionAnswering")
    answers = minibert.pipeline("question-answering", folder)(question="to?", context=TEXTS[0], top_k=20)
    assert len(answers) == 20
    for one in answers:
        assert TEXTS[0][one["start"] : one["end"]] == one["answer"] == one["answer"].strip()
    tokenizer = minibert.AutoTokenizer.from_pretrained(folder)
    (vectors,) = minibert.embed_tokens(minibert.AutoModel.from_pretrained(folder), tokenizer, TEXTS[:1])
    assert vectors.words().words == ("All", "are", "free", "to", "rest", ",", "and", "to", "think", ".")
    assert any(TEXTS[0][start] == " " for start, _ in vectors.offsets.tolist())


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


FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
ADDED = [dict(zip(FLAGS, flags, strict=True)) for flags in itertools.product((False, True), repeat=5)]


@pytest.fixture(scope="module", params=["distilbert", "roberta", "xlm-roberta", "modernbert"])
def added(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a folder with a model of entities and added tokens of every kind, and texts with each of them."""
    trained = train(request.param, english_texts(), 300)
    folder = family_folder(tmp_path_factory.mktemp("added") / "model", request.param, trained, model_max_length=36)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(f"<K{i}x>", **flags) for i, flags in enumerate(ADDED)])
    tokenizer.add_tokens([AddedToken(f"Ké{i}", **flags) for i, flags in enumerate(ADDED)])
    tokenizer.save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "vocab_size", len(tokenizer))
        labels = dict(enumerate(("O", "B-A", "I-A", "B-B", "I-B")))
        make(
            folder,
            request.param.replace("modernbert", "distilbert"),
            "ForTokenClassification",
            id2label=labels,
            label2id={},
        )
    texts = []
    for i in range(32):
        a, b, c = f"<K{i}x>", f"Ké{i}", f"<K{7 * i % 32}x>"
        texts += [f"all {a} men  {b}  free {a}{b} and{a}born{b} x {a}, {b}. {c} {a}\t{b.lower()} K ", f"{a} all {b}"]
    return folder, texts


@pytest.mark.parametrize("how", ["none", "simple", "first", "average", "max"])
def test_entities_with_added_tokens(added: tuple[Path, list[str]], how: str) -> None:
    folder, texts = added
    options: dict[str, Any] = {"aggregation_strategy": how, "ignore_labels": []}
    ours = minibert.pipeline("ner", folder, **options)
    theirs = transformers.pipeline("ner", model=str(folder), device="cpu", **options)
    few = texts[::2] if how == "first" else texts[::7]
    compare(ours(few), theirs(few, batch_size=32))
    words = few[1].split(" ")
    compare(ours(words, is_split_into_words=True), theirs(words, is_split_into_words=True))


def test_words_and_calls_with_added_tokens(added: tuple[Path, list[str]]) -> None:
    """A word does not begin or end with a space that an added token takes."""
    folder, texts = added
    ours, theirs = minibert.AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    model = minibert.AutoModel.from_pretrained(folder)
    options = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    for text, found in zip(texts, minibert.embed_tokens(model, ours, texts, truncation="silent"), strict=True):
        ids = theirs(text, truncation=True)["input_ids"]
        assert {**ours(text, **options)} == {**theirs(text, **options)}
        assert ours(text).tokens() == theirs(text).tokens()
        assert list(found.tokens) == theirs.convert_ids_to_tokens(ids)
        words = found.words()
        for word, (start, end) in zip(words.words, words.offsets, strict=True):
            assert text[start:end] == word
            assert word == word.strip() or not word.strip()
    embedded = minibert.embed_tokens(model, ours, ["all <K24x> men"])  # this token takes the spaces on both sides
    places = minibert.word_occurrences("<K24x>", embedded, ours).places
    assert [(one.start, one.end) for one in places] == [(4, 10)]


@pytest.mark.parametrize(
    "flags", [{"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True, "single_word": True}]
)
@pytest.mark.parametrize("make_model", ["distilbert", "xlm-roberta"], indirect=True)
def test_masks_with_flags(make_model: Any, flags: dict[str, bool]) -> None:
    folder = make_model("ForMaskedLM")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    mask = str(tokenizer.mask_token)
    tokenizer.mask_token = AddedToken(mask, special=True, **flags)
    tokenizer.save_pretrained(folder)
    ours, theirs = minibert.pipeline("fill-mask", folder), transformers.pipeline("fill-mask", str(folder), device="cpu")
    for text in (f"all {mask} men", f" {mask} ", f"to {mask} and {mask}{mask} , x"):
        compare(ours(text), theirs(text))
    (word,) = ours(f"all {mask} men", targets=f" {mask} ")
    assert word["token"] == tokenizer.mask_token_id


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
