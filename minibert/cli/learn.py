"""``minibert learn``: the course; write the exercises, check them, and measure how fast they are."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import webbrowser
from pathlib import Path, PurePath
from typing import Any

import minibert
from minibert._utils.files import check_output
from minibert._utils.validation import counted
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.cli.options import add_verb

_MODEL = f"-m, --model MODEL = {DEFAULT_MODEL}: a BERT with GELU: hub id or folder"


def add_verbs(verbs: Any) -> None:
    """Add ``learn`` and its parts to the command line."""
    text = (
        "learn: build BERT yourself: ten exercises that check themselves\nWrite BERT in ten functions, on real weights."
    )
    parts = add_verb(verbs, _check, text).add_subparsers(metavar="PART", required=True)
    start = """start: write the exercises into a new file
        Write the ten exercises, with their formulas and shapes. A file that exists is not overwritten.
        FILE: the file to write: .py, or .ipynb for a notebook
        """
    add_verb(parts, _start, start)
    check = f"""check: check the functions of a file
        Run the functions of a file in a process of its own, compare them with the right values of a real model, and say
        what is wrong. If all are right, compute the vector of a text with them. The exit code is 0 if all are right.
        FILE: the file that `start` wrote, filled in
        --more: if the cause of a wrong number is known, tell it, not only a hint
        --text TEXT: the text on which the functions are checked
        --seconds S: the time that one function may take (default: 2.5)
        --page FILE.html: if all are right, write the page of `minibert inspect` for the text, and open it
        {_MODEL}
        """
    parser = add_verb(parts, _check, check, seconds={"type": float})
    parser.add_argument("steps", metavar="STEP", nargs="*", help="the name or the number of a function (default: all)")
    bench = f"""bench: measure how fast the function bert of a file is
        Measure the time of the function bert, beside that of minibert with NumPy and with its kernels.
        FILE...: files; the first version and the present one, for example
        --text TEXT: the text that is computed
        {_MODEL}
        """
    add_verb(parts, _bench, bench)


def _start(arguments: argparse.Namespace) -> None:
    from minibert.learn.files import start

    start(arguments.file)
    print(f"{arguments.file}: ten functions to fill in. Check them with: minibert learn check {arguments.file}")


def _check(arguments: argparse.Namespace) -> int:
    from minibert.learn.checking import SECONDS, check_file
    from minibert.learn.lesson import TEXT
    from minibert.learn.right import RIGHT

    if arguments.page is not None:
        check_output(arguments.page, (".html",))
    names = dict(enumerate(RIGHT, 1))
    steps = [names[int(step)] if step.isdecimal() and int(step) in names else step for step in arguments.steps]
    text, seconds = arguments.text or TEXT, arguments.seconds or SECONDS
    results = []
    for found in check_file(arguments.file, steps or None, model=arguments.model, text=text, seconds=seconds):
        results.append(dataclasses.replace(found, more=arguments.more))
        print(results[-1], flush=True)
    wrong = [found for found in results if not found.right]
    print(f"{len(results) - len(wrong)} of {counted(len(results), 'function')} are right.", end=" ")
    if wrong:
        more = " --more tells the cause." if any(found.cause for found in wrong) and not arguments.more else ""
        print(f"Next: {wrong[0].step}.{more}")
    elif steps:
        print("Check the whole file next.")
    else:
        print("This is BERT.")
        _finish(arguments, text, seconds)
    return 1 if wrong else 0


def _finish(arguments: argparse.Namespace, text: str, seconds: float) -> None:
    """Compute the vector of the text with the functions of the file and with minibert; write the page."""
    from minibert.learn.checking import sentence

    yours = sentence(arguments.file, model=arguments.model, text=text, seconds=seconds)
    ours = minibert.SentenceTransformer(arguments.model).encode(text)
    print(f"\nThe vector of {text!r}, {len(yours)} numbers:")
    for name, vector in ((PurePath(arguments.file).name, yours), ("minibert", ours)):
        print(f"  {name:20}" + " ".join(f"{number:11.7f}" for number in vector[:4]) + " ...")
    print(f"  largest difference  {abs(yours - ours).max():11.1e}")
    if arguments.page is not None:
        _write_page(arguments, text, f"{arguments.file} differs by at most {abs(yours - ours).max():.1e}")


def _write_page(arguments: argparse.Namespace, text: str, note: str) -> None:
    """Write the page of a text, and open it if there is a screen."""
    model = minibert.BertModel.from_pretrained(arguments.model)
    tokenizer = minibert.BertTokenizer.from_pretrained(arguments.model)
    trace = model.trace(**tokenizer(text, return_tensors="np"), tokens=tokenizer)
    trace.page(arguments.page, title=text, note=note)
    print(f"{arguments.page} shows each step of it.")
    if sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        with contextlib.suppress(webbrowser.Error, OSError):
            webbrowser.open(Path(arguments.page).resolve().as_uri())


def _bench(arguments: argparse.Namespace) -> None:
    from minibert.learn.checking import bench
    from minibert.learn.lesson import TEXT

    first = 0.0
    for name, seconds in bench(arguments.files, model=arguments.model, text=arguments.text or TEXT):
        first = first or seconds
        print(f"{name:30}{1000 * seconds:10.2f} ms{first / seconds:8.1f} times as fast", flush=True)
