"""The command line: its output, files, errors and exit codes; most tests run it in this process."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import minibert
from minibert import BertModel, BertTokenizer, SentenceTransformer, embed_tokens, word_occurrences
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.cli import corpus, embed, states
from tests.support.checkpoints import random_checkpoint
from tests.support.command_line import run, standard_input
from tests.support.marks import unix
from tests.support.outcomes import PATIENCE

BANK = "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."


def test_words_tells_the_senses_of_bank_apart(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "words", "bank", BANK)
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


def test_words_across_texts_in_pieces_and_in_other_case(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "words", "Embeddings", "I want embeddings.", "EMBEDDINGS are vectors", "embedding only")
    assert code == 0
    assert "'Embeddings' occurs 2 times" in out  # "embedding" is another word, although its first tokens are the same
    assert "[EMBEDDINGS] are vectors" in out
    assert "tokens 3-6" in out


def test_words_that_cannot_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "words", "bank", "one bank")
    assert (code, "'bank' occurs once" in err) == (1, True)
    code, _, err = run(capsys, "words", "money", "one bank")
    assert (code, "'money' occurs nowhere" in err) == (1, True)
    code, _, err = run(capsys, "words", "", "one bank")
    assert (code, "WORD is empty" in err) == (1, True)
    code, _, err = run(capsys, "words", "a", "a " * 600, "--truncation", "error")
    assert (code, "602 tokens, the model takes 512" in err, "truncation='warn'" in err) == (1, True, True)
    for options, warned in (((), True), (("--truncation", "silent"), False)):
        code, out, err = run(capsys, "words", "a", "a " * 600, *options)
        assert (code, "'a' occurs 510 times, the first 5 compared" in out) == (0, True)
        assert ("warning: The text has more than 512 tokens and was cut" in err) == warned


def test_words_from_chosen_layers_joined_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """The table equals the result of the Python calls: combine the layers of each token, then join the tokens."""
    texts = ["Embeddings are vectors", "I like embeddings, embeddings of words"]
    model, tokenizer = BertModel.from_pretrained(DEFAULT_MODEL), BertTokenizer.from_pretrained(DEFAULT_MODEL)
    for how, subwords in (("concat", "max"), ("mean", "first"), ("sum", "last")):
        options = ("--layers=-1,2", "--layer-pooling", how, "--subwords", subwords)
        code, out, err = run(capsys, "words", "embeddings", *texts, *options)
        assert (code, err) == (0, "")
        assert "2 hidden states of shape (23, 384): state 6, state 2" in out
        rows = [line.split()[-3:] for line in out.splitlines() if line.startswith(("state ", how))]
        for row, layers in zip(rows, ([-1], [2], [-1, 2]), strict=True):
            embedded = embed_tokens(model, tokenizer, texts, layers=layers, layer_pooling=how)
            found = word_occurrences("embeddings", embedded, tokenizer, subwords=subwords)
            expected = found.similarities()[np.triu_indices(3, 1)]
            assert [float(cell) for cell in row] == pytest.approx(expected, abs=6e-4)
    code, out, _ = run(capsys, "words", "embeddings", *texts, "--layers=0")
    assert (code, "sum of" in out, "Most alike, by state 0: " in out) == (0, False, True)


def test_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    states, texts = str(tmp_path / "states.npz"), ["a text", "another text", "北京 $x _y"]
    for name, start, arguments in (
        ("a.png", b"\x89PNG", ["words", "bank", BANK]),
        ("b.svg", b"<?xml", ["hidden", "one text", "-o", states]),
        ("c.PDF", b"%PDF", ["hidden", *texts, "-o", states, "--layers=0,-1"]),
    ):
        code, out, err = run(capsys, *arguments, "--plot", str(tmp_path / name))
        assert (code, err, f"{name}: picture" in out) == (0, "", True)
        assert (tmp_path / name).read_bytes().startswith(start)
    saved = np.load(states)
    assert (saved["hidden_states"].shape[0], saved["layers"].tolist()) == (2, [0, 6])


def test_tokens(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, "tokens", "the embeddings")
    assert code == 0
    assert [line.split() for line in out.splitlines()][2:5] == [
        ["1996", "the", "0", "3", "0"],
        ["7861", "em", "4", "6", "1"],
        ["8270", "##bed", "6", "9", "1"],
    ]
    standard_input(monkeypatch, "\ufeffé a\r\nsecond line\n".encode())
    code, out, _ = run(capsys, "tokens", "--json", "-")
    first, second = (json.loads(line) for line in out.splitlines())
    assert (code, first["text"], second["text"]) == (0, "é a", "second line")
    assert first["tokens"][1] == {"token": "e", "id": 1041, "start": 0, "end": 1, "word": 0, "special": False}
    assert first["tokens"][0] == {"token": "[CLS]", "id": 101, "start": 0, "end": 0, "word": None, "special": True}


def test_hidden_saves_every_state_with_its_tokens(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "states.npz"
    code, out, _ = run(capsys, "hidden", BANK, "a short one", "-o", str(file))
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


def test_embed_prints_and_saves(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = SentenceTransformer().encode(["one text", "and another"])
    code, out, _ = run(capsys, "embed", "one text", "and another")
    printed = [json.loads(line) for line in out.splitlines()]
    assert (code, [line["text"] for line in printed]) == (0, ["one text", "and another"])
    np.testing.assert_array_equal(np.array([line["embedding"] for line in printed], dtype=np.float32), expected)

    file = tmp_path / "vectors.npy"
    standard_input(monkeypatch, b"one text\nand another")
    code, out, _ = run(capsys, "embed", "-", "-o", str(file))
    assert (code, "(2, 384)" in out) == (0, True)
    np.testing.assert_array_equal(np.load(file), expected)


def test_embed_says_when_it_truncates(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "embed", "long " * 300)
    assert code == 0
    assert "minibert: warning: The text has more than 256 tokens and was cut" in err


def test_another_model_and_backend(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path / "model", num_hidden_layers=2, hidden_size=24, num_attention_heads=3)
    for backend in ("numba", "numpy"):
        code, out, _ = run(capsys, "words", "the", "the cat the", "-m", str(folder), "--backend", backend)
        assert (code, "3 hidden states of shape (5, 24)" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "find the lines of a file"),
        (["nonsense"], 2, "choose from"),
        (["serch", "a"], 2, "did you mean search?"),
        (["words", "bank"], 2, "TEXT"),
        (["words", "bank", "text", "--most", "1"], 2, "at least 2"),
        (["words", "bank", "text", "--most", "x"], 2, "at least 2"),
        (["words", "a", "a a", "--layers", "x"], 2, "not a list of numbers"),
        (["words", "a", "a a", "--layers", "7"], 1, "layers=7; this model has 7 hidden states"),
        (["words", "a", "a a", "--layers=-1,6"], 1, "hidden state 6 twice"),
        (["words", "a", "a a", "--subwords", "median"], 2, "invalid choice"),
        (["words", "a", "a a", "--layer-pooling", "max"], 2, "invalid choice"),
        (["words", "a", "a a", "--plot", "picture.bmp"], 1, "picture.bmp must end in .png, .svg or .pdf"),
        (["words", "a", "a a", "--plot", ""], 1, "the name of the file to write is empty"),
        (["hidden", "text"], 2, "--output"),
        (["hidden", "text", "-o", "x.npz", "--layers=8"], 1, "layers=8"),
        (["hidden", "text", "-o", "x.npz", "--truncation", "split"], 2, "invalid choice"),
        (["embed", "text", "--backend", "torch"], 2, "invalid choice"),
        (["embed", "text", "-m", "./no/such/folder"], 1, "no/such/folder"),
        (["embed", "text", "-m", "a/b/c"], 1, "a/b/c"),
        (["embed", "text", "-o", "no/such/folder/v.npy"], 1, "cannot be written"),
        (["embed", "text", "-o", "."], 1, "is a folder"),
        (["hidden", "text", "-o", "no/such/folder/v.npz"], 1, "cannot be written"),
        (["tokens", "a\udcffb"], 1, "surrogate"),
    ],
)
def test_errors_and_exit_codes(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    found, out, err = run(capsys, *arguments)
    assert (found, message in err, out) == (code, True, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("verb", "name", "expected"),
    [
        (["embed", "one", "-o"], "z.jsonl", ".npy"),
        (["embed", "one", "-o"], "z", ".npy"),
        (["hidden", "one", "-o"], "z.foo", ".npz"),
        (["hidden", "one", "-o"], "z.npy", ".npz"),
        (["words", "a", "a a", "--plot"], "z.bmp", ".png, .svg or .pdf"),
        (["hidden", "one", "-o", "good.npz", "--plot"], "z.npz", ".png, .svg or .pdf"),
        (["embed", "-i", "lines.txt", "-o"], "z.npz", ".npy, .jsonl or .parquet"),
        (["extract", "-i", "lines.txt", "-o"], "z.jsonl", ".npy"),
        (["extract", "-i", "lines.txt", "--format", "google", "-o"], "z.npy", ".jsonl or .json"),
    ],
)
def test_the_name_of_a_file_to_write_is_checked_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    verb: list[str],
    name: str,
    expected: str,
) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    for module in (corpus, embed, states):
        for loader in ("load_bert", "load_tokenizer", "load_encoder"):
            monkeypatch.setattr(module, loader, load, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("a line\n")
    in_use = (
        f"{tmp_path.resolve()} holds files that this run did not write: lines.txt. Readers of the folder would take "
        "them for its vectors. Move them elsewhere, or give another folder."
    )
    good = f"z{expected.split()[0].rstrip(',')}"
    for given, message in (
        (name, f"{name} must end in {expected}, which is the format; give another name."),
        (f"no/{good}", f"no/{good} cannot be written: there is no folder {tmp_path.resolve() / 'no'}. Make it first."),
        (".", in_use if verb[:2] == ["embed", "-i"] else ". is a folder; give the name of a file to write."),
        ("", "the name of the file to write is empty; give a name."),
    ):
        if given or "-i" not in verb:  # the verbs for files take an empty name for a missing one
            assert run(capsys, *verb, given) == (1, "", f"minibert: {message}\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["lines.txt"]


def test_one_thing_is_not_called_things(capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(b"cat\n\xff\n")
    arguments = ["extract", "-m", str(small), "--layers=-1", "-i", str(tmp_path / "lines.txt"), "-o"]
    code, out, err = run(capsys, *arguments, str(tmp_path / "out.npy"))
    assert (code, "minibert: 1 input line cannot be used; nothing was computed" in err) == (1, True)
    code, out, err = run(capsys, *arguments, str(tmp_path / "out.npy"), "--on-error", "skip")
    assert code == 0
    assert re.search(r"; 1 text, \d+ tokens, 0 texts cut, 1 input line left out, ", out)


@pytest.mark.parametrize(
    ("data", "message"), [(b"fine\n\xff broken", "line 2, is not UTF-8"), (b"", "does not hold a text")]
)
def test_bad_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data: bytes, message: str
) -> None:
    for verb in (["tokens"], ["embed"], ["words", "a"]):
        standard_input(monkeypatch, data)
        code, _, err = run(capsys, *verb, "-")
        assert (code, message in err) == (1, True)


def test_a_failed_write_leaves_the_old_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vectors.npy"
    file.write_bytes(b"before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    code, _, err = run(capsys, "embed", "text", "-o", str(file))
    assert (code, "No space left" in err) == (1, True)
    assert file.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["vectors.npy"]


def test_special_files_are_written_to_and_links_are_followed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target.npy"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    assert run(capsys, "embed", "text", "-o", str(pipe))[0] == 0
    reader.join(timeout=PATIENCE)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert np.load(io.BytesIO(received[0])).shape == (1, 384)

    link.symlink_to(target)
    assert run(capsys, "embed", "text", "-o", str(link))[0] == 0
    assert link.is_symlink()
    assert np.load(target).shape == (1, 384)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model of 16 positions, so that every text LONG is cut, with a warning."""
    return random_checkpoint(tmp_path_factory.mktemp("small") / "model", max_position_embeddings=16)


def arguments_for(template: list[str], model: Path, folder: Path) -> list[str]:
    (folder / "lines.txt").write_text("the cat\n" + "the dog " * 30 + "\n")
    values = {"LONG": "the cat " * 30, "FILE": str(folder / "lines.txt"), "MODEL": str(model)}
    return [values.get(word, word.replace("OUT.", f"{folder}/out.")) for word in template]


def in_a_shell(arguments: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -m minibert "$@" {redirection}', sys.executable, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=PATIENCE,
    )


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
        (["--version"], ">/dev/full", 1, "No space left on device"),
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


@unix
def test_what_is_said_never_gets_into_a_file_of_a_closed_stream(small: Path, tmp_path: Path) -> None:
    template = ["embed", "LONG", "-o", "OUT.npy", "-m", "MODEL", "--backend", "numpy"]
    usual = in_a_shell(arguments_for(template, small, tmp_path), "")
    assert "warning" in usual.stderr
    expected = (tmp_path / "out.npy").read_bytes()
    done = in_a_shell(arguments_for(template, small, tmp_path), "2>&- <&-")
    assert (done.returncode, (tmp_path / "out.npy").read_bytes()) == (0, expected)


@unix
@pytest.mark.parametrize("template", [["embed", "-i", "FILE"], ["extract", "--layers=-1", "-i", "FILE"]])
def test_ctrl_c_of_a_long_verb(small: Path, tmp_path: Path, template: list[str]) -> None:
    arguments = arguments_for([*template, "-o", "OUT.npy", "-m", "MODEL", "--backend", "numpy"], small, tmp_path)
    (tmp_path / "lines.txt").write_text("the cat\n" * 2_000_000)
    process = subprocess.Popen([sys.executable, "-m", "minibert", *arguments], stderr=subprocess.PIPE, text=True)
    time.sleep(2.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "interrupted" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out.npy").exists()


@unix
def test_names_of_files_that_are_not_utf_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are refused where a manifest in UTF-8 would hold them; the texts of a file with such a name can be read."""
    named, plain = os.fsdecode(os.fsencode(tmp_path) + b"/lines\xff.txt"), str(tmp_path / "out.npy")
    Path(named).write_text("the cat\nthe dog\n")
    for arguments in (["-i", named, "-o", plain], ["-i", "x", "-o", f"{named}.npy"], ["-i", f"{named}x", "-o", plain]):
        code, out, err = run(capsys, "embed", *arguments)
        assert (code, out, "lines" in err or "'x'" in err or "x " in err) == (1, "", True), err
        assert "Traceback" not in err
    assert run(capsys, "search", "cat", named, "-k", "1")[0] == 0


@pytest.mark.parametrize(
    "template",
    [
        ["words", "the", "the cat the", "--layers", "-1,0", "-m", "MODEL"],
        ["embed", "the cat", "--layers", "-1,0", "-m", "MODEL"],
        ["similarity", "the cat", "a", "--layers", "-1,0", "-m", "MODEL"],
        ["search", "the cat", "FILE", "--layers", "-1,0", "-m", "MODEL"],
        ["hidden", "the cat", "-o", "OUT.npz", "--layers", "-1,0", "-m", "MODEL"],
        ["extract", "-i", "FILE", "-o", "OUT.npy", "--layers", "-1,0", "-m", "MODEL"],
    ],
)
@pytest.mark.filterwarnings("ignore:.*has no modules.json")
def test_layers_from_the_end_need_no_equals_sign(
    capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path, template: list[str]
) -> None:
    arguments = arguments_for(template, small, tmp_path)
    place = arguments.index("--layers")
    joined = [*arguments[:place], "--layers=-1,0", *arguments[place + 2 :]]
    found = [re.sub(r"[\d.]+ seconds", "", run(capsys, *one)[1]) for one in (arguments, joined)]
    assert found[0] == found[1] != ""
    code, _, err = run(capsys, *arguments[:place], "--layers", "-1,", *arguments[place + 2 :])
    assert (code, "argument --layers: '-1,' is not a list of numbers such as -1,-2" in err) == (2, True)
    code, _, err = run(capsys, *arguments[:place], "--layers", *arguments[place + 2 :])
    assert (code, "argument --layers: expected one argument" in err) == (2, True)


def test_as_processes(tmp_path: Path) -> None:
    """Test the installed command, a closed pipe, and a stdout that accepts ASCII only."""
    command = [sys.executable, "-m", "minibert"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert version.stdout == f"minibert {minibert.__version__}\n"
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [*command, "tokens", "北"], capture_output=True, text=True, env=plain, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u5317" in done.stdout
    texts = "\n".join(f"text number {i}" for i in range(3000))
    piped = subprocess.Popen(
        [*command, "tokens", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert piped.stdin
    assert piped.stdout
    assert piped.stderr
    piped.stdin.write(texts)
    piped.stdin.close()
    piped.stdout.readline()
    piped.stdout.close()
    assert piped.stderr.read() == ""
    assert piped.wait(timeout=PATIENCE) == 1
    piped.stderr.close()
