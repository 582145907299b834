"""Long texts and long lines: their tokens are those of the whole text, and their memory is bounded."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertTokenizer, SentenceTransformer, embed_tokens
from minibert.cli import main
from minibert.corpus import readers, runs
from minibert.corpus.google_features import google_lines
from minibert.corpus.readers import Source, read_input_lines
from minibert.models.bert_model import BertModel
from minibert.sentence.batching import in_chunks
from minibert.tokenizer import long_texts, raw_encodings
from minibert.tokenizer import windows as windows_module
from minibert.tokenizer.encodings import Encoding, JoinedEncoding
from tests.support.checkpoints import SPECIAL_TOKENS, VOCABULARY
from tests.support.crash_program import texts_of
from tests.support.report import REPORT
from tests.support.text_data import data_path, naughty_lines, needs_data, udhr_lines

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")

WHOLE = 10**9  # characters: no text is cut

# Characters that Python, Rust, BERT or Unicode treats as a space, or removes.
SPACES = (
    *(" ", "\n", "\r\n", "\r", "\t", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u2000", "\u200a"),
    *("\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "\u200d", "\ufeff", "\x00", "\u2060"),
)
BETWEEN = (*SPACES, "", "\u0301", " \u0301", "!\u0338", "[MASK]", " [SEP] ", "_", "!", "\u3002", "\u5317", "foo", "<X>")


@pytest.fixture
def pieces_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the number of characters from which a text is cut into pieces."""

    def set_length(characters: int) -> None:
        for module in (long_texts, raw_encodings, windows_module):
            monkeypatch.setattr(module, "LONG_TEXT", characters)

    return set_length


def tokenizer_of(
    folder: Path, vocabulary: Sequence[str] = VOCABULARY, added: Sequence[dict[str, Any]] = (), **settings: Any
) -> BertTokenizer:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary), encoding="utf-8")
    tokens = {str(len(vocabulary) + i): token for i, token in enumerate(added)}
    tokens |= {str(i): {"content": token, "special": True} for i, token in enumerate(SPECIAL_TOKENS)} if added else {}
    settings |= {"added_tokens_decoder": tokens} if added else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return BertTokenizer.from_pretrained(folder)


def made_texts(samples: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """Make texts of some thousand characters from parts of the samples, with other characters between and in them."""
    rng = random.Random(seed)
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(5, 60)):
            sample = rng.choice(samples)
            first = rng.randrange(len(sample) + 1)
            parts += [sample[first : first + rng.randrange(120)], rng.choice(BETWEEN) * rng.choice([1, 1, 2, 50])]
            if rng.random() < 0.1:
                ranges = [(1, 0x250), (0x250, 0x3100), (0x3100, 0xD800), (0xE000, 0x30000)]
                parts += [chr(rng.randrange(*rng.choice(ranges))) for _ in range(20)]
        yield "".join(parts)


def assert_same(found: Encoding, expected: Encoding) -> None:
    for name in ("ids", "token_types", "special_tokens_mask", "offsets"):
        array = getattr(found, name)
        assert array.dtype == np.int64
        np.testing.assert_array_equal(array, getattr(expected, name), err_msg=name)
    for name in ("tokens", "word_ids", "sequence_ids", "n_truncated"):
        assert getattr(found, name) == getattr(expected, name), name


def calls_of(tokenizer: BertTokenizer, text: str) -> Iterator[list[Encoding]]:
    """Tokenize a text in every possible way."""
    yield tokenizer.encodings([text], truncation=False)
    yield tokenizer.encodings(["a cat", text, "a dog"], truncation=False, add_special_tokens=False)
    for length in (2, 3, 20, 150):
        for side in ("right", "left"):
            yield tokenizer.encodings([text, "a"], max_length=length, truncation_side=side)
            yield tokenizer.encodings([text], max_length=length, truncation_side=side, add_special_tokens=False)
    yield list(tokenizer(text, max_length=30, truncation=True, stride=7, return_overflowing_tokens=True, padding=True))
    for stride in (0, 5):
        prompt = "a cat: "
        yield [one for row in tokenizer.windows([text], max_length=40, stride=stride, prompt=prompt) for one in row]


TOKENIZERS: dict[str, dict[str, Any]] = {
    "lower": {},
    "cased": {"do_lower_case": False},
    "accents": {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False},
    "added": {
        "added": [
            {"content": "<X>"},
            {"content": "foo", "normalized": True},
            {"content": "Caf\u00e9", "normalized": True},
            {"content": "bar", "single_word": True},
            {"content": "!?", "normalized": False},
            {"content": "\u5317", "normalized": False},
        ]
    },
    "stripped": {"added": [{"content": "<X>", "lstrip": True}, {"content": "foo", "lstrip": True, "special": True}]},
}


def compare(tokenizer: BertTokenizer, texts: Iterator[str], pieces_of: Callable[[int], None]) -> int:
    n_cut = 0
    for number, text in enumerate(texts):
        pieces_of(WHOLE)
        expected = [one for call in calls_of(tokenizer, text) for one in call if isinstance(one, Encoding)]
        pieces_of((20, 64, 300)[number % 3])
        found = [one for call in calls_of(tokenizer, text) for one in call if isinstance(one, Encoding)]
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        n_cut += isinstance(found[0]._raw, JoinedEncoding)
    return n_cut


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_have_the_tokens_of_the_whole_text(
    tmp_path: Path, pieces_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(long_texts, "_LONG_WORD", 400)
    monkeypatch.setattr(long_texts, "_WORD_END", 120)
    tokenizer = tokenizer_of(tmp_path / name, **TOKENIZERS[name])
    samples = [
        "the cat sat on the mat, first! " * 3,
        "x" * 900,
        "foobar bar, Caf\u00e9 CAFE !? \u5317\u4eac<X>",
        *texts_of(40),
    ]
    assert compare(tokenizer, made_texts(samples, 25, 1), pieces_of) > 15


# A letter, punctuation, spaces, removed characters, characters that become or get spaces, added tokens.
ATOMS = (*"a!  \n", "\x00", "\u200b", "\u0301", "\u00e9", "\u5317", "\u3002", "<X>", "foo", "bar", "_", "\u3000")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_cut_beside_anything(tmp_path: Path, pieces_of: Callable[[int], None], name: str) -> None:
    tokenizer, rng = tokenizer_of(tmp_path / name, **TOKENIZERS[name]), random.Random(3)
    texts = ["".join(rng.choices(ATOMS, k=rng.randrange(6, 20))) for _ in range(1500)]
    pieces_of(WHOLE)
    expected = tokenizer.encodings(texts, truncation=False)
    for length in (1, 4):
        pieces_of(length)
        for found, other in zip(tokenizer.encodings(texts, truncation=False), expected, strict=True):
            assert isinstance(found._raw, JoinedEncoding)
            assert_same(found, other)


@needs_data
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_have_the_tokens_of_whole_real_texts(
    tmp_path: Path, pieces_of: Callable[[int], None], name: str, every: int
) -> None:
    """The default run has a twelfth of the texts, from all 45 languages, and fewer texts made of their parts."""
    vocabulary = data_path("vocab/bert-base-multilingual-cased.txt").read_text(encoding="utf-8").split("\n")[:-1]
    options = {**TOKENIZERS[name]}
    if options.pop("added", None):
        options["do_lower_case"] = False
    tokenizer = tokenizer_of(tmp_path / name, vocabulary, **options)
    samples = [*udhr_lines(), *naughty_lines()][::every]
    made = 30 if every == 1 else 12
    assert compare(tokenizer, made_texts(samples, made, 2), pieces_of) > 2 * made // 3
    pieces_of(WHOLE)
    joined = [separator.join(samples) for separator in (" ", "\n", "\u3000", "")]
    for length in (None, 200):
        pieces_of(WHOLE)
        expected = tokenizer.encodings(joined, max_length=length)
        pieces_of(2**14)
        for one, other in zip(tokenizer.encodings(joined, max_length=length), expected, strict=True):
            assert isinstance(one._raw, JoinedEncoding)
            assert_same(one, other)


@pytest.mark.parametrize(
    ("added", "file"),
    [
        ([{"content": "a b", "special": False}], None),
        ([{"content": "X", "rstrip": True}], None),
        ([{"content": "\u5317", "normalized": True}], None),  # the normalizer puts spaces around it
        ([], {"pre_tokenizer": {"type": "Whitespace"}}),
        ([], {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}}),
        ([], {"normalizer": None}),
        ([], {"post_processor": {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2],
                                 "trim_offsets": True, "add_prefix_space": False}}),
    ],
)  # fmt: skip
def test_where_pieces_might_differ_nothing_is_cut(
    tmp_path: Path, pieces_of: Callable[[int], None], added: list[dict[str, Any]], file: dict[str, Any] | None
) -> None:
    tokenizer = tokenizer_of(tmp_path / "model", added=added)
    if file is not None:
        changed = json.loads(tokenizer._tokenizer.to_str()) | file
        (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(changed))
        (tmp_path / "model" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        tokenizer = BertTokenizer.from_pretrained(tmp_path / "model")
    assert not tokenizer._raw.long_texts.possible
    assert tokenizer.last_cut("a cat " * 9) is None
    pieces_of(20)
    encoding = tokenizer.encodings(["a b X " * 50], truncation=False)[0]
    assert not isinstance(encoding._raw, JoinedEncoding)


def test_a_text_that_is_cut_is_read_no_further_than_needed(
    tmp_path: Path, pieces_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizer_of(tmp_path / "model")
    pieces_of(100)
    read: list[int] = []
    pieces = long_texts._cut

    def counted(*arguments: Any) -> Iterator[tuple[int, str]]:
        for first, piece in pieces(*arguments):
            read.append(first + len(piece))
            yield first, piece

    monkeypatch.setattr(long_texts, "_cut", counted)
    text = "a cat " * 1000
    exact = tokenizer.encodings([text], max_length=60)[0]
    assert (read[-1], exact.n_truncated) == (6000, 1942)
    read.clear()
    quick = tokenizer.encodings([text], max_length=60, exact=False)[0]
    assert read[-1] < 300
    assert quick.n_truncated >= 1
    np.testing.assert_array_equal(quick.ids, exact.ids)
    read.clear()
    short = tokenizer.encodings(["a cat " * 20], max_length=60, exact=False)[0]
    assert (len(short), short.n_truncated) == (42, 0)
    with pytest.raises(ValueError, match="text 1 holds half a character"):
        tokenizer.encodings(["a", text + "\ud800"], max_length=60, exact=False)


@pytest.mark.parametrize(
    ("character", "shortened"),
    [
        ("a", True),
        ("7", True),
        ("\u304b", True),
        ("\u0e01\u0e34", True),
        ("\u00c9", True),
        ("\x00", False),  # the normalizer removes it
        ("\x00\u0301", False),
        ("\x00" * 9999 + "a", False),  # the result would depend on which ends of such a word are kept
        ("\U000111c9", False),  # the library takes it for punctuation, newer versions of Unicode for an accent
        ("\U0001f600", True),
    ],
)
def test_a_very_long_word_is_shortened_if_that_changes_nothing(
    tmp_path: Path, pieces_of: Callable[[int], None], character: str, shortened: bool
) -> None:
    added = [{"content": "[abc]", "normalized": True}, {"content": "<x>", "lstrip": True}]
    tokenizer = tokenizer_of(tmp_path / "model", added=added)
    word = character * (70_000 // len(character))
    around = [("", ""), ("a cat ", " <x>"), ("[MASK]!", "[SEP]. a"), ("a [ab", "c]")]
    texts = [before + word + after for before, after in around]
    pieces_of(WHOLE)
    expected = tokenizer.encodings(texts, truncation=False)
    pieces_of(2**14)
    seen = long_texts._shorten_word(tokenizer._tokenizer, tokenizer._raw.long_texts._rule, texts[0])[0]  # type: ignore[arg-type]
    assert (len(seen) < 20_000) == shortened
    for found, other in zip(tokenizer.encodings(texts, truncation=False), expected, strict=True):
        assert_same(found, other)


@pytest.mark.parametrize("token", ["foo", "a" * 900 + "]"])
def test_a_long_word_that_may_hold_an_added_token_stays(
    tmp_path: Path, pieces_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr(long_texts, "_WORD_END", 500)
    tokenizer = tokenizer_of(tmp_path / "model", added=[{"content": token}])
    text = "x" * 50_000 + token + "x" * 50_000
    pieces_of(WHOLE)
    expected = tokenizer.encodings([text], truncation=False)[0]
    assert expected.tokens.count(token) == 1
    pieces_of(2**14)
    rule = tokenizer._raw.long_texts._rule
    assert rule is not None
    assert len(long_texts._shorten_word(tokenizer._tokenizer, rule, text)[0]) == len(text)
    assert_same(tokenizer.encodings([text], truncation=False)[0], expected)


# --- the models -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truncation", ["warn", "silent", "split"])
@pytest.mark.parametrize("prompt", ["", "a cat: ", "cat dog, " * 80, "cat dog, " * 80 + "x" * 150])
@pytest.mark.filterwarnings("ignore:.* texts have more than 32 tokens")
def test_vectors_and_counts_are_those_of_the_whole_text(
    short_model: SentenceTransformer, pieces_of: Callable[[int], None], truncation: str, prompt: str
) -> None:
    texts = [*made_texts(texts_of(40), 6, 3), "a cat", ""]

    def compute() -> tuple[Any, ...]:
        vectors, info = short_model.encode(texts, prompt=prompt, truncation=truncation, return_info=True)
        plain = short_model.encode(texts, prompt=prompt, truncation=truncation)
        np.testing.assert_array_equal(plain, vectors)
        return vectors, info, short_model.num_tokens(texts, prompt=prompt)

    if len(prompt) > 100 and truncation == "split":
        for length in (WHOLE, 60):
            pieces_of(length)
            with pytest.raises(ValueError, match=r"its prompt take \d+ tokens, so none is left"):
                compute()
        return
    pieces_of(WHOLE)
    expected = compute()
    pieces_of(60)
    found = compute()
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1:] == expected[1:]


def test_a_long_prompt_is_tokenized_once(
    short_model: SentenceTransformer, pieces_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces_of(100)
    prompt, seen = "a cat, " * 2000, []
    pieces = long_texts._cut

    def counted(*arguments: Any) -> Iterator[tuple[int, str]]:
        for first, piece in pieces(*arguments):
            seen.append(len(piece))
            yield first, piece

    monkeypatch.setattr(long_texts, "_cut", counted)
    texts = [f"a dog {i}" for i in range(100)]
    short_model.encode(texts, prompt=prompt, truncation="silent")
    assert sum(seen) < 1000
    seen.clear()
    counts = short_model.num_tokens(texts, prompt=prompt)
    assert sum(seen) < 2 * len(prompt)
    pieces_of(WHOLE)
    assert counts == short_model.num_tokens(texts, prompt=prompt)
    with pytest.raises(ValueError, match=r"inputs\[0\] has 6005 tokens, the limit is 32"):
        short_model.encode(texts[:1], prompt=prompt, truncation="error")
    pieces_of(100)
    with pytest.raises(ValueError, match=r"inputs\[0\] has 6005 tokens, the limit is 32"):
        short_model.encode(texts[:1], prompt=prompt, truncation="error")


def test_tokens_and_googles_lines_are_those_of_the_whole_text(
    short_folder: Path, pieces_of: Callable[[int], None]
) -> None:
    model, tokenizer = BertModel.from_pretrained(short_folder), BertTokenizer.from_pretrained(short_folder)
    texts = list(made_texts(texts_of(40), 6, 4))
    pairs = [f"{a} ||| {b}" for a, b in zip(texts, ["a cat", *texts], strict=False)]
    results = []
    for length in (WHOLE, 60):
        pieces_of(length)
        embedded = embed_tokens(model, tokenizer, texts, truncation="silent")
        lines = list(google_lines(model, tokenizer, enumerate([*texts, *pairs]), layers=(-1,), max_length=30))
        with pytest.raises(ValueError, match=r"text 0 has \d+ tokens, the model takes 32") as error:
            embed_tokens(model, tokenizer, texts, truncation="error")
        results.append((embedded, lines, str(error.value)))
    assert results[0][1:] == results[1][1:]
    for one, other in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_array_equal(one.vectors, other.vectors)
        for name in ("tokens", "word_ids", "n_truncated", "cut_words"):
            assert getattr(one, name) == getattr(other, name), name


# --- files ------------------------------------------------------------------------------------------------------------


def lines_of(path: Path, kind: str) -> list[tuple[str | None, int, str | None]]:
    source = Source(str(path), kind, "text", None, path.name)
    return [(input_line.text, input_line.line, input_line.problem) for input_line in read_input_lines(source)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("kind", ["text", "jsonl", "csv", "tsv"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_long_line_is_a_bad_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, kind: str, compressed: bool
) -> None:
    limit = 1000
    monkeypatch.setattr(readers, "_LINE_LIMIT", limit)
    monkeypatch.setattr(readers, "_BLOCK", 64)
    frame = ('{"text": "', '"}') if kind == "jsonl" else ("", "")
    room = limit - len("".join(frame))
    lengths = [3, room, room + 1, 0, room + 2, room + 3, 7 * limit, room - 1, 64 * 20 + limit + 2, 5]
    texts = ["x" * length for length in lengths]
    lines = [f"{frame[0]}{text}{frame[1]}" for text in texts]
    header = ["text"] if kind in ("csv", "tsv") else []
    unit = "characters" if header else "bytes"
    for last in ("", end):
        data = (end.join([*header, *lines]) + last).encode()
        (tmp_path / "a").write_bytes(gzip.compress(data) if compressed else data)
        expected: list[tuple[str | None, int, str | None]] = []
        for number, (text, length) in enumerate(zip(texts, lengths, strict=True), 1 + len(header)):
            problem = f"has more than 1,000 {unit}" if length > room else None
            if header:
                problem = problem and f"is not a row of a table: it {problem}"
                if not text:
                    continue  # an empty line is not a row
            expected.append((None if problem else text, number, problem))
        assert lines_of(tmp_path / "a", kind) == expected


def test_a_long_row_of_several_lines_ends_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_LINE_LIMIT", 100)
    path = tmp_path / "a.csv"
    path.write_text('text,more\n"' + "x\n" * 40 + '","' + "y\n" * 5 + '"\n"' + "x\n" * 40 + '","' + "y\n" * 10 + '"\n')
    source = read_input_lines(Source(str(path), "csv", "text", None, path.name))
    assert str(next(source).text) == "x\n" * 40
    with pytest.raises(ValueError, match=r"a\.csv, line 48: it has more than 100 characters\. The row runs over"):
        next(source)
    path.write_text("text" * 100 + "\nx\n")
    with pytest.raises(ValueError, match="the header is broken: it has more than 100 characters"):
        next(read_input_lines(Source(str(path), "csv", "text", None, path.name)))


def test_lines_that_end_with_a_carriage_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_LINE_LIMIT", 100)
    monkeypatch.setattr(readers, "_BLOCK", 16)
    lengths = [100, 101, 5, 102, 103, 116, 117, 118, 132, 7]
    (tmp_path / "a.csv").write_bytes("\r".join(["text", *("x" * length for length in lengths)]).encode())
    found = lines_of(tmp_path / "a.csv", "csv")
    assert [(len(text) if text else None, line) for text, line, _ in found] == [
        (length if length <= 100 else None, line) for line, length in enumerate(lengths, 2)
    ]


def test_a_message_does_not_quote_all_of_a_long_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({f"{i}{'x' * 500}": i for i in range(1000)}) + "\n")
    ((_, _, problem),) = lines_of(tmp_path / "a.jsonl", "jsonl")
    assert problem is not None
    assert len(problem) < 2000


def test_windows_are_bounded_by_weight() -> None:
    items = ["a" * n for n in (3, 3, 3, 20, 1, 1, 1, 1, 9, 2)]
    read = []

    def each() -> Iterator[str]:
        for item in items:
            read.append(item)
            yield item

    found = in_chunks(each(), 3, len, 9)
    assert [len(item) for item in next(found)] == [3, 3, 3]
    assert len(read) == 3
    assert [[len(item) for item in window] for window in found] == [[20], [1, 1, 1], [1, 9], [2]]
    assert list(in_chunks([], 3, len, 9)) == []
    assert list(in_chunks("abcde", 2, len, 1)) == [["a"], ["b"], ["c"], ["d"], ["e"]]


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("shards_of_before", [False, True])
@pytest.mark.parametrize("on_error", ["skip", "null"])
def test_shards_of_long_lines_are_resumed(
    short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: str, shards_of_before: bool
) -> None:
    """A run whose shards all have the same number of lines, as before the bound on characters, is resumed too."""
    lines = [json.dumps({"text": "cat " * (i % 9)}) if i % 7 else "{" for i in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    arguments = ["embed", "-m", str(short_folder), "-i", str(tmp_path / "a.jsonl"), "--on-error", on_error]
    arguments += ["--shard-size", "6", "-o"]
    monkeypatch.setattr(runs, "CHARACTERS_AT_ONCE", 60)
    sizes = []
    commit = runs.Shards.commit

    def counted(self: Any, counts: Any) -> None:
        if len(sizes) == stop:
            raise StoppedError
        commit(self, counts)
        sizes.append(counts.n_texts + counts.n_left_out)

    monkeypatch.setattr(runs.Shards, "commit", counted)
    stop = -1
    assert main([*arguments, str(tmp_path / "whole.npy")]) == 0
    assert sum(sizes) == 100
    assert max(sizes) <= 6
    assert len(set(sizes)) > 1
    for stop in (1, 4, 16):
        sizes.clear()
        output = tmp_path / f"{stop}.npy"
        with monkeypatch.context() as before:
            if shards_of_before:
                before.setattr(runs, "CHARACTERS_AT_ONCE", 10**9)
            with pytest.raises(StoppedError):
                main([*arguments, str(output)])
        stop = -1
        assert main([*arguments, str(output), "--resume"]) == 0
        assert sum(sizes) == 100
        for suffix in (".npy", ".ids.jsonl"):
            whole = (tmp_path / "whole.npy").with_suffix(suffix).read_bytes()
            assert output.with_suffix(suffix).read_bytes() == whole


# --- memory -----------------------------------------------------------------------------------------------------------

_PROGRAM = """
import json, resource, sys
limit, arguments = json.loads(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from minibert.cli import main
status = main(arguments)
peak = {line.split()[0]: int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("Vm")}
print(json.dumps(peak))
sys.exit(status)
"""


def run_within(limit: int, arguments: list[str]) -> tuple[int, dict[str, int], str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, json.dumps([limit, arguments])],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}, done.stderr


@pytest.fixture(scope="module")
def start(short_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Return the memory figures of a process that embeds one short line."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "short.txt").write_text("a cat\n")
    files = ["-i", str(folder / "short.txt"), "-o", str(folder / "o.npy")]
    status, peak, err = run_within(0, ["embed", "-m", str(short_folder), *files])
    assert status == 0, err
    return peak


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc, limits the address space")
@pytest.mark.parametrize("truncation", ["warn", "silent", "split"])
def test_a_file_with_long_lines_is_embedded_within_bounded_memory(
    short_folder: Path, start: dict[str, int], tmp_path: Path, truncation: str
) -> None:
    """A line of 16 MB (6 MB with "split") is embedded; a line of 20 MB is left out."""
    options = [
        "embed",
        "-m",
        str(short_folder),
        "--truncation",
        truncation,
        "--on-error",
        "skip",
        "-o",
        str(tmp_path / "o.npy"),
    ]
    megabytes = 16 if truncation != "split" else 6
    line = "cat dog, " * (megabytes * 2**20 // 9 - 1)
    (tmp_path / "long.txt").write_text(f"a cat\n{line}\n{'cat dog, ' * (20 * 2**20 // 9)}\na dog\n")
    room = 400  # MB; the library alone would need 800 or more
    status, peak, err = run_within((start["VmPeak:"] + room) * 2**20, [*options, "-i", str(tmp_path / "long.txt")])
    assert status == 0, err
    REPORT.append(f"a line of {megabytes} MB, {truncation}: peak {peak['VmHWM:']} MB, {start['VmHWM:']} without")
    vectors = np.load(tmp_path / "o.npy")
    assert len(vectors) == 3
    assert "line 3: has more than 16,777,216 bytes" in err
    (tmp_path / "long.txt").write_text(f"a cat\n{'cat dog, ' * (20 * 2**20 // 9)}\na dog\n")
    assert main([*options, "-i", str(tmp_path / "long.txt"), "--on-error", "null"]) == 0
    null = np.load(tmp_path / "o.npy")
    np.testing.assert_array_equal(null[[0, 2]], vectors[[0, 2]])
    assert np.isnan(null[1]).all()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.csv.gz"])
def test_a_line_of_gzip_that_does_not_end_is_not_held(short_folder: Path, tmp_path: Path, name: str) -> None:
    with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
        file.write(b'{"text": "a cat"}\n' if "jsonl" in name else b"text\n")
        for _ in range(400):
            file.write(bytes(2**20))
        file.write(b'\n{"text": "a dog"}\n' if "jsonl" in name else b"\na dog\n")
    options = [
        "embed",
        "-m",
        str(short_folder),
        "--on-error",
        "skip",
        "-i",
        str(tmp_path / name),
        "-o",
        str(tmp_path / "o.npy"),
    ]
    status, peak, err = run_within(0, options)
    assert status == 0, err
    assert "line 2: " in err
    assert "has more than 16,777,216" in err
    assert peak["VmHWM:"] < 400
    assert len(np.load(tmp_path / "o.npy")) == (1 if "csv" in name else 2)


def test_a_text_that_cannot_be_cut_is_refused_before_it_takes_all_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_encodings, "_MOST_CHARACTERS", 2**15 - 1)
    tokenizer = tokenizer_of(tmp_path / "model", added=[{"content": "new york"}])
    assert not tokenizer._raw.long_texts.possible
    text = "a cat " * 2**13
    with pytest.raises(ValueError, match=r"text 1 cannot be tokenized: it has 49,152 characters.* up to 32,767"):
        tokenizer.encodings(["a", text])
    assert len(tokenizer.encodings([text[:30_000]], truncation=False)[0]) > 10_000
    plain = tokenizer_of(tmp_path / "plain")
    assert len(plain.encodings([text], truncation=False)[0]) > 10_000
    with pytest.raises(ValueError, match="it has 49,153 characters"):
        plain(text, "b", truncation=True, max_length=9)
    with pytest.raises(ValueError, match="it has 32,768 characters"):
        plain([text.split()], is_split_into_words=True, truncation=True, max_length=9)


def test_a_long_row_that_ends_within_quotes_hides_where_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_LINE_LIMIT", 30)
    path = tmp_path / "a.csv"
    path.write_text('text\nok one\n"' + "a" * 40 + '\nsecond line of the same row\nthird"\nok two\n', newline="")
    input_lines = read_input_lines(Source(str(path), "csv"))
    assert next(input_lines).text == "ok one"
    with pytest.raises(ValueError, match=r"line 3: .*more than 30 characters.*is unknown where the next row begins"):
        next(input_lines)
    path.write_text('text\nok one\n"' + "a" * 40 + '"\nok two\n', newline="")
    texts = [input_line.text for input_line in read_input_lines(Source(str(path), "csv"))]
    assert texts == ["ok one", None, "ok two"]
