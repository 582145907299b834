"""The client of bert-as-service: the model computes in this process, or a service answers over HTTP.

Source: bert-as-service 1.10 (github.com/jina-ai/clip-as-service before it was renamed), client/bert_serving/client/
__init__.py for the names, server/bert_serving/server/graph.py for the pooling.
"""

from __future__ import annotations

import copy
import http.client
import json
import urllib.parse
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import brief, check_choice, check_indices, check_int
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.encode.modules import Pipeline
from minibert.encode.pooling import pooling_modes
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.tokenizer.texts import checked_texts, shown

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
_PORT = 5555
_OWN_NAMES = {"layers": "pooling_layer", "pooling": "pooling_strategy"}


class Response(NamedTuple):
    """One answer of `encode_async`."""

    id: int
    content: Any


class BertClient:
    """bert-as-service's client: one vector per text, the mean over the tokens of the second-to-last layer.

    Parameters
    ----------
    ip : str, optional
        The machine on which ``minibert serve`` runs, or a URL such as "http://localhost:8080". If `ip` or `port` is
        given, and no `model`, this service computes; else this process.
    port : int, optional
        The service's, unless `ip` is a URL; default: 5555.
    timeout : int
        Milliseconds to wait for a service; -1: for ever.
    port_out, show_server_config, identity, check_version, check_length, check_token_info, ignore_all_checks
        These describe bert-as-service's connection, and have no effect.
    output_fmt : {"ndarray", "list"}
    model : str or SentenceTransformer, optional
        What the server was started with, ``-model_dir``: it computes in this process. The modules after its pooling are
        not used. A service has its own model. Default: all-MiniLM-L6-v2.
    pooling_layer : int or ints
        Layers of the encoder: 0 is the first, -1 the last. Their vectors are concatenated. If a service computes, the
        first `encode` finds a layer that its model does not have.
    pooling_strategy : str
        One of the names that `SentenceTransformer.encode` takes with `layers`, such as "REDUCE_MEAN" or "CLS_TOKEN". A
        service does not take "NONE".

    Raises
    ------
    TypeError, ValueError
        A value is wrong, or both a model and another machine are given.
    """

    def __init__(
        self,
        ip: str | None = None,
        port: int | None = None,
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
        modes = pooling_modes(pooling_strategy, "pooling_strategy")
        asked: Any = pooling_layer if np.ndim(pooling_layer) else [pooling_layer]
        layers = [check_int("pooling_layer", layer, -(2**31), 2**31 - 1, also=", or several") for layer in asked]
        if not layers:
            raise ValueError(f"pooling_layer={brief(pooling_layer)}; expected an int or several.")
        self._service: _Service | None = None
        self._options: dict[str, Any] = {"layers": layers, "pooling": pooling_strategy}
        if model is None and (ip is not None or port is not None):
            if modes == ("none",):
                setting = f"pooling_strategy={brief(pooling_strategy)}"
                raise ValueError(f"{setting} gives a vector per token, which a service cannot send. Give model=.")
            seconds = None if timeout < 0 else timeout / 1000
            self._service = _Service("localhost" if ip is None else ip, _PORT if port is None else port, seconds)
            return
        if ip is not None and ip.lower() not in _THIS_MACHINE:
            raise ValueError(f"model= and ip={brief(ip)} are both given, but a service has its own model.")
        model = DEFAULT_MODEL if model is None else model
        self._model = copy.copy(model if isinstance(model, SentenceTransformer) else _load(model))
        config = self._model.model.config
        count = config.num_hidden_layers
        layers = check_indices("pooling_layer", layers, count, what="layers", expected="an int or several")
        # hidden state 0 is the output of the embeddings, so that the first layer's output is hidden state 1
        self._options["layers"] = [layer + 1 for layer in layers]
        self._model.pipeline = Pipeline(config.hidden_size)
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
            raise ValueError("blocking=False: encode waits for the vectors; use encode_async, or a thread.")
        if is_tokenized and self._service is None:
            raise ValueError("is_tokenized=True: a service takes tokens, this process does not; give texts, or ip=.")
        texts = _checked(texts, is_tokenized)
        tokens: Any = None
        if self._service is not None:
            flags = {"is_tokenized": bool(is_tokenized), "show_tokens": bool(show_tokens)}
            vectors, tokens = self._service.encode({"texts": texts, **flags, **self._options})
        else:
            vectors = self._model.encode(texts, **self._options)
            if isinstance(vectors, list):
                longest = max(len(rows) for rows in vectors)
                vectors = np.stack([np.pad(rows, ((0, longest - len(rows)), (0, 0))) for rows in vectors])
            if show_tokens:
                tokenizer, limit = self._model.tokenizer, self._model.max_seq_length
                ids = [tokenizer.encode(text, truncation=True, max_length=limit) for text in texts]
                tokens = [tokenizer.convert_ids_to_tokens(row) for row in ids]
        answer = vectors.tolist() if self.output_fmt == "list" else vectors
        return (answer, tokens) if show_tokens else answer

    def encode_async(
        self,
        batch_generator: Iterable[list[str]],
        max_num_batch: int | None = None,
        delay: float = 0.1,
        is_tokenized: bool = False,
    ) -> Iterator[Response]:
        """Yield the vectors of each list of texts in turn; they are computed when the caller asks for them."""
        for number, texts in enumerate(batch_generator):
            yield Response(number, self.encode(texts, is_tokenized=is_tokenized))
            if max_num_batch is not None and number + 1 >= max_num_batch:
                return

    def close(self) -> None:
        """Close the connection to a service, if there is one."""
        if self._service is not None:
            self._service.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Service:
    """A connection to the route /encode of a service. The first request opens it."""

    def __init__(self, ip: str, port: int, timeout: float | None) -> None:
        machine = f"[{ip}]" if ip.count(":") > 1 else ip  # the address of IPv6
        self._url = ip if "://" in ip else f"http://{machine}:{port}"
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        try:
            parts = urllib.parse.urlsplit(self._url)
            parts.netloc.encode("idna")  # what a connection does
            self.connection = kinds[parts.scheme](parts.hostname or " ", parts.port, timeout=timeout)
        except (ValueError, KeyError, http.client.InvalidURL):
            raise ValueError(f"ip={brief(ip)}; expected a machine, or a URL such as 'http://localhost:8080'.") from None
        self._path = parts.path.rstrip("/") + "/encode"

    def encode(self, request: Mapping[str, Any]) -> tuple[Any, Any]:
        """Send a request; return the float32 vectors (B, width), and the tokens of each text if it asks for them."""
        try:
            status, headers, content = self._post(json.dumps(request).encode())
        except TimeoutError as error:
            self.connection.close()
            raise TimeoutError(f"{self._url} did not answer in time; give a longer timeout, or fewer texts.") from error
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            self.connection.close()
            reason = f"{self._url} does not answer: {error}. Is `minibert serve` running there?"
            raise ConnectionError(reason) from error
        try:
            answer = json.loads(content)
            if status == 200:
                vectors = np.array(answer["result"], dtype=np.float32)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConnectionError(f"{self._url} is not a service of bert-as-service's protocol.") from error
        if status == 401:
            raise ValueError(f"{self._url} answers 401: it wants an API key, which BertClient cannot send.")
        if status != 200:
            fields = answer if isinstance(answer, dict) else {}
            message, param = str(fields.get("error") or brief(answer)), str(fields.get("param"))
            if param in _OWN_NAMES:  # the name that the caller typed
                message = _OWN_NAMES[param] + message.removeprefix(param)
            kind = RuntimeError if status == 429 or status >= 500 else ValueError
            raise kind(f"{self._url} answers {status}: {message}")
        if (cut := headers.get("x-minibert-truncated")) is not None:
            which = "The text is" if len(vectors) == 1 else f"{cut} of {len(vectors)} texts are"
            warn_caller(f"{which} longer than the limit of the service's model and cut.")
        return vectors, answer.get("tokens")

    def _post(self, body: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
        fresh = self.connection.sock is None
        try:
            self.connection.request("POST", self._path, body, {"content-type": "application/json"})
            response = self.connection.getresponse()
            return response.status, response.headers, response.read()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            self.connection.close()
            if fresh:
                raise
            return self._post(body)  # once, because the service may have closed an idle connection


def _checked(texts: Any, is_tokenized: bool) -> list[Any]:
    """Return texts, or lists of tokens, as a list; raise if there are none, or if one is blank."""
    checked, single = checked_texts("texts", texts, is_split=is_tokenized)
    if not checked or not len(texts):
        raise ValueError("texts is empty.")
    if single:
        raise TypeError(f"texts is {shown(texts)}; expected a list of {'lists of str' if is_tokenized else 'str'}.")
    for i, text in enumerate(checked):
        if not (text.strip() if isinstance(text, str) else text):
            raise ValueError(f"texts[{i}] is blank; expected some text.")
    return checked


def _load(name: str) -> SentenceTransformer:
    with warnings.catch_warnings():  # the server was started with plain BERT models, too
        warnings.filterwarnings("ignore", message=".*has no modules.json")
        return SentenceTransformer(name)
