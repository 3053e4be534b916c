"""Plug-ins of other packages, by entry points."""

import sys

import pytest
from trees import refused

from revisit.plugins import load_plugins


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
