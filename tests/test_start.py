"""What happens before a program's work begins: what its command line waits for, and how its log looks."""

import logging
import subprocess
import sys

from commands import ROOT

from revisit.engine.run_log import Uncolored

HELP = """
import glob, runpy, sys
for script in sorted(glob.glob("tools/*.py") + glob.glob("projects/*/run.py") + glob.glob("projects/*/make_*.py")):
    sys.argv = [script, "--help"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert not end.code
    heavy = {"torch", "detectron2", "cv2", "numpy"} & sys.modules.keys()
    assert not heavy, (script, heavy)
"""


def test_help_of_every_tool_and_project_waits_for_no_large_import():
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_gets_the_text_of_a_colored_message_alone():
    formatter = Uncolored(logging.Formatter("%(levelname)s %(message)s"))
    message = "\x1b[36ma table\x1b[0m \x1b[1;31mof\x1b[m %d"
    assert formatter.format(logging.makeLogRecord({"msg": message, "args": (3,)})).endswith(" a table of 3")
