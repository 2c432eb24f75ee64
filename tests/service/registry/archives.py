"""Archives from Maven Central for the tests of registries, each fetched once for each machine."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

CACHE = Path.home() / ".cache" / "streaming-pca"
_POM = '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>{}</project>'
_FETCH_SECONDS = 300

Name = tuple[str, str, str, str, str]
"""Group, artifact, version, type and classifier."""


class RegistryUnavailable(Exception):
    """Reason why no registry can be started here."""


@contextmanager
def fetching(target: Path) -> Iterator[Path | None]:
    """Yield a scratch folder for making a target, or None if the target exists."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            yield None
        else:
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                yield Path(scratch)


def download(scratch: Path, name: Name, digest: str) -> Path:
    """Return an archive that Maven has copied into a folder, after comparing its digest.

    Maven does not find the parent of every description: before Maven Central, it searches a folder with a
    description that has no parent.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise RegistryUnavailable("no Maven found: install maven, which fetches the archive once")
    group, artifact, version, type_, classifier = name
    tags = "<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    described = scratch / "described" / group.replace(".", "/") / artifact / version
    described.mkdir(parents=True)
    (described / f"{artifact}-{version}.pom").write_text(_POM.format(tags.format(group, artifact, version)))
    url = (scratch / "described").as_uri()
    (scratch / "pom.xml").write_text(
        _POM.format(
            f"{tags.format('streaming-pca', 'archives-for-tests', '1')}<packaging>pom</packaging>"
            f"<repositories><repository><id>described</id><url>{url}</url></repository></repositories>"
        )
    )
    # A separate repository, because Maven remembers in its own repository which description it found.
    command = [maven, "-B", "-q", "-C", "dependency:copy", f"-Dmaven.repo.local={scratch / 'maven'}"]
    command += [f"-Dartifact={':'.join(name)}", f"-DoutputDirectory={scratch}"]
    try:
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RegistryUnavailable(f"Maven did not fetch {artifact} within {_FETCH_SECONDS} s") from None
    archive = scratch / f"{artifact}-{version}-{classifier}.{type_}"
    if not archive.exists():
        raise RegistryUnavailable(f"Maven could not fetch {artifact}:\n{done.stdout[-2000:]}")
    if sha256(archive.read_bytes()).hexdigest() != digest:
        raise RegistryUnavailable(f"{archive.name} is not the archive that is known")
    return archive
