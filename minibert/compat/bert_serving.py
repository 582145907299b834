"""The client of bert-as-service: the model computes in this process, or a service answers over HTTP.

Source: bert-as-service 1.10 (github.com/jina-ai/clip-as-service before it was renamed), client/bert_serving/client/
__init__.py for the names, server/bert_serving/server/graph.py for the pooling.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from minibert._utils.validation import brief, check_choice, check_indices, check_int
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.compat.bert_http import RemoteEncoder, is_machine, service_listens
from minibert.sentence.modules import Pipeline
from minibert.sentence.pooling import pooling_modes
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.tokenizer.texts import shown

__all__ = ["BertClient", "Response"]


_THIS_MACHINE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
_PORT = 5555
_LONGEST = 2**31 - 1  # milliseconds: 24 days, the longest timeout of a socket


class Response(NamedTuple):
    """One answer of `encode_async`."""

    id: int
    content: Any


class BertClient:
    """bert-as-service's client: one vector per text, the mean over the tokens of the second-to-last layer.

    Parameters
    ----------
    ip : str
        Another machine, or a URL such as "http://localhost:8080": a service there computes, which ``minibert serve``
        starts. "localhost", "127.0.0.1", "::1" or "0.0.0.0" is this machine: if there is no `model`, and a service
        listens on the port, it computes; else this process. All other names count as another machine.
    port : int
        The service's, unless `ip` is a URL. Without a `model`, a service must listen on another port than 5555.
    timeout : int
        Milliseconds to wait for a service; -1: for ever, but 30 seconds when it is looked for on this machine.
    port_out, show_server_config, identity, check_version, check_length, check_token_info, ignore_all_checks
        These describe bert-as-service's connection, and have no effect.
    output_fmt : {"ndarray", "list"}
    model : str or SentenceTransformer, optional
        What the server was started with, ``-model_dir``: it computes in this process, whatever the port. The modules
        after its pooling are not used. A service has its own model. Default: all-MiniLM-L6-v2, if no service listens.
    pooling_layer : int or ints
        Layers of the encoder, whose vectors are concatenated: 0 is the first, -1 the last. If a service computes, the
        first `encode` finds a layer that its model does not have.
    pooling_strategy : str
        One of the names that `SentenceTransformer.encode` takes, such as "REDUCE_MEAN" or "CLS_TOKEN", but "pooler" and
        "first_last". A service does not take "NONE".

    Raises
    ------
    TypeError, ValueError
        A value is wrong, or both a model and another machine are given.
    ConnectionError
        There is no model, and nothing listens on a port of this machine that is not 5555, or a program listens there
        that is not ``minibert serve`` or does not answer in time.
    """

    def __init__(
        self,
        ip: str = "localhost",
        port: int = _PORT,
        port_out: int = 5556,
        output_fmt: str = "ndarray",
        show_server_config: bool = False,
        identity: object = None,
        check_version: bool = True,
        check_length: bool = True,
        check_token_info: bool = True,
        ignore_all_checks: bool = False,
        timeout: int = -1,
        *,
        model: str | SentenceTransformer | None = None,
        pooling_layer: int | Sequence[int] = -2,
        pooling_strategy: str = "REDUCE_MEAN",
    ) -> None:
        check_choice("output_fmt", output_fmt, ("ndarray", "list"))
        self.output_fmt = output_fmt
        self._options: dict[str, Any]
        self._remote: RemoteEncoder | None = None
        if not isinstance(ip, str):
            raise TypeError(f"ip is {shown(ip)}; expected a machine, or a URL such as 'http://localhost:8080'.")
        port = check_int("port", port, 1, 65535)
        timeout = check_int("timeout", timeout, also=": milliseconds, or -1 to wait for ever")
        if not timeout:
            raise ValueError("timeout=0; expected a number of milliseconds above 0, or -1 to wait for ever.")
        seconds = None if timeout < 0 else min(timeout, _LONGEST) / 1000
        asked, modes = _layers(pooling_layer), _modes(pooling_strategy)
        url = _service(ip, port, seconds, computes_here=model is not None)
        if url is not None:
            if model is not None:
                raise ValueError(f"model= and ip={brief(ip)} are both given, but a service has its own model.")
            if modes == ("none",):
                raise ValueError(
                    f"pooling_strategy={brief(pooling_strategy)} gives a vector per token, which the service at {url} "
                    "cannot send to BertClient. Give model= to compute in this process."
                )
            self._remote = RemoteEncoder(url, seconds)
            self._options = {"layers": asked, "pooling": pooling_strategy}
            return
        model = DEFAULT_MODEL if model is None else model
        self._model = copy.copy(model if isinstance(model, SentenceTransformer) else _load(model))
        count, expected = self._model.model.config.num_hidden_layers, "an int or several"
        layers = check_indices("pooling_layer", asked, count, what="layers", expected=expected)
        # hidden state 0 is the output of the embeddings, so that the first layer's output is hidden state 1
        self._options = {"layers": [layer + 1 for layer in layers], "pooling": pooling_strategy}
        hidden_size = self._model.model.config.hidden_size
        self._model.pipeline = Pipeline(("mean",), True, (), (hidden_size,), ())
        self._model.encode([], **self._options)  # checks them

    def encode(
        self, texts: list[str], blocking: bool = True, is_tokenized: bool = False, show_tokens: bool = False
    ) -> Any:
        """Turn texts into vectors.

        Parameters
        ----------
        texts : list of str
            At least one; none may be blank. A text that is longer than the model's limit is cut, with a warning.
        blocking : bool
            Only True.
        is_tokenized : bool
            The texts are lists of tokens; a service takes these, this process does not.
        show_tokens : bool
            Also return the tokens of each text.

        Returns
        -------
        float32 ndarray of shape (B, width), or lists
            For "NONE" the shape is (B, S, width), with zeros after the last token of a text.

        Raises
        ------
        TypeError, ValueError
            The texts are not a list of str with something in each, an argument has another value, or a service refuses
            the request.
        ConnectionError, TimeoutError, RuntimeError
            A service does not answer, or cannot answer now.
        """
        if not blocking:
            raise ValueError(
                f"blocking={brief(blocking)}: encode waits for the vectors; use encode_async, or a thread."
            )
        if is_tokenized and self._remote is None:
            raise ValueError(
                f"is_tokenized={brief(is_tokenized)}: a service takes tokens, and this client computes in this "
                "process; give texts, or the ip= of a service, or use BertModel with ids."
            )
        _check_texts(texts, is_tokenized)
        if self._remote is not None:
            flags = {"is_tokenized": bool(is_tokenized), "show_tokens": bool(show_tokens)}
            found, tokens = self._remote.encode({"texts": texts, **flags, **self._options})
            given = found.tolist() if self.output_fmt == "list" else found
            return (given, tokens) if show_tokens else given
        vectors = self._model.encode(texts, **self._options)
        if isinstance(vectors, list):
            longest = max(len(rows) for rows in vectors)
            vectors = np.stack([np.pad(rows, ((0, longest - len(rows)), (0, 0))) for rows in vectors])
        answer = vectors.tolist() if self.output_fmt == "list" else vectors
        if not show_tokens:
            return answer
        tokenizer, limit = self._model.tokenizer, self._model.max_seq_length
        ids = [tokenizer.encode(text, truncation=True, max_length=limit) for text in texts]
        return answer, [tokenizer.convert_ids_to_tokens(row) for row in ids]

    def encode_async(
        self,
        batch_generator: Iterable[list[str]],
        max_num_batch: int | None = None,
        delay: float = 0.1,
        is_tokenized: bool = False,
    ) -> Iterator[Response]:
        """Yield the vectors of one list of texts after the other, computed when they are asked for."""
        for number, texts in enumerate(batch_generator):
            yield Response(number, self.encode(texts, is_tokenized=is_tokenized))
            if max_num_batch is not None and number + 1 >= max_num_batch:
                return

    def close(self) -> None:
        """Close the connection to a service, if there is one."""
        if self._remote is not None:
            self._remote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _layers(pooling_layer: Any) -> list[int]:
    """Return one or several layers as Python ints, which JSON can hold; their range is that of a model."""
    several = isinstance(pooling_layer, Iterable) and not isinstance(pooling_layer, str | bytes | dict)
    axes: int = getattr(pooling_layer, "ndim", 1)
    if several and axes:  # an array without axes is an Iterable that is not iterated over
        layers = list(pooling_layer)
        if not layers:
            raise ValueError(f"pooling_layer={brief(pooling_layer)}; expected an int or several.")
    else:
        layers = [pooling_layer]
    return [check_int("pooling_layer", layer, -(2**31), 2**31 - 1, also=", or several") for layer in layers]


def _modes(pooling_strategy: str) -> tuple[str, ...]:
    """Check the pooling, and return it as `pooling_modes` does."""
    try:
        modes = pooling_modes(pooling_strategy)
    except (TypeError, ValueError) as error:  # its message begins with "pooling", the argument's name there
        raise type(error)("pooling_strategy" + str(error).removeprefix("pooling")) from None
    if modes[0] in ("pooler", "first_last"):
        raise ValueError(
            f"pooling_strategy={brief(pooling_strategy)} fixes the layers, and BertClient has pooling_layer; expected "
            f"another, or use SentenceTransformer.encode(texts, pooling={modes[0]!r})."
        )
    return modes


def _check_texts(texts: object, is_tokenized: bool) -> None:
    if not isinstance(texts, list):
        raise TypeError(f"texts is a {type(texts).__name__}; expected a list of str.")
    if not texts:
        raise ValueError("texts is empty.")
    for i, text in enumerate(texts):
        if is_tokenized:
            if not isinstance(text, list | tuple) or not all(isinstance(token, str) for token in text):
                raise TypeError(f"texts[{i}] is {shown(text)}; expected a list of str, because is_tokenized is given.")
        elif not isinstance(text, str):
            raise TypeError(f"texts[{i}] is {shown(text)}; expected a str.")
        if not text or (isinstance(text, str) and not text.strip()):
            raise ValueError(f"texts[{i}] is blank; expected some text.")


def _service(ip: str, port: int, timeout: float | None, *, computes_here: bool) -> str | None:
    """Return the URL of the service that computes, or None if this process does.

    A service on this machine is asked if it listens: in bert-as-service, ``BertClient()`` means a server there, and
    another model would answer in its place without a word.
    """
    if "://" in ip:
        return ip
    if not is_machine(ip):
        hint = " without a port, which port= has" if ":" in ip else ""
        raise ValueError(f"ip={brief(ip)}; expected a machine{hint}, or a URL such as 'http://localhost:8080'.")
    ip = ip.lower()
    url = f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"
    if ip not in _THIS_MACHINE:
        return url
    if computes_here:
        return None
    host = "127.0.0.1" if ip == "0.0.0.0" else ip
    if service_listens(host, port, timeout):
        return url.replace("0.0.0.0", host)
    if port != _PORT:
        raise ConnectionError(
            f"nothing listens on port {port} of this machine. Start `minibert serve` with this port, or give "
            "model= to compute in this process."
        )
    return None


def _load(name: str) -> SentenceTransformer:
    with warnings.catch_warnings():  # the server was started with plain BERT models, too
        warnings.filterwarnings("ignore", message=".*has no modules.json")
        return SentenceTransformer(name)
