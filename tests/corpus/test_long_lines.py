"""Files with long lines, and their memory."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minibert.corpus import raw_lines
from minibert.corpus.input_lines import read_input_lines
from minibert.corpus.sources import Source
from minibert.tokenizer.windows import in_chunks
from tests.support.outcomes import python
from tests.support.report import REPORT

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")

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
    monkeypatch.setattr(raw_lines, "LIMIT", limit)
    monkeypatch.setattr(raw_lines, "_BLOCK", 64)
    frame = ('{"text": "', '"}') if kind == "jsonl" else ("", "")
    room = limit - len("".join(frame))
    lengths = [3, room, room + 1, 0, room + 2, room + 3, 7 * limit, room - 1, 64 * 20 + limit + 2, 5]
    texts = ["x" * length for length in lengths]
    lines = [f"{frame[0]}{text}{frame[1]}" for text in texts]
    header = ["text"] if kind in ("csv", "tsv") else []
    for last in ("", end):
        data = (end.join([*header, *lines]) + last).encode()
        (tmp_path / "a").write_bytes(gzip.compress(data) if compressed else data)
        expected: list[tuple[str | None, int, str | None]] = []
        for number, (text, length) in enumerate(zip(texts, lengths, strict=True), 1 + len(header)):
            problem = "has more than 1,000 bytes" if length > room else None
            if header:
                problem = problem and f"is not a row of a table: it {problem}"
                if not text:
                    continue  # an empty line is not a row
            expected.append((None if problem else text, number, problem))
        assert lines_of(tmp_path / "a", kind) == expected


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
    done = python("-W", "ignore", "-c", _PROGRAM, json.dumps([limit, arguments]))
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}, done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc, limits the address space")
@pytest.mark.slow
@pytest.mark.parametrize("truncation", ["warn", "silent", "split"])
def test_long_lines_are_embedded_within_bounded_memory(short_folder: Path, tmp_path: Path, truncation: str) -> None:
    """A line of 16 MB (6 MB with "split") is embedded; a line of 20 MB is left out."""
    how = ["--truncation", truncation, "--on-error", "skip"]
    options = ["embed", "-m", str(short_folder), *how, "-o", str(tmp_path / "o.npy")]
    (tmp_path / "short.txt").write_text("a cat\n")
    status, start, err = run_within(0, [*options, "-i", str(tmp_path / "short.txt")])
    assert status == 0, err
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.parametrize(
    "name", ["a.txt.gz", *(pytest.param(name, marks=pytest.mark.slow) for name in ("a.jsonl.gz", "a.csv.gz"))]
)
def test_a_line_of_gzip_that_does_not_end_is_not_held(short_folder: Path, tmp_path: Path, name: str) -> None:
    with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
        file.write(b'{"text": "a cat"}\n' if "jsonl" in name else b"text\n")
        for _ in range(400):
            file.write(bytes(2**20))
        file.write(b'\n{"text": "a dog"}\n' if "jsonl" in name else b"\na dog\n")
    files = ["-i", str(tmp_path / name), "-o", str(tmp_path / "o.npy")]
    options = ["embed", "-m", str(short_folder), "--on-error", "skip", *files]
    status, peak, err = run_within(0, options)
    assert status == 0, err
    assert "line 2: " in err
    assert "has more than 16,777,216" in err
    assert peak["VmHWM:"] < 400
    assert len(np.load(tmp_path / "o.npy")) == (1 if "csv" in name else 2)


def test_a_long_row_with_open_quotes_hides_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_lines, "LIMIT", 30)
    path = tmp_path / "a.csv"
    path.write_text('text\nok one\n"' + "a" * 40 + '\nsecond line of the same row\nthird"\nok two\n', newline="")
    input_lines = read_input_lines(Source(str(path), "csv"))
    assert next(input_lines).text == "ok one"
    with pytest.raises(ValueError, match=r"line 3: .*30 bytes"):
        next(input_lines)
    path.write_text('text\nok one\n"' + "a" * 40 + '"\nok two\n', newline="")
    texts = [input_line.text for input_line in read_input_lines(Source(str(path), "csv"))]
    assert texts == ["ok one", None, "ok two"]
