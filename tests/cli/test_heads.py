"""``minibert fill-mask``, ``classify``, ``ner``, ``answer``, ``rerank`` and ``sparse``, and their runs over files."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert
from minibert import CrossEncoder, SparseEncoder
from minibert.corpus.embed import rerank_corpus, sparse_corpus
from minibert.corpus.sources import Source
from minibert.sentence.cross_encoder import PairPlan
from minibert.sentence.sparse_encoder import SparsePlan
from tests.support.command_line import run, standard_input
from tests.support.sentence_heads import model_folder

HEADS = {
    "MaskedLM": {},
    "SequenceClassification": {"num_labels": 1},
    "TokenClassification": {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}},
    "QuestionAnswering": {},
}
LINES = ["a cat", "the dog sat on the mat", "a cat", "", "river bank " * 60]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("verbs")
    for name, fields in HEADS.items():
        model_folder(made / name, f"BertFor{name}", **fields)
    (made / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    return made


def in_home(home: Path, *arguments: str) -> list[str]:
    return [str(home / word) if word in HEADS or word.startswith(("lines", "out")) else word for word in arguments]


VERBS = {
    "fill-mask": (["fill-mask", "a [MASK]", "the [MASK] [MASK]", "-k", "2", "-m", "MaskedLM"], "fill-mask"),
    "classify": (["classify", "a cat", "the dog", "-m", "SequenceClassification"], "text-classification"),
    "ner": (["ner", "a cat", "the dog", "-m", "TokenClassification"], "ner"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_json_holds_the_answers_of_the_pipeline(home: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    words, task = VERBS[verb]
    code, out, err = run(capsys, *in_home(home, *words), "--json")
    assert (code, err) == (0, "")
    texts = words[1:3]
    one = json.loads(run(capsys, words[0], words[2], *in_home(home, *words[3:]), "--json")[1])
    assert one["text"] == texts[1]
    options: dict[str, Any] = {"fill-mask": {"top_k": 2}, "classify": {"top_k": 5}, "ner": {}}[verb]
    if verb == "ner":
        options = {"aggregation_strategy": "simple"}
    answers = minibert.pipeline(task, str(home / words[-1]), **options)(texts)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"text": text, "answers": answer} for text, answer in zip(texts, answers, strict=True)
    ]
    assert one["answers"] == answers[1]


def test_text_for_people(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, *in_home(home, *VERBS["fill-mask"][0]))[1]
    lines = out.splitlines()
    assert (lines[0], lines[3], lines[4], len(lines)) == ("a [MASK]", "the [MASK] [MASK]", "  [MASK] 1", 10)
    words = ["answer", "the cat", "a dog sat on the mat", "-k", "2", "-m", "QuestionAnswering"]
    code, out, err = run(capsys, *in_home(home, *words))
    assert (code, err) == (0, "")
    ask = minibert.pipeline("question-answering", str(home / "QuestionAnswering"), top_k=2)
    found = ask(question="the cat", context="a dog sat on the mat")
    assert [line.split()[0] for line in out.splitlines()[::2]] == [f"{one['score']:.3f}" for one in found]
    assert f"[{found[0]['answer']}]" in out.splitlines()[1]


def test_rerank(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = in_home(home, "rerank", "a cat", "-", "-m", "SequenceClassification", "--truncation", "silent")
    standard_input(monkeypatch, (home / "lines.txt").read_bytes())
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    expected = CrossEncoder(home / "SequenceClassification").rank("a cat", LINES, truncation="silent")
    assert [(one["index"], np.float32(one["score"])) for one in found] == [
        (one["corpus_id"], np.float32(one["score"])) for one in expected
    ]
    assert [one["text"] for one in found] == [LINES[one["index"]] for one in found]
    standard_input(monkeypatch, (home / "lines.txt").read_bytes())
    text = run(capsys, *arguments, "-k", "2")[1].splitlines()
    assert len(text) == 2
    assert text[0].split()[0] == f"{expected[0]['score']:.3f}"


def test_sparse(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *in_home(home, "sparse", "a cat", "the dog", "--json", "-m", "MaskedLM"))
    assert (code, err) == (0, "")
    model = SparseEncoder(home / "MaskedLM")
    for line, vector in zip(map(json.loads, out.splitlines()), model.encode(["a cat", "the dog"]), strict=True):
        assert line["indices"] == vector.indices.tolist()
        assert np.float32(line["values"]).tobytes() == vector.data.tobytes()
        assert line["tokens"] == model.tokenizer.convert_ids_to_tokens(line["indices"])
    out = run(capsys, *in_home(home, "sparse", "a cat", "-k", "3", "-m", "MaskedLM"))[1]
    words = [(line.split()[0], line.split()[-1]) for line in out.splitlines()[1:]]
    assert words == [(f"{weight:.3f}", word) for word, weight in model.decode(model.encode("a cat"), top_k=3)]


def test_files(home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    vectors = SparseEncoder(home / "MaskedLM").encode(LINES, truncation="silent")
    scores = CrossEncoder(home / "SequenceClassification").predict([("q", line) for line in LINES], truncation="silent")
    for verb, model in ((["sparse"], "MaskedLM"), (["rerank", "q"], "SequenceClassification")):
        output = tmp_path / f"{verb[0]}.jsonl"
        arguments = in_home(home, *verb, "-i", "lines.txt", "-o", str(output), "-m", model, "--shard-size", "2")
        code, out, err = run(capsys, *arguments)
        assert (code, err) == (0, "")
        assert "5 texts, " in out
        assert "1 text cut" in out
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        assert [line["id"] for line in lines] == [0, 1, 2, 3, 4]
        for line, vector, score in zip(lines, vectors, scores, strict=True):
            if verb == ["sparse"]:
                assert line["indices"] == vector.indices.tolist()
                assert np.float32(line["values"]).tobytes() == vector.data.tobytes()
            else:
                assert np.float32(line["score"]) == score
        code, out, err = run(capsys, *arguments, "--resume")
        assert (code, err) == (0, "")
        assert "by earlier runs" in out
        code, out, err = run(capsys, *arguments, "--resume", "--prompt", "another ")
        assert (code, out) == (1, "")
        assert "--prompt 'another '" in err


@pytest.mark.parametrize(("verb", "model"), [(["sparse"], "MaskedLM"), (["rerank", "q"], "SequenceClassification")])
def test_lines_that_are_too_long_can_be_refused(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: list[str], model: str
) -> None:
    output = tmp_path / "out.jsonl"
    arguments = in_home(home, *verb, "-i", "lines.txt", "-o", str(output), "-m", model, "--truncation", "error")
    code, _, err = run(capsys, *arguments)
    assert (code, "1 input line" in err, "the limit is 64" in err, output.exists()) == (1, True, True, False), err
    assert run(capsys, *arguments, "--on-error", "null")[0] == 0
    assert sum(None in json.loads(line).values() for line in output.read_text().splitlines()) == 1


@pytest.mark.parametrize("kind", ["sparse", "rerank"])
def test_an_interrupted_run_ends_with_the_same_bytes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    sparse, cross = SparseEncoder(home / "MaskedLM"), CrossEncoder(home / "SequenceClassification")
    given = {"sources": [Source(str(home / "lines.txt"), "text")], "shard_size": 2}
    if kind == "sparse":
        compute, plan = partial(sparse_corpus, sparse, **given), SparsePlan
    else:
        compute, plan = partial(rerank_corpus, cross, "q", **given), PairPlan
    compute(output=tmp_path / "whole.jsonl")
    calls, true = iter(("the fixed text", "the fingerprint", "the first shard")), plan.compute

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return true(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(plan, "compute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compute(output=tmp_path / "again.jsonl")
    assert not (tmp_path / "again.jsonl").exists()
    summary = compute(output=tmp_path / "again.jsonl", resume=True)
    assert (summary.n_texts, summary.n_resumed, summary.n_cut) == (5, 2, 1)
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_lines_that_cannot_be_used(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a cat"}\n{"text": 3}\n')
    sources, problems = [Source(str(tmp_path / "bad.jsonl"), "jsonl")], list[str]()
    model = SparseEncoder(home / "MaskedLM")
    sparse_corpus(model, sources, tmp_path / "null.jsonl", on_error="null", report=problems.append)
    assert json.loads((tmp_path / "null.jsonl").read_text().splitlines()[1])["indices"] is None
    assert len(problems) == 1


def test_info_names_the_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kind in (("MaskedLM", SparseEncoder), ("SequenceClassification", CrossEncoder)):
        loader = kind.__name__
        kind(model_folder(tmp_path / name, f"BertFor{name}")).save_pretrained(tmp_path / loader)
        capsys.readouterr()  # the progress bar of transformers
        code, out, err = run(capsys, "info", "-m", str(tmp_path / loader))
        assert (code, err) == (0, "")
        assert re.search(rf"loaded by +{loader}", out)
        assert "unsupported: nothing" in out


BAD: list[tuple[list[str], int, str]] = [
    (["rerank", "q", "-m", "SequenceClassification"], 1, "there is no text; give texts, or a file with --input"),
    (["sparse", "a"], 2, "the following arguments are required: -m/--model"),
    (["sparse", "a", "-i", "lines.txt", "-m", "MaskedLM"], 1, "texts and --input are both given"),
    (["sparse", "-i", "lines.txt", "-o", "out.npy", "-m", "MaskedLM"], 1, ".jsonl"),
    (["sparse", "-i", "lines.txt", "-o", "out.jsonl", "--json", "-m", "MaskedLM"], 1, "--json is for texts"),
    (["rerank", "q", "-i", "lines.txt", "-o", "out.jsonl", "-k", "3", "-m", "SequenceClassification"], 1, "--top-k"),
    (["fill-mask", "a cat", "-m", "MaskedLM"], 1, "[MASK]"),
    (["ner", "a", "--aggregation", "none", "--stride", "2", "-m", "TokenClassification"], 1, "--stride"),
]


@pytest.mark.parametrize(("words", "code", "message"), BAD, ids=range(len(BAD)))
def test_bad_commands(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    found, out, err = run(capsys, *in_home(home, *words))
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
