"""What a page is in Chromium, where there is one."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def seen_in_browser(page: Path, look: str, *, width: int = 1200, height: int = 800) -> dict:
    """What ``look``, which takes the place of the page's ``</body>``, has written as JSON into an element ``seen``.

    A window is at least 500 px wide.
    """
    browser = shutil.which("chromium")
    if not browser:
        pytest.skip("no chromium")
    looked = page.with_name("looked.html")
    text = page.read_text(errors="surrogateescape")
    looked.write_text(text.replace("</body>", look), errors="surrogateescape")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"]
    with tempfile.TemporaryDirectory() as folder:
        command = [browser, *options, f"--window-size={width},{height}", f"--user-data-dir={folder}", looked.as_uri()]
        dumped = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    (content,) = re.findall(r'<pre id="seen">(.*?)</pre>', dumped, re.DOTALL)
    return json.loads(html.unescape(content))
