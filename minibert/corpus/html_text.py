"""The text of HTML: tags, comments, scripts and styles left out, entities as their characters."""

from __future__ import annotations

import re
from html.parser import HTMLParser

TAG = re.compile(r"</?(?:a|b|br|div|em|h[1-6]|i|li|ol|p|span|strong|table|td|tr|u|ul)\b[^<>]*>", re.IGNORECASE)
"""A tag of HTML; others, such as <s> and <mask>, are words of language models too."""

_MARKED = re.compile(r"<!\[[^>]*>?")  # <![if !IE]>, <![CDATA[: a comment in HTML, and the parser refuses some

# Tags that do not end a line.
_INLINE = re.compile(
    r"a|abbr|b|bd[io]|cite|code|del|dfn|em|font|i|ins|kbd|mark|q|s|samp|small|span|strong|su[bp]|tt|u|var|wbr"
)


def html_text(html: str) -> str:
    """Return the text of HTML: each paragraph, item, cell and ``<br>`` ends a line, and white space is one space."""
    parser, (begin, end, rest) = _Text(), _MARKED.sub(" ", html).rpartition(">")
    # After the last > nothing is a tag, so the parser need not look for one.
    parser.feed(f"{begin}{end}{rest.replace('<', '&lt;')}")
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(filter(None, lines))


class _Text(HTMLParser):
    """Collect the text in `parts`; a newline is the end of a line."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self._in_code = list[str](), False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._in_code = tag in ("script", "style")  # nothing in these is a tag but their end
        self.parts += [] if _INLINE.fullmatch(tag) else ["\n"]

    def handle_endtag(self, tag: str) -> None:
        self.handle_starttag(tag, None)
        self._in_code = False

    def handle_data(self, data: str) -> None:
        self.parts += [] if self._in_code else [data.replace("\n", " ")]
