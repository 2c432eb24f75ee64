"""Settings of Apache Spark, used only by `streaming-pca spark`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, field_serializer

from streaming_pca.config.kafka import Section, checked

_MIB = 2**20
_HOMES = {"spark.master": "master", "spark.app.name": "app_name", "spark.submit.deployMode": None}
"""Spark settings that are not allowed in ``conf``, with the setting to use instead."""
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of values that Spark itself hides in its web pages (``spark.redaction.regex``)."""
_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|yarn|(spark|k8s)://\S+|local-cluster\[[\d,]+\]")


def _present_conf(conf: Any) -> Any:
    """Return Spark's settings as flat text; TOML nests ``spark.executor.memory`` and has numbers."""
    if not isinstance(conf, Mapping):
        return conf
    found, problems = {}, []
    for name, value in _leaves(conf):
        if not name.startswith("spark."):
            problems.append(f"{name!r} must begin with 'spark.'")
        elif name in _HOMES:
            there = _HOMES[name]
            problems.append(f"{name!r}: " + (f"set {there}" if there else "is an option of spark-submit"))
        elif isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[name] = str(value)
        else:
            problems.append(f"{name!r} must be text, a number, true or false")
    if problems:
        raise ValueError("; ".join(problems))
    return found


def _leaves(table: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def check_master(master: str) -> None:
    """Raise ValueError if a cluster's address is not in one of Spark's forms."""
    if master.startswith("sc://"):
        raise ValueError(
            "Spark Connect (sc://) cannot run this: name the cluster itself, as spark://HOST:PORT"
        )
    if not _MASTER.fullmatch(master):
        raise ValueError("must be local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT")


class SparkSettings(Section):
    """Apache Spark, only for `streaming-pca spark`; a worker with the same file ignores it."""

    master: Annotated[str | None, checked(check_master)] = None
    """Cluster to run on: `local[N]`, `spark://HOST:PORT`, `yarn` or `k8s://https://HOST:PORT`; if not
    set, the master of spark-submit, else all cores of this machine."""
    app_name: str = Field(default="streaming-pca", min_length=1)
    """Name of the application in Spark's web pages and logs."""
    cache_bytes: int = Field(default=2048 * _MIB, ge=_MIB)
    """Most bytes of decoded rows that one Python worker of an executor stores, in an unnamed file."""
    segment_bytes: int = Field(default=64 * _MIB, ge=64 * 1024)
    """Target bytes of decoded rows per task, by one row a factor; less gives more tasks, of a fixed cost."""
    conf: Annotated[dict[str, str], BeforeValidator(_present_conf), WithJsonSchema({"type": "object"})] = (
        Field(default_factory=dict)
    )
    """Spark's own settings by their names, such as `spark.executor.memory`; options of spark-submit
    override them."""

    @field_serializer("conf", when_used="json")
    def _hide_secrets(self, conf: dict[str, str]) -> dict[str, str]:
        return {name: "**********" if _SECRET.search(name) else value for name, value in conf.items()}
