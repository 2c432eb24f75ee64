"""`streaming-pca worker`."""

from __future__ import annotations

import sys

from streaming_pca.cli.common import ConfigOption, settings_of


def worker(config: ConfigOption) -> None:
    """Run a worker: lead the stream, or stand by until the leader is gone.

    [dim]Example: streaming-pca worker --config stream.toml[/]
    """
    from streaming_pca.service.worker import run_worker

    status = run_worker(settings_of(config))
    if status:
        sys.exit(status)
