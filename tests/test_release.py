"""What is released: one version everywhere, its notes, and what the workflow runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import minibert
from tests.support.outcomes import ROOT, run

WORKFLOW = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.0"\n',
    "CITATION.cff": "title: x\nversion: 1.2.0\nlicense: x\n",
    ".github/CHANGELOG.md": "# C\n\n## Stable API\n\nx\n\n## 1.2.0 (2026-12-01)\n\n- New.\n\n### Part\n\nOld.\n\n"
    "## 1.1.0 (2026-11-01)\n\n- y\n",
}


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return .github/release.py, whose tree is `tmp_path` with the three files of version 1.2.0."""
    spec = importlib.util.spec_from_file_location("release", ROOT / ".github" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / ".github").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def test_version_changelog_and_citation_agree(release: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "ROOT", ROOT)
    assert release.version() == minibert.__version__
    date, text = release.section(minibert.__version__)
    assert date == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", date)
    assert text.startswith("### ")
    recipe = (ROOT / ".github" / "conda-forge" / "recipe.yaml").read_text(encoding="utf-8")
    assert f"\n  version: {minibert.__version__}\n" in recipe


def test_the_bibtex_of_the_page_is_the_citation() -> None:
    page = (ROOT / "minibert" / "vectors" / "README.md").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    entry = re.sub("[{}]", "", page.split("```bibtex")[1].split("```")[0])
    for field, name in (("title", "title"), ("version", "version"), ("author", "  - name")):
        value = re.search(rf"^{name}: \"?(.*?)\"?$", citation, re.MULTILINE)
        assert value is not None
        assert f"{field} = {value[1]},\n" in entry


def test_the_notes_of_a_tag_are_the_section_of_the_changelog(release: ModuleType) -> None:
    assert release.notes("v1.2.0") == "- New.\n\n### Part\n\nOld.\n"
    assert release.section("1.1.0") == ("2026-11-01", "- y\n")


@pytest.mark.parametrize(
    ("tag", "file", "old", "new", "message"),
    [
        ("v1.2.1", "CITATION.cff", "", "", "the tag is v1.2.1, and the version of pyproject.toml is 1.2.0"),
        ("v1.2.0", "CITATION.cff", "1.2.0", "1.1.0", "CITATION.cff does not have the version 1.2.0"),
        ("v1.2.0", ".github/CHANGELOG.md", "1.2.0", "1.2.1", "CHANGELOG.md has no section '## 1.2.0"),
        ("v1.2.0", ".github/CHANGELOG.md", "2026-12-01", "unreleased", r"has \(unreleased\) for 1.2.0"),
    ],
)
def test_a_tag_that_does_not_agree_is_refused(
    tag: str, file: str, old: str, new: str, message: str, release: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(FILES[file].replace(old, new) if old else FILES[file], encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        release.notes(tag)


def test_the_workflow_runs_the_first_command_of_the_front_page() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^pip install \. && pip install (--no-deps \S+) && (minibert words .*)$", page, re.MULTILINE)
    assert command is not None
    assert f"install {command[1]}\n" in WORKFLOW
    assert f"{command[2]}\n" in WORKFLOW


def test_without_the_safetensors_package_models_are_read_and_traces_are_npz(
    outcome_model: Path, tmp_path: Path
) -> None:
    """It has no wheel for a Python without the GIL (3.14t), where an installation with --no-deps leaves it out."""
    program = f"""
        sys.modules["safetensors"] = None
        from minibert import parity
        from minibert.cli import main
        model = load(backend="numpy")
        trace = model.trace(**batch(0))
        trace.save({str(tmp_path / "a.npz")!r})
        assert len(type(trace).load({str(tmp_path / "a.npz")!r})) == len(trace)
        for action in (lambda: model.save_pretrained({str(tmp_path / "model")!r}),
                       lambda: trace.save({str(tmp_path / "a.safetensors")!r}),
                       lambda: type(trace).load({str(tmp_path / "b.safetensors")!r}),
                       lambda: parity.probe(model).save({str(tmp_path / "probe")!r})):
            try:
                action()
            except ImportError as error:
                print(error)
        print(*sorted(os.listdir({str(tmp_path)!r})))
        """
    (tmp_path / "b.safetensors").write_bytes(b"")
    *messages, files = run(program, outcome_model).splitlines()
    assert len(messages) == 4
    assert all("needs safetensors, which is not installed: pip install safetensors" in message for message in messages)
    assert files.split() == ["a.npz", "b.safetensors", "model"]
