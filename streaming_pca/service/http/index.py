"""Page at the root of a server without a site: links to its other paths."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from starlette.responses import HTMLResponse

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>streaming-pca</title>
</head>
<body>
<h1>streaming-pca</h1>
<ul>
{links}
</ul>
{streams}<p>Documentation: <code>docs/how-to/monitor.md</code></p>
</body>
</html>
"""


def index_page(*, metrics: bool, token: bool, roles: Mapping[str, str] | None) -> HTMLResponse:
    """Return the page; ``roles`` by stream is None for a client that may not see streams."""
    links = {
        "healthz": "whether this process serves",
        "readyz": "whether this process leads, or can take over, its streams",
    }
    if metrics:
        links["metrics"] = "metrics in the format of Prometheus" + (", with the token" if token else "")
    items = (f'<li><a href="{path}">/{path}</a>: {text}</li>' for path, text in links.items())
    page = _PAGE.format(links="\n".join(items), streams=_table(roles or {}))
    return HTMLResponse(page, headers=_HEADERS)


def _table(roles: Mapping[str, str]) -> str:
    rows = (
        f"<tr><td>{escape(name)}</td><td>{escape(role)}</td></tr>" for name, role in sorted(roles.items())
    )
    table = ["<table>", "<tr><th>stream</th><th>role</th></tr>", *rows, "</table>", ""]
    return "\n".join(table) if roles else ""
