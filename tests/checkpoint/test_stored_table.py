"""A table of words that stays in its file: the same bits, and what happens to the file while the model is in use."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import minibert
from minibert import BertForMaskedLM, BertModel, ModelFormatError
from minibert.checkpoint import table
from minibert.checkpoint.files import locate
from minibert.models.loading import load_weights
from tests.support.checkpoints import random_checkpoint
from tests.support.head_models import make_model
from tests.support.marks import needs_fork, unix
from tests.support.outcomes import python
from tests.support.safetensors_files import NAMES, Tensors, Write, safetensors_bytes, stored

V, H, SIZES = 400, 24, {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 40}
KEPT_ROWS = 30
FORMATS = ("float32", "float16", "bfloat16")


def ids_of(seed: int, shape: tuple[int, int] = (2, 9)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, V, shape)


def bits(model: Any, ids: np.ndarray) -> bytes:
    return model(ids)[0].tobytes()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("tables")
    return {name: random_checkpoint(home / name, dtype=name, vocab_size=V, **SIZES) for name in FORMATS}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model whose file a test may change."""
    return random_checkpoint(tmp_path / "model", vocab_size=V, **SIZES)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of more than KEPT_ROWS rows stay in their files, and no more rows are kept."""
    monkeypatch.setattr(table, "KEPT_BYTES", 4 * H * KEPT_ROWS)


def in_memory(folder: Path, kind: Any = BertModel, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "KEPT_BYTES", 1 << 30)
        model = kind.from_pretrained(folder, **options)
    assert isinstance(model.weights.words, np.ndarray)
    return model


def in_file(folder: Path, kind: Any = BertModel, **options: Any) -> Any:
    model = kind.from_pretrained(folder, **options)
    assert isinstance(model.weights.words, table.StoredTable)
    return model


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("backend", ["kernels", "numpy"])
@pytest.mark.usefixtures("small")
def test_forwards_have_the_same_bits(folders: dict[str, Path], dtype: str, backend: str) -> None:
    model, expected = (load(folders[dtype], backend=backend) for load in (in_file, in_memory))
    for seed in range(40):  # the kept rows begin again several times
        ids = ids_of(seed, (1 + seed % 3, 1 + 7 * seed % 25))
        assert bits(model, ids) == bits(expected, ids)
        rows = model.weights.words._kept.rows
        assert len(rows) <= max(KEPT_ROWS, ids.size)
    words = model.get_input_embeddings()
    np.testing.assert_array_equal(words(ids), expected.get_input_embeddings().weight[ids])
    np.testing.assert_array_equal(words(5), words.weight[5])
    for wrong in ([V], [-1]):
        with pytest.raises(ValueError, match=rf"word_embeddings ids.*{V}"):
            words(wrong)
    assert words(np.zeros((0, 2), np.int64)).shape == (0, 2, H)


@pytest.mark.usefixtures("small")
def test_other_files_have_the_same_bits(folders: dict[str, Path], tmp_path: Path) -> None:
    expected, tensors = in_memory(folders["float32"]), load_file(folders["float32"] / "model.safetensors")
    turned = {**tensors, NAMES[0]: tensors[NAMES[0]].T.contiguous().T}
    for name in ("bin", "turned", "wide"):
        shutil.copytree(folders["float32"], tmp_path / name, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(tensors, tmp_path / "bin/pytorch_model.bin")
    torch.save(turned, tmp_path / "turned/pytorch_model.bin")
    wide = safetensors_bytes({name: stored(tensor.numpy(), "F64") for name, tensor in tensors.items()})
    (tmp_path / "wide/model.safetensors").write_bytes(wide)
    assert bits(in_file(tmp_path / "bin"), ids_of(0)) == bits(expected, ids_of(0))
    assert bits(in_file(tmp_path / "wide"), ids_of(0)) == bits(expected, ids_of(0))
    model = BertModel.from_pretrained(tmp_path / "turned")
    assert isinstance(model.weights.words, np.ndarray)  # its rows are not in one piece
    assert bits(model, ids_of(0)) == bits(expected, ids_of(0))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("backend", ["kernels", "numpy"])
@pytest.mark.usefixtures("small")
def test_a_decoder_may_be_the_table(tmp_path: Path, tied: bool, backend: str) -> None:
    folder = make_model(tmp_path / "model", "BertForMaskedLM", vocab_size=V, tie_word_embeddings=tied)
    model, expected = (load(folder, BertForMaskedLM, backend=backend) for load in (in_file, in_memory))
    assert bits(model, ids_of(0)) == bits(expected, ids_of(0))
    assert model.weights.head.tied is tied
    assert model.num_parameters() == expected.num_parameters()
    if backend == "numpy" and tied:
        assert model.weights.head.decoder.weight is model.weights.word_embeddings


@pytest.mark.usefixtures("small")
def test_whatever_needs_the_whole_table_has_it(folders: dict[str, Path], tmp_path: Path) -> None:
    model, expected = in_file(folders["float16"]), in_memory(folders["float16"])
    weight = model.get_input_embeddings().weight
    np.testing.assert_array_equal(weight, expected.weights.word_embeddings)
    assert not weight.flags.writeable
    assert weight is model.get_input_embeddings().weight
    parameters = dict(model.named_parameters())
    for name, array in expected.named_parameters():
        np.testing.assert_array_equal(parameters[name], array)
    parameters[NAMES[0]][:] = 0  # a copy
    assert len([*model.parameters()]) == len(parameters)
    model.save_pretrained(tmp_path)
    assert bits(in_memory(tmp_path), ids_of(1)) == bits(model, ids_of(1)) == bits(expected, ids_of(1))


def test_a_fingerprint_reads_the_table_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = random_checkpoint(tmp_path, dtype="float16", **{**SIZES, "vocab_size": 60_000})
    monkeypatch.setattr(table, "KEPT_BYTES", 2**20)
    monkeypatch.setattr(table, "BUFFER_BYTES", 2**18)
    expected, model = in_memory(folder).fingerprint(), in_file(folder)
    tracemalloc.start()
    assert model.fingerprint() == expected
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000 < 4 * H * 60_000


@pytest.mark.usefixtures("small")
def test_traces_and_edits(folders: dict[str, Path]) -> None:
    model, expected = in_file(folders["float32"]), in_memory(folders["float32"])
    name = "embeddings.word_embeddings"
    edit = {name: lambda x: x * 2}
    for load in ({}, {"edit": edit}):
        traces = [one.trace(ids_of(2), record="*", **load) for one in (model, expected)]
        assert name in [*traces[0]]
        for value in traces[0]:
            np.testing.assert_array_equal(traces[0][value], traces[1][value])
    exact = [minibert.exact.forward(one, ids_of(2), record=name)[name] for one in (model, expected)]
    np.testing.assert_array_equal(*exact)


@pytest.mark.usefixtures("small")
def test_copies_have_the_whole_table(own: Path) -> None:
    model = in_file(own)
    expected = bits(model, ids_of(0))
    shared = copy.copy(model)
    copies = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    assert shared.weights.words is model.weights.words
    (own / "model.safetensors").write_bytes(b"")
    for one in copies:
        assert isinstance(one.weights.words, np.ndarray)
        assert bits(one, ids_of(0)) == expected
        assert bits(one, ids_of(1)) != expected


@pytest.mark.usefixtures("small")
def test_the_weights_that_processes_share_have_the_table(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIBERT_CACHE_DIR", str(tmp_path / "cache"))
    expected = bits(in_memory(own), ids_of(0))
    for _ in range(2):
        model = BertModel.from_pretrained(own, shared_weights=True)
        assert model.shared_weights
        assert bits(model, ids_of(0)) == expected
    assert not in_file(own).shared_weights


def test_a_large_table_takes_no_memory(write: Write, tensors: Tensors) -> None:
    words = np.random.default_rng(0).standard_normal((1_000_000, 8)).astype(np.float32)
    folder = write({**tensors, NAMES[0]: stored(words)}, vocab_size=len(words))
    files, config = locate(folder), minibert.BertConfig.from_pretrained(folder)
    tracemalloc.start()
    try:
        weights = load_weights(files, config, lambda linear: linear)
        rows, places = weights.words.look_up(np.array([[5, 999_999], [5, 0]]))  # type: ignore[union-attr]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(rows[places], words[[[5, 999_999], [5, 0]]])
    assert (
        peak < table.KEPT_BYTES + 4 * len(words) + 1e6
    )  # the rows, which take pages only if they are used, and places


# --- the file ---------------------------------------------------------------------------------------------------------


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, 100)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


@pytest.mark.parametrize("action", [change, cut, lengthen])
@pytest.mark.usefixtures("small")
def test_a_file_that_is_written_to_is_an_error_and_never_a_wrong_row(own: Path, action: Callable[[Path], None]) -> None:
    model, path = in_file(own), own / "model.safetensors"
    known = ids_of(0, (1, 4))
    expected = bits(model, known)
    action(path)
    assert bits(model, known) == expected  # its rows are kept
    for use in (
        lambda: bits(model, ids_of(1)),
        lambda: model.get_input_embeddings().weight,
        lambda: pickle.dumps(model),
    ):
        with pytest.raises(ModelFormatError, match=r"model\.safetensors has changed.*Load the model again"):
            use()
    assert bits(model, known) == expected


@pytest.mark.usefixtures("small")
def test_a_file_that_changes_between_its_header_and_the_table(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = own / "model.safetensors", table.stored_table

    def open_later(tensor: Any) -> Any:
        lengthen(path)
        return opened(tensor)

    monkeypatch.setattr("minibert.models.loading.stored_table", open_later)
    with pytest.raises(ModelFormatError, match=r"model\.safetensors has changed"):
        BertModel.from_pretrained(own)


@unix
@pytest.mark.usefixtures("small")
def test_a_file_that_is_deleted_or_replaced_stays_readable(own: Path, tmp_path: Path) -> None:
    path, model, expected = own / "model.safetensors", in_file(own), in_memory(own)
    other = random_checkpoint(tmp_path / "other", vocab_size=V, seed=1, **SIZES) / "model.safetensors"
    for action in (lambda: other.replace(path), path.unlink):
        action()
        for seed in range(10):
            assert bits(model, ids_of(seed)) == bits(expected, ids_of(seed))
        np.testing.assert_array_equal(model.weights.word_embeddings, expected.weights.word_embeddings)


@unix
@pytest.mark.usefixtures("small")
def test_a_disk_that_fails_gives_the_reason_of_the_system(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_file(own)
    expected = bits(model, ids_of(0, (1, 4)))

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(ModelFormatError, match=rf"model\.safetensors.*{NAMES[0]}.*{os.strerror(errno.EIO)}"):
            model(ids_of(1))
        patch.setattr(os, "pread", lambda *_: b"")
        with pytest.raises(ModelFormatError, match=r"model\.safetensors.*ends early"):
            model(ids_of(1))
    assert bits(model, ids_of(1)) == bits(in_memory(own), ids_of(1))
    assert bits(model, ids_of(0, (1, 4))) == expected


@pytest.mark.usefixtures("small")
def test_a_row_that_is_not_finite_is_refused_when_it_is_read(own: Path) -> None:
    arrays = load_file(own / "model.safetensors")
    arrays[NAMES[0]][7, 3] = np.nan
    save_file(arrays, own / "model.safetensors", {"format": "pt"})
    model = in_file(own)
    model([[5, 6, 8]])
    for use in (lambda: model([[5, 6, 7]]), lambda: model.weights.word_embeddings):
        with pytest.raises(ModelFormatError, match=r"word_embeddings\.weight holds nan at \[7, 3\]"):
            use()


@pytest.mark.usefixtures("small")
def test_without_pread_as_on_windows(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pread", raising=False)
    model, expected = in_file(folders["bfloat16"]), in_memory(folders["bfloat16"])
    for seed in range(10):
        assert bits(model, ids_of(seed)) == bits(expected, ids_of(seed))


# --- processes, threads and descriptors -------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not list open files")
@pytest.mark.usefixtures("small")
def test_the_file_is_closed_with_the_last_model(own: Path) -> None:
    def is_open() -> bool:
        places = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
        return str(own / "model.safetensors") in [os.readlink(place) for place in places if place.is_symlink()]

    model = in_file(own)
    other = BertModel(model.weights, model.ops)
    model(ids_of(0))
    assert is_open()
    model.close()
    assert is_open()
    other.close()
    assert not is_open()


@pytest.mark.usefixtures("small")
def test_threads_that_read_at_once_get_their_own_rows(own: Path) -> None:
    model, expected, wrong = in_file(own, num_threads=1), in_memory(own), list[int]()
    answers = {seed: bits(expected, ids_of(seed)) for seed in range(60)}

    def compute(first: int) -> None:
        for seed in [*range(first, 60), *range(first)]:
            if bits(model, ids_of(seed)) != answers[seed]:
                wrong.append(seed)

    threads = [threading.Thread(target=compute, args=(7 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


FORKS = """
import os, sys, threading
import numpy as np
from minibert import BertModel
from minibert.checkpoint import table
expected = BertModel.from_pretrained(sys.argv[1])
table.KEPT_BYTES = 4 * 24 * 30
model = BertModel.from_pretrained(sys.argv[1])
assert isinstance(model.weights.words, table.StoredTable)
batches = [np.random.default_rng(seed).integers(0, 400, (2, 9)) for seed in range(40)]
answers = [expected(batch).last_hidden_state.tobytes() for batch in batches]

def compute(times=1):
    return all(model(b).last_hidden_state.tobytes() == a for _ in range(times) for b, a in zip(batches, answers))

results = []
reader = threading.Thread(target=lambda: results.append(compute(20)))
reader.start()
children = []
for number in range(6):
    if not (child := os.fork()):
        os._exit(0 if compute() else 1)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
reader.join()
assert results == [True]
"""


@needs_fork
def test_forks_while_another_thread_reads(own: Path) -> None:
    done = python("-W", "ignore", "-c", FORKS, str(own))
    assert done.returncode == 0, done.stderr


LIMITED = """
import resource, sys
import numpy as np
from minibert import BertModel
from minibert.checkpoint import table
expected = BertModel.from_pretrained(sys.argv[1])
table.KEPT_BYTES = 4 * 24 * 30
model = BertModel.from_pretrained(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
generator = np.random.default_rng(0)
for number in range(500):
    ids = generator.integers(0, 400, (1, int(generator.integers(1, 20))))
    assert model(ids).last_hidden_state.tobytes() == expected(ids).last_hidden_state.tobytes(), number
"""


@unix
def test_random_forwards_under_a_low_limit_of_open_files(own: Path) -> None:
    done = python("-c", LIMITED, str(own))
    assert done.returncode == 0, done.stderr


AT_EXIT = """
import atexit, sys
from minibert import BertModel
from minibert.checkpoint import table
table.KEPT_BYTES = 0
models = []
atexit.register(lambda: models[0]([[1, 2, 3]]))
models.append(BertModel.from_pretrained(sys.argv[1]))
"""


def test_a_forward_while_the_program_ends_is_an_error_in_words(own: Path) -> None:
    done = python("-c", AT_EXIT, str(own))
    assert "the program ends" in done.stderr
