"""`minibert embed --on ray:local` against `minibert embed` on the same texts: texts per second from a file to an array.

    python -m benchmarks.cluster [--write] [--texts N] [--rounds N]

Two actors with one thread each, and one process with two threads, so both use two cores. Each run is a process of its
own. Its time is that of the whole command: Python, the model, Ray and the actors, and the end. The last column leaves
out what each command takes for 20 texts, which is its start and its end. The runs take turns. The files are compared,
byte for byte. Needs Ray: pip install ".[ray]".
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.corpus import made_texts
from benchmarks.readme import publish, table_parser
from minibert._utils.validation import counted
from tests.support.real_texts import VARIABLE, udhr_lines

FEW = 20
SECONDS = 1800.0  # after which a command counts as one that does not end
COMMANDS = {
    "`--threads 2`": ("--threads", "2"),
    "`--on ray:local --actors 2 --threads 1`": ("--on", "ray:local", "--actors", "2", "--threads", "1"),
}


def texts_of(count: int) -> list[str]:
    """Return different short texts, made of real ones if there are some."""
    if not os.environ.get(VARIABLE):
        return made_texts(count)
    lines = [" ".join(line.split()) for line in udhr_lines()]
    return [f"{index} {lines[index % len(lines)]}"[:100].strip() for index in range(count)]


def seconds(options: tuple[str, ...], texts: Path, output: Path) -> float:
    """Run a command, and return its seconds."""
    command = [sys.executable, "-m", "minibert", "embed", "-i", str(texts), "-o", str(output), *options]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "--truncation", "silent"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, "RAY_ADDRESS": ""},
    )
    found = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return found


def _speed(count: int, first: list[float], found: list[float]) -> tuple[str, str]:
    """Return texts per second, and their ratio to those of the first command."""
    ratio = statistics.median(ours / theirs for ours, theirs in zip(first, found, strict=True))
    return f"{count / statistics.median(found):.0f}", f"{ratio:.2f}"


def main() -> int:
    """Measure, print the table, and write it into README.md if asked."""
    parser = table_parser("cluster")
    parser.add_argument("--texts", type=int, default=20_000, help="number of texts (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turn (default: %(default)s)")
    options = parser.parse_args()
    if options.texts <= FEW:
        parser.error(f"--texts {options.texts}: expected more than {FEW}")
    whole: dict[str, list[float]] = {what: [] for what in COMMANDS}
    starts: dict[str, list[float]] = {what: [] for what in COMMANDS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, texts = folder / "few.txt", folder / "texts.txt"
        all_texts = texts_of(options.texts)
        few.write_text("".join(f"{text}\n" for text in all_texts[:FEW]), encoding="utf-8")
        texts.write_text("".join(f"{text}\n" for text in all_texts), encoding="utf-8")
        outputs = {what: folder / f"{index}.npy" for index, what in enumerate(COMMANDS)}
        for what, arguments in COMMANDS.items():  # compiles the kernels, and reads Ray's files from the disk
            seconds(arguments, few, outputs[what])
        for _ in range(options.rounds):
            for what, arguments in COMMANDS.items():
                starts[what].append(seconds(arguments, few, outputs[what]))
                whole[what].append(seconds(arguments, texts, outputs[what]))
                print(f"{what}: {starts[what][-1]:.1f} s for {FEW} texts, {whole[what][-1]:.1f} s for all", flush=True)
        alone, theirs = (outputs[what].read_bytes() for what in COMMANDS)
        if alone != theirs:
            raise RuntimeError("the run on Ray wrote another array than one process.")
    rows = [
        f"| `minibert embed`, {options.texts:,} texts | seconds | texts per second | ratio | start, seconds "
        "| without it, texts per second | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    computing = {what: [a - b for a, b in zip(whole[what], starts[what], strict=True)] for what in COMMANDS}
    if min(min(found) for found in computing.values()) <= 0:
        raise RuntimeError(f"{options.texts} texts took less time than the start; give more texts.")
    first = next(iter(COMMANDS))
    for what in COMMANDS:
        cells = [
            what,
            f"{statistics.median(whole[what]):.1f}",
            *_speed(options.texts, whole[first], whole[what]),
            f"{statistics.median(starts[what]):.1f}",
            *_speed(options.texts, computing[first], computing[what]),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    print("\n".join(rows))
    what = "Made texts of 3 to 40 words"
    if os.environ.get(VARIABLE):
        what = (
            "Numbered beginnings of lines of the Universal Declaration of Human Rights (udhr.tsv), up to 100 characters"
        )
    mean = sum(map(len, all_texts)) / len(all_texts)
    how = f"all-MiniLM-L6-v2; medians of {counted(options.rounds, 'run')}. {what}, {mean:.0f} on average"
    publish("cluster", rows, how, write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
