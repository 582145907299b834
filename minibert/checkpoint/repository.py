"""A repository of the hub at one commit: its cache first, then the network. The only import of huggingface_hub."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from minibert._utils.files import os_reason, printable, within, write_whole
from minibert.checkpoint.hub_answers import UnsafeAnswerError, checked_answers
from minibert.checkpoint.time_limit import SlowAnswerError, within_limit
from minibert.errors import DownloadError, ModelFormatError

__all__ = ["PICKLES", "WEIGHTS", "WEIGHTS_INDEX", "HubRepository", "only_a_pickle"]

logger = logging.getLogger("minibert")

Result = TypeVar("Result")

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

# The hub's own bot, and the title it gives to its pull requests. Anybody may open a request with this title.
_CONVERSION_AUTHOR = "SFconvertbot"
_CONVERSION_TITLE = "Adding `safetensors` variant of this model"
_CONVERSION_SPACE = "https://huggingface.co/spaces/safetensors/convert"
# clone() is needed because tied weights share memory, which a safetensors file cannot express.
_CONVERSION_COMMAND = (
    'python -c "import glob, torch; from safetensors.torch import save_file; '
    "save_file({name: tensor.clone().contiguous() for file in sorted(glob.glob('pytorch_model*.bin')) "
    "for name, tensor in torch.load(file, map_location='cpu', weights_only=True).items()}, "
    "'model.safetensors', metadata={'format': 'pt'})\""
)

_COMMIT = re.compile("[0-9a-f]{40}")
_PLAIN_ID = re.compile("(?=.{1,96}$)(WORDS/)?WORDS(?<![.]git)".replace("WORDS", "[A-Za-z0-9]+([-_.][A-Za-z0-9]+)*"))


class HubRepository:
    """A repository of the hub at one commit; files come from its cache, or else from the network.

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
        self._repo_id = _checked_repo_id(repo_id)
        self._revision = _checked_revision(revision)
        self._cache_dir = None if cache_dir is None else str(_checked_cache_dir(cache_dir))
        self._token = _checked_token(token)
        self._local_files_only = local_files_only
        self._remedy = remedy  # a sentence on another source of the model, for messages if the hub cannot be reached
        self._commit: str | None = None
        self._asked_hub = False

    @property
    def source(self) -> str:
        """The repository and its commit in words, for messages."""
        if self._commit is None:
            return f"hub repository {self._repo_id} at {self._revision}"
        return f"hub repository {self._repo_id} at {self._commit[:7]}" + ("" if self._asked_hub else " (cached)")

    def is_cached(self) -> bool:
        """Return whether the cache holds a model: both its config and its weights."""
        from huggingface_hub import constants

        # Importing most of the client takes longer than loading a small model; a check of the folder does not need it.
        folder = os.path.join(self._cache_dir or constants.HF_HUB_CACHE, f"models--{self._repo_id.replace('/', '--')}")
        if not os.path.lexists(folder):
            return False
        return self._cached("config.json") is not None and self._cached(WEIGHTS) is not None

    def find(self, filename: str) -> Path | None:
        """Return the local path of a file; None if the hub, or its cache, says that there is no such file."""
        path = self._cached(filename)
        if path is not None or self._known_absent(filename):
            return path
        return self._download(filename)

    def names(self, prefix: str) -> list[str]:
        """List the files under a prefix, or all for ""."""
        listed = self._cached_listing()
        if listed is None:
            from huggingface_hub import list_repo_files

            self._refuse_offline(f"no list of the files of {self.source}")
            revision = self._commit or self._revision
            listed = self._ask("the list of files", list_repo_files, revision=revision, token=self._token)
        return within(prefix, listed)

    # --- the cache ---

    def _fixed_commit(self) -> str | None:
        """Return the commit in use; fix it first if the cache knows the revision."""
        if self._commit is None:
            self._fix(self._cached_commit(self._revision))
        return self._commit

    def _fix(self, commit: str | None) -> None:
        """Use this commit from now on, unless a commit is already fixed."""
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
        # Any other note is damaged. Then the hub is asked, and its client writes the note again.
        return commit if _COMMIT.fullmatch(commit) else None

    def _lookup(self, filename: str) -> object:
        """Ask the cache for a file; return its path, the client's mark of a file known to be absent, or None."""
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

        reason = os_reason(error) if isinstance(error, OSError) else error.reason
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
        """Read the list of the repository's files, if `hf download` (snapshot_download) has stored it in the cache."""
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
        """Fetch a file at the fixed commit, or fix the commit; None if the hub says that there is no such file."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import RemoteEntryNotFoundError

        self._refuse_offline(f"no {filename} of {self.source}, and does not know that there is none")
        download: Callable[..., str | None] = hf_hub_download

        def fetch(*arguments: Any, **options: Any) -> str | None:
            try:
                return download(*arguments, **options)
            except RemoteEntryNotFoundError:
                return None

        revision = self._commit or self._revision
        with checked_answers():
            fetched = self._ask(
                filename, fetch, filename, revision=revision, cache_dir=self._cache_dir, token=self._token
            )
        path = None if fetched is None else Path(fetched)
        self._asked_hub = True
        if path is not None:
            self._refuse_outside(path)
        if path is None:
            self._fixed_commit()  # a 404 names the commit too, and the client has noted the commit in the cache
        else:
            self._fix(path.parts[-2 - filename.count("/")])  # .../snapshots/<commit>/<filename>
        return path

    def _refuse_outside(self, path: Path) -> None:
        """Refuse a file whose path, with all links followed, is not in the cache."""
        from huggingface_hub import constants

        cache = Path(self._cache_dir or constants.HF_HUB_CACHE)
        repository = cache / f"models--{self._repo_id.replace('/', '--')}"
        # The cache, a repository in it, or its blobs may be links, for example to another disk.
        roots = [folder.resolve() for folder in (cache, repository, repository / "blobs")]
        if not any(path.resolve().is_relative_to(root) for root in roots):
            raise DownloadError(
                f"{path} leads out of the hub cache, to {path.resolve()}; the hub's client does not make such links. "
                f"Delete {repository} and load again."
            )

    def _refuse_offline(self, lacking: str) -> None:
        """Raise a `DownloadError` that says what the cache lacks, if the network must not or cannot be used."""
        from huggingface_hub import constants, is_offline_mode

        if self._local_files_only:
            reason = "local_files_only=True"
        elif is_offline_mode():
            reason = "HF_HUB_OFFLINE is set"
        else:
            self._refuse_unknown_host(lacking)
            return
        raise DownloadError(
            f"The hub cache ({self._cache_dir or constants.HF_HUB_CACHE}) has {lacking}, and the network is not used "
            f"({reason}). With a network, `hf download {self._repo_id}` fetches the whole model for later use; "
            f"a folder works too.{self._remedy}"
        )

    def _refuse_unknown_host(self, lacking: str) -> None:
        """Raise at once if the host has no address, because the client would try for half a minute."""
        from urllib.request import getproxies

        from huggingface_hub import constants

        host = urlsplit(constants.ENDPOINT).hostname
        if self._asked_hub or host is None or getproxies():
            return
        try:
            socket.getaddrinfo(host, None)  # if the host is a numeric address, no name server is asked
        except OSError as error:
            raise DownloadError(
                f"{self._repo_id} is not a folder. The hub cache has {lacking}, and the hub ({constants.ENDPOINT}) "
                f"could not be reached, because {host} has no address. Correct the name, or check the network."
                f"{self._remedy}"
            ) from error

    def _ask(self, wanted: str, call: Callable[..., Result], *arguments: object, **options: object) -> Result:
        """Call a function of the hub's client for this repository, and turn any exception into a `DownloadError`.

        All exceptions are caught, because not all are documented. For example, a broken transfer raises an exception of
        the client's HTTP library (1.x and 2.x use different ones), and a malformed answer can raise any exception.
        """
        try:
            return within_limit(lambda: call(self._repo_id, *arguments, **options))
        except Exception as error:
            raise DownloadError(self._explained(error, wanted)) from error

    def _explained(self, error: Exception, wanted: str) -> str:
        """Return a message that says what went wrong and what to do, from the client's exception and its causes."""
        from huggingface_hub import constants, errors

        causes = list(_with_causes(error))

        def among(*types: type[BaseException]) -> bool:
            return any(isinstance(cause, types) for cause in causes)

        endpoint = constants.ENDPOINT
        repository = f"the hub repository {self._repo_id}"
        revision = self._commit or self._revision
        status = next((c.response.status_code for c in causes if isinstance(c, errors.HfHubHTTPError)), None)

        unsafe = next((cause for cause in causes if isinstance(cause, UnsafeAnswerError)), None)
        if unsafe is not None:
            return (
                f"{endpoint} answered with {unsafe} for {wanted} of {repository}. This cannot be right: it could be "
                "the path of another file, so nothing was written. Check HF_ENDPOINT."
            )
        if among(SlowAnswerError):
            return (
                f"{endpoint} did not deliver {wanted} of {repository} in time: {causes[-1]}. Check the network "
                "(proxy, HF_ENDPOINT) and try again. A hub that limits the number of requests also makes its client "
                f"wait: HF_TOKEN raises this limit.{self._remedy}"
            )
        if among(errors.LocalTokenNotFoundError):
            return "token=True needs a saved access token and there is none: set HF_TOKEN or run `hf auth login`."
        if among(errors.GatedRepoError):
            return (
                f"Access to {repository} is gated: ask for it at {endpoint}/{self._repo_id}, then set HF_TOKEN (or "
                "pass token=) to a token of the account that has access."
            )
        if among(errors.RepositoryNotFoundError):
            return (
                f"There is no hub repository {self._repo_id}, or it is private; nor is there a folder of this name. "
                "Check the spelling; for a private repository set HF_TOKEN or pass token=."
            )
        if among(errors.DisabledRepoError):
            return f"The hub has disabled access to {repository}. Use another model."
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
            advice = "Try again later." if status >= 500 else "Check HF_ENDPOINT."
            return f"{endpoint} failed to deliver {wanted} of {repository}: status {status}. {advice}{self._remedy}"
        if among(errors.FileMetadataError):
            return (
                f"{endpoint} answered, but not as a hub does, when asked for {wanted} of {repository}. Check whether "
                "the network is behind a login page or a proxy, and check HF_ENDPOINT."
            )
        lines = str(causes[-1]).splitlines() or ["no message"]
        reason = f"({type(causes[-1]).__name__}: {printable(lines[0])})."
        if among(errors.LocalEntryNotFoundError):
            unreachable = f"{endpoint} could not be reached for {wanted} of {repository}: check the network {reason}"
            return unreachable + self._remedy
        if isinstance(error, OSError) and error.errno is not None and not among(ConnectionError, TimeoutError):
            return (
                f"{wanted} of {repository} cannot be stored in the cache "
                f"({self._cache_dir or constants.HF_HUB_CACHE}): {os_reason(error)}. "
                "Free some space, or choose another folder with cache_dir= or HF_HUB_CACHE."
            )
        return (
            f"Fetching {wanted} of {repository} from {endpoint} failed on the way: check the network "
            f"(proxy, HF_ENDPOINT) and try again {reason}{self._remedy}"
        )

    # --- the hub's conversion of a pickle ---

    def converted(self) -> HubRepository | None:
        """Return the repository at the commit of the hub's own safetensors conversion; None if it has no pickle.

        The conversion must be an open pull request of the hub's bot with one commit, based on the head of main, and the
        head of main must be the commit in use. Any other file could be a stranger's, or hold other weights. Source:
        transformers, safetensors_conversion.py, which checks author, title, state and parent in the same way. After
        the download of the weights the conversion is noted in the cache, as refs/minibert/safetensors/<commit>. So the
        next load does not need the network.

        Raises
        ------
        ModelFormatError
            There is a pickle, but no conversion that can be trusted.
        """
        commit = self._fixed_commit()
        note = f"minibert/safetensors/{commit}"
        converted_commit = self._cached_commit(note)
        if converted_commit is None:
            pickle = next((name for name in self.names("") if name in PICKLES), None)
            if pickle is None:
                return None
            self._refuse_offline(f"no safetensors conversion of {self.source}")
            converted_commit = self._conversion_commit(pickle)
        conversion = HubRepository(
            self._repo_id,
            revision=converted_commit,
            cache_dir=self._cache_dir,
            token=self._token,
            local_files_only=self._local_files_only,
        )
        weights = conversion.find(WEIGHTS) or conversion.find(WEIGHTS_INDEX)
        if weights is None:
            raise ModelFormatError(only_a_pickle(self.source, "pytorch_model.bin", " The hub's conversion is empty."))
        logger.info("%s: weights from the hub's safetensors conversion, commit %s", self._repo_id, converted_commit)
        _note_commit(weights.parent.parent.parent / "refs" / note, converted_commit)
        return conversion

    def _conversion_commit(self, pickle: str) -> str:
        """Return the commit of the trusted conversion; a `ModelFormatError` says why there is none."""
        from huggingface_hub import list_repo_commits

        def commits(revision: str) -> list[str]:
            listed = self._ask(f"the history of {revision}", list_repo_commits, revision=revision, token=self._token)
            return [entry.commit_id for entry in listed]

        head = commits("main")[:1]
        if head != [self._commit]:
            remark = f" Only the head of main can be converted by the hub, and {self._commit} is not the head."
            raise ModelFormatError(only_a_pickle(self.source, pickle, remark))
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
        raise ModelFormatError(only_a_pickle(self.source, pickle, remarks))

    def _conversion_requests(self) -> list[tuple[int, str]]:
        """List number and author of each open pull request with the title of a safetensors conversion."""
        from huggingface_hub import Discussion, get_repo_discussions
        from huggingface_hub.errors import HfHubHTTPError

        def fetch(repo_id: str) -> list[Discussion]:
            try:
                return list(
                    get_repo_discussions(
                        repo_id, discussion_type="pull_request", discussion_status="open", token=self._token
                    )
                )
            except HfHubHTTPError as error:
                if error.response.status_code not in (403, 404):
                    raise
                return []  # this repository has no discussions, or this mirror does not support them

        requests = self._ask("the list of pull requests", fetch)
        return [
            (request.num, request.author)
            for request in requests
            if request.is_pull_request and request.status == "open" and request.title == _CONVERSION_TITLE
        ]


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause, the cause of its cause, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def _note_commit(reference: Path, commit: str) -> None:
    """Note a commit in the hub's cache under minibert's reference; without it the next load asks the hub again."""
    try:
        reference.parent.mkdir(parents=True, exist_ok=True)
        write_whole(reference, lambda file: file.write(commit.encode("ascii")))
    except OSError as error:
        logger.debug("%s could not be written: %s", reference, error)


def _checked_repo_id(repo_id: str) -> str:
    """Return a repository id after checking it by the client's rules."""
    if _PLAIN_ID.fullmatch(repo_id):  # certainly valid; importing the client takes a tenth of a second
        return repo_id
    from huggingface_hub import hf_hub_url

    try:
        hf_hub_url(repo_id, "config.json")
    except ValueError as error:
        raise ValueError(
            f"{repo_id!r} is neither an existing folder nor a hub id such as 'org/name' or 'name'."
        ) from error
    return repo_id


def _checked_revision(revision: str) -> str:
    """Return a revision after checking it by git's rules, because it becomes part of a path in the cache."""
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
    """Return a token after checking that a header can hold it; the message does not show the token."""
    if token is not None and not isinstance(token, (str, bool)):
        raise TypeError(f"token must be a str, a bool or None, got {type(token).__name__}.")
    if isinstance(token, str) and not re.fullmatch("[!-~]+", token):
        raise ValueError("token is empty or holds spaces or characters that no access token has.")
    return token


def only_a_pickle(source: str, pickle: str, remarks: str = "") -> str:
    """Return a message that says why a pickle is not read, and names the two remedies."""
    return (
        f"{source} has its weights only as a pickle ({pickle}), which can run any code when opened; minibert never "
        f"opens one and reads {WEIGHTS}.{remarks}\n"
        f"Let the hub convert the repository: {_CONVERSION_SPACE}\n"
        f"or, if you trust the file, convert it in its folder, where torch and safetensors are installed:\n"
        f"{_CONVERSION_COMMAND}\n"
        "and pass that folder."
    )
