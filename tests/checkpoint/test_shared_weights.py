"""shared_weights=: the same bits as without, one copy for all processes, changed checkpoints, writes, failures."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import minibert
from minibert import BertForMaskedLM, BertModel, CrossEncoder, SentenceTransformer, SparseEncoder
from minibert._utils.private_files import delete_files
from minibert.checkpoint.tensors import read_tensor
from minibert.cli import main
from minibert.kernels import packing
from minibert.models import shared_weights
from minibert.models.stored import named_arrays
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.head_models import inputs_of, logits_of, make_model
from tests.support.outcomes import python
from tests.support.random_checkpoints import random_successor, sizes
from tests.support.refusals import check_refused
from tests.support.report import REPORT
from tests.support.sentence_heads import MASKED, SEQUENCE, model_folder

TYPES = ("float32", "int16", "int8_int16", "int8")
IDS = np.random.default_rng(0).integers(5, 90, (3, 17))
TEXTS = ["the cat sat on the mat", "a dog", ""]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of the user, in which the weights are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MINIBERT_CACHE_DIR", raising=False)
    monkeypatch.delenv("MINIBERT_SHARED_WEIGHTS", raising=False)
    shared_weights._warn_not_shared.cache_clear()
    yield tmp_path / "cache" / "minibert" / "weights"
    shared_weights._warn_not_shared.cache_clear()


def states(model: BertModel) -> bytes:
    output = model(IDS, output_hidden_states=True)
    return b"".join(np.asarray(state).tobytes() for state in output.hidden_states)


def mapped_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.weights"))


# --- the same results -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute_type", TYPES)
def test_states_have_the_same_bits(
    compute_type: str, small_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"compute_type": compute_type, "add_pooling_layer": False}
    plain = BertModel.from_pretrained(small_folder, **options)
    first = BertModel.from_pretrained(small_folder, shared_weights=True, **options)
    (file,) = mapped_files(cache)
    with monkeypatch.context() as patch:
        patch.setattr("minibert.kernels.ops.pack", None)  # nothing is packed again
        second = BertModel.from_pretrained(small_folder, shared_weights=True, **options)
    copied = pickle.loads(pickle.dumps(second))
    expected = states(plain)
    assert all(states(model) == expected for model in (first, second, copied))
    assert mapped_files(cache) == [file]
    assert [model.shared_weights for model in (first, second, plain)] == [True, True, False]
    for (name, ours), (also, theirs) in zip(named_arrays(second.weights), named_arrays(plain.weights), strict=True):
        assert name == also
        np.testing.assert_array_equal(ours, theirs)
    for array in (second.weights.word_embeddings, second.embeddings.word_embeddings.weight):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    shutil.rmtree(cache)
    assert states(second) == expected, "they stay if the file is deleted"


def test_files_per_compute_type_and_processor(small_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for compute_type in (*TYPES, *TYPES):
        BertModel.from_pretrained(small_folder, compute_type=compute_type, shared_weights=True)
    assert len(mapped_files(cache)) == len(TYPES)
    monkeypatch.setattr(packing, "sources", lambda: "others")
    BertModel.from_pretrained(small_folder, shared_weights=True)
    assert len(mapped_files(cache)) == len(TYPES) + 1


@pytest.mark.parametrize("name", sorted(minibert.bert.rows.HEADS))
def test_models_with_heads_share_the_encoder(name: str, folder_of: Any, cache: Path) -> None:
    folder, inputs, loader = folder_of(name), inputs_of(name), getattr(minibert, name)
    expected = logits_of(loader.from_pretrained(folder)(**inputs))
    for _ in range(2):
        found = logits_of(loader.from_pretrained(folder, shared_weights=True)(**inputs))
        for field, logits in expected.items():
            np.testing.assert_array_equal(found[field], logits)
    before = len(mapped_files(cache))
    assert before == (2 if name in ("BertForMaskedLM", "BertForPreTraining") else 1)
    BertModel.from_pretrained(folder, shared_weights=True)
    assert len(mapped_files(cache)) == before


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_says_if_it_is_tied(tied: bool, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "BertForMaskedLM", tie_word_embeddings=tied)
    expected = BertForMaskedLM.from_pretrained(folder).num_parameters()
    for _ in range(2):
        shared = BertForMaskedLM.from_pretrained(folder, shared_weights=True)
        assert shared.weights.head.tied is tied  # type: ignore[union-attr]
        assert shared.num_parameters() == expected


def test_every_loader_takes_the_keyword(tmp_path: Path, cache: Path) -> None:
    pairs = model_folder(tmp_path / "pairs", SEQUENCE, num_labels=1)
    for kind, folder, call in (
        (CrossEncoder, pairs, lambda model: model.predict([("a cat", "the mat")])),
        (SentenceTransformer, sentence_model(tmp_path / "sentences"), lambda model: model.encode(TEXTS)),
        (SparseEncoder, model_folder(tmp_path / "sparse", MASKED), lambda model: model.encode(TEXTS).todense()),
    ):
        np.testing.assert_array_equal(call(kind(folder, shared_weights=True)), call(kind(folder)))
    assert len(mapped_files(cache)) == 4
    assert isinstance(minibert.load(pairs, shared_weights=True), minibert.BertForSequenceClassification)
    labels = minibert.pipeline("text-classification", str(pairs), shared_weights=True)("a cat")
    assert labels == minibert.pipeline("text-classification", str(pairs))("a cat")
    assert len(mapped_files(cache)) == 4


# --- the files --------------------------------------------------------------------------------------------------------


def test_a_changed_checkpoint_gets_new_weights(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file has the old one's size and time of modification; the digest is noted if the file has settled."""
    one, other = (random_checkpoint(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    weights = one / "model.safetensors"
    state = weights.stat()
    expected = {name: states(BertModel.from_pretrained(name)) for name in (one, other)}
    assert states(BertModel.from_pretrained(one, shared_weights=True)) == expected[one]
    assert list(cache.glob("*.digest")) == []
    monkeypatch.setattr(shared_weights, "_SETTLED_SECONDS", -1)
    BertModel.from_pretrained(one, shared_weights=True)
    (noted,) = cache.glob("*.digest")
    noted.write_text("damaged")
    BertModel.from_pretrained(one, shared_weights=True)
    assert len(noted.read_text()) == 64
    assert len(mapped_files(cache)) == 1
    with weights.open("r+b") as file:  # the same inode
        file.write((other / "model.safetensors").read_bytes())
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    after = weights.stat()
    assert (after.st_size, after.st_ino, after.st_mtime_ns) == (state.st_size, state.st_ino, state.st_mtime_ns)
    assert states(BertModel.from_pretrained(one, shared_weights=True)) == expected[other] != expected[one]


IDS_OF = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
SMALL = sizes(V=60, H=24, L=3, A=3, F=40, P=64) | IDS_OF
CHANGED: list[tuple[str, dict[str, Any]]] = [
    ("gte", {"type_vocab_size": 0}),
    *(
        ("modernbert", {name: change})
        for name in ("norm_bias", "attention_bias", "mlp_bias")
        for change in (True, False)
    ),
    ("modernbert", {"num_hidden_layers": 2}),
    ("nomic_bert", {"type_vocab_size": 1}),
    ("modernbert", {"norm_eps": 0.1}),
]


@pytest.mark.parametrize(("family", "change"), CHANGED)
def test_a_config_that_decides_other_arrays_gets_files_of_its_own(
    family: str, change: dict[str, Any], tmp_path: Path
) -> None:
    """As without sharing, one config after the other, whether the model loads or is refused."""
    opposite = {name: not value for name, value in change.items() if isinstance(value, bool)}
    folder = random_successor(tmp_path / "model", family, **SMALL, **opposite)
    fields = json.loads((folder / "config.json").read_text())

    def outcome(**options: bool) -> Any:
        try:
            return np.asarray(minibert.load(folder, **options)(IDS % 40).last_hidden_state).tobytes()
        except ValueError as error:
            return str(error)

    seen = set()
    for some in ({}, change, {}):
        (folder / "config.json").write_text(json.dumps({**fields, **some}))
        seen.add(expected := outcome())
        assert outcome(shared_weights=True) == expected
    assert len(seen) == 2


@pytest.mark.parametrize("gone", ["the file", "its part"])
def test_a_cache_that_is_cleared_while_a_model_loads(
    gone: str, small_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, times = os.replace, Counter[str]()

    def cleared(*names: Any, **folders: Any) -> None:
        times[gone] += 1
        for when in ("its part", "the file"):
            if gone == when and times[gone] == 1:
                delete_files(cache, shared_weights.FILE_NAMES)
            if when == "its part":
                replace(*names, **folders)

    monkeypatch.setattr(os, "replace", cleared)
    model = BertModel.from_pretrained(small_folder, shared_weights=True)
    assert (model.shared_weights, len(mapped_files(cache)), times[gone]) == (True, 1, 2)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MINIBERT_CACHE_DIR": "~/own"}, "own/weights"),
        ({"XDG_CACHE_HOME": "~/own"}, "own/minibert/weights"),
        ({"XDG_CACHE_HOME": ""}, ".cache/minibert/weights"),
        ({"XDG_CACHE_HOME": "", "HOME": ""}, None),
        ({"XDG_CACHE_HOME": "relative"}, None),
    ],
)
@pytest.mark.skipif(os.name != "posix", reason="HOME does not name the user's folder on this system")
def test_the_folder(
    variables: dict[str, str], expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"HOME": str(tmp_path)} | variables).items():
        monkeypatch.setenv(name, value)
    assert shared_weights.shared_folder() == (expected and tmp_path / expected)


@pytest.mark.parametrize("failure", ["no folder", "full disk", "others"])
def test_failures_are_warned_of(failure: str, small_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.mkdir(parents=True)
    if failure == "no folder":
        cache.write_text("a file")
    elif failure == "full disk":
        full = mock.Mock(side_effect=OSError(28, "No space left on device"))
        monkeypatch.setattr("minibert._utils.private_files.write_trusted", full)
    elif not hasattr(os, "geteuid"):
        pytest.skip("files do not have owners on this system")
    else:
        cache.mkdir(mode=0o755)
        cache.chmod(0o777)
    expected = states(BertModel.from_pretrained(small_folder))
    read = Counter[str]()

    def counted(tensor: Any, *arguments: Any) -> None:
        read[tensor.name] += 1
        read_tensor(tensor, *arguments)

    monkeypatch.setattr("minibert.models.loading.read_tensor", counted)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [states(BertModel.from_pretrained(small_folder, shared_weights=True)) for _ in range(2)]
    assert set(read.values()) == {2}  # once in each load
    assert found == [expected, expected]
    (warning,) = caught
    assert (warning.category, warning.filename) == (RuntimeWarning, __file__)
    assert str(cache) in str(warning.message)


# --- choices ----------------------------------------------------------------------------------------------------------


def test_where_the_choice_comes_from(small_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBERT_SHARED_WEIGHTS", "1")
    BertModel.from_pretrained(small_folder, shared_weights=False)
    assert mapped_files(cache) == []
    BertModel.from_pretrained(small_folder)
    assert len(mapped_files(cache)) == 1
    for text in ("0", ""):
        monkeypatch.setenv("MINIBERT_SHARED_WEIGHTS", text)
        BertModel.from_pretrained(small_folder, compute_type="int8")
    assert len(mapped_files(cache)) == 1
    monkeypatch.setenv("MINIBERT_SHARED_WEIGHTS", "yes")
    with pytest.raises(ValueError, match="MINIBERT_SHARED_WEIGHTS='yes'; expected 1 or 0"):
        BertModel.from_pretrained(small_folder)


def test_other_values_and_backends_are_refused(small_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {("shared_weights", TypeError): (1, 0, "yes", "1")}
    check_refused(partial(BertModel.from_pretrained, small_folder), {}, wrong)
    with pytest.raises(ValueError, match="shared_weights=True"):
        BertModel.from_pretrained(small_folder, backend="numpy", shared_weights=True)
    monkeypatch.setenv("MINIBERT_BACKEND", "numpy")
    monkeypatch.setenv("MINIBERT_SHARED_WEIGHTS", "1")
    with pytest.raises(ValueError, match="MINIBERT_SHARED_WEIGHTS=1"):
        BertModel.from_pretrained(small_folder)
    BertModel.from_pretrained(small_folder, shared_weights=False)


def test_the_command_line_has_the_option(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, outputs = str(sentence_model(tmp_path / "sentences")), []
    for option in ([], ["--shared-weights"]):
        assert main(["embed", "the cat", "-m", folder, *option]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    (file,) = mapped_files(cache)
    main(["doctor", "--json"])
    shared = json.loads(capsys.readouterr().out)["shared_weights"]
    assert (shared["folder"], shared["chosen"]) == (str(cache), False)
    (listed,) = shared["files"]
    assert (listed["path"], listed["bytes"]) == (str(file), file.stat().st_size)
    assert "sentences" in listed["title"]


# --- processes --------------------------------------------------------------------------------------------------------

# Loads a model, says that it is ready, waits, and reports what the system says about the mapping.
PROCESS = """
import json, sys
import numpy as np
from minibert import BertModel
model = BertModel.from_pretrained(sys.argv[1], shared_weights=True, num_threads=1)
model(np.full((1, 8), 7))
print("ready", flush=True)
sys.stdin.readline()
found, mine = {}, False
for line in open("/proc/self/smaps"):
    parts = line.split()
    if not parts[0].endswith(":"):
        mine = ".weights" in line
        if mine:
            found["inode"], found["mode"] = parts[4], parts[1]
    elif mine and parts[0] in ("Rss:", "Pss:", "Private_Dirty:", "Private_Clean:"):
        found[parts[0]] = found.get(parts[0], 0) + int(parts[1])
print(json.dumps(found), flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="the system does not report shared memory")
def test_processes_hold_one_copy(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path / "model", hidden_size=256, intermediate_size=1024, num_attention_heads=4)
    BertModel.from_pretrained(folder, shared_weights=True)
    command, pipe = [sys.executable, "-c", PROCESS, str(folder)], subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    found = []
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"  # type: ignore[union-attr]
        for process in processes:  # all of them still have their mapping
            print(file=process.stdin, flush=True)
            found.append(json.loads(process.stdout.readline()))  # type: ignore[union-attr]
    finally:
        for process in processes:
            process.communicate("\n", timeout=300)
    REPORT.append(f"shared weights of 3 processes, kB: {found}")
    assert len({one["inode"] for one in found}) == 1
    for one in found:
        assert one["Private_Dirty:"] == 0
        assert one["Rss:"] > 1000
    # This process, which holds a mapping no more, does not count.
    assert sum(one["Pss:"] for one in found) <= 1.05 * max(one["Rss:"] for one in found)


# Writes into every array that a model gives, as far as it can: through NumPy, torch and a pointer.
WRITER = """
import ctypes, hashlib, sys, warnings
from pathlib import Path
import numpy as np, torch
from minibert import BertForMaskedLM
warnings.simplefilter("ignore")
model = BertForMaskedLM.from_pretrained(sys.argv[1], shared_weights=True, num_threads=1)
weights = model.weights
predictions = weights.head
arrays = [weights.word_embeddings, weights.position_embeddings, weights.token_type_embeddings,
          weights.embeddings_norm.weight, weights.embeddings_norm.bias]
for linear in (predictions.transform, predictions.decoder, weights.layers[0].query_key_value, weights.layers[0].output):
    arrays += [linear.weight, linear.bias, linear.panels]
arrays += [model.get_input_embeddings().weight, *dict(model.named_parameters()).values(), *model.parameters()]
for array in arrays:
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(np.asarray(array))
    tensor += 1
    address = tensor.data_ptr()
    ctypes.memset(address, 1, tensor.nbytes)
print("written", len(arrays))
"""


def test_no_write_into_a_weight_kills_the_process_or_is_seen_by_others(folder_of: Any, cache: Path) -> None:
    """The mapping is private to the process: the pages that it changes become its own."""
    folder = folder_of("BertForMaskedLM")
    model = BertForMaskedLM.from_pretrained(folder, shared_weights=True)
    before = {file: file.read_bytes() for file in mapped_files(cache)}
    expected = np.asarray(model(IDS).logits).tobytes()
    done = python("-c", WRITER, str(folder))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) > 20
    assert {file: file.read_bytes() for file in mapped_files(cache)} == before
    assert np.asarray(model(IDS).logits).tobytes() == expected
