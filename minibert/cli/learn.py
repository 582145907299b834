"""``minibert learn``: the course. Write the exercises, check them, and measure how fast they are."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import sys
import time
import webbrowser
from pathlib import Path, PurePath
from typing import Any

import minibert
from minibert._utils.files import check_output
from minibert._utils.validation import counted
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.cli.options import add_verb, chosen

_LESSON = f"""--text TEXT: the text on which the functions run (default: a short one)
    -m, --model MODEL = {DEFAULT_MODEL}: a BERT with GELU: hub id or folder"""


def add_verbs(verbs: Any) -> None:
    """Add ``learn`` and its parts to the command line."""
    text = "learn: build BERT yourself: eleven functions that are checked one by one\nWrite BERT in functions."
    parts = add_verb(verbs, _check, text).add_subparsers(metavar="VERB", required=True)
    text = """start: write the functions to fill in into a new file
        Write eleven functions to fill in, with their formulas and shapes. A file that exists is not overwritten.
        FILE: the file to write: .py, or .ipynb for a notebook
        """
    add_verb(parts, _start, text)
    text = f"""check: check the functions of a file
        Run the functions in a process of their own, compare them with the right values of a real model, and say what is
        wrong. If all are right, compute the vector of the text with them. The exit code is 0 if all are right.
        FILE: the file that `start` wrote, filled in
        [STEP...]: the name or the number of a function (default: all)
        --more: tell the cause of wrong numbers if it is known, not only a hint
        --seconds S = 4: the time that one function may take
        --page FILE.html: if all are right, write the page of `minibert inspect` for the text, and open it
        {_LESSON}
        """
    add_verb(parts, _check, text, seconds={"type": float})
    text = f"""bench: measure how fast the function bert of a file is
        Measure the time of the function bert, and of minibert with NumPy and with its kernels.
        FILE...: files, for example your first version and the present one
        {_LESSON}
        """
    add_verb(parts, _bench, text)


def _start(arguments: argparse.Namespace) -> None:
    from minibert.learn.files import start

    start(arguments.file)
    print(f"{arguments.file}: eleven functions to fill in. Check them with: minibert learn check {arguments.file}")


def _check(arguments: argparse.Namespace) -> int:
    from minibert.learn.checking import check_file
    from minibert.learn.right import RIGHT

    if arguments.page is not None:
        check_output(arguments.page, (".html",))
    names = {str(number): step for number, step in enumerate(RIGHT, 1)}
    steps = [names.get(step, step) for step in arguments.steps]
    options = chosen(arguments, ("seconds", "text", "model"))
    start, results = time.perf_counter(), []
    for result in check_file(arguments.file, steps, **options):
        print(dataclasses.replace(result, more=arguments.more), flush=True)
        results.append(result)
    wrong = [result for result in results if not result.right]
    checked = f"{counted(len(results), 'function')} checked in {time.perf_counter() - start:.1f} seconds"
    if wrong:
        more = " --more tells the cause." if any(result.cause for result in wrong) and not arguments.more else ""
        print(f"{checked}, {len(wrong)} to do. Next: {wrong[0].step}.{more}")
    elif steps:
        print(f"{checked}. {results[-1].next}")
    else:
        print(f"{checked}.")
        return _finish(arguments, options)
    return 1 if wrong else 0


def _finish(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """Compute the vector of the text with the functions of the file and with minibert; write the page."""
    from minibert.learn.checking import sentence
    from minibert.learn.lesson import TEXT

    text, model, name = options["text"] or TEXT, arguments.model, PurePath(arguments.file).name
    yours, ours = sentence(arguments.file, **options)
    error = float(abs(yours - ours).max()) if yours.shape == ours.shape else math.nan
    together = error < 1e-4
    end = (
        "this is BERT."
        if together
        else "but together they give another vector. Does one of them keep numbers of a call?"
    )
    print(f"All functions are right: {end}\n\nThe vector of {text!r}, {counted(yours.size, 'number')}:")
    for label, vector in ((name, yours), ("minibert", ours)):
        print(f"  {label:20}" + " ".join(f"{number:10.6f}" for number in vector.flat[:4]) + " ...")
    print(f"  largest difference  {error:>10.1e}")
    if arguments.page is not None and together:
        inputs = (tokenizer := minibert.BertTokenizer.from_pretrained(model))(
            text, truncation=True, return_tensors="np"
        )
        trace = minibert.BertModel.from_pretrained(model).trace(**inputs, tokens=tokenizer)
        trace.page(arguments.page, title=text, note=f"The vector of {name} differs by at most {error:.1e}.")
        print(f"{arguments.page} shows each step of it.")
        with contextlib.suppress(webbrowser.Error, OSError):
            if sys.platform in ("win32", "darwin") or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
                webbrowser.open(Path(arguments.page).resolve().as_uri())
    return 0 if together else 1


def _bench(arguments: argparse.Namespace) -> None:
    from minibert.learn.checking import bench

    first = 0.0
    for name, seconds in bench(arguments.files, **chosen(arguments, ("text", "model"))):
        first = first or seconds
        print(f"{name:30}{1000 * seconds:10.2f} ms{first / seconds:8.1f} times as fast", flush=True)
