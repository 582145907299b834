"""The command line: ``minibert VERB ...``. Results go to stdout, everything else to stderr; exit codes 0, 1 and 2.

Verbs print their results with `print`, and everything else with `report_problem`.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

import minibert
from minibert.cli import doctor, info, inside, learn, parity, serve, states, tasks, vectors
from minibert.cli.notation import Parser
from minibert.cli.output import report_problem, standard_streams
from minibert.errors import DownloadError, ModelFormatError

__all__ = ["main"]

_DESCRIPTION = """\
BERT in NumPy and Numba: tokens, hidden states, word and sentence vectors, and the tasks of its heads.

A text of "-" means the lines of the standard input, one text per line."""

_EPILOG = """\
Exit codes: 0 all is well; 1 something could not be done (a model, a text or a file); 2 the command line is wrong.
parity has codes of its own, see minibert parity check --help.
Environment: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE (the hub's); MINIBERT_BACKEND, MINIBERT_NUM_THREADS;
OMP_NUM_THREADS (the most threads, if nothing else gives their number)."""


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="minibert", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"minibert {minibert.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for family in (states, inside, vectors, tasks, info, doctor, serve, parity, learn):
        family.add_verbs(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 (by argparse) wrong usage; parity has others."""
    with standard_streams(), warnings.catch_warnings():
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a terminal that cannot show a token must not stop the run
                stream.reconfigure(errors="backslashreplace")
        warnings.simplefilter("always", UserWarning)
        failed, verb = 1, None
        warnings.showwarning = lambda message, *_, **__: report_problem(f"warning: {message}", verb)
        try:
            arguments = make_parser().parse_args(argv)
            verb = arguments.parser
            failed = getattr(arguments, "failed", 1)
            code: int = arguments.run(arguments) or 0
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as head, has closed the pipe
            return failed
        except KeyboardInterrupt:
            report_problem("interrupted")
            return failed
        except (ModelFormatError, DownloadError, ValueError, TypeError, OSError, MemoryError, ImportError) as error:
            report_problem(str(error) or "out of memory; give fewer or shorter texts at once", verb)
            return failed
    return code
