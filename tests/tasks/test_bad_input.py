"""Bad input of the tasks: errors of the right type that say what was given, what was expected and what to do."""

from __future__ import annotations

import re
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
from tests.support.head_models import head_checkpoint, their_model
from tests.support.report import REPORT
from tests.support.task_models import task_folder

FolderFor = Callable[..., Path]
Ours = Callable[..., Any]
Case = tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]

TEXT = "the cat sat"
ANY_TASK: list[Case] = [
    ((None,), {}, TypeError, "inputs is NoneType None; expected a str"),
    ((3,), {}, TypeError, "inputs is int 3; expected a str.*, or a list or an iterable of such inputs"),
    ((b"the cat",), {}, TypeError, "inputs is bytes"),
    (([TEXT, 3],), {}, TypeError, r"inputs\[1\] is int 3"),
    (([TEXT, None],), {}, TypeError, r"inputs\[1\] is NoneType"),
    (("half \ud800",), {}, ValueError, r"inputs\[0\] holds half a character"),
    ((np.array([[TEXT]]),), {}, TypeError, "of shape"),
    ((TEXT,), {"truncation": "cut"}, ValueError, "truncation='cut'; expected 'warn'"),
    ((TEXT,), {"truncation": 1}, ValueError, "truncation=1"),
    ((TEXT,), {"max_length": 0}, ValueError, "max_length=0; expected an int of at least 1"),
    ((TEXT,), {"max_length": 65}, ValueError, "max_length=65, but the model takes 64 tokens"),
    ((TEXT,), {"max_length": "8"}, TypeError, "max_length='8'"),
    ((TEXT,), {"max_length": 1}, ValueError, "max_length=1 has no room for the 2 special tokens"),
    ((TEXT,), {"padding": "wide"}, ValueError, "padding='wide'; expected one of"),
    ((TEXT,), {"batch_size": 0}, ValueError, "batch_size=0; expected an int of at least 1"),
    ((TEXT,), {"batch_size": 1.5}, TypeError, "batch_size=1.5"),
    ((TEXT,), {"maxlength": 8}, TypeError, r"has no argument maxlength=. Did you mean max_length=\? It has "),
]

MASKED = "the [MASK] sat"
CASES: dict[str, list[Case]] = {
    "fill-mask": [
        ((TEXT,), {}, ValueError, r"inputs\[0\] has no \[MASK\]. Write \[MASK\] where a word is wanted"),
        (([MASKED, TEXT],), {}, ValueError, r"inputs\[1\] has no \[MASK\]"),
        ((MASKED,), {"top_k": 0}, ValueError, "top_k=0; expected an int of at least 1"),
        ((MASKED,), {"top_k": "5"}, TypeError, "top_k='5'"),
        ((MASKED,), {"targets": []}, ValueError, "targets is empty"),
        (
            (MASKED,),
            {"targets": ["cat", "xyzzy"]},
            ValueError,
            "'xyzzy' is not one token of the vocabulary: its tokens",
        ),
        ((MASKED,), {"targets": "漢"}, ValueError, "is not one token of the vocabulary: its tokens are '.UNK.'"),
        ((MASKED,), {"targets": [" "]}, ValueError, "it has no tokens"),
        ((MASKED,), {"targets": ""}, ValueError, "it has no tokens"),
        ((MASKED,), {"targets": [3]}, TypeError, "a target is int 3; expected a str"),
        ((MASKED,), {"targets": 3}, TypeError, "targets=3; expected a word, or a list of words"),
        ((MASKED,), {"tokenizer_kwargs": [1]}, TypeError, r"tokenizer_kwargs=\[1\]; expected a mapping"),
        ((MASKED,), {"tokenizer_kwargs": {"stride": 3}}, ValueError, "tokenizer_kwargs has 'stride'; expected trunc"),
        (
            (MASKED,),
            {"truncation": True, "tokenizer_kwargs": {"truncation": True}},
            ValueError,
            "truncation is given twice",
        ),
        ((MASKED,), {"tokenizer_kwargs": {"max_length": 99}}, ValueError, "the model takes 64 tokens"),
        (({"text": MASKED},), {}, TypeError, "inputs is dict"),
    ],
    "text-classification": [
        ((TEXT,), {"top_k": 0}, ValueError, "top_k=0; expected an int of at least 1, or None for all labels"),
        ((TEXT,), {"top_k": ""}, TypeError, "top_k=''"),
        ((TEXT,), {"function_to_apply": "relu"}, ValueError, "function_to_apply='relu'; expected 'softmax'"),
        ((TEXT,), {"function_to_apply": 3}, ValueError, "function_to_apply=3"),
        (({"text_pair": TEXT},), {}, ValueError, r"inputs\[0\] has 'text_pair'; expected 'text' and 'text_pair'"),
        (({},), {}, ValueError, "has no keys; expected"),
        (({"text": TEXT, "label": 1},), {}, ValueError, "has 'label', 'text'"),
        (({"text": TEXT, "text_pair": None},), {}, TypeError, r"inputs\[0\]\['text_pair'\] is NoneType"),
        (([[TEXT, TEXT]],), {}, TypeError, "a dict with 'text' and 'text_pair' for two texts"),
        (([[TEXT]],), {}, TypeError, "expected a str, or a dict"),
        (([[[TEXT, 3]]],), {}, TypeError, r"inputs\[0\]\[0\]\[1\] is int 3"),
        (({"text": TEXT, "text_pair": TEXT},), {"max_length": 2}, ValueError, "has no room for the 3 special tokens"),
        (
            ({"text": "cat", "text_pair": "cat " * 90},),
            {"truncation": "only_first"},
            ValueError,
            "inputs from index 0: .* may cut one text only",
        ),
    ],
    "token-classification": [
        ((TEXT,), {"aggregation_strategy": "best"}, ValueError, "aggregation_strategy='best'; expected one of 'none'"),
        ((TEXT,), {"aggregation_strategy": 1}, ValueError, "aggregation_strategy=1"),
        ((TEXT,), {"stride": 4}, ValueError, "stride= joins the entities of several windows"),
        ((TEXT,), {"stride": -1, "aggregation_strategy": "max"}, ValueError, "stride=-1"),
        ((TEXT,), {"stride": 62, "aggregation_strategy": "max"}, ValueError, "stride=62, but a window has room for 62"),
        ((TEXT,), {"stride": "4", "aggregation_strategy": "max"}, TypeError, "stride='4'"),
        ((TEXT,), {"ignore_labels": "O"}, TypeError, r"ignore_labels='O'; expected a list of labels, such as \['O'\]"),
        ((TEXT,), {"ignore_labels": [0]}, TypeError, r"ignore_labels\[0\] is int 0"),
        ((TEXT,), {"is_split_into_words": 1}, TypeError, "is_split_into_words=1; expected True or False"),
        ((TEXT,), {"is_split_into_words": True}, TypeError, "inputs is str .*is_split_into_words=True a list of words"),
        (([TEXT.split(), TEXT],), {"is_split_into_words": True}, TypeError, r"inputs\[0\]\[0\] is list"),
        (((one for one in [TEXT]),), {"is_split_into_words": 2}, TypeError, "is_split_into_words=2"),
        ((TEXT.split(),), {"is_split_into_words": True, "delimiter": 3}, TypeError, "delimiter is int 3"),
        (([["the", 3]],), {"is_split_into_words": True}, TypeError, r"inputs\[0\]\[1\] is int 3"),
        (([TEXT.split()],), {}, TypeError, r"inputs\[0\] is list"),
        ((TEXT,), {"offset_mapping": [(0, 3)]}, TypeError, "has no argument offset_mapping="),
    ],
    "question-answering": [
        (("", TEXT), {}, ValueError, r"inputs\[0\]\['question'\] is empty; give a question of at least one word"),
        (("who?", ""), {}, ValueError, r"inputs\[0\]\['context'\] is empty"),
        (("who?", " \n "), {}, ValueError, r"inputs\[0\]\['context'\] is empty"),
        (("who?", "\u200b\u200b"), {}, ValueError, r"inputs\[0\]\['context'\] has no tokens"),
        (("who?",), {}, TypeError, "a question needs a context"),
        ((), {}, TypeError, "question= is missing; give both"),
        ((), {"question": "who?"}, TypeError, "context= is missing; give both"),
        (({"question": "who?"},), {}, ValueError, r"inputs\[0\] has 'question'; expected 'question' and 'context'"),
        (({"question": "who?", "context": None},), {}, TypeError, r"\['context'\] is NoneType"),
        (({"question": "who?", "context": TEXT},), {"question": "who?"}, TypeError, "not both"),
        ((), {"question": ["a", "b"], "context": [TEXT]}, ValueError, "2 questions and 1 contexts"),
        ((), {"question": "a", "context": [TEXT, TEXT]}, ValueError, "1 questions and 2 contexts"),
        ((), {"question": 3, "context": TEXT}, TypeError, "question is a int"),
        (("who?", TEXT), {"top_k": 0}, ValueError, "top_k=0"),
        (("who?", TEXT), {"max_answer_len": 0}, ValueError, "max_answer_len=0"),
        (("who?", TEXT), {"max_seq_len": 65}, ValueError, "max_seq_len=65, but the model takes 64 tokens"),
        (("who?", TEXT), {"max_length": 20}, ValueError, "is called max_seq_len="),
        (("who?", TEXT), {"doc_stride": -1}, ValueError, "doc_stride=-1"),
        (("who?", TEXT * 50), {"doc_stride": 99}, ValueError, "doc_stride=99, but a window has room for"),
        (("who? " * 40, TEXT), {}, ValueError, "so a window of 64 tokens has no room for the context"),
        (("who?", TEXT), {"handle_impossible_answer": 1}, TypeError, "expected True or False"),
        (("who?", TEXT), {"topk": 3}, TypeError, "has no argument topk=. Did you mean top_k="),
    ],
    "zero-shot-classification": [
        ((TEXT,), {}, TypeError, "candidate_labels is missing; give the labels to choose from"),
        ((TEXT, []), {}, ValueError, "candidate_labels is empty; give at least one label"),
        ((TEXT, ""), {}, ValueError, "candidate_labels is empty"),
        ((TEXT, " , "), {}, ValueError, "candidate_labels is empty"),
        ((TEXT, ["a", " "]), {}, ValueError, "candidate_labels has an empty label"),
        ((TEXT, ["a", 3]), {}, TypeError, "a candidate label is int 3"),
        ((TEXT, 3), {}, TypeError, "candidate_labels=3; expected a list of str"),
        ((TEXT, ["a"]), {"candidate_labels": ["b"]}, TypeError, "candidate_labels is given twice"),
        ((TEXT, ["a"]), {"hypothesis_template": "It is so."}, ValueError, "has no place for the label"),
        ((TEXT, ["a"]), {"hypothesis_template": "{x}"}, ValueError, "cannot take a label"),
        ((TEXT, ["a"]), {"hypothesis_template": "{} {}"}, ValueError, "cannot take a label"),
        ((TEXT, ["a"]), {"hypothesis_template": "{"}, ValueError, "cannot take a label"),
        ((TEXT, ["a"]), {"hypothesis_template": 3}, TypeError, "hypothesis_template is int 3"),
        ((TEXT, ["a"]), {"multi_label": "yes"}, TypeError, "multi_label='yes'; expected True or False"),
        (("", ["a"]), {}, ValueError, r"inputs\[0\] is empty; give a text"),
        ((TEXT, ["cat " * 90]), {}, ValueError, "inputs from index 0: .*may cut one text only"),
    ],
    "next-sentence": [
        ((TEXT,), {}, TypeError, r"text_pair is missing; give two texts: pipe\(first, second\)"),
        (([TEXT],), {}, TypeError, r"inputs\[0\] is str .*expected a dict with 'text' and 'text_pair'"),
        (([(TEXT, 3)],), {}, TypeError, r"inputs\[0\]\[1\] is int 3"),
        (([(TEXT, TEXT)], TEXT), {}, TypeError, "text_pair is given beside a list"),
        (({"text": TEXT},), {}, ValueError, "expected 'text' and 'text_pair'"),
    ],
    "feature-extraction": [
        ((TEXT,), {"return_tensors": "tf"}, ValueError, "return_tensors='tf'"),
        ((TEXT,), {"return_tensors": 1}, TypeError, "return_tensors=1; expected True, False"),
        ((TEXT,), {"tokenize_kwargs": {"add_special_tokens": False}}, ValueError, "tokenize_kwargs has"),
        (({"text": TEXT},), {}, TypeError, "inputs is dict"),
    ],
}
for name in ("text-classification", "feature-extraction"):
    CASES[name] = [*CASES[name], *ANY_TASK]
EVERY = [(task, *case) for task, cases in CASES.items() for case in cases]


def identifier(value: object) -> str:
    """Return a name for a value of a case that is the same in every process; an iterator's own name is not."""
    return re.sub(" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize(("task", "inputs", "arguments", "error", "message"), EVERY, ids=identifier)
def test_bad_calls(
    task: str, inputs: tuple[Any, ...], arguments: dict[str, Any], error: type[Exception], message: str, ours: Ours
) -> None:
    with pytest.raises(error, match=message) as caught:
        ours(task)(*inputs, **arguments)
    assert type(caught.value) is error


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


BAD_PIPELINES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"task": "fill-mask"}, TypeError, "needs a model: .* minibert does not choose one"),
    ({}, TypeError, "needs a model"),
    ({"task": "fill-msk", "model": "x"}, ValueError, "'fill-msk' is not a task of minibert. Did you mean 'fill-mask'?"),
    ({"task": "translation", "model": "x"}, ValueError, "is not a task of minibert.* The tasks are fill-mask, "),
    ({"task": 3, "model": "x"}, ValueError, "task=3 is not a task"),
    ({"task": ["ner"], "model": "x"}, ValueError, "is not a task"),
    ({"task": "google-bert/bert-base-uncased"}, ValueError, "looks like a model; give it as model="),
    ({"task": Path("folder")}, ValueError, "looks like a model"),
    ({"task": "ner", "model": 3}, TypeError, "model is int 3; expected a hub id, a folder, or a model of minibert"),
    ({"task": "ner", "model": BertModel}, TypeError, "model is .*; expected a hub id"),
    ({"task": "ner", "model": "FOLDER", "aggregation": "max"}, TypeError, "no argument aggregation=. Did you mean agg"),
    (
        {"task": "ner", "model": "FOLDER", "num_thread": 1},
        TypeError,
        "has no argument num_thread=. Did you mean num_threads=",
    ),
    ({"task": "ner", "model": "FOLDER", "grouped_entities": True}, TypeError, "Write aggregation_strategy='simple'"),
    ({"task": "ner", "model": "FOLDER", "ignore_subwords": True}, TypeError, "Write aggregation_strategy='first'"),
    ({"task": "text-classification", "model": "CLASSES", "return_all_scores": True}, TypeError, "Write top_k=None"),
    ({"task": "text-classification", "model": "CLASSES", "text_pair": "a"}, TypeError, "Write a dict as the input"),
    ({"task": "ner", "model": "FOLDER", "device": "cuda"}, ValueError, "expected None, 'cpu' or -1. minibert runs on"),
    ({"task": "ner", "model": "FOLDER", "device": 0}, ValueError, "device=0"),
    ({"task": "ner", "model": "FOLDER", "torch_dtype": "float16"}, ValueError, "minibert computes in float32"),
    ({"task": "ner", "model": "FOLDER", "model_kwargs": 3}, TypeError, "model_kwargs=3; expected a mapping"),
    ({"task": "ner", "model": "FOLDER", "model_kwargs": {"no": 1}}, TypeError, "has no keyword no="),
    ({"task": "ner", "model": "FOLDER", "batch_size": 0}, ValueError, "batch_size=0"),
    ({"task": "ner", "model": "FOLDER", "stride": 3}, ValueError, "stride= joins"),
    ({"task": "ner", "model": "FOLDER", "tokenizer": 3}, TypeError, "tokenizer is int 3; expected a minibert.BertTok"),
    ({"task": "ner", "model": "FOLDER", "backend": "cuda"}, ValueError, "backend"),
    ({"task": "fill-mask", "model": "FOLDER"}, ModelFormatError, "cannot be loaded as BertForMaskedLM"),
    ({"task": "question-answering", "model": "FOLDER"}, ModelFormatError, "qa_outputs.weight"),
    ({"task": "zero-shot-classification", "model": "CLASSES"}, ValueError, "needs one that begins with 'entail'"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_PIPELINES, ids=identifier)
def test_bad_pipelines(arguments: dict[str, Any], error: type[Exception], message: str, folder_for: FolderFor) -> None:
    folders = {"FOLDER": "token-classification", "CLASSES": "text-classification"}
    model = arguments.get("model")
    if isinstance(model, str) and model in folders:
        arguments = {**arguments, "model": folder_for(folders[model], length=64)}
    with pytest.raises(error, match=message):
        minibert.pipeline(**arguments)


def test_models_and_tokenizers_that_do_not_fit(folder_for: FolderFor, tmp_path: Path) -> None:
    folder = folder_for("text-classification", length=64)
    model, tokenizer = BertForSequenceClassification.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    with pytest.raises(TypeError, match="a loaded BertForSequenceClassification does not know its tokenizer"):
        minibert.pipeline("text-classification", model)
    with pytest.raises(ValueError, match="'token-classification' needs a BertForTokenClassification, and model is"):
        minibert.pipeline("ner", model, tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"but .* is a BertForSequenceClassification, as its config.json says"):
        minibert.pipeline("ner", folder)
    with pytest.raises(ValueError, match="num_threads= is for a model that is loaded by name"):
        minibert.pipeline("text-classification", model, tokenizer=tokenizer, num_threads=2)
    theirs = their_model(folder, "BertForSequenceClassification")
    with pytest.raises(TypeError, match=r"save it with save_pretrained\(folder\), and give the folder"):
        minibert.pipeline("text-classification", theirs, tokenizer=tokenizer)
    with pytest.raises(TypeError, match="A tokenizer of another library"):
        minibert.pipeline("text-classification", model, tokenizer=transformers.AutoTokenizer.from_pretrained(folder))
    choices = head_checkpoint(tmp_path / "choices", "BertForMultipleChoice")
    with pytest.raises(ValueError, match="a BertForMultipleChoice has no task in minibert"):
        minibert.pipeline(model=choices)
    with pytest.raises(ModelFormatError, match=r"file or folder|vocab|tokenizer"):
        minibert.pipeline("text-classification", head_checkpoint(tmp_path / "bare", "BertForSequenceClassification"))


def test_a_tokenizer_with_more_words_than_the_model(folder_for: FolderFor, tmp_path: Path) -> None:
    small = task_folder(tmp_path / "small", "BertForMaskedLM", length=64, vocab_size=90)
    own = folder_for("fill-mask", length=64)
    pipe = minibert.pipeline("fill-mask", BertForMaskedLM.from_pretrained(small), tokenizer=str(own))
    with pytest.raises(
        ModelFormatError, match=r"is not in the model, which has 90 words. Use the tokenizer that belongs"
    ):
        pipe("[MASK]", targets="cat")
    with pytest.raises(ValueError, match="Use the tokenizer that belongs to the model"):
        pipe("the cat [MASK]")


def test_a_tokenizer_without_a_mask_token(folder_for: FolderFor) -> None:
    folder = folder_for("fill-mask", length=64)
    tokenizer = BertTokenizer.from_pretrained(folder)
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="the tokenizer has no mask token"):
        minibert.pipeline("fill-mask", folder, tokenizer=tokenizer)


def test_labels_that_inference_cannot_use(folder_for: FolderFor) -> None:
    for labels in (
        {0: "yes", 1: "no", 2: "maybe"},
        {0: "entailment", 1: "entailed", 2: "contradiction"},
        {0: "entailment", 1: "neutral", 2: "other"},
    ):
        folder = folder_for("zero-shot-classification", id2label=labels, length=64)
        with pytest.raises(ValueError, match=r"the labels of the model are .*zero-shot-classification needs one that"):
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


def test_the_cases_are_counted() -> None:
    assert len(EVERY) + len(BAD_PIPELINES) >= 100
    REPORT.append(f"tasks: {len(EVERY) + len(BAD_PIPELINES)} cases of bad input")
