"""``--update``: texts that the output has keep their vectors, and the files are those of a run from nothing."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
import shlex
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from minibert import MultiVectorEncoder, SentenceTransformer
from minibert.cli import main
from minibert.corpus.embed import embed_corpus, rerank_corpus, sparse_corpus
from minibert.corpus.readers import VectorFile
from minibert.corpus.sources import Source
from minibert.encode.run import TextPlan
from tests.support.command_line import run
from tests.support.corpus_runs import contents, manifest_of, stopped_after, texts_of
from tests.support.marks import sampled
from tests.support.multi_vectors import bert_folder, native
from tests.support.sentence_heads import model_folder

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json", "ignore:.*no modules.json")

Rows = list[tuple[str, str, str]]
IDS = {3: "a, ", 4: '", "', 11: 'x", "embedding": '}
OLD: Rows = [(IDS.get(i, f"n{i}"), text, "1.00") for i, text in enumerate(dict.fromkeys(texts_of(80, seed=7)))]


def edited(rows: Rows) -> Rows:
    """Return a price and a text changed, two rows new, one gone, two in another order."""
    new = [(rows[0][0], rows[0][1], "9.99"), *rows[1:]]
    new[8] = (new[8][0], "a text that is not there yet", "1.00")
    new[5], new[6] = new[6], new[5]
    return [*new[:10], ("x1", "one more cat", "1.00"), *new[10:20], *new[21:], ("x2", "the man and dog", "1.00")]


def table(path: Path, rows: Rows) -> Source:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "text", "price"), *rows])
    return Source(str(path), "csv", id_column="id", name="t.csv")


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> MultiVectorEncoder:
    home = tmp_path_factory.mktemp("late")
    return MultiVectorEncoder(native(bert_folder(home / "bert"), home / "model"))


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    import minibert

    home = tmp_path_factory.mktemp("heads")
    sparse = minibert.SparseEncoder(model_folder(home / "sparse", "BertForMaskedLM"))
    reranker = minibert.CrossEncoder(model_folder(home / "rerank", "BertForSequenceClassification", num_labels=1))
    return {"sparse": sparse, "rerank": reranker}.__getitem__


@pytest.fixture
def update(tmp_path: Path, short_model: SentenceTransformer, late: MultiVectorEncoder, heads: Any) -> Any:
    """Return a function: the kind of output, rows, folder, options -> summary."""

    def update(kind: str, rows: Rows, folder: str = "own", **how: Any) -> Any:
        (tmp_path / folder).mkdir(exist_ok=True)
        sources = [table(tmp_path / "t.csv", rows)]
        how = {"shard_size": 12, "report": lambda problem: None, "truncation": "silent", **how}
        name, _, what = kind.partition(" ")
        output = f"{tmp_path}/{folder}/{name}"
        if what == "rerank":
            return rerank_corpus(heads(what), "a cat", sources, output, **how)
        if what == "sparse":
            return sparse_corpus(heads(what), sources, output, **how)
        model = how.pop("model", late if what == "late" else short_model)
        return embed_corpus(model, sources, output, dtype="float16" if what == "half" else "float32", **how)

    return update


KINDS = ["v.npy", "v.npy half", "v.jsonl", "v.jsonl half", "v.parquet", "v.parquet half", "v/", "v/ half"]
KINDS += ["v.npy late", "v.jsonl late", "v.parquet late", "v/ late", "v.jsonl sparse", "v.jsonl rerank"]


def computed() -> tuple[Any, list[int]]:
    """Return a patch that counts the texts that are computed, and the counts."""
    counts, run = list[int](), TextPlan.run

    def counting(self: Any, texts: Any, **how: Any) -> Any:
        if how.get("chunk_size") != 10_000:
            counts.append(len(texts))
        return run(self, texts, **how)

    return mock.patch.object(TextPlan, "run", counting), counts


@pytest.mark.parametrize(("kind", "empty"), sampled(product(KINDS, ("null", "keep")), 4, product(KINDS, ("null",))))
def test_the_files_are_those_of_a_run_from_nothing(update: Any, tmp_path: Path, kind: str, empty: str) -> None:
    new = edited(OLD)
    how = {"on_empty": empty, "update": True}
    first = update(kind, OLD, **how)
    n = first.n_texts - (first.n_empty if empty == "null" else 0)
    assert (first.n_kept, first.n_new, first.n_changed, first.n_removed) == (0, n, 0, 0)
    again = update(kind, OLD, **how)  # nothing has changed
    assert dataclasses.replace(again, seconds=first.seconds, n_kept=0, n_new=n) == first
    assert again.n_kept == n
    second = update(kind, new, **how)
    assert (second.n_kept, second.n_new, second.n_changed, second.n_removed) == (n - 2, 2, 1, 1)
    from_nothing = update(kind, new, "nothing", on_empty=empty)
    assert contents(tmp_path / "own") == contents(tmp_path / "nothing")
    assert (second.n_tokens, second.n_cut) == (from_nothing.n_tokens, from_nothing.n_cut)
    assert second.n_files == from_nothing.n_files


def test_only_new_texts_are_computed(update: Any, short_model: SentenceTransformer) -> None:
    update("v.npy", OLD)
    known = len(OLD)
    patch, counts = computed()
    with patch:
        prices = [(name, text, "7") for name, text, _ in reversed(OLD)]
        assert update("v.npy", prices, update=True).n_kept == known
        fixed = sum(counts)  # the probe, and the texts of the fingerprint
        counts.clear()
        summary = update("v.npy", edited(OLD), update=True)
    assert sum(counts) - fixed == summary.n_new + summary.n_changed == 3


def test_lines_with_numbers_as_ids(tmp_path: Path, short_model: SentenceTransformer) -> None:
    def at(lines: list[str]) -> tuple[int, int, int, int]:
        (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines))
        source = Source(str(tmp_path / "a.txt"), "text")
        found = embed_corpus(short_model, [source], tmp_path / "v.parquet", update=True, truncation="silent")
        assert found is not None
        return found.n_kept, found.n_new, found.n_changed, found.n_removed

    assert at(["a", "b", "c"]) == (0, 3, 0, 0)
    assert at(["first", "a", "b", "c"]) == (3, 1, 0, 0)
    assert at(["a", "x", "c"]) == (2, 0, 1, 1)
    assert at(["c", "c", "a", "c", "new"]) == (4, 1, 0, 0)
    assert at(["a"]) == (1, 0, 0, 4)


def test_an_output_of_another_model_or_option_is_refused(
    update: Any, short_model: SentenceTransformer, short_folder: Path, tmp_path: Path
) -> None:
    update("v.npy", OLD)
    before, new = contents(tmp_path / "own"), edited(OLD)
    other = shutil.copytree(short_folder, tmp_path / "other")
    lines = (other / "vocab.txt").read_text().split("\n")
    lines[-3:-1] = reversed(lines[-3:-1])
    (other / "vocab.txt").write_text("\n".join(lines))
    renamed = SentenceTransformer(shutil.copytree(short_folder, tmp_path / "renamed"))
    for how, message in (
        ({"model": SentenceTransformer(other)}, "tokenizer='"),
        ({"model": SentenceTransformer(short_folder, prompts={"query": "x "})}, "prompts="),
        ({"model": SentenceTransformer(short_folder, compute_type="int8")}, "compute_type='float32', .*'int8'"),
        ({"model": SentenceTransformer(short_folder, backend="numpy")}, "the default products"),
        ({"prompt": "the "}, "prompt=None, .*'the '"),
        ({"pooling": "cls"}, "pooling=None, .*'cls'"),
        ({"normalize_embeddings": True}, "normalize_embeddings=False"),
        ({"layers": 1}, r"layers=\[2\]"),
    ):
        with pytest.raises(ValueError, match=rf"v\.npy .*{message}.* recompute"):
            update("v.npy", new, update=True, **how)
        assert contents(tmp_path / "own") == before
        update("v.npy", new, "nothing", **how)
    with pytest.raises(ValueError, match=r"recompute=True .*update"):
        update("v.npy", new, recompute=True)
    with pytest.raises(ValueError, match="resume=True and update=True"):
        update("v.npy", new, resume=True, update=True)
    summary = update("v.npy", new, update=True, recompute=True, **how)  # of the last option
    assert (summary.n_kept, summary.n_changed + summary.n_new) == (0, len(new))
    assert contents(tmp_path / "own") == contents(tmp_path / "nothing")
    assert update("v.npy", OLD, update=True, recompute=True, model=renamed, **how).n_kept == len(OLD) - 2


def test_an_output_that_others_have_changed_is_refused(update: Any, tmp_path: Path) -> None:
    def normalized(path: Path) -> None:
        vectors = np.load(path)
        np.save(path, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    for damage, message in (
        (normalized, "v.npy that is not as its run"),
        (lambda path: (path.parent / "v.npy.rows").unlink(), "v.npy.rows"),
        (lambda path: (path.parent / "v.npy.manifest.json").unlink(), "v.npy has no v.npy.manifest.json"),
    ):
        update("v.npy", OLD)
        damage(tmp_path / "own/v.npy")
        with pytest.raises(ValueError, match=message):
            update("v.npy", edited(OLD), update=True)
        if "manifest" not in message:
            assert update("v.npy", edited(OLD), update=True, recompute=True).n_kept == 0
        shutil.rmtree(tmp_path / "own")
    update("v/", OLD)
    (tmp_path / "own/v/part-00001.parquet").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"part-00001"):
        update("v/", edited(OLD), update=True)


NAMED_LATER = {"v.npy": "v.ids.jsonl", "v.parquet": "v.parquet.rows", "v/": "v.rows"}


@pytest.mark.parametrize("kind", NAMED_LATER)
def test_outputs_that_do_not_have_all_their_names_are_not_searched(
    update: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    update(kind, OLD)
    replace = os.replace

    def stopping(old: Any, new: Any, **folders: Any) -> None:
        if str(new) == str(tmp_path / "own" / NAMED_LATER[kind]):
            raise OSError("the machine is off")
        replace(old, new, **folders)

    monkeypatch.setattr(os, "replace", stopping)
    with pytest.raises(OSError, match="is off"):
        update(kind, edited(OLD), update=True)
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(ValueError, match=r"cannot be read.* update=True"):
        VectorFile(f"{tmp_path}/own/{kind}")
    assert update(kind, edited(OLD), update=True).n_new == 0
    assert VectorFile(f"{tmp_path}/own/{kind}").manifest
    update(kind, edited(OLD), "nothing")
    assert contents(tmp_path / "own") == contents(tmp_path / "nothing")


def test_an_output_that_was_renamed(update: Any, tmp_path: Path) -> None:
    update("v.npy", OLD)
    update("v/", OLD)
    own = tmp_path / "own"
    (own / "v.npy").rename(own / "w.npy")
    with pytest.raises(ValueError, match=r"no w\.npy\.manifest\.json .* renamed"):
        update("w.npy", edited(OLD), update=True)
    (own / "v.npy.manifest.json").rename(own / "w.npy.manifest.json")
    (own / "v").rename(own / "w")
    (own / "v.manifest.json").rename(own / "w.manifest.json")
    for kind, names in (("w.npy", "v.npy, v.ids.jsonl, v.npy.rows, v.npy.manifest.json"), ("w/", "v, v.rows, ")):
        for read in (
            lambda kind=kind: update(kind, edited(OLD), update=True),
            lambda kind=kind: VectorFile(own / kind),
        ):
            with pytest.raises(ValueError, match=f"was {names.split(',')[0]} when its run wrote it.* again: {names}"):
                read()


def test_an_update_reads_the_standard_input_again(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed had perhaps other texts."""

    def update_from(texts: list[str]) -> Any:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
        how: dict[str, Any] = {"shard_size": 10, "truncation": "silent", "report": lambda problem: None}
        return embed_corpus(short_model, [Source("-", "text")], tmp_path / "v.npy", update=True, **how)

    texts, others = texts_of(40), texts_of(40, seed=1)
    with stopped_after(2):
        update_from(others)
    with pytest.raises(ValueError, match="unfinished run has checksum of -"):  # there is no output
        update_from(texts)
    update_from(others)
    with stopped_after(2):
        update_from(texts_of(40, seed=2))
    update_from(texts)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), short_model.encode(texts, truncation="silent"))


@pytest.mark.parametrize("kind", ["v.parquet late", "v/ late"])
def test_an_output_of_several_vectors_that_has_none(update: Any, tmp_path: Path, kind: str) -> None:
    empty: Rows = [(f"empty {i}", "", "1.00") for i in range(3)]
    how = {"on_empty": "null"}
    assert update(kind, empty, **how).n_empty == 3
    summary = update(kind, [*empty, *OLD[:20]], update=True, **how)
    assert summary.n_new == summary.n_texts - summary.n_empty > 0
    update(kind, [*empty, *OLD[:20]], "nothing", **how)
    assert contents(tmp_path / "own") == contents(tmp_path / "nothing")
    assert update(kind, empty, update=True, **how).n_removed == 20
    shutil.rmtree(tmp_path / "nothing")
    update(kind, empty, "nothing", **how)
    assert contents(tmp_path / "own") == contents(tmp_path / "nothing")


@pytest.mark.parametrize("kind", ["v.npy", "v/"])
def test_an_update_that_was_interrupted(update: Any, tmp_path: Path, kind: str) -> None:
    """The old output stays; the same texts continue, others begin again."""
    update(kind, OLD)
    before, new = contents(tmp_path / "own"), edited(OLD)
    with stopped_after(2):
        update(kind, new, update=True)
    assert {name: content for name, content in contents(tmp_path / "own").items() if ".parts/" not in name} == before
    assert update(kind, new, update=True).n_resumed == 24
    update(kind, new, "nothing")
    assert contents(tmp_path / "own") == contents(tmp_path / "nothing")
    update(kind, new[:24], update=True)  # the first shards stay, the others go
    shutil.rmtree(tmp_path / "nothing")
    update(kind, new[:24], "nothing")
    assert contents(tmp_path / "own") == contents(tmp_path / "nothing")
    with stopped_after(2):
        update(kind, OLD, update=True)
    third = edited(new)
    assert update(kind, third, update=True).n_resumed == 0
    shutil.rmtree(tmp_path / "nothing")
    update(kind, third, "nothing")
    assert contents(tmp_path / "own") == contents(tmp_path / "nothing")


def test_the_command_line(tmp_path: Path, short_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path / "t.csv", OLD)

    def cli(command: str) -> tuple[int, str, str]:
        return run(capsys, *shlex.split(command.replace("HOME", str(tmp_path)).replace("MODEL", str(short_folder))))

    embed = "embed -m MODEL -i HOME/t.csv --id-column id -o HOME/v.parquet --truncation silent"
    assert "0 removed" not in cli(embed)[1]
    table(tmp_path / "t.csv", edited(OLD))
    assert f"; {len(OLD) - 2:,} kept, 2 new, 1 changed, 1 removed, " in cli(f"{embed} --update")[1]
    found = cli("search 'one more cat' HOME/v.parquet -k 1")
    assert "x1  one more cat" in found[1], found
    code, _, err = cli(f"{embed} --update --pooling cls")
    assert (code, "--pooling" in err, "--recompute" in err) == (1, True, True), err
    assert "removed" in cli(f"{embed} --update --pooling cls --recompute")[1]
    assert f"{len(OLD) + 1:,} kept, 0 new" in cli(f"{embed} --update --pooling cls")[1]
    for wrong, word in (("--recompute", "--update"), ("--update --resume", "--resume")):
        code, _, err = cli(f"{embed} {wrong}")
        assert (code, word in err) == (1, True), err
    with pytest.raises(SystemExit):
        main(["extract", "--update"])
    assert manifest_of(tmp_path / "v.parquet")["finished"]["counts"]["n_texts"] == len(edited(OLD))
