"""A repository on the hub: its files come from the hub's cache, or else from the network.

Only this module imports huggingface_hub.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from minibert._utils.files import is_plain_name, printable, within
from minibert._utils.reporting import warn_caller
from minibert.errors import DownloadError

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
WEIGHT_FILES = (WEIGHTS, WEIGHTS_INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
"""The files of which a model has at least one; the first one is used."""

# Files that some models have, and that change the result there, in the order in which they are asked for.
_SETTINGS = (
    *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "tokenizer.json", "added_tokens.json"),
)


_Result = TypeVar("_Result")

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
    hub. Other programs that fill a cache note nothing. So without a network, a file that the cache does not know
    counts as absent if the cache has a config.json with weights, and the model can do without the file; one warning
    says so.

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
            ollama = f" With a colon it is a name of Ollama: give 'ollama:{self.repo_id}'."
            raise ValueError(
                f"{self.repo_id!r} is neither an existing folder nor a hub id such as 'org/name'."
                f"{ollama if re.fullmatch(r'[^:]+:[^:/]+', self.repo_id) else ''}"
            )
        for name, kinds in (("revision", str | None), ("token", str | bool | None)):
            if not isinstance(getattr(self, name), kinds):
                raise TypeError(f"{name} is a {type(getattr(self, name)).__name__}; expected a str or None.")
        if self.revision is not None and not is_plain_name(self.revision):  # it becomes a part of a path in the cache
            raise ValueError(f"revision {self.revision!r} is not a branch, tag or commit.")
        if isinstance(self.token, str) and not re.fullmatch("[!-~]+", self.token):  # the message does not show it
            raise ValueError("token is empty or holds spaces or characters that no access token has.")
        if self.cache_dir is not None:
            self.cache_dir = str(Path(os.path.expanduser(self.cache_dir)))
        self._branch, self._commit, self._asked_hub, self._warned = self.revision or "main", "", False, False

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

    @property
    def _folder(self) -> Path:
        """The repository's folder in the cache."""
        return Path(self._cache, f"models--{self.repo_id.replace('/', '--')}")

    def is_cached(self) -> bool:
        """Return whether the cache holds a model: both its config and its weights."""
        # Importing most of the client takes longer than loading a small model; a check of the folder does not need it.
        if not os.path.lexists(self._folder):
            return False
        return all(isinstance(self._lookup(name), str) for name in ("config.json", WEIGHTS))

    def find(self, filename: str, *, needed: bool = False) -> Path | None:
        """Return the local path of a file; None if the hub, or its cache, says that there is no such file.

        Without a network, None also means that the cache does not know it, unless the file is `needed`.
        """
        path = self._lookup(filename)
        if path is not None:
            return Path(path) if isinstance(path, str) else None
        listed = self._cached_listing()
        known = listed is not None and filename not in listed
        assumed = listed is None and not needed and bool(self._offline()) and self._counts_as_absent(filename)
        return None if known or assumed else self._download(filename)

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
        if not self._commit and self._branch == "main" and self._offline():
            noted = any(path.is_file() for path in (self._folder / "refs").rglob("*"))
            if not noted and len(commits := self._snapshots()) == 1:  # of one snapshot alone, it can only be the commit
                self._fix(commits[0])
        return self._commit

    def _snapshots(self) -> list[str]:
        """Return the commits of which the cache has files."""
        places = (self._folder / "snapshots").glob("*")
        return sorted(place.name for place in places if _COMMIT.fullmatch(place.name) and place.is_dir())

    def _counts_as_absent(self, filename: str) -> bool:
        """Return whether a file of which the cache knows nothing counts as absent; warn if that may change the result.

        A file of weights counts as absent if another one is beside it, and any other file if there are weights.
        """
        snapshot = self._folder / "snapshots" / self._commit
        if not self._commit or os.path.lexists(snapshot / filename):  # a link whose target was not copied
            return False
        files = [path for path in snapshot.rglob("*") if path.is_file()]
        weights = {path.parent for path in files if path.name in WEIGHT_FILES}
        models = weights & {path.parent for path in files if path.name == "config.json"}
        asked = snapshot / filename
        if not (asked.parent in models if asked.name in WEIGHT_FILES else models):
            return False
        if asked.name in _SETTINGS and not self._warned:
            self._warned, there = True, {path.name for path in files}
            lacking = [name for name in _SETTINGS[_SETTINGS.index(asked.name) :] if name not in there]
            warn_caller(
                f"The hub cache ({self._cache}) does not say whether these are files of {self.repo_id}: "
                f"{', '.join(lacking)}. They count as absent, because the network is not used. If the model has one "
                f"of them, the result can differ: fetch it with `hf download {self.repo_id}` where there is a network."
            )
        return True

    def _fix(self, commit: str) -> None:
        """Use this commit from now on, unless a commit is already fixed."""
        if not self._commit:
            import logging  # it takes 4 ms of a start

            self._commit = commit
            logging.getLogger("minibert").info("%s: revision %s is commit %s", self.repo_id, self._branch, commit)

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

        The client asks once more; a server that then gives other names is not noticed.
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

    def _offline(self) -> str:
        """Return the reason why the network must not be used; "" if it may be used."""
        from huggingface_hub import is_offline_mode

        if self.local_files_only:
            return "local_files_only=True"
        return "HF_HUB_OFFLINE is set" if is_offline_mode() else ""

    def _refuse_offline(self, lacking: str) -> None:
        """Raise a `DownloadError` that says what the cache lacks, if the network must not be used."""
        if not (reason := self._offline()):
            return
        has = f"{self.repo_id} is neither a folder nor in the hub cache ({self._cache})"
        if self._commit in (commits := self._snapshots()):
            snapshot = self._folder / "snapshots" / self._commit
            if not any(path.name in WEIGHT_FILES and path.is_file() for path in snapshot.rglob("*")):
                fetched = sum(path.stat().st_size for path in self._folder.glob("blobs/*.incomplete"))
                part = f", of which {fetched:,} bytes were fetched," if fetched else ""
                lacking = f"weights ({WEIGHTS}){part}"  # what the user lacks first, whatever file was asked for
            has = f"The hub cache ({self._cache}) does not have the {lacking} of {self.repo_id}"
        elif commits:
            has += f" at revision {self._branch!r}. The cache has {', '.join(commits[:8])}: give one as revision="
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
