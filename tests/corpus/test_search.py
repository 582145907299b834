"""``minibert search`` over the vectors of runs, and over columns of texts."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from minibert import SentenceTransformer
from minibert.corpus.embed import embed_corpus
from minibert.corpus.readers import VectorFile
from minibert.corpus.sources import Source
from minibert.vectors.similarity import cos_sim
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.command_line import run, standard_input
from tests.support.corpus_runs import stopped_after, texts_of
from tests.support.marks import by_default

# Different ones, because the scores of equal vectors may differ in their last bit.
TEXTS = [*dict.fromkeys(texts_of(60, seed=3)), " ", "the cat sat on"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"name": f"n{number}", "body": text} for number, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(folder)


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str], home: Path) -> Callable[..., tuple[int, str, str]]:
    """Return a function: a command, in which MODEL is a model -> the exit code, standard output and standard error."""
    return lambda command: run(capsys, *shlex.split(command.replace("MODEL", str(folder))))


def hits_of(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


OUTPUTS = ("out.npy", "out.jsonl", "out.parquet", "out/")
EMBED = "embed -m MODEL -i a.jsonl --text-column body --on-empty null --shard-size 9"


@pytest.mark.parametrize(
    ("output", "ids", "dtype"),
    by_default(
        product(OUTPUTS, (True, False), ("float32", "float16")),
        *((output, True, "float32") for output in OUTPUTS),
        *(("out.npy", False, "float16"), ("out.jsonl", False, "float16"), ("out/", True, "float16")),
    ),
)
def test_the_best_vectors_are_found_with_ids_and_texts(
    cli: Any, model: SentenceTransformer, output: str, ids: bool, dtype: str
) -> None:
    assert cli(f"{EMBED} -o {output} --dtype {dtype}{' --id-column name' if ids else ''}")[0] == 0
    code, out, err = cli(f"search cat {output} --json -k 100")
    assert (code, err) == (0, "")
    rows = [row for row, text in enumerate(TEXTS) if text.strip()]
    vectors = model.encode([TEXTS[row] for row in rows], truncation="silent").astype(dtype)
    scores = cos_sim(model.encode("cat"), vectors.astype(np.float32))[0]
    order = np.argsort(-scores, kind="stable")
    hits = hits_of(out)
    assert [hit["id"] for hit in hits] == [f"n{rows[i]}" if ids else rows[i] for i in order]
    assert [hit["text"] for hit in hits] == [TEXTS[rows[i]] for i in order]
    np.testing.assert_allclose([hit["score"] for hit in hits], scores[order], atol=2e-6)
    shown = cli(f"search cat {output} -k 1")[1].split(maxsplit=2)
    assert shown[1:] == [str(hits[0]["id"]), f"{hits[0]['text']}\n"]


OPTIONS = (
    ["--pooling", "mean,cls", "--layers=-1,-2", "--truncate-dim", "30", "--normalize"],
    ["--pooling", "first_last", "--truncation", "split", "--stride", "2"],
    ["--compute-type", "int8"],
    ["--layers", "1", "--layer-pooling", "sum"],
)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_query_is_computed_as_the_manifest_says(
    cli: Any, folder: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli(f"{EMBED} -o out.npy {' '.join(options)}")[0] == 0
    monkeypatch.setenv("MINIBERT_COMPUTE_TYPE", "int16")
    hits = hits_of(cli("search 'the cat sat on' out.npy --json -k 1")[1])
    assert (hits[0]["id"], round(hits[0]["score"], 4)) == (len(TEXTS) - 1, 1.0)
    for option, value in zip(options, [*options[1:], ""], strict=True):
        if option.startswith("--") and option != "--normalize" and "=" not in option:
            code, out, err = cli(f"search cat out.npy {option} {value}")
            assert (code, out, f"{option} is for texts" in err) == (1, "", True), err


def test_another_model_is_refused(cli: Any, home: Path) -> None:
    cli(f"{EMBED} -o out.npy")
    sentence_model(home / "other", pooling={"word_embedding_dimension": 24, "pooling_mode_cls_token": True})
    code, out, err = cli("search cat out.npy -m other")
    assert (code, out, "--model" in err) == (1, "", True)
    embed_corpus(SentenceTransformer(home / "other"), [Source("a.jsonl", "jsonl", "body")], "python.npy")
    assert "--model" in cli("search cat python.npy")[2]
    assert cli("search cat python.npy -m other")[0] == 0
    (home / "out.npy.manifest.json").unlink()
    code, out, err = cli("search cat out.npy")
    assert (code, out, "--model" in err) == (1, "", True)
    random_checkpoint(home / "wide", hidden_size=48)
    code, out, err = cli("search cat out.npy -m wide")
    assert (code, out, "48 numbers" in err) == (1, "", True)
    code, out, err = cli("search cat out.npy -m MODEL -k 1 --json")
    assert (code, err, "text" in hits_of(out)[0]) == (0, "", False)
    cli("embed 'a cat' man 'the dog' -m MODEL --pooling cls -o cls.npy")  # without a manifest: the options are given
    hits = hits_of(cli("search man cls.npy -m MODEL --pooling cls --json -k 1")[1])
    assert (hits[0]["id"], hits[0]["score"]) == (1, pytest.approx(1, abs=1e-6))
    cli("extract -m MODEL -i a.jsonl --text-column body -o states.npy --layers=-1")
    for command in ("search cat states.npy", "search cat states.npy -m MODEL"):
        code, out, err = cli(command)
        assert (code, out, "states.npy does not hold" in err) == (1, "", True), err


@pytest.mark.parametrize("ids", ["", "--id-column name"])
def test_texts_of_a_run_that_left_out_long_ones(cli: Any, home: Path, ids: str) -> None:
    """An id that two lines have does not say which text it is."""
    texts, names = ["cat " * 600, "the cat sat", "a dog", "the mat"], ["a", "b", "c", "c"]
    rows = [{"name": name, "body": text} for name, text in zip(names, texts, strict=True)]
    (home / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = f"--text-column body {ids} --on-error skip --truncation error"
    assert cli(f"embed -m MODEL -i a.jsonl {how} -o out.npy")[0] == 0
    code, out, err = cli("search cat out.npy --json")
    assert (code, err) == (0, "")
    expected = {("b", "the cat sat"), ("c", None)} if ids else set(enumerate(texts)) - {(0, texts[0])}
    assert {(hit["id"], hit.get("text")) for hit in hits_of(out)} == expected


def test_a_run_is_used_from_another_folder(cli: Any, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manifest has the paths of the model and of the texts from any folder."""
    shutil.copytree(folder, home / "model")
    assert cli("embed -m model -i a.jsonl --text-column body --on-empty null -o out.npy")[0] == 0
    found = cli("search cat out.npy --json")
    assert found[0] == 0
    (home / "inner").mkdir()
    monkeypatch.chdir(home / "inner")
    assert cli("search cat ../out.npy --json") == found
    again = "embed -m ../model -i ../a.jsonl --text-column body --on-empty null -o ../out.npy"
    for option in ("--update", "--resume"):
        code, out, err = cli(f"{again} {option}")
        assert (code, " 0 new, 0 changed" in out) == (0, option == "--update"), err
    monkeypatch.chdir(home)
    code, out, _ = cli("embed -m inner/../model -i ../a.jsonl --text-column body --on-empty null -o out.npy --resume")
    assert (code, out) == (1, "")  # that file does not exist


def test_the_fingerprint_is_in_the_files_and_is_compared(cli: Any, home: Path) -> None:
    source = Source("a.jsonl", "jsonl", "body")
    prompted = sentence_model(home / "prompted")
    made = SentenceTransformer(prompted, prompts={"query": "the cat "})
    embed_corpus(made, [source], "v.parquet", settings={"model": str(prompted)})
    manifest = json.loads((home / "v.parquet.manifest.json").read_text())
    metadata = json.loads(pyarrow.parquet.read_schema("v.parquet").metadata[b"minibert"])
    assert manifest["fingerprint"] == metadata["fingerprint"] == made.fingerprint()
    loaded, options = VectorFile("v.parquet").load_model()
    assert loaded.fingerprint() == made.fingerprint()  # with the prompts that were given
    assert VectorFile("v.parquet").load_model(compute_type="float32", prompts=made.prompts)[0].prompts == made.prompts
    for name, value in {"compute_type": "int8", "prompts": {"query": "a "}, "truncate_dim": 2}.items():
        with pytest.raises(ValueError, match=f"{name}={value!r}"):
            VectorFile("v.parquet").load_model(**{name: value})
    np.testing.assert_array_equal(loaded.encode_query("sat", **options), made.encode_query("sat"))
    lines = (prompted / "vocab.txt").read_text().split("\n")
    lines[-3:-1] = reversed(lines[-3:-1])  # the probe has neither word
    (prompted / "vocab.txt").write_text("\n".join(lines))
    code, out, err = cli("search cat v.parquet")
    assert (code, out, "tokenizer=" in err) == (1, "", True), err
    manifest["fingerprint_parts"] |= {"tokenizer": SentenceTransformer(prompted).fingerprint_parts()["tokenizer"]}
    manifest["fingerprint_parts"] |= {"results": "of a version with other bits"}
    (home / "v.parquet.manifest.json").write_text(json.dumps(manifest))
    assert cli("search cat v.parquet")[0] == 0
    del manifest["fingerprint_parts"]  # of an earlier version
    (home / "v.parquet.manifest.json").write_text(json.dumps(manifest))
    assert cli("search cat v.parquet")[0] == 0


def test_the_prompt_of_the_query(cli: Any, home: Path) -> None:
    """It is the model's for queries; without one, that of the texts, which is said; --prompt is stronger."""
    stored = {"prompts": {"query": "the cat ", "passage": "on the mat "}}
    prompts = sentence_model(home / "prompts", config_sentence_transformers=stored)
    plain = sentence_model(home / "plain")
    for folder, options, prompt, said in (
        (prompts, "--prompt-name passage", {"prompt_name": "query"}, False),
        (plain, "", {}, False),
        (plain, "--prompt man", {"prompt": "man"}, True),
    ):
        assert cli(f"embed -i a.jsonl --text-column body -o v.npy -m {folder} {options}")[0] == 0
        for more, expected in (("", prompt), (" --prompt dog", {"prompt": "dog"})):
            code, out, err = cli(f"search hello v.npy --json -k 1{more}")
            assert (code, "prompt of the texts" in err) == (0, said and not more)
            loaded = SentenceTransformer(folder)
            scores = cos_sim(loaded.encode("hello", **expected), np.load(home / "v.npy"))[0]
            assert hits_of(out)[0]["score"] == pytest.approx(scores.max(), abs=2e-6)


def test_a_run_that_has_not_ended(model: SentenceTransformer, folder: Path, cli: Any, home: Path) -> None:
    how: dict[str, Any] = {"shard_size": 10, "settings": {"model": str(folder)}, "on_empty": "skip"}
    for output in ("out/", "out.npy"):
        with stopped_after(2):
            embed_corpus(model, [Source("a.jsonl", "jsonl", "body")], output, **how)
    hits = hits_of(cli("search cat out --json -k 100")[1])
    assert sorted(hit["id"] for hit in hits) == [row for row in range(20) if TEXTS[row]]
    assert all(hit["text"] == TEXTS[hit["id"]] for hit in hits)
    code, _, err = cli("search cat out.npy")
    assert (code, "out.npy does not exist" in err, "has not ended" in err) == (1, True, True)


def test_texts_that_are_gone_or_changed_are_not_shown(cli: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli(f"{EMBED} -o out.npy")
    whole = (home / "a.jsonl").read_text()
    for change in (lambda path: path.write_text(whole + '{"body": "more"}\n'), lambda path: path.unlink()):
        change(home / "a.jsonl")
        code, out, err = cli("search cat out.npy --json -k 2")
        assert (code, "texts are not shown: a.jsonl " in err) == (0, True), err
        assert [sorted(hit) for hit in hits_of(out)] == [["id", "score"]] * 2
    standard_input(monkeypatch, b"a cat\na dog\n")
    cli("embed -m MODEL -i - -o pipe.npy")
    assert "texts are not shown: they came from the standard input" in cli("search cat pipe.npy")[2]


def test_a_table_of_the_standard_input(cli: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pyarrow.table({"text": ["a cat", "a dog", "the man"], "id": [7, 8, 9]})
    pyarrow.parquet.write_table(table, home / "t.parquet")
    expected = hits_of(cli("search cat t.parquet -m MODEL --json --id-column id")[1])
    assert len(expected) == 3
    how = "-m MODEL --json --id-column id --input-format parquet"
    standard_input(monkeypatch, (home / "t.parquet").read_bytes())
    assert hits_of(cli(f"search cat - {how}")[1]) == expected
    os.mkfifo(home / "pipe")
    writer = threading.Thread(target=(home / "pipe").write_bytes, args=[(home / "t.parquet").read_bytes()])
    writer.start()
    assert hits_of(cli(f"search cat pipe {how}")[1]) == expected
    writer.join()


def test_ids_that_are_there_twice_or_empty_are_counted_and_have_their_texts(cli: Any, home: Path) -> None:
    (home / "b.csv").write_text("id,text\n1,a cat\n0,\n1,a dog\n,the man\n")
    code, said, err = cli("embed -m MODEL -i b.csv --id-column id -o out.npy --on-empty skip")
    assert (code, err, "1 duplicate id, 1 empty id" in said) == (0, "", True), said
    texts = [(hit["id"], hit.get("text")) for hit in hits_of(cli("search man out.npy --json")[1])]
    assert sorted(texts, key=str) == [("", "the man"), ("1", "a cat"), ("1", "a dog")]


def test_files_that_are_not_as_the_run_has_written_them(cli: Any, home: Path) -> None:
    cli(f"{EMBED} -o out.npy")
    cli(f"{EMBED} -o out/")
    for name in ("out.npy", "out.ids.jsonl"):  # the same size, another content
        content = (home / name).read_bytes()
        (home / name).write_bytes(content[:-8] + content[-9:-1])
        code, out, err = cli("search cat out.npy")
        assert (code, out, name in err, "--update --recompute" in err) == (1, "", True, True), err
        (home / name).write_bytes(content)
    code, _, err = cli("embed 'a cat' 'a dog' -m MODEL -o out.npy")
    assert (code, "another output" in err) == (1, True), err
    np.save(home / "out.npy", np.zeros((3, 24), np.float32))
    (home / "out" / "part-00001.parquet").unlink()
    for name in ("out.npy", "out"):
        code, out, err = cli(f"search cat {name}")
        assert (code, out, "missing" in err) == (1, "", True), err
    (home / "out.npy.manifest.json").unlink()
    for number, array in enumerate((np.zeros((3, 2, 24), np.float32), np.zeros((3, 24), np.int8), np.float32(3))):
        np.save(home / f"{number}.npy", array)
        code, out, err = cli(f"search cat {number}.npy -m MODEL")
        assert (code, out, "24 numbers" in err) == (1, "", True), err
    (home / "empty").mkdir()
    np.save(home / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    (home / "text.npy").write_text("no array")
    shutil.copy(home / "a.jsonl", home / "b.jsonl")
    (home / "b.jsonl.manifest.json").write_text("{}")
    pyarrow.parquet.write_table(
        pyarrow.parquet.read_table(home / "out" / "part-00000.parquet").drop_columns(["embedding"]), home / "x.parquet"
    )
    for name in ("pickle.npy", "text.npy", "b.jsonl", "x.parquet", "missing.npy", "empty"):
        code, out, err = cli(f"search cat {name} -m MODEL")
        assert (code, out, "Traceback" in err, bool(err)) == (1, "", False, True), name


def test_a_parquet_file_of_others_with_vectors_and_texts(cli: Any, model: SentenceTransformer, home: Path) -> None:
    texts = ["a cat", "a dog", "the man"]
    vectors = [row.tolist() for row in model.encode(texts)]
    pyarrow.parquet.write_table(
        pyarrow.table({"embedding": [None, *vectors], "title": ["", *texts]}), home / "v.parquet"
    )
    hits = hits_of(cli("search man v.parquet -m MODEL --json --text-column title")[1])
    assert sorted((hit["id"], hit["text"]) for hit in hits) == [(1, "a cat"), (2, "a dog"), (3, "the man")]
    code, out, err = cli("search man v.parquet -m MODEL --text-column body")
    assert (code, out, "no texts in a column 'body'" in err) == (1, "", True)


def test_columns_of_texts(cli: Any, home: Path) -> None:
    texts = ["a cat", 'naïve, "quoted"', "two\nlines", "", "the man"]
    quoted = ['"' + text.replace('"', '""') + '"' for text in texts]
    (home / "b.csv").write_text("key,body\n" + "".join(f"{i},{text}\n" for i, text in enumerate(quoted)))
    (home / "b.jsonl").write_text("".join(json.dumps({"key": f"{i}", "body": t}) + "\n" for i, t in enumerate(texts)))
    pyarrow.parquet.write_table(pyarrow.table({"key": list("01234"), "body": texts}), home / "b.parquet")
    result = []
    for suffix in ("csv", "jsonl", "parquet"):
        code, out, err = cli(f"search cat b.{suffix} -m MODEL --text-column body --id-column key --json")
        assert (code, err) == (0, "")
        result.append([(hit["score"], hit["id"], hit["text"]) for hit in hits_of(out)])
    assert result[0] == result[1] == result[2]
    assert sorted(text for _, _, text in result[0]) == sorted(filter(None, texts))
    assert "two lines" in cli("search cat b.csv -m MODEL --text-column body")[1]
    code, out, err = cli("search cat b.csv -m MODEL")
    assert (code, out, "has no column 'text'" in err, "--text-column" in err) == (1, "", True, True)
