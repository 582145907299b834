"""The service under load, compared with `encode` in this process and compared with other services.

    python -m benchmarks.serving [--write] [--soak MINUTES] [--only TABLE]

The clients are a process of their own (load_generator.py). They use the same cores as the service; their processor time
is printed, and rates are also given with it taken away: texts / (seconds - generator's CPU seconds / cores). Rates with
many clients are compared with those of `encode` with as many texts in each call, because a service cannot compute more
texts at once than it has clients. All services have the same model, texts and number of threads, and run one at a time.
The first vectors of each are compared with those of minibert.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.readme import publish, table_parser
from minibert import SentenceTransformer
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL, locate

CLIENTS = (1, 4, 16, 64, 256)
OVERLOAD = (0.5, 1.0, 1.5, 2.0, 3.0)
PASSAGES = 2048
WORDS = (
    *("the", "cat", "sat", "on", "a", "mat", "while", "banks", "raised", "their", "interest", "rates", "and", "nobody"),
    *("slept", "in", "old", "towns", "where", "rivers", "ran", "slowly", "past", "quiet", "houses", "with", "many"),
)


def texts(number: int, words: int, seed: int) -> list[str]:
    """Make different texts of so many words, each about one token."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=words)) for _ in range(number)]


@dataclasses.dataclass
class Service:
    """A service that runs: its name, port and process, the path of its route, and the body for some texts."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    path: str
    body: Callable[[list[str]], dict[str, Any]]

    def load(self, seconds: float, *loads: dict[str, Any]) -> dict[str, Any]:
        """Run loads in a process of their own, and return its results."""
        plan = {"port": self.port, "path": self.path, "seconds": seconds, "loads": list(loads)}
        command = [sys.executable, "-m", "benchmarks.load_generator"]
        done = subprocess.run(command, input=json.dumps(plan), capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def bodies(self, groups: list[list[str]]) -> list[dict[str, Any]]:
        return [self.body(group) for group in groups]

    def memory(self) -> float:
        """Return the memory of the process in MB, as Linux reports it."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return float("nan")

    def counts(self) -> tuple[int, int]:
        """Return the numbers of open files and of threads."""
        folder = f"/proc/{self.process.pid}"
        return len(os.listdir(f"{folder}/fd")), len(os.listdir(f"{folder}/task"))


# --- the services -----------------------------------------------------------------------------------------------------


def commands(folder: Path, threads: int) -> dict[str, tuple[list[str], str, Callable[[list[str]], dict[str, Any]]]]:
    """Return the services that are installed: how they are started (the port is to be added), their route and body."""
    found: dict[str, tuple[list[str], str, Callable[[list[str]], dict[str, Any]]]] = {
        "minibert": (
            [sys.executable, "-m", "minibert", "serve", str(folder), "--threads", str(threads), "--port"],
            "/embed",
            lambda some: {"inputs": some},
        )
    }
    if importlib.util.find_spec("fastapi"):
        found["sentence-transformers in FastAPI"] = (
            [sys.executable, "-m", "benchmarks.plain_service", str(folder), "PORT", str(threads)],
            "/embed",
            lambda some: {"inputs": some},
        )
    for engine, package in (("onnxruntime fused", "onnxruntime"), ("OpenVINO f32", "openvino")):
        if importlib.util.find_spec(package):
            found[f"{engine} behind minibert's scheduler"] = (
                [sys.executable, "-m", "benchmarks.other_engines", engine, str(folder), "PORT", str(threads)],
                "/embed",
                lambda some: {"inputs": some},
            )
    infinity = shutil.which("infinity_emb", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if infinity:
        options = ["--engine", "torch", "--device", "cpu", "--no-bettertransformer", "--no-model-warmup"]
        found["infinity"] = (
            [infinity, "v2", "--model-id", str(folder), *options, "--port"],
            "/embeddings",
            lambda some: {"model": folder.name, "input": some},
        )
    return found


@contextlib.contextmanager
def started(name: str, folder: Path, threads: int, *more: str) -> Iterator[Service]:
    """Start a service and wait until it answers; RuntimeError if it does not start."""
    command, path, body = commands(folder, threads)[name]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    whole = [str(port) if part == "PORT" else part for part in command]
    whole += [*([] if "PORT" in command else [str(port)]), *more]
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(whole, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 120
            while not answers(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{name} does not start: {' '.join(whole)}")
                time.sleep(0.05)
            yield Service(name, port, process, path, body)
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


# --- what is measured -------------------------------------------------------------------------------------------------


def closed(service: Service, clients: int, groups: list[list[str]]) -> dict[str, Any]:
    return {"kind": "closed", "clients": clients, "bodies": service.bodies(groups)}


def opened(service: Service, rate: float, groups: list[list[str]]) -> dict[str, Any]:
    return {"kind": "open", "rate": rate, "bodies": service.bodies(groups)}


def percentile(latencies: list[float], q: float) -> float:
    """Return a percentile in milliseconds; nan if there is no answer."""
    return float(np.percentile(latencies, q)) * 1e3 if latencies else float("nan")


def rates(result: dict[str, Any], cores: int, per_request: int = 1) -> tuple[float, float]:
    """Return texts per second, and the same without the generator's share of the processor."""
    [load] = result["loads"]
    number = len(load["latencies"]) * per_request
    return number / load["seconds"], number / (load["seconds"] - result["cpu"] / cores)


def in_process(model: SentenceTransformer, some: list[str], seconds: float, at_once: int = 0) -> float:
    """Return the texts per second of `encode` in this process, with so many texts in each call; default: all."""
    model.encode(some[:64])
    at_once = at_once or len(some)
    number, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        for first in range(0, len(some), at_once):
            model.encode(some[first : first + at_once])
        number += len(some)
    return number / (time.perf_counter() - began)


def check(service: Service, model: SentenceTransformer) -> None:
    """Compare the vectors of a service with those of minibert."""
    some = texts(4, 10, 99)
    request = urllib.request.Request(
        f"http://127.0.0.1:{service.port}{service.path}",
        json.dumps(service.body(some)).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        found = json.load(response)
    rows = [one["embedding"] for one in found["data"]] if isinstance(found, dict) else found
    apart = float(np.abs(np.array(rows) - model.encode(some)).max())
    if not apart <= 1e-4:
        raise RuntimeError(f"{service.name} differs by {apart}: it does not compute the same.")


def show(rows: list[str], *cells: str) -> None:
    """Add a row to a table, and print it."""
    rows.append(f"| {' | '.join(cells)} |")
    print(rows[-1], flush=True)


def aim(missed: list[str], what: str, found: float, wanted: float, unit: str = "%", *, most: bool = False) -> None:
    """Note a number of minibert's that misses its aim: at least `wanted`, or at most. "%" shows a share of 1."""
    if not (found <= wanted if most else found >= wanted):
        shown, asked = (f"{value:.0%}" if unit == "%" else f"{value:.3g} {unit}" for value in (found, wanted))
        missed.append(f"{what} {shown} (at {'most' if most else 'least'} {asked})")


def aims_line(missed: list[str]) -> str:
    """Return the sentence below the tables."""
    return f"Missed aims: {'; '.join(missed)}." if missed else "No aim is missed."


def compared(folder: Path, model: SentenceTransformer, arguments: Any, threads: int, missed: list[str]) -> list[str]:
    """One client, many clients, and queries beside a bulk client, for each service that starts."""
    cores, seconds = available_cores(), arguments.seconds
    queries, passages = texts(256, 12, 1), texts(PASSAGES, 120, 2)
    rows = [
        "| service | one client: p50, p99, p50 without the client's processor time (ms) | "
        + " | ".join(f"{clients} clients (texts/s)" for clients in CLIENTS[1:])
        + " | queries beside bulk: p50, p99 (ms) | bulk alone, beside queries (texts/s) | answers that changed |",
        "|---|--:|" + "--:|" * (len(CLIENTS) - 1) + "--:|--:|--:|",
    ]
    alone = [0.0] * 200
    for i in range(-20, 200):
        began = time.perf_counter()
        model.encode([queries[i % 256]])
        if i >= 0:
            alone[i] = time.perf_counter() - began
    ceilings = {clients: in_process(model, queries, seconds / 2, clients) for clients in CLIENTS[1:]}
    bulk_ceiling = in_process(model, passages[:512], seconds, 256)
    many = [f"{ceiling:.0f}" for ceiling in ceilings.values()]
    show(
        rows,
        "`encode`, no service",
        f"{percentile(alone, 50):.2f}, {percentile(alone, 99):.2f}, {percentile(alone, 50):.2f}",
        *many,
        "",
        f"{bulk_ceiling:.0f}",
        "0",
    )
    for name in commands(folder, threads):
        try:
            with started(name, folder, threads) as service:
                check(service, model)
                single = [[text] for text in queries]
                service.load(min(2.0, seconds), closed(service, 4, single))  # warm
                changed, cells, cpu = 0, [], 0.0
                of_us = missed if name == "minibert" else []
                for clients in CLIENTS:
                    ceiling = in_process(model, queries, seconds / 2, clients) if clients > 1 else 0.0
                    result = service.load(seconds, closed(service, clients, single))
                    [load] = result["loads"]
                    changed, cpu = changed + load["changed"], cpu + result["cpu"]
                    if clients == 1:
                        p50, p99 = (percentile(load["latencies"], q) for q in (50, 99))
                        own = p50 - 1e3 * load["own"]
                        cells.append(f"{p50:.2f}, {p99:.2f}, {own:.2f}")
                        aim(of_us, "one client, more than `encode`:", own - percentile(alone, 50), 1.0, "ms", most=True)
                    else:
                        rate, without = rates(result, cores)
                        cells.append(f"{rate:.0f} ({without / ceiling:.0%})")
                        aim(of_us, f"{clients} clients", without / ceiling, 0.9)
                parts = [passages[i : i + 256] for i in range(0, PASSAGES, 256)]
                bulk_ceiling = in_process(model, passages[:512], seconds, 256)
                whole = service.load(2 * seconds, closed(service, 1, parts))
                both = service.load(2 * seconds, closed(service, 1, parts), opened(service, 10, single))
                bulk, waiting = both["loads"]
                before = 256 * len(whole["loads"][0]["latencies"]) / whole["loads"][0]["seconds"]
                after = 256 * len(bulk["latencies"]) / bulk["seconds"]
                changed += sum(load["changed"] for load in (*whole["loads"], *both["loads"]))
                cells.append(f"{percentile(waiting['latencies'], 50):.0f}, {percentile(waiting['latencies'], 99):.0f}")
                cells.append(f"{before:.0f} ({before / bulk_ceiling:.0%}), {after:.0f}")
                aim(of_us, "p99 of queries beside bulk", percentile(waiting["latencies"], 99), 120.0, "ms", most=True)
                aim(of_us, "bulk beside queries, of bulk alone", after / before, 0.95)
                aim(of_us, "answers that changed", changed, 0, "answers", most=True)
                show(rows, name, *cells, str(changed))
                print(f"  the generator's CPU: {cpu / (len(CLIENTS) * seconds):.0%} of one core", flush=True)
        except (RuntimeError, OSError) as error:
            print(f"{name}: {error}", flush=True)
    return rows


def bulk_rows(folder: Path, model: SentenceTransformer, arguments: Any, threads: int, missed: list[str]) -> list[str]:
    """One request of 2,048 passages, as JSON numbers and as base64, beside `encode`; the memory of the service."""
    passages = texts(PASSAGES, 120, 2)
    rows = [
        "| 2,048 passages in one request | texts/s | of `encode` | memory before, after (MB) |",
        "|---|--:|--:|--:|",
    ]
    with started("minibert", folder, threads) as service:
        for shape, path, more in (
            ("/embed, numbers", "/embed", {"inputs": passages}),
            ("/v1/embeddings, base64", "/v1/embeddings", {"input": passages, "encoding_format": "base64"}),
        ):
            service.path, before = path, service.memory()
            found, ceilings = [], []
            for _ in range(arguments.runs):
                ceilings.append(in_process(model, passages, 0.1))
                result = service.load(0.1, {"kind": "closed", "clients": 1, "bodies": [more]})
                found.append(rates(result, available_cores(), PASSAGES)[1])
            ratio = float(np.median(np.divide(found, ceilings)))
            aim(missed, shape, ratio, 0.95)
            show(rows, shape, f"{np.median(found):.0f}", f"{ratio:.0%}", f"{before:.0f}, {service.memory():.0f}")
    return rows


def overload_rows(folder: Path, arguments: Any, threads: int, missed: list[str]) -> list[str]:
    """More requests than the service can answer: what is answered, what is refused, and how fast it recovers."""
    rows = [
        "| requests, of the capacity | answered, of the capacity | 200 | 429 | other | p99 of the answered (ms) "
        "| seconds until a query is fast again |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    single = [[text] for text in texts(256, 60, 3)]
    with started("minibert", folder, threads, "--max-wait", "1") as service:
        service.load(2.0, closed(service, 16, single))
        cores = available_cores()
        capacity = rates(service.load(arguments.seconds, closed(service, 64, single)), cores)[1]
        usual = percentile(service.load(2.0, closed(service, 1, single))["loads"][0]["latencies"], 99)
        for factor in OVERLOAD:
            result = service.load(2 * arguments.seconds, opened(service, factor * capacity, single))
            [load] = result["loads"]
            recovery = time.perf_counter()
            while time.perf_counter() < recovery + 60:  # a busy machine may never be fast again
                latencies = service.load(0.2, closed(service, 1, single))["loads"][0]["latencies"]
                if latencies and percentile(latencies, 50) <= 2 * usual:
                    break
            recovered = time.perf_counter() - recovery + max(0.0, load["seconds"] - 2 * arguments.seconds)
            statuses = load["statuses"]
            good = statuses.get("200", 0)
            other = sum(statuses.values()) - good - statuses.get("429", 0)
            answered = rates(result, cores)[1] / capacity
            aim(missed, f"overload {factor:g}x, answered", answered, 0.95 * min(factor, 1.0))
            aim(missed, f"overload {factor:g}x, other answers", other, 0, "answers", most=True)
            aim(missed, f"overload {factor:g}x, recovery", recovered, 2.0, "s", most=True)
            show(
                rows,
                f"{factor:g}x",
                f"{answered:.0%}",
                str(good),
                str(statuses.get("429", 0)),
                str(other),
                f"{percentile(load['latencies'], 99):.0f}",
                f"{recovered:.1f}",
            )
    return rows


def soak_rows(folder: Path, minutes: float, threads: int) -> list[str]:
    """Mixed load for minutes: the memory, open files and threads of the service."""
    rows = [
        "| minute | memory (MB) | open files | threads | answers | p99 of queries (ms) |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    queries, passages = [[text] for text in texts(512, 12, 4)], texts(PASSAGES, 120, 5)
    memory = []
    with started("minibert", folder, threads) as service:
        part = min(60.0, minutes * 60 / 5)
        for i in range(max(1, round(minutes * 60 / part))):
            groups = [passages[j : j + 128] for j in range(0, PASSAGES, 128)]
            bulk, waiting = service.load(part, closed(service, 2, groups), opened(service, 20, queries))["loads"]
            memory.append(service.memory())
            files, tasks = service.counts()
            number = len(bulk["latencies"]) + len(waiting["latencies"])
            p99 = percentile(waiting["latencies"], 99)
            minute = f"{(i + 1) * part / 60:.1f}"
            if i == 0 or i % 5 == 4:
                show(rows, minute, f"{memory[-1]:.1f}", str(files), str(tasks), str(number), f"{p99:.0f}")
        kept = memory[len(memory) // 5 :]
        if len(kept) > 1:
            slope = float(np.polyfit(np.arange(len(kept)) * part / 60, kept, 1)[0])
            rows += ["", f"Memory after the first fifth: {slope:+.2f} MB a minute, by least squares."]
    return rows


def main() -> int:
    """Measure, print, and write the tables into README.md if asked."""
    parser = table_parser("serving")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="of the large request (default: %(default)s)")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="also the long run (default: none)")
    parser.add_argument("--only", choices=("compared", "bulk", "overload", "soak"), help="one table alone")
    arguments = parser.parse_args()
    folder, threads = locate(DEFAULT_MODEL).require("config.json").parent, available_cores()
    model = SentenceTransformer(folder, num_threads=threads)
    chosen = (arguments.only,) if arguments.only else ("compared", "bulk", "overload", "soak")
    tables: list[list[str]] = []
    missed: list[str] = []
    if "compared" in chosen:
        tables.append(compared(folder, model, arguments, threads, missed))
    if "bulk" in chosen:
        tables.append(bulk_rows(folder, model, arguments, threads, missed))
    if "overload" in chosen:
        tables.append(overload_rows(folder, arguments, threads, missed))
    if tables:
        whole = "\n\n".join("\n".join(table) for table in [*tables, [aims_line(missed)]]).splitlines()
        measured = f"{threads} threads for each service, {arguments.seconds:g} seconds of each load"
        publish("serving", whole, measured, write=arguments.write)
    if arguments.soak and "soak" in chosen:
        minutes = soak_rows(folder, arguments.soak, threads)
        publish("serving soak", minutes, f"{threads} threads", write=arguments.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
