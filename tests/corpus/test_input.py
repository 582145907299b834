"""Vectors of a corpus: reading and writing, bad lines, memory. Crashes are tested in test_resume.py."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.corpus.sources import InputLine, Source, input_format, read_input_lines
from tests.support.command_line import run, standard_input
from tests.support.corpus_runs import arguments_of, text_file, texts_of
from tests.support.outcomes import peak_of
from tests.support.report import REPORT

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")


Embed: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def embed(short_folder: Path, capsys: pytest.CaptureFixture[str]) -> Embed:
    """Return a function: arguments -> the exit code of `minibert embed`, its standard output and standard error."""
    return lambda *arguments: run(capsys, "embed", "-m", str(short_folder), *map(str, arguments))


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- encode_iter ------------------------------------------------------------------------------------------------------


def test_encode_iter_gives_the_vectors_of_encode(short_model: SentenceTransformer, tmp_path: Path) -> None:
    texts = texts_of(300)
    expected = short_model.encode(texts, truncation="silent")
    alone = np.stack([short_model.encode(text, truncation="silent") for text in texts])
    np.testing.assert_array_equal(expected, alone)  # although texts are shared and sorted
    for window in (1, 7, 300, 1000):
        found = list(short_model.encode_iter((text for text in texts), chunk_size=window, truncation="silent"))
        np.testing.assert_array_equal(np.stack(found), expected)
    out = np.memmap(tmp_path / "out", dtype=np.float32, mode="w+", shape=expected.shape)
    assert sum(1 for _ in short_model.encode_iter(iter(texts), out=out, chunk_size=64, truncation="silent")) == 300
    np.testing.assert_array_equal(out, expected)
    info = [one for part in short_model.encode_chunks(texts, chunk_size=50, return_info=True) for one in part.info]
    assert info == short_model.encode(texts, truncation="silent", return_info=True)[1]
    assert short_model.num_tokens(texts) == [one.n_tokens for one in info]
    assert list(short_model.encode_iter([])) == []
    rest = iter(texts)
    next(short_model.encode_iter(rest, chunk_size=10))
    assert len([*rest]) == 290  # no further than a chunk is read


def test_equal_texts_are_computed_once(short_model: SentenceTransformer) -> None:
    computed = []
    run = short_model.tokenizer.encodings

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def encodings(self, texts: list[str], **options: Any) -> Any:
            computed.extend(texts)
            return run(texts, **options)

    tokenizer = short_model.tokenizer
    short_model.tokenizer = Counting()  # type: ignore[assignment]
    try:
        short_model.encode(["b", "aaa", "b", "aaa", "cc", "b"])
    finally:
        short_model.tokenizer = tokenizer
    assert computed == ["aaa", "cc", "b"]


# --- reading and writing ----------------------------------------------------------------------------------------------


def test_every_format_is_read_alike(tmp_path: Path) -> None:
    texts = ["a cat", "", 'naïve, "quoted"', "tab\there", "北京"]
    ids = [f"id {i}" for i in range(len(texts))]
    quoted = ['"' + text.replace('"', '""') + '"' for text in texts]
    contents = {
        "a.txt": "\r\n".join(texts),
        "b.jsonl": "".join(json.dumps({"key": i, "body": t}) + "\n" for i, t in zip(ids, texts, strict=True)),
        "c.csv": "key,body\n" + "".join(f"{i},{t}\r\n" for i, t in zip(ids, quoted, strict=True)),
        "d.tsv": "\ufeffbody\tkey\n" + "".join(f"{t}\t{i}\n" for i, t in zip(ids, quoted, strict=True)),
    }
    for name, content in contents.items():
        for path in (tmp_path / name, tmp_path / f"{name}.gz"):
            data = content.encode()
            path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
            kind = input_format(str(path))
            source = Source(str(path), kind, "body", None if kind == "text" else "key", name)
            input_lines = list(read_input_lines(source))
            assert [input_line.text for input_line in input_lines] == texts, path
            assert [input_line.id for input_line in input_lines] == ([None] * 5 if kind == "text" else ids)
            first = 1 if kind in ("text", "jsonl") else 2
            assert [input_line.line for input_line in input_lines] == list(range(first, first + 5))
    (tmp_path / "two.csv").write_text('text\n"first\nsecond"\nthird\n')
    input_lines = list(read_input_lines(Source(str(tmp_path / "two.csv"), "csv", "text", None, "two.csv")))
    assert [(input_line.text, input_line.line) for input_line in input_lines] == [("first\nsecond", 2), ("third", 4)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_format_is_written(
    embed: Embed, short_folder: Path, short_model: SentenceTransformer, tmp_path: Path, dtype: str
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = texts_of(70)
    rows = [json.dumps({"text": text, "name": f"n{i}"}) for i, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    expected = short_model.encode(texts, truncation="silent").astype(dtype)
    for suffix in ("npy", "jsonl", "parquet"):
        options = ("--id-column", "name", "--dtype", dtype, "--shard-size", 16)
        assert embed("-i", tmp_path / "a.jsonl", "-o", tmp_path / f"out.{suffix}", *options)[0] == 0
    found = np.load(tmp_path / "out.npy")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)
    index = lines_of(tmp_path / "out.ids.jsonl")
    assert [(row["row"], row["id"], row["line"]) for row in index] == [(i, f"n{i}", i + 1) for i in range(70)]
    lines = lines_of(tmp_path / "out.jsonl")
    assert [line["id"] for line in lines] == [f"n{i}" for i in range(70)]
    np.testing.assert_array_equal(np.array([line["embedding"] for line in lines], dtype=dtype), expected)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == [f"n{i}" for i in range(70)]
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), dtype=dtype), expected)
    manifests = {f"out.{suffix}.manifest.json" for suffix in ("npy", "jsonl", "parquet")}
    names = {"a.jsonl", "out.npy", "out.ids.jsonl", "out.jsonl", "out.parquet", *manifests}
    assert {entry.name for entry in tmp_path.iterdir()} == names  # no other file is left
    manifest = json.loads((tmp_path / "out.npy.manifest.json").read_text(encoding="utf-8"))
    assert manifest["settings"]["model"] == str(short_folder)
    assert manifest["settings"]["dtype"] == dtype
    assert manifest["checksums"] == [hashlib.sha256((tmp_path / "a.jsonl").read_bytes()).hexdigest()]
    assert manifest["finished"]["counts"]["n_texts"] == 70


def test_several_files_and_the_standard_input(
    embed: Embed, short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_file(tmp_path / "a.txt", ["one", "two"])
    standard_input(monkeypatch, b"three\nfour\n")
    code, shown, _ = embed("-i", tmp_path / "a.txt", "-", "-o", tmp_path / "out.npy")
    assert code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(["one", "two", "three", "four"]))
    last = lines_of(tmp_path / "out.ids.jsonl")[-1]
    assert last == {"row": 3, "id": 3, "file": "standard input", "line": 2}
    assert "vectors (4, 24) float32; 4 texts, " in shown
    assert "0 texts cut" in shown
    names = {"a.txt", "out.npy", "out.ids.jsonl", "out.npy.manifest.json"}
    assert {entry.name for entry in tmp_path.iterdir()} == names


# --- bad lines --------------------------------------------------------------------------------------------------------

BAD_LINES = (
    b'{"text": "a cat"}\n{"text": nope}\n{"text": null}\n{"text": "\xff"}\n{"txt": "a"}\n{"text": "a dog"}\n[1]\n'
)
BAD = {
    2: "is not JSON",
    3: "holds null",
    4: "is not UTF-8: byte 0xff",
    5: "does not have 'text'; it has ['txt']",
    7: "list",
}


def test_bad_lines(embed: Embed, short_model: SentenceTransformer, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(BAD_LINES)
    expected = short_model.encode(["a cat", "a dog"])
    for on_error in ("stop", "skip", "null"):
        output = tmp_path / f"{on_error}.npy"
        code, _, err = embed("-i", bad, "-o", output, "--on-error", on_error, "--shard-size", 3)
        for line, problem in BAD.items():
            assert any(f"{bad}, line {line}: " in row and problem in row for row in err.splitlines()), (line, err)
        assert code == (on_error == "stop")
        assert output.exists() == (on_error != "stop")
    assert "nothing was computed" not in err
    np.testing.assert_array_equal(np.load(tmp_path / "skip.npy"), expected)
    assert [row["id"] for row in lines_of(tmp_path / "skip.ids.jsonl")] == [0, 5]
    null = np.load(tmp_path / "null.npy")
    np.testing.assert_array_equal(null[[0, 5]], expected)
    assert np.isnan(null[[1, 2, 3, 4, 6]]).all()
    assert embed("-i", bad, "-o", tmp_path / "null.jsonl", "--on-error", "null")[0] == 0
    nulls = [line["embedding"] is None for line in lines_of(tmp_path / "null.jsonl")]
    assert nulls == [False, True, True, True, True, False, True]
    assert not list(tmp_path.glob("*.parts"))


def test_too_long_texts_are_found_before_anything_is_computed(embed: Embed, tmp_path: Path) -> None:
    text_file(tmp_path / "a.txt", ["a cat", "cat " * 60, "a dog"])
    arguments = ("-i", tmp_path / "a.txt", "-o", tmp_path / "out.npy", "--truncation", "error")
    code, _, err = embed(*arguments)
    assert (code, "a.txt, line 2: has 62 tokens, the limit is 32" in err) == (1, True)
    assert embed(*arguments, "--on-error", "skip")[0] == 0
    assert np.load(tmp_path / "out.npy").shape == (2, 24)
    assert "3 texts, 40 tokens, 1 text cut" in embed(*arguments[:4], "--truncation", "silent")[1]


def test_files_that_cannot_be_read(embed: Embed, tmp_path: Path) -> None:
    cut = gzip.compress(b"a cat\n" * 999, mtime=0)[:-12]
    for name, content, message in (
        ("a.csv", b"id,body\n1,x\n", "has no column 'text', but 'id', 'body'"),
        ("b.csv", b'text\nfine\n"never closed\nmore\n', "line 3: unexpected end of data. The row has several lines"),
        ("a.txt.gz", b"no gzip", "cannot be read: Not a gzipped file"),
        ("b.txt.gz", cut, "cannot be read: "),
        ("a.txt", b"", "there is no text"),
        ("missing.txt", None, "missing.txt: No such file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        before = sorted(tmp_path.iterdir())
        for on_error in ("stop", "skip"):
            code, _, err = embed("-i", tmp_path / name, "-o", tmp_path / "out.npy", "--on-error", on_error)
            assert (code, message in err) == (1, True), err
        assert sorted(tmp_path.iterdir()) == before


def test_a_broken_quote_spoils_its_row_only(embed: Embed, short_model: SentenceTransformer, tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_bytes(b'id,text\n1,a cat\n2,"he said "no", twice"\n3,a dog\n4,"two\nlines"\n5,"open')
    code, _, err = embed("-i", table, "-o", tmp_path / "stop.npy")
    assert code == 1
    assert f"{table}, line 3: is not a row of a table: ',' expected after '\"'" in err
    assert f"{table}, line 7: is not a row of a table: unexpected end of data" in err
    assert "2 input lines cannot be used; nothing was computed" in err
    assert embed("-i", table, "-o", tmp_path / "skip.npy", "--on-error", "skip")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "skip.npy"), short_model.encode(["a cat", "a dog", "two\nlines"]))
    assert [row["line"] for row in lines_of(tmp_path / "skip.ids.jsonl")] == [2, 4, 5]
    assert embed("-i", table, "-o", tmp_path / "null.jsonl", "--on-error", "null")[0] == 0
    nulls = [line["embedding"] is None for line in lines_of(tmp_path / "null.jsonl")]
    assert nulls == [False, True, False, False, True]


def lines_read(folder: Path, name: str, content: bytes, id_column: str | None = None) -> list[InputLine]:
    (folder / name).write_bytes(content)
    return list(read_input_lines(Source(str(folder / name), input_format(name), "text", id_column, name)))


def test_csv_rows_that_cannot_be_used_keep_their_own_ids(tmp_path: Path) -> None:
    found = lines_read(tmp_path, "a.csv", b"id,text\n1,a\n2\n3,\xff\n4,d,e\n\xff,b\n5,f\n", "id")
    assert [one.text for one in found] == ["a", None, None, None, None, "f"]
    assert [one.id for one in found] == ["1", None, "3", None, None, "5"]
    problems = ["has 1 columns", "is not UTF-8: byte 0xff", "has 3 columns", "is not UTF-8: byte 0xff"]
    assert all(text in str(one.problem) for text, one in zip(problems, found[1:5], strict=True))
    assert [one.line for one in found] == [2, 3, 4, 5, 6, 7]
    assert not any(isinstance(one.id, int) for one in found)


IDS_OF_BAD_LINES = (
    '{"id": "a", "text": "a cat"}',
    '{"id": "b", "text": null}',
    '{"id": 1, "text": "a dog"}',
    r'{"id": "\ud800", "text": "a fish"}',
    '{"text": "no id"}',
    "",
    '{"id": 3, broken',
)


@pytest.mark.parametrize("suffix", ["jsonl", "npy", "parquet"])
def test_a_line_without_a_text_keeps_its_own_id(embed: Embed, tmp_path: Path, suffix: str) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(IDS_OF_BAD_LINES))
    output = tmp_path / f"out.{suffix}"
    arguments = ("-i", tmp_path / "a.jsonl", "-o", output, "--id-column", "id", "--on-error")
    code, _, err = embed(*arguments, "stop")
    assert code == 1
    assert "5 input lines cannot be used; nothing was computed" in err
    assert "a.jsonl, line 4: the id holds half a character" in err
    assert "a.jsonl, line 6: is empty; expected a JSON object" in err
    assert embed(*arguments, "null")[0] == 0
    ids: list[Any] = ["a", "b", 1, None, None, None, None]
    if suffix == "parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(output)
        assert table["id"].to_pylist() == ["a", "b", "1", None, None, None, None]
    else:
        rows = lines_of(output if suffix == "jsonl" else tmp_path / "out.ids.jsonl")
        assert [row["id"] for row in rows] == ids


def test_a_source_that_is_a_mistake(embed: Embed, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"format='xml'; expected one of 'text', 'jsonl', 'csv', 'tsv'"):
        Source("a.xml", "xml", "text", None, "a.xml")
    with pytest.raises(ValueError, match=r"id_column='id', but plain text does not have columns"):
        Source("a.txt", "text", "text", "id", "a.txt")
    text_file(tmp_path / "a.txt", ['{"id": 1, "body": "a cat"}'])
    for option in ("--id-column", "--text-column"):
        code, _, err = embed("-i", tmp_path / "a.txt", "-o", tmp_path / "out.npy", option, "body")
        assert (code, f"name columns; plain text, as {tmp_path / 'a.txt'}" in err) == (1, True)
    assert not (tmp_path / "out.npy").exists()


# --- tables -----------------------------------------------------------------------------------------------------------


def test_columns_of_parquet_are_read(embed: Embed, short_model: SentenceTransformer, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    texts, ids = texts_of(30), list(range(100, 130))
    table = pa.table({"body": texts, "other": ids, "key": ids})
    pa.parquet.write_table(table.rename_columns(["body", "other", "other"]), tmp_path / "twice.parquet")
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    for name, options in (("a", ("--id-column", "key")), ("twice", ())):
        options = ("--text-column", "body", *options)
        assert embed("-i", tmp_path / f"{name}.parquet", "-o", tmp_path / f"{name}.npy", *options)[0] == 0
        expected = short_model.encode(texts, truncation="silent")
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), expected)
    assert [row["id"] for row in lines_of(tmp_path / "a.ids.jsonl")] == ids
    manifest = json.loads((tmp_path / "a.npy.manifest.json").read_text())
    assert manifest["checksums"] == [hashlib.sha256((tmp_path / "a.parquet").read_bytes()).hexdigest()]


def parquet_with(path: Path, **columns: list[Any]) -> None:
    pa = pytest.importorskip("pyarrow")
    names = [name.rstrip("_") for name in columns]
    pa.parquet.write_table(pa.Table.from_arrays([*map(pa.array, columns.values())], names=names), path)


TABLES: dict[str, tuple[Any, str]] = {
    "twice.csv": (b"text,text\na,b\n", "has 2 columns 'text'"),
    "three.tsv": (b"text\tid\ttext\ttext\na\t1\tb\tc\n", "has 3 columns 'text'"),
    "bom.csv": (b"\xef\xbb\xbftext,text\na,b\n", "has 2 columns 'text'"),
    "keys.jsonl": (b'{"text": "a", "text": "b"}\n', "line 1: has 'text' twice"),
    "twice.parquet": ({"text": ["a"], "text_": ["b"]}, "has 2 columns 'text'"),
    "missing.parquet": ({"Text": ["a"]}, "has no column 'text', but 'Text'"),
    "numbers.parquet": ({"text": [1]}, "line 1: holds int as 'text'"),
    "broken.parquet": (b"PAR1 and no more", "broken.parquet cannot be read"),
    "case.csv": (b"Text, text,text \na,b,c\n", "has no column 'text', but 'Text', ' text', 'text '"),
    "semicolons.csv": (b"id;text\n1;a\n", "A column ends at a comma."),
    "commas.tab": (b"id,text\n1,a\n", "A column ends at a tab."),
    "headless.csv": (b"1,a cat\n2,a dog\n", "has no column 'text', but '1', 'a cat'"),
    "empty.csv": (b"", "has no column 'text', but none"),
    "utf16.csv": ("text\na\n".encode("utf-16"), "line 1: the header is broken: is not UTF-8: byte 0x"),
    "utf16.txt": ("a cat\n".encode("utf-16-le"), "line 1: holds a NUL byte"),
    "nul.csv": (b"text\na\0b\n", "line 2: holds a NUL byte"),
    "zeros.txt": (b"a cat\n\0\0\0\0", "line 2: holds a NUL byte"),
    "a.csv.bz2": (bz2.compress(b"text\na\n"), "a.csv.bz2 holds bzip2 data"),
    "a.jsonl.xz": (lzma.compress(b'{"text": "a"}\n'), "a.jsonl.xz holds xz data"),
    "a.txt.zst": (b"\x28\xb5\x2f\xfd\x04\0", "a.txt.zst holds Zstandard data"),
    "a.zip": (b"PK\3\4\x14\0", "a.zip holds zip data"),
    "mac.csv": (b"text\ra\rb\r", "lines that end in carriage returns"),
    "latin.parquet": ({"text": [b"caf\xe9"]}, "line 1: is not UTF-8"),
    "array.json": (b'[{"text": "a"}, {"text": "b"}]', "array.json is one JSON array"),
    "lines.jsonl": (b'\xef\xbb\xbf [\n{"text": "a"}\n]', "lines.jsonl is one JSON array"),
    "pretty.json": (b'{\n  "text": "a"\n}\n', "line 1: is not JSON"),
    "inner.json": (b'{"data": [{"text": "a"}]}', "does not have 'text'; it has ['data']"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_does_not_have_the_column_once_is_refused(embed: Embed, tmp_path: Path, name: str) -> None:
    content, message = TABLES[name]
    if isinstance(content, dict):
        parquet_with(tmp_path / name, **content)
    else:
        (tmp_path / name).write_bytes(content)
    code, out, err = embed("-i", tmp_path / name, "-o", tmp_path / "out.npy")
    assert (code, out, message in err) == (1, "", True), err
    assert "_column=" not in err
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("suffix", [".csv", ".tsv.gz", ".jsonl", ".parquet"])
def test_several_columns_are_joined_in_the_order_given(
    embed: Embed, short_model: SentenceTransformer, tmp_path: Path, suffix: str
) -> None:
    columns = {"title": ["a cat", "the man", "a dog"], "tags": ["sat", "", "ran"], "body": ["on the mat", "a", "no"]}
    path = tmp_path / f"table{suffix}"
    if suffix == ".parquet":
        parquet_with(path, **{**columns, "tags": [text.encode() for text in columns["tags"]]})  # UTF-8 as bytes
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        mark = "\t" if "tsv" in suffix else ","
        lines = [mark.join(columns), *(mark.join(row.values()) for row in rows)]
        text = "".join(f"{line}\n" for line in (map(json.dumps, rows) if suffix == ".jsonl" else lines)).encode()
        path.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    words = ["-i", path, "-o", tmp_path / "a.npy", "--text-column", "tags", "--text-column", "title"]
    assert embed(*words)[0] == 0
    expected = short_model.encode(["sat\na cat", "the man", "ran\na dog"])
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected)
    assert json.loads((tmp_path / "a.npy.manifest.json").read_text())["settings"]["text_separator"] == "\n"
    assert embed(*words, "--resume")[0] == 0
    for other in (["title", "tags"], ["tags"], ["tags", "title", "body"]):
        options = [word for name in other for word in ("--text-column", name)]
        code, _, err = embed(*words[:4], "--resume", *options)
        assert (code, "text_column" in err) == (1, True), err
    code, _, err = embed(*words, "--text-column", "tags")
    assert (code, "text_column" in err or "--text-column" in err) == (1, True), err


def test_columns_that_are_not_asked_for_may_be_there_twice(embed: Embed, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,text,x\n1,a cat,2\n")
    assert embed("-i", tmp_path / "a.csv", "-o", tmp_path / "out.npy")[0] == 0
    code, _, err = embed("-i", tmp_path / "a.csv", "-o", tmp_path / "b.npy", "--id-column", "x")
    assert (code, "has 2 columns 'x'" in err) == (1, True)


@pytest.mark.parametrize("name", ["lines.json", "table.tab"])
def test_names_of_other_programs_are_read(
    embed: Embed, short_model: SentenceTransformer, tmp_path: Path, name: str
) -> None:
    content = {"lines.json": '{"text": "a cat"}\n{"text": "a dog"}\n', "table.tab": "id\ttext\n1\ta cat\n2\ta dog\n"}
    (tmp_path / name).write_text(content[name])
    assert embed("-i", tmp_path / name, "-o", tmp_path / "out.npy", "--text-column", "text")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(["a cat", "a dog"]))


@pytest.mark.parametrize("name", ["a.txt", "a", "a.log", "a.jsonl"])
@pytest.mark.parametrize("option", ["--text-column", "--id-column"])
def test_plain_text_has_no_columns_not_even_the_default_one(
    embed: Embed, tmp_path: Path, name: str, option: str
) -> None:
    (tmp_path / name).write_text('{"text": "a cat"}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "a cat"}\n')
    kind = ("--input-format", "text") if name == "a.jsonl" else ()
    for files in ((tmp_path / name,), (tmp_path / "b.jsonl", tmp_path / name)):
        code, _, err = embed("-i", *files, "-o", tmp_path / "out.npy", option, "text", *kind)
        assert (code, "name columns; plain text, as" in err, "--input-format" in err) == (1, True, True)
    assert not (tmp_path / "out.npy").exists()


# --- texts that are empty, or cut -------------------------------------------------------------------------------------

EMPTY = ['{"id": "a", "text": "a cat"}', '{"id": "b", "text": ""}', '{"id": "c", "text": " \\t\\u200b\\u00a0"}']
EMPTY += ['{"id": "d", "text": null}', f'{{"id": "e", "text": "{"cat " * 60}"}}', '{"id": "f", "text": "."}']


@pytest.mark.parametrize("suffix", [".npy", ".jsonl", ".parquet", "/"])
@pytest.mark.parametrize("on_empty", ["null", "skip"])
def test_empty_texts(
    embed: Embed, short_model: SentenceTransformer, tmp_path: Path, suffix: str, on_empty: str
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.jsonl").write_text("\n".join(EMPTY))
    output = f"{tmp_path}/out{suffix}"
    arguments = ("-i", tmp_path / "a.jsonl", "-o", output, "--id-column", "id", "--shard-size", 2)
    code, out, err = embed(*arguments, "--on-empty", on_empty)
    assert (code, "a.jsonl" in err) == (0, False)  # they are counted, and not listed
    left_out = ", 3 input lines left out" if on_empty == "skip" else ""
    assert f"1 text cut, 3 empty{left_out}, " in out
    finished = json.loads((tmp_path / f"out{suffix.rstrip('/')}.manifest.json").read_text())["finished"]
    assert (finished["cut"], finished["empty"], finished["counts"]["n_empty"]) == (["e"], ["b", "c", "d"], 3)
    if suffix == ".npy":
        vectors: list[Any] = [None if np.isnan(row).all() else row for row in np.load(output)]
        ids = [row["id"] for row in lines_of(tmp_path / "out.ids.jsonl")]
    else:
        rows = lines_of(Path(output)) if suffix == ".jsonl" else pq.read_table(output.rstrip("/")).to_pylist()
        vectors, ids = [row["embedding"] for row in rows], [row["id"] for row in rows]
    assert ids == (["a", "b", "c", "d", "e", "f"] if on_empty == "null" else ["a", "e", "f"])
    assert [vector is None for vector in vectors] == [one in ("b", "c", "d") for one in ids]
    expected = short_model.encode(["a cat", "cat " * 60, "."], truncation="silent")
    np.testing.assert_allclose(np.array([one for one in vectors if one is not None]), expected, atol=1e-6)


def test_empty_texts_are_kept_or_stop_the_run(embed: Embed, short_model: SentenceTransformer, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(EMPTY))
    for on_error in ("stop", "skip", "null"):
        options = ("-o", tmp_path / "out.npy", "--on-empty", "error", "--on-error", on_error)
        code, _, err = embed("-i", tmp_path / "a.jsonl", *options)
        assert code == 1
        assert "3 input lines cannot be used; nothing was computed" in err
        assert f"{tmp_path / 'a.jsonl'}, line 3: is empty" in err
        assert "(--on-empty skip)" in err
    code, _, err = embed("-i", tmp_path / "a.jsonl", "-o", tmp_path / "out.npy")
    assert (code, "line 4: holds null" in err, "--on-empty null" in err) == (1, True, True)  # there is no text to keep
    (tmp_path / "b.txt").write_text("a cat\n\n \n")
    assert "0 texts cut, 2 empty, " in embed("-i", tmp_path / "b.txt", "-o", tmp_path / "b.npy")[1]
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), short_model.encode(["a cat", "", " "]))


def test_no_more_ids_than_the_memory_holds_are_named(
    embed: Embed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.corpus.runs._NAMED", 5)
    text_file(tmp_path / "a.txt", ["", "cat " * 60] * 10)
    embed("-i", tmp_path / "a.txt", "-o", tmp_path / "out.npy", "--shard-size", 7)
    finished = json.loads((tmp_path / "out.npy.manifest.json").read_text())["finished"]
    assert (finished["counts"]["n_cut"], finished["counts"]["n_empty"]) == (10, 10)
    assert finished["cut"][:5] == [1, 3, 5, 7, 9]
    assert finished["empty"][:5] == [0, 2, 4, 6, 8]
    assert max(len(finished["cut"]), len(finished["empty"])) < 10


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.parametrize(
    ("job", "counts"),
    [
        ("npy", (2000, 16_000)),
        *(pytest.param(job, (4000, 40_000), marks=pytest.mark.slow) for job in ("npy", "folder")),
    ],
)
def test_memory_does_not_grow_with_texts(short_folder: Path, tmp_path: Path, job: str, counts: tuple[int, int]) -> None:
    """benchmarks/corpus.py measures 100,000 texts. The folder has a file for each 1,000."""
    peaks = []
    for count in counts:
        text_file(tmp_path / "a.txt", [f"{i} cat" for i in range(count)])
        (tmp_path / str(count)).mkdir()
        arguments = arguments_of(job, short_folder, tmp_path / "a.txt", tmp_path / str(count), 1000)
        peaks.append(peak_of(f"from minibert.cli import main\nassert main({arguments!r}) == 0"))
    REPORT.append(
        f"minibert embed, {job}: peak {peaks[0]:.0f} MB with {counts[0]} texts, {peaks[1]:.0f} MB with {counts[1]}"
    )
    assert peaks[1] < peaks[0] + 5
