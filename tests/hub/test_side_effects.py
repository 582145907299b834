"""The side effects of loading: files, network, imports, the terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minibert.checkpoint import hub
from minibert.errors import ModelFormatError
from tests.support import hub_server
from tests.support.hub_files import CONFIG, assert_error, index, write
from tests.support.hub_server import HubServer, Loader
from tests.support.marks import unix


def test_a_folder_load_opens_nothing_outside_and_does_not_import_the_client(
    environment: dict[str, str], tmp_path: Path
) -> None:
    shards = ("a.safetensors", "b.safetensors")
    files = {"config.json": CONFIG, "model.safetensors.index.json": index(*shards), **dict.fromkeys(shards, b"")}
    write(tmp_path / "other", files)
    write(tmp_path / "model", files)
    steps = [
        ("require", "config.json"),
        ("find", "modules.json"),
        ("index",),
        ("checkpoint",),
        ("require", "vocab.txt"),
    ]
    with Loader(environment) as child:
        child.load(str(tmp_path / "other"), *steps)  # so that modules that Python imports late are imported now
        outcome = child.load(str(tmp_path / "model"), *steps, block=True)
    assert_error(outcome, ModelFormatError, "has no vocab.txt")
    assert outcome.connections == 0
    assert not outcome.client_imported
    inside = (tmp_path / "model").resolve()
    assert outcome.opened, "the index must be read"
    assert [path for path in outcome.opened if not Path(path).is_relative_to(inside)] == []


def test_the_http_library_is_not_named() -> None:
    source = Path(hub.__file__).read_text()
    assert "httpx" not in source
    assert not re.search(r"^(from|import) huggingface_hub", source, re.MULTILINE), (
        "it must be imported inside functions only"
    )


@unix
@pytest.mark.parametrize(
    ("settings", "terminal", "expected"),
    [({}, True, True), ({}, False, False), ({"HF_HUB_DISABLE_PROGRESS_BARS": "1"}, True, False)],
)
def test_a_progress_bar_on_a_terminal(
    environment: dict[str, str],
    server: HubServer,
    name: str,
    tmp_path: Path,
    settings: dict[str, str],
    terminal: bool,
    expected: bool,
) -> None:
    import pty
    import termios

    server.add(name, {"model.safetensors": bytes(3_000_000)})
    code = f"from minibert.checkpoint.hub import locate; locate({name!r}, cache_dir={str(tmp_path)!r}).checkpoint()"
    reader, writer = pty.openpty() if terminal else os.pipe()
    if terminal:
        termios.tcsetwinsize(writer, (24, 100))  # without a width the bar is not shown
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=writer,
        cwd=Path(hub.__file__).parent.parent,
        env=hub_server.clean_environment({**environment, **settings}),
    )
    os.close(writer)
    written = b""
    try:
        while piece := os.read(reader, 4096):
            written += piece
    except OSError:  # raised at the end of a terminal
        pass
    os.close(reader)
    output, _ = child.communicate()
    assert child.returncode == 0, written
    assert output == b"", "the bar must go to stderr"
    assert (b"model.safetensors" in written and b"100%" in written) == expected
    assert expected or written == b""
