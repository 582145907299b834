"""The page that a browser gets at "/": the models, the routes, and a request to try. It loads nothing."""

from __future__ import annotations

from html import escape

from minibert.serving.engine import Engine
from minibert.serving.protocols import POSTS

__all__ = ["HEADERS", "page"]

HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'", "referrer-policy": "no-referrer"}
"""Of the response: a browser that reads the page asks no other server."""

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>minibert serve</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em; color-scheme: light dark }}
pre {{ border: 1px solid; padding: .7em; overflow-x: auto }}
td, th {{ text-align: left; vertical-align: top; padding: .1em 1.5em .1em 0 }}
</style>
<h1>minibert {version}</h1>
<h2>Models</h2>
<table>
<tr><th>name<th>gives<th>longest text, in tokens</tr>
{models}
</table>
<h2>A request</h2>
<pre>{example}</pre>
<h2>Routes</h2>
<table>
{routes}
</table>
<p>More: <a href="info">info</a>, <a href="openapi.json">openapi.json</a>, <a href="metrics">metrics</a>,
<a href="readyz">readyz</a>.</p>
</html>
"""


def page(engine: Engine, version: str, url: str, *, with_key: bool) -> bytes:
    """Return the page.

    Parameters
    ----------
    engine : Engine
    version : str
    url : str
        Where the browser found the service; it ends with "/".
    with_key : bool
        Requests need a key.

    Returns
    -------
    bytes
        HTML in UTF-8. Every name in it is escaped.
    """
    rows = []
    for served in engine.models.values():
        details = served.details()
        width = details.get("embedding_dimension")
        gives = served.gives if width is None else f"{served.gives} of {width} numbers"
        rows.append(f"<tr><td>{escape(served.name)}<td>{gives}<td>{details['max_input_length']}</tr>")
    route = "embed" if engine.models.served().gives == "vectors" else "predict"
    key = " -H 'Authorization: Bearer KEY'" if with_key else ""
    example = f"""curl '{url.replace("'", "%27")}{route}'{key} -d '{{"inputs": "A cat sleeps."}}'"""
    routes = [f"<tr><td>POST {escape(path)}<td>{escape(post.summary)}</tr>" for path, post in POSTS.items()]
    return _PAGE.format(
        version=escape(version), models="\n".join(rows), example=escape(example), routes="\n".join(routes)
    ).encode()
