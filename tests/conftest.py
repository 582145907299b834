"""Fixtures that many files use, and what the end of a test run prints besides pytest's own summary."""

from __future__ import annotations

import functools
import gc
import os
import signal
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from minibert import BertModel, BertTokenizer, SentenceTransformer
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL
from tests.support import outcomes
from tests.support.checkpoints import locate_minilm, random_checkpoint, sentence_model
from tests.support.random_checkpoints import VOCABULARY, random_model, save_vocabulary
from tests.support.report import REPORT
from tests.support.text_data import VARIABLE

# A shell starts what runs in its background with Ctrl-C ignored, and every process that the tests start would inherit
# that: an interrupt would have no effect there. A handler, unlike "ignored", is not inherited.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# --- models that many files use; no test changes them -----------------------------------------------------------------


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The real model's files."""
    return locate_minilm()


@pytest.fixture(scope="session")
def minilm(minilm_folder: Path) -> BertModel:
    return BertModel.from_pretrained(minilm_folder)


@pytest.fixture(scope="session")
def tokenizer(minilm_folder: Path) -> BertTokenizer:
    return BertTokenizer.from_pretrained(minilm_folder)


@pytest.fixture(scope="session")
def minilm_sentences() -> SentenceTransformer:
    return SentenceTransformer(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def their_minilm(minilm_folder: Path) -> Any:
    """The real model in transformers."""
    from transformers import BertModel

    return BertModel.from_pretrained(minilm_folder).eval()


@pytest.fixture(scope="session")
def their_tokenizer(minilm_folder: Path) -> Any:
    from transformers import BertTokenizer

    return BertTokenizer.from_pretrained(minilm_folder)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model, of 512 positions."""
    return random_checkpoint(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture(scope="session")
def short_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model that takes 32 tokens, so that many texts are cut. Made without torch, which loads slowly."""
    folder = random_model(tmp_path_factory.mktemp("short") / "model", (24, 2, 3, 40, "gelu"), len(VOCABULARY), 32)
    save_vocabulary(folder, len(VOCABULARY), 32)
    return folder


@pytest.fixture(scope="session")
def short_model(short_folder: Path) -> SentenceTransformer:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has no modules.json")
        return SentenceTransformer(short_folder)


@pytest.fixture(scope="session")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sentence model with prompts."""
    prompts = {"prompts": {"query": "the cat ", "document": "on the mat "}}
    return sentence_model(tmp_path_factory.mktemp("prompted") / "model", config_sentence_transformers=prompts)


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function: name of a class with a head -> a folder with a small random model of it."""

    @functools.cache
    def folder_of(name: str) -> Path:
        from tests.support.head_models import make_model  # it imports torch and transformers

        return make_model(tmp_path_factory.mktemp(name) / "model", name)

    return folder_of


@pytest.fixture(scope="session")
def outcome_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint and the expected results of all programs that outcomes.py runs."""
    return outcomes.make_model(tmp_path_factory.mktemp("model"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-picture", action="store_true", help="make the pictures of .github again (-m browser)")


def pytest_sessionstart() -> None:
    """End the suite if the kernels of this tree were not built, because NumPy would compute in their place."""
    try:
        import minibert.kernels  # noqa: F401
    except ImportError as error:
        pytest.exit(f"{error}: pip install -e '.[test]' builds them.", returncode=2)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share the whole suite between processes (pytest-xdist), unless the command line gives their number.

    Each process imports torch and loads the models again, so a few files are faster in one.
    """
    option = config.option
    if not hasattr(option, "numprocesses") or hasattr(config, "workerinput"):  # no pytest-xdist; a worker itself
        return
    whole = [Path(path).resolve() for path in config.args] == [Path(__file__).parent]
    if option.numprocesses is None and whole and not (option.usepdb or option.collectonly):
        option.numprocesses = min(available_cores(), 4)
    if option.numprocesses:
        option.dist = "worksteal"  # a worker takes neighbouring tests, so that few fixtures are made twice
        # Otherwise torch and NumPy start a thread for each core in each worker. minibert reads none of these.
        for name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the tests start hundreds of Python processes


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the million objects of torch, transformers and the tests themselves out of each search for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the lines of a worker of pytest-xdist to the process that prints them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["report"] = REPORT


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    REPORT.extend(getattr(node, "workeroutput", {}).get("report", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REPORT:
        terminalreporter.section("counted and measured")
        for line in REPORT:
            terminalreporter.write_line(line)
    without_data = [report for report in terminalreporter.stats.get("skipped", []) if VARIABLE in str(report.longrepr)]
    terminalreporter.write_line(f"{len(without_data)} tests skipped for want of {VARIABLE}")
