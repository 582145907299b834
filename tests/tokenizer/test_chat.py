"""Chat templates: equal to transformers', run only if the caller hands them over, saved and read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from minibert.tokenizer.bert_tokenizer import BertTokenizer
from tests.support.checkpoints import locate_minilm

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] | trim }}{{ sep_token }}{% endfor %}"
CHAT = [{"role": "user", "content": "a question "}, {"role": "assistant", "content": "an answer ", "tool": None}]


@pytest.fixture
def ours() -> BertTokenizer:
    return BertTokenizer.from_pretrained(locate_minilm())


@pytest.mark.parametrize(
    "options",
    [
        {"tokenize": False},
        {"tokenize": False, "continue_final_message": True},
        {"return_dict": False},
        {"padding": "max_length", "max_length": 20, "truncation": True},
        {"tokenize": False, "sep_token": "|"},
    ],
    ids=str,
)
def test_a_template_gives_the_text_of_transformers(ours: BertTokenizer, options: dict[str, Any]) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(locate_minilm())
    for conversation in (CHAT, [CHAT, CHAT[:1]]):
        expected = theirs.apply_chat_template(conversation, chat_template=TEMPLATE, **options)
        found = ours.apply_chat_template(conversation, chat_template=TEMPLATE, **options)
        assert getattr(found, "data", found) == getattr(expected, "data", expected)


def test_a_template_of_the_files_runs_only_if_it_is_given(ours: BertTokenizer, tmp_path: Path) -> None:
    ours.chat_template = {"default": TEMPLATE, "other": "x"}
    expected = ours.apply_chat_template(CHAT, tokenize=False)
    assert ours.apply_chat_template(CHAT, chat_template="other", tokenize=False) == "x"
    for as_files in (True, False):
        folder = tmp_path / str(as_files)
        ours.save_pretrained(folder, save_jinja_files=as_files)
        assert (folder / "chat_template.jinja").exists() == as_files
        again = BertTokenizer.from_pretrained(folder)
        assert again.chat_template == ours.chat_template
        assert transformers.AutoTokenizer.from_pretrained(folder).chat_template == ours.chat_template
        with pytest.raises(ValueError, match="is a program, so it runs only if it is given"):
            again.apply_chat_template(CHAT)
        again.chat_template = again.chat_template
        assert again.apply_chat_template(CHAT, tokenize=False) == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "no chat template was set"),
        ({"conversation": []}, ValueError, "at least one message"),
        ({"conversation": "text"}, ValueError, "expected a list of at least one message"),
        ({"conversation": [1]}, ValueError, "expected a list of at least one mapping"),
        ({"chat_template": "{{ 1 / 0 }}"}, ValueError, "the chat template failed: ZeroDivisionError"),
        ({"chat_template": "{% if %}"}, ValueError, "the chat template failed: TemplateSyntaxError"),
        ({"chat_template": "{{ ''.__class__.__mro__ }}"}, ValueError, "SecurityError"),
        ({"chat_template": 5}, TypeError, "chat_template is int 5"),
        ({"chat_template": "x", "continue_final_message": True}, ValueError, "leaves out the content"),
        ({"chat_template": "x", "continue_final_message": "why"}, ValueError, "the last message has no why"),
        ({"chat_template": "x", "return_assistant_tokens_mask": True}, ValueError, "is for training"),
    ],
    ids=str,
)
def test_bad_calls_are_named(
    ours: BertTokenizer, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ours.apply_chat_template(**({"conversation": CHAT} | options))


def test_names_and_values_of_templates_are_checked(ours: BertTokenizer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chat_template is 5; expected a str, or a mapping"):
        ours.chat_template = 5
    ours.chat_template = {"../name": "x"}
    with pytest.raises(ValueError, match="a chat template is named"):
        ours.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_without_jinja2_the_message_names_it(ours: BertTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2.sandbox", None)
    with pytest.raises(ImportError, match="chat templates need jinja2"):
        ours.apply_chat_template(CHAT, chat_template=TEMPLATE)
