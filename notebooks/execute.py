#!/usr/bin/env python
"""Run own_images.ipynb and store what it shows, for those who read it without running it: make notebook.

Ten minutes on two cores. Of a long log the first and last lines are kept, of stderr nothing, of figures 256 colours;
paths are those of a checkout.
"""

import base64
import io
from pathlib import Path

import nbclient
import nbformat
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks/own_images.ipynb"
FIRST, LAST = 2, 6  # lines of a log


def main() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    client = nbclient.NotebookClient(notebook, timeout=None, record_timing=False, coalesce_streams=True)
    client.execute(cwd=ROOT)
    keep_what_is_read(notebook, f"{ROOT}/")
    nbformat.write(notebook, NOTEBOOK)


def keep_what_is_read(notebook: nbformat.NotebookNode, place: str) -> None:
    """Make outputs small, and take ``place`` out of all paths, in place."""
    notebook.metadata.language_info = {"name": "python"}  # without the version that happened to run it
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            shown = output.get("data", output)
            for kind in shown.keys() & {"text", "text/plain"}:
                shown[kind] = _shortened(shown[kind]).replace(place, "")
            if "image/png" in shown:
                shown["image/png"] = _small_png(shown["image/png"])


def _shortened(text: str) -> str:
    lines = text.splitlines(keepends=True)
    left_out = len(lines) - FIRST - LAST
    return text if left_out < 2 else "".join([*lines[:FIRST], f"[{left_out} lines]\n", *lines[-LAST:]])


def _small_png(encoded: str) -> str:
    small = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


if __name__ == "__main__":
    main()
