"""Install Detectron2 0.6's Python code where no Detectron2 is installed; leave an installed one alone.

Detectron2 is not on the package index under its own name. The source archive named below is there, and holds the
Python code of the official v0.6 tag without its C++ sources. This downloads it through pip, which checks the hash
before any of it runs, and installs it as what it is: a distribution named `detectron2`, version 0.6, with the bundled
projects and the model zoo's configs. It needs torch, setuptools, wheel, and a pip up to 26.2 (newer ones refuse the
archive's metadata), as `make env` installs them. The compiled operators (deformable convolution, rotated boxes, fast
COCO evaluation) are absent: `revisit.compat` makes the rest import, and says so where one is used. For those, install
Detectron2 by its own installation page first; this then changes nothing.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib import invalidate_caches
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path

NAME, VERSION = "pb1-detectron2", "0.6"
NEWEST_PIP = (26, 2)  # which takes an archive whose optional requirements name URLs
SHA256 = "5d2e9e51e523ec72f6a31cca04b0a515492e9514b773a3d134cedc0677170b29"

# The archive's own setup.py builds the extension whose sources it lacks, and would install a package `tools`.
# Of its requirements, `black` (a 2021 pin; for LazyConfig.to_py only), `future` and `pydot` (caffe2 export only)
# are left out: the Python code imports and trains without them.
SETUP_PY = """\
from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = {"point_rend": "PointRend", "deeplab": "DeepLab", "panoptic_deeplab": "Panoptic-DeepLab"}
PROJECTS = {f"detectron2.projects.{name}": f"projects/{folder}/{name}" for name, folder in FOLDERS.items()}
ZOO = Path("detectron2/model_zoo")
CONFIGS = [str(p.relative_to(ZOO)) for e in ("yaml", "py") for p in sorted(ZOO.glob(f"configs/**/*.{e}"))]

setup(
    name="detectron2", version="0.6", license="Apache-2.0", author="FAIR",
    url="https://github.com/facebookresearch/detectron2",
    description="Detectron2 0.6, Python code only (no compiled operators)",
    packages=find_packages(include=["detectron2", "detectron2.*"]) + list(PROJECTS),
    package_dir=PROJECTS,
    package_data={"detectron2.model_zoo": CONFIGS},
    install_requires='''
        Pillow>=7.1 matplotlib pycocotools>=2.0.2 termcolor>=1.1 yacs>=0.1.8 tabulate cloudpickle tqdm>4.29.0
        tensorboard fvcore>=0.1.5,<0.1.6 iopath>=0.1.7,<0.1.10 omegaconf>=2.1 hydra-core>=1.1
    '''.split(),
)
"""


class InstallError(Exception):
    """A failure that one line explains."""


def installed() -> str | None:
    """Say which Detectron2 is installed and where, without importing it; None where there is none."""
    spec = PathFinder.find_spec("detectron2")  # not what importing it would do first, as revisit asks for
    if spec is None or spec.origin is None:  # no origin: an empty folder of that name, not a package
        return None
    file = Path(spec.origin)
    stated = re.search(r'^__version__ = "(.+)"', file.read_text(encoding="utf-8"), re.MULTILINE)
    return f"detectron2 {stated[1] if stated else 'of unknown version'} in {file.parent}"


def _pip(*args: str) -> None:
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", *args]
    if subprocess.run(command).returncode:
        new = args[0] == "download" and tuple(map(int, version("pip").split(".")[:2])) > NEWEST_PIP
        hint = f". This pip, {version('pip')}, refuses the archive: pip install 'pip<26.3'" if new else ""
        raise InstallError(f"`pip {args[0]}` failed; its own message is above{hint}")


def download(folder: Path) -> Path:
    """Fetch the archive into `folder`. pip checks the hash before it runs the setup.py in it for metadata."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{NAME}=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
    options = ["--no-deps", "--no-build-isolation", "--no-binary", NAME, "--dest", str(folder)]
    _pip("download", "--require-hashes", *options, "-r", str(requirement))
    return folder / f"{NAME}-{VERSION}.tar.gz"


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack into `folder` (nothing can land outside it) and put SETUP_PY over the archive's own."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    source = folder / f"{NAME}-{VERSION}"
    (source / "setup.py").write_text(SETUP_PY, encoding="utf-8")
    shutil.rmtree(source / "pb1_detectron2.egg-info", ignore_errors=True)
    return source


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="only say which Detectron2 there is; fail if none")
    parser.add_argument("--check", dest="dry_run", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    present = installed()
    if present:
        print(f"install_detectron2: {'found' if args.dry_run else 'leaving alone'} {present}")
        return
    try:
        if args.dry_run:
            raise InstallError(f"no Detectron2 for {sys.executable}")
        with tempfile.TemporaryDirectory() as folder:
            source = unpack(download(Path(folder)), Path(folder))
            _pip("install", "--no-deps", "--no-build-isolation", "--no-cache-dir", str(source))
    except (InstallError, OSError, tarfile.TarError) as error:
        sys.exit(f"install_detectron2: {error}")
    invalidate_caches()
    print(f"install_detectron2: installed {installed()}")


if __name__ == "__main__":
    main()
