"""tools/install_detectron2.py, without the network: what it leaves alone, refuses, and installs."""

import importlib.util
import io
import sys
import tarfile
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import Distribution
from pathlib import Path
from threading import Thread

import pytest

# By path: a Detectron2 built from source may bring a top-level package `tools` of its own.
FILE = Path(__file__).parents[1] / "tools" / "install_detectron2.py"
SPEC = importlib.util.spec_from_file_location("tools.install_detectron2", FILE)
installer = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(installer)

TOP = f"{installer.NAME}-{installer.VERSION}"
FILES = {
    f"{TOP}/detectron2/__init__.py": '__version__ = "0.6"\n',
    f"{TOP}/detectron2/model_zoo/__init__.py": "",
    f"{TOP}/detectron2/model_zoo/configs/Some/base.yaml": "{}",
    f"{TOP}/projects/PointRend/point_rend/__init__.py": "",
    f"{TOP}/projects/DeepLab/deeplab/loss.py": "",
    f"{TOP}/projects/Panoptic-DeepLab/panoptic_deeplab/__init__.py": "",
    f"{TOP}/LICENSE": "Apache",
    f"{TOP}/setup.py": "",
    f"{TOP}/tools/__init__.py": "",
    f"{TOP}/detectron2/../../outside.py": "",
}


def archive(files: dict[str, str] = FILES) -> bytes:
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
        return file.getvalue()


ARCHIVE = archive()


class Index(BaseHTTPRequestHandler):
    """A package index of one archive, by links as PEP 503 has them, for those who have its password."""

    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == f"Basic {b64encode(b'me:pass@word').decode()}"
        link = f'<a href="../../files/{installer.ARCHIVE}#sha256={installer.SHA256}">{installer.ARCHIVE}</a>'
        pages = {f"/simple/{installer.NAME}/": link.encode(), f"/files/{installer.ARCHIVE}": ARCHIVE}
        self.send_response(401 if not is_known else 200 if self.path in pages else 404)
        self.end_headers()
        self.wfile.write(pages.get(self.path, b"") if is_known else b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[str]:
    """The address of an index."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        Thread(target=server.serve_forever).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def known_hash(monkeypatch) -> None:
    monkeypatch.setattr(installer, "SHA256", sha256(ARCHIVE).hexdigest())


def test_leaves_an_installed_detectron2_alone_and_takes_no_empty_folder_for_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "detectron2").mkdir()
    monkeypatch.delitem(sys.modules, "detectron2", raising=False)
    monkeypatch.setattr(installer, "download", lambda named: pytest.fail("looked for another one"))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [importlib.machinery.PathFinder])
    assert installer.installed() is None
    (tmp_path / "detectron2/__init__.py").write_text('__version__ = "7.8"\nraise RuntimeError("imported")\n')
    importlib.invalidate_caches()
    installer.main([])
    assert f"leaving alone detectron2 7.8 in {tmp_path / 'detectron2'}" in capsys.readouterr().out
    monkeypatch.setattr(installer, "installed", lambda: None)
    with pytest.raises(SystemExit, match="^install_detectron2: no Detectron2 for"):
        installer.main(["--check"])


@pytest.mark.parametrize("name", ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX"])
def test_the_archive_comes_from_the_index_that_pip_or_uv_is_told_of_with_its_password(index, known_hash, name):
    url = f"http://me:pass%40word@{index}/simple"
    named = {
        "PIP_INDEX_URL": f"http://me:pass%40word@{index}/empty",
        name: f"mine={url}" if name == "UV_INDEX" else url,
    }
    assert installer.download(named) == ARCHIVE


def test_without_the_archive_one_line_says_where_it_was_looked_for_and_no_password(
    index, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(installer, "installed", lambda: None)
    monkeypatch.setattr(installer, "folder_of_packages", lambda: tmp_path)
    monkeypatch.setattr(installer, "settings", lambda: {"PIP_INDEX_URL": f"http://me:secret@{index}/simple/"})
    with pytest.raises(SystemExit) as ended:
        installer.main([])
    line = str(ended.value)
    assert f"http://{index}/simple/{installer.NAME}/: HTTP Error 401" in line and "PIP_INDEX_URL" in line
    assert "secret" not in line and "\n" not in line and not list(tmp_path.iterdir())


def test_an_archive_of_another_hash_is_not_opened(tmp_path, monkeypatch):
    (tmp_path / installer.ARCHIVE).write_bytes(ARCHIVE)
    monkeypatch.setattr(installer.tarfile, "open", lambda **_: pytest.fail("opened"))
    with pytest.raises(installer.InstallError, match=f"SHA-256 {sha256(ARCHIVE).hexdigest()}: expected 5d2e9e51"):
        installer.download({"PIP_FIND_LINKS": f"/nowhere {tmp_path}"})


def test_pips_own_files_are_asked_where_there_is_pip(tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = https://one/simple\nfind-links =\n  {tmp_path}\n  /two\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    for name in (*installer.DEFAULTS, *installer.MORE, *installer.LINKS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://three/simple/")
    pages = [f"https://{host}/simple/{installer.NAME}/" for host in ("one", "three")]
    assert installer.sources(installer.settings()) == [str(tmp_path), "/two", *pages]
    assert installer.sources({}) == [f"{installer.INDEX}/{installer.NAME}/"]


def test_what_it_installs_is_detectron2_with_projects_and_configs(known_hash, tmp_path, monkeypatch, capsys):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / installer.ARCHIVE).write_bytes(ARCHIVE)
    site = tmp_path / "site"
    (site / "detectron2-0.6.dist-info/stale").mkdir(parents=True)
    monkeypatch.setattr(installer, "folder_of_packages", lambda: site)
    monkeypatch.setattr(installer, "settings", lambda: {"UV_FIND_LINKS": str(tmp_path / "links")})
    monkeypatch.setattr(sys, "path", [str(site)])
    installer.main([])
    assert f"installed detectron2 0.6 in {site}/detectron2\n" in capsys.readouterr().out
    projects = ("point_rend/__init__.py", "deeplab/loss.py", "panoptic_deeplab/__init__.py")
    code = {"__init__.py", "model_zoo/__init__.py", "model_zoo/configs/Some/base.yaml"}
    installed = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    in_package = {name for name in installed if not name.startswith("detectron2-0.6.dist-info/")}
    assert in_package == {f"detectron2/{name}" for name in code | {f"projects/{name}" for name in projects}}
    distribution = Distribution.at(site / "detectron2-0.6.dist-info")
    assert (distribution.name, distribution.version) == ("detectron2", "0.6")
    assert "tqdm>4.29.0" in distribution.requires
    assert {str(path) for path in distribution.files} == installed  # what pip and uv uninstall
    assert not (tmp_path / "outside.py").exists()


def test_the_systems_python_is_left_to_the_system(tmp_path, monkeypatch):
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr(installer.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    with pytest.raises(installer.InstallError, match="is the system's: expected that of an environment"):
        installer.folder_of_packages()
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    assert installer.folder_of_packages() == tmp_path
