"""``minibert learn``: the course. Write the file of its functions, and check them."""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from pathlib import PurePath
from typing import Any

from minibert._utils.validation import counted
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.cli.notation import add_verb
from minibert.cli.options import chosen

_LESSON = f"""--text TEXT: the text on which the functions run (default: a short one)
    -m, --model MODEL = {DEFAULT_MODEL}: a BERT with GELU: hub id or folder"""


def add_verbs(verbs: Any) -> None:
    """Add ``learn`` and its parts to the command line."""
    text = "learn: build BERT yourself: eleven functions that are checked one by one\nWrite BERT in functions."
    parts = add_verb(verbs, _check, text).add_subparsers(metavar="VERB", required=True)
    text = """start: write the functions to fill in into a new file
        Write eleven functions to fill in, with their formulas and shapes. A file that exists is not overwritten.
        FILE: the .py file to write
        """
    add_verb(parts, _start, text)
    text = f"""check: check the functions of a file
        Run the functions in a process of their own, compare them with the right values of a real model, and say what is
        wrong. If all are right, compute the vector of the text with them. The exit code is 0 if all are right.
        FILE: the file that `start` wrote, filled in
        [FUNCTION...]: the name or the number of a function (default: all)
        --more: tell the cause of wrong numbers if it is known, not only a hint
        --seconds S = 4: the time that one function may take
        {_LESSON}
        """
    add_verb(parts, _check, text, seconds={"type": float})
    text = """page: write a page that runs BERT and the functions in a browser
        Write a file of about 1 MB. A browser that opens it computes hidden states with tiny.py, and checks the
        functions, without an installation: it fetches Python (Pyodide) and the model, or reads the model's files.
        FILE: the .html file to write
        --pyodide ADDRESS: a folder of a release of Pyodide (default: that of its makers)
        """
    add_verb(parts, _page, text)


def _start(arguments: argparse.Namespace) -> None:
    from minibert.learn.files import start

    start(arguments.file)
    print(f"{arguments.file}: eleven functions to fill in. Check them with: minibert learn check {arguments.file}")


def _page(arguments: argparse.Namespace) -> None:
    from minibert.learn.files import write_page

    write_page(arguments.file, **chosen(arguments, ("pyodide",)))
    print(f"{arguments.file}: open it in a browser.")


def _check(arguments: argparse.Namespace) -> int:
    from minibert.learn.checking import check_file
    from minibert.learn.right import RIGHT

    names = {str(number): function for number, function in enumerate(RIGHT, 1)}
    functions = [names.get(function, function) for function in arguments.functions]
    options = chosen(arguments, ("seconds", "text", "model"))
    start, results = time.perf_counter(), []
    for result in check_file(arguments.file, functions, **options):
        print(dataclasses.replace(result, more=arguments.more), flush=True)
        results.append(result)
    wrong = [result for result in results if not result.right]
    checked = f"{counted(len(results), 'function')} checked in {time.perf_counter() - start:.1f} seconds"
    if wrong:
        more = " --more tells the cause." if any(result.cause for result in wrong) and not arguments.more else ""
        print(f"{checked}, {len(wrong)} to do. Next: {wrong[0].exercise}.{more}")
    elif functions:
        print(f"{checked}. {results[-1].next}")
    else:
        print(f"{checked}.")
        return _finish(arguments, options)
    return 1 if wrong else 0


def _finish(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """Compute the vector of the text with the functions of the file and with minibert."""
    from minibert.learn.checking import sentence
    from minibert.learn.lesson import TEXT

    yours, ours = sentence(arguments.file, **options)
    error = float(abs(yours - ours).max()) if yours.shape == ours.shape else math.nan
    end, code = "this is BERT.", 0
    if not error < 1e-4:
        end, code = "but together they give another vector. Does one of them keep numbers of a call?", 1
    text = options["text"] or TEXT
    print(f"All functions are right: {end}\n\nThe vector of {text!r}, {counted(yours.size, 'number')}:")
    for label, vector in ((PurePath(arguments.file).name, yours), ("minibert", ours)):
        print(f"  {label:20}" + " ".join(f"{number:10.6f}" for number in vector.flat[:4]) + " ...")
    print(f"  largest difference  {error:>10.1e}")
    return code
