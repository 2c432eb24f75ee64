"""Packaged real sets have their stated size, centred; or one line names the missing package."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from benchmarks import utility
from benchmarks.accuracy.real_data import REAL_DATA, DataError, RealData, load, missing_packages
from benchmarks.accuracy.settings import TABLE, centred_setting

NAMES = sorted(REAL_DATA)


@pytest.mark.parametrize("name", NAMES)
def test_a_set_has_its_size_and_is_centred(name: str) -> None:
    data = REAL_DATA[name]
    if importlib.util.find_spec(data.package) is None:
        pytest.skip(f"{data.package} is not installed: pip install '.[benchmarks]' in the checkout")
    records = load(data)
    assert records.shape == (data.n, data.dim)
    assert records.dtype == np.float32
    assert np.isfinite(records).all()
    spread = np.sqrt(np.square(records, dtype=np.float64).mean(axis=0))
    assert (np.abs(records.mean(axis=0, dtype=np.float64)) <= 1e-5 * spread + 1e-12).all()
    assert max(data.ranks) < data.dim


def test_names_are_of_the_sets() -> None:
    assert all(name == data.name for name, data in REAL_DATA.items())
    assert len(REAL_DATA) >= 16


def test_other_data_than_described_are_refused() -> None:
    other = RealData("other", "numpy", 3, 2, (1,), lambda: np.zeros((4, 2)))
    with pytest.raises(DataError, match=r"other: numpy has \(4, 2\) features"):
        load(other)
    infinite = RealData("infinite", "numpy", 1, 1, (1,), lambda: np.full((1, 1), np.inf))
    with pytest.raises(DataError, match="not finite"):
        load(infinite)


def test_a_missing_package_is_one_line_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = RealData("absent", "no_such_package", 10, 2, (1,), lambda: np.zeros((10, 2)))
    assert missing_packages([data, data]) == ["no_such_package"]
    setting = centred_setting(data, 1, 1.0)
    monkeypatch.setitem(TABLE, setting.name, setting)
    with pytest.raises(SystemExit) as stop:
        utility.main(["--setting", "absent-k1-e1"])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "python -m benchmarks.utility: needs no_such_package: pip install '.[benchmarks]' in the checkout"
    ]
    assert not printed.out


def test_another_version_of_a_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = RealData("other", "numpy", 10, 2, (1,), lambda: np.zeros((9, 2)))
    setting = centred_setting(data, 1, 1.0)
    monkeypatch.setitem(TABLE, setting.name, setting)
    with pytest.raises(SystemExit) as stop:
        utility.main(["--setting", setting.name])
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
