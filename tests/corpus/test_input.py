"""Files of texts in all formats: what is read, what is refused, and lines that cannot be used or are empty."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow.parquet
import pytest

from minibert import BertModel, CrossEncoder, SentenceTransformer, SparseEncoder
from minibert.corpus.embed import embed_corpus, rerank_corpus, sparse_corpus
from minibert.corpus.extract import extract_corpus
from minibert.corpus.input_lines import read_input_lines, usable_lines
from minibert.corpus.sources import Source, input_format
from tests.support.command_line import run, standard_input
from tests.support.corpus_runs import arguments_of, lines_of, manifest_of, rows_of, text_file, texts_of
from tests.support.outcomes import peak_of
from tests.support.report import REPORT

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")


Embed: TypeAlias = Callable[..., tuple[int, str, str]]
LONG = "cat " * 60


@pytest.fixture
def embed(short_folder: Path, capsys: pytest.CaptureFixture[str]) -> Embed:
    """Return a function: arguments -> the exit code of `minibert embed`, its standard output and standard error."""
    return lambda *arguments: run(capsys, "embed", "-m", str(short_folder), *map(str, arguments))


# --- encode_iter ------------------------------------------------------------------------------------------------------


def test_encode_iter_gives_the_vectors_of_encode(short_model: SentenceTransformer, tmp_path: Path) -> None:
    texts = texts_of(100)
    expected = short_model.encode(texts, truncation="silent")
    alone = np.stack([short_model.encode(text, truncation="silent") for text in texts])
    np.testing.assert_array_equal(expected, alone)  # although texts are shared and sorted
    for window in (1, 7, 100, 1000):
        found = list(short_model.encode_iter((text for text in texts), chunk_size=window, truncation="silent"))
        np.testing.assert_array_equal(np.stack(found), expected)
    out = np.memmap(tmp_path / "out", dtype=np.float32, mode="w+", shape=expected.shape)
    assert sum(1 for _ in short_model.encode_iter(iter(texts), out=out, chunk_size=64, truncation="silent")) == 100
    np.testing.assert_array_equal(out, expected)
    info = [one for part in short_model.encode_chunks(texts, chunk_size=50, return_info=True) for one in part.info]
    assert info == short_model.encode(texts, truncation="silent", return_info=True)[1]
    assert short_model.num_tokens(texts) == [one.n_tokens for one in info]
    assert list(short_model.encode_iter([])) == []
    rest = iter(texts)
    next(short_model.encode_iter(rest, chunk_size=10))
    assert len([*rest]) == 90  # no further than a chunk is read


def test_equal_texts_are_computed_once(short_model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    computed, kind = list[str](), type(short_model.tokenizer)
    encodings = kind.encodings

    def counting(self: Any, texts: list[str], **options: Any) -> Any:
        computed.extend(texts)
        return encodings(self, texts, **options)

    monkeypatch.setattr(kind, "encodings", counting)
    short_model.encode(["b", "aaa", "b", "aaa", "cc", "b"])
    assert computed == ["aaa", "cc", "b"]


# --- files that are read ----------------------------------------------------------------------------------------------

TEXTS = ["a cat", "", 'naïve, "quoted"', "tab\there", "北京"]
IDS = [f"id {i}" for i in range(5)]
QUOTED = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
FORMATS = {
    "a.txt": "\r\n".join(TEXTS),
    "b.jsonl": "".join(json.dumps({"key": i, "body": t}) + "\n" for i, t in zip(IDS, TEXTS, strict=True)),
    "c.csv": "key,body\n" + "".join(f"{i},{t}\r\n" for i, t in zip(IDS, QUOTED, strict=True)),
    "d.tsv": "\ufeffbody\tkey\n" + "".join(f"{t}\t{i}\n" for i, t in zip(IDS, QUOTED, strict=True)),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_every_format_is_read_alike(tmp_path: Path, name: str, suffix: str) -> None:
    path, data, kind = tmp_path / f"{name}{suffix}", FORMATS[name].encode(), input_format(f"{name}{suffix}")
    path.write_bytes(gzip.compress(data) if suffix else data)
    found = [*read_input_lines(Source(str(path), kind, "body", None if kind == "text" else "key", name))]
    assert [line.text for line in found] == TEXTS
    assert [line.id for line in found] == ([None] * 5 if kind == "text" else IDS)
    first = 1 if kind in ("text", "jsonl") else 2
    assert [line.line for line in found] == list(range(first, first + 5))


def made(path: Path, content: bytes | dict[str, list[Any]]) -> Path:
    """Write a file, of columns as Parquet; an underscore at the end of a name is left out."""
    if isinstance(content, bytes):
        path.write_bytes(content)
        return path
    names = [name.rstrip("_") for name in content]
    table = pyarrow.Table.from_arrays([*map(pyarrow.array, content.values())], names=names)
    pyarrow.parquet.write_table(table, path, row_group_size=7)
    return path


# A file -> the line, id, text and problem of each of its input lines.
LINES: dict[str, tuple[Any, list[tuple[int, Any, str | None, str]]]] = {
    "two.csv": (b'id,text\n1,"first\nsecond"\n\n2,third\n', [(2, "1", "first\nsecond", ""), (5, "2", "third", "")]),
    "unasked.csv": (b"x,text,x,id\n1,a cat,2,3\n", [(2, "3", "a cat", "")]),
    "lines.json": (
        b'{"id": 7, "text": "a cat"}\n{"id": "b", "text": "a dog"}',
        [(1, 7, "a cat", ""), (2, "b", "a dog", "")],
    ),
    "table.tab": (b"id\ttext\n1\ta cat\n", [(2, "1", "a cat", "")]),
    "quotes.csv": (
        b'id,text\n1,a cat\n2,"he said "no", twice"\n3,a dog\n4,"two\nlines"\n5,"open',
        [
            (2, "1", "a cat", ""),
            (3, None, None, "is not a row of a table: ',' expected after '\"'"),
            (4, "3", "a dog", ""),
            (5, "4", "two\nlines", ""),
            (7, None, None, "unexpected end of data"),
        ],
    ),
    "rows.csv": (
        b"id,text\n1,a\n2\n3,\xff\n4,d,e\n\xff,b\n5,f\n",
        [
            (2, "1", "a", ""),
            (3, None, None, "1 columns"),
            (4, "3", None, "UTF-8: byte 0xff"),
            (5, None, None, "3 columns"),
            (6, None, None, "UTF-8: byte 0xff"),
            (7, "5", "f", ""),
        ],
    ),
    "bad.jsonl": (
        b'{"id": "a", "text": "a cat"}\n{"text": nope}\n{"id": "b", "text": null}\n{"id": 3, "text": "\xff"}\n'
        b'{"id": 4, "txt": "a"}\n{"text": "no id"}\n\n[1]\n{"id": 1, "text": "\\ud800"}\n'
        b'{"id": "\\ud800", "text": "a"}\n{"id": 2, "text": "a dog"}\n',
        [
            (1, "a", "a cat", ""),
            (2, None, None, "not JSON"),
            (3, "b", None, "null"),
            (4, None, None, "UTF-8: byte 0xff"),
            (5, 4, None, "'text'; it has ['id', 'txt']"),
            (6, None, None, "'id'"),
            (7, None, None, "empty"),
            (8, None, None, "list"),
            (9, 1, None, "the text holds half a character"),
            (10, None, None, "the id holds half a character"),
            (11, 2, "a dog", ""),
        ],
    ),
    "keys.jsonl": (b'{"id": 1, "text": "a", "text": "b"}\n', [(1, None, None, "'text' twice")]),
    "numbers.parquet": ({"id": [1], "text": [1]}, [(1, 1, None, "int as 'text'")]),
    "latin.parquet": ({"id": [1], "text": [b"caf\xe9"]}, [(1, 1, None, "UTF-8")]),
    "utf16.txt": ("a cat".encode("utf-16-le"), [(1, None, None, "NUL")]),
    "zeros.txt": (b"a cat\n\0\0\0\0", [(1, None, "a cat", ""), (2, None, None, "NUL")]),
    "nul.csv": (b"id,text\n1,a\0b\n", [(2, "1", None, "NUL")]),
    "pretty.json": (b'{\n  "text": "a"\n}\n', [(line, None, None, "not JSON") for line in (1, 2, 3)]),
    "bytes.parquet": ({"id": [b"a"], "text": [b"caf\xc3\xa9"]}, [(1, "a", "café", "")]),
    "inner.json": (b'{"id": 1, "data": [{"text": "a"}]}', [(1, 1, None, "'text'; it has ['id', 'data']")]),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_and_their_problems(tmp_path: Path, name: str) -> None:
    content, expected = LINES[name]
    path, kind = made(tmp_path / name, content), input_format(name)
    found = [*read_input_lines(Source(str(path), kind, "text", None if kind == "text" else "id"))]
    assert [(line.line, line.id, line.text) for line in found] == [row[:3] for row in expected]
    for line, (*_, problem) in zip(found, expected, strict=True):
        assert bool(line.problem) == bool(problem)
        assert problem in (line.problem or "")


def test_several_files_and_the_standard_input(
    embed: Embed, short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_file(tmp_path / "a.txt", ["one", "two"])
    standard_input(monkeypatch, b"three\nfour\n")
    code, shown, _ = embed("-i", tmp_path / "a.txt", "-", "-o", tmp_path / "out.npy")
    assert code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(["one", "two", "three", "four"]))
    assert lines_of(tmp_path / "out.ids.jsonl")[-1] == {"row": 3, "id": 3, "file": "standard input", "line": 2}
    assert "vectors (4, 24) float32; 4 texts, " in shown
    assert {entry.name for entry in tmp_path.iterdir()} == {
        "a.txt",
        "out.npy",
        "out.ids.jsonl",
        "out.npy.manifest.json",
        "out.npy.rows",
    }


@pytest.mark.parametrize(("names", "said"), [("a.txt a.txt b.txt", True), ("a.txt c.txt", False)])
def test_files_that_are_given_twice_are_said(embed: Embed, tmp_path: Path, names: str, said: bool) -> None:
    for name, texts in {"a.txt": ["one"], "b.txt": ["one"], "c.txt": ["two"]}.items():
        text_file(tmp_path / name, texts)
    code, _, err = embed("-i", *(tmp_path / name for name in names.split()), "-o", tmp_path / "out.npy")
    assert code == 0
    assert ("2 files with the content of a later file" in err) == said, err
    assert len(np.load(tmp_path / "out.npy")) == len(names.split())


def test_columns_of_parquet_are_read(embed: Embed, short_model: SentenceTransformer, tmp_path: Path) -> None:
    texts, ids = texts_of(30), list(range(100, 130))
    made(tmp_path / "a.parquet", {"body": texts, "other": ids, "other_": ids, "key": ids})
    words = ("--text-column", "body", "--id-column", "key")
    assert embed("-i", tmp_path / "a.parquet", "-o", tmp_path / "a.npy", *words)[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), short_model.encode(texts, truncation="silent"))
    assert [row["id"] for row in lines_of(tmp_path / "a.ids.jsonl")] == ids
    checksum = hashlib.sha256((tmp_path / "a.parquet").read_bytes()).hexdigest()
    assert manifest_of(tmp_path / "a.npy")["checksums"] == [checksum]


@pytest.mark.parametrize("suffix", [".csv", ".tsv.gz", ".jsonl", ".parquet"])
def test_several_columns_are_joined_in_the_order_given(
    embed: Embed, short_model: SentenceTransformer, tmp_path: Path, suffix: str
) -> None:
    columns = {"title": ["a cat", "the man", "a dog"], "tags": ["sat", "", "ran"], "body": ["on the mat", "a", "no"]}
    path = tmp_path / f"table{suffix}"
    if suffix == ".parquet":
        made(path, {**columns, "tags": [text.encode() for text in columns["tags"]]})  # UTF-8 as bytes
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        mark = "\t" if "tsv" in suffix else ","
        lines = [mark.join(columns), *(mark.join(row.values()) for row in rows)]
        text = "".join(f"{line}\n" for line in (map(json.dumps, rows) if suffix == ".jsonl" else lines)).encode()
        path.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)

    def of(*names: str, separator: tuple[str, ...] = ()) -> tuple[int, str, str]:
        options = [*separator, *(word for name in names for word in ("--text-column", name))]
        return embed("-i", path, "-o", tmp_path / "a.npy", "--resume", *options)

    assert of("tags", "title")[0] == 0
    expected = short_model.encode(["sat\na cat", "the man", "ran\na dog"])
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected)
    (source,) = manifest_of(tmp_path / "a.npy")["inputs"]
    assert (source["text_column"], source["text_separator"]) == (["tags", "title"], "\n")
    assert of("tags", "title", separator=("--text-separator", r"\n"))[0] == 0
    for names, word in ((("tags", "title"), "inputs"), (("tags",), "--text-separator is for several")):
        code, _, err = of(*names, separator=("--text-separator", ": "))
        assert (code, word in err) == (1, True), err
    for other in (["title", "tags"], ["tags"], ["tags", "title", "body"], ["tags", "tags"]):
        code, _, err = of(*other)
        assert (code, "text_column" in err or "--text-column" in err) == (1, True), err


HTML = {
    "<p>A <b>new</b>\n shoe&nbsp;&amp; <i>sock</i>s</p><ul><li>red<li>blue</ul>": "A new shoe & socks\nred\nblue",
    "one<br>two<br/>three": "one\ntwo\nthree",
    "a<script>var x = '<b>';</script><STYLE>p { color: red }</STYLE><!-- no -->b": "a\nb",
    "no tags: 1 < 2 &lt; 3 & AT&T, caf&eacute; &#8364;5": "no tags: 1 < 2 < 3 & AT&T, café €5",
    "<p> </p><br>": "",
    "<![if !IE]>a<![endif]><![foo[ x> b <c <![": "a b <c",
    "x <a <b": "x <a <b",
}


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.jsonl", "a.txt"])
def test_the_text_of_html(embed: Embed, tmp_path: Path, name: str) -> None:
    path, kind = tmp_path / name, input_format(name)
    cells = [cell.replace("\n", " ") if kind == "text" else cell for cell in HTML]
    if kind == "parquet":
        made(path, {"text": cells})
    else:
        lines = {"text": cells, "jsonl": [json.dumps({"text": cell}) for cell in cells]}
        lines["csv"] = ["text", *('"' + cell.replace('"', '""') + '"' for cell in cells)]
        path.write_text("\n".join(lines[kind]))
    found = [line.text for line in read_input_lines(Source(str(path), kind, html=True))]
    assert found == [*HTML.values()]
    note, out = "have HTML tags, which are computed too; --html takes their text", tmp_path / "o.npy"
    assert f"4 of 7 texts {note}" in embed("-i", path, "-o", out)[2]
    assert note not in embed("-i", path, "-o", tmp_path / "p.npy", "--html")[2]
    assert embed("-i", path, "-o", out, "--html", "--resume")[0] == 1
    out.unlink()
    assert embed("a cat", "--html")[0] == 1


@pytest.mark.parametrize(("name", "noted"), [("a.md", True), ("a.v2", True), ("a.v2.txt.gz", False), ("a", False)])
def test_what_is_read_as_plain_text_is_said(embed: Embed, tmp_path: Path, name: str, noted: bool) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"a cat") if name.endswith("gz") else b"a cat")
    assert ("is read as plain text" in embed("-i", tmp_path / name, "-o", tmp_path / "o.npy")[2]) == noted
    explicit = embed("-i", tmp_path / name, "-o", tmp_path / "p.npy", "--input-format", "text")
    assert (explicit[0], "plain text" in explicit[2]) == (0, False)


def test_rows_of_conllu_that_are_read_as_plain_text_are_said(embed: Embed, tmp_path: Path) -> None:
    cells = ["_"] * 7
    rows = ["# text = a cat", *("\t".join([str(i), word, word, *cells]) for i, word in ((1, "a"), (2, "cat"))), ""]
    for name, lines, noted in (("a.txt", rows, True), ("a.conllu", rows, False), ("b.txt", ["a\tcat", "a cat"], False)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        code, _, err = embed("-i", tmp_path / name, "-o", tmp_path / "o.npy")
        assert (code, "rows of CoNLL-U" in err, "--input-format conllu" in err) == (0, noted, noted)
        with pytest.warns(match="CoNLL-U") if noted else contextlib.nullcontext():
            usable_lines(Source(str(tmp_path / name), input_format(name)))


# --- files that are refused -------------------------------------------------------------------------------------------

# A file, None if it does not exist -> a part of the message.
REFUSED: dict[str, tuple[Any, str]] = {
    "twice.csv": (b"text,text\na,b\n", "has 2 columns 'text'"),
    "three.tsv": (b"text\tid\ttext\ttext\na\t1\tb\tc\n", "has 3 columns 'text'"),
    "bom.csv": (b"\xef\xbb\xbftext,text\na,b\n", "has 2 columns 'text'"),
    "twice.parquet": ({"text": ["a"], "text_": ["b"]}, "has 2 columns 'text'"),
    "missing.parquet": ({"Text": ["a"]}, "has no column 'text', but 'Text'"),
    "broken.parquet": (b"PAR1 and no more", "broken.parquet cannot be read"),
    "case.csv": (b"Text, text,text \na,b,c\n", "has no column 'text', but 'Text', ' text', 'text '"),
    "semicolons.csv": (b"id;text\n1;a\n", "A column ends at a comma."),
    "commas.tab": (b"id,text\n1,a\n", "A column ends at a tab."),
    "headless.csv": (b"1,a cat\n2,a dog\n", "has no column 'text', but '1', 'a cat'"),
    "empty.csv": (b"", "there is no text"),
    "empty.txt": (b"", "there is no text"),
    "utf16.csv": ("text\na\n".encode("utf-16"), "line 1: the header is broken: is not UTF-8: byte 0x"),
    "open.csv": (b'text\nfine\n"never closed\nmore\n', "line 3: unexpected end of data. The row has several lines"),
    "a.csv.bz2": (bz2.compress(b"text\na\n"), "a.csv.bz2 holds bzip2 data"),
    "a.jsonl.xz": (lzma.compress(b'{"text": "a"}\n'), "a.jsonl.xz holds xz data"),
    "a.txt.zst": (b"\x28\xb5\x2f\xfd\x04\0", "a.txt.zst holds Zstandard data"),
    "a.zip": (b"PK\3\4\x14\0", "a.zip holds zip data"),
    "page.HTML": (b"<p>a</p>", "page.HTML: .html is not read; write its texts as lines"),
    "a.xml.gz": (b"<p>a</p>", "a.xml.gz: .xml is not read"),
    "a.xlsx": (
        b"PK\3\4",
        "a.xlsx: .xlsx is not read; save the sheet as .csv. If it is another format: --input-format.",
    ),
    "a.pdf": (b"%PDF-1.7", "with pdftotext"),
    "a.txt": (b"%PDF-1.7", "a.txt holds PDF data"),
    "a.tar.gz": (b"", "unpack"),
    "a.npy": (b"", ".npy is not read"),
    "a.txt.gz": (b"no gzip", "cannot be read: Not a gzipped file"),
    "cut.txt.gz": (gzip.compress(b"a cat\n" * 999, mtime=0)[:-12], "cannot be read: "),
    "mac.csv": (b"text\ra\rb\r", "lines that end in carriage returns"),
    "array.json": (b'[{"text": "a"}, {"text": "b"}]', "array.json is one JSON array"),
    "lines.jsonl": (b'\xef\xbb\xbf [\n{"text": "a"}\n]', "lines.jsonl is one JSON array"),
    "missing.txt": (None, "missing.txt: No such file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_refused(embed: Embed, tmp_path: Path, name: str) -> None:
    """--on-error is for single lines."""
    content, message = REFUSED[name]
    if content is not None:
        made(tmp_path / name, content)
    before = sorted(tmp_path.iterdir())
    code, out, err = embed("-i", tmp_path / name, "-o", tmp_path / "out.npy", "--on-error", "skip")
    assert (code, out, message in err, "_column=" in err) == (1, "", True, False), err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        (("a.xml", "xml"), "format='xml'"),
        (("a.txt", "text", "text", "id"), "id_column='id'"),
        (("a.csv", "csv", ("a", "a")), "text_column="),
        (("a.csv", "csv", ()), "text_column="),
    ],
)
def test_a_source_that_is_a_mistake(arguments: Any, argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        Source(*arguments)


def test_a_source_with_a_wrong_keyword() -> None:
    with pytest.raises(TypeError, match=r"idcolumn=.* id_column="):
        Source("a.csv", "csv", idcolumn="id")


A_SOURCE = Source("a.txt", "text")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"model": "all-MiniLM-L6-v2"}, ("model is a str",)),
        ({"sources": "a.txt"}, ("sources='a.txt'", "Source('")),
        ({"sources": Path("a.txt")}, ("sources=", "Source('")),
        ({"sources": ["a.txt"]}, ("sources=['a.txt']", "Source('")),
        ({"sources": A_SOURCE}, ("sources=Source", "a list")),
        ({"sources": []}, ("sources=[]", "Source('")),
        ({"resum": True}, ("resum=", "resume=?")),
        ({"outptu": "b.npy"}, ("outptu=", "output=?")),
    ],
)
@pytest.mark.parametrize("function", [embed_corpus, sparse_corpus, rerank_corpus, extract_corpus])
def test_arguments_of_the_functions_that_are_mistakes(
    short_model: SentenceTransformer, tmp_path: Path, function: Any, wrong: dict[str, Any], told: tuple[str, ...]
) -> None:
    classes = {embed_corpus: SentenceTransformer, sparse_corpus: SparseEncoder, rerank_corpus: CrossEncoder}
    right = {"model": object.__new__(classes.get(function, BertModel)), "output": tmp_path / "a.npy"}
    right |= {"query": "a"} if function is rerank_corpus else {}
    right |= {"tokenizer": short_model.tokenizer} if function is extract_corpus else {}
    with pytest.raises(TypeError) as caught:
        function(**{**right, "sources": [A_SOURCE], **wrong})
    assert all(part in str(caught.value) for part in told), caught.value


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
        assert (code, f"plain text, as {tmp_path}" in err, "--input-format" in err) == (1, True, True), err
    assert not (tmp_path / "out.npy").exists()


# --- lines without a vector -------------------------------------------------------------------------------------------

# Those with the ids b to d are empty, e is cut, and the last three cannot be used; of the last two the id is unknown.
ROWS = ['{"id": "a", "text": "a cat"}', '{"id": "b", "text": ""}', '{"id": "c", "text": " \\t\\u200b\\u00a0"}']
ROWS += ['{"id": "d", "text": null}', f'{{"id": "e", "text": "{LONG}"}}', '{"id": "f", "text": "."}']
ROWS += ['{"id": 7, "text": 3}', '{"text": "no id"}', "{nothing"]


@pytest.mark.parametrize("suffix", [".npy", ".jsonl", ".parquet", "/"])
@pytest.mark.parametrize("how", ["null", "skip"])
def test_rows_without_a_vector(
    embed: Embed, short_model: SentenceTransformer, tmp_path: Path, suffix: str, how: str
) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(ROWS))
    output = f"{tmp_path}/out{suffix}"
    arguments = ("-i", tmp_path / "a.jsonl", "-o", output, "--id-column", "id", "--shard-size", 2)
    code, out, err = embed(*arguments, "--on-empty", how, "--on-error", how)
    assert code == 0
    assert [f"line {number}: " in err for number in range(1, 10)] == [False] * 6 + [True] * 3  # empty ones are counted
    left_out = ", 6 input lines left out" if how == "skip" else ""
    assert f"1 text cut, 3 empty{left_out}, " in out
    finished = manifest_of(output.rstrip("/"))["finished"]
    assert (finished["cut"], finished["empty"], finished["counts"]["n_empty"]) == (["e"], ["b", "c", "d"], 3)
    ids, vectors = rows_of(output)
    seven = "7" if suffix in (".parquet", "/") else 7  # where all ids are strings
    assert ids == (["a", "b", "c", "d", "e", "f", seven, None, None] if how == "null" else ["a", "e", "f"])
    assert [vector is None for vector in vectors] == [one not in ("a", "e", "f") for one in ids]
    expected = short_model.encode(["a cat", LONG, "."], truncation="silent")
    np.testing.assert_array_equal(np.array([one for one in vectors if one is not None], np.float32), expected)
    assert not [*tmp_path.glob("*.parts")]


@pytest.mark.parametrize(
    ("options", "lines", "advice"),
    [
        ((), {4: "null", 7: "int", 8: "id", 9: "JSON"}, ["--on-error skip", "--on-empty null"]),
        (("--on-empty", "null"), {7: "int", 8: "id", 9: "JSON"}, ["(--on-error skip)"]),
        (("--on-empty", "error", "--on-error", "skip"), dict.fromkeys((2, 3, 4), ""), ["(--on-empty skip)"]),
        (("--on-empty", "error", "--on-error", "null"), dict.fromkeys((2, 3, 4), ""), ["(--on-empty skip)"]),
        (("--on-empty", "skip", "--truncation", "error"), {5: "62 tokens, the limit is 32", 7: "", 8: "", 9: ""}, []),
    ],
)
def test_lines_that_stop_a_run_before_anything_is_computed(
    embed: Embed, tmp_path: Path, options: tuple[str, ...], lines: dict[int, str], advice: list[str]
) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(ROWS))
    code, _, err = embed("-i", tmp_path / "a.jsonl", "-o", tmp_path / "out.npy", "--id-column", "id", *options)
    assert (code, f"{len(lines)} input lines cannot be used; nothing was computed" in err) == (1, True), err
    told = [line for line in err.splitlines() if line.startswith(f"{tmp_path / 'a.jsonl'}, line ")]
    for line, (number, problem) in zip(told, lines.items(), strict=True):
        assert f"line {number}: " in line
        assert problem in line
    assert all(one in err for one in advice)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.jsonl"]


def test_empty_and_long_texts_are_computed_as_they_are(
    embed: Embed, short_model: SentenceTransformer, tmp_path: Path
) -> None:
    text_file(tmp_path / "b.txt", texts := ["a cat", "", " ", LONG])
    assert "1 text cut, 2 empty, " in embed("-i", tmp_path / "b.txt", "-o", tmp_path / "b.npy")[1]
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), short_model.encode(texts, truncation="silent"))
    how = ("--truncation", "error", "--on-error", "skip")
    assert embed("-i", tmp_path / "b.txt", "-o", tmp_path / "c.npy", *how)[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), short_model.encode(texts[:3]))


def test_no_more_ids_than_the_memory_holds_are_named(
    embed: Embed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.corpus.runs._NAMED", 5)
    text_file(tmp_path / "a.txt", ["", LONG] * 10)
    embed("-i", tmp_path / "a.txt", "-o", tmp_path / "out.npy", "--shard-size", 7)
    finished = manifest_of(tmp_path / "out.npy")["finished"]
    assert (finished["counts"]["n_cut"], finished["counts"]["n_empty"]) == (10, 10)
    assert (finished["cut"][:5], finished["empty"][:5]) == ([1, 3, 5, 7, 9], [0, 2, 4, 6, 8])
    assert max(len(finished["cut"]), len(finished["empty"])) < 10


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.parametrize(
    ("job", "counts"),
    [
        ("npy", (1000, 9000)),
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
