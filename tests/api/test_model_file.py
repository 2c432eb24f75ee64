"""Saving and loading is exact, avoids pickle, and explains files without a model."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

from streaming_pca import BudgetAccountant, PrivatePCA
from streaming_pca.api.model_file import ModelFileError
from streaming_pca.estimators.common.state import state_values
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.api.samplers import CASES, QUIET, RepeatingSampler, spiked
from tests.data.refusals import refuses

every_case = pytest.mark.parametrize("parameters", (CASES | QUIET).values(), ids=CASES | QUIET)


def through_file(pca: PrivatePCA, folder: Path) -> PrivatePCA:
    pca.save(folder / "model.npz")
    return PrivatePCA.load(folder / "model.npz")


def through_pickle(pca: PrivatePCA, folder: Path) -> PrivatePCA:
    copy: PrivatePCA = pickle.loads(pickle.dumps(pca))
    return copy


def through_joblib(pca: PrivatePCA, folder: Path) -> PrivatePCA:
    joblib.dump(pca, folder / "model.joblib")
    copy: PrivatePCA = joblib.load(folder / "model.joblib")
    return copy


def assert_same(a: PrivatePCA, b: PrivatePCA) -> None:
    for name in ("components_", "explained_variance_", "mean_"):
        assert hasattr(a, name) == hasattr(b, name)
        assert name == "mean_" or hasattr(a, name)
        assert np.asarray(getattr(a, name, 0.0)).tobytes() == np.asarray(getattr(b, name, 0.0)).tobytes()
    for name in ("n_components_", "n_features_in_", "n_records_seen_", "privacy_spent_", "doubts_"):
        assert getattr(a, name) == getattr(b, name)
    # The options include the number of records that `fit` passed to the estimator.
    assert a._estimator.options == b._estimator.options


@every_case
@pytest.mark.parametrize("begin", ["fit", "partial_fit"])
@pytest.mark.parametrize("keep", [through_file, through_pickle, through_joblib])
def test_a_kept_model_goes_on_as_if_it_had_never_been_away(
    parameters: dict[str, Any], begin: str, keep: Callable[[PrivatePCA, Path], PrivatePCA], tmp_path: Path
) -> None:
    with replace_noise_sampler(RepeatingSampler()):
        pca = PrivatePCA(**parameters, random_state=3)
        getattr(pca, begin)(spiked(100))
        pca.partial_fit(spiked(30, seed=1))
        copy = keep(pca, tmp_path)
        assert_same(pca, copy)
        for seed in (2, 3):
            pca.partial_fit(spiked(40, seed=seed))
            copy.partial_fit(spiked(40, seed=seed))
            assert_same(pca, copy)
        X = spiked(10, seed=4)
        assert np.array_equal(pca.transform(X), copy.transform(X))
        assert_same(pca.fit(spiked(60)), copy.fit(spiked(60)))


def test_parameters_come_back_whatever_they_are_made_of(tmp_path: Path) -> None:
    pca = PrivatePCA(
        np.int64(3),
        **{"epsilon": np.float64(0.1), "delta": 1e-7, "random_state": np.int64(5)},
        **{"centering": np.full(8, 0.1), "scale": tuple(np.full(8, 1 / 3))},
        bounds=(np.float32(-2), np.linspace(1, 2, 8)),
        options={"growth": np.float64(1.5), "radius_range": (1e-3, 1e3), "clip_radius": None},
    ).fit(spiked(50))
    copy = through_file(pca, tmp_path)
    assert copy.get_params() == {
        **{"n_components": 3, "epsilon": 0.1, "delta": 1e-7, "features": None, "private": True},
        **{"estimator": "adaptive", "centering": [0.1] * 8, "bounds": (-2.0, np.linspace(1, 2, 8).tolist())},
        **{"scale": [1 / 3] * 8, "random_state": 5, "whiten": False, "accountant": None},
        "options": {"growth": 1.5, "radius_range": [1e-3, 1e3], "clip_radius": None},
    }
    assert np.array_equal(copy.transform(spiked(5)), pca.transform(spiked(5)))
    copy.partial_fit(spiked(9))


def test_bounds_of_columns_keep_their_order(tmp_path: Path) -> None:
    """Features have the order of the bounds; files of version 0.5 have bounds sorted by name."""
    frame = pd.DataFrame(spiked(50)[:, :3], columns=["weight", "age", "height"])
    bounds = {"weight": (-2, 2), "age": (-3, 3), "height": (-1, 1)}
    pca = PrivatePCA(1, epsilon=9.0, bounds=bounds).fit(frame)
    copies = [through_file(pca, tmp_path)]
    with np.load(tmp_path / "model.npz") as archive:
        header, state = json.loads(archive["model"].tobytes()), archive["state"]
    earlier = np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8)
    np.savez(tmp_path / "earlier.npz", model=earlier, state=state)
    copies.append(PrivatePCA.load(tmp_path / "earlier.npz"))
    for copy in copies:
        assert_same(pca, copy)
        assert list(copy.feature_names_in_) == ["weight", "age", "height"]
        assert np.array_equal(copy.transform(frame), pca.transform(frame))
        copy.partial_fit(frame)


@pytest.mark.parametrize(
    ("parameters", "version"),
    [
        ({}, 1),
        ({"whiten": True}, 2),
        ({"n_components": None}, 2),
        ({"n_components": 0.9}, 2),
        ({"epsilon": Fraction(1, 3), "accountant": BudgetAccountant(1, 1e-3)}, 1),
    ],
)
def test_a_file_has_the_version_of_its_parameters(parameters: Any, version: int, tmp_path: Path) -> None:
    pca = PrivatePCA(**parameters).partial_fit(spiked(5)).partial_fit(spiked(60, seed=1))
    copy = through_file(pca, tmp_path)
    assert copy.get_params() == pca.get_params() | {"epsilon": float(pca.epsilon), "accountant": None}
    assert_same(pca, copy)
    assert np.array_equal(pca.transform(spiked(5)), copy.transform(spiked(5)))
    with np.load(tmp_path / "model.npz") as archive:
        header = json.loads(archive["model"].tobytes())
    assert header["version"] == version
    assert ("whiten" in header["parameters"]) == (version == 2)
    copy.partial_fit(spiked(20, seed=2))


def without_later_keys(header: dict[str, Any]) -> None:
    """Reduce the header to the keys of an earlier file of version 1."""
    for key in ("rank", "spent_before", "rows_per_record"):
        del header[key]


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    pca = PrivatePCA.load(rewritten(saved(tmp_path), without_later_keys))
    assert (pca.whiten, pca.accountant) == (False, None)
    pca.partial_fit(spiked(20))


def test_a_model_whose_mean_is_no_longer_estimated_is_refused(tmp_path: Path) -> None:
    """Earlier versions estimated the mean with centering "auto", which is "pairs" for this estimator now."""
    pca = PrivatePCA(2, estimator="private-oja", options={"clip_radius": 1.0}).partial_fit(spiked(50))
    pca._state = replace(pca._state, mean=np.ones(8), mean_weight=50.0)
    pca.save(tmp_path / "model.npz")
    with pytest.raises(ValueError, match=r"model\.npz: it has a mean that an earlier .*: fit a new model$"):
        PrivatePCA.load(tmp_path / "model.npz")


def test_names_of_features_come_back(tmp_path: Path) -> None:
    frame = pd.DataFrame(spiked(50), columns=[f"größe {i}" for i in range(8)])
    copy = through_file(PrivatePCA().fit(frame), tmp_path)
    assert copy.feature_names_in_.tolist() == list(frame.columns)
    copy.partial_fit(frame)
    with pytest.raises(ValueError, match="feature names should match"):
        copy.transform(frame.rename(columns={"größe 0": "weight"}))
    assert not hasattr(through_file(PrivatePCA().fit(frame.to_numpy()), tmp_path), "feature_names_in_")


def test_a_file_holds_plain_arrays_and_no_record(tmp_path: Path) -> None:
    X = spiked(50)
    PrivatePCA(options={"n_batches": 2}).fit(X).save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as archive:
        assert sorted(archive.files) == ["model", "state"]
        header = json.loads(archive["model"].tobytes())
        with np.load(io.BytesIO(archive["state"].tobytes()), allow_pickle=False) as state:
            names = set(state_values(PrivatePCA().fit(X)._state))
            assert set(state.files) < names | {"__plain__"}
            # No array grows with the number of records: packed 8 x 8 matrices, at ten radii.
            assert state["covariance.layers"].shape == (10, 36)
            assert max(max(state[name].shape, default=0) for name in names & set(state.files)) == 36
    assert header["privacy_spent"].items() >= {"epsilon": "1", "delta": "1/1000000"}.items()
    data = (tmp_path / "model.npz").read_bytes()
    assert not any(x.tobytes() in data for x in X.ravel())


def test_a_path_is_taken_as_it_is_and_nothing_else_is_left(tmp_path: Path) -> None:
    pca = PrivatePCA().fit(spiked(50))
    pca.save(str(tmp_path / "model"))
    pca.partial_fit(spiked(20)).save(tmp_path / "model")
    assert PrivatePCA.load(str(tmp_path / "model")).n_records_seen_ == 70
    assert os.listdir(tmp_path) == ["model"]


def test_a_model_that_cannot_be_saved_says_why(tmp_path: Path) -> None:
    refuses("not fitted", PrivatePCA().save, tmp_path / "model")
    pca = PrivatePCA(random_state=np.random.default_rng(1)).fit(spiked(50))
    refuses("random_state must be an int or None to be saved", pca.save, tmp_path / "model")
    pca.set_params(random_state=None, epsilon=3.0)
    refuses("epsilon changed since the model was started", pca.save, tmp_path / "model")
    pca.set_params(epsilon=1.0)
    refuses("No such file or directory", pca.save, tmp_path / "nowhere" / "model", error=ModelFileError)
    (tmp_path / "taken").mkdir()
    refuses("taken: Is a directory", pca.save, tmp_path / "taken", error=ModelFileError)
    assert os.listdir(tmp_path) == ["taken"]


def refused(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        PrivatePCA.load(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


DAMAGED = "is not a saved PrivatePCA, or is damaged"


def saved(folder: Path) -> Path:
    path = folder / "model.npz"
    PrivatePCA().fit(spiked(50)).save(path)
    return path


class Trap:
    """Fail when unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


def test_files_that_are_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert refused(path) == "No such file or directory"
    assert refused(tmp_path) == "Is a directory"
    for data in (b"", b"text", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), pickle.dumps(Trap()), bytes(10_000)):
        path.write_bytes(data)
        assert refused(path) == DAMAGED
    ones, traps = np.ones(3), np.array([Trap()], dtype=object)
    for arrays in ({}, {"a": ones}, {"model": ones, "state": ones}, {"model": traps, "state": traps}):
        with path.open("wb") as file:
            np.savez(file, **arrays)
        assert refused(path) == DAMAGED
    with path.open("wb") as file:
        np.save(file, ones)
    assert refused(path) == DAMAGED


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for length in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:length])
        refused(path)
    # A flipped bit in either array is detected by its checksum.
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        starts = [member.header_offset + 200 for member in archive.infolist()]
    for start in starts:
        for at in start + rng.integers(0, 300, 30):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            assert refused(path) == DAMAGED
    path.write_bytes(whole)
    PrivatePCA.load(path)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None], compress: bool = False) -> Path:
    """Write the file with a changed header."""
    with np.load(path) as archive:
        header, state = json.loads(archive["model"].tobytes()), archive["state"]
    change(header)
    model = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    with path.open("wb") as file:
        (np.savez_compressed if compress else np.savez)(file, model=model, state=state)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h.update(version=4), "was saved in format version 4, this release reads versions 1 to 3"),
        (lambda h: h.update(format="another"), "is not a saved PrivatePCA"),
        (lambda h: h.pop("format"), "is not a saved PrivatePCA"),
        (lambda h: h.pop("parameters"), "is not a saved PrivatePCA"),
        (lambda h: h.update(parameters=3), "is not a saved PrivatePCA"),
        (lambda h: h["parameters"].update(copy=True), "is not a saved PrivatePCA"),
        (lambda h: h["parameters"].update(whiten=3), "whiten must be True or False, not 3"),
        (lambda h: h["parameters"].update(estimator="later"), "no estimator 'later' (the default is "),
        (lambda h: h["parameters"].update(epsilon=-1), "epsilon must be a finite number above 0"),
        (lambda h: h["parameters"].update(n_components=9), "n_components = 9 is above"),
        (lambda h: h.update(n_features_in=7), "layers of the state does not fit"),
        (lambda h: h.update(n_features_in="8"), "is not a saved PrivatePCA"),
        (lambda h: h.update(feature_names_in=["a"]), "its feature names do not fit"),
        (lambda h: h.update(feature_names_in=[1] * 8), "its feature names do not fit"),
        (lambda h: h.update(privacy_spent={}), "Charge"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    assert words in refused(rewritten(saved(tmp_path), change))


def test_a_file_that_could_grow_in_memory_is_refused(tmp_path: Path) -> None:
    assert "is not a saved" in refused(rewritten(saved(tmp_path), lambda _: None, compress=True))
    PrivatePCA.load(rewritten(saved(tmp_path), lambda _: None))


def test_a_state_with_a_nan_is_refused(tmp_path: Path) -> None:
    pca = PrivatePCA().fit(spiked(50))
    pca._state.covariance.layers[0, 0] = np.nan
    pca.save(tmp_path / "model")
    assert refused(tmp_path / "model") == "covariance.layers of the state does not fit the estimator"
