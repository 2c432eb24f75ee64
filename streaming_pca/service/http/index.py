"""Page at the root of a server without a site: links to its other paths."""

from __future__ import annotations

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
<p>Documentation: <code>docs/how-to/monitor.md</code></p>
</body>
</html>
"""


def index_page(*, metrics: bool, token: bool) -> HTMLResponse:
    """Return the page; ``token`` is whether the metrics need one."""
    links = {
        "healthz": "whether this process serves",
        "readyz": "whether this process leads, or can take over, its streams",
    }
    if metrics:
        links["metrics"] = "metrics in the format of Prometheus" + (", with the token" if token else "")
    items = (f'<li><a href="{path}">/{path}</a>: {text}</li>' for path, text in links.items())
    return HTMLResponse(_PAGE.format(links="\n".join(items)), headers=_HEADERS)
