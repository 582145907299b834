"""``minibert tokens``, ``words`` and ``hidden``: looking at tokens and at every hidden state."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Any

from minibert.cli.common import add_model_options, add_texts, read_texts, report_written, write_file

if TYPE_CHECKING:
    from minibert.encodings import Encoding
    from minibert.models import BertModel, PackedOutput
    from minibert.ops import FloatArray
    from minibert.tokenizer import BertTokenizer

__all__ = ["add_verbs"]


def add_verbs(verbs: Any) -> None:
    """Add the three verbs to the command line."""
    tokens = verbs.add_parser("tokens", help="list the tokens of texts", description="List the tokens of each text.")
    add_texts(tokens)
    tokens.add_argument("--json", action="store_true", help="one JSON object per text")
    add_model_options(tokens, backend=False)
    tokens.set_defaults(run=_tokens)

    words = verbs.add_parser(
        "words",
        help="compare the occurrences of a word, layer by layer",
        description="Show the tokens of each text, the hidden states, and how alike the occurrences of a word are in "
        "every layer: the cosine of their vectors, the tokens of a word averaged.",
    )
    words.add_argument("word", metavar="WORD", help="the word to look for")
    add_texts(words)
    words.add_argument("--most", type=_at_least_two, default=5, help="occurrences to compare (default: %(default)s)")
    words.add_argument("--truncate", action="store_true", help="cut texts that are longer than the model allows")
    add_model_options(words)
    words.set_defaults(run=_words)

    hidden = verbs.add_parser(
        "hidden",
        help="save every hidden state of texts",
        description="Save every hidden state, with its tokens, as an .npz file: hidden_states (layers + 1, tokens, "
        "hidden_size), cu_seqlens (text b owns tokens cu_seqlens[b] to cu_seqlens[b + 1]), tokens, ids, offsets "
        "(characters), texts. Nothing is padded.",
    )
    add_texts(hidden)
    hidden.add_argument("-o", "--output", required=True, metavar="FILE.npz", help="the file to write")
    hidden.add_argument("--truncate", action="store_true", help="cut texts that are longer than the model allows")
    add_model_options(hidden)
    hidden.set_defaults(run=_hidden)


def _at_least_two(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 2, which comparing takes")
    return int(text)


def _tokens(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    for number, (text, encoding) in enumerate(zip(texts, _load_tokenizer(arguments).encodings(texts), strict=True)):
        rows = [
            {"id": int(token_id), "token": token, "start": int(start), "end": int(end), "word": word}
            for token_id, token, (start, end), word in zip(
                encoding.ids, encoding.tokens, encoding.offsets, encoding.word_ids, strict=True
            )
        ]
        if arguments.json:
            print(json.dumps({"text": text, "tokens": rows}, ensure_ascii=False))
            continue
        if len(texts) > 1:
            print(f"{'' if number == 0 else chr(10)}text {number}: {text}")
        width = max(map(len, encoding.tokens))
        print(f"   id  {'token':{width}}  start    end   word")
        for row in rows:
            place = "      -      -      -" if row["word"] is None else "{start:7}{end:7}{word:7}".format(**row)
            print(f"{row['id']:5}  {row['token']:{width}}{place}")


def _hidden(arguments: argparse.Namespace) -> None:
    import numpy as np

    texts = read_texts(arguments.texts)
    encodings, output = _run(arguments, texts)
    arrays: dict[str, Any] = {
        "hidden_states": np.stack([output.hidden_states[i] for i in sorted(output.hidden_states)]),
        "cu_seqlens": np.cumsum([0, *(len(encoding.ids) for encoding in encodings)]),
        "tokens": np.array([token for encoding in encodings for token in encoding.tokens]),
        "ids": np.concatenate([encoding.ids for encoding in encodings]),
        "offsets": np.concatenate([encoding.offsets for encoding in encodings]),
        "texts": np.array(texts),
    }
    write_file(arguments.output, lambda file: np.savez(file, **arrays))
    report_written(arguments.output, ", ".join(f"{name} {array.shape}" for name, array in arrays.items()))


def _words(arguments: argparse.Namespace) -> None:
    from minibert.similarity import cos_sim
    from minibert.vectors import find_word

    texts = read_texts(arguments.texts)
    encodings, output = _run(arguments, texts)
    states = [output.hidden_states[i] for i in sorted(output.hidden_states)]  # L + 1 x (T, H)
    _print_tokens(texts, encodings)
    print(f"\n{len(states)} hidden states of shape {states[0].shape}: the embeddings' output, then one per layer")

    word_ids = _load_tokenizer(arguments).encodings([arguments.word], add_special_tokens=False)[0].ids
    found: list[tuple[slice, str]] = []
    first = 0
    for text, encoding in zip(texts, encodings, strict=True):
        for tokens in find_word(word_ids.tolist(), encoding.ids.tolist(), encoding.word_ids):
            found.append((slice(first + tokens.start, first + tokens.stop), _in_context(text, encoding, tokens)))
        first += len(encoding.ids)
    if not arguments.word.strip():
        raise ValueError("WORD is empty; give the word to look for.")
    if len(found) < 2:
        times = "once" if found else "nowhere"
        raise ValueError(f"{arguments.word!r} occurs {times} in the texts; comparing takes at least two occurrences.")

    shown = f", the first {arguments.most} compared" if len(found) > arguments.most else ""
    print(f"\n{arguments.word!r} occurs {len(found)} times{shown}:")
    found = found[: arguments.most]
    for name, (tokens, context) in zip(_names(), found, strict=False):
        place = (
            f"token {tokens.start}" if tokens.stop == tokens.start + 1 else f"tokens {tokens.start}-{tokens.stop - 1}"
        )
        print(f"  {name}  {place:12} {context}")

    def cosines(state: FloatArray) -> list[float]:
        import numpy as np

        vectors = np.stack([state[tokens].mean(axis=0) for tokens, _ in found])
        table = cos_sim(vectors, vectors)
        return [float(table[i, j]) for i, j in combinations(range(len(found)), 2)]

    pairs = [f"{a}-{b}" for a, b in combinations([name for name, _ in zip(_names(), found, strict=False)], 2)]
    last = min(4, len(states) - 1) or 1
    labelled = [(f"layer {i}" if i else "embeddings", state) for i, state in enumerate(states)]
    labelled.append((f"sum of last {last}", sum(states[-last:])))  # type: ignore[arg-type]
    print("\n" + " " * 14 + "".join(f"{pair:>8}" for pair in pairs) + "   (cosines)")
    for label, state in labelled:
        print(f"{label:14}" + "".join(f"{cosine:8.3f}" for cosine in cosines(state)))
    if len(pairs) > 1:
        ranked = sorted(zip(cosines(labelled[-1][1]), pairs, strict=True))
        (low, apart), (high, close) = ranked[0], ranked[-1]
        print(f"\nMost alike, by the sum of the last {last} layers: {close} ({high:.3f}); least: {apart} ({low:.3f}).")


def _names() -> Iterator[str]:
    """a, b, ..., z, then a1, b1, ..."""
    for suffix in ("", *map(str, range(1, 1000))):
        for letter in "abcdefghijklmnopqrstuvwxyz":
            yield letter + suffix


def _in_context(text: str, encoding: Encoding, tokens: slice) -> str:
    """The occurrence in brackets, with what stands around it."""
    start, end = int(encoding.offsets[tokens.start][0]), int(encoding.offsets[tokens.stop - 1][1])
    before, after = text[max(0, start - 24) : start], text[end : end + 24]
    line = f"{'...' if start > 24 else ''}{before}[{text[start:end]}]{after}{'...' if end + 24 < len(text) else ''}"
    return " ".join(line.split())


def _print_tokens(texts: list[str], encodings: list[Encoding]) -> None:
    """Print the tokens with their ids and their number in the packed batch, in as many columns as fit."""
    tokens = [token for encoding in encodings for token in encoding.tokens]
    ids = [int(token_id) for encoding in encodings for token_id in encoding.ids]
    width = max(map(len, tokens))
    columns = max(1, shutil.get_terminal_size((100, 24)).columns // (width + 15))
    first = 0
    for text, encoding in zip(texts, encodings, strict=True):
        count = len(encoding.ids)
        print(f"{'' if first == 0 else chr(10)}{text}\n{count} tokens with their ids:")
        lines = -(-count // columns)
        for line in range(lines):
            row = range(first + line, first + count, lines)
            print("".join(f"{i:4} {tokens[i]:{width}} {ids[i]:<8} " for i in row).rstrip())
        first += count


def _run(arguments: argparse.Namespace, texts: list[str]) -> tuple[list[Encoding], PackedOutput]:
    """Tokenize, check the lengths, and compute all hidden states on the packed batch."""
    from minibert.batch import PackedBatch

    tokenizer, model = _load_tokenizer(arguments), _load_model(arguments)
    limit = min(
        tokenizer.model_max_length or model.config.max_position_embeddings, model.config.max_position_embeddings
    )
    encodings = tokenizer.encodings(texts, max_length=limit if arguments.truncate else None)
    for number, encoding in enumerate(encodings):
        if len(encoding.ids) > limit:
            raise ValueError(
                f"text {number} has {len(encoding.ids)} tokens, the model takes {limit}. "
                "Shorten it, or cut it: --truncate."
            )
    batch = PackedBatch.from_sequences([e.ids for e in encodings], [e.token_types for e in encodings])
    return encodings, model.forward_packed(batch, hidden_states=range(model.config.num_hidden_layers + 1))


def _load_tokenizer(arguments: argparse.Namespace) -> BertTokenizer:
    from minibert.tokenizer import BertTokenizer

    return BertTokenizer.from_pretrained(arguments.model, revision=arguments.revision)


def _load_model(arguments: argparse.Namespace) -> BertModel:
    from minibert.models import BertModel

    return BertModel.from_pretrained(
        arguments.model, revision=arguments.revision, backend=arguments.backend, add_pooling_layer=False
    )
