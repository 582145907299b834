"""Bad input of the tasks: errors of the right type that say what was given, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

import minibert
from minibert import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertTokenizer,
    ModelFormatError,
)
from tests.support.head_models import make_model, their_model
from tests.support.refusals import Refused, check_refused
from tests.support.task_models import task_folder

FolderFor = Callable[..., Path]
Ours = Callable[..., Any]
Case = tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]

TEXT = "the cat sat"
ANY_TASK: Refused = {
    ("inputs", TypeError): (None, 3, b"the cat", [TEXT, 3], [TEXT, None], np.array([[TEXT]])),
    ("inputs", ValueError): ("half \ud800",),
    ("truncation", ValueError): ("cut", 1),
    ("max_length", ValueError): (0, 65, 1, 10**5000),
    ("padding", ValueError): ("wide",),
    ("batch_size", ValueError): (0,),
    ("maxlength", TypeError): (8,),
}

MASKED = "the [MASK] sat"
WORDS = TEXT.split()
PAIR = {"text": TEXT, "text_pair": TEXT}
ASKED = {"question": "who?", "context": TEXT}
CASES: list[tuple[str, dict[str, Any], Refused]] = [
    ("text-classification", {"inputs": TEXT}, ANY_TASK),
    ("feature-extraction", {"inputs": TEXT}, ANY_TASK),
    (
        "fill-mask",
        {"inputs": MASKED},
        {
            ("inputs", ValueError): (TEXT, [MASKED, TEXT]),
            ("inputs", TypeError): ({"text": MASKED},),
            ("top_k", ValueError): (0,),
            ("targets", ValueError): ([], ["cat", "xyzzy"], "漢", [" "], ""),
            ("targets", TypeError): ([3], 3),
            ("tokenizer_kwargs", ValueError): ({"stride": 3},),
        },
    ),
    ("fill-mask", {"inputs": MASKED, "truncation": True}, {("tokenizer_kwargs", ValueError): ({"truncation": True},)}),
    (
        "text-classification",
        {"inputs": TEXT},
        {
            ("inputs", ValueError): ({"text_pair": TEXT}, {}, {"text": TEXT, "label": 1}),
            ("inputs", TypeError): ({"text": TEXT, "text_pair": None}, [[TEXT, TEXT]], [[TEXT]], [[[TEXT, 3]]]),
            ("top_k", ValueError): (0,),
            ("function_to_apply", ValueError): ("relu", 3),
        },
    ),
    ("text-classification", {"inputs": PAIR}, {("max_length", ValueError): (2,)}),
    (
        "text-classification",
        {"inputs": {"text": "cat", "text_pair": "cat " * 90}},
        {("truncation", ValueError): ("only_first",)},
    ),
    (
        "token-classification",
        {"inputs": TEXT},
        {
            ("inputs", TypeError): ([WORDS],),
            ("aggregation_strategy", ValueError): ("best", 1),
            ("stride", ValueError): (4,),
            ("ignore_labels", TypeError): ("O", [0]),
            ("is_split_into_words", TypeError): (1, True),
            ("offset_mapping", TypeError): ([(0, 3)],),
        },
    ),
    (
        "token-classification",
        {"inputs": TEXT, "aggregation_strategy": "max"},
        {("stride", ValueError): (-1, 62, 10**5000)},
    ),
    (
        "token-classification",
        {"inputs": WORDS, "is_split_into_words": True},
        {("delimiter", TypeError): (3,), ("inputs", TypeError): ([WORDS, TEXT], [["the", 3]])},
    ),
    (
        "question-answering",
        ASKED,
        {
            ("question", TypeError): (3, None),
            ("question", ValueError): ("", "who? " * 40),
            ("context", TypeError): (3, None),
            ("context", ValueError): ("", " \n ", "\u200b\u200b"),
            ("inputs", TypeError): (ASKED,),
            ("top_k", ValueError): (0,),
            ("max_answer_len", ValueError): (0,),
            ("max_seq_len", ValueError): (65,),
            ("max_length", ValueError): (20,),
            ("doc_stride", ValueError): (-1,),
            ("handle_impossible_answer", TypeError): (1,),
            ("topk", TypeError): (3,),
        },
    ),
    ("question-answering", {**ASKED, "context": TEXT * 50}, {("doc_stride", ValueError): (99,)}),
    (
        "zero-shot-classification",
        {"sequences": TEXT, "candidate_labels": ["a"]},
        {
            ("candidate_labels", TypeError): (None, ["a", 3], 3),
            ("candidate_labels", ValueError): ([], "", " , ", ["a", " "]),
            ("hypothesis_template", ValueError): ("It is so.", "{x}", "{} {}", "{", "{0[a]}"),
        },
    ),
    (
        "next-sentence",
        {"inputs": PAIR},
        {("inputs", TypeError): ([TEXT], [(TEXT, 3)]), ("inputs", ValueError): ({"text": TEXT},)},
    ),
    ("next-sentence", {"inputs": [(TEXT, TEXT)]}, {("text_pair", TypeError): (TEXT,)}),
    ("next-sentence", {"inputs": TEXT}, {("text_pair", TypeError): (None,)}),
    (
        "feature-extraction",
        {"inputs": TEXT},
        {
            ("inputs", TypeError): ({"text": TEXT},),
            ("return_tensors", ValueError): ("tf",),
            ("tokenize_kwargs", ValueError): ({"add_special_tokens": False},),
        },
    ),
]
OTHERS: list[Case] = [
    ("question-answering", ("who?",), {}, TypeError, "a question needs a context"),
    ("question-answering", ({"question": "who?"},), {}, ValueError, "expected 'question' and 'context'"),
    ("question-answering", (), {"question": ["a", "b"], "context": [TEXT]}, ValueError, "2 questions and 1 contexts"),
    ("zero-shot-classification", (TEXT, ["a"]), {"candidate_labels": ["b"]}, TypeError, "given twice"),
    ("zero-shot-classification", ("", ["a"]), {}, ValueError, r"inputs\[0\] is empty"),
    ("zero-shot-classification", (TEXT, ["cat " * 90]), {}, ValueError, "inputs from index 0"),
]


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{i} {case[0]}" for i, case in enumerate(CASES)])
def test_bad_calls(index: int, ours: Ours) -> None:
    task, given, table = CASES[index]
    check_refused(ours(task), given, table)


@pytest.mark.parametrize(("task", "inputs", "arguments", "error", "message"), OTHERS)
def test_other_bad_calls(
    task: str, inputs: tuple[Any, ...], arguments: dict[str, Any], error: type[Exception], message: str, ours: Ours
) -> None:
    with pytest.raises(error, match=message):
        ours(task)(*inputs, **arguments)


def test_bad_arguments_are_refused_before_anything_is_read(ours: Ours) -> None:
    def never() -> Any:
        raise AssertionError("read")
        yield

    for task, arguments in (
        ("fill-mask", {"targets": []}),
        ("token-classification", {"stride": 3}),
        ("question-answering", {"top_k": 0}),
    ):
        with pytest.raises(ValueError):
            ours(task)(never(), **arguments)
    with pytest.raises(ValueError, match="targets is empty"):
        ours("fill-mask", targets=[])


def test_bad_pipelines(folder_for: FolderFor) -> None:
    ner, classes = (folder_for(name, length=64) for name in ("token-classification", "text-classification"))
    check_refused(
        minibert.pipeline,
        {"task": "ner", "model": ner},
        {
            ("task", ValueError): ("fill-msk", 3, ["ner"]),
            ("model", TypeError): (None, 3, BertModel),
            ("aggregation", TypeError): ("max",),
            ("num_thread", TypeError): (1,),
            ("device", ValueError): ("cuda", 0),
            ("torch_dtype", ValueError): ("float16",),
            ("batch_size", ValueError): (0,),
            ("stride", ValueError): (3,),
            ("tokenizer", TypeError): (3,),
            ("backend", ValueError): ("cuda",),
        },
    )
    for task, model, error, message in (
        ("fill-mask", ner, ModelFormatError, "cannot be loaded as BertForMaskedLM"),
        ("question-answering", ner, ModelFormatError, "qa_outputs.weight"),
        ("zero-shot-classification", classes, ValueError, "expected one like 'entailment'"),
    ):
        with pytest.raises(error, match=message):
            minibert.pipeline(task, model)
    for model_kwargs, message in ((3, "not iterable"), ({"no": 1}, "has no keyword no=")):
        with pytest.raises(TypeError, match=message):
            minibert.pipeline("ner", ner, model_kwargs=model_kwargs)


def test_models_and_tokenizers_that_do_not_fit(folder_for: FolderFor, tmp_path: Path) -> None:
    folder = folder_for("text-classification", length=64)
    model, tokenizer = BertForSequenceClassification.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    with pytest.raises(TypeError, match="a loaded BertForSequenceClassification does not know its tokenizer"):
        minibert.pipeline("text-classification", model)
    with pytest.raises(ValueError, match="'token-classification' needs a BertForTokenClassification, but model is"):
        minibert.pipeline("ner", model, tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"its config.json says, is a BertForSequenceClassification"):
        minibert.pipeline("ner", folder)
    with pytest.raises(ValueError, match="num_threads= is for a model that is loaded by name"):
        minibert.pipeline("text-classification", model, tokenizer=tokenizer, num_threads=2)
    theirs = their_model(folder, "BertForSequenceClassification")
    with pytest.raises(TypeError, match=r"save it with save_pretrained\(folder\), and give the folder"):
        minibert.pipeline("text-classification", theirs, tokenizer=tokenizer)
    with pytest.raises(TypeError, match="tokenizer is"):
        minibert.pipeline("text-classification", model, tokenizer=transformers.AutoTokenizer.from_pretrained(folder))
    choices = make_model(tmp_path / "choices", "BertForMultipleChoice")
    with pytest.raises(ValueError, match="a BertForMultipleChoice has no task"):
        minibert.pipeline(model=choices)
    with pytest.raises(ModelFormatError, match=r"file or folder|vocab|tokenizer"):
        minibert.pipeline("text-classification", make_model(tmp_path / "bare", "BertForSequenceClassification"))


def test_a_tokenizer_with_more_words_than_the_model(folder_for: FolderFor, tmp_path: Path) -> None:
    small = task_folder(tmp_path / "small", "BertForMaskedLM", length=64, vocab_size=90)
    own = folder_for("fill-mask", length=64)
    pipe = minibert.pipeline("fill-mask", BertForMaskedLM.from_pretrained(small), tokenizer=str(own))
    with pytest.raises(ModelFormatError, match=r"is not in the model"):
        pipe("[MASK]", targets="cat")
    with pytest.raises(ValueError, match="Use the tokenizer that belongs to the model"):
        pipe("the cat [MASK]")


def test_a_tokenizer_without_a_mask_token(folder_for: FolderFor) -> None:
    folder = folder_for("fill-mask", length=64)
    tokenizer = BertTokenizer.from_pretrained(folder)
    del tokenizer._special_tokens["mask_token"]
    with pytest.raises(ValueError, match="the tokenizer has no mask token"):
        minibert.pipeline("fill-mask", folder, tokenizer=tokenizer)


def test_labels_that_inference_cannot_use(folder_for: FolderFor) -> None:
    for labels in (
        {0: "yes", 1: "no", 2: "maybe"},
        {0: "entailment", 1: "entailed", 2: "contradiction"},
        {0: "entailment", 1: "neutral", 2: "other"},
    ):
        folder = folder_for("zero-shot-classification", id2label=labels, length=64)
        with pytest.raises(ValueError, match="the model has the labels"):
            minibert.pipeline("zero-shot-classification", folder)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_numbers(value: float, folder_for: FolderFor) -> None:
    folder = folder_for("token-classification", length=64)
    model = BertForTokenClassification.from_pretrained(folder)

    def linear(x: Any, weight: Any, **options: Any) -> Any:
        result = model.ops.linear(x, weight, **options)
        if weight.paths == ("classifier",):
            result[-1, -1] = value  # the last token of the last text
        return result

    broken = BertForTokenClassification(model.weights, model.ops._replace(linear=linear))
    pipe = minibert.pipeline("ner", broken, tokenizer=BertTokenizer.from_pretrained(folder))
    with pytest.raises(ModelFormatError, match=r"the model computes NaN or infinity for inputs\[1\]"):
        pipe(["a", "b"])
