"""``minibert parity``: exit codes 0 to 3, reports in all formats, the probe, names."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert
from minibert import BertModel, BertTokenizer, parity
from minibert.parity import checking, comparison
from minibert.parity.diagnosis.simulation import simulate
from minibert.parity.report import FORMAT
from tests.parity.conftest import Case
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.command_line import run
from tests.support.head_models import make_model

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model, a right and a wrong dump of the probe, and the probe."""
    home = tmp_path_factory.mktemp("parity")
    model = BertModel.from_pretrained(random_checkpoint(home / "model", max_position_embeddings=24), backend="numpy")
    made = parity.probe(model, tokenizer=BertTokenizer.from_pretrained(home / "model"))
    made.save(home / "probe")
    trace = model.trace(**made.inputs, record="hidden_states.*")
    np.savez(home / "right.npz", **trace)
    np.savez(home / "wrong.npz", **{**trace, "encoder.layer.1": trace["encoder.layer.1"] + np.float32(0.01)})
    np.savez(home / "nothing.npz", x=np.zeros((2, 2)))
    (home / "empty").mkdir()
    (home / "empty.json").write_text("{}")
    (home / "encoder.layer.0.bin").write_bytes(bytes(8))
    (home / "latin.txt").write_bytes(b"K\xe4se")
    (home / "empty.txt").touch()
    (home / "damaged.npz").write_bytes(b"hello")
    return home


def check(capsys: Capture, home: Path, dump: str, *arguments: str) -> tuple[int, str, str]:
    words = ("parity", "check", str(home / dump), "-m", str(home / "model"), "--backend", "numpy")
    return run(capsys, *words, *arguments)


@pytest.mark.parametrize(
    ("dump", "code", "said"),
    [
        ("right.npz", 0, "BITS: 3 names"),
        ("wrong.npz", 1, "WRONG from encoder.layer.1 on"),
        ("damaged.npz", 2, "is not a whole .npz file"),
        ("absent.npz", 2, "does not exist"),
        ("nothing.npz", 3, """Nothing can be compared"""),
        ("empty.json", 3, "empty.json holds no values"),
        ("empty", 3, "empty holds no values"),
        ("encoder.layer.0.bin", 3, "encoder.layer.0 has shape (2,); expected (5, 24, 24)."),
    ],
)
def test_exit_codes(capsys: Capture, home: Path, dump: str, code: int, said: str) -> None:
    actual, out, err = check(capsys, home, dump, "--inputs", str(home / "probe" / "probe.json"), "--no-diagnosis")
    assert actual == code
    assert said in (out if code < 2 else err)
    assert bool(out) == (code < 2)


@pytest.mark.parametrize("suffix", ["json", "npz", "safetensors"])
def test_each_file_of_the_probe_is_the_default_input(capsys: Capture, home: Path, suffix: str) -> None:
    file = home / "probe" / f"probe.{suffix}"
    assert check(capsys, home, "right.npz", "--inputs", str(file))[0] == 0
    assert check(capsys, home, "right.npz")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--inputs", "absent.json"),
        ("--inputs", "right.npz"),
        ("--map", "probe/probe.json"),
        ("--inputs", "probe/texts.txt"),
        ("--inputs", "encoder.layer.0.bin"),
        ("--texts", "absent.txt"),
        ("--texts", "probe/texts.txt", "--inputs", "probe/probe.json"),
        ("--compute-type", "int8"),
        ("--json", "report.txt"),
        ("--markdown", "no/such/folder/report.md"),
        ("--raw", "x=1,2"),
        ("--raw", "x=a"),
        ("--budget", "double"),
        ("--texts", "empty.txt"),
        ("--texts", "latin.txt"),
    ],
)
def test_wrong_arguments_have_the_code_2(capsys: Capture, home: Path, arguments: tuple[str, ...]) -> None:
    given = [str(home / word) if (home / word).exists() or "." in word else word for word in arguments]
    code, out, err = check(capsys, home, "right.npz", *given)
    assert (code, out) == (2, "")
    assert err.startswith("usage:") or err.count("\n") == 1


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_reports_in_files(capsys: Capture, home: Path, tmp_path: Path) -> None:
    files = [f"{tmp_path}/report.{suffix}" for suffix in ("json", "md")]
    options = ("--json", files[0], "--markdown", files[1], "--no-diagnosis", "--port", "my port 1.2")
    assert check(capsys, home, "wrong.npz", *options)[0] == 1
    report, page = json.loads(Path(files[0]).read_text()), Path(files[1]).read_text()
    assert (report["format"], report["verdict"], report["first"]) == (FORMAT, "wrong", "encoder.layer.1")
    assert [row["level"] for row in report["names"]] == ["float32", "float32", "wrong"]
    for key, said in (
        ("source", f"folder {home / 'model'}"),
        ("weights", f"model.safetensors sha256 {sha256(home / 'model' / 'model.safetensors')}"),
        ("config", f"config.json sha256 {sha256(home / 'model' / 'config.json')}"),
        ("dump", f"wrong.npz sha256 {sha256(home / 'wrong.npz')}"),
        ("inputs", "the probe, 5 rows of 24"),
        ("port", "my port 1.2"),
        ("versions", f"minibert {minibert.__version__}, NumPy {np.__version__}"),
    ):
        assert said in report["about"][key]
        assert f"- {key}: {report['about'][key]}" in page
    code, out, _ = check(capsys, home, "right.npz", "--json", "-")
    assert (code, json.loads(out)["verdict"]) == (0, "bits")


def test_arrays_without_a_file_have_a_hash(case: Case) -> None:
    hashes = [case.check({"embeddings": case.trace["embeddings"] * scale}).about["dump"] for scale in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_table_is_printed_before_the_cause_is_looked_for(
    capsys: Capture, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diagnose(*given: Any, **options: Any) -> list[Any]:
        out = capsys.readouterr().out
        assert "WRONG from encoder.layer.1 on" in out
        assert "[row, token, feature]" in out
        return [parity.Finding("because", "", ("encoder.layer.1",), 0.0, "")]

    monkeypatch.setattr("minibert.parity.comparison.diagnose", diagnose)
    code, out, _ = check(capsys, home, "wrong.npz")
    assert (code, out.splitlines()[0]) == (1, "Why: because")  # the table is not printed again
    assert "[row, token, feature]" not in out


@pytest.mark.parametrize(("part", "said"), [("match", "true values"), ("diagnose", "cause")])
@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_what_takes_long_is_said(
    capsys: Capture, home: Path, monkeypatch: pytest.MonkeyPatch, part: str, said: str, seconds: float
) -> None:
    """Also if the standard output has nothing but JSON."""
    module = checking if part == "match" else comparison
    computed, told = getattr(module, part), threading.Event()

    def waits(*given: Any, **options: Any) -> Any:
        if not seconds:
            assert told.wait(60)
        return computed(*given, **options)

    def report(message: str) -> None:
        problems.append(message)
        if said in message:
            told.set()

    problems = list[str]()
    monkeypatch.setattr(module, part, waits)
    monkeypatch.setattr("minibert.cli.parity.report_problem", report)
    monkeypatch.setattr("minibert.cli.parity._SILENT", seconds)
    assert check(capsys, home, "wrong.npz", "--json", "-")[0] == 1
    assert sum(said in message for message in problems) == (not seconds)


def test_names_that_are_wrong_by_themselves_are_marked(case: Case) -> None:
    report = case.check(simulate(case.model, case.inputs, "N2.1e-5"), diagnosis=True)
    own = [row.name for row in report.names if row.own]
    wrong = [row.name for row in report.names if row.level == "wrong"]
    assert "embeddings" in own
    assert 0 < len(own) < len(wrong)
    marked = [line.split()[1] for line in report.to_text(every_row=True).splitlines() if line.startswith("> ")]
    assert marked == own
    assert f"Not so: {len(wrong) - len(own)} other names" in report.findings()


def test_all_rows_of_a_long_table(case: Case) -> None:
    report = case.check({f"{prefix}{name}": array for prefix in ("", "bert.") for name, array in case.trace.items()})
    for make in (report.to_text, report.to_markdown):
        few, every = (make(every_row=every_row).count("intermediate") for every_row in (False, True))
        assert few < every == sum("intermediate" in row.name for row in report.names)


@pytest.mark.parametrize("prefix", ["/m", "/a/b", "wrapper.", "wrapper.bert."])
def test_names_behind_a_common_prefix(case: Case, prefix: str) -> None:
    aliases = case.model.value_names().aliases
    dump = {}
    for name, array in case.trace.items():
        spellings = (one for one in (name, *aliases(name)) if one[0] == "/" or prefix[0] != "/")
        dump.update({f"{prefix}{own}": array for own in itertools.islice(spellings, 1)})
    report = case.check({**dump, "last_hidden_state": case.trace["last_hidden_state"]})
    assert (report.verdict, len(report.names), report.unknown) == ("bits", len(dump) + 1, [])
    assert any("without the prefix" in note for note in report.notes)
    other = {f"other.{name}": case.trace[name] for name in case.trace}
    unknown = case.check({**dump, **other, "embeddings": case.trace["embeddings"]}).unknown
    assert {next(iter(dump)), "other.embeddings.word_embeddings"} <= {*unknown}


def test_the_report_escapes_what_a_dump_says(case: Case) -> None:
    dump = {"hidden_states.0": np.full((5, 24, 24), np.nan, np.float32), "<b>\x00&\n::error::": np.zeros(1)}
    report = case.check(dump)
    text = json.dumps(report.to_json(), allow_nan=False)
    row = json.loads(text)["names"][0]
    assert {row[name] for name in ("value", "ratio", "worst", "rms", "largest", "relative")} == {"nan"}
    assert "\n::error" not in str(report)


def test_a_map_and_raw_numbers(capsys: Capture, home: Path, tmp_path: Path) -> None:
    with np.load(home / "right.npz") as values:
        values["encoder.layer.1"].astype("<f4").tofile(tmp_path / "logits.bin")
        np.save(tmp_path / "mine.npy", values["encoder.layer.0"])
    (tmp_path / "map.json").write_text('{"mine": "hidden_states.1"}')
    words = ("parity", "check", "-m", str(home / "model"), "--backend", "numpy")
    raw = ("--raw", "hidden_states.2=5,24,24")
    assert run(capsys, *words, str(tmp_path / "logits.bin"), *raw)[0] == 0
    assert run(capsys, *words, str(tmp_path / "mine.npy"), "--map", str(tmp_path / "map.json"))[0] == 0


def test_the_probe(capsys: Capture, home: Path, tmp_path: Path) -> None:
    words = ("parity", "probe", "-m", str(home / "model"), "--backend", "numpy", "-o", str(tmp_path / "made"))
    assert run(capsys, *words)[0] == 0
    assert (tmp_path / "made" / "probe.json").read_bytes() == (home / "probe" / "probe.json").read_bytes()
    content = json.loads((tmp_path / "made" / "probe.json").read_text())
    mask = np.array(content["attention_mask"])
    assert mask.shape == (5, 24)
    assert max(content["token_type_ids"][0]) == 1
    assert mask[1, [0, -1]].tolist() == [1, 0]  # padding on the right
    assert (np.diff(np.flatnonzero(mask[2])) > 1).any()  # a hole
    assert mask[3, [0, -1]].tolist() == [0, 1]  # padding on the left


def test_the_probe_of_a_small_model_without_a_tokenizer(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path, max_position_embeddings=7, type_vocab_size=1, vocab_size=12)
    model = BertModel.from_pretrained(folder, backend="numpy")
    made = parity.probe(model)
    assert model(**made.inputs).last_hidden_state.shape == (5, 7, 24)
    assert np.array_equal(made.input_ids, parity.probe(model).input_ids)


def test_names(capsys: Capture, home: Path) -> None:
    code, out, _ = run(capsys, "parity", "names", "-m", str(home / "model"))
    assert code == 0
    names = BertModel.from_pretrained(home / "model", backend="numpy").value_names()
    lines = [line for line in out.splitlines() if "(B, " in line]
    assert [names.resolve(line.split()[0])[0] for line in lines] == list(names.specs)
    assert "(B, 3, S, S)" in out


def test_a_model_with_a_head_and_one_of_sentence_transformers(capsys: Capture, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "head", "BertForTokenClassification")
    _, out, _ = run(capsys, "parity", "names", "-m", str(folder))
    assert "classifier" in out
    folder = sentence_model(tmp_path / "sentence", ["models.Transformer", "models.Pooling", "models.Normalize"])
    _, out, _ = run(capsys, "parity", "names", "-m", str(folder))
    assert "sentence_embedding" in out
    (tmp_path / "texts.txt").write_text("the cat\nthe dog\tsat on a mat\n")
    vectors = np.asarray([[0.5] * 24] * 2, np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    words = ("parity", "check", str(tmp_path / "vectors.npy"), "-m", str(folder), "--backend", "numpy")
    code, out, _ = run(capsys, *words, "--texts", str(tmp_path / "texts.txt"), "--no-diagnosis")
    assert code == 1
    assert "WRONG at vectors (sentence_embedding) (nothing before it was compared)" in out
