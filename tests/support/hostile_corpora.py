"""Unusual corpora: inputs that are hard to read, names, links, existing files, damaged runs."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minibert import SentenceTransformer
from minibert.cli import main
from tests.support.hostile import FaultError


@dataclasses.dataclass
class Trap:
    """An unusual corpus, and its allowed results.

    Parameters
    ----------
    inputs : paths of files, or "-"
    output : Path
    texts : list of str or None, optional
        The texts of the inputs, with None for an input line that cannot be used. Not given: the texts are not defined.
    options : list of str
    may_change : set of Path
        Files that existed before and belong to the run.
    """

    inputs: list[Any]
    output: Path
    texts: list[str | None] | None = None
    options: list[str] = dataclasses.field(default_factory=list)
    may_change: set[Path] = dataclasses.field(default_factory=set)


Make = Callable[[Path, random.Random], Trap]
Damage = Callable[[Path, Path, random.Random], list[str] | None]
"""Damages the folder of an interrupted run, or its input; returns more options for the run that resumes it."""

_TEXTS = ["the cat sat", "", "a dog", "the cat sat", "héllo wörld", "by the river bank"]


def corpus_case(number: int, folder: Path) -> bool:
    """Embed, or extract from, a corpus; check the output, and every file that existed before."""
    from tests.support.hostile_cases import intact

    chance = random.Random(f"corpus {number}")
    name = sorted(TRAPS)[number % len(TRAPS)]
    print(name)
    work = folder / "work"
    work.mkdir()
    trap = TRAPS[name](work, chance)
    on_error = chance.choice(("stop", "skip", "null"))
    options = ["--on-error", on_error, "--shard-size", str(chance.choice((1, 2, 7, 10_000))), "--truncation", "silent"]
    verb = "extract" if trap.output.suffix == ".npy" and chance.random() < 0.2 and not trap.options else "embed"
    arguments = [verb, "-m", str(intact()), "-o", str(trap.output), *options, *trap.options]
    if verb == "extract":
        arguments = ["extract", "--layers=-1", *arguments[1:5], *options[:4]]
    before = _files(folder)
    code = run([*arguments, "-i", *map(str, trap.inputs)])
    _check_files(folder, before, trap)
    if code == 0 and verb == "embed":
        _check_rows(trap, on_error, intact())
    return code == 0


def run(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as error:  # argparse's
        return int(error.code or 0)


def _files(folder: Path) -> dict[Path, Any]:
    """Return everything in a folder: the bytes of files, the targets of links, the kind of others."""
    found: dict[Path, Any] = {}
    for root, folders, names in os.walk(folder):
        for path in (Path(root, name) for name in (*folders, *names)):
            if path.is_symlink():
                found[path] = ("link", os.readlink(path))
            else:
                found[path] = path.read_bytes() if path.is_file() else path.stat().st_mode
    return found


def _sidecars(output: Path) -> list[Path]:
    """Return the files and the folder that a run makes beside its output."""
    stem = output.with_suffix("") if output.suffix == ".npy" else output
    names = (f"{stem}.ids.jsonl", f"{output}.manifest.json", f"{stem}.manifest.json", f"{stem}.index.jsonl")
    return [Path(name) for name in (*names, f"{stem}.offsets.npy", f"{stem}.tokens.jsonl", f"{output}.parts")]


def _check_files(folder: Path, before: dict[Path, Any], trap: Trap) -> None:
    """Raise if a file changed that the user did not name, or a file was made that is not an output."""
    target = Path(os.path.realpath(str(trap.output).replace("\0", "")))
    after = _files(folder)
    for path, content in before.items():
        if path not in (target, *trap.may_change) and after.get(path) != content:
            raise FaultError(f"LOST FILE: {path} was changed or deleted")
    own = [target, *_sidecars(target), *trap.may_change]
    for path in after.keys() - before.keys():
        if not any(path == mine or mine in path.parents for mine in own):
            raise FaultError(f"LOST FILE: {path} was made, but is not an output")


def _check_rows(trap: Trap, on_error: str, model_folder: Path) -> None:
    """Compare the output with the vectors of the texts."""
    if trap.output.suffix == ".npy":
        vectors = np.load(trap.output)
        ids = trap.output.with_suffix(".ids.jsonl").read_text(encoding="utf-8").splitlines()
        if len(ids) != len(vectors):
            raise FaultError(f"WRONG NUMBER: {len(vectors)} rows, {len(ids)} ids")
    else:
        with open(trap.output, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        key = next((key for key in rows[0] if isinstance(rows[0][key], list)), "embedding") if rows else ""
        vectors = np.array([row[key] or [np.nan] * 24 for row in rows], np.float32).reshape(len(rows), -1)
    if trap.texts is None:
        return
    usable = [text for text in trap.texts if text is not None]
    if on_error == "stop" and len(usable) < len(trap.texts):
        raise FaultError("WRONG NUMBER: a bad line was not noticed")
    expected = usable if on_error == "skip" else trap.texts
    if len(vectors) != len(expected):
        raise FaultError(f"WRONG NUMBER: {len(vectors)} rows, expected {len(expected)}")
    kept = np.array([text is not None for text in expected], bool)
    model = SentenceTransformer(model_folder, num_threads=1)
    if not np.array_equal(vectors[kept], model.encode([t for t in expected if t is not None], truncation="silent")):
        raise FaultError("WRONG NUMBER: the vectors are not those of the texts")
    if not np.isnan(vectors[~kept]).all():
        raise FaultError("WRONG NUMBER: an input line without a text has a vector")


# --- the content of the files -----------------------------------------------------------------------------------------

TRAPS: dict[str, Make] = {}


def _output(folder: Path, chance: random.Random) -> Path:
    return folder / chance.choice(("out.npy", "out.npy", "out.jsonl"))


def _add(name: str, make: Make) -> None:
    assert name not in TRAPS, name
    TRAPS[name] = make


def _add_data(
    name: str, file: str, data: bytes | Callable[[random.Random], bytes], texts: list[str | None] | None, *options: str
) -> None:
    """Add an input file with this content."""

    def make(folder: Path, chance: random.Random) -> Trap:
        (folder / file).write_bytes(data if isinstance(data, bytes) else data(chance))
        return Trap([folder / file], _output(folder, chance), texts, list(options))

    _add(f"{file.partition('.')[2]}: {name}", make)


_ENDS = "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g"
_PLAIN = "".join(f"{text}\n" for text in _TEXTS).encode()
for _name, _data, _texts in (
    ("LF", _PLAIN, _TEXTS),
    ("CRLF", _PLAIN.replace(b"\n", b"\r\n"), _TEXTS),
    ("mixed ends", b"a\r\nb\nc\r\nd", ["a", "b", "c", "d"]),
    ("CR alone is not an end", b"a\rb\n", ["a\rb"]),
    ("no end at the end", b"a\nb", ["a", "b"]),
    ("an empty last line", b"a\n\n", ["a", ""]),
    ("empty lines only", b"\n\n\n", ["", "", ""]),
    ("empty", b"", None),
    ("a byte order mark", b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
    ("two byte order marks", b"\xef\xbb\xbf\xef\xbb\xbfa\nb\n", ["\ufeffa", "b"]),
    ("a byte order mark inside", b"a\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    ("NUL", b"a\0b\n\0\n", ["a\0b", "\0"]),
    ("bad UTF-8", b"a\n\xff\xfe\nb\n", ["a", None, "b"]),
    ("overlong and surrogate bytes", b"\xc0\x80\n\xed\xa0\x80\nb\n", [None, None, "b"]),
    ("cut character", b"a\nb\xc3", ["a", None]),
    ("UTF-16", "the cat\nsat\n".encode("utf-16"), None),
    ("Latin-1", "é\na\n".encode("latin-1"), [None, "a"]),
    (
        "other line ends of Unicode",
        "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g\n".encode(),
        ["a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g"],
    ),
    ("control characters", b"\x01\x02\x1b[31m\x7f\n", ["\x01\x02\x1b[31m\x7f"]),
    ("white space only", " \n\t\n\u3000\n".encode(), [" ", "\t", "\u3000"]),
    ("combining marks only", ("\u0301" * 500 + "\n").encode(), ["\u0301" * 500]),
    ("a long line", b"the cat sat " * 80_000 + b"\nb\n", ["the cat sat " * 80_000, "b"]),
    ("a long word", b"a" * 1_000_000 + b"\nb\n", ["a" * 1_000_000, "b"]),
    ("many lines", b"a\nb\n" * 200, ["a", "b"] * 200),
    ("one line of 20 MB", b"cat " * 5_000_000, None),
):
    _add_data(_name, "in.txt", _data, _texts)  # type: ignore[arg-type]


def _jsonl(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in ('{"text": "a"}', *lines)).encode()


for _name, _data, _texts in (
    ("objects and strings", _jsonl('"b"', '{"text": "c", "x": 1}'), ["a", "b", "c"]),
    ("other kinds of values", _jsonl("[]", "1", "null", "true", "[1]"), ["a", None, None, None, None, None]),
    ("no text", _jsonl('{"txt": "a"}', "{}", '{"text": null}', '{"text": 3}', '{"text": ["a"]}'), ["a"] + [None] * 5),
    ("nested", _jsonl('{"text": ' + "[" * 100_000, "[" * 100_000 + "]" * 100_000), ["a", None, None]),
    ("NaN", _jsonl('{"text": NaN}', '{"text": "b", "x": Infinity}'), None),
    ("equal keys", _jsonl('{"text": "b", "text": "c"}'), None),
    ("half a character", _jsonl('{"text": "\\ud800"}', '{"text": "\\ud83d\\ude00"}'), ["a", None, "😀"]),
    ("cut last line", _jsonl() + b'{"text": "b', ["a", None]),
    ("a byte order mark", b"\xef\xbb\xbf" + _jsonl(), ["a"]),
    ("empty lines", _jsonl("", " ") + b"\n", ["a", None, None, None]),
    ("5,000 digits", _jsonl('{"text": "b", "x": ' + "1" * 5000 + "}"), None),
    ("more behind the object", _jsonl('{"text": "b"} {"text": "c"}', '{"text": "b"},'), ["a", None, None]),
    ("CRLF", _jsonl('{"text": "b"}').replace(b"\n", b"\r\n"), ["a", "b"]),
    ("line ends inside", _jsonl('{"text": "b\u2028c\u0085\\n\\r\\u0000d"}'), ["a", "b\u2028c\x85\n\r\0d"]),
    ("raw control characters", _jsonl('{"text": "b\tc"}'), None),
    ("bad UTF-8", _jsonl() + b'{"text": "\xff"}\n', ["a", None]),
    ("single quotes", _jsonl("{'text': 'b'}"), ["a", None]),
    ("empty", b"", None),
):
    _add_data(_name, "in.jsonl", _data, _texts)  # type: ignore[arg-type]

_IDS = ('"b"', "7", "true", "1.5", "null", "[]", '"\\udc00"', '""', "1" * 5000, "1" * 400, "-1", '"a\\nb"')
_add_data(
    "ids", "ids.jsonl", b"".join(b'{"text": "a", "id": %s}\n' % own.encode() for own in _IDS), None, "--id-column", "id"
)
_add_data(
    "equal ids", "equal.jsonl", b'{"text": "a", "id": 1}\n{"text": "b", "id": 1}\n', ["a", "b"], "--id-column", "id"
)
_add_data("no such key", "key.jsonl", _jsonl(), [None], "--text-column", "body")
_add_data("no ids", "noids.jsonl", _jsonl('"b"'), None, "--id-column", "id")

for _name, _data, _texts in (
    ("quotes", b'text,x\n"a, ""b""",1\n"c\nd",2\n', ['a, "b"', "c\nd"]),
    ("a quote that stays open", b'text,x\na,1\n"b,2\nc,3\n', None),
    ("a quote inside", b'text,x\na"b,1\n"c"d,2\ne,3\n', None),
    ("too few columns", b"text,x\na,1\nb\nc,2\n", ["a", None, "c"]),
    ("too many columns", b"text,x\na,1\nb,2,3\n", ["a", None]),
    ("no such column", b"txt,x\na,1\n", None),
    ("empty", b"", None),
    ("a header only", b"text,x\n", None),
    ("equal columns", b"text,text\na,b\n", None),
    ("a byte order mark", b"\xef\xbb\xbftext,x\na,1\n", ["a"]),
    ("a quoted header with a byte order mark", b'\xef\xbb\xbf"text",x\na,1\n', ["a"]),
    ("NUL", b"text,x\na\0b,1\nc,2\n", None),
    ("bad UTF-8", b"text,x\n\xff,1\nb,2\n", [None, "b"]),
    ("bad UTF-8 in the header", b"text,\xff\na,1\n", None),
    ("a long field", b"text,x\n" + b"cat " * 50_000 + b",1\nb,2\n", ["cat " * 50_000, "b"]),
    ("a field of 17 MB", b'text,x\n"' + b"cat\n" * (17 * 2**18), None),
    ("CR ends", b"text,x\ra,1\rb,2\r", ["a", "b"]),
    ("CRLF ends", b"text,x\r\na,1\r\nb,2\r\n", ["a", "b"]),
    ("empty lines", b"text,x\n\na,1\n\n", ["a"]),
    ("semicolons", b"text;x\na;1\n", None),
    ("no end at the end", b"text,x\na,1", ["a"]),
    ("UTF-16", "text,x\na,1\n".encode("utf-16"), None),
):
    _add_data(_name, "in.csv", _data, _texts)  # type: ignore[arg-type]
_add_data("quotes", "in.tsv", b'text\tx\n"a\tb"\t1\nc, d\t2\n', ["a\tb", "c, d"])
_add_data("commas", "commas.tsv", b"text,x\na,1\n", None)
_add_data("ids", "ids.csv", b"id,text\n1,a\n,b\n1,c\n\xff,d\n", None, "--id-column", "id")

_GZ = gzip.compress(_PLAIN, mtime=0)
for _name, _data, _texts in (
    ("whole", _GZ, _TEXTS),
    ("cut", lambda chance: _GZ[: chance.randrange(1, len(_GZ))], None),
    ("a wrong checksum", _GZ[:-6] + b"\0\0" + _GZ[-4:], None),
    ("changed bytes", lambda chance: _GZ[:12] + chance.randbytes(4) + _GZ[16:], None),
    ("two members", _GZ + _GZ, _TEXTS * 2),
    ("zeros behind", _GZ + b"\0" * 100, _TEXTS),
    ("more behind", _GZ + b"more", None),
    ("not gzip", _PLAIN, None),
    ("empty", b"", None),
    ("empty inside", gzip.compress(b"", mtime=0), None),
    ("a bomb of one line", lambda _: gzip.compress(bytes(200 * 2**20), 1), None),
    ("a bomb of letters", lambda _: gzip.compress(b"a" * (100 * 2**20), 1), None),
    ("a bomb of empty lines", lambda _: gzip.compress(b"\n" * 100, 1), None),
    ("twice", gzip.compress(_GZ, mtime=0), None),
):
    _add_data(_name, "in.txt.gz", _data, _texts)  # type: ignore[arg-type]
_add_data("gzip without its suffix", "gz.txt", _GZ, _TEXTS)
_add_data("JSON lines", "in.jsonl.gz", gzip.compress(_jsonl('"b"')), ["a", "b"])
_add_data("a table", "in.csv.gz", gzip.compress(b"text\na\n"), ["a"])


# --- names, links, existing files -------------------------------------------------------------------------------------

_NAMES: tuple[str | bytes, ...] = (
    *(
        "a b",
        "a\nb",
        "\n",
        " ",
        "-i",
        "--help",
        "é",
        "e\u0301",
        "😀",
        "'; rm x",
        '"',
        "*",
        "%s",
        "{}",
        "a\x1b[31m",
        "x.parts",
    ),
    *("x" * 250, "x" * 240, b"\xff\xfe", b"a\xffb", "\u202eabc", "~", "$HOME", "manifest.json", "lock", "a\x1b[31m"),
)


def _names(folder: Path, chance: random.Random) -> Trap:
    def name(suffix: str) -> Path:
        chosen = chance.choice(_NAMES) if chance.random() < 0.7 else "plain"
        return folder / ((os.fsdecode(chosen) if isinstance(chosen, bytes) else chosen) + suffix)

    source = name(".txt")
    source.write_bytes(_PLAIN)
    return Trap([source], name(chance.choice((".npy", ".jsonl"))), _TEXTS)


for _number in range(6):
    _add(f"names {_number}", _names)


def _with_input(change: Callable[[Path, Path, random.Random], Trap | None]) -> Make:
    """Return a maker of traps: a good input and the output out.npy, changed by `change`."""

    def make(folder: Path, chance: random.Random) -> Trap:
        source = folder / "in.txt"
        source.write_bytes(_PLAIN)
        return change(folder, source, chance) or Trap([source], folder / "out.npy", _TEXTS)

    return make


def _in_the_way(*files: str, made: str = "file") -> Make:
    """Return a maker of traps: the user's files, or other things, have names that a run uses."""

    def change(folder: Path, source: Path, chance: random.Random) -> None:
        for file in files:
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if made == "file":
                content = chance.choice((b"", b"mine", b"{}", b"[]", b'{"finished": 1}\n', b"\0" * 100))
                path.write_bytes(content)
            elif made == "folder":
                path.mkdir()
                (path / "mine").write_text("mine")
            elif made == "fifo":
                os.mkfifo(path)
            elif made == "read-only":
                path.write_text("mine")
                path.chmod(0o400)
            else:
                (folder / "theirs").write_text("theirs")
                path.symlink_to(folder / chance.choice(("theirs", "nowhere", path.name)))

    return _with_input(change)


for _names_in_the_way in (
    *(("out.npy",), ("out.ids.jsonl",), ("out.npy.manifest.json",), ("out.npy.parts",)),
    *(("out.npy.parts/manifest.json",), ("out.npy.parts/part-00000.parquet", "out.npy.parts/mine")),
    (".minibert-abcdefgh", "out.npy.parts/mine"),
):
    for _made in ("file", "folder", "link", "read-only", "fifo"):
        _add(f"in the way: {_made} {' '.join(_names_in_the_way)}", _in_the_way(*_names_in_the_way, made=_made))


def _paths(make: Callable[[Path, Path], tuple[list[Any], Path]], texts: list[str | None] | None = None) -> Make:
    def change(folder: Path, source: Path, chance: random.Random) -> Trap:
        inputs, output = make(folder, source)
        return Trap(inputs, output, texts)

    return _with_input(change)


def _link(path: Path, target: Path | str) -> Path:
    path.symlink_to(target)
    return path


def _hard_link(path: Path, target: Path) -> Path:
    os.link(target, path)
    return path


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _copy(source: Path, path: Path) -> Path:
    shutil.copy(source, path)
    return path


for _name, _make in {
    "the input is a link": lambda folder, source: ([_link(folder / "l", source)], folder / "out.npy"),
    "the output is a link": lambda folder, source: ([source], _link(folder / "o.npy", folder / "there.npy")),
    "the output is a link to the input": lambda folder, source: ([source], _link(folder / "o.npy", source)),
    "the output is the input by a hard link": lambda folder, source: ([source], _hard_link(folder / "o.npy", source)),
    "the output is a link to itself": lambda folder, source: ([source], _link(folder / "o.npy", "o.npy")),
    "the output is a link into no folder": lambda folder, source: ([source], _link(folder / "o.npy", "no/o.npy")),
    "the output is the input": lambda folder, source: ([_copy(source, folder / "x.jsonl")], folder / "x.jsonl"),
    "the ids are the input": lambda folder, source: ([_copy(source, folder / "o.ids.jsonl")], folder / "o.npy"),
    "the manifest is the input": lambda folder, source: (
        [_copy(source, folder / "o.npy.manifest.json")],
        folder / "o.npy",
    ),
    "the output is a folder": lambda folder, source: ([source], folder),
    "the output is in no folder": lambda folder, source: ([source], folder / "no" / "out.npy"),
    "the output is below a file": lambda folder, source: ([source], source / "out.npy"),
    "the output has no name": lambda folder, source: ([source], Path("")),
    "the output has a NUL": lambda folder, source: ([source], folder / "a\0.npy"),
    "the output has another suffix": lambda folder, source: ([source], folder / "out.txt"),
    "the output is /dev/null": lambda folder, source: ([source], Path("/dev/null")),
    "the output is /dev/full": lambda folder, source: ([source], _link(folder / "o.npy", "/dev/full")),
    "the output is a pipe": lambda folder, source: ([source], _fifo(folder / "o.npy")),
    "the input is a folder": lambda folder, source: ([folder], folder / "out.npy"),
    "the input is not there": lambda folder, source: ([folder / "no.txt"], folder / "out.npy"),
    "the input is a link to itself": lambda folder, source: ([_link(folder / "l", "l")], folder / "out.npy"),
    "the input is /dev/null": lambda folder, source: (["/dev/null"], folder / "out.npy"),
    "the input is /dev/zero": lambda folder, source: (["/dev/zero"], folder / "out.npy"),
    "the input has a NUL": lambda folder, source: ([str(folder / "a\0.txt")], folder / "out.npy"),
    "the input is empty by name": lambda folder, source: ([""], folder / "out.npy"),
    "the same input twice": lambda folder, source: ([source, source], folder / "out.npy"),
    "an input and none": lambda folder, source: ([source, folder / "no.txt"], folder / "out.npy"),
    "the standard input is empty": lambda folder, source: (["-"], folder / "out.npy"),
    "the standard input twice": lambda folder, source: (["-", "-"], folder / "out.npy"),
}.items():
    _add(_name, _paths(_make))


def _full_disk(folder: Path, source: Path, chance: random.Random) -> None:
    import resource

    size = chance.choice((0, 1, 100, 200, 500, 1000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _read_only_folder(folder: Path, source: Path, chance: random.Random) -> None:
    folder.chmod(0o500)  # root may still write


_add("the disk is full", _with_input(_full_disk))
_add("the folder is read-only", _with_input(_read_only_folder))


# --- runs that were interrupted, and damaged --------------------------------------------------------------------------


def _interrupted(
    damage: Callable[[Path, Path, random.Random], list[str] | None], texts: list[str | None] | None
) -> Make:
    """Return a maker of traps: a run of `_TEXTS` * 4 is killed after some shards, damaged and resumed."""

    def make(folder: Path, chance: random.Random) -> Trap:
        from tests.support.hostile_cases import intact

        source, output = folder / "in.txt", folder / "out.npy"
        source.write_bytes(_PLAIN * 4)
        common = ["--on-error", "null", "--shard-size", "3", "--truncation", "silent"]
        if (child := os.fork()) == 0:
            _kill_at(chance.randrange(2, 8))
            main(["embed", "-m", str(intact()), "-i", str(source), "-o", str(output), *common])
            os._exit(0)
        os.waitpid(child, 0)
        parts = folder / "out.npy.parts"
        more = damage(parts, source, chance) or []
        # The last of two equal options is used.
        options = [*common, "--resume", *more]
        return Trap([source], output, texts, options, {*parts.rglob("*"), parts} if parts.is_dir() else set())

    return make


def _kill_at(shard: int) -> None:
    """Make this process kill itself when this number of shards is done."""
    from minibert.corpus.runs import _RunFolder

    save, done = _RunFolder.save, 0

    def counted(self: _RunFolder, *arguments: Any) -> Any:
        nonlocal done
        counts = save(self, *arguments)
        done += 1
        if done == shard:
            os.kill(os.getpid(), signal.SIGKILL)
        return counts

    _RunFolder.save = counted  # type: ignore[method-assign]


def _edit(name: str, change: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, Path, random.Random], None]:
    def damage(parts: Path, source: Path, chance: random.Random) -> None:
        path = chance.choice(sorted(parts.glob(name)))
        path.write_bytes(change(path.read_bytes(), chance))

    return damage


def _flip(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def _extend(data: bytes, chance: random.Random) -> bytes:
    return data + chance.choice((b"\0" * 100, data, b"\n", b"{}\n"))


def _swap_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    chance.shuffle(lines)
    return b"".join(lines)


def _edit_text(data: bytes, chance: random.Random) -> bytes:
    digits = [at for at, byte in enumerate(data) if byte in b"0123456789"]
    at = chance.choice(digits)
    return data[:at] + b"%d" % chance.randrange(10) + data[at + 1 :]


def _change_input(parts: Path, source: Path, chance: random.Random) -> None:
    """Change a letter of the input, but not its size and time."""
    status = source.stat()
    source.write_bytes(source.read_bytes().replace(b"cat", b"dog", 1))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))


def _delete(name: str) -> Callable[[Path, Path, random.Random], None]:
    def damage(parts: Path, source: Path, chance: random.Random) -> None:
        chance.choice(sorted(parts.glob(name))).unlink()

    return damage


def _stranger(parts: Path, source: Path, chance: random.Random) -> None:
    (parts / chance.choice(("mine", "part-mine", "part-00000.parquet"))).write_text("mine")


for _file in ("manifest.json", "shard-*.json", "shard-*.npy", "shard-*.ids.jsonl"):
    for _change in (_flip, _cut, _extend, _swap_lines, _edit_text):
        _add(f"resume: {_file}, {_change.__name__}", _interrupted(_edit(_file, _change), _TEXTS * 4))
    _add(f"resume: {_file} deleted", _interrupted(_delete(_file), _TEXTS * 4))
_add("resume: nothing damaged", _interrupted(lambda *_: None, _TEXTS * 4))
_add("resume: another input of the same size and time", _interrupted(_change_input, None))
_add("resume: a stranger in the folder", _interrupted(_stranger, _TEXTS * 4))
for _option in (
    ["--dtype", "float16"],
    ["--on-error", "skip"],
    ["--normalize"],
    ["--pooling", "max"],
    ["--shard-size", "4"],
):
    _add(f"resume: {' '.join(_option)}", _interrupted(lambda *_, option=_option: option, None))
