"""``minibert serve``: start the HTTP service."""

from __future__ import annotations

import argparse
import difflib
import functools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from minibert._utils.system import needs
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.cli.notation import Parser, add_verb, in_options, natural
from minibert.cli.options import COMPUTE_TYPE, SHARED_WEIGHTS, chosen, loading
from minibert.cli.output import report_problem
from minibert.models.options import BACKENDS
from minibert.serving.settings import ApiKeys, OverLong, Settings

_ENVIRONMENT = "MINIBERT_SERVE_"
# Kubernetes sets these in each container if one of its services has the name minibert-serve.
_OF_KUBERNETES = re.compile(_ENVIRONMENT + r"(SERVICE_(HOST|PORT.*)|PORT_\d+_.*)")
_YES, _NO = ("1", "true", "yes"), ("", "0", "false", "no")
_LIBRARIES = ("uvicorn", "httptools", "msgspec", "orjson", "prometheus-client")


def _several(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


_HELP = f"""serve: answer requests for vectors and scores over HTTP
    Answer requests for vectors and scores over HTTP, in the protocols of OpenAI, text-embeddings-inference, Cohere,
    Ollama and bert-as-service. SIGTERM ends the service when all requests that have begun are answered. Each option is
    also an environment variable: --max-wait is MINIBERT_SERVE_MAX_WAIT.
    [MODEL...]: hub ids, folders or ollama:NAME (default: {DEFAULT_MODEL}); without a name, the first that can answer it
    --model-id MODEL: a further model; a name of text-embeddings-inference
    --host, --hostname HOST = 127.0.0.1: name or address to listen on
    --port PORT = 8080: 0 lets the system choose
    --served-model-name NAME: the name by which clients ask for the model
    --any-model-name: answer requests for any model with the first one
    --revision REVISION: branch, tag or commit of the hub repositories (default: main)
    --backend {"|".join(BACKENDS)}: the code that computes
    --threads N: threads of the engine
    --truncation {"|".join(get_args(OverLong))} = {Settings.truncation}: if a text is too long and its request does
        not say what to do: cut it and say so, refuse it, or average its windows
    --default-prompt-name NAME: the prompt of requests that do not name one
    --step-ms N = {1000 * Settings.step_seconds:g}: milliseconds of a step of the engine
    --max-wait SECONDS = {Settings.max_wait}: a request whose estimated wait is longer is refused with 429
    --max-client-batch-size N = {Settings.max_inputs}: texts of a request
    --max-body-bytes, --payload-limit N = {Settings.max_body_bytes}: bytes of a request
    --max-inflight-bytes N = {Settings.max_inflight_bytes}: bytes of all requests in flight, their tokens and answers
    --request-timeout SECONDS = {Settings.request_timeout}: from a request to its answer
    --body-timeout SECONDS = {Settings.body_timeout}: in which the head of a request must arrive, and then its body
    --send-timeout SECONDS = {Settings.send_timeout}: in which a client must read some of its answer
    --shutdown-timeout SECONDS = {Settings.shutdown_timeout}: for the requests that have begun when the service ends
    --drain-delay SECONDS = 0: of usual answers after SIGTERM, while /readyz says 503
    --metrics-namespace NAME = {Settings.metrics_namespace}: beginning of the names in /metrics
    --api-key KEY: keys, separated by commas; a request must have one of them in its header Authorization. Other users
        of the machine can see the arguments of a program: better use MINIBERT_SERVE_API_KEY or a file
    --api-key-file FILE: a file with a key per line, which is read again at SIGHUP
    --json-logs: log a JSON object per request, without its texts
    {COMPUTE_TYPE}
    {SHARED_WEIGHTS}
    """


def add_verbs(verbs: Any) -> None:
    """Add the verb to the command line."""
    further: dict[str, Any] = {
        "port": {"type": natural},
        "api_key": {"type": _several},
        "max_client_batch_size": {"dest": "max_inputs"},
    }
    add_verb(verbs, _serve, _HELP, **further).variables = _variables


def _variables(parser: Parser, args: Sequence[str]) -> Iterator[str]:
    """Yield the options that environment variables give, but not those that the command line has.

    Their values are not looked at: Kubernetes sets MINIBERT_SERVE_PORT to tcp://... for a service of that name.
    A misspelt variable is an error, because a service without the key or the limit in it would start without a word.
    """
    actions = {flag: action for action in parser._actions for flag in action.option_strings}
    present = {actions.get(argument.partition("=")[0]) for argument in args}
    flags = [flag for flag in actions if flag.startswith("--") and flag != "--help"]
    known = {_ENVIRONMENT + flag[2:].replace("-", "_").upper(): flag for flag in flags}
    for name, value in sorted(os.environ.items()):
        if not name.startswith(_ENVIRONMENT) or _OF_KUBERNETES.fullmatch(name) or name == _ENVIRONMENT + "MODELS":
            continue
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {close[0]}?" if close else "see minibert serve --help."
            raise ValueError(f"the variable {name} is set, but the service does not have it; {meant}")
        flag = known[name]
        if actions[flag] in present:
            continue
        if actions[flag].nargs != 0:
            yield f"{flag}={value}"
        elif value.lower() in _YES:
            yield flag
        elif value.lower() not in _NO:
            raise ValueError(f"{name}={value}; expected 1 or 0.")
        elif f"--no-{flag[2:]}" in actions:
            yield f"--no-{flag[2:]}"


def _serve(arguments: argparse.Namespace) -> int:
    with needs("the service", *_LIBRARIES):
        from minibert.serving.engine import Engine
        from minibert.serving.models_by_name import served_names
        from minibert.serving.observability import log_requests
        from minibert.serving.server import listen, serve

    names = arguments.models or _several(os.environ.get(_ENVIRONMENT + "MODELS", ""))
    names = [*names, *([arguments.model_id] if arguments.model_id else [])] or [DEFAULT_MODEL]
    served = served_names(names, arguments.served_model_name)
    keys = ApiKeys.of(arguments.api_key, arguments.api_key_file)
    log_requests(as_json=arguments.json_logs)
    arguments.model_id, arguments.max_result_bytes = names[0], arguments.max_inflight_bytes
    try:
        own = chosen(arguments, Settings.__dataclass_fields__)
        settings = Settings(**own, step_seconds=arguments.step_ms / 1000)
    except ValueError as error:
        arguments.parser.error(in_options(str(error), arguments.parser))
    bound = listen(arguments.host, arguments.port)

    def announce(ready: bool, address: str) -> None:
        names = ", ".join(served)
        report_problem(f"serving {names} on {address}" if ready else f"loading {names}, listening on {address}")

    load = functools.partial(Engine.from_files, served, settings, **loading(arguments))
    return serve(load, bound, settings, keys, announce)
