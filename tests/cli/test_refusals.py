"""A mistake of use is one line on standard error, nothing on standard output, and status 2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import call
from tests.cli.test_app import write_config
from tests.config.test_loading import SEVERAL

Capture = pytest.CaptureFixture[str]

LOCAL = (
    ("dim = 6", 'dim = 2\nrecord_kind = "local"\ncentering = "none"\nestimator = "local-gaussian"'),
    ("rank = 2", "rank = 1"),
    ("bounds = [-6, 6]\n", ""),
    ("n_records = 3000\nn_batches = 2\n", ""),
)
PLAN = "plan --records 100000 --dim 50 --rank 2 --epsilon 1 --delta 1e-6"
REPORT = "produce x.npy --config local.toml"
CHARGE = "ledger charge --job j --epsilon 1 --delta 0 --reason x --input t"
CHECK = "payload check payload"
PROJECT = "project -c several.toml --stream a"

REFUSALS = [
    ("audit --estimator pca", "no estimator 'pca'; known: adadpo, adaptive, adaptive-power, analyze-gauss, "),
    ("audit --mechanism laplace", "no mechanism 'laplace'; known: AboveThreshold, LocalGaussian, gaussian_"),
    (
        "audit --trials 10",
        "10 trials are too few to refute the claim of AboveThreshold at epsilon = 1: raise",
    ),
    ("audit --trials -1", "-1 trials are too few to refute"),
    ("audit --epsilon 40 --mechanism laplace_on_vector", "or lower epsilon"),
    ("audit --epsilon 0", "--epsilon must be a finite number of at least 0.01, not 0.0"),
    ("audit --epsilon nan", "--epsilon must be a finite number"),
    ("audit --epsilon inf", "--epsilon must be a finite number"),
    ("audit --epsilon 1e-9 --estimator private-oja", "of at least 0.01"),
    ("audit --delta 0", "--delta must lie between 0 and 1, not 0.0"),
    ("audit --delta 1", "--delta must lie between 0 and 1, not 1.0"),
    ("audit --delta nan", "--delta must lie between 0 and 1"),
    ("config schema release --config several.toml", "the schema of release is the same for all streams"),
    ("config schema payload --stream one", "--stream names a stream of a file: add --config FILE"),
    ("config schema asyncapi --config several.toml", "holds several streams"),
    ("config schema asyncapi --config several.toml --stream none", "no stream 'none'"),
    ("dashboard --config none.toml", "No such file"),
    ("features check x.npy --config one.toml", "has no [[stream.features]]"),
    ("ledger show", "--config FILE"),
    ("ledger show --input t --bootstrap=", "--bootstrap must be HOST:PORT, not ''"),
    *(
        (
            f"ledger {words} --config one.toml --bootstrap other:9092",
            "--bootstrap is for use without --config",
        )
        for words in (
            "show",
            "verify",
            "spent --partition 0 --offset 0",
            "charge --job j --epsilon 1 --delta 0 --reason x --all",
        )
    ),
    (CHARGE, "name the records by --all"),
    (f"{CHARGE} --all --range 0:0:1", "not by both"),
    (f"{CHARGE} --range 0:1", "--range must be P:START:END"),
    (f"{CHARGE} --range 0:-1:3", "--range must be P:START:END"),
    (f"{CHARGE} --range 0:1:²", "--range must be P:START:END"),
    (f"{CHARGE} --all --epsilon many", "--epsilon must be a number"),
    (f"{CHARGE} --all --delta -1", "--delta must not be negative"),
    (f"{CHARGE} --all --rho 1/0", "--rho must be a number"),
    (CHECK, "name --dim, or --config FILE"),
    (f"{CHECK} --stream s", "--stream needs --config FILE"),
    (f"{CHECK} --dim 3 --header dtype", "--header dtype: write NAME=VALUE"),
    (f"{CHECK} --config one.toml --dim 6", "--dim is given by --config"),
    (f"{CHECK} --config nowhere.toml", "nowhere.toml"),
    ("payload check none --dim 3", "No such file"),
    ("plan --records 100000 --rank 5 --epsilon 1", "name --dim, or --config FILE"),
    ("plan --records 100000 --config one.toml --epsilon 2", "--epsilon is given by --config"),
    *(
        (f"{PLAN} {words}{as_json}", expected)
        for as_json in ("", " --json")
        for words, expected in (
            ("--rank 51", "rank = 51 is above the number of features, 50"),
            ("--records 1", "records must be"),
            ("--records 0", "records must be"),
            ("--records 20,000", "'--records': "),
            ("--gap 10%", "'--gap': "),
            ("--nope 1", "No such option: --nope (streaming-pca plan --help)"),
            ("--records -5", "records must be"),
            ("--batches 60000", "batches must be at most"),
            ("--batches many", '--batches must be a whole number or "growing", not'),
            ("--epsilon 0", "epsilon must be"),
            ("--epsilon nan", "epsilon must be"),
            ("--delta 0", "delta must"),
            ("--contributions 0", "contributions must"),
            ("--gap 0.6", "gap = 0.6 is above 1/2 = 0.5: eigenvalues that large exceed the total variance"),
            ("--gap 0", "gap must be"),
            ("--stream s", "--stream needs --config FILE"),
            ("--plot x.nope", "--plot x.nope: the ending names the format: choose .png, .svg or .pdf"),
            ("--plot x", "--plot x: the ending names the format"),
            ("--plot nowhere/x.png", "/nowhere does not exist: create it"),
            ("--rank 50 --plot x.png", "--plot has nothing to draw"),
        )
    ),
    ("produce x5.npy --config one.toml", "5 features, the stream's dim is 6"),
    ("produce x6.npy --config one.toml --rows-per-message 3", "--factors"),
    ("produce x6.npy --config one.toml --stream t", "no stream 't'"),
    ("produce x6.npy --config one.toml --local-radius 1", 'set record_kind = "local"'),
    (f"{REPORT} --factors", "leave out --factors"),
    (f"{REPORT} --rows-per-message 2", "leave out --factors, --rows-per-message"),
    (f"{REPORT} --content-type json", "--content-type"),
    (f"{REPORT} --key who", "--key is about the users of --local-accountant"),
    (f"{REPORT} --local-skip-spent", "add --local-accountant FILE"),
    (f"{REPORT} --local-radius -1", "radius"),
    (f"{PROJECT} --output in", "this is a topic of stream 'a'"),
    (f"{PROJECT} --output in.ledger", "this is a topic of stream 'a'"),
    (f"{PROJECT} --output b.releases", "this is a topic of stream 'b'"),
    (f"{PROJECT} --output others.state", "whose names end in .ledger, .state, .releases belong to streams"),
    (f"{PROJECT} --output a/topic", "--output must be 1 to 200 letters"),
    (f"{PROJECT} --output out --format xml", "'xml' is not one of 'octets', 'json'"),
    ("topics create --config one.toml --cap 1", "EPSILON,DELTA"),
    ("topics create --config one.toml --cap -1,0", "must not be negative"),
    ("plam", "No such command 'plam'. Did you mean 'plan'? (streaming-pca --help)"),
    (
        "config check -c broken.toml -c one.toml",
        "--config is there twice: streaming-pca config check takes one",
    ),
    ("status --config=one.toml -cone.toml", "--config is there twice: streaming-pca status takes one"),
    (
        "ledger verify -c several.toml --config one.toml",
        "--config is there twice: streaming-pca ledger verify",
    ),
    ("ledger show --input a --input b", "--input is there twice: streaming-pca ledger show takes one"),
    ("status -c several.toml --stream a --stream b", "--stream is there twice"),
    ("watch --releases a --releases b", "--releases is there twice"),
    ("worker -c none.toml -c one.toml", "No such file"),
    ("plan", "Missing option '--records' (streaming-pca plan --help)"),
    ("plan --records", "Option '--records' requires an argument (streaming-pca --help)"),
    ("produce", "Missing argument 'file' (streaming-pca produce --help)"),
    ("watch", "--releases"),
    ("watch --count -1", "'--count': "),
    ("watch --releases r --stream s", "--releases"),
    ("watch --config one.toml --releases r", "--releases"),
    ("watch --releases t --bootstrap=", "--bootstrap must be HOST:PORT, not ''"),
]


@pytest.mark.parametrize(("command", "expected"), REFUSALS, ids=[command for command, _ in REFUSALS])
def test_a_mistake_is_one_line(
    command: str, expected: str, capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path, "127.0.0.1:1", "one")
    write_config(tmp_path, "127.0.0.1:1", "local", *LOCAL)
    (tmp_path / "several.toml").write_text(SEVERAL)
    (tmp_path / "payload").write_bytes(bytes(12))
    for name, dim in (("x", 2), ("x5", 5), ("x6", 6)):
        np.save(tmp_path / f"{name}.npy", np.zeros((6, dim)))
    monkeypatch.chdir(tmp_path)
    result = call(capfd, *command.split())
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert expected in line


@pytest.mark.parametrize(
    "command", ["config schema releases", "produce x.npy --config one.toml --content-type releases"]
)
def test_an_unknown_choice_is_named(command: str, capfd: Capture) -> None:
    result = call(capfd, *command.split())
    assert (result.returncode, result.stdout) == (2, "")
    assert ": 'releases' is not one of" in result.stderr
    assert len(result.stderr.splitlines()) == 1
