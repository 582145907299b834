"""The notation of verbs and options: a text that reads like the help is all that a verb says of them.

An item begins on a new line with ``-`` or with a word in capitals. Its help may go on over several lines.

| item | what it is |
|---|---|
| ``--json: help`` | true if it is given |
| ``-k, --top-k K = 5: help`` | an option with a value, and its default, which the help shows if it does not say it |
| ``--format csv|tsv: help`` | one of these: a value in small letters |
| ``--layers LAYERS``, ``N``, ``SECONDS``: a value in capitals | `_TYPES` says what it is: a str, if it is not there |
| ``QUERY: help``, ``TEXT...: help``, ``[TEXT...]: help`` | arguments without a flag: one, at least one, any number |

`_USUAL` has what the notation cannot say of options that several verbs have; `rest` of `add_verb` has it for one verb.
The messages of the library name arguments of Python; `in_options` turns them into options.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

_ITEM = re.compile(r"\n\s*(?=-|\[?[A-Z]+[.\]]*: )")


def several_ints(text: str) -> list[int]:
    """Convert numbers and ranges of them (1-6) separated by commas, for argparse."""
    numbers = list[int]()
    for part in text.split(","):
        found = re.fullmatch(r"(-?\d{1,9})(?:-(-?\d{1,9}))?", part.strip(), re.ASCII)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if not first <= last < first + 1000 or first < 0 <= last:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as -1,-2 or 1-6")
        numbers += range(first, last + 1)
    return numbers


def _number(least: int, text: str) -> int:
    """Convert a whole number of at least `least`, for argparse."""
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


positive, natural = partial(_number, 1), partial(_number, 0)

# What a value is, by its name in the help; others are str.
_TYPES = {"N": positive, "K": positive, "SECONDS": float, "LAYERS": several_ints, "HEADS": several_ints}

# What argparse must know about options of these names.
_USUAL: dict[str, dict[str, Any]] = {
    "input": {"nargs": "+", "action": "extend"},
    "text_column": {"action": "append"},
    "text_separator": {"default": "\n", "type": lambda text: text.replace(r"\n", "\n").replace(r"\t", "\t")},
    "shared_weights": {"action": argparse.BooleanOptionalAction},
    "stride": {"type": natural},
    "threads": {"dest": "num_threads"},
}


def add_verb(verbs: Any, run: Callable[..., object], text: str, **rest: Mapping[str, Any]) -> Parser:
    """Add a verb that calls `run`.

    Parameters
    ----------
    text : str
        ``NAME: its line in the list of verbs``, then its description if it has more to say than this line, and items.
    **rest : mapping
        See `add_options`.
    """
    head, *items = _ITEM.split(text.strip())
    line, _, description = head.partition("\n")
    name, _, short = line.partition(": ")
    described = " ".join(description.split()) or f"{short[0].upper()}{short[1:]}."
    parser: Parser = verbs.add_parser(name, help=short, description=described)
    parser.set_defaults(run=run, parser=parser)
    add_options(parser, "\n".join(items), **rest)
    return parser


def add_options(parser: argparse._ActionsContainer, text: str, **rest: Mapping[str, Any]) -> None:
    """Add the options of a text in the notation of this module.

    Parameters
    ----------
    **rest : mapping
        Further arguments of argparse for an option, by the name of its first long flag.
    """
    for item in filter(None, _ITEM.split(text.strip())):
        head, _, description = " ".join(item.split()).partition(": ")
        head, _, default = head.partition(" = ")
        words = head.replace(",", "").split()
        flags = [word for word in words if word.startswith("-")]
        value = "".join(words[len(flags) :])
        options: dict[str, Any] = {"help": description}
        if not flags:
            name, several = value.strip("[.]"), "..." in value
            options |= {"nargs": "*" if value.startswith("[") else "+"} if several else {}
            parser.add_argument(name.lower() + "s" * several, metavar=name, **options)
            continue
        name = next(flag for flag in flags if flag.startswith("--"))[2:].replace("-", "_")
        if not value:
            options["action"] = "store_true"
        elif value.islower():
            options |= {"choices": value.split("|"), "default": default or None}
        else:
            options |= {"metavar": value, "type": _TYPES.get(value, str), "default": default or None}
        if default and "default" not in description:
            options["help"] += " (default: %(default)s)"
        parser.add_argument(*flags, **{**options, **_USUAL.get(name, {}), **rest.get(name, {})})


# --- the parser, and messages in the words of the command line -------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """argparse's parser; it also accepts ``--layers -1,-2``, and refuses an option that is given twice.

    `given` holds the names of the arguments that the command line gives, even if the value is the default. `variables`
    takes the parser and the words of the command line, and yields the options that environment variables give.
    """

    variables: Callable[[Parser, Sequence[str]], Iterable[str]] | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.given = set[str]()
        # Values that may begin with "-": argparse accepts single negative numbers, this pattern also lists of them.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.dest in self.given and action.option_strings and not isinstance(action, argparse._AppendAction):
            raise argparse.ArgumentError(action, "it is given twice, and only one value can count; give it once")
        self.given.add(action.dest)
        return super()._get_values(action, arg_strings)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the words of the command line, and before them what environment variables give."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args([*(self.variables(self, words) if self.variables else ()), *words], namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        with contextlib.suppress(OSError):  # of a full disk; later versions of argparse ignore it too
            super()._print_message(message, file)

    def flags(self) -> dict[str, argparse.Action]:
        """Return the options by their names in Python."""
        return {action.dest: action for action in self._actions if action.option_strings}

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise a ValueError if the command line gives one of these options, because it would change nothing."""
        for name in names:
            if name in self.given:
                raise ValueError(f"{_flag(self.flags()[name])} {why}")

    def error(self, message: str) -> NoReturn:
        """Exit with code 2. Without a verb, print the verbs."""
        if message.endswith(": VERB"):
            self.print_help(sys.stderr)
            sys.exit(2)
        super().error(message)


def _flag(action: argparse.Action) -> str:
    return next((flag for flag in action.option_strings if flag.startswith("--")), action.option_strings[0])


# An argument with its value, or, if its name has an underscore, alone; but not a part of a path or a quoted text.
_VALUE = r"\{[^}]*\}|'[^']*'|\"[^\"]*\"|\[[^]]*\]|\([^)]*\)|-?[\w.]*\w|"
_ARGUMENT = re.compile(rf"(?<![\w'\"./-])(?:([a-z_]+)=({_VALUE})|([a-z]+_[a-z_]+)(?![\w'\"./-]))")
_VERBS = {"CrossEncoder": "rerank", "SparseEncoder": "sparse", "SentenceTransformer": "embed", "BertModel": "hidden"}
_VERBS["MultiVectorEncoder"] = "embed --multi-vector"


def in_options(message: str, parser: argparse.ArgumentParser | None) -> str:
    """Return a message of the library in the words of the command line: ``stride=3`` is ``--stride 3``.

    This is the one place where names of arguments become options. Names that the verb does not have stay.
    """
    options = parser.flags() if isinstance(parser, Parser) else {}

    def translated(match: re.Match[str]) -> str:
        name, value = match[1] or match[3], match[2] or ""
        if name not in options:
            return match[0]
        action, flag = options[name], _flag(options[name])
        if value in ("None", "False"):
            negative = f"--no-{flag[2:]}"
            return negative if value == "False" and negative in action.option_strings else f"no {flag}"
        if value.startswith("{"):
            return "--prompt"  # prompts of several names are for Python
        if not value or action.nargs == 0:
            return flag
        plain = re.sub(r"[\[\]()'\"]|,$", "", value.replace(", ", ",").replace(",)", ")"))
        value = plain if re.fullmatch(r"[\w./:,-]+", plain) else value
        return f"{flag}={value}" if value.startswith("-") else f"{flag} {value}"

    message = re.sub(rf"\b({'|'.join(_VERBS)}) loads it", lambda m: f"minibert {_VERBS[m[1]]} loads it", message)
    return _ARGUMENT.sub(translated, re.sub(r"\b[\w.]+\(\.\.\., (\w+=[^()]*)\)", r"\1", message))
