"""Files of vectors that are not as they should be, and those of other programs, in each kind that search reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from minibert.corpus.readers import VectorFile, holds_vectors
from minibert.vectors.multi_vectors import maxsim
from minibert.vectors.similarity import cos_sim
from tests.support.outcomes import peak_of
from tests.support.report import REPORT

WIDTH = 6
GOOD = np.random.default_rng(0).standard_normal((9, WIDTH)).astype(np.float32).tolist()
QUERY = np.array(GOOD[5], np.float32)


def with_manifest(path: Path, multi_vector: bool = False, **more: Any) -> Path:
    settings = {"dtype": "float32", "multi_vector": multi_vector}
    manifest = {"settings": settings, "checksums": [], "inputs": [], "probe": [], **more}
    Path(f"{path}.manifest.json").write_text(json.dumps(manifest))
    return path


def as_jsonl(folder: Path, rows: list[Any], multi_vector: bool = False) -> Path:
    path = folder / "v.jsonl"
    path.write_text("".join(json.dumps({"id": f"k{i}", "embedding": row}) + "\n" for i, row in enumerate(rows)))
    return with_manifest(path, multi_vector)


def as_npy(folder: Path, rows: list[Any], multi_vector: bool = False) -> Path:
    path, lines = folder / "v.npy", [{"row": i, "id": f"k{i}"} for i in range(len(rows))]
    if multi_vector:
        lines = [{**line, "vectors": len(row or ())} for line, row in zip(lines, rows, strict=True)]
        rows = [vector for row in rows for vector in row or ()]
    np.save(path, np.array([[np.nan] * WIDTH if row is None else row for row in rows], np.float32))
    (folder / "v.ids.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return with_manifest(path, multi_vector)


def as_parquet(kind: Any) -> Callable[..., Path]:
    def write(folder: Path, rows: list[Any], multi_vector: bool = False) -> Path:
        path, ids = folder / "v.parquet", [f"k{i}" for i in range(len(rows))]
        column = pa.array(rows, pa.list_(kind) if multi_vector else kind)
        pa.parquet.write_table(pa.table({"id": ids, "embedding": column}), path, row_group_size=4)
        return with_manifest(path, multi_vector)

    return write


def as_tensors(folder: Path, rows: list[Any], multi_vector: bool = False) -> Path:
    """Write the tensors of Arrow, as other programs do; one of tokens cannot be written so."""
    storage = pa.array(rows, pa.list_(pa.float32(), WIDTH))
    column = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [WIDTH]), storage)
    pa.parquet.write_table(
        pa.table({"id": [f"k{i}" for i in range(len(rows))], "vector": column}), folder / "v.parquet"
    )
    return folder / "v.parquet"


KINDS: dict[str, Any] = {
    "jsonl": as_jsonl,
    "npy": as_npy,
    "lists": as_parquet(pa.list_(pa.float32())),
    "large lists of float64": as_parquet(pa.large_list(pa.float64())),
    "lists of fixed size": as_parquet(pa.list_(pa.float32(), WIDTH)),
    "tensors": as_tensors,
}


def best(path: Path, query: Any = QUERY, top_k: int = 3) -> list[Any]:
    return VectorFile(str(path)).search(query, top_k, maxsim if query.ndim > 1 else cos_sim)


def changed(row: int, value: Any) -> list[Any]:
    return [*GOOD[:row], value, *GOOD[row + 1 :]]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_vector_are_never_found(tmp_path: Path, kind: str) -> None:
    path = KINDS[kind](tmp_path, changed(2, None))
    assert holds_vectors(str(path))
    hits = best(path, top_k=20)
    assert (hits[0][1], round(hits[0][0], 5)) == ("k5", 1.0)
    assert sorted(hit[1] for hit in hits) == [f"k{i}" for i in range(9) if i != 2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", ["short", "lengths that add up", "a null in it", "NaN", "infinity", "words"])
def test_a_row_that_is_no_vector_is_named(tmp_path: Path, kind: str, wrong: str) -> None:
    rows = changed(6, GOOD[6][:-1])
    if wrong == "lengths that add up":
        rows[7] = [*GOOD[7], 0.0]
    elif wrong != "short":
        rows = changed(
            6, [{"a null in it": None, "NaN": np.nan, "infinity": -np.inf, "words": "x"}[wrong], *GOOD[6][1:]]
        )
    try:
        path = KINDS[kind](tmp_path, rows)
    except (ValueError, TypeError, pa.ArrowException):
        assert wrong in ("short", "lengths that add up", "words")  # the format cannot hold it
        return
    with pytest.raises(ValueError, match=r" 6 numbers: row 6 "):
        best(path)


@pytest.mark.parametrize("kind", KINDS)
def test_another_width_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ValueError, match=r" 5 numbers: row 0 .*6"):
        best(KINDS[kind](tmp_path, GOOD), QUERY[:5])


OF_TOKENS = [GOOD[:2], None, GOOD[2:5], [], GOOD[5:6], GOOD[6:]]


@pytest.mark.parametrize("kind", ["jsonl", "npy", "lists", "lists of fixed size"])
def test_vectors_of_tokens(tmp_path: Path, kind: str) -> None:
    path = KINDS[kind](tmp_path, OF_TOKENS, True)
    query = np.array(GOOD[:2], np.float32)
    expected = {i: float(maxsim([query], [np.array(OF_TOKENS[i])])[0, 0]) for i in (0, 2, 4, 5)}
    hits = best(path, query, 10)
    assert [hit[1] for hit in hits] == [f"k{i}" for i in sorted(expected, key=lambda i: -expected[i])]
    np.testing.assert_allclose([hit[0] for hit in hits], sorted(expected.values(), reverse=True), rtol=1e-6)
    for wrong in ([GOOD[0], GOOD[1][:-1]], [GOOD[0], None], [[np.nan] * WIDTH], GOOD[0]):
        try:
            path = KINDS[kind](tmp_path, [*OF_TOKENS[:4], wrong, OF_TOKENS[5]], True)
        except (ValueError, TypeError, pa.ArrowException):
            continue
        with pytest.raises(ValueError, match=r" 6 numbers: row 4 "):
            best(path, query)


@pytest.mark.parametrize("multi_vector", [False, True])
@pytest.mark.parametrize("lines", [7, 8, 10, 12])
def test_ids_of_another_count_than_the_vectors_are_refused(tmp_path: Path, lines: int, multi_vector: bool) -> None:
    path = as_npy(tmp_path, [[row] for row in GOOD] if multi_vector else GOOD, multi_vector)
    rows = [{"row": i, "id": i, "vectors": 1} for i in range(lines)]
    (tmp_path / "v.ids.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(ValueError, match=rf"v\.npy .*v\.ids\.jsonl is for {lines} vectors, .* 9"):
        best(path, np.array(GOOD[:2], np.float32) if multi_vector else QUERY)


@pytest.mark.parametrize(
    ("count", "shape"), [("x", (9, WIDTH)), (-1, (9, WIDTH)), (1, (9 * WIDTH,)), (1, (9, 2, WIDTH // 2))]
)
def test_an_array_or_an_index_of_another_kind_is_refused(tmp_path: Path, count: Any, shape: tuple[int, ...]) -> None:
    path = as_npy(tmp_path, [[row] for row in GOOD], True)
    np.save(path, np.array(GOOD, np.float32).reshape(shape))
    lines = [{"row": i, "id": i, "vectors": count if i == 4 else 1} for i in range(9)]
    (tmp_path / "v.ids.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ValueError, match="cannot be searched"):
        best(path, np.array(GOOD[:2], np.float32))


@pytest.mark.parametrize("name", ["embedding", "embeddings", "vector", "vectors"])
def test_the_usual_names_of_a_column_of_vectors_are_seen(tmp_path: Path, name: str) -> None:
    path, texts = tmp_path / "v.parquet", [f"text {i}" for i in range(9)]
    pa.parquet.write_table(pa.table({"text": texts, "other": GOOD, name: GOOD}), path)
    assert holds_vectors(str(path))
    assert best(path, top_k=1) == [(pytest.approx(1, abs=1e-6), 5, "text 5")]
    pa.parquet.write_table(pa.table({"text": texts, name: texts}), path)  # texts under this name are no vectors
    assert not holds_vectors(str(path))


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_search_holds_numbers_and_not_texts(tmp_path: Path, suffix: str) -> None:
    """A text has 8,000 numbers. 1,200 of them need 38 MB as float32, and several times that on the way."""
    text, path, peaks = [[0.5] * 16] * 500, tmp_path / f"v.{suffix}", []
    for count in (600, 1800):
        if suffix == "jsonl":
            line = json.dumps({"id": 0, "embedding": text})
            path.write_text(f"{line}\n" * count)
        else:
            column = pa.array([text] * count, pa.list_(pa.list_(pa.float32(), 16)))
            pa.parquet.write_table(pa.table({"embedding": column}), path, use_dictionary=False)
        with_manifest(path, True)
        peaks.append(
            peak_of(
                "import numpy as np\nfrom minibert.corpus.readers import VectorFile\n"
                "from minibert.vectors.multi_vectors import maxsim\n"
                f"assert len(VectorFile({str(path)!r}).search(np.ones((2, 16), np.float32), 3, maxsim)) == 3"
            )
        )
    REPORT.append(f"search of token vectors, {suffix}: peak {peaks[0]:.0f} MB with 600 texts, {peaks[1]:.0f} with 1800")
    assert peaks[1] < peaks[0] + 50
