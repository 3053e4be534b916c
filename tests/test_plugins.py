"""Plug-ins of other packages, by entry points."""

import os
import subprocess
import sys

import pytest
from commands import ROOT
from trees import refused

from revisit.plugins import load_plugins, require_package


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import no_such_package", "ModuleNotFoundError, No module named 'no_such_package'"),
        ("1 / 0", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit('no licence')", "SystemExit, no licence"),
        ("from revisit.errors import UserError; raise UserError('no key')", "UserError, no key"),
    ],
)
def test_a_plug_in_that_fails_is_a_line_that_names_its_package_and_how_to_remove_it(code, why, tmp_path, monkeypatch):
    (tmp_path / "acme_plugin.py").write_text(code)
    folder = tmp_path / "acme_vision-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: acme-vision\nVersion: 1.2\n")
    (folder / "entry_points.txt").write_text("[revisit.plugins]\nacme = acme_plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("acme_plugin", None)
    load_plugins.cache_clear()
    line = rf"^acme-vision 1.2 has a plug-in, acme_plugin, that fails \({why}.*pip uninstall acme-vision"
    refused(line, load_plugins)


def test_packages_that_would_report_a_run_do_not_unless_the_environment_says_so(monkeypatch):
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    require_package("json", "")
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0" and os.environ["MLFLOW_DISABLE_TELEMETRY"] == "false"


def test_onnxruntime_keeps_no_name_of_the_machine(tmp_path):
    code = "from revisit.plugins import require_package; require_package('onnxruntime', 'missing').get_device()"
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    subprocess.run([sys.executable, "-c", code], env=kept | {"HOME": str(tmp_path)}, cwd=ROOT, check=True)
    assert not list(tmp_path.rglob("deviceid"))
