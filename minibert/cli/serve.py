"""``minibert serve``: the service."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from typing import TYPE_CHECKING, Any

from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.cli.options import add_compute_type, add_shared_weights, natural, positive
from minibert.cli.output import report_problem
from minibert.models.options import BACKENDS

if TYPE_CHECKING:
    from minibert.serving.auth import ApiKeys


_ENVIRONMENT = "MINIBERT_SERVE_"
# Kubernetes sets these in each container if one of its services has the name minibert-serve.
_OF_KUBERNETES = re.compile(_ENVIRONMENT + r"(SERVICE_(HOST|PORT.*)|PORT_\d+_.*)")
_YES, _NO = ("1", "true", "yes"), ("", "0", "false", "no")


def add_verbs(verbs: Any) -> None:
    """Add the verb to the command line."""
    serve = verbs.add_parser(
        "serve",
        help="answer requests for vectors and scores over HTTP",
        description="Answer requests for vectors and scores over HTTP, in the protocols of OpenAI, "
        "text-embeddings-inference, Cohere, Ollama and bert-as-service. SIGTERM ends the service when all requests "
        "that have begun are answered. Each option is also an environment variable: --max-wait is "
        "MINIBERT_SERVE_MAX_WAIT.",
    )
    serve.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help=f"hub ids or folders (default: {DEFAULT_MODEL}); without a name, the first that can answer does it",
    )
    serve.add_argument("--model-id", metavar="MODEL", help="a further model; a name of text-embeddings-inference")
    serve.add_argument(
        "--host", "--hostname", default="127.0.0.1", help="name or address to listen on (default: %(default)s)"
    )
    serve.add_argument("--port", type=natural, default=8080, help="0 lets the system choose (default: %(default)s)")
    serve.add_argument("--uds", metavar="PATH", help="listen on a Unix socket instead")
    serve.add_argument("--served-model-name", metavar="NAME", help="the name by which clients ask for the model")
    serve.add_argument("--any-model-name", action="store_true", help="answer requests for any model with the first one")
    serve.add_argument("--revision", help="branch, tag or commit of the hub repositories (default: main)")
    serve.add_argument("--backend", choices=BACKENDS, help="the code that computes")
    serve.add_argument("--threads", dest="num_threads", type=positive, metavar="N", help="threads of the engine")
    add_compute_type(serve)
    add_shared_weights(serve)
    serve.add_argument(
        "--truncation",
        choices=("mark", "error", "split"),
        default="mark",
        help="if a text is too long and its request does not say what to do: cut it and report it, refuse it, or "
        "average its windows (default: %(default)s)",
    )
    serve.add_argument("--default-prompt-name", metavar="NAME", help="the prompt of requests that do not name one")
    for option, kind, default, text in (
        ("--step-ms", positive, 50, "milliseconds of a step of the engine"),
        ("--max-wait", _seconds, 60.0, "seconds; a request whose estimated wait is longer is refused with 429"),
        ("--max-client-batch-size", positive, 2048, "texts of a request"),
        ("--max-body-bytes --payload-limit", positive, 32 * 2**20, "bytes of a request"),
        ("--max-inflight-bytes", positive, 256 * 2**20, "bytes of all requests and answers in flight"),
        ("--request-timeout", _seconds, 600.0, "seconds from a request to its answer"),
        ("--body-timeout", _seconds, 30.0, "seconds in which the head of a request must arrive, and then its body"),
        ("--send-timeout", _seconds, 60.0, "seconds in which a client must read some of its answer"),
        ("--shutdown-timeout", _seconds, 30.0, "seconds for the requests that have begun when the service ends"),
        (
            "--drain-delay",
            _no_seconds,
            0.0,
            "seconds of usual answers after SIGTERM, while /readyz says 503",
        ),
    ):
        serve.add_argument(
            *option.split(), type=kind, default=default, metavar="N", help=f"{text} (default: %(default)s)"
        )
    serve.add_argument(
        "--metrics-namespace",
        default="minibert",
        metavar="NAME",
        help="beginning of the names in /metrics (default: %(default)s)",
    )
    serve.add_argument(
        "--api-key",
        type=_several,
        metavar="KEY",
        help="keys, separated by commas; a request must have one of them in its header Authorization. Other users of "
        "the machine can see the arguments of a program: better use MINIBERT_SERVE_API_KEY or a file",
    )
    serve.add_argument(
        "--api-key-file", metavar="FILE", help="a file with a key per line, which is read again at SIGHUP"
    )
    serve.add_argument(
        "--cors-allow-origin",
        type=_several,
        default=[],
        metavar="ORIGIN",
        help="origins, separated by commas, whose pages may ask the service, such as https://example.org; * means all",
    )
    serve.add_argument("--json-logs", action="store_true", help="log a JSON object per request, without its texts")
    _use_environment(serve)
    serve.set_defaults(run=_serve, parser=serve)


def _several(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _no_seconds(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else _seconds(text)


def _use_environment(parser: argparse.ArgumentParser) -> None:
    """Take the default of each option from its environment variable, if that is set; argparse checks it."""
    for action in parser._actions:
        flags = [flag for flag in action.option_strings if flag.startswith("--")]
        name = _ENVIRONMENT + (flags[0][2:].replace("-", "_").upper() if flags else "")
        value = os.environ.get(name)
        if not flags or flags[0] == "--help" or value is None:
            continue
        if action.nargs == 0:
            action.default = {**dict.fromkeys(_YES, True), **dict.fromkeys(_NO, False)}.get(value.lower(), value)
        else:
            action.default = value


def _refuse_unknown_variables(parser: argparse.ArgumentParser) -> None:
    """Refuse a misspelt variable, because a service without the key or the limit in it would start without a word."""
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    known = [_ENVIRONMENT + flag[2:].replace("-", "_").upper() for flag in flags] + [_ENVIRONMENT + "MODELS"]
    for name in sorted(os.environ):
        if name.startswith(_ENVIRONMENT) and name not in known and not _OF_KUBERNETES.fullmatch(name):
            close = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {close[0]}?" if close else "see minibert serve --help."
            raise ValueError(f"the variable {name} is set, but the service does not have it; {meant}")


def _serve(arguments: argparse.Namespace) -> None:
    from minibert.serving.engine import Engine
    from minibert.serving.models import load_served
    from minibert.serving.settings import Settings

    try:
        from minibert.serving.observability import log_requests
        from minibert.serving.server import listen, serve
    except ImportError as error:  # a library of the extra `serve`
        raise ValueError(str(error)) from error

    _refuse_unknown_variables(arguments.parser)
    names = arguments.models or _several(os.environ.get(_ENVIRONMENT + "MODELS", ""))
    names = [*names, *([arguments.model_id] if arguments.model_id else [])] or [DEFAULT_MODEL]
    served = [_served_name(name) for name in names]
    if arguments.served_model_name is not None:
        if len(names) > 1:
            raise ValueError("--served-model-name is for one model; leave it out.")
        served = [arguments.served_model_name]
    if len(set(served)) < len(served):
        raise ValueError(f"two models have the name {max(served, key=served.count)}; rename a folder.")
    if arguments.truncation not in ("mark", "error", "split"):  # argparse does not check the environment's choices
        raise ValueError(f"--truncation {arguments.truncation}; expected mark, error or split.")
    for name in ("any_model_name", "json_logs", "shared_weights"):
        if not isinstance(getattr(arguments, name), bool | None):
            raise ValueError(f"{_ENVIRONMENT}{name.upper()}={getattr(arguments, name)}; expected 1 or 0.")
    keys = _read_keys(arguments)
    log_requests(as_json=arguments.json_logs)
    settings = Settings(
        step_seconds=arguments.step_ms / 1000,
        max_wait=arguments.max_wait,
        max_inputs=arguments.max_client_batch_size,
        max_body_bytes=arguments.max_body_bytes,
        max_inflight_bytes=arguments.max_inflight_bytes,
        max_result_bytes=arguments.max_inflight_bytes,
        truncation=arguments.truncation,
        default_prompt_name=arguments.default_prompt_name,
        request_timeout=arguments.request_timeout,
        body_timeout=arguments.body_timeout,
        any_model_name=arguments.any_model_name,
    )
    bound = listen(arguments.host, arguments.port, arguments.uds)

    def load() -> Engine:
        names_of_options = ("revision", "backend", "num_threads", "compute_type", "shared_weights")
        options = {name: getattr(arguments, name) for name in names_of_options}
        models = {name: load_served(model, **options) for name, model in zip(served, names, strict=True)}
        engine = Engine(models, settings=settings)
        engine.warm_up()
        return engine

    shown = ", ".join(served)
    code = serve(
        load,
        bound,
        listening=lambda address: report_problem(f"loading {shown}, listening on {address}"),
        started=lambda address: report_problem(f"serving {shown} on {address}"),
        shutdown_timeout=arguments.shutdown_timeout,
        drain_delay=arguments.drain_delay,
        head_timeout=arguments.body_timeout,
        send_timeout=arguments.send_timeout,
        metrics_namespace=arguments.metrics_namespace,
        keys=keys,
        allow_origins=arguments.cors_allow_origin,
    )
    if code:
        raise SystemExit(code)


def _read_keys(arguments: argparse.Namespace) -> ApiKeys | None:
    from minibert.serving.auth import ApiKeys

    if arguments.api_key is None and arguments.api_key_file is None:
        return None
    if arguments.api_key == []:  # such as a variable whose secret is missing
        raise ValueError("--api-key is empty; give a key, or leave the option out.")
    return ApiKeys(arguments.api_key or (), arguments.api_key_file)


def _served_name(model: str) -> str:
    """Return the name by which clients ask for a model: its hub id, or the name of its folder."""
    return os.path.basename(os.path.abspath(model)) if os.path.isdir(model) else model
