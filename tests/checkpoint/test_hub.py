"""Models on the hub: names, commits, the cache, work without a network, a hub that fails, answers that are paths."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.checkpoint.files import locate
from minibert.errors import DownloadError, ModelFormatError
from tests.support.fake_hub import CONFIG, FILES, FakeHub, index, running_hub, write
from tests.support.marks import unix

NAME = "org/model"
FOLDER = "models--org--model"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub() as server:
        server.commit(NAME, FILES)
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "a" / "b" / "cache"


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


# --- names --------


_NAMES = [
    *("", "a\0b", "/no/such/folder", "..nothing", "~no-such-user/x", "C:\\models\\bert", "org/name/", Path("org/name")),
    *(
        "a/b/c",
        "org//name",
        "org/na me",
        "org/name\n",
        "-x",
        "org/name.git",
        "a--b",
        "a..b",
        "https://huggingface.co/x",
    ),
    *("日本語", "org/\ud800", "org/\x1b[31m", "x" * 97),
]
_REVISIONS = ["", "..", "../main", "/main", "a//b", "a\\b", "a:b", "a\0", "./x"]
BAD_ARGUMENTS: list[tuple[str, type[Exception], str, list[Any]]] = [
    ("name_or_path", ValueError, "does not exist|neither an existing folder nor a hub id", _NAMES),
    ("name_or_path", TypeError, "named by a str", [None, 3, b"folder", ["folder"]]),
    ("revision", ValueError, "revision", _REVISIONS),
    ("revision", TypeError, "revision", [3]),
    ("cache_dir", TypeError, "str", [3, b"x"]),
    ("token", TypeError, "token", [3]),
    ("token", ValueError, r"^((?!cret).)*$", ["", "hf_sec\nret", "hf_sécret"]),
    ("subfolder", TypeError, "subfolder", [None, 3]),
    ("subfolder", ModelFormatError, "file", ["../x", "/x"]),
]


@pytest.mark.parametrize(("argument", "error", "word", "values"), BAD_ARGUMENTS)
def test_an_unusable_argument_is_refused(argument: str, error: type[Exception], word: str, values: list[Any]) -> None:
    for value in values:
        arguments = {argument: value} if argument != "name_or_path" else {}
        with pytest.raises(error, match=word):
            locate("org/name" if arguments else value, **arguments)


@unix
def test_what_is_not_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {**FILES, "bert-base-uncased": b""})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    files = (tmp_path / "config.json", str(tmp_path / "model.safetensors"), "bert-base-uncased")
    for given in (*files, tmp_path / "pipe", tmp_path / "dangling", "/dev/null"):
        with pytest.raises(ValueError, match="is a file" if given in files else "not a folder"):
            locate(given)


def test_a_folder_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "org" / "name", FILES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("org/name", "org/name/", "./org/name", Path("org/name"), tmp_path / "org" / "name", "~/org/name"):
        files = locate(given)
        assert files.require("config.json").read_bytes() == CONFIG
        assert files.source.startswith("folder ")


# --- downloads --------


def test_files_come_from_the_hub_at_one_commit(hub: FakeHub, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "minibert")
    commit = hub.repositories[NAME]["main"]
    files = locate(NAME, cache_dir=cache)
    assert files.source == f"hub repository {NAME} at main"
    assert files.require("config.json").read_bytes() == CONFIG
    # main changes now; the other files are those of the first answer's commit
    hub.commit(NAME, {"config.json": b"new", "vocab.txt": b"new", "model.safetensors": b"new"})
    assert files.find("vocab.txt") is None
    assert files.require("1_Pooling/config.json").read_bytes() == b"{}"
    assert [path.read_bytes() for path in files.checkpoint()] == [FILES["model.safetensors"]]
    assert files.source == f"hub repository {NAME} at {commit[:7]}"
    assert commit in caplog.text
    paths = [path for _, path, _ in hub.asked]
    first = next(number for number, path in enumerate(paths) if f"/resolve/{commit}/" in path)
    assert all(path.endswith("/resolve/main/config.json") for path in paths[:first])
    assert all(f"/resolve/{commit}/" in path for path in paths[first:])


def test_a_cached_revision_needs_no_network(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(**arguments: Any) -> tuple[object, ...]:
        files = locate(NAME, cache_dir=cache, **arguments)
        return files.find("config.json"), files.find("vocab.txt"), files.checkpoint(), files.index()

    first = load()
    hub.commit(NAME, {"config.json": b"{}"})  # main changes; a cached revision does not
    hub.asked.clear()
    for arguments in ({}, {"local_files_only": True}, {"token": "hf_x"}):
        assert load(**arguments) == first
    go_offline(monkeypatch)
    assert load() == first
    assert hub.asked == []


def test_the_commit_stays(hub: FakeHub, cache: Path) -> None:
    """An absent file fixes it too; neither main nor another process that writes into the cache changes it."""
    commit = hub.repositories[NAME]["main"]
    files = locate(NAME, cache_dir=cache)
    assert files.find("modules.json") is None
    hub.commit(NAME, {"config.json": b"new", "modules.json": b"[]", "model.safetensors": b"other weights"})
    assert files.source == f"hub repository {NAME} at {commit[:7]}"
    assert files.require("config.json").read_bytes() == CONFIG
    assert files.find("modules.json") is None
    [weights] = locate(NAME, cache_dir=cache).checkpoint()  # a later load completes the cached commit
    assert weights.read_bytes() == FILES["model.safetensors"]
    write(cache / FOLDER, {"refs/main": b"b" * 40})
    assert commit in str(files.require("1_Pooling/config.json"))


def test_branch_tag_commit_and_pull_request_as_revision(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {hub.repositories[NAME]["main"]: CONFIG}
    for revision in ("v1.0", "feature/x", "refs/pr/1"):
        contents[revision] = revision.encode()
        contents[hub.commit(NAME, {"config.json": revision.encode()}, revision=revision)] = revision.encode()
    for _ in range(2):
        for revision, content in contents.items():
            assert locate(NAME, cache_dir=cache, revision=revision).require("config.json").read_bytes() == content
        go_offline(monkeypatch)


def test_subfolders_and_shards(hub: FakeHub, cache: Path) -> None:
    shards = {"a/b/model-2.safetensors": b"2", "a/b/model-1.safetensors": b"1"}
    names = ("model-2.safetensors", "model-1.safetensors")
    hub.commit(NAME, {"a/b/config.json": CONFIG, "a/b/model.safetensors.index.json": index(*names), **shards})
    for files in (locate(NAME, cache_dir=cache, subfolder="a/b"), locate(NAME, cache_dir=cache).subfolder("a/b")):
        assert files.require("config.json").read_bytes() == CONFIG
        assert files.source.endswith("subfolder a/b")
        assert files.index() == {"t0": names[0], "t1": names[1]}
        assert [path.read_bytes() for path in files.checkpoint()] == [b"2", b"1"]
        with pytest.raises(ModelFormatError, match=r"has no vocab\.txt\. It has: config\.json, model-1\.safetensors, "):
            files.require("vocab.txt")


@pytest.mark.parametrize(
    ("files", "used"),
    [
        (FILES, "model.safetensors"),
        ({"model.safetensors.index.json": index("a.safetensors"), "a.safetensors": b"w"}, "a.safetensors"),
        ({}, "pytorch_model.bin"),
    ],
)
def test_pytorch_model_bin_is_fetched_only_without_safetensors(
    hub: FakeHub, cache: Path, files: dict[str, bytes], used: str
) -> None:
    hub.commit(NAME, {**files, "pytorch_model.bin": b"zip"})
    [weights] = locate(NAME, cache_dir=cache).checkpoint()
    assert weights.name == used
    fetched = {path.rpartition("/")[2] for method, path, _ in hub.asked if method == "GET"}
    assert fetched - {"model.safetensors.index.json"} == {used}
    assert locate(NAME, cache_dir=cache, local_files_only=True).checkpoint() == [weights]


def test_the_token_is_sent(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.tokens[NAME] = "hf_secret"
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(cache / "no token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for token in (None, False, True, "hf_wrong"):
        with pytest.raises(DownloadError, match=r"does not give .* HF_TOKEN or pass token=") as caught:
            locate(NAME, cache_dir=cache, token=token).find("config.json")
        assert "hf_wrong" not in str(caught.value)
    assert locate(NAME, cache_dir=cache, token="hf_secret").require("config.json").read_bytes() == CONFIG
    assert hub.asked[-1][2] == "hf_secret"


# --- the cache, without a network --------


@pytest.mark.parametrize("by_argument", [False, True])
def test_offline_without_the_model(cache: Path, monkeypatch: pytest.MonkeyPatch, by_argument: bool) -> None:
    if not by_argument:
        go_offline(monkeypatch)
    with pytest.raises(DownloadError, match=r"org/model is neither a folder nor in the hub cache .* Check the name"):
        locate(NAME, cache_dir=cache, local_files_only=by_argument).require("config.json")


def test_offline_an_unknown_file_is_not_taken_for_absent(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = locate(NAME, cache_dir=cache)
    files.require("config.json")
    assert files.find("known-absent.json") is None
    go_offline(monkeypatch)
    files = locate(NAME, cache_dir=cache)
    assert files.find("known-absent.json") is None
    for filename in ("modules.json", "model.safetensors"):  # the weights are what the user lacks first
        with pytest.raises(DownloadError, match=r"weights \(model\.safetensors\) of org/model"):
            files.find(filename)
    write(cache / FOLDER / "blobs", {"b" * 64 + ".incomplete": b"w" * 1500})
    with pytest.raises(DownloadError, match=r"weights.*1,500 bytes were fetched"):
        files.find("modules.json")
    monkeypatch.undo()
    huggingface_hub.snapshot_download(NAME, cache_dir=cache, endpoint=hub.endpoint)  # as `hf download` does
    go_offline(monkeypatch)
    files = locate(NAME, cache_dir=cache)
    assert files.find("modules.json") is None
    assert len(files.checkpoint()) == 1
    with pytest.raises(ModelFormatError, match=r"has no vocab\.txt\. It has: 1_Pooling/config"):
        files.require("vocab.txt")


# --- a cache that another program filled --------

COMMIT = "c" * 40
SETTINGS = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "tokenizer_config.json")
SETTINGS += ("special_tokens_map.json", "tokenizer.json", "added_tokens.json")


def lay(
    cache: Path, files: Mapping[str, bytes], *, commit: str = COMMIT, refs: Mapping[str, str] | None = None
) -> Path:
    """Write a snapshot as candle, fastembed and older clients do: without a list of files and marks of absent ones."""
    notes = {"main": commit} if refs is None else refs
    write(cache / FOLDER, {f"refs/{name}": target.encode() for name, target in notes.items()})
    return write(cache / FOLDER / "snapshots" / commit, files)


@pytest.mark.parametrize("by_argument", [False, True])
def test_offline_a_snapshot_alone_is_a_model(cache: Path, monkeypatch: pytest.MonkeyPatch, by_argument: bool) -> None:
    """Optional files that it lacks count as absent; one warning names those that could change the result."""
    if not by_argument:
        go_offline(monkeypatch)
    snapshot = lay(cache, {**FILES, "tokenizer_config.json": b"{}", "vocab.txt": b"a"})
    files = locate(NAME, cache_dir=cache, local_files_only=by_argument)
    assert files.checkpoint() == [snapshot / "model.safetensors"]
    assert files.index() is None
    assert files.find("2_Normalize/config.json") is None  # it would not change the result
    with pytest.warns(UserWarning, match="count as absent") as caught:
        assert [files.find(name) for name in SETTINGS] == [*[None] * 3, snapshot / "tokenizer_config.json", *[None] * 3]
    [warning] = caught
    named = str(warning.message).partition("org/model: ")[2].partition(". ")[0].split(", ")
    assert named == [name for name in SETTINGS if name != "tokenizer_config.json"]
    with pytest.raises(DownloadError, match=r"does not have the 1_Dense/config\.json of org/model, and the network"):
        files.require("1_Dense/config.json")  # modules.json names it
    assert files.require("1_Pooling/config.json") == snapshot / "1_Pooling/config.json"


@pytest.mark.parametrize(("without", "warnings"), [(("tokenizer.json",), 1), (("modules.json", "vocab.txt"), 2)])
def test_a_model_of_a_snapshot_alone(
    cache: Path, minilm_folder: Path, minilm_sentences: SentenceTransformer, without: tuple[str, ...], warnings: int
) -> None:
    shutil.copytree(
        minilm_folder, cache / FOLDER / "snapshots" / COMMIT, ignore=shutil.ignore_patterns(*without), symlinks=True
    )
    with pytest.warns(UserWarning, match=NAME) as caught:
        model = SentenceTransformer(NAME, cache_folder=cache, local_files_only=True)
    assert f"org/model: {without[0]}" in str(caught[0].message)
    assert len(caught) == warnings  # the other one is that of a model without modules.json
    vectors = model.encode(["A cat sleeps."], normalize_embeddings=True)
    assert np.array_equal(vectors, minilm_sentences.encode(["A cat sleeps."]))


def test_a_snapshot_alone_is_completed_where_there_is_a_network(hub: FakeHub, cache: Path) -> None:
    commit = hub.commit(NAME, {**FILES, "modules.json": b"[]"})
    lay(cache, FILES, commit=commit)
    files = locate(NAME, cache_dir=cache)
    assert files.require("modules.json").read_bytes() == b"[]"
    assert files.find("vocab.txt") is None


@pytest.mark.parametrize(
    ("held", "lacking"),
    [
        ({"config.json": CONFIG}, "weights (model.safetensors)"),
        ({"model.safetensors": b"w"}, "modules.json"),
        ({"config.json": CONFIG, "onnx/model.onnx": b"o"}, "weights (model.safetensors)"),  # fastembed
        ({"config.json": CONFIG, "2_Dense/config.json": b"{}", "2_Dense/model.safetensors": b"w"}, "model.safetensors"),
        ({**FILES, "2_Dense/config.json": b"{}"}, "2_Dense/model.safetensors"),
        ({"config.json": CONFIG, "model.safetensors.index.json": index("s-1.safetensors")}, "s-1.safetensors"),
        ({"0_Transformer/config.json": CONFIG, "0_Transformer/pytorch_model.bin": b"w"}, "config.json"),
    ],
)
def test_offline_a_part_of_a_snapshot_is_not_a_model(cache: Path, held: dict[str, bytes], lacking: str) -> None:
    lay(cache, held)
    files = locate(NAME, cache_dir=cache, local_files_only=True)
    find = files.find if lacking == "modules.json" else files.require
    if lacking.rpartition("/")[2].startswith(("model", "s-")) and lacking != "modules.json":
        files = files.subfolder(lacking.rpartition("/")[0])
        find = lambda name: files.checkpoint()[0]  # noqa: E731
    with pytest.raises(DownloadError, match=re.escape(f"does not have the {lacking} of {NAME}")):
        find("modules.json" if lacking.startswith("weights") else lacking)


@unix
def test_offline_a_link_without_its_target_is_not_an_absent_file(cache: Path) -> None:
    snapshot = lay(cache, {**FILES, "pytorch_model.bin": b"zip"})
    for name in ("modules.json", "model.safetensors"):
        (snapshot / name).unlink(missing_ok=True)
        (snapshot / name).symlink_to("../../blobs/" + "b" * 40)
        with pytest.raises(DownloadError, match=f"does not have the {name} of"):
            locate(NAME, cache_dir=cache, local_files_only=True).find(name)


def test_offline_shards_older_layouts_and_known_files(cache: Path) -> None:
    shards = {"model.safetensors.index.json": index("s-1.safetensors"), "s-1.safetensors": b"1"}
    old = {f"0_BERT/{name}": content for name, content in {"config.json": CONFIG, **shards}.items()}
    snapshot = lay(cache, {"modules.json": b"[]", **old})
    write(cache / FOLDER / ".no_exist" / COMMIT, dict.fromkeys([*SETTINGS[1:]], b""))  # no warning is needed
    files = locate(NAME, cache_dir=cache, local_files_only=True)
    assert [files.find(name) for name in SETTINGS] == [snapshot / "modules.json", *[None] * 6]
    assert files.subfolder("0_BERT").checkpoint() == [snapshot / "0_BERT" / "s-1.safetensors"]


def test_offline_revisions_of_snapshots(cache: Path) -> None:
    """A single snapshot without notes is main; of several ones, and for other names, the caller has to give one."""
    snapshot = lay(cache, FILES, refs={})
    for revision in (None, "main", COMMIT):
        files = locate(NAME, cache_dir=cache, local_files_only=True, revision=revision)
        assert files.checkpoint() == [snapshot / "model.safetensors"]
        assert files.source == f"hub repository {NAME} at {COMMIT[:7]} (cached)"
    other = lay(cache, FILES, commit="d" * 40, refs={})
    for revision in (None, "v1", "e" * 40):
        with pytest.raises(DownloadError, match=f"{COMMIT}, {other.name}: give one as revision="):
            locate(NAME, cache_dir=cache, local_files_only=True, revision=revision).find("config.json")
    lay(cache, FILES, refs={"v1": "d" * 40 + "\n"})
    for revision, place in (("v1", other), (COMMIT, snapshot)):
        found = locate(NAME, cache_dir=cache, local_files_only=True, revision=revision).find("config.json")
        assert found == place / "config.json"
    with pytest.raises(DownloadError, match="at revision 'main'"):
        locate(NAME, cache_dir=cache, local_files_only=True).find("config.json")


@pytest.mark.parametrize("note", [b"", b"../../../../etc", b"a" * 41, b"A" * 40])
def test_a_damaged_note_of_the_commit_is_not_used(hub: FakeHub, cache: Path, note: bytes) -> None:
    locate(NAME, cache_dir=cache).require("config.json")
    write(cache / FOLDER, {"refs/main": note})
    with pytest.raises(DownloadError, match="neither a folder nor"):
        locate(NAME, cache_dir=cache, local_files_only=True).find("config.json")
    assert locate(NAME, cache_dir=cache).require("config.json").read_bytes() == CONFIG
    assert locate(NAME, cache_dir=cache, local_files_only=True).find("config.json") is not None


def test_an_unreadable_cache_is_a_download_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / FOLDER, {"refs/main": b"a" * 40, "snapshots/" + "a" * 40 + "/x": b""})

    def refuse(*arguments: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    for owner, function in ((os, "listdir"), (Path, "read_text")):
        monkeypatch.setattr(owner, function, refuse)
        with pytest.raises(DownloadError, match=r"hub cache .* cannot be used .*Permission denied"):
            locate(NAME, cache_dir=tmp_path, local_files_only=True).find("config.json")


# --- a hub that fails --------

LOGIN = (200, {"Content-Type": "text/html", "ETag": '"x"'}, b"<html>Welcome to the hotel</html>")


MOVED = {"Location": "/org/model/resolve/main/config.json"}
FAILURES: list[tuple[str, str, list[tuple[Any, ...]]]] = [
    *(("HEAD", f"status {status}", [(status,)]) for status in (404, 429, 503)),
    ("HEAD", "does not give", [(401,), (403,), (403, {"X-Error-Code": "GatedRepo"})]),
    ("HEAD", "does not give", [(404, {"X-Error-Code": f"{what}NotFound"}) for what in ("Repo", "Revision")]),
    ("HEAD", "could not be fetched", [LOGIN, (200, {"X-Repo-Commit": "a" * 40}), (302, MOVED)]),
    ("GET", "status", [(500,), (404,)]),
    ("GET", "does not give", [(403,)]),
    ("GET", "could not be fetched", [(200, {}, b"{}"), (200, {}, b"0123456789", 1000)]),
    ("GET", "could not be fetched", [(302, {"Location": "http://127.0.0.1:9/x"})]),
]


@pytest.mark.parametrize(("method", "message", "answers"), FAILURES)
def test_a_failing_hub_is_a_download_error(
    hub: FakeHub, cache: Path, method: str, message: str, answers: list[tuple[Any, ...]]
) -> None:
    for answer in answers:
        hub.answers[method] = answer
        with pytest.raises(DownloadError, match=f"{NAME}.*{message}|{message}.*{NAME}") as caught:
            locate(NAME, cache_dir=cache).require("config.json")
        assert caught.value.__cause__ is not None
    hub.answers.clear()  # a part of the file is not used as the file afterwards
    assert locate(NAME, cache_dir=cache).require("config.json").read_bytes() == CONFIG


def test_a_busy_hub_is_asked_again(hub: FakeHub, cache: Path) -> None:
    def recover() -> None:
        if len(hub.asked) > 2:
            hub.answers.clear()

    hub.answers = {"resolve": recover, "HEAD": (503,)}
    assert locate(NAME, cache_dir=cache).require("config.json").read_bytes() == CONFIG


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DownloadError, "cannot be used .*No space left"),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), DownloadError, "could not be fetched.*timed out"),
        (RuntimeError("what is this?\nmore"), DownloadError, r"could not be fetched.*RuntimeError: what is this\?\)"),
        (ValueError(), DownloadError, "could not be fetched.*ValueError: no message"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
    ],
)
def test_any_exception_of_the_client_is_a_download_error(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, kind: Any, message: str
) -> None:
    def fail(*arguments: Any, **more: Any) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    with pytest.raises(kind, match=message):
        locate(NAME, cache_dir=cache).find("config.json")


# --- answers that are paths --------

TAGS = (
    *("{outside}/x.pth", "../../../../outside/x.pth", "a/b", "..\\..\\x", "C:x", "x:stream", ".", "...", "x.", "-x"),
    *("a b", "a" * 129, "caf\xe9", "%2e%2e%2fx", "~"),
)
COMMITS = ("{outside}", "../../../../outside", "a" * 39, "A" * 40, "main", "a" * 40 + "/..")


@pytest.mark.parametrize(
    ("status", "header", "value"),
    [
        *((200, header, value) for header in ("ETag", "X-Linked-ETag") for value in TAGS),
        *((status, "X-Repo-Commit", value) for status in (200, 404) for value in COMMITS),
        (200, "X-Xet-Hash", "../../../outside"),
    ],
)
def test_an_answer_that_is_a_path_writes_nothing(
    hub: FakeHub, cache: Path, tmp_path: Path, status: int, header: str, value: str
) -> None:
    (tmp_path / "outside").mkdir()
    value = value.format(outside=tmp_path / "outside") if "{" in value else value
    headers = {"X-Repo-Commit": "a" * 40, "ETag": '"abc"', "X-Xet-Refresh-Route": f"{hub.endpoint}/xet"}
    headers |= {header: f'"{value}"' if "E" in header else value}
    hub.answers["resolve"] = (
        status,
        {"X-Error-Code": "EntryNotFound", **headers} if status == 404 else headers,
        CONFIG,
    )
    with pytest.raises(DownloadError, match=r"could be a path|could not be fetched"):
        locate(NAME, cache_dir=cache).find("config.json")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert {method for method, path, _ in hub.asked if "/resolve/" in path} == {"HEAD"}  # the client asks more


@pytest.mark.parametrize("tag", ["a", "0" * 40, "f" * 64, "A.b_c-1"])
def test_a_plain_tag_is_taken(hub: FakeHub, cache: Path, tag: str) -> None:
    hub.answers["HEAD"] = (200, {"X-Repo-Commit": hub.repositories[NAME]["main"], "ETag": f'W/"{tag}"'}, CONFIG)
    assert locate(NAME, cache_dir=cache).require("config.json").read_bytes() == CONFIG
    assert (cache / FOLDER / "blobs" / tag).read_bytes() == CONFIG


def test_the_answer_to_the_download_itself_names_no_file(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    evil = {"X-Repo-Commit": "../../x", "ETag": f'"{tmp_path}/x"', "X-Linked-ETag": f'"{tmp_path}/y"'}
    hub.answers["GET"] = (200, evil | {"Content-Disposition": f'attachment; filename="{tmp_path}/z"'}, CONFIG)
    assert locate(NAME, cache_dir=cache).require("config.json").read_bytes() == CONFIG
    assert [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(cache)] == []
