"""The samplers have the only sources of randomness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import streaming_pca
from streaming_pca.privacy.randomness import (
    noise_sampler,
    replace_noise_sampler,
    secret_salt,
    utility_generator,
)
from tests.privacy.noise import ScriptedSampler
from tests.privacy.randomness_search import SAMPLERS, names_in, randomness_in


def test_a_replaced_sampler_is_restored_even_after_an_error() -> None:
    before, sampler = noise_sampler(), ScriptedSampler()
    with replace_noise_sampler(sampler):
        assert noise_sampler() is sampler
        with replace_noise_sampler(before):
            assert noise_sampler() is before
        assert noise_sampler() is sampler
    assert noise_sampler() is before
    with pytest.raises(ZeroDivisionError), replace_noise_sampler(sampler):
        raise ZeroDivisionError
    assert noise_sampler() is before


def test_the_secret_sampler_cannot_be_seeded() -> None:
    np.random.seed(0)  # noqa: NPY002
    first = noise_sampler().rounded_gaussian(np.zeros(100, dtype=np.int64), 1e9)
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(first, noise_sampler().rounded_gaussian(np.zeros(100, dtype=np.int64), 1e9))


def test_utility_randomness_repeats_and_salts_do_not() -> None:
    assert utility_generator(3).random() == utility_generator(3).random()
    assert secret_salt() != secret_salt()
    assert len(secret_salt(16)) == 16


PACKAGE = Path(streaming_pca.__file__).parent
# Neither noise nor anything that privacy depends on; each with its reason.
ALLOWED_USES = {
    ("demo/flights.py", "numpy.random.PCG64"): "the published shuffle of a public data set",
    ("demo/flights.py", "?.random_raw"): "of the same",
    ("demo/broker.py", "uuid.uuid4"): "the name of a throw-away broker",
    ("dev/cluster.py", "uuid.uuid4"): "the identity of a cluster",
    ("dev/cluster.py", "random"): "ports of a cluster",
    ("dev/cluster.py", "random.SystemRandom"): "of the same",
    ("api/budget.py", "uuid.uuid4"): "the identity of a budget, to find it again after a pickle",
    ("service/projection/projector.py", "uuid.uuid4"): "the transactional id of a process",
}
RANDOMNESS = "privacy/randomness.py"
DRAWING = ("gaussian", "pure")
MECHANISMS = {f"privacy/mechanisms/{name}.py" for name in DRAWING}


def modules() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}


def test_no_module_but_the_samplers_has_a_source_of_randomness() -> None:
    found = {(name, use) for name, source in modules().items() for use in randomness_in(source)}
    found = {(name, use) for name, use in found if name != RANDOMNESS}
    assert found - ALLOWED_USES.keys() == set()
    # An unused exception is a hole.
    assert ALLOWED_USES.keys() - found == set()
    assert randomness_in(modules()[RANDOMNESS]) >= {"secrets", "numpy.random.default_rng"}


def test_only_mechanisms_go_through_the_noise_sampler_and_only_through_it() -> None:
    users = {name for name, source in modules().items() if names_in(source) & SAMPLERS} - {RANDOMNESS}
    assert users == MECHANISMS
    for name, source in modules().items():
        if name.startswith("privacy/mechanisms/"):
            assert not names_in(source) & {"utility_generator", "secret_salt", "Generator"}


@pytest.mark.parametrize(
    "source",
    [
        *("import random", "import random as r", "def f():\n    import random"),
        *("from random import gauss as g", "import secrets as s", "import numpy.random as r"),
        *("from numpy import random", "from numpy import random as r"),
        *("from numpy.random import default_rng", "from numpy import *"),
        "import numpy as np\nx = np.random.default_rng(0)",
        "import numpy as np\nx = np.random.normal(size=3)",
        "import numpy as other\nx = other.random.normal(size=3)",
        "import numpy as np\nr = np.random\nx = r.normal()",
        "import numpy as np\nx = np.random.Generator(bits)",
        "from numpy.random import Generator\nx = Generator(bits)",
        "import numpy\nx = getattr(numpy, 'random').normal()",
        "import numpy as np\nx = np.__dict__['q'].default_rng()",
        *("import os\nos.urandom(3)", "import os as o\no.getrandom(3)", "from os import urandom"),
        *("from os import urandom as u", "from os import *", "import os\ngetattr(os, 'urandom')(3)"),
        *("open('/dev/urandom', 'rb')", "from uuid import uuid4", "import uuid\nuuid.uuid4()"),
        *("import uuid as u\nu.uuid1()", "import opendp.prelude as dp", "import opendp"),
        *("from opendp import prelude", "from opendp.measurements import make_gaussian"),
        *("from scipy.stats import norm", "from scipy import stats", "from scipy import *"),
        *("import scipy\nscipy.stats.norm.rvs(size=3)", "import scipy.stats as s\ns.norm.rvs()"),
        "def f(distribution):\n    return distribution.rvs(size=3)",
        "def f(thing):\n    return thing.RandomState(3)",
        "from sklearn.utils import check_random_state",
        "import sklearn.utils\nsklearn.utils.check_random_state(None)",
        "from importlib import import_module\nimport_module('random')",
        "from importlib import import_module as i\ni('numpy.random')",
        "import importlib\nimportlib.import_module('scipy' + '.stats')",
        "import importlib\nimportlib.import_module(name)",
        "import importlib.util\nimportlib.util.find_spec('random')",
        *("__import__('random')", "import sys\nsys.modules['random'].gauss(0, 1)"),
        *("from sys import modules\nmodules['random']", "eval('1')", "exec('import random')"),
    ],
)
def test_the_search_for_randomness_finds_it(source: str) -> None:
    assert randomness_in(source)


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\ndef f(rng: np.random.Generator) -> None:\n    rng.standard_normal(3)",
        "from numpy.random import Generator\ndef f(rng: Generator) -> None: ...",
        "from streaming_pca.privacy.randomness import utility_generator\nutility_generator(3)",
        *("random = 3\nprint(random)", "import re\nre.compile('x')"),
        "from importlib import import_module\nimport_module('pyarrow')",
        *("getattr(settings, name)", "import os\nos.path.join('a')", "import scipy.special"),
    ],
)
def test_the_search_for_randomness_finds_nothing_else(source: str) -> None:
    assert randomness_in(source) == set()


@pytest.mark.parametrize(
    "source",
    [
        "from streaming_pca.privacy.randomness import noise_sampler",
        "from streaming_pca.privacy.randomness import noise_sampler as d",
        "from streaming_pca.privacy import randomness\nrandomness.replace_noise_sampler(3)",
        "from streaming_pca.privacy import randomness\nrandomness._sampler = 3",
    ],
)
def test_the_search_for_samplers_finds_them(source: str) -> None:
    assert names_in(source) & SAMPLERS
