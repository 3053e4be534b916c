"""Install Detectron2 0.6's Python code where no Detectron2 is installed; leave an installed one alone.

Detectron2 is not on the package index under its own name. The source archive named below is there, and holds the
Python code of the official v0.6 tag without its C++ sources. This looks for it where pip and uv are told to look,
compares its hash before it opens it, runs nothing of it, and installs it as what it is: a distribution named
`detectron2`, version 0.6, with the bundled projects and the model zoo's configs, which pip and uv list and uninstall.
It needs neither of them. The compiled operators (deformable convolution, rotated boxes, fast COCO evaluation) are
absent: `revisit.compat` makes the rest import, and says so where one is used. For those, install Detectron2 by its own
installation page first; this then changes nothing.
"""

import argparse
import ast
import hashlib
import html
import io
import os
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import invalidate_caches
from importlib.machinery import PathFinder
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import HTTPBasicAuthHandler, HTTPPasswordMgrWithPriorAuth, HTTPSHandler, Request, build_opener

NAME, VERSION = "pb1-detectron2", "0.6"
ARCHIVE = f"{NAME}-{VERSION}.tar.gz"
SHA256 = "5d2e9e51e523ec72f6a31cca04b0a515492e9514b773a3d134cedc0677170b29"
INDEX = "https://pypi.org/simple"
PATIENCE = 60  # seconds without an answer
MOST = 2**24  # bytes of a page or the archive

# Where pip and uv look: the first of these that is set counts in place of INDEX, and all of the others.
DEFAULTS = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
MORE = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL")
LINKS = ("UV_FIND_LINKS", "PIP_FIND_LINKS")

INFO = f"detectron2-{VERSION}.dist-info"
# What is installed, by where it lies in the archive, which has a package `tools` and a setup.py, too.
PLACES = {
    "LICENSE": f"{INFO}/LICENSE",
    "detectron2": "detectron2",
    "projects/PointRend/point_rend": "detectron2/projects/point_rend",
    "projects/DeepLab/deeplab": "detectron2/projects/deeplab",
    "projects/Panoptic-DeepLab/panoptic_deeplab": "detectron2/projects/panoptic_deeplab",
}
# Of its requirements, `black` (a 2021 pin; for LazyConfig.to_py only), `future` and `pydot` (caffe2 export only)
# are left out: the Python code imports and trains without them.
NEEDS = [
    "Pillow>=7.1",
    "matplotlib",
    "pycocotools>=2.0.2",
    "termcolor>=1.1",
    "yacs>=0.1.8",
    "tabulate",
    "cloudpickle",
    "tqdm>4.29.0",
    "tensorboard",
    "fvcore>=0.1.5,<0.1.6",
    "iopath>=0.1.7,<0.1.10",
    "omegaconf>=2.1",
    "hydra-core>=1.1",
]
METADATA = f"""\
Metadata-Version: 2.4
Name: detectron2
Version: {VERSION}
Summary: Detectron2 {VERSION}, Python code only (no compiled operators)
Home-page: https://github.com/facebookresearch/detectron2
Author: FAIR
License-Expression: Apache-2.0
License-File: LICENSE
""" + "".join(f"Requires-Dist: {need}\n" for need in NEEDS)
WHEEL = "Wheel-Version: 1.0\nGenerator: revisit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


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


def settings() -> dict[str, str]:
    """Those of pip's configuration files, where there is pip, under the names of its variables; then the variables."""
    words = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(words, capture_output=True, text=True).stdout
    of_pip = re.findall(r"""^[^\s=]*\.([\w-]+)=(['"].*['"])$""", listed, re.MULTILINE)
    return {f"PIP_{name.upper().replace('-', '_')}": ast.literal_eval(value) for name, value in of_pip} | os.environ


def sources(named: dict[str, str]) -> list[str]:
    """URLs of pages and folders that may have the archive, the nearest first, by ``settings``."""

    def words(name: str) -> list[str]:
        return [re.sub(r"^[\w.-]+=", "", word) for word in re.split(r"[\s,]+", named.get(name, "")) if word]

    default = next(filter(None, map(words, DEFAULTS)), [INDEX])
    indexes = [url for urls in (default, *map(words, MORE)) for url in urls]
    links = [url for name in LINKS for url in words(name)]
    return [*links, *(f"{url.rstrip('/')}/{NAME}/" for url in indexes)]


def download(named: dict[str, str]) -> bytes:
    """The archive. Raises InstallError where none of the ``sources`` has it, or its hash is another."""
    problems = []
    for source in sources(named):
        try:
            content = _archive_at(source, named)
        except (OSError, ValueError) as error:  # no page, no answer, no URL
            content = problems.append(f"{_public(source)}: {error}")
        if content is not None:
            found = hashlib.sha256(content).hexdigest()
            if found != SHA256:
                raise InstallError(f"{ARCHIVE} of {_public(source)} has the SHA-256 {found}: expected {SHA256}")
            return content
    where = "; ".join(problems) or ", ".join(map(_public, sources(named)))
    raise InstallError(
        f"no {ARCHIVE} found ({where}): expected an index that has it, by PIP_INDEX_URL or UV_DEFAULT_INDEX, or the "
        "file itself in a folder, by PIP_FIND_LINKS"
    )


def _archive_at(source: str, named: dict[str, str]) -> bytes | None:
    parts = urlsplit(source)
    if parts.scheme in ("", "file"):
        file = Path(unquote(parts.path)) / ARCHIVE
        return file.read_bytes() if file.is_file() else None
    opener = build_opener(HTTPSHandler(context=_certificates(named)), HTTPBasicAuthHandler(_passwords(source)))
    with opener.open(Request(_public(source), headers={"Accept": "text/html"}), timeout=PATIENCE) as page:
        links = re.findall(r"""href\s*=\s*["']?([^"'\s>]+)""", page.read(MOST).decode("utf-8", "replace"))
    for link in map(html.unescape, links):
        if urlsplit(link).path.rpartition("/")[2] == ARCHIVE:
            with opener.open(urljoin(page.url, link), timeout=PATIENCE) as file:
                return file.read(MOST)
    return None


def _certificates(named: dict[str, str]) -> ssl.SSLContext:
    """Those of this machine, and what pip trusts: not every Python finds its machine's."""
    context = ssl.create_default_context(cafile=named.get("PIP_CERT") or None)
    with suppress(ImportError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _passwords(source: str) -> HTTPPasswordMgrWithPriorAuth:
    """Name and password that a URL has; for its host alone."""
    parts, manager = urlsplit(source), HTTPPasswordMgrWithPriorAuth()
    if parts.username:
        host = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
        manager.add_password(None, host, unquote(parts.username), unquote(parts.password or ""), is_authenticated=True)
    return manager


def _public(url: str) -> str:
    """A URL without name and password."""
    return re.sub(r"//[^/@]*@", "//", url)


def members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file to install."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in filter(tarfile.TarInfo.isfile, tar):
            name = member.name.removeprefix(f"{NAME}-{VERSION}/")
            for start, place in PLACES.items():
                if f"{name}/".startswith(f"{start}/") and ".." not in name.split("/"):
                    yield place + name.removeprefix(start), tar.extractfile(member).read()


def install(archive: bytes, packages: Path) -> None:
    """Put package and metadata into a folder of packages, both whole."""
    about = {"METADATA": METADATA, "WHEEL": WHEEL, "INSTALLER": "revisit\n", "top_level.txt": "detectron2\n"}
    files = dict(members(archive)) | {f"{INFO}/{name}": text.encode() for name, text in about.items()}
    record = "".join(f"{name},,\n" for name in [*files, f"{INFO}/RECORD"])
    with tempfile.TemporaryDirectory(dir=packages) as folder:
        for name, content in {**files, f"{INFO}/RECORD": record.encode()}.items():
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        shutil.rmtree(packages / INFO, ignore_errors=True)  # of one that is gone
        for name in (INFO, "detectron2"):
            Path(folder, name).rename(packages / name)


def folder_of_packages() -> Path:
    """Where this Python's packages go. Raises InstallError where the system's own tools install them."""
    is_bare = sys.prefix == sys.base_prefix and not os.environ.get("PIP_BREAK_SYSTEM_PACKAGES")
    if is_bare and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists():
        raise InstallError(
            f"{sys.executable} is the system's: expected that of an environment (python -m venv, uv venv)"
        )
    return Path(sysconfig.get_path("purelib"))


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
        packages = folder_of_packages()
        install(download(settings()), packages)
    except (InstallError, OSError, tarfile.TarError) as error:
        sys.exit(f"install_detectron2: {error}")
    invalidate_caches()
    print(f"install_detectron2: installed {installed()}")


if __name__ == "__main__":
    main()
