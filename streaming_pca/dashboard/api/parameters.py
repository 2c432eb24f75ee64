"""Path and query parameters, all bounded."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

_NAME = r"^[A-Za-z0-9._-]{1,200}$"
_MOST = 2**63 - 1

Name = Annotated[str, Path(description="Name of the stream.", pattern=_NAME, examples=["flights"])]
Input = Annotated[
    str, Path(description="Input topic of the ledger.", pattern=_NAME, examples=["flight-records"])
]
Batch = Annotated[int, Path(description="Number of the batch.", ge=0, le=_MOST, examples=[12])]
Partition = Annotated[int, Path(description="Partition of the topic.", ge=0, le=2**31 - 1, examples=[0])]
Offset = Annotated[int, Path(description="Offset in the partition.", ge=0, le=_MOST, examples=[4711])]
Limit = Annotated[int, Query(description="Maximum number of items on the page.", ge=1, le=200, examples=[50])]
Before = Annotated[
    int | None,
    Query(description="Only items below this number: `next` of the previous page.", ge=0, le=_MOST),
]
Job = Annotated[
    str | None,
    Query(description="Only entries of this job.", min_length=1, max_length=200, examples=["flights"]),
]
