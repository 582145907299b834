"""The command line: its output, files, errors and exit codes; most tests run it in this process."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import minibert
from minibert import BertModel, BertTokenizer, SentenceTransformer
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.cli import make_parser
from minibert.cli.notation import Parser, in_options
from minibert.vectors.search import semantic_search
from tests.support.checkpoints import sentence_model
from tests.support.command_line import run, standard_input
from tests.support.marks import unix
from tests.support.outcomes import PATIENCE, ROOT, python
from tests.support.sentence_modules import MEAN, dense, model_with_modules

BANK = "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."
TEXTS = ["A cat sleeps.", "A kitten naps.", "Stocks fell sharply."]

Cli: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return a function: the arguments of a command -> its exit code, standard output and standard error."""
    return partial(run, capsys)


def test_words_tells_the_senses_of_bank_apart(cli: Cli) -> None:
    code, out, err = cli("words", "bank", BANK)
    assert (code, err) == (0, "")
    assert "22 tokens with their ids" in out
    assert "7 hidden states of shape (22, 384)" in out
    assert "'bank' occurs 3 times" in out
    lines = re.finditer(r"^(\w[\w ]*?) +((?: *-?\d\.\d{3})+)$", out, flags=re.MULTILINE)
    table = {line[1]: [float(cell) for cell in line[2].split()] for line in lines}
    rows = [*(f"state {i}" for i in range(7)), "sum of last 4"]
    assert [row for row in rows if row in table] == rows

    inputs = BertTokenizer.from_pretrained(DEFAULT_MODEL)(BANK, return_tensors="np")
    states = np.stack(BertModel.from_pretrained(DEFAULT_MODEL)(**inputs).hidden_states)[:, 0]
    vectors = states[-4:].sum(axis=0)[[6, 10, 19]].astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (vectors @ vectors.T)[np.triu_indices(3, 1)]
    assert table["sum of last 4"] == pytest.approx(cosines, abs=6e-4)
    vault_robber, vault_river, robber_river = table["sum of last 4"]
    assert vault_robber > max(vault_river, robber_river) + 0.03


def test_words_that_cannot_be_compared(cli: Cli) -> None:
    for word, message in (("bank", "'bank' occurs once"), ("money", "'money' occurs nowhere"), ("", "WORD is empty")):
        code, _, err = cli("words", word, "one bank")
        assert (code, message in err) == (1, True)
    code, _, err = cli("words", "a", "a " * 600, "--truncation", "error")
    assert (code, "602 tokens" in err, "--truncation warn" in err) == (1, True, True)
    for options, warned in (((), True), (("--truncation", "silent"), False)):
        code, out, err = cli("words", "a", "a " * 600, *options)
        assert (code, "'a' occurs 510 times, the first 5 compared" in out) == (0, True)
        assert ("warning: " in err and "512 tokens" in err) == warned


def test_pictures(cli: Cli, tmp_path: Path) -> None:
    states, texts = str(tmp_path / "states.npz"), ["a text", "another text", "北京 $x _y"]
    for name, start, arguments in (
        ("a.png", b"\x89PNG", ["words", "bank", BANK]),
        ("b.svg", b"<?xml", ["hidden", "one text", "-o", states]),
        ("c.PDF", b"%PDF", ["hidden", *texts, "-o", states, "--layers=0,-1"]),
    ):
        code, out, err = cli(*arguments, "--plot", str(tmp_path / name))
        assert (code, err, f"{name}: picture" in out) == (0, "", True)
        assert (tmp_path / name).read_bytes().startswith(start)
    saved = np.load(states)
    assert (saved["hidden_states"].shape[0], saved["layers"].tolist()) == (2, [0, 6])


def test_tokens(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = cli("tokens", "the embeddings")
    assert code == 0
    assert [line.split() for line in out.splitlines()][2:5] == [
        ["1996", "the", "0", "3", "0"],
        ["7861", "em", "4", "6", "1"],
        ["8270", "##bed", "6", "9", "1"],
    ]
    standard_input(monkeypatch, "\ufeffé a\r\nsecond line\n".encode())
    code, out, _ = cli("tokens", "--json", "-", "-")  # for the second "-" the input is still open, and at its end
    first, second = (json.loads(line) for line in out.splitlines())
    assert (code, first["text"], second["text"]) == (0, "é a", "second line")
    assert first["tokens"][1] == {"token": "e", "id": 1041, "start": 0, "end": 1, "word": 0, "special": False}
    assert first["tokens"][0] == {"token": "[CLS]", "id": 101, "start": 0, "end": 0, "word": None, "special": True}


def test_hidden_saves_every_state_with_its_tokens(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "states.npz"
    code, out, _ = cli("hidden", BANK, "a short one", "-o", str(file))
    assert (code, "hidden_states (7, 27, 384)" in out) == (0, True)
    saved = np.load(file)
    tokenizer, model = BertTokenizer.from_pretrained(DEFAULT_MODEL), BertModel.from_pretrained(DEFAULT_MODEL)
    for b, text in enumerate((BANK, "a short one")):
        own = slice(*saved["cu_seqlens"][b : b + 2])
        inputs = tokenizer(text, return_tensors="np")
        np.testing.assert_array_equal(saved["ids"][own], inputs["input_ids"][0])
        assert list(saved["tokens"][own]) == inputs.tokens(0)
        for state, ours in zip(saved["hidden_states"], model(**inputs).hidden_states, strict=True):
            np.testing.assert_allclose(state[own], ours[0], atol=2e-6)
    assert list(saved["texts"]) == [BANK, "a short one"]
    assert not list(tmp_path.glob(".minibert-*"))


def test_embed_prints_and_saves(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = SentenceTransformer().encode(["one text", "and another"])
    code, out, _ = cli("embed", "one text", "and another")
    printed = [json.loads(line) for line in out.splitlines()]
    assert (code, [line["text"] for line in printed]) == (0, ["one text", "and another"])
    np.testing.assert_array_equal(np.array([line["embedding"] for line in printed], dtype=np.float32), expected)

    file = tmp_path / "vectors.npy"
    standard_input(monkeypatch, b"one text\nand another")
    code, out, _ = cli("embed", "-", "-o", str(file))
    assert (code, "(2, 384)" in out) == (0, True)
    np.testing.assert_array_equal(np.load(file), expected)


def test_special_files_are_written_to_and_links_are_followed(cli: Cli, tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target.npy"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    assert cli("embed", "text", "-o", str(pipe))[0] == 0
    reader.join(timeout=PATIENCE)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert np.load(io.BytesIO(received[0])).shape == (1, 384)

    link.symlink_to(target)
    assert cli("embed", "text", "-o", str(link))[0] == 0
    assert link.is_symlink()
    assert np.load(target).shape == (1, 384)


def in_a_shell(arguments: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$0" -m minibert "$@" {redirection}', sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=PATIENCE)


# --- sentence vectors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--pooling", "mean,cls", "--layers=-1,-2"], {"pooling": ["mean", "cls"], "layers": [-1, -2]}),
        (["--layers", "1", "--truncate-dim", "7"], {"layers": 1, "truncate_dim": 7}),
        (["--normalize", "--truncation", "silent"], {"normalize_embeddings": True}),
        (["--truncation", "split", "--stride", "1"], {"truncation": "split", "stride": 1}),
        (["--prompt-name", "query"], {"prompt_name": "query"}),
        (["--precision", "ubinary", "--batch-size", "2", "--threads", "1"], {"precision": "ubinary"}),
        (["--backend", "numpy"], {}),
    ],
)
def test_embed_options(cli: Cli, prompted: Path, arguments: list[str], options: dict[str, object]) -> None:
    expected = SentenceTransformer(prompted).encode(TEXTS, **options)
    code, out, err = cli("embed", *TEXTS, "-m", str(prompted), *arguments)
    assert (code, err) == (0, "")
    vectors = np.array([json.loads(line)["embedding"] for line in out.splitlines()], dtype=expected.dtype)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_similarity(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = SentenceTransformer().encode(TEXTS)
    standard_input(monkeypatch, "\n".join(TEXTS).encode())
    code, out, _ = cli("similarity", "-", "--json")
    found = json.loads(out)
    assert (code, found["texts"]) == (0, TEXTS)
    np.testing.assert_allclose(found["scores"], vectors @ vectors.T, atol=1e-6)
    code, out, _ = cli("similarity", *TEXTS)
    rows = [line.split() for line in out.splitlines()]
    assert (code, rows[0]) == (0, ["0", "1", "2"])
    assert rows[1][:4] == ["0", "1.000", "0.714", "0.007"]
    assert out.splitlines()[3].endswith("1.000   Stocks fell sharply.")


def test_search(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines.txt"
    file.write_text(
        "\n".join(["A kitten naps.", "", "Stocks fell.", "  ", "The dog barks.", "Größe"]), encoding="utf-8"
    )
    code, out, _ = cli("search", "sleeping animals", str(file), "-k", "2")
    assert [line.split(maxsplit=2)[1:] for line in out.splitlines()] == [
        ["0", "A kitten naps."],
        ["4", "The dog barks."],
    ]
    code, out, _ = cli("search", "sleeping animals", str(file), "--json", "-k", "100")
    hits = [json.loads(line) for line in out.splitlines()]
    assert (code, len(hits)) == (0, 4)
    model = SentenceTransformer()
    texts = ["A kitten naps.", "Stocks fell.", "The dog barks.", "Größe"]
    best = semantic_search(model.encode("sleeping animals"), model.encode(texts))[0]
    assert [hit["text"] for hit in hits] == [texts[hit["corpus_id"]] for hit in best]
    assert [hit["score"] for hit in hits] == pytest.approx([hit["score"] for hit in best], abs=2e-6)
    assert sorted((hit["id"], hit["line"]) for hit in hits) == [(0, 1), (2, 3), (4, 5), (5, 6)]
    numbers = {hit["text"]: hit["id"] for hit in hits}
    for output in map(str, (tmp_path / "v.npy", tmp_path / "v.jsonl")):  # the vectors of a run have the same numbers
        assert cli("embed", "-i", str(file), "-o", output)[0] == 0
        found = cli("search", "sleeping animals", output, "--json", "-k", "9")[1].splitlines()
        assert {hit["text"]: hit["id"] for hit in map(json.loads, found) if hit["text"].strip()} == numbers
    standard_input(monkeypatch, file.read_bytes())
    assert cli("search", "sleeping animals", "-", "--json", "-k", "100")[1] == out
    standard_input(monkeypatch, b"sleeping animals\n")  # the query
    assert cli("search", "-", str(file), "--json", "-k", "100")[1] == out


@pytest.mark.parametrize("words", ["search QUERY FILE", "rerank QUERY text -m no/such", "answer QUERY text -m no/such"])
@pytest.mark.parametrize(("given", "standard"), [("", b""), (" \t", b""), ("-", b"\n"), ("-", b"one\ntwo\n")])
def test_a_query_is_one_text(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, given: str, standard: bytes
) -> None:
    (tmp_path / "lines.txt").write_text("a cat\n")
    standard_input(monkeypatch, standard)
    verb, *others = (given if word == "QUERY" else word for word in words.split())
    code, out, err = cli(verb, *(str(tmp_path / "lines.txt") if word == "FILE" else word for word in others))
    assert (code, out) == (1, ""), err
    assert "QUERY" in err or "QUESTION" in err


def test_search_uses_the_models_prompts_and_similarity(cli: Cli, tmp_path: Path) -> None:
    stored = {"prompts": {"query": "the cat ", "passage": "on the mat "}, "similarity_fn_name": "dot"}
    folder = sentence_model(tmp_path / "model", config_sentence_transformers=stored)
    (tmp_path / "lines").write_text("a\nb c\nman\n")
    code, out, _ = cli("search", "hello", str(tmp_path / "lines"), "-m", str(folder), "--json")
    model = SentenceTransformer(folder)
    corpus = model.encode(["a", "b c", "man"], prompt_name="passage")
    scores = model.similarity(model.encode("hello", prompt_name="query"), corpus)[0]
    assert [json.loads(line)["line"] - 1 for line in out.splitlines()] == np.argsort(-scores).tolist()
    assert json.loads(out.splitlines()[0])["score"] == pytest.approx(scores.max(), abs=1e-5)
    assert code == 0


def test_info_of_the_real_model(cli: Cli) -> None:
    code, out, err = cli("info", "--json")
    found = json.loads(out)
    assert (code, err, found["unsupported"]) == (0, "", [])
    expected = {
        **{"hidden_size": 384, "parameters": 22713216, "embedding_dimension": 384, "similarity_fn_name": "cosine"},
        **{"max_seq_length": 256, "pooling": ["mean"], "modules": ["Transformer", "Pooling", "Normalize"]},
        "lower-cased": True,
    }
    assert {name: found["facts"][name] for name in expected} == expected
    code, out, _ = cli("info")
    assert (code, out.splitlines()[-1].strip()) == (0, "unsupported: nothing")
    assert any(line.split() == ["max_seq_length", "256"] for line in out.splitlines())


def test_info_of_other_models(cli: Cli, tmp_path: Path) -> None:
    """A model that cannot be loaded is described too, with the reasons."""
    folder = model_with_modules(tmp_path / "model", [MEAN, dense(24, 13)])
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "q: "}}))
    facts = json.loads(cli("info", "-m", str(folder), "--json")[1])["facts"]
    assert facts["after pooling"] == ["Dense(24, 13, Tanh)"]
    assert facts["embedding_dimension"] == 13
    assert facts["similarity_fn_name"] == "cosine"
    assert facts["prompts"] == {"query": "q: ", "document": ""} == SentenceTransformer(folder).prompts

    def unsupported() -> str:
        code, out, _ = cli("info", "-m", str(folder), "--json")
        assert code == 0
        return "\n".join(json.loads(out)["unsupported"])

    (folder / "2_Dense" / "model.safetensors").unlink()
    assert "model.safetensors" in unsupported()
    (folder / "config_sentence_transformers.json").write_text('{"prompts": ["a"]}')
    assert "prompts" in unsupported()
    assert "['a']" in unsupported()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "deberta"}))
    assert "model_type='deberta'" in unsupported()
    router = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]
    (folder / "modules.json").write_text(json.dumps(router))
    report = json.loads(cli("info", "-m", str(folder), "--json")[1])
    assert report["facts"]["modules"] == ["Router"]
    assert "Router" in "".join(report["unsupported"])
    (folder / "modules.json").write_text("{")
    assert "modules.json" in unsupported()
    (folder / "config.json").unlink()
    assert "has no config.json" in unsupported()


@pytest.mark.parametrize(
    ("card", "languages", "licence"),
    [
        (b"---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\nlanguage: fr", ["en"], ["apache-2.0"]),
        (
            b'---\nlicense: mit\nlanguage:\n- en\n- "no"  # Norwegian\n  - zh\ntags:\n- x\n---\n',
            ["en", "no", "zh"],
            ["mit"],
        ),
        (b"\xef\xbb\xbf---\r\nlanguage: [en, 'fr']\r\nlicense: other\r\n---\r\n", ["en", "fr"], ["other"]),
        (b"---\nlanguage:\n---\nlicense: mit", None, None),
        (b"---\nlicense: mit\n", None, None),
        (b"\xff\xfe license: mit", None, None),
        (b"", None, None),
    ],
)
def test_info_has_the_languages_and_the_licence_of_the_card(
    card: bytes, languages: object, licence: object, cli: Cli, tmp_path: Path
) -> None:
    folder = model_with_modules(tmp_path / "model", [MEAN])
    (folder / "README.md").write_bytes(card)
    facts = json.loads(cli("info", "-m", str(folder), "--json")[1])["facts"]
    assert (facts.get("languages"), facts.get("licence")) == (languages, licence)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("", 2, "find the lines of a file"),
        ("nonsense", 2, "choose from"),
        ("words a aa --layers x", 2, "not a list of numbers"),
        ("words a aa --layers 7", 1, "--layers 7"),
        ("words a aa --layers=-1,6", 1, "hidden state 6 twice"),
        ("embed text -m ./no/such/folder", 1, "no/such/folder"),
        ("tokens a\udcffb", 1, "surrogate"),
        ("embed text --pooling median", 1, "median"),
        ("embed text --pooling none", 1, "minibert hidden"),
        ("embed text --layers -1,-9", 1, "--layers=-9"),
        ("embed text --layers -1,", 2, "argument --layers: '-1,' is not a list of numbers such as -1,-2"),
        ("embed text --truncate-dim 0", 2, "at least 1"),
        ("embed text --stride -1", 2, "at least 0"),
        ("embed text --stride 3", 1, "--truncation split"),
        ("embed text --pooling first_last --layers 1", 1, "leave out --layers."),
        ("embed text --prompt a --prompt-name b", 2, "not allowed with"),
        ("embed text --prompt-name task", 1, "--prompt-name task"),
        ("embed text --resume", 1, "--resume is for files of texts"),
        ("embed text --shard-size 3", 1, "--shard-size is for files of texts"),
        ("embed -o q.jsonl", 1, "there is no text"),
        ("embed -i a.txt", 1, "--input needs --output"),
        ("embed -i a.txt -o out.npy text", 1, "give one of them"),
        ("embed -i a.txt -o out.npy --id-column name", 1, "--id-column name columns"),
        ("similarity text", 1, "at least two"),
        ("search text no/such/file", 1, "minibert: no/such/file cannot be read"),
        ("search text a\0b", 1, "'a\\x00b' cannot be read"),
        ("info -m README.md", 1, "README.md is a file"),
        ("doctor --clear --json", 1, "--json is for the report; leave it out"),
        ("doctor --clear --compute-type int8", 1, "--compute-type is for the report; leave it out"),
        ("extract -i a.csv -o o.jsonl --format google --dtype float32", 1, "--dtype has no place"),
        ("extract -i a.csv -o o.jsonl --format google --id-column id", 1, "--id-column has no place"),
        ("serve --max-wait 0", 2, "--max-wait 0.0"),
        ("serve --max-wait nan", 2, "--max-wait nan"),
        ("serve --step-ms 9999999999999", 2, "step_seconds=9999999999.999; expected a number of seconds"),
        ("serve --drain-delay -1", 2, "--drain-delay=-1.0"),
    ],
)
def test_errors_and_codes(cli: Cli, command: str, code: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found, out, err = cli(*command.split(" ")) if command else cli()
    assert (found, message in err, out) == (code, True, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("verb", "name", "expected"),
    [
        ("embed one -o", "z.jsonl", ".npy"),
        ("embed one -o", "z", ".npy"),
        ("hidden one -o", "z.npy", ".npz"),
        ("words a aa --plot", "z.bmp", ".png, .svg or .pdf"),
        ("hidden one -o good.npz --plot", "z.npz", ".png, .svg or .pdf"),
        ("extract -i lines.txt -o", "z.jsonl", ".npy"),
        ("extract -i lines.txt --format google -o", "z.npy", ".jsonl or .json"),
    ],
)
def test_names_of_outputs_are_checked_first(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, name: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    good = f"z{expected.split()[0].rstrip(',')}"
    for given, message in (
        (name, f"must end in {expected}"),
        (f"no/{good}", "there is no folder"),
        (".", ". is a folder"),
        ("", "needs --input FILE and --output FILE" if "-i" in verb else "the name of the file to write is empty"),
    ):
        code, out, err = cli(*verb.split(), given, "-m", "./no/such/folder")
        assert (code, out, message in err) == (1, "", True), err
    assert not [*tmp_path.iterdir()]


def test_bad_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for data, message, verbs in (
        (b"fine\n\xff broken", "line 2, is not UTF-8", ("tokens -", "embed -", "search a -")),
        (b"", "does not hold a text", ("tokens -", "embed -", "search a -")),
        (b"\n \n", "does not hold a text", ("search a -",)),  # blank texts are texts elsewhere
    ):
        for verb in verbs:
            standard_input(monkeypatch, data)
            code, _, err = cli(*verb.split())
            assert (code, message in err) == (1, True), (data, verb)


# --- the words of the command line ------------------------------------------------------------------------------------


def parsers() -> Iterator[Parser]:
    """Yield the parser of every verb."""
    waiting = [make_parser()]
    while waiting:
        yield (one := waiting.pop())
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()


def test_messages_name_the_options_of_the_verb() -> None:
    """A message about an argument, in the words of Python, shows the flag of the option in each verb that has it."""
    count = 0
    for parser in parsers():
        for name, action in parser.flags().items():
            flags = action.option_strings
            for value in ("", "3", "-1", "'a b'", "None", "True", "False", "[-1, 2]", "('x',)"):
                said = in_options(f"Give {name}={value}, or leave it out.", parser)
                assert f"Give {name}=" not in said, (parser.prog, said)
                assert any(flag in said for flag in flags if flag.startswith("--")), (parser.prog, said)
                count += 1
        assert in_options("a[nothing=3], x == y", parser) == "a[nothing=3], x == y"
    assert count > 2000
    (embed,) = (parser for parser in parsers() if parser.prog.endswith(" embed"))
    for message, expected in (
        ("stride=3 needs truncation='split', not 'warn'.", "--stride 3 needs --truncation split, not 'warn'."),
        ("layers=[-1, 2], num_threads=2", "--layers=-1,2, --threads 2"),
        ("has prompt='a b', normalize_embeddings=True", "has --prompt 'a b', --normalize"),
        ("shared_weights=False and prompt=None", "--no-shared-weights and no --prompt"),
        ("SentenceTransformer(..., prompts='builtin') uses it", "--builtin-prompts uses it"),
        ("a larger num_threads, or 'batch_size', x/stride.csv", "a larger --threads, or 'batch_size', x/stride.csv"),
        ("CrossEncoder loads it.", "minibert rerank loads it."),
    ):
        assert in_options(message, embed) == expected


JOINED = {"--input", "--text-column", "--raw"}
VALUES = ("1", "float32", "a=1,2", "a.npy", "a.npz", "a.html", "a.json", "cls", "1,2", "127.0.0.1")


def test_many_texts_with_a_word(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tokens are not printed, and only those that are compared are computed in pairs."""
    standard_input(monkeypatch, b"a bank by the river\n" * 21)
    code, out, err = cli("words", "bank", "-")
    assert (code, "21 texts; minibert tokens prints their tokens" in out, "river  " in out) == (0, True, False), err
    assert "'bank' occurs 21 times, the first 5 compared (--most)" in out


def test_an_option_that_is_given_twice_is_refused_or_joined(cli: Cli) -> None:
    """Otherwise the last one would win, and the first one would have no effect."""
    count = 0
    for parser in parsers():
        for action in (action for action in parser._actions if action.option_strings and action.dest != "help"):
            values = [[]] if action.nargs == 0 else [[value] for value in (*(action.choices or ()), *VALUES)]
            for value in values:  # the first one that the option takes
                parser.given.discard(action.dest)
                with contextlib.suppress(argparse.ArgumentError, argparse.ArgumentTypeError, ValueError, TypeError):
                    parser._get_values(action, value)
                    break
            else:
                raise AssertionError(f"{parser.prog} {action.option_strings}: none of {values} is a value")
            count += 1
            if JOINED.isdisjoint(action.option_strings):
                with pytest.raises(argparse.ArgumentError, match="given twice"):
                    parser._get_values(action, value)
            else:
                parser._get_values(action, value)
    assert count > 150
    for words in (
        "embed a --threads 1 --threads 1",
        "embed a --shared-weights --no-shared-weights",
        "embed a -m x -m x",
    ):
        code, _, err = cli(*words.split())
        assert (code, "given twice" in err) == (2, True), err


OF_FILES = {"--resume": [], "--input-format": ["csv"], "--text-column": ["text"], "--id-column": ["id"]}
OF_FILES |= {"--html": [], "--text-separator": [" "]}
OF_FILES |= {"--on-error": ["stop"], "--on-empty": ["keep"], "--shard-size": ["10000"], "--progress": ["auto"]}
OF_TEXTS = {"embed": {"--precision": ["float32"]}, "sparse": {"--json": [], "-k": ["10"]}}
OF_TEXTS["rerank"] = OF_TEXTS["sparse"]


@pytest.mark.parametrize("verb", OF_TEXTS)
def test_options_that_would_change_nothing_are_refused_even_with_their_default(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("a cat\n")
    words = [verb, "-m", "./no/such/folder", *(["query"] if verb == "rerank" else [])]
    files = OF_FILES | ({"--dtype": ["float32"]} if verb == "embed" else {})
    for option, value in files.items():
        code, _, err = cli(*words, "a cat", option, *value)
        assert (code, f"{option} is for files" in err) == (1, True), err
    for option, value in OF_TEXTS[verb].items():
        code, _, err = cli(*words, "-i", "lines.txt", "-o", "out.npy", option, *value)
        long = {"-k": "--top-k"}.get(option, option)
        assert (code, f"{long} is for texts" in err) == (1, True), err


# --- streams, signals and names of files of a system ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "redirection", "code", "said"),
    [
        (["tokens", "the cat"], ">&-", 1, "the standard output is closed"),
        (["tokens", "the cat"], ">&- 2>&-", 1, ""),
        (["tokens", "-"], "<&-", 1, "the standard input is closed"),
        (["tokens", "the cat"], "2>&-", 0, ""),
        (["info", "-m", "./no/such/folder"], "2>&-", 1, ""),
        (["embed", "--nonsense"], "2>&-", 2, ""),
        (["tokens", "the cat"], ">/dev/full", 1, "No space left on device"),
        (["no-such-verb"], "2>/dev/full", 2, ""),
    ],
)
@unix
def test_streams_that_are_closed_or_full(arguments: list[str], redirection: str, code: int, said: str) -> None:
    if "/dev/full" in redirection and not Path("/dev/full").exists():
        pytest.skip("this system does not have /dev/full")
    done = in_a_shell(arguments, redirection)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert bool(said) == bool(done.stderr)
    assert (done.stdout == "") == (code > 0)


def test_as_processes(tmp_path: Path) -> None:
    """Test the installed command, a closed pipe, and a stdout that accepts ASCII only."""
    assert python("-m", "minibert", "--version").stdout == f"minibert {minibert.__version__}\n"
    done = python("-m", "minibert", "tokens", "北", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u5317" in done.stdout
    (tmp_path / "texts").write_text("".join(f"text number {i}\n" for i in range(3000)))
    with (tmp_path / "texts").open() as texts, (tmp_path / "errors").open("w") as errors:
        streams: dict[str, Any] = {"stdin": texts, "stdout": subprocess.PIPE, "stderr": errors}
        piped = subprocess.Popen([sys.executable, "-m", "minibert", "tokens", "-"], **streams)
        piped.stdout.readline()  # type: ignore[union-attr]
        piped.stdout.close()  # type: ignore[union-attr]
        assert piped.wait(timeout=PATIENCE) == 1
    assert (tmp_path / "errors").read_text() == ""
