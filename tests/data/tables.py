"""Tables as each library holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa


def tables_of(**columns: Any) -> list[Any]:
    """Return tables of pandas, polars and Arrow, and a batch of Arrow."""
    values = {name: list(np.atleast_1d(value)) for name, value in columns.items()}
    return [pd.DataFrame(values), pl.DataFrame(values), pa.table(values), pa.record_batch(values)]
