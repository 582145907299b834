"""``minibert info`` and ``fingerprint``: facts about a model, and one number of all that decides its results."""

from __future__ import annotations

import argparse
import json
from typing import Any

from minibert.cli.notation import add_verb
from minibert.cli.options import COMPUTE_TYPE, add_model_options, load_encoder, loading, locate_model
from minibert.models.options import LoadOptions


def add_verbs(verbs: Any) -> None:
    """Add the two verbs to the command line."""
    text = f"""info: describe a model: sizes, pooling, prompts, limits
        Print the facts about a model, and what minibert does not support.
        --json: one JSON object: {{"source": ..., "facts": {{...}}, "unsupported": [...]}}
        {COMPUTE_TYPE}
        """
    add_model_options(add_verb(verbs, _info, text), backend=False)
    text = """fingerprint: print one number for all that decides a model's vectors, to see whether they have changed
        Print the SHA-256 of weights, tokenizer, modules, prompts, limits and compute type, and of the bytes of five
        vectors. Names, folders, threads and processors do not change it. The backend numpy leaves the vectors out.
        --json: one JSON object: {"fingerprint": ..., "parts": {...}}; two of them show what has changed
        """
    add_model_options(add_verb(verbs, _fingerprint, text))


def _info(arguments: argparse.Namespace) -> None:
    from minibert.sentence.facts import describe

    described = describe(arguments.model, LoadOptions(**loading(arguments)))
    if arguments.json:
        print(json.dumps(described, ensure_ascii=False, indent=2))
        return
    print(described["source"])
    width = max(map(len, described["facts"]))
    for name, value in described["facts"].items():
        print(f"  {name:{width}}  {_shown(value)}")
    print("unsupported: " + ("" if described["unsupported"] else "nothing"))
    for reason in described["unsupported"]:
        print(f"  {reason}")


def _fingerprint(arguments: argparse.Namespace) -> None:
    from minibert.sentence.loading import class_of_files

    model = load_encoder(class_of_files(locate_model(arguments)), arguments)
    parts, fingerprint = model.fingerprint_parts(), model.fingerprint()
    print(json.dumps({"fingerprint": fingerprint, "parts": parts}, indent=2) if arguments.json else fingerprint)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text!r}" for name, text in value.items()) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
