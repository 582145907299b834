"""A hub repository at one commit: the cache first, then the network. Only this module imports huggingface_hub."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from minibert._utils.files import printable, within
from minibert.errors import DownloadError

logger = logging.getLogger("minibert")

Result = TypeVar("Result")

_COMMIT = re.compile("[0-9a-f]{40}")
_HASH = re.compile("[0-9a-f]{64}")
# The hub's tags are a SHA-1 or a SHA-256 in hex; mirrors send other ones. Windows takes the name "x." for "x".
_TAG = re.compile(r"[0-9a-zA-Z]([0-9a-zA-Z._-]{0,126}[0-9a-zA-Z])?")
# The client's rules, whose import takes a tenth of a second: no "--" and "..", and names of at most 96 characters.
_REPO_ID = re.compile(r"(?!.*(?:--|\.\.|\.git\Z))(?:\w(?:[\w.-]*\w)?/)?\w(?:[\w.-]{0,94}\w)?", re.ASCII)


class HubRepository:
    """A hub repository at one commit; files come from the cache, or else from the network.

    The first answer, from the cache or the hub, fixes the commit. Every other file is requested at that commit, so a
    model never mixes files of two commits, even if the branch changes meanwhile.

    A file at a commit has three states in the cache: it is there, it is known to be absent, or nothing is known. (The
    client notes each 404 of the hub, and `hf download` notes the whole list of files.) Only the last state needs the
    hub.
    """

    def __init__(
        self,
        repo_id: str,
        *,
        revision: str,
        cache_dir: str | os.PathLike[str] | None,
        token: str | bool | None,
        local_files_only: bool,
        remedy: str = "",
    ) -> None:
        if not _REPO_ID.fullmatch(repo_id):
            raise ValueError(f"{repo_id!r} is neither an existing folder nor a hub id such as 'org/name' or 'name'.")
        _check_revision(revision)
        self._repo_id, self._revision = repo_id, revision
        self._cache_dir = None if cache_dir is None else str(Path(os.path.expanduser(cache_dir)))
        self._token = _checked_token(token)
        self._local_files_only = local_files_only
        self._remedy = remedy  # a sentence on another source of the model, for messages if the hub cannot be reached
        self._commit: str | None = None
        self._asked_hub = False

    @property
    def source(self) -> str:
        """The description of the repository and its commit for messages."""
        if self._commit is None:
            return f"hub repository {self._repo_id} at {self._revision}"
        return f"hub repository {self._repo_id} at {self._commit[:7]}" + ("" if self._asked_hub else " (cached)")

    @property
    def _cache(self) -> str:
        from huggingface_hub import constants

        return self._cache_dir or constants.HF_HUB_CACHE

    def is_cached(self) -> bool:
        """Return whether the cache holds a model: both its config and its weights."""
        # Importing most of the client takes longer than loading a small model; a check of the folder does not need it.
        if not os.path.lexists(os.path.join(self._cache, f"models--{self._repo_id.replace('/', '--')}")):
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
            revision = self._commit or self._revision
            listed = self._ask(
                "list of files", lambda: list_repo_files(self._repo_id, revision=revision, token=self._token)
            )
        return within(prefix, listed)

    # --- the cache ---

    def _fixed_commit(self) -> str | None:
        """Return the commit in use; fix it first if the cache knows the revision."""
        from huggingface_hub import resolve_revision
        from huggingface_hub.errors import RevisionResolutionError

        def resolve() -> str:
            options = {"revision": self._revision, "cache_dir": self._cache_dir}
            try:
                return resolve_revision(self._repo_id, **options, local_files_only=True).resolved
            except RevisionResolutionError:
                return ""

        # Another note than a commit is damaged. Then the hub is asked, and its client writes the note again.
        if self._commit is None and _COMMIT.fullmatch(commit := self._ask("revision", resolve)):
            self._fix(commit)
        return self._commit

    def _fix(self, commit: str) -> None:
        """Use this commit from now on, unless a commit is already fixed."""
        if self._commit is None:
            self._commit = commit
            logger.info("%s: revision %s is commit %s", self._repo_id, self._revision, commit)

    def _lookup(self, filename: str) -> object:
        """Ask the cache for a file; return its path, the client's mark of a file known to be absent, or None."""
        from huggingface_hub import try_to_load_from_cache

        commit = self._fixed_commit()
        if commit is None:
            return None
        where = {"cache_dir": self._cache_dir, "revision": commit}
        return self._ask(filename, lambda: try_to_load_from_cache(self._repo_id, filename, **where))

    def _cached_listing(self) -> list[str] | None:
        """Read the list of the repository's files, if `hf download` (snapshot_download) has stored it in the cache."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        commit = self._fixed_commit()
        if commit is None:
            return None
        try:
            tree = get_cached_repo_tree(self._repo_id, revision=commit, cache_dir=self._cache_dir)
        except CachedRepoTreeNotFoundError:
            return None
        return [file.path for file in tree]

    # --- the network ---

    def _download(self, filename: str) -> Path | None:
        """Fetch a file at the fixed commit, or fix the commit; None if the hub says that there is no such file."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import RemoteEntryNotFoundError

        self._refuse_offline(filename)
        revision = self._commit or self._revision

        def fetch() -> str | None:
            self._check_answer(filename, revision)
            try:
                return hf_hub_download(
                    self._repo_id, filename, revision=revision, cache_dir=self._cache_dir, token=self._token
                )
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

    def _check_answer(self, filename: str, revision: str) -> None:
        """Ask for a file's tag, commit and hash, and refuse those that could be paths: the client makes paths of them.

        A server that gives other names to the client, which asks once more, is not noticed.
        """
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError

        names: list[tuple[str, str | None, re.Pattern[str]]] = []
        for patient in (False, True):  # a hub that answers is asked again, one that cannot be reached is not
            try:
                answer = get_hf_file_metadata(
                    hf_hub_url(self._repo_id, filename, revision=revision), token=self._token, retry_on_errors=patient
                )
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

        if not self._local_files_only and not is_offline_mode():
            return
        reason = "local_files_only=True" if self._local_files_only else "HF_HUB_OFFLINE is set"
        fetch = f"`hf download {self._repo_id}` where there is a network"
        has = f"{self._repo_id} is neither a folder nor in the hub cache ({self._cache})"
        if self._commit is not None:
            has = (
                f"The hub cache ({self._cache}) has only a part of {self._repo_id}: it has no {lacking}, and does not "
                "know whether the model has one"
            )
        raise DownloadError(
            f"{has}, and the network is not used ({reason}). Check the name, or fetch the model with {fetch}."
            f"{self._remedy}"
        )

    def _ask(self, wanted: str, call: Callable[[], Result]) -> Result:
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

        causes = list(_with_causes(error))
        status = next((c.response.status_code for c in causes if isinstance(c, errors.HfHubHTTPError)), None)
        reason = f"({type(causes[-1]).__name__}: {printable((str(causes[-1]) or 'no message').splitlines()[0])})"
        what = f"{wanted} of {self._repo_id}"
        refusals = (errors.LocalTokenNotFoundError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
        if status in (401, 403) or any(isinstance(c, refusals) for c in causes):
            return (
                f"The hub does not give {what} at {self._commit or self._revision} {reason}. Check the name and the "
                "revision; there is no such folder either. A private or gated repository needs the token of an account "
                "that has access: set HF_TOKEN or pass token=."
            )
        if status is not None:
            return (
                f"The hub ({constants.ENDPOINT}) answered the request for {what} with status {status}. Check "
                f"HF_ENDPOINT, or try again in some minutes; a token (HF_TOKEN) raises the limit of requests."
                f"{self._remedy}"
            )
        of_system = isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError)
        if of_system or isinstance(error, UnicodeDecodeError):
            return (
                f"The hub cache ({self._cache}) cannot be used for {what} {reason}. Free some space, delete the "
                "repository's folder there, or choose another cache with cache_dir= or HF_HUB_CACHE."
            )
        return (
            f"{what} could not be fetched from the hub ({constants.ENDPOINT}) {reason}. Check the name (there is no "
            f"such folder), the network, its proxy or login page, and HF_ENDPOINT; then try again.{self._remedy}"
        )


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause, the cause of its cause, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def _check_revision(revision: str) -> None:
    """Check a revision by git's rules, because it becomes part of a path in the cache."""
    if not isinstance(revision, str):
        raise TypeError(f"revision must be a str (branch, tag or commit) or None, got {type(revision).__name__}.")
    plain = revision.isprintable() and not set(revision) & set(" ~^:?*[\\")
    if not plain or any(part in ("", ".") or ".." in part for part in revision.split("/")):
        raise ValueError(f"revision {revision!r} is not a branch, tag or commit.")


def _checked_token(token: str | bool | None) -> str | bool | None:
    """Return a token after checking that a header can hold it; the message does not show the token."""
    if token is not None and not isinstance(token, (str, bool)):
        raise TypeError(f"token must be a str, a bool or None, got {type(token).__name__}.")
    if isinstance(token, str) and not re.fullmatch("[!-~]+", token):
        raise ValueError("token is empty or holds spaces or characters that no access token has.")
    return token
