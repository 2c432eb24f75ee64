"""The public name, and the cost of importing the package."""

from __future__ import annotations

import doctest
import subprocess
import sys

import pytest

import streaming_pca.api.private_pca


def test_the_command_line_does_not_import_scikit_learn() -> None:
    code = (
        "import sys, streaming_pca.cli\n"
        "assert 'sklearn' not in sys.modules\n"
        "assert 'PrivatePCA' in dir(streaming_pca)\n"
        "from streaming_pca import PrivatePCA\n"
        "assert 'sklearn' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="PublicPCA"):
        streaming_pca.PublicPCA  # noqa: B018


def test_the_example_in_the_docstring_runs() -> None:
    result = doctest.testmod(streaming_pca.api.private_pca)
    assert not result.failed
    assert result.attempted
