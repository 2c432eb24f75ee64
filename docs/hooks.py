"""Text of the documentation that is generated from the code.

A page holds it between the lines ``<!-- generated: NAME -->`` and ``<!-- end -->``; :data:`GENERATORS` names
its source. ``python docs/hooks.py`` writes it again, and a test finds stale text. Only the report of
experiments/ is copied at build time: readers of the repository have it there.
"""

from __future__ import annotations

import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import SecretStr

ROOT = Path(__file__).parents[1]
_GENERATED = re.compile(r"^(<!-- generated: ([a-z]+) -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
_TYPES: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    Path: "path",
    SecretStr: "secret",
    Fraction: "ratio",
    types.NoneType: "",
}
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(`|<code>)(?:~(?:\w+\.)+)?")
"""Beginning of a role of Sphinx, which mkdocstrings does not know; ``~`` shortens a name to its last part."""
_EXPERIMENTS = "<!-- report of experiments/ -->"


def settings_text() -> str:
    """Return every setting, with one table per section."""
    from streaming_pca.config.environment import OPTIONS, STREAMS_VARIABLE
    from streaming_pca.config.schema import every_setting, settings_of
    from streaming_pca.config.settings import Settings
    from streaming_pca.data.features.feature import Feature
    from streaming_pca.estimators.registry import ESTIMATORS
    from streaming_pca.validation_errors import table_model

    parts = [
        "Environment variables override the file; in them lists and tables are written as JSON. "
        "With several streams, a variable of `[stream]` applies to each of them, and "
        f"`{STREAMS_VARIABLE}` replaces the list `[[streams]]`."
    ]
    sections: dict[tuple[Any, ...], list[Any]] = {}
    for setting in every_setting():
        key = (OPTIONS if setting.estimator else setting.path[:1], setting.estimator)
        sections.setdefault(key, []).append(setting)
    for (path, estimator), settings in sections.items():
        title = f"`[{'.'.join(path)}]`"
        if estimator is None:
            about = _prose(getattr(table_model(Settings.model_fields[path[0]].annotation), "__doc__", ""))
        else:
            title += f" of {estimator}"
            about = _prose(ESTIMATORS[estimator].options_type.__doc__)
        parts += [f"## {title}", about, _settings_table(settings, len(path))]
        if path == ("stream",):
            features = list(settings_of(Feature, ("stream", "features")))
            title = "## `[[stream.features]]`"
            parts += [title, _prose(Feature.__doc__), _settings_table(features, 1, variables=False)]
    return "\n\n".join(parts) + "\n"


def _settings_table(settings: Iterable[Any], depth: int, variables: bool = True) -> str:
    titles = ("key", "type", "default", "environment variable", "description")
    rows: list[tuple[str, ...]] = [titles, ("---",) * 5]
    for s in settings:
        type_ = ", ".join([_type(s.field.annotation), *filter(None, map(_limit, s.field.metadata))])
        # The required keys of an optional table are required only if the table is given.
        default = "not set" if s.table is not None else _default(s.field)
        # A description of a table's key needs the table's own.
        about = (s.table.description if s.table is not None else "", s.field.description)
        text = _prose(" ".join(filter(None, about)))
        rows.append((f"`{'.'.join(s.path[depth:])}`", type_, default, f"`{s.variable}`", text))
    if not variables:
        rows = [(*row[:3], row[4]) for row in rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _limit(limit: Any) -> str | None:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return next((f"{signs[name]} {getattr(limit, name)}" for name in signs if hasattr(limit, name)), None)


def _type(kind: Any) -> str:
    from streaming_pca.validation_errors import table_model

    if kind in _TYPES:
        return _TYPES[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice(_toml(member.value) for member in kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _type(args[0])
    if origin is Literal:
        return _choice(_toml(value) for value in args)
    if origin in (typing.Union, types.UnionType):
        return _choice(filter(None, (_type(arg) for arg in args)))
    if origin is dict:
        return "table"
    if origin is tuple and table_model(args[0]) is not None:
        return "list of tables"
    if origin is tuple and args[1:] == (...,):
        return f"list ({_type(args[0])})"
    if origin is tuple and len(args) == 2:
        return f"pair (each {_type(args[0])})"
    raise TypeError(f"the settings reference cannot describe this type: {kind!r}")


def _choice(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _default(field: Any) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    return f"`{_toml(value.value if isinstance(value, Enum) else value)}`"


def _toml(value: Any) -> str:
    """Format a value in TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _prose(text: str | None) -> str:
    # Without the sections of numpydoc.
    text = re.split(r"\n\s*[A-Z]\w+\n\s*-{3,}\n", text or "")[0]
    return _ROLE.sub(r"\1", " ".join(text.split()).replace("``", "`"))


def cli_text() -> str:
    """Return every command with its help, arguments and options."""
    import typer.main

    from streaming_pca.cli.app import app

    return "\n\n".join(_commands(typer.main.get_command(app), "streaming-pca")) + "\n"


def _commands(command: Any, path: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _commands(inner, f"{path} {name}")
        return
    # Help has marks of rich, which only terminals show; the examples are marked as dim.
    text = re.sub(r"\[dim\]Examples?:(.*?)\[/\]", _examples, command.help or "", flags=re.DOTALL)
    parts = [f"## {path}", text.replace("\\[", "[").strip()]
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        parts.append("\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows]))
    yield "\n\n".join(parts)


def _examples(found: re.Match[str]) -> str:
    commands: list[str] = []
    for line in filter(None, map(str.strip, found[1].splitlines())):
        # Other lines continue a command.
        if re.match(r"(streaming-pca|echo|kcat) ", line) or not commands:
            commands.append(line)
        else:
            commands[-1] += f" {line}"
    return "\n\n```bash\n" + "\n".join(commands) + "\n```\n\n"


def _row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    name = parameter.name.upper() if is_argument else ", ".join([*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    if parameter.required:
        shown = "**needed**"
    elif default is None or default is False or callable(default):
        shown = ""
    else:
        shown = f"`{default}`"
    text = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    return f"| `{name}` | {shown} | {text} |"


def metrics_text() -> str:
    """Return every metric of a worker with its type, its labels and its help."""
    from prometheus_client.metrics import MetricWrapperBase

    from streaming_pca.service.metrics import Metrics

    metrics = Metrics()
    found = [*vars(metrics).values(), *metrics.counts]
    rows = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in found:
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            name = family.name + "_total" * (family.type == "counter")
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(rows) + "\n"


def http_text() -> str:
    """Return every path of the HTTP API with its methods, its parameters and its answer."""
    from streaming_pca.dashboard.api.application import openapi_document

    document = openapi_document()
    shared = document.get("components", {}).get("parameters", {})
    rows = ["| path | methods | query | answer |", "| --- | --- | --- | --- |"]
    for path, methods in document["paths"].items():
        operation = methods.get("get") or next(iter(methods.values()))
        listed = [*methods.get("parameters", []), *operation.get("parameters", [])]
        parameters = [shared[each["$ref"].rpartition("/")[2]] if "$ref" in each else each for each in listed]
        shown = ", ".join(f"`{each['name']}`" for each in parameters if each["in"] == "query")
        names = ", ".join(name.upper() for name in ("get", "head", "post") if name in methods)
        rows.append(f"| `{path}` | {names} | {shown} | {operation.get('summary', '')} |")
    return "\n".join(rows) + "\n"


def estimators_text() -> str:
    """Return every estimator with its source, its privacy and its needs."""
    from streaming_pca.estimators.registry import ESTIMATORS

    rows = ["| id | summary | source | private | needs |", "| --- | --- | --- | --- | --- |"]
    for name, estimator in sorted(ESTIMATORS.items()):
        info = estimator.info
        private = ("at the producer" if info.local else info.adjacency) if info.private else "**no**"
        cells = (f"`{name}`", info.summary, info.source, private, info.needs)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def experiments_text() -> str:
    """Return the report of experiments/, with its links to files of the repository as plain code."""
    text = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
    text = text.partition("\n")[2]
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!http|#|figures/)([^)]+)\)", r"`\1`", text)


def promise_text() -> str:
    """Return the dashboard's words about a stream; this and the next two are for docs/guide."""
    from benchmarks.guide import promise_text

    return promise_text()


def epsilons_text() -> str:
    """Return what epsilon bounds, and an attacker's share of right guesses."""
    from benchmarks.guide import epsilons_text

    return epsilons_text()


def curve_text() -> str:
    """Return the forecast error by epsilon and number of records."""
    from benchmarks.guide import curve_text

    return curve_text()


GENERATORS: dict[str, Callable[[], str]] = {
    "settings": settings_text,
    "cli": cli_text,
    "http": http_text,
    "metrics": metrics_text,
    "estimators": estimators_text,
    "promise": promise_text,
    "epsilons": epsilons_text,
    "curve": curve_text,
}


def on_config(config: Any) -> Any:
    """Add to the navigation the explanations and proofs that mkdocs.yml does not name."""
    docs = Path(config.docs_dir)
    (section,) = (item["Explanation"] for item in config.nav if "Explanation" in item)
    named = {path for entry in section for path in entry.values()}
    for page in sorted((docs / "explanation").glob("*.md")):
        path = page.relative_to(docs).as_posix()
        if path not in named:
            section.append(path)
    proofs = sorted((docs / "explanation" / "proofs").glob("*.md"))
    if proofs:
        section.append({"Proofs": [page.relative_to(docs).as_posix() for page in proofs]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the figures that the report of experiments/ shows."""
    from mkdocs.structure.files import File

    for figure in sorted((ROOT / "experiments" / "figures").glob("*.png")):
        path = f"explanation/figures/{figure.name}"
        files.append(File.generated(config, path, abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the report of experiments/ in the place of its marker."""
    return markdown.replace(_EXPERIMENTS, experiments_text()) if _EXPERIMENTS in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Replace roles of docstrings by their names."""
    return _ROLE.sub(r"\1", html)


def refreshed(markdown: str) -> str:
    """Return a page with its generated text made from the present code."""
    return _GENERATED.sub(
        lambda match: f"{match[1]}\n{GENERATORS[match[2]]().strip()}\n\n{match[3]}", markdown
    )


def main() -> None:
    """Write the generated text of all pages, and the guide's picture."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (fresh := refreshed(text)) != text:
            page.write_text(fresh, encoding="utf-8")
            print(page.relative_to(ROOT))
    from benchmarks.guide import FIGURE, curve_svg

    FIGURE.write_text(curve_svg(), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
