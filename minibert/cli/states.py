"""``minibert tokens``, ``words`` and ``hidden``: the tokens of texts and their hidden states."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import warnings
from collections.abc import Sequence
from itertools import accumulate, combinations
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import numpy as np

import minibert
from minibert._utils.files import check_output
from minibert.cli import options, output
from minibert.cli.notation import add_verb
from minibert.cli.options import LAYERS, TEXTS, TRUNCATE, add_model_options
from minibert.vectors.layers import SUBWORD_POOLING

if TYPE_CHECKING:
    from minibert import BertTokenizer, TokenVectors
    from minibert.vectors.occurrences import WordOccurrences

_FORMAT = 1  # of the .npz file of `hidden`
_PICTURES = (".png", ".svg", ".pdf")
_PLOT = "--plot FILE: draw a .png, .svg or .pdf"
_MOST_TEXTS = 20  # whose tokens are printed


def add_verbs(verbs: Any) -> None:
    """Add the three verbs to the command line."""
    text = f"""tokens: list the tokens of texts
        {TEXTS}
        --json: one JSON object per text
        """
    add_model_options(add_verb(verbs, _tokens, text), backend=False)

    text = f"""words: compare the occurrences of a word, layer by layer
        Show the tokens of each text, the hidden states, and how similar the occurrences of a word are: the cosine of
        their vectors in every state, and with several states combined.
        WORD: the word to look for
        {TEXTS}
        --most N = 5: occurrences to compare
        {LAYERS}; default: all are shown, the last four are combined
        {options.LAYER_POOLING} = sum: how several layers are combined
        --subwords {"|".join(SUBWORD_POOLING)} = mean: how the vectors of a word's tokens are combined
        {TRUNCATE}
        {_PLOT}: the cosines of all occurrences, at most 500, a matrix for each layer; more than 12 are in the order of
            their clusters
        """
    add_model_options(add_verb(verbs, _words, text))

    text = f"""hidden: save every hidden state of texts
        Save every hidden state, with its tokens, as an .npz file: format (its number, 1), hidden_states (layers + 1,
        tokens, hidden_size), layers, cu_seqlens (text b has tokens cu_seqlens[b] to cu_seqlens[b + 1] - 1), tokens,
        ids, offsets (characters), texts. Nothing is padded.
        {TEXTS}
        -o, --output FILE.npz: the file to write
        {LAYERS}; default: all
        {TRUNCATE}
        {_PLOT}: for one or two texts, a histogram of the values in each layer; for more, the texts (means of their
            tokens) on their first two principal components in each layer
        """
    add_model_options(add_verb(verbs, _hidden, text, output={"required": True}))


def _check_plot(arguments: argparse.Namespace) -> None:
    """Raise before anything is computed if the picture cannot be drawn or written."""
    if arguments.plot is not None:
        from minibert.vectors.plot import require_matplotlib

        check_output(arguments.plot, _PICTURES)
        require_matplotlib()


def _tokens(arguments: argparse.Namespace) -> None:
    texts = output.read_texts(arguments.texts)
    encodings = options.load_tokenizer(arguments).encodings(texts)
    for number, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
        ids, (starts, ends), special = encoding.ids.tolist(), encoding.offsets.T.tolist(), encoding.special_tokens_mask
        columns = zip(encoding.tokens, ids, starts, ends, encoding.word_ids, map(bool, special), strict=True)
        rows = [dict(zip(("token", "id", "start", "end", "word", "special"), row, strict=True)) for row in columns]
        if arguments.json:
            output.print_json(text=text, tokens=rows)
            continue
        if len(texts) > 1:
            print(f"{'' if number == 0 else chr(10)}text {number}: {text}")
        width = max(map(len, encoding.tokens))
        print(f"   id  {'token':{width}}  start    end   word")
        for row in rows:
            position = "      -      -      -" if row["word"] is None else "{start:7}{end:7}{word:7}".format(**row)
            print(f"{row['id']:5}  {row['token']:{width}}{position}")


def _hidden(arguments: argparse.Namespace) -> None:
    output.check_file(arguments.output, ".npz")
    _check_plot(arguments)
    texts = _embed(arguments, options.load_tokenizer(arguments))
    arrays: dict[str, Any] = {
        "format": np.array(_FORMAT),
        "hidden_states": np.moveaxis(np.concatenate([text.vectors for text in texts]), 1, 0),
        "layers": np.array(texts[0].layers),
        "cu_seqlens": np.cumsum([0, *map(len, texts)]),
        "tokens": np.array([token for text in texts for token in text.tokens]),
        "ids": np.concatenate([text.ids for text in texts]),
        "offsets": np.concatenate([text.offsets for text in texts]),
        "texts": np.array([text.text for text in texts]),
    }
    output.write_file(arguments.output, lambda file: np.savez(file, **arrays))
    shapes = [f"{name} {array.shape}" for name, array in arrays.items() if array.ndim]
    output.report_written(arguments.output, ", ".join(shapes))
    if arguments.plot:
        from minibert.vectors.plot import plot_hidden_values, plot_layers_pca

        if len(texts) < 3:
            figure = plot_hidden_values(np.concatenate([text.vectors for text in texts]), texts[0].layers)
        else:
            means = np.stack([text.vectors.mean(axis=0) for text in texts])
            figure = plot_layers_pca(means, texts[0].layers, labels=[text.text for text in texts])
        _save_picture(figure, arguments.plot)


def _words(arguments: argparse.Namespace) -> None:
    if not arguments.word.strip():
        raise ValueError("WORD is empty; give the word to look for.")
    _check_plot(arguments)
    tokenizer = options.load_tokenizer(arguments)
    texts = _embed(arguments, tokenizer)
    _print_states(texts, arguments.layers)
    occurrences = minibert.word_occurrences(arguments.word, texts, tokenizer, subwords=arguments.subwords)
    if len(occurrences) < 2:
        raise ValueError(f"{arguments.word!r} occurs once in the texts; give texts with at least two occurrences.")
    shown = occurrences.first(arguments.most)
    names = [f"{ascii_lowercase[i % 26]}{i // 26 or ''}" for i in range(len(shown))]  # a, b, ..., z, a1, b1, ...
    limited = f", the first {len(shown)} compared (--most)" if len(shown) < len(occurrences) else ""
    print(f"\n{arguments.word!r} occurs {len(occurrences)} times{limited}:")
    _print_places(names, shown, texts)
    rows = list(zip(_state_names(shown.layers), shown.similarities(), strict=True))
    best = rows[-1][0]
    all_layers = arguments.layers is None
    pooled = shown.layers[1:][-4:] if all_layers else shown.layers
    if len(pooled) > 1:
        joined = [_joined(text, pooled, arguments.layer_pooling) for text in texts]
        combined = minibert.word_occurrences(arguments.word, joined, tokenizer, subwords=arguments.subwords)
        which = f"last {len(pooled)}" if all_layers else ", ".join(map(str, pooled))
        rows.append((f"{arguments.layer_pooling} of {which}", combined.first(len(shown)).similarities()))
        best = f"the {arguments.layer_pooling} of {f'the {which} states' if all_layers else f'states {which}'}"
    _print_cosines(names, rows, best)
    if arguments.plot:
        from minibert.vectors.plot import plot_word_similarities

        _save_picture(plot_word_similarities(occurrences), arguments.plot)


def _joined(text: TokenVectors, layers: Sequence[int], layer_pooling: str) -> TokenVectors:
    """Return the tokens of a text with one vector for some of their layers, which are apart."""
    vectors = minibert.combine_layers([text.vectors[:, text.layers.index(layer)] for layer in layers], layer_pooling)
    return dataclasses.replace(text, vectors=vectors, layers=tuple(layers))


def _state_names(layers: Sequence[int]) -> list[str]:
    return [f"state {layer}" for layer in layers]


def _print_states(texts: list[TokenVectors], chosen: Any) -> None:
    """Print the tokens, if the texts are few, and which hidden states there are."""
    if len(texts) <= _MOST_TEXTS:
        _print_tokens(texts)
    else:
        print(f"{len(texts)} texts; minibert tokens prints their tokens")
    layers = texts[0].layers
    numbers = "state 0 is the output of the embeddings, state i + 1 that of layer i"
    what = numbers if chosen is None else ", ".join(_state_names(layers))
    print(f"\n{len(layers)} hidden states of shape ({sum(map(len, texts))}, {texts[0].vectors.shape[2]}): {what}")


def _print_places(names: list[str], shown: WordOccurrences, texts: list[TokenVectors]) -> None:
    """Print each occurrence with its tokens, counted over all texts, and the words around it."""
    first_tokens = [0, *accumulate(map(len, texts))]
    for name, place in zip(names, shown.places, strict=True):
        first, last = (first_tokens[place.text_index] + token for token in (place.tokens.start, place.tokens.stop - 1))
        tokens = f"token {first}" if first == last else f"tokens {first}-{last}"
        print(f"  {name}  {tokens:12} {place.in_context()}")


def _print_cosines(names: list[str], rows: list[tuple[str, Any]], best: str) -> None:
    """Print a row of cosines for each state, and the most and the least similar pair of the last row."""
    pairs = list(combinations(range(len(names)), 2))
    width = max(14, *(len(label) + 1 for label, _ in rows))
    print("\n" + " " * width + "".join(f"{f'{names[i]}-{names[j]}':>8}" for i, j in pairs) + "   (cosines)")
    for label, cosines in rows:
        print(f"{label:{width}}" + "".join(f"{cosines[pair]:8.3f}" for pair in pairs))
    if len(pairs) > 1:
        ranked = sorted((float(rows[-1][1][i, j]), f"{names[i]}-{names[j]}") for i, j in pairs)
        (low, apart), (high, close) = ranked[0], ranked[-1]
        print(f"\nMost alike, by {best}: {close} ({high:.3f}); least: {apart} ({low:.3f}).")


def _print_tokens(texts: list[TokenVectors]) -> None:
    """Print the tokens with their ids and indices in the packed batch, in columns that fill the terminal."""
    tokens = [token for text in texts for token in text.tokens]
    ids = [int(token_id) for text in texts for token_id in text.ids]
    width = max(map(len, tokens))
    columns = max(1, shutil.get_terminal_size((100, 24)).columns // (width + 15))
    first = 0
    for text in texts:
        print(f"{'' if first == 0 else chr(10)}{text.text}\n{len(text)} tokens with their ids:")
        lines = -(-len(text) // columns)
        for line in range(lines):
            row = range(first + line, first + len(text), lines)
            print("".join(f"{i:4} {tokens[i]:{width}} {ids[i]:<8} " for i in row).rstrip())
        first += len(text)


def _embed(arguments: argparse.Namespace, tokenizer: BertTokenizer) -> list[TokenVectors]:
    """Compute the requested hidden states of every text, without combining them."""
    texts = output.read_texts(arguments.texts)
    model = options.load_bert(arguments)
    layers = range(model.config.num_hidden_layers + 1) if arguments.layers is None else arguments.layers
    how = {"layer_pooling": "tokens_first", "truncation": arguments.truncation}
    return minibert.embed_tokens(model, tokenizer, texts, layers=layers, **how)


def _save_picture(figure: Any, path: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # matplotlib draws boxes for characters that its font lacks
        output.write_file(path, lambda file: figure.savefig(file, format=check_output(path, _PICTURES)[1:]))
    output.report_written(path, "picture")
