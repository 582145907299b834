"""``minibert parity check | probe | names | simulate``: compare another implementation of BERT with float64."""

from __future__ import annotations

import argparse
import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert._utils.files import check_output, parse_json, read_bytes, write_json, write_whole
from minibert.cli.notation import add_options, add_verb
from minibert.cli.options import add_model_options, chosen, locate_model
from minibert.cli.output import read_lines, report_problem, report_written

if TYPE_CHECKING:
    from minibert.parity.report import Report
    from minibert.parity.truth import Subject


# After how many seconds a part of a check says that it goes on.
_SILENT = 2.0

_CHECK_CODES = (
    "Exit codes: 0 everything that was compared is within the budget; 1 something is not, or a known name has a shape "
    "that does not fit; 2 a file or an argument is wrong; 3 the dump holds nothing that can be compared."
)


def add_verbs(verbs: Any) -> None:
    """Add the verb, with its sub-verbs, to the command line."""
    text = """parity: check another implementation of BERT: is it right, and if not, where and why
        Compare the values that another implementation of BERT computed with the true ones."""
    parts = add_verb(verbs, _check, text).add_subparsers(dest="part", metavar="VERB", required=True)
    text = """check: compare a dump with the true values, and say what is wrong
        DUMP: a file or folder: .npz, .npy, .safetensors, .json, .bin with --raw, or transformers' call tree
        --map FILE: a JSON object: names in the dump -> names of minibert
        --raw NAME=SHAPE: what a .bin file of float32 numbers is, such as hidden_states.6=5,24,384 (default: the name of
            the file, and the shape of this value)
        --budget PRECISION = float32: float32, float16, bfloat16, or a number of units
        --json FILE: write the report as JSON; "-" prints it instead of the text
        --markdown FILE: write the report for a pull request or a paper
        --all: show every row of a long table
        --port TEXT: what made the dump, with its version, for the report
        --weights PATH: the weights of the port, such as a .gguf file: they are compared first, and then used
        --no-diagnosis: do not look for the cause
        """
    raw, budget = {"action": "append", "type": _raw}, {"type": _budget}
    more = {"all": {"dest": "every_row"}, "no_diagnosis": {"dest": "diagnosis", "action": "store_false"}}
    check = add_verb(parts, _check, text, raw=raw, budget=budget, port={"default": ""}, **more)
    check.epilog = _CHECK_CODES
    check.set_defaults(failed=2)
    text = """--inputs FILE: what both were given: probe.json, another .json, .npz or .safetensors with input_ids,
            attention_mask, token_type_ids (default: the input_ids in the dump, else the probe of this model)
        --texts FILE: what both were given: one text per line, or two with a tab between"""
    add_options(check.add_mutually_exclusive_group(), text)
    text = """probe: write inputs in which each known mistake is visible
        -o, --output FOLDER: made if it does not exist
        """
    probe = add_verb(parts, _probe, text, output={"required": True})
    names = add_verb(parts, _names, "names: list what can be dumped: names and shapes")
    text = """simulate: write the dump of a port that has one known mistake
        MISTAKE: the id of a mistake; "list" lists them
        -o, --output FILE: an .npz file
        --inputs FILE: as for check (default: the probe of this model)
        """
    simulate = add_verb(parts, _simulate, text)
    for part in (check, probe, names, simulate):
        add_model_options(part, backend=part is not names)  # after the options of the verb itself


def _raw(text: str) -> tuple[str, tuple[int, ...]]:
    match = re.fullmatch(r"(.+)=([0-9]{1,12}(?:,[0-9]{1,12})*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SHAPE, such as hidden_states.6=5,24,384")
    return match[1], tuple(map(int, match[2].split(",")))


def _budget(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


# --- the verbs --------------------------------------------------------------------------------------------------------


def _subject(arguments: argparse.Namespace) -> Subject:
    """Load the model with everything that it has."""
    from minibert.parity.truth import Subject

    if (compute_type := getattr(arguments, "compute_type", None)) not in (None, "float32"):
        raise ValueError(
            f"--compute-type {compute_type}: the true values need float32. To see the error of this type, give "
            f"a dump of it: BertModel.from_pretrained(MODEL, compute_type={compute_type!r}).trace(**inputs).save(FILE)."
        )
    options = chosen(arguments, ("backend", "num_threads", "shared_weights"))
    return Subject.load(arguments.model, locate_model(arguments), **options)


def _check(arguments: argparse.Namespace) -> int:
    from minibert.parity.checking import check
    from minibert.parity.dumps import NothingComparedError
    from minibert.parity.inputs import of_texts

    for path, suffix in ((arguments.markdown, ".md"), (arguments.json, ".json")):
        if path is not None and path != "-":
            check_output(path, (suffix,))
    if arguments.inputs is not None and Path(arguments.inputs).suffix.lower() in (".txt", ".tsv"):
        raise ValueError(f"--inputs is a file of ids; {arguments.inputs} holds texts: give --texts {arguments.inputs}.")
    subject = _subject(arguments)
    inputs: Any = arguments.inputs
    if arguments.texts is not None:
        inputs = [tuple(line.split("\t", 1)) if "\t" in line else line for line in read_lines(arguments.texts)]
        inputs = of_texts(subject, inputs)
    names = None if arguments.map is None else _read_map(arguments.map)
    printed: list[Report] = []
    waiting = [_waiting("computing the true values ...")]

    def on_table(report: Report) -> None:
        """Print the table first, because the search for the cause takes longer."""
        if arguments.json != "-":
            printed.append(report)
            print(report.table(every_row=arguments.every_row), flush=True)
        waiting.pop().cancel()
        waiting.append(_waiting("looking for the cause ..."))

    try:
        options = {"raw": dict(arguments.raw or ()), **chosen(arguments, ("budget", "diagnosis", "port", "weights"))}
        report = check(subject, arguments.dump, inputs, names=names, on_table=on_table, **options)
    except NothingComparedError as error:
        report_problem(str(error))
        return 3
    finally:
        waiting[-1].cancel()
    text = report.findings() if printed else report.to_text(every_row=arguments.every_row)
    if arguments.json == "-":
        text = json.dumps(report.to_json(), indent=2, ensure_ascii=False)
    elif arguments.json is not None:
        write_json(arguments.json, report.to_json())
    if arguments.markdown is not None:
        page = report.to_markdown(every_row=arguments.every_row)
        write_whole(arguments.markdown, lambda file: file.write(page.encode()))
    if text:
        print(text)
    return report.exit_code


def _waiting(message: str) -> threading.Timer:
    """Return a timer that prints a message on the standard error, unless it is cancelled before."""
    timer = threading.Timer(_SILENT, report_problem, [message])
    timer.daemon = True
    timer.start()
    return timer


def _read_map(path: str) -> dict[str, str]:
    content = parse_json(read_bytes(Path(path)), path)
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content.values()):
        raise ValueError(f"{path} is not a JSON object of strings: names in the dump -> names of minibert.")
    return content


def _probe(arguments: argparse.Namespace) -> None:
    from minibert.parity.inputs import probe

    made = probe(_subject(arguments))
    for path in made.save(arguments.output):
        print(path)
    for i, purpose in enumerate(made.shows):
        print(f"  row {i}: {purpose} ({int(made.attention_mask[i].sum())} tokens)")


def _names(arguments: argparse.Namespace) -> None:
    from minibert.parity.symbols import both_names

    arguments.backend, arguments.num_threads, arguments.shared_weights = "numpy", None, False
    subject = _subject(arguments)
    labels = {name: both_names(name) for name in subject.specs}
    if "embeddings_project" in labels:  # which hidden state 0 is
        labels["embeddings"] = "embeddings"
    width = max(map(len, labels.values()))
    shapes = {"tokens": "(B, S, {})", "pairs": "(B, {}, S, S)", "pooled": "(B, {})"}
    for name, spec in subject.specs.items():
        print(f"{labels[name]:{width}}  {shapes[spec.kind].format(spec.width)}")
    print("The hidden states alone are enough to begin.")


def _simulate(arguments: argparse.Namespace) -> None:
    import numpy as np

    from minibert.parity.diagnosis import MISTAKES, simulate
    from minibert.parity.inputs import of_probe, read_inputs

    if arguments.mistake == "list":
        for mistake in MISTAKES.values():
            print(f"{mistake.id:22}  {mistake.text}")
        return
    if arguments.output is None:
        raise ValueError("give --output FILE, where the dump is written.")
    check_output(arguments.output, (".npz",))
    subject = _subject(arguments)
    inputs = read_inputs(of_probe(subject) if arguments.inputs is None else arguments.inputs, subject)
    values = simulate(subject.model, inputs, arguments.mistake)
    write_whole(arguments.output, lambda file: np.savez(file, **values))  # type: ignore[arg-type]
    report_written(arguments.output, f"{len(values)} names of a port with the mistake {arguments.mistake}")
