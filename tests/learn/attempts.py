"""Attempts of students, in their own styles: the exercise, what is expected, and the function.

Expected is the id of the mistake; "" for a mistake that is not known, or that two others together make; or "right".
"""

# ruff: noqa: B905, RUF005, RUF017

import math
import re
import string
import unicodedata

import numpy as np

from tests.learn.solution import (
    attention,
    bert,
    embed,
    erf,
    gelu,
    head,
    layer,
    layer_norm,
    layer_weights,
    linear,
    softmax,
)

ATTEMPTS = []


def wrong(step, expected):
    def add(function):
        ATTEMPTS.append((step, expected, function))
        return function

    return add


def right(step):
    return wrong(step, "right")


# --- tokenize ---------------------------------------------------------------------------------------------------------


def plain(text):
    return "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")


def punctuation(c):
    return unicodedata.category(c).startswith("P") or c in "$+<=>^`|~"


def split(text, is_mark=punctuation):
    words = [""]
    for c in text:
        if c.isspace():
            words.append("")
        elif is_mark(c):
            words += [c, ""]
        else:
            words[-1] += c
    return [word for word in words if word]


def pieces_of(word, vocabulary, unknown="[UNK]", mark="##"):
    result, rest = [], word
    while rest:
        for n in range(len(rest), 0, -1):
            piece = rest[:n] if not result else mark + rest[:n]
            if piece in vocabulary:
                break
        else:
            return [unknown]
        result.append(piece)
        rest = rest[n:]
    return result


def joined(words, vocabulary, **options):
    return ["[CLS]"] + sum((pieces_of(word, vocabulary, **options) for word in words), []) + ["[SEP]"]


@right("tokenize")
def _(text, vocabulary, lower_case):
    return joined(split(plain(text) if lower_case else text), vocabulary)


@right("tokenize")
def _(text, vocabulary, lower_case):
    if lower_case:
        text = plain(text)
    marks = "".join(re.escape(c) for c in set(text) if punctuation(c))
    words = re.findall(rf"[{marks}]|[^\s{marks}]+", text) if marks else text.split()
    return joined(words, vocabulary)


@wrong("tokenize", "T.always-lower")
def _(text, vocabulary, lower_case):
    return joined(split(plain(text)), vocabulary)


@wrong("tokenize", "T.never-lower")
def _(text, vocabulary, lower_case):
    return joined(split(text), vocabulary)


@wrong("tokenize", "T.case")
def _(text, vocabulary, lower_case):
    if lower_case:
        text = unicodedata.normalize("NFD", text)
        text = "".join([c for c in text if unicodedata.category(c) != "Mn"])
    return joined(split(text), vocabulary)


@wrong("tokenize", "T.accents")
def _(text, vocabulary, lower_case):
    return joined(split(text.lower() if lower_case else text), vocabulary)


@wrong("tokenize", "T.ascii")
def _(text, vocabulary, lower_case):
    if lower_case:
        text = unicodedata.normalize("NFD", text.lower()).encode("ascii", "ignore").decode()
    return joined(split(text), vocabulary)


@wrong("tokenize", "T.nfkd")
def _(text, vocabulary, lower_case):
    if lower_case:
        text = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))
    return joined(split(text), vocabulary)


@wrong("tokenize", "T.casefold")
def _(text, vocabulary, lower_case):
    return joined(split(plain(text.casefold()) if lower_case else text), vocabulary)


@wrong("tokenize", "T.accents-always")
def _(text, vocabulary, lower_case):
    if lower_case:
        text = text.lower()
    text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    return joined(split(text), vocabulary)


@wrong("tokenize", "T.punctuation")
def _(text, vocabulary, lower_case):
    return joined((plain(text) if lower_case else text).split(), vocabulary)


@wrong("tokenize", "T.punctuation-ascii")
def _(text, vocabulary, lower_case):
    return joined(split(plain(text) if lower_case else text, lambda c: c in string.punctuation), vocabulary)


@wrong("tokenize", "T.punctuation-category")
def _(text, vocabulary, lower_case):
    text = plain(text) if lower_case else text
    return joined(split(text, lambda c: unicodedata.category(c)[0] == "P"), vocabulary)


@wrong("tokenize", "T.punctuation-other")
def _(text, vocabulary, lower_case):
    return joined(split(plain(text) if lower_case else text, lambda c: not c.isalnum()), vocabulary)


@wrong("tokenize", "T.punctuation-word")
def _(text, vocabulary, lower_case):
    return joined(re.findall(r"\w+|[^\w\s]", plain(text) if lower_case else text), vocabulary)


@wrong("tokenize", "T.punctuation-dropped")
def _(text, vocabulary, lower_case):
    text = "".join(" " if punctuation(c) else c for c in (plain(text) if lower_case else text))
    return joined(text.split(), vocabulary)


@wrong("tokenize", "T.punctuation-deleted")
def _(text, vocabulary, lower_case):
    text = "".join(c for c in (plain(text) if lower_case else text) if not punctuation(c))
    return joined(text.split(), vocabulary)


@wrong("tokenize", "T.punctuation-before")
def _(text, vocabulary, lower_case):
    text = "".join(" " + c if punctuation(c) else c for c in (plain(text) if lower_case else text))
    return joined(text.split(), vocabulary)


@wrong("tokenize", "T.space")
def _(text, vocabulary, lower_case):
    text = "".join(f" {c} " if punctuation(c) else c for c in (plain(text) if lower_case else text))
    return joined([word for word in text.split(" ") if word], vocabulary)


@wrong("tokenize", "T.words")
def _(text, vocabulary, lower_case):
    words = split(plain(text) if lower_case else text)
    return ["[CLS]", *[word if word in vocabulary else "[UNK]" for word in words], "[SEP]"]


@wrong("tokenize", "T.shortest")
def _(text, vocabulary, lower_case):
    tokens = ["[CLS]"]
    for word in split(plain(text) if lower_case else text):
        pieces, start = [], 0
        while start < len(word):
            for end in range(start + 1, len(word) + 1):
                if ("##" if start else "") + word[start:end] in vocabulary:
                    pieces.append(("##" if start else "") + word[start:end])
                    start = end
                    break
            else:
                pieces = ["[UNK]"]
                break
        tokens += pieces
    return [*tokens, "[SEP]"]


@wrong("tokenize", "T.no-mark")
def _(text, vocabulary, lower_case):
    return joined(split(plain(text) if lower_case else text), vocabulary, mark="")


@wrong("tokenize", "T.mark-lost")
def _(text, vocabulary, lower_case):
    return [t.replace("##", "") for t in joined(split(plain(text) if lower_case else text), vocabulary)]


@wrong("tokenize", "T.unknown-angle")
def _(text, vocabulary, lower_case):
    return joined(split(plain(text) if lower_case else text), vocabulary, unknown="<unk>")


@wrong("tokenize", "T.rest-unknown")
def _(text, vocabulary, lower_case):
    tokens = ["[CLS]"]
    for word in split(plain(text) if lower_case else text):
        first = True
        while word:
            end = len(word)
            while end and ("" if first else "##") + word[:end] not in vocabulary:
                end -= 1
            if end == 0:
                tokens.append("[UNK]")
                break
            tokens.append(("" if first else "##") + word[:end])
            word, first = word[end:], False
    return tokens + ["[SEP]"]


@wrong("tokenize", "T.unknown-dropped")
def _(text, vocabulary, lower_case):
    return [t for t in joined(split(plain(text) if lower_case else text), vocabulary) if t != "[UNK]"]


@wrong("tokenize", "T.special")
def _(text, vocabulary, lower_case):
    return joined(split(plain(text) if lower_case else text), vocabulary)[1:-1]


@wrong("tokenize", "T.no-sep")
def _(text, vocabulary, lower_case):
    return joined(split(plain(text) if lower_case else text), vocabulary)[:-1]


@wrong("tokenize", "T.no-cls")
def _(text, vocabulary, lower_case):
    return joined(split(plain(text) if lower_case else text), vocabulary)[1:]


@wrong("tokenize", "")
def _(text, vocabulary, lower_case):
    return joined(sorted(split(plain(text) if lower_case else text)), vocabulary)


@wrong("tokenize", "")
def _(text, vocabulary, lower_case):
    return joined(list(dict.fromkeys(split(plain(text) if lower_case else text))), vocabulary)[::-1]


@wrong("tokenize", "")
def _(text, vocabulary, lower_case):
    return joined(text.lower().split(), vocabulary)[1:]


# --- embed ------------------------------------------------------------------------------------------------------------


@right("embed")
def _(token_ids, token_types, words, positions, types):
    return np.stack([words[i] + positions[p] + types[k] for p, (i, k) in enumerate(zip(token_ids, token_types))])


@right("embed")
def _(token_ids, token_types, words, positions, types):
    one_hot = np.eye(len(types))[token_types]
    return np.take(words, token_ids, axis=0) + positions[np.arange(token_ids.size)] + one_hot @ types


@wrong("embed", "E2.missing")
def _(token_ids, token_types, words, positions, types):
    return words[token_ids] + positions[np.arange(len(token_ids))]


@wrong("embed", "E4.positions")
def _(token_ids, token_types, words, positions, types):
    return words[token_ids] + types[token_types]


@wrong("embed", "E1.first")
def _(token_ids, token_types, words, positions, types):
    return words[token_ids] + positions[: len(token_ids)] + types[np.zeros(len(token_ids), int)]


@wrong("embed", "E3.plus-1")
def _(token_ids, token_types, words, positions, types):
    return np.array([words[t] + positions[i + 1] + types[k] for i, (t, k) in enumerate(zip(token_ids, token_types))])


@wrong("embed", "E3.zero")
def _(token_ids, token_types, words, positions, types):
    return words[token_ids] + positions[0] + types[token_types]


@wrong("embed", "E3.changes")
def _(token_ids, token_types, words, positions, types):
    rows, position, before = [], 0, 0
    for token, kind in zip(token_ids, token_types):
        position = 0 if kind != before else position
        rows.append(words[token] + positions[position] + types[kind])
        position, before = position + 1, kind
    return np.array(rows)


@wrong("embed", "E4.scaled")
def _(token_ids, token_types, words, positions, types):
    return words[token_ids] * np.sqrt(words.shape[1]) + positions[: len(token_ids)] + types[token_types]


@wrong("embed", "E4.mean")
def _(token_ids, token_types, words, positions, types):
    return np.mean([words[token_ids], positions[: len(token_ids)], types[token_types]], axis=0)


@wrong("embed", "E1.numbers")
def _(token_ids, token_types, words, positions, types):
    return words[token_ids] + positions[: len(token_ids)] + token_types[:, None]


@wrong("embed", "E1.inverted")
def _(token_ids, token_types, words, positions, types):
    return words[token_ids] + positions[: len(token_ids)] + types[::-1][token_types]


@wrong("embed", "E4.product")
def _(token_ids, token_types, words, positions, types):
    return words[token_ids] * positions[: len(token_ids)] + types[token_types]


@wrong("embed", "E4.words-only")
def _(token_ids, token_types, words, positions, types):
    return words[token_ids]


@wrong("embed", "T1.shifted")
def _(token_ids, token_types, words, positions, types):
    return words[(token_ids + 1) % len(words)] + positions[: len(token_ids)] + types[token_types]


@wrong("embed", "D.factor")
def _(token_ids, token_types, words, positions, types):
    return (words[token_ids] + positions[: len(token_ids)] + types[token_types]) / 2


@wrong("embed", "")
def _(token_ids, token_types, words, positions, types):
    return words[token_ids] + positions[: 2 * len(token_ids) : 2] + types[0]


# --- layer_norm -------------------------------------------------------------------------------------------------------


@right("layer_norm")
def _(x, weight, bias, eps):
    return ((x - np.mean(x, -1)[:, None]) / np.sqrt(np.var(x, -1)[:, None] + eps)) * weight[None] + bias[None]


@right("layer_norm")
def _(x, weight, bias, eps):
    mean = np.einsum("th->t", x)[:, np.newaxis] / x.shape[1]
    centered = x - mean
    deviation = ((centered**2).sum(1) / x.shape[1] + eps) ** 0.5
    return (centered.T / deviation).T * weight + bias


@wrong("layer_norm", "layer_norm.columns")
def _(x, weight, bias, eps):
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + eps) * weight + bias


@wrong("layer_norm", "layer_norm.whole")
def _(x, weight, bias, eps):
    return (x - np.mean(x)) / np.sqrt(np.var(x) + eps) * weight + bias


@wrong("layer_norm", "layer_norm.variance-whole")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var() + eps) * weight + bias


@wrong("layer_norm", "layer_norm.shift-whole")
def _(x, weight, bias, eps):
    return (x - x.mean()) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


@wrong("layer_norm", "layer_norm.shift-columns")
def _(x, weight, bias, eps):
    return (x - x.mean(0)) / np.sqrt(x.var(1, keepdims=True) + eps) * weight + bias


@wrong("layer_norm", "N3.unbiased")
def _(x, weight, bias, eps):
    centered = x - x.mean(1, keepdims=True)
    return centered / np.sqrt((centered**2).sum(1, keepdims=True) / (x.shape[1] - 1) + eps) * weight + bias


@wrong("layer_norm", "N2.outside")
def _(x, weight, bias, eps):
    return weight * (x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + eps) + bias


@wrong("layer_norm", "N3.annotated")
def _(x, weight, bias, eps):
    return weight * (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + eps) + bias


@wrong("layer_norm", "N1.zero")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * weight + bias


@wrong("layer_norm", "N1.1e-5")
def _(x, weight, bias, eps=1e-5):
    eps = 1e-5
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


@wrong("layer_norm", "layer_norm.no-root")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + eps) * weight + bias


@wrong("layer_norm", "layer_norm.std")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.std(-1, keepdims=True) + eps) * weight + bias


@wrong("layer_norm", "N4.plain")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


@wrong("layer_norm", "N4.no-bias")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight


@wrong("layer_norm", "N4.swapped")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * bias + weight


@wrong("layer_norm", "layer_norm.sum-first")
def _(x, weight, bias, eps):
    return ((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) + bias) * weight


@wrong("layer_norm", "layer_norm.parentheses")
def _(x, weight, bias, eps):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return x - mean / np.sqrt(variance + eps) * weight + bias


@wrong("layer_norm", "N4.rms")
def _(x, weight, bias, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight + bias


@wrong("layer_norm", "N3.raw")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight + bias


@wrong("layer_norm", "N3.absolute")
def _(x, weight, bias, eps):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(np.abs(centered).mean(-1, keepdims=True) + eps) * weight + bias


@wrong("layer_norm", "N3.sum")
def _(x, weight, bias, eps):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(np.square(centered).sum(-1, keepdims=True) + eps) * weight + bias


@wrong("layer_norm", "N2.after")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True)) + eps * weight + bias


@wrong("layer_norm", "layer_norm.squares-columns")
def _(x, weight, bias, eps):
    centered = x - x.mean(axis=1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=0, keepdims=True) + eps) * weight + bias


@wrong("layer_norm", "N4.no-weight")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) + bias


@wrong("layer_norm", "N3.min")
def _(x, weight, bias, eps):
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    return (x - low) / (high - low + eps) * weight + bias


@wrong("layer_norm", "")
def _(x, weight, bias, eps):
    return (x - x.mean(0)) / (x.std(0) + eps) * weight + bias


@wrong("layer_norm", "")
def _(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, ddof=1, keepdims=True) + eps) * bias + weight


# --- linear -----------------------------------------------------------------------------------------------------------


@right("linear")
def _(x, weight, bias):
    return np.array([[np.dot(row, w) + b for w, b in zip(weight, bias)] for row in x])


@right("linear")
def _(x, weight, bias):
    return (weight @ x.T + bias.reshape(-1, 1)).T


@wrong("linear", "W2.all")
def _(x, weight, bias):
    return np.dot(x, np.transpose(weight))


@wrong("linear", "W1.all")
def _(x, weight, bias):
    return np.dot(x, weight) + bias


@wrong("linear", "linear.times")
def _(x, weight, bias):
    return x @ weight.T * bias


@wrong("linear", "linear.each-product")
def _(x, weight, bias):
    result = np.zeros((len(x), len(weight)))
    for k in range(x.shape[1]):
        result += x[:, k : k + 1] * weight[:, k] + bias
    return result


@wrong("linear", "linear.last")
def _(x, weight, bias):
    result = np.zeros((len(x), len(weight))) + bias
    for k in range(x.shape[1] - 1):
        result += x[:, k : k + 1] * weight[:, k]
    return result


@wrong("linear", "linear.first")
def _(x, weight, bias):
    return sum(np.outer(x[:, k], weight[:, k]) for k in range(1, x.shape[1])) + bias


@wrong("linear", "linear.one")
def _(x, weight, bias):
    for k in range(x.shape[1]):
        result = np.outer(x[:, k], weight[:, k]) + bias
    return result


@wrong("linear", "W1.reshaped")
def _(x, weight, bias):
    return x @ weight.reshape(weight.shape[1], weight.shape[0]) + bias


@wrong("linear", "linear.total")
def _(x, weight, bias):
    return x @ weight.T + np.sum(bias)


@wrong("linear", "")
def _(x, weight, bias):
    return x @ weight.T + bias * x[:, :1]


@wrong("linear", "")
def _(x, weight, bias):
    return x @ (weight + weight.mean()).T + bias


# --- softmax ----------------------------------------------------------------------------------------------------------


@right("softmax")
def _(scores):
    scores = scores - np.max(scores, -1)[..., None]
    return np.exp(scores - np.log(np.exp(scores).sum(-1, keepdims=True)))


@right("softmax")
def _(scores):
    shifted = np.swapaxes(scores, 0, -1) - np.swapaxes(scores, 0, -1).max(axis=0)
    return np.swapaxes(np.exp(shifted) / np.exp(shifted).sum(axis=0), 0, -1)


@wrong("softmax", "softmax.whole")
def _(scores):
    e = np.exp(scores - np.max(scores))
    return e / np.sum(e)


@wrong("softmax", "A9.no-shift")
def _(scores):
    return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)


@wrong("softmax", "A9.queries")
def _(scores):
    e = np.exp(scores - scores.max(axis=-2, keepdims=True))
    return e / e.sum(axis=-2, keepdims=True)


@wrong("softmax", "A9.heads")
def _(scores):
    e = np.exp(scores - scores.max(axis=0, keepdims=True))
    return e / e.sum(axis=0, keepdims=True)


@wrong("softmax", "softmax.no-sum")
def _(scores):
    return np.exp(scores - scores.max(axis=-1, keepdims=True))


@wrong("softmax", "softmax.max")
def _(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.max(axis=-1, keepdims=True)


@wrong("softmax", "softmax.base-2")
def _(scores):
    e = np.exp2(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@wrong("softmax", "softmax.base-2.718")
def _(scores):
    e = 2.718 ** (scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@wrong("softmax", "softmax.no-exp")
def _(scores):
    return scores / scores.sum(axis=-1, keepdims=True)


@wrong("softmax", "softmax.log")
def _(scores):
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@wrong("softmax", "softmax.divided")
def _(scores):
    e = np.exp(scores / scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@wrong("softmax", "softmax.sigmoid-share")
def _(scores):
    s = 1 / (1 + np.exp(-scores))
    return s / s.sum(-1, keepdims=True)


@wrong("softmax", "softmax.shift-above")
def _(scores):
    return np.exp(scores - scores.max(-1, keepdims=True)) / np.exp(scores).sum(-1, keepdims=True)


@wrong("softmax", "softmax.minus-shift")
def _(scores):
    e = np.exp(scores.max(-1, keepdims=True) - scores)
    return e / e.sum(-1, keepdims=True)


@wrong("softmax", "softmax.clipped")
def _(scores):
    e = np.exp(np.clip(scores, -50, 50))
    return e / e.sum(-1, keepdims=True)


@wrong("softmax", "softmax.tables")
def _(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum((-1, -2), keepdims=True)


@wrong("softmax", "softmax.half")
def _(scores):
    e = np.exp((scores - scores.max(-1, keepdims=True)) / 2)
    return e / e.sum(-1, keepdims=True)


@wrong("softmax", "")
def _(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + 0.01)


# --- head -------------------------------------------------------------------------------------------------------------


@right("head")
def _(query, key, value):
    rows = []
    for q in query:
        shares = np.exp(key @ q / len(q) ** 0.5)
        rows.append((shares[:, None] * value).sum(axis=0) / shares.sum())
    return np.array(rows)


@right("head")
def _(query, key, value):
    return (value.T @ softmax((query * query.shape[-1] ** -0.5) @ key.T).T).T


@wrong("head", "A1.none")
def _(query, key, value):
    return softmax(np.matmul(query, key.T)) @ value


@wrong("head", "head.times")
def _(query, key, value):
    return softmax(query @ key.T * np.sqrt(query.shape[-1])) @ value


@wrong("head", "A2.twice")
def _(query, key, value):
    return softmax(query @ key.T / query.shape[-1]) @ value


@wrong("head", "head.after")
def _(query, key, value):
    return softmax(query @ key.T) / np.sqrt(query.shape[1]) @ value


@wrong("head", "head.after")
def _(query, key, value):
    return (softmax(query @ key.T) @ value) / np.sqrt(query.shape[1])


@wrong("head", "head.transposed")
def _(query, key, value):
    probs = softmax(query @ key.T / np.sqrt(query.shape[1]))
    return probs.T @ value


@wrong("head", "head.tokens")
def _(query, key, value):
    return softmax(query @ key.T / np.sqrt(query.shape[0])) @ value


@wrong("head", "head.swapped")
def _(query, key, value):
    return softmax(key @ query.T / np.sqrt(key.shape[1])) @ value


@wrong("head", "head.no-softmax")
def _(query, key, value):
    return query @ key.T / np.sqrt(query.shape[1]) @ value


@wrong("head", "softmax.whole")
def _(query, key, value):
    e = np.exp(query @ key.T / np.sqrt(query.shape[1]))
    return e / e.sum() @ value


@wrong("head", "A9.queries")
def _(query, key, value):
    e = np.exp(query @ key.T / np.sqrt(query.shape[1]))
    return e / e.sum(axis=0) @ value


@wrong("head", "A2.64")
def _(query, key, value):
    return softmax(query @ key.T / 8) @ value


@wrong("head", "A2.32")
def _(query, key, value):
    return softmax(query @ key.T / np.sqrt(32)) @ value


@wrong("head", "A7.causal")
def _(query, key, value):
    scores = query @ key.T / np.sqrt(query.shape[1])
    scores[np.triu_indices(len(scores), 1)] = -1e9
    return softmax(scores) @ value


@wrong("head", "head.query-query")
def _(query, key, value):
    return softmax(query @ query.T / np.sqrt(query.shape[1])) @ value


@wrong("head", "head.adds-key")
def _(query, key, value):
    return softmax(query @ key.T / np.sqrt(query.shape[1])) @ key


@wrong("head", "head.plus-query")
def _(query, key, value):
    return softmax(query @ key.T / np.sqrt(query.shape[1])) @ value + query


@wrong("head", "")
def _(query, key, value):
    return softmax(query @ key.T / np.sqrt(query.shape[1]) + np.eye(len(query))) @ value


@wrong("head", "")
def _(query, key, value):
    return softmax(key @ query.T) @ value


# --- attention --------------------------------------------------------------------------------------------------------


def projected(x, weights, names=("query", "key", "value")):
    return [linear(x, weights[f"attention.self.{n}.weight"], weights[f"attention.self.{n}.bias"]) for n in names]


def output(context, weights):
    return linear(context, weights["attention.output.dense.weight"], weights["attention.output.dense.bias"])


def of_heads(q, k, v):
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    return softmax(scores) @ v


@right("attention")
def _(x, weights, num_heads):
    q, k, v = (one.reshape(len(x), num_heads, -1).swapaxes(0, 1) for one in projected(x, weights))
    return output(of_heads(q, k, v).swapaxes(0, 1).reshape(len(x), -1), weights)


@wrong("attention", "A3.split")
def _(x, weights, num_heads):
    q, k, v = (one.reshape(num_heads, len(x), -1) for one in projected(x, weights))
    return output(of_heads(q, k, v).transpose(1, 0, 2).reshape(x.shape), weights)


@wrong("attention", "A3.both")
def _(x, weights, num_heads):
    q, k, v = (one.reshape(num_heads, len(x), -1) for one in projected(x, weights))
    return output(of_heads(q, k, v).reshape(x.shape), weights)


@wrong("attention", "A3.merge")
def _(x, weights, num_heads):
    q, k, v = (one.reshape(len(x), num_heads, -1).transpose(1, 0, 2) for one in projected(x, weights))
    return output(of_heads(q, k, v).reshape(x.shape), weights)


@wrong("attention", "A3.interleaved")
def _(x, weights, num_heads):
    q, k, v = (one.reshape(len(x), -1, num_heads).transpose(2, 0, 1) for one in projected(x, weights))
    return output(of_heads(q, k, v).transpose(1, 2, 0).reshape(x.shape), weights)


@wrong("attention", "A3.split-interleaved")
def _(x, weights, num_heads):
    q, k, v = projected(x, weights)
    heads = [head(q[:, a::num_heads], k[:, a::num_heads], v[:, a::num_heads]) for a in range(num_heads)]
    return output(np.hstack(heads), weights)


@wrong("attention", "attention.no-dense")
def _(x, weights, num_heads):
    q, k, v = (np.split(one, num_heads, axis=-1) for one in projected(x, weights))
    return np.hstack([head(*three) for three in zip(q, k, v)])


@wrong("attention", "attention.one-head")
def _(x, weights, num_heads):
    return output(head(*projected(x, weights)), weights)


@wrong("attention", "attention.residual")
def _(x, weights, num_heads):
    q, k, v = (np.split(one, num_heads, axis=-1) for one in projected(x, weights))
    return x + output(np.hstack([head(*three) for three in zip(q, k, v)]), weights)


@wrong("attention", "A2.hidden")
def _(x, weights, num_heads):
    q, k, v = (one.reshape(len(x), num_heads, -1).transpose(1, 0, 2) for one in projected(x, weights))
    probs = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(x.shape[1]))
    return output((probs @ v).transpose(1, 0, 2).reshape(x.shape), weights)


@wrong("attention", "A1.none")
def _(x, weights, num_heads):
    q, k, v = (one.reshape(len(x), num_heads, -1).transpose(1, 0, 2) for one in projected(x, weights))
    return output((softmax(q @ k.transpose(0, 2, 1)) @ v).transpose(1, 0, 2).reshape(x.shape), weights)


@wrong("attention", "A4.query-key")
def _(x, weights, num_heads):
    q, k, v = (np.split(one, num_heads, axis=-1) for one in projected(x, weights, ("key", "query", "value")))
    return output(np.hstack([head(*three) for three in zip(q, k, v)]), weights)


@wrong("attention", "A4.key-value")
def _(x, weights, num_heads):
    q, k, v = (np.split(one, num_heads, axis=-1) for one in projected(x, weights, ("query", "value", "key")))
    return output(np.hstack([head(*three) for three in zip(q, k, v)]), weights)


@wrong("attention", "W2.attention.self")
def _(x, weights, num_heads):
    q, k, v = (np.split(x @ weights[f"attention.self.{n}.weight"].T, num_heads, 1) for n in ("query", "key", "value"))
    return output(np.hstack([head(*three) for three in zip(q, k, v)]), weights)


@wrong("attention", "W2.attention.output.dense")
def _(x, weights, num_heads):
    q, k, v = (np.split(one, num_heads, axis=-1) for one in projected(x, weights))
    return np.hstack([head(*three) for three in zip(q, k, v)]) @ weights["attention.output.dense.weight"].T


@wrong("attention", "W1.all")
def _(x, weights, num_heads):
    def dense(x, name):
        return x @ weights[name + ".weight"] + weights[name + ".bias"]

    q, k, v = (np.split(dense(x, "attention.self." + n), num_heads, axis=1) for n in ("query", "key", "value"))
    return dense(np.hstack([head(*three) for three in zip(q, k, v)]), "attention.output.dense")


@wrong("attention", "W1.attention.self")
def _(x, weights, num_heads):
    q, k, v = (
        np.split(x @ weights[f"attention.self.{n}.weight"] + weights[f"attention.self.{n}.bias"], num_heads, axis=1)
        for n in ("query", "key", "value")
    )
    return output(np.hstack([head(*three) for three in zip(q, k, v)]), weights)


@wrong("attention", "A3.sizes")
def _(x, weights, num_heads):
    size = x.shape[1] // num_heads
    q, k, v = projected(x, weights)
    parts = [slice(i * num_heads, (i + 1) * num_heads) for i in range(size)]
    return output(np.hstack([head(q[:, p], k[:, p], v[:, p]) for p in parts]), weights)


@wrong("attention", "A3.reversed")
def _(x, weights, num_heads):
    q, k, v = (np.split(one, num_heads, axis=-1) for one in projected(x, weights))
    context = np.zeros((len(x), 0))
    for three in zip(q, k, v):
        context = np.hstack([head(*three), context])
    return output(context, weights)


@wrong("attention", "attention.twelve")
def _(x, weights, num_heads):
    q, k, v = (np.split(one, 12, axis=-1) for one in projected(x, weights))
    return output(np.hstack([head(*three) for three in zip(q, k, v)]), weights)


@wrong("attention", "attention.next-key")
def _(x, weights, num_heads):
    q, k, v = (np.split(one, num_heads, axis=-1) for one in projected(x, weights))
    return output(np.hstack([head(*three) for three in zip(q, k[1:] + k[:1], v)]), weights)


# --- gelu -------------------------------------------------------------------------------------------------------------


@right("gelu")
def _(x):
    return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in np.ravel(x)]).reshape(x.shape)


@wrong("gelu", "G1.tanh")
def _(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


@wrong("gelu", "G3.quick")
def _(x):
    return x * (1 / (1 + np.exp(-1.702 * x)))


@wrong("gelu", "gelu.no-x")
def _(x):
    return 0.5 * (1 + erf(x / np.sqrt(2)))


@wrong("gelu", "gelu.no-half")
def _(x):
    return x * (1 + erf(x / np.sqrt(2)))


@wrong("gelu", "gelu.no-root")
def _(x):
    return x * 0.5 * (1 + erf(x))


@wrong("gelu", "gelu.half-inside")
def _(x):
    return x * 0.5 * (1 + erf(x / 2))


@wrong("gelu", "gelu.root-times")
def _(x):
    return x * 0.5 * (1 + erf(x * np.sqrt(2)))


@wrong("gelu", "gelu.parentheses")
def _(x):
    return x / 2 * 1 + erf(x / np.sqrt(2))


@wrong("gelu", "gelu.minus")
def _(x):
    return x / 2 * (1 - erf(x / np.sqrt(2)))


@wrong("gelu", "G3.relu")
def _(x):
    return np.where(x > 0, x, 0)


@wrong("gelu", "G3.silu")
def _(x):
    return x / (1 + np.exp(-x))


@wrong("gelu", "gelu.no-one")
def _(x):
    return x / 2 * erf(x / np.sqrt(2))


@wrong("gelu", "G1.tanh-root")
def _(x):
    return x / 2 * (1 + np.tanh(x / np.sqrt(2)))


@wrong("gelu", "gelu.density")
def _(x):
    return x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


@wrong("gelu", "")
def _(x):
    return x / 2 * (1 + erf(x / np.sqrt(3)))


# --- layer ------------------------------------------------------------------------------------------------------------


def normed(x, weights, name, eps):
    return layer_norm(x, weights[name + ".LayerNorm.weight"], weights[name + ".LayerNorm.bias"], eps)


def dense(x, weights, name):
    return linear(x, weights[name + ".weight"], weights[name + ".bias"])


def feed_forward(x, weights):
    return dense(gelu(dense(x, weights, "intermediate.dense")), weights, "output.dense")


@right("layer")
def _(x, weights, num_heads, eps):
    y = normed(attention(x, weights, num_heads) + x, weights, "attention.output", eps)
    return normed(feed_forward(y, weights) + y, weights, "output", eps)


@wrong("layer", "C1.no-attention")
def _(x, weights, num_heads, eps):
    y = normed(attention(x, weights, num_heads), weights, "attention.output", eps)
    return normed(y + feed_forward(y, weights), weights, "output", eps)


@wrong("layer", "C1.no-output")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    return normed(feed_forward(y, weights), weights, "output", eps)


@wrong("layer", "C1.layer-input")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    return normed(x + feed_forward(y, weights), weights, "output", eps)


@wrong("layer", "layer.input")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    return normed(y + feed_forward(x, weights), weights, "output", eps)


@wrong("layer", "layer.input-and-sum")
def _(x, weights, num_heads, eps):
    return normed(x + feed_forward(x, weights), weights, "output", eps)


@wrong("layer", "layer.gelu-twice")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    return normed(y + gelu(feed_forward(y, weights)), weights, "output", eps)


@wrong("layer", "layer.gelu-late")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    inner = dense(y, weights, "intermediate.dense")
    return normed(y + gelu(dense(inner, weights, "output.dense")), weights, "output", eps)


@wrong("layer", "G3.none")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    inner = dense(y, weights, "intermediate.dense")
    return normed(y + dense(inner, weights, "output.dense"), weights, "output", eps)


@wrong("layer", "G3.relu")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    inner = np.maximum(0, dense(y, weights, "intermediate.dense"))
    return normed(y + dense(inner, weights, "output.dense"), weights, "output", eps)


@wrong("layer", "C1.pre-norm")
def _(x, weights, num_heads, eps):
    x = x + attention(normed(x, weights, "attention.output", eps), weights, num_heads)
    return x + feed_forward(normed(x, weights, "output", eps), weights)


@wrong("layer", "C1.norm-inside")
def _(x, weights, num_heads, eps):
    x = x + normed(attention(x, weights, num_heads), weights, "attention.output", eps)
    return x + normed(feed_forward(x, weights), weights, "output", eps)


@wrong("layer", "N4.no-attention")
def _(x, weights, num_heads, eps):
    y = x + attention(x, weights, num_heads)
    return normed(y + feed_forward(y, weights), weights, "output", eps)


@wrong("layer", "N4.no-output")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    return y + feed_forward(y, weights)


@wrong("layer", "W3.norms")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "output", eps)
    return normed(y + feed_forward(y, weights), weights, "attention.output", eps)


@wrong("layer", "W3.first-norm")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    return normed(y + feed_forward(y, weights), weights, "attention.output", eps)


@wrong("layer", "layer.no-feed-forward")
def _(x, weights, num_heads, eps):
    return normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)


@wrong("layer", "layer.parallel")
def _(x, weights, num_heads, eps):
    return normed(x + attention(x, weights, num_heads) + feed_forward(x, weights), weights, "output", eps)


@wrong("layer", "N1.1e-12")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", 1e-12)
    return normed(y + feed_forward(y, weights), weights, "output", 1e-12)


@wrong("layer", "layer.twelve-heads")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, 12), weights, "attention.output", eps)
    return normed(y + feed_forward(y, weights), weights, "output", eps)


@wrong("layer", "W2.feed-forward")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    inner = gelu(y @ weights["intermediate.dense.weight"].T)
    return normed(y + inner @ weights["output.dense.weight"].T, weights, "output", eps)


@wrong("layer", "C1.twice-attention")
def _(x, weights, num_heads, eps):
    def residual(x):
        return x + attention(x, weights, num_heads)

    y = normed(x + residual(x), weights, "attention.output", eps)
    return normed(y + feed_forward(y, weights), weights, "output", eps)


@wrong("layer", "")
def _(x, weights, num_heads, eps):
    y = normed(x + attention(x, weights, num_heads), weights, "attention.output", eps)
    return normed(y + 0.5 * feed_forward(y, weights), weights, "output", eps)


# --- bert -------------------------------------------------------------------------------------------------------------


def first_state(token_ids, token_types, weights, eps):
    tables = [weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    return normed(embed(token_ids, token_types, *tables), weights, "embeddings", eps)


def states_of(token_ids, token_types, weights, config):
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    states = [first_state(token_ids, token_types, weights, eps)]
    for i in range(config["num_hidden_layers"]):
        states.append(layer(states[-1], layer_weights(weights, i), heads, eps))
    return states


def unit(vector):
    return vector / np.linalg.norm(vector)


@right("bert")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    return tuple(states), unit(states[-1].sum(axis=0))


@right("bert")
def _(token_ids, token_types, weights, config):
    states = np.array(states_of(token_ids, token_types, weights, config))
    return states, unit(states[-1].mean(0))


@wrong("bert", "P2.cls")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    return states, unit(states[-1][0])


@wrong("bert", "P2.max")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    return states, unit(states[-1].max(0))


@wrong("bert", "P2.states")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    return states, unit(np.mean(states, axis=(0, 1)))


@wrong("bert", "P2.special")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    return states, unit(states[-1][1:-1].mean(0))


@wrong("bert", "P2.features")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    return states, unit(states[-1].mean(-1))


@wrong("bert", "P3.raw")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    return states, states[-1].mean(0)


@wrong("bert", "P3.twice")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    mean = states[-1].mean(0)
    return states, mean / np.sum(mean**2)


@wrong("bert", "P3.sum")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    mean = states[-1].mean(0)
    return states, mean / np.sum(mean)


@wrong("bert", "P3.mean")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    mean = states[-1].mean(0)
    return states, mean / np.sqrt((mean**2).mean())


@wrong("bert", "P2.first-state")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    return states, unit(states[0].mean(0))


@wrong("bert", "E4.norm")
def _(token_ids, token_types, weights, config):
    tables = [weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    states = [embed(token_ids, token_types, *tables)]
    for i in range(config["num_hidden_layers"]):
        states += [layer(states[i], layer_weights(weights, i), config["num_attention_heads"], config["layer_norm_eps"])]
    return states, unit(states[-1].mean(0))


@wrong("bert", "W3.first")
def _(token_ids, token_types, weights, config):
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    states, first = [first_state(token_ids, token_types, weights, eps)], layer_weights(weights, 0)
    for _ in range(config["num_hidden_layers"]):
        states.append(layer(states[-1], first, heads, eps))
    return states, unit(states[-1].mean(0))


@wrong("bert", "bert.first-input")
def _(token_ids, token_types, weights, config):
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    x = first_state(token_ids, token_types, weights, eps)
    states = [x, *(layer(x, layer_weights(weights, i), heads, eps) for i in range(config["num_hidden_layers"]))]
    return states, unit(states[-1].mean(0))


@wrong("bert", "bert.same-states")
def _(token_ids, token_types, weights, config):
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    x = first_state(token_ids, token_types, weights, eps)
    states = [x]
    for i in range(config["num_hidden_layers"]):
        x[:] = layer(x, layer_weights(weights, i), heads, eps)
        states.append(x)
    return states, unit(x.mean(0))


@wrong("bert", "bert.fewer")
def _(token_ids, token_types, weights, config):
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    states = [first_state(token_ids, token_types, weights, eps)]
    for i in range(config["num_hidden_layers"] - 1):
        states.append(layer(states[-1], layer_weights(weights, i), heads, eps))
    return states, unit(states[-1].mean(0))


@wrong("bert", "bert.no-first")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    return states[1:], unit(states[-1].mean(0))


@wrong("bert", "bert.heads")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config | {"num_attention_heads": 12})
    return states, unit(states[-1].mean(0))


@wrong("bert", "N1.1e-12")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config | {"layer_norm_eps": 1e-12})
    return states, unit(states[-1].mean(0))


@wrong("bert", "E1.first")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, 0 * token_types, weights, config)
    return states, unit(states[-1].mean(0))


@wrong("bert", "P2.unit-tokens")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    tokens = states[-1] / np.linalg.norm(states[-1], axis=1, keepdims=True)
    return states, unit(tokens.mean(0))


@wrong("bert", "")
def _(token_ids, token_types, weights, config):
    states = states_of(token_ids, token_types, weights, config)
    return states, unit(states[-1].mean(0) + states[-1][0])


# --- batch ------------------------------------------------------------------------------------------------------------


def batched(token_ids, token_types, mask, weights, config, scores_of=None, mean_of=None):
    """Compute all texts at once, in arrays of four axes."""
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    words, positions, types = (weights[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position", "token_type"))
    x = words[token_ids] + positions[: token_ids.shape[1]] + types[token_types]
    x = normed(x, weights, "embeddings", eps)
    for i in range(config["num_hidden_layers"]):
        w = layer_weights(weights, i)
        q, k, v = (one.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for one in projected(x, w))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        shares = softmax(np.where(mask[:, None, None], scores, -1e9)) if scores_of is None else scores_of(scores, mask)
        x = normed(x + output((shares @ v).transpose(0, 2, 1, 3).reshape(x.shape), w), w, "attention.output", eps)
        x = normed(x + feed_forward(x, w), w, "output", eps)
    mean = (x * mask[..., None]).sum(1) / mask.sum(1)[:, None] if mean_of is None else mean_of(x, mask)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


@right("batch")
def _(token_ids, token_types, mask, weights, config):
    return batched(token_ids, token_types, mask, weights, config)


@right("batch")
def _(token_ids, token_types, mask, weights, config):
    rows = [states_of(ids[m > 0], types[m > 0], weights, config) for ids, types, m in zip(token_ids, token_types, mask)]
    return [unit(states[-1].mean(0)) for states in rows]


@wrong("batch", "A5.none")
def _(*given):
    return batched(*given, scores_of=lambda scores, mask: softmax(scores))


@wrong("batch", "P1.padding")
def _(*given):
    return batched(*given, mean_of=lambda x, mask: x.mean(1))


@wrong("batch", "A5.all")
def _(token_ids, token_types, mask, weights, config):
    return batched(token_ids, token_types, np.ones_like(mask), weights, config)


@wrong("batch", "A6.added")
def _(*given):
    return batched(*given, scores_of=lambda scores, mask: softmax(scores + mask[:, None, None]))


@wrong("batch", "A6.multiplied")
def _(*given):
    return batched(*given, scores_of=lambda scores, mask: softmax(scores * mask[:, None, None]))


@wrong("batch", "A6.after")
def _(*given):
    return batched(*given, scores_of=lambda scores, mask: softmax(scores) * mask[:, None, None])


@wrong("batch", "A6.minus-ten")
def _(*given):
    return batched(*given, scores_of=lambda scores, mask: softmax(scores - 10.0 * (1 - mask)[:, None, None]))


@wrong("batch", "A6.inverted")
def _(*given):
    return batched(*given, scores_of=lambda scores, mask: softmax(np.where(mask[:, None, None], -1e9, scores)))


@wrong("batch", "A6.queries")
def _(*given):
    return batched(*given, scores_of=lambda scores, mask: softmax(np.where(mask[:, None, :, None], scores, -1e9)))


@wrong("batch", "P2.cls")
def _(*given):
    return batched(*given, mean_of=lambda x, mask: x[:, 0])


@wrong("batch", "P2.last")
def _(*given):
    return batched(*given, mean_of=lambda x, mask: x[:, -1])


@wrong("batch", "P1.max")
def _(*given):
    return batched(*given, mean_of=lambda x, mask: np.where(mask[..., None], x, -np.inf).max(1))


@wrong("batch", "A6.zero-ids")
def _(token_ids, token_types, mask, weights, config):
    return batched(token_ids, token_types, (token_ids != 0).astype(int), weights, config)


@wrong("batch", "")
def _(*given):
    return batched(*given, scores_of=lambda scores, mask: softmax(np.where(mask[:1, None, None], scores, -3.0)))


# --- found by writing sixty attempts without a look at hints.md -------------------------------------------------------


@wrong("layer_norm", "layer_norm.sum-above")
def _(x, weight, bias, eps):
    deviation = np.sqrt(x.var(axis=1, keepdims=True) + eps)
    return ((x - x.mean(axis=1, keepdims=True)) * weight + bias) / deviation


@wrong("layer_norm", "layer_norm.factor-sum")
def _(x, weight, bias, eps):
    deviation = np.sqrt(x.var(axis=1, keepdims=True) + eps)
    return (x - x.mean(axis=1, keepdims=True)) / deviation * (weight + bias)


@wrong("softmax", "softmax.shift-whole")
def _(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum(axis=-1, keepdims=True)


@wrong("softmax", "softmax.shift-whole")
def _(scores):
    powers = np.exp(scores.astype(np.float64) - scores.max())
    return powers / powers.sum(axis=-1, keepdims=True)


@right("softmax")
def _(scores):
    largest = scores.max(axis=-1, keepdims=True)
    return np.exp(scores - (largest + np.log(np.exp(scores - largest).sum(axis=-1, keepdims=True))))


@wrong("gelu", "gelu.root-outside")
def _(x):
    return x / 2 * (1 + erf(x) / np.sqrt(2))


@wrong("gelu", "gelu.root-sum")
def _(x):
    return 0.5 * x * (1 + erf(x)) / 2**0.5


# --- found by another hundred attempts without a look at hints.md -----------------------------------------------------


@wrong("tokenize", "T.punctuation-digits")
def _(text, vocabulary, lower_case):
    words = split(plain(text) if lower_case else text, lambda c: punctuation(c) or c in string.digits)
    return joined(words, vocabulary)


@wrong("linear", "linear.integers")
def _(x, weight, bias):
    result = np.zeros((len(x), len(weight)), int)
    for n in range(len(weight)):
        result[:, n] = x @ weight[n] + bias[n]
    return result


@wrong("linear", "linear.not-last")
def _(x, weight, bias):
    result = np.zeros((len(x), len(weight)), np.float32)
    for n in range(len(weight) - 1):
        result[:, n] = x @ weight[n] + bias[n]
    return result


@wrong("softmax", "softmax.plus-exp-0")
def _(scores):
    most = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - most)
    return powers / (np.exp(-most) + powers.sum(axis=-1, keepdims=True))


def heads_of(x, weights, num_heads, choose):
    size = x.shape[1] // num_heads
    query, key, value = projected(x, weights)
    context = np.zeros_like(x)
    for a in range(num_heads):
        if (one := choose(a, size, query, key, value)) is not None:
            context[:, a * size : (a + 1) * size] = head(*one)
    return output(context, weights)


@wrong("attention", "A3.next")
def _(x, weights, num_heads):
    return heads_of(x, weights, num_heads, lambda a, size, *three: [one[:, a : a + size] for one in three])


@wrong("attention", "attention.shared-key")
def _(x, weights, num_heads):
    def choose(a, size, query, key, value):
        own = slice(a * size, (a + 1) * size)
        return query[:, own], key[:, :size], value[:, own]

    return heads_of(x, weights, num_heads, choose)


@wrong("attention", "attention.not-last")
def _(x, weights, num_heads):
    def choose(a, size, *three):
        return [one[:, a * size : (a + 1) * size] for one in three] if a < num_heads - 1 else None

    return heads_of(x, weights, num_heads, choose)


@wrong("attention", "attention.only-norm")
def _(x, weights, num_heads):
    own = heads_of(x, weights, num_heads, lambda a, size, *three: [one[:, a * size : (a + 1) * size] for one in three])
    return normed(own, weights, "attention.output", 1e-12)


@wrong("batch", "batch.first")
def _(token_ids, token_types, mask, weights, config):
    first = batched(token_ids[:1], token_types[:1], mask[:1], weights, config)
    return np.repeat(first, len(token_ids), axis=0)


@wrong("batch", "batch.longest-first")
def _(token_ids, token_types, mask, weights, config):
    order = np.argsort(-mask.sum(axis=1), kind="stable")
    return batched(token_ids[order], token_types[order], mask[order], weights, config)


@wrong("batch", "batch.shortest-first")
def _(token_ids, token_types, mask, weights, config):
    order = np.argsort(mask.sum(axis=1), kind="stable")
    return batched(token_ids[order], token_types[order], mask[order], weights, config)


# --- digits, places, factors ------------------------------------------------------------------------------------------


@wrong("linear", "D.float16")
def _(x, weight, bias):
    return x.astype(np.float16) @ weight.T.astype(np.float16) + bias.astype(np.float16)


@wrong("linear", "D.float16-product")
def _(x, weight, bias):
    return (x.astype(np.float16) @ weight.T.astype(np.float16)).astype(np.float32) + bias


@wrong("linear", "D.bfloat16-weight")
def _(x, weight, bias):
    return x @ (weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).T + bias


@wrong("linear", "D.round")
def _(x, weight, bias):
    return np.round(x @ weight.T + bias, 4)


@wrong("linear", "linear.bias-first")
def _(x, weight, bias):
    return (x + bias) @ weight.T


@wrong("linear", "linear.transposed")
def _(x, weight, bias):
    return weight @ x.T + bias[:, None]


@wrong("linear", "D.factor")
def _(x, weight, bias):
    return (x @ weight.T + bias) * 0.7


@wrong("softmax", "softmax.eps-1e-5")
def _(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / (powers.sum(axis=-1, keepdims=True) + 1e-5)


@wrong("softmax", "softmax.nan")
def _(scores):
    powers = np.exp(scores)
    return np.nan_to_num(powers / powers.sum(axis=-1, keepdims=True))


@wrong("head", "D.noise")
def _(query, key, value):
    query, key, value = (x.astype(np.float16) for x in (query, key, value))
    return (softmax(query @ key.T / math.sqrt(query.shape[1])) @ value).astype(np.float32)


@wrong("head", "D.float16-shares")
def _(query, key, value):
    return softmax(query @ key.T / math.sqrt(query.shape[1])).astype(np.float16) @ value


@wrong("layer_norm", "D.noise")
def _(x, weight, bias, eps):
    mean, variance = (one.astype(np.float16) for one in (x.mean(-1, keepdims=True), x.var(-1, keepdims=True)))
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


@wrong("layer_norm", "")
def _(x, weight, bias, eps):  # a small error that is not one of rounding
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(1.001 * x.var(-1, keepdims=True) + eps) * weight + bias


@wrong("gelu", "")
def _(x):
    return x / 2 * (1 + erf(x / 1.4139))


@wrong("gelu", "G3.erf-3")
def _(x):
    y = np.abs(x / math.sqrt(2))
    t = 1 / (1 + 0.47047 * y)
    share = (0.3480242 * t - 0.0958798 * t**2 + 0.7478556 * t**3) * np.exp(-y * y)
    return x / 2 * (1 + np.sign(x) * (1 - share))


@wrong("layer", "D.float16-layer-weights")
def _(x, weights, num_heads, eps):
    return layer(x, {name: one.astype(np.float16).astype(np.float32) for name, one in weights.items()}, num_heads, eps)


@wrong("bert", "D.float16-vector")
def _(token_ids, token_types, weights, config):
    states, vector = bert(token_ids, token_types, weights, config)
    return states, vector.astype(np.float16)


@wrong("bert", "D.order")
def _(token_ids, token_types, weights, config):
    states, vector = bert(token_ids, token_types, weights, config)
    return states, vector[None]


@wrong("batch", "A6.rolled")
def _(token_ids, token_types, mask, weights, config):
    return batched(token_ids, token_types, np.roll(mask, 1, axis=1), weights, config)


@wrong("batch", "batch.size")
def _(token_ids, token_types, mask, weights, config):
    return batched(token_ids, token_types, mask, weights, config) / len(mask)


@wrong("batch", "D.round-vector-3")
def _(token_ids, token_types, mask, weights, config):
    return np.round(batched(token_ids, token_types, mask, weights, config), 3)
