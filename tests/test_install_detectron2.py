"""tools/install_detectron2.py, without the network: what it leaves alone, refuses, and installs."""

import importlib.util
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

# By path: a Detectron2 built from source may bring a top-level package `tools` of its own.
FILE = Path(__file__).parents[1] / "tools" / "install_detectron2.py"
SPEC = importlib.util.spec_from_file_location("tools.install_detectron2", FILE)
installer = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(installer)

TOP = f"{installer.NAME}-{installer.VERSION}"


def archive(path: Path, members: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def test_leaves_an_installed_detectron2_alone_and_takes_no_empty_folder_for_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "detectron2").mkdir()
    monkeypatch.delitem(sys.modules, "detectron2", raising=False)
    monkeypatch.setattr(installer, "_pip", lambda *args: pytest.fail(f"ran pip {args}"))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [importlib.machinery.PathFinder])
    assert installer.installed() is None
    (tmp_path / "detectron2/__init__.py").write_text('__version__ = "7.8"\nraise RuntimeError("imported")\n')
    importlib.invalidate_caches()
    installer.main([])
    assert f"leaving alone detectron2 7.8 in {tmp_path / 'detectron2'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pip", "hint"), [("25.3", ""), ("26.2.1", ""), ("26.3", r"\. This pip, 26\.3, .*'pip<26\.3'")]
)
def test_download_asks_pip_for_the_hash_and_pips_failure_is_one_line(tmp_path, monkeypatch, pip, hint):
    calls = []

    def fail(command, **_):
        calls.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(installer, "version", lambda package: pip)
    with pytest.raises(installer.InstallError, match=f"^`pip download` failed; its own message is above{hint}$"):
        installer.download(tmp_path)
    (call,) = calls
    assert "--require-hashes" in call and "--no-deps" in call
    assert f"=={installer.VERSION} --hash=sha256:{installer.SHA256}\n" in Path(call[-1]).read_text()
    monkeypatch.setattr(installer, "installed", lambda: None)
    with pytest.raises(SystemExit, match="^install_detectron2: no Detectron2 for"):
        installer.main(["--check"])


def test_what_it_installs_is_detectron2_with_projects_and_configs(tmp_path):
    """The real setup.py text over a tree of empty files, installed by the real pip, offline."""
    files = {f"{TOP}/{name}/__init__.py": "" for name in ("detectron2", "detectron2/model_zoo", "tools")}
    for project in ("PointRend/point_rend", "DeepLab/deeplab", "Panoptic-DeepLab/panoptic_deeplab"):
        files[f"{TOP}/projects/{project}/__init__.py"] = ""
    files[f"{TOP}/setup.py"] = "raise SystemExit('the archive brought its own')"
    files[f"{TOP}/detectron2/model_zoo/configs/Some/base.yaml"] = "{}"
    files[f"{TOP}/detectron2/model_zoo/configs/some/other.py"] = ""
    source = installer.unpack(archive(tmp_path / "good.tar.gz", files), tmp_path / "source")
    target = tmp_path / "target"
    options = "--no-index --no-deps --no-build-isolation --disable-pip-version-check -q --target"
    command = [sys.executable, "-m", "pip", "install", *options.split(), str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    packages = {str(p.parent.relative_to(target)) for p in target.rglob("__init__.py")}
    projects = {f"detectron2/projects/{p}" for p in ("point_rend", "deeplab", "panoptic_deeplab")}
    assert packages == {"detectron2", "detectron2/model_zoo"} | projects
    configs = target / "detectron2/model_zoo/configs"
    assert (configs / "Some/base.yaml").is_file() and (configs / "some/other.py").is_file()
    (info,) = target.glob("*.dist-info")
    assert info.name == "detectron2-0.6.dist-info"
    assert "Requires-Dist: tqdm>4.29.0" in (info / "METADATA").read_text()
