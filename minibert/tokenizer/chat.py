"""Chat templates: a conversation -> one text. The only import of jinja2, which must be installed for that.

A template is a program, and minibert runs no program of a model repository: a template that came with the files of a
model is kept, shown and saved, but it runs only if the caller hands it over.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from minibert._utils.files import read_bytes
from minibert._utils.validation import brief
from minibert.errors import ModelFormatError
from minibert.tokenizer.files import LoadedTokenizer
from minibert.tokenizer.padding import Padding
from minibert.tokenizer.texts import shown

__all__ = ["Chat", "Templates", "check_templates", "folder_templates", "render", "template_files"]

Templates: TypeAlias = str | dict[str, str] | None
"""One template, several by name, or none."""

_FILE, _FOLDER = "chat_template.jinja", "additional_chat_templates"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")

# Put behind the last message, to find its end in the rendered text.
_END = "minibert-end-of-the-last-message"


# Options of `__call__` that `apply_chat_template` hands on.
_CHAT_WAYS = ("padding", "truncation", "max_length", "return_tensors", "padding_side", "pad_to_multiple_of")


class Chat(Padding):
    """A tokenizer's chat template."""

    def __init__(self, loaded: LoadedTokenizer) -> None:
        super().__init__(loaded)
        self._stored_template = loaded.chat_template
        self._own_template: Templates = None

    def __call__(self, text: Any, **options: Any) -> Any:
        """Tokenize texts; see `BertTokenizer`."""
        raise NotImplementedError

    def template_settings(self) -> dict[str, Any]:
        """Return the templates as a field of tokenizer_config.json."""
        templates = self.chat_template
        if isinstance(templates, dict):
            return {"chat_template": [{"name": name, "template": text} for name, text in templates.items()]}
        return {} if templates is None else {"chat_template": templates}

    @property
    def chat_template(self) -> Templates:
        """The chat template that was set, else that of the files; several by name; None if there is none."""
        return check_templates(self._stored_template) if self._own_template is None else self._own_template

    @chat_template.setter
    def chat_template(self, template: Any) -> None:
        self._own_template = check_templates(template)

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tools: Any = None,
        documents: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        tokenize: bool = True,
        return_dict: bool = True,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Turn a conversation, or several, into one text each with a chat template, and tokenize it.

        It needs jinja2. A template is a program: one that came with the files of the model runs only if it is given,
        ``chat_template=tokenizer.chat_template``, because minibert runs no program of a model repository.

        Parameters
        ----------
        conversation : list of mappings, or list of such lists
            Messages with "role" and "content".
        tools, documents, add_generation_prompt
            Variables of the template.
        chat_template : str, optional
            A template, or the name of one of `chat_template`. Default: `chat_template`, if the program has set it.
        continue_final_message : bool or str
            End the text with the last message's "content", or another field.
        tokenize, return_dict : bool
            False: return the text; the ids alone.
        tokenizer_kwargs : mapping, optional
        **options
            padding, truncation, max_length and return_tensors of `__call__`; the others are variables of the template.

        Raises
        ------
        ImportError
            jinja2 is not installed.
        TypeError, ValueError
            There is no template or no message, or the template fails.
        """
        if not isinstance(conversation, Sequence) or isinstance(conversation, str) or not conversation:
            raise ValueError(f"conversation is {shown(conversation)}; expected a list of at least one message.")
        several = isinstance(conversation[0], list | tuple)
        chats = list(conversation) if several else [conversation]
        for chat in chats:
            if not chat or not all(isinstance(message, Mapping) for message in chat):
                raise ValueError(f"a conversation is {shown(chat)}; expected a list of at least one mapping.")
        if options.pop("return_assistant_tokens_mask", False):
            raise ValueError("return_assistant_tokens_mask=True is for training, which minibert does not do.")
        ways = {name: options.pop(name) for name in _CHAT_WAYS if name in options}
        template = self._template(chat_template)
        variables = {"tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt}
        texts = [
            render(template, chat, continue_final_message, **(variables | self.special_tokens_map | options))
            for chat in chats
        ]
        text = texts if several else texts[0]
        if not tokenize:
            return text
        found = self(text, add_special_tokens=False, **ways, **(tokenizer_kwargs or {}))
        return found if return_dict else found["input_ids"]

    def _template(self, asked: str | None) -> str:
        """Return the template to run: the given one, one of `chat_template` by name, or that which was set."""
        known = self.chat_template
        if asked is not None and not (isinstance(known, dict) and asked in known):
            if not isinstance(asked, str):
                raise TypeError(f"chat_template is {shown(asked)}; expected a str.")
            return asked
        if self._own_template is None:
            raise ValueError(
                "no chat template was set. Give chat_template=, or set tokenizer.chat_template"
                + (
                    "."
                    if known is None
                    else "; that of the model's files is a program, so it runs only if it is given."
                )
            )
        if isinstance(known, dict):
            if (asked or "default") not in known:
                raise ValueError(f"give chat_template=, one of {', '.join(map(repr, known))}.")
            return known[asked or "default"]
        return str(known)


def check_templates(value: Any) -> Templates:
    """Return the chat template of a user or of tokenizer_config.json, where several are a list of name and template.

    Raises
    ------
    ValueError
        It is not a template, or templates by name.
    """
    if isinstance(value, list | tuple) and all(isinstance(one, Mapping) for one in value):
        value = {one.get("name"): one.get("template") for one in value}
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair):
        return dict(value)
    raise ValueError(f"chat_template is {brief(value)}; expected a str, or a mapping of names to str.")


def folder_templates(folder: Path) -> Templates:
    """Read the templates that lie beside a tokenizer in a folder; None if there are none."""
    found = {path.stem: _text(path) for path in sorted((folder / _FOLDER).glob("*.jinja"))}
    if (folder / _FILE).is_file():
        default = _text(folder / _FILE)
        return {"default": default} | found if found else default
    return found or None


def template_files(templates: Templates) -> dict[str, str]:
    """Return the files that hold the templates: path below the folder -> content.

    Raises
    ------
    ValueError
        A name of a template cannot be the name of a file.
    """
    if templates is None:
        return {}
    by_name = {"default": templates} if isinstance(templates, str) else templates
    for name in by_name:
        if not _PLAIN_NAME.fullmatch(name):
            raise ValueError(f"a chat template is named {brief(name)}; expected letters, digits, '_', '-' and '.'.")
    return {_FILE if name == "default" else f"{_FOLDER}/{name}.jinja": text for name, text in by_name.items()}


def render(
    template: str, messages: Sequence[Mapping[str, Any]], continue_final_message: bool | str, **variables: Any
) -> str:
    """Run a template on a conversation, in the sandbox of jinja2.

    Parameters
    ----------
    template : str
    messages : sequence of mappings
        With "role" and "content". Values of None are left out.
    continue_final_message : bool or str
        End the text with the last message's "content", or another field.
    **variables
        More names that the template can use.

    Raises
    ------
    ImportError
        jinja2 is not installed.
    ValueError
        The template fails, or the last message is not in its result.
    """
    chat = [{name: value for name, value in message.items() if value is not None} for message in messages]
    field = continue_final_message if isinstance(continue_final_message, str) else "content"
    if continue_final_message:
        if not isinstance(chat[-1].get(field), str):
            raise ValueError(
                f"continue_final_message={brief(continue_final_message)}; the last message has no {field}."
            )
        chat[-1][field] += _END + " "
    compiled = _environment().from_string
    try:
        text = str(compiled(template).render(messages=chat, **variables))
    except Exception as error:  # a template can fail in any way
        raise ValueError(f"the chat template failed: {type(error).__name__}: {error}") from error
    if not continue_final_message:
        return text
    before, found, _ = text.rpartition(_END)
    if not found:
        raise ValueError(f"the chat template leaves out the {field} of the last message, so it cannot be continued.")
    return before if text[len(before) + len(_END) :].startswith(" ") else before.rstrip()


def _environment() -> Any:
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ImportError(
            f"chat templates need jinja2, which cannot be imported ({error}). pip install jinja2"
        ) from error

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, **({"ensure_ascii": False} | options))
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}.") from error
