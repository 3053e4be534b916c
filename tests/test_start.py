"""What happens before a program's work begins: what its command line waits for, and how its log looks."""

import logging
import subprocess
import sys

from commands import ROOT

from revisit.engine.run_log import Uncolored

HELP = """
import contextlib, glob, io, runpy, sys
light = sorted(glob.glob("tools/*.py") + glob.glob("projects/*/run.py") + glob.glob("projects/*/make_*.py"))
others = set(glob.glob("projects/*/*.py") + glob.glob("datasets/*.py")) - set(light)
for script in light + sorted(name for name in others if "run_command(main)" in open(name).read()):
    sys.argv = [script, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            assert not end.code
    assert "\\n    python " in text.getvalue() or script == "tools/install_detectron2.py", script
    heavy = {"torch", "detectron2", "cv2", "numpy"} & sys.modules.keys()
    assert script not in light or not heavy, (script, heavy)
"""


def test_help_of_every_script_teaches_and_that_of_tools_and_projects_waits_for_no_large_import():
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT}/datasets"}
    done = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_gets_the_text_of_a_colored_message_alone():
    formatter = Uncolored(logging.Formatter("%(levelname)s %(message)s"))
    message = "\x1b[36ma table\x1b[0m \x1b[1;31mof\x1b[m %d"
    assert formatter.format(logging.makeLogRecord({"msg": message, "args": (3,)})).endswith(" a table of 3")
