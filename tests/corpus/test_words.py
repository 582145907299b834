"""minibert extract --format words: CoNLL and lists of words -> tables of words, checked with `embed_tokens`."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow.parquet
import pytest

from minibert import BertModel, BertTokenizer, SentenceTransformer, embed_tokens
from minibert.cli import main
from minibert.corpus.conll import CONLLU as CONLLU_COLUMNS
from minibert.corpus.extract import extract_corpus
from minibert.corpus.input_lines import read_input_lines
from minibert.corpus.sources import Source, input_format
from minibert.corpus.survey import checksum, numbered_lines
from tests.support.checkpoints import random_checkpoint
from tests.support.command_line import run
from tests.support.corpus_runs import manifest_of
from tests.support.outcomes import peak_of

OURS = ["file", "sentence", "word_number", "word", "pieces"]

CONLLU = """\
# newdoc
# sent_id = s-1
# text = The cat sat on it.
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\tA=b
2-3\tcats\t_\t_\t_\t_\t_\t_\t_\t_
2\tcat\tcat\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsat\tsit\tVERB\t_\t_\t0\troot\t_\t_
3.1\tdog\t_\t_\t_\t_\t_\t_\t_\t_

# a comment alone

#sent_id=s 2
1\tNew York\tnew york\tPROPN\t_\t_\t0\troot\t_\t_
2\t\u200b\tx\tX\t_\t_\t1\tdep\t_\t_
3\t#\t#\tSYM\t_\t_\t1\tdep\t_\t_
"""
CATS = [None, "cats", "cats"]
PLUS = "# global.columns = ID FORM UPOS\n1\tthe\tDET\n2\tcat\tNOUN\n\n1\tman\tNOUN\n"
CONLL2003 = "-DOCSTART- -X- O O\n\nThe DT B-NP O\n# # B-NP O\n\n#begin document (x);\n#end=1 NN B-NP O\n"
TABS = "# a comment without a tab\n#cat\tO\n\n# id = 7\nman\tB-PER\ndog\tO"
LISTS = [
    {"id": "a", "text": ["The", "cat"], "tags": [3, None], "genre": "news", "spans": [[0, 1]], "meta": {"x": 1}},
    {"id": "b", "text": ["the man", "dog", "sat"], "tags": [1, 2, 3.5]},
]

# A file -> its options, and the id, text, words and columns of each sentence.
FILES: dict[str, tuple[str, dict[str, Any], list[tuple[Any, str, list[str], dict[str, list[str | None]]]]]] = {
    "a.conllu": (
        CONLLU,
        {},
        [
            ("s-1", "The cat sat on it.", ["The", "cat", "sat"], {"head": ["2", "3", "0"], "multiword": CATS}),
            ("s 2", "New York \u200b #", ["New York", "\u200b", "#"], {"upos": ["PROPN", "X", "SYM"]}),
        ],
    ),
    "lemmas.conllu": (CONLLU.replace("\n", "\r\n"), {"text_column": "lemma"}, [
        ("s-1", "The cat sat on it.", ["the", "cat", "sit"], {"form": ["The", "cat", "sat"]}),
        ("s 2", "new york x #", ["new york", "x", "#"], {}),
    ]),
    "plus.conllup": ("\ufeff" + PLUS, {}, [
        (None, "the cat", ["the", "cat"], {"upos": ["DET", "NOUN"]}), (None, "man", ["man"], {"upos": ["NOUN"]}),
    ]),
    "b.conll": (CONLL2003, {}, [
        (None, "The #", ["The", "#"], {"column_4": ["O", "O"]}), (None, "#end=1", ["#end=1"], {"column_2": ["NN"]}),
    ]),
    "c.conll.gz": (TABS, {"id_column": None}, [
        (None, "#cat", ["#cat"], {"column_2": ["O"]}), (None, "man dog", ["man", "dog"], {"column_2": ["B-PER", "O"]}),
    ]),
    "second.conll": ("# id = 7\n1\tcat\tN\n2\tdog\tN\n", {"text_column": "column_2", "id_column": "id"}, [
        ("7", "cat dog", ["cat", "dog"], {"column_1": ["1", "2"], "column_3": ["N", "N"]}),
    ]),
    "d.jsonl": ("\n".join(map(json.dumps, LISTS)), {"words": True, "id_column": "id"}, [
        ("a", "The cat", ["The", "cat"], {"tags": ["3", None], "genre": ["news", "news"]}),
        ("b", "the man dog sat", ["the man", "dog", "sat"], {"tags": ["1", "2", "3.5"]}),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_words_are_read(tmp_path: Path, name: str) -> None:
    content, options, expected = FILES[name]
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = [*read_input_lines(Source(str(tmp_path / name), input_format(name), **options))]
    assert [(line.id, line.text, line.words, line.problem) for line in found] == [(*row[:3], None) for row in expected]
    for line, (*_, columns) in zip(found, expected, strict=True):
        assert line.columns | columns == line.columns
        assert all(len(cells) == len(line.words or ()) for cells in line.columns.values())
    if name == "a.conllu":
        assert list(found[0].columns) == [*CONLLU_COLUMNS[2:], "multiword"]
        assert [line.line for line in found] == [1, 12]


# A file -> its options, the number of its line that cannot be used, and a part of the problem.
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "spaces.conllu": (CONLLU.replace("\t", "  "), {}, "expected 10 columns with tabs"),
    "order.conllu": (CONLLU.replace("3\tsat", "4\tsat"), {}, "expected word 3"),
    "range.conllu": (CONLLU.replace("2-3\tcats", "2-99999999\tcats"), {}, "2-99999999 'cats', but 3 words"),
    "back.conllu": (CONLLU.replace("2-3\tcats", "3-2\tcats"), {}, "3-2"),
    "empty.conllu": (CONLLU.replace("\tcat\t", "\t\t", 1), {}, "a word in the column 'form'"),
    "column.conllu": (CONLLU, {"text_column": "FORM"}, "'FORM', but id, form"),
    "key.conllu": (CONLLU, {"id_column": "newpar id"}, "# newpar id"),
    "nul.conllu": (CONLLU.replace("cat", "c\0t"), {}, "NUL"),
    "ragged.conll": ("a DT\nb\n", {}, "expected 2 columns with spaces"),
    "column.conll": ("a\tDT\n", {"text_column": "2"}, "'2', but column_1, column_2"),
    "lists.jsonl": ('{"text": ["a", "b"], "tags": [1]}', {"words": True}, "2 words, and 1 of 'tags'"),
    "number.jsonl": ('{"text": ["a", 2]}', {"words": True}, "holds 2 in 'text'"),
    "half.jsonl": ('{"text": ["a", "\\ud800"]}', {"words": True}, "half a character"),
    "unasked.jsonl": ('{"text": ["a", "b"]}', {}, "list as 'text'"),
}
# Of a row; else it is the first line of the sentence.
OWN_LINES = {"spaces.conllu": 4, "order.conllu": 7, "empty.conllu": 6, "ragged.conll": 2}


@pytest.mark.parametrize("name", BAD)
def test_sentences_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    content, options, problem = BAD[name]
    (tmp_path / name).write_text(content)
    first = next(read_input_lines(Source(str(tmp_path / name), input_format(name), **options)))
    assert (first.line, first.text) == (OWN_LINES.get(name, 1), None)
    assert problem in (first.problem or "")


def test_sentences_that_are_too_long_and_columns_that_are_no_words(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("minibert.corpus.raw_lines.LIMIT", 100)
    (tmp_path / "a.conllu").write_text("1\ta\n" * 50 + "1" * 300 + "\n\n" + PLUS)
    found = [*read_input_lines(Source(tmp_path / "a.conllu", "conllu"))]
    assert [(line.line, line.text) for line in found] == [(1, None), (53, "the cat"), (57, "man")]
    assert "more than 100 bytes" in (found[0].problem or "")
    (tmp_path / "a.conll").write_text("1 cat\n2 dog\n")
    with pytest.raises(ValueError, match=r"line 1: column_1 holds 1, 2 .*text_column='column_2'"):
        [*read_input_lines(Source(tmp_path / "a.conll", "conll"))]
    assert next(read_input_lines(Source(tmp_path / "a.conll", "conll", "column_1"))).words == ["1", "2"]
    for options in ({"html": True}, {"text_column": ("a", "b")}):
        with pytest.raises(ValueError, match="text_column=, and not html=True"):
            Source("a.conllu", "conllu", **options)


# --- the tables -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=4, max_position_embeddings=32)


def table(path: Path, dtype: str = "float32") -> pandas.DataFrame:
    """Read a table of either format; the vectors are arrays, or None."""
    if path.suffix == ".csv":
        frame = pandas.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
        features = frame[[f"v{i + 1}" for i in range(24)]]
        assert list(features) == list(frame)[-24:]
        vectors = [None if "" in row else np.array(row, dtype) for row in features.fillna("").to_numpy().tolist()]
        frame = frame.drop(columns=list(features)).assign(vector=vectors)
    else:
        frame = pandas.read_parquet(path)
    frame = frame.astype({"word_number": "Int64", "layer": "Int64"})  # one without a word has none of them
    return frame.astype(object).where(frame.notna(), None)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize(("subwords", "dtype"), [("mean", "float32"), ("first", "float16")])
def test_a_row_for_each_word_and_layer(
    folder: Path, tmp_path: Path, capsys: Any, suffix: str, subwords: str, dtype: str
) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU)
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, LISTS)))
    (tmp_path / "e.txt").write_text("the long river, a fish\n\n" + "dog " * 40)
    files, out = [str(tmp_path / name) for name in ("a.conllu", "d.jsonl", "e.txt")], tmp_path / f"o.{suffix}"
    options = ["--layers", "1-3,0", "--subwords", subwords, "--dtype", dtype, "--shard-size", "2"]
    assert main(["extract", "-m", str(folder), "-i", *files, "-o", str(out), *options]) == 0
    shown, said = capsys.readouterr()
    assert f"o.{suffix}: words, each with 4 vectors (24) {dtype}; 7 texts" in shown
    assert f"{files[0]}, line 12: no vectors for words without tokens, ['\\u200b']" in said
    assert f"{files[2]}, line 3: no vectors for 10 words beyond the limit" in said
    frame = table(out, dtype)
    others = [*CONLLU_COLUMNS[2:], "multiword", "id", "tags", "genre"]
    assert list(frame.columns) == [*OURS, *others, "layer", "vector"]
    assert frame["layer"].dropna().tolist() == [1, 2, 3, 0] * (len(frame) // 4)

    model, tokenizer = BertModel.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    how: dict[str, Any] = {"layers": [1, 2, 3, 0], "layer_pooling": "tokens_first", "truncation": "silent"}
    given = [["The", "cat", "sat"], ["New York", "\u200b", "#"], *(line["text"] for line in LISTS)]
    texts = [*embed_tokens(model, tokenizer, given, is_split_into_words=True, **how)]
    texts += embed_tokens(model, tokenizer, (tmp_path / "e.txt").read_text().splitlines(), **how)
    ids = ["s-1", "s 2", *("2", "3"), *("4", "5", "6")]
    rows = iter(frame.to_dict("records"))
    for id, file, text in zip(ids, [files[0]] * 2 + [files[1]] * 2 + [files[2]] * 3, texts, strict=True):
        words = text.words(subwords)
        for i, word in enumerate(words.words):
            for layer in range(4):
                row, vector = next(rows), words.vectors[i, layer].astype(dtype)
                assert [str(row[name]) for name in OURS[:4]] == [file, id, str(i + 1), word]
                assert (row["pieces"] or "").split() == [*text.tokens[words.tokens[i]]]
                if np.isnan(vector).any():
                    assert row["vector"] is None
                else:
                    np.testing.assert_array_equal(row["vector"], vector)
        if not words.words:  # the empty line
            row = next(rows)
            assert [str(row["sentence"]), row["word"], row["layer"], row["vector"]] == [id, None, None, None]
    assert next(rows, None) is None
    assert frame[frame["word"] == "cat"]["lemma"].tolist() == ["cat"] * 4 + [None] * 4
    assert frame[frame["word"] == "cat"]["tags"].isna().all()


def test_bad_sentences_have_one_row_or_none(folder: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU.replace("3\tsat", "4\tsat"))
    for on_error, count in (("stop", None), ("skip", 3), ("null", 4)):
        out = tmp_path / f"{on_error}.parquet"
        arguments = ["extract", "-m", str(folder), "-i", str(tmp_path / "a.conllu"), "-o", str(out), "--layers=-1"]
        assert main([*arguments, "--on-error", on_error]) == (count is None)
        assert "a.conllu, line 7: has the row '4\\tsat" in capsys.readouterr().err
        assert out.exists() == (count is not None)
        if count:
            frame = pandas.read_parquet(out)
            assert len(frame) == count
    assert frame.iloc[0][["word", "word_number", "vector"]].isna().all()


def test_a_sentence_without_words_and_a_doubled_id_are_told(folder: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.conllu").write_text("# sent_id = x\n# text = gone\n\n" + CONLLU + "\n" + CONLLU)
    out = tmp_path / "o.parquet"
    assert main(["extract", "-m", str(folder), "-i", str(tmp_path / "a.conllu"), "-o", str(out), "--layers=-1"]) == 0
    said = "".join(capsys.readouterr())
    assert "a.conllu, line 20: the id 's-1'" in said
    assert "5 texts, 12 words" in said
    assert "1 empty" in said
    assert (
        pandas.read_parquet(out)["sentence"].tolist() == ["x", *["s-1"] * 3, *["s 2"] * 3] + ["s-1"] * 3 + ["s 2"] * 3
    )


def test_ids_are_numbers_where_no_file_has_others(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = BertModel.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    pyarrow.parquet.write_table(pyarrow.table({"tokens": [["a", "cat"], ["dog"]], "n": [1, 2]}), tmp_path / "a.parquet")
    source = Source(str(tmp_path / "a.parquet"), "parquet", "tokens")
    extract_corpus(model, tokenizer, [source], tmp_path / "o.parquet", layers=[-1, 0])
    frame = pandas.read_parquet(tmp_path / "o.parquet")
    assert frame["sentence"].tolist() == [0, 0, 0, 0, 1, 1]
    metadata = json.loads(pyarrow.parquet.read_schema(tmp_path / "o.parquet").metadata[b"minibert"])
    assert metadata == {"fingerprint": manifest_of(tmp_path / "o.parquet")["fingerprint"]}
    assert frame["n"].tolist() == ["1", "1", "1", "1", "2", "2"]


def test_words_that_are_a_mistake(folder: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"text": ["a"], "layer": 1}')
    Path("many.jsonl").write_text(json.dumps({"text": ["a"], **{f"c{i}": 1 for i in range(101)}}))
    Path("a.conllu").write_text(CONLLU)
    Path("numbers.conll").write_text("1 cat\n2 dog\n")
    for options, code, message in (
        ("-i a.jsonl -o o.csv", 1, "none of file, sentence"),
        ("-i many.jsonl -o o.csv", 1, "at most 100"),
        ("-i a.conllu -o o.csv --layers 9", 1, "--layers 9"),
        ("-i a.conllu -o o.csv --layers 3-1", 2, "'3-1' is not a list"),
        ("-i a.conllu -o o.csv --layers=-1-1", 2, "'-1-1' is not a list"),
        ("-i a.conllu -o o.npy --subwords first", 1, "--subwords is not for --format binary"),
        ("-i a.conllu -o o.txt --format words", 1, "o.txt must end in .parquet or .csv"),
        ("-i a.conllu -o o.parquet --format binary", 1, ".npy"),
        ("-i a.conllu -o o.tsv", 1, "o.tsv must end in .npy, .parquet or .csv"),
        ("-i numbers.conll -o o.csv", 1, "--text-column column_2; or the file is --input-format conllu"),
    ):
        found, _, said = run(capsys, "extract", "-m", str(folder), *options.split())
        assert (found, message in said) == (code, True), said
    assert not [*tmp_path.glob("o.*")]
    assert main(["extract", "-m", str(folder), "-i", "a.conllu", "-o", "o.npy", "--layers=-4--3"]) == 0
    assert np.load("o.npy").shape[1:] == (2, 24)


def test_sentences_are_texts_of_the_other_verbs(
    short_model: SentenceTransformer, short_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU)
    (tmp_path / "plus.conllup").write_text(PLUS)
    for suffix in ("npy", "parquet"):
        files = [str(tmp_path / name) for name in ("a.conllu", "plus.conllup")]
        assert main(["embed", "-m", str(short_folder), "-i", *files, "-o", str(tmp_path / f"o.{suffix}")]) == 0
    expected = short_model.encode(["The cat sat on it.", "New York \u200b #", "the cat", "man"])
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), expected)
    assert pandas.read_parquet(tmp_path / "o.parquet")["id"].tolist() == ["s-1", "s 2", "2", "3"]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
def test_memory_does_not_grow_with_sentences(folder: Path, tmp_path: Path) -> None:
    peaks = []
    for count in (2000, 20_000):
        (tmp_path / "a.conllu").write_text(f"{CONLLU}\n" * count)
        arguments = [
            "extract",
            "-m",
            str(folder),
            "-i",
            str(tmp_path / "a.conllu"),
            "-o",
            str(tmp_path / f"{count}.parquet"),
        ]
        peaks.append(peak_of(f"from minibert.cli import main\nassert main({arguments!r}) == 0"))
    assert peaks[1] < peaks[0] + 10


def test_sentences_with_and_without_a_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("# sent_id = 1\na\tx\n\nb\ty\n\n")
    source = Source(str(tmp_path / "a.conll"), input_format("a.conll"))
    with pytest.raises(ValueError, match=r"line 4.*no sent_id"):
        list(numbered_lines([source], [checksum(source)]))
