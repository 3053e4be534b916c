"""The commands of projects/RunReport/README.md, and their page in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import ROOT, TINY, one_line_error, run
from folders import draw, write_checkpoint

pytest.importorskip("plotly", reason="the page needs plotly")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browse(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page's HTML after its scripts have run, and what it said on the console."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser on the PATH: expected one of {', '.join(BROWSERS)}")
    quiet = "--no-first-run --disable-background-networking --disable-component-update --disable-sync"
    command = [
        browser,
        *f"--headless --no-sandbox --disable-gpu {quiet}".split(),
        f"--user-data-dir={profile}",
        "--virtual-time-budget=10000",
        *["--enable-logging=stderr", "--v=0", "--dump-dom"],
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def output(tmp_path_factory, toy_root) -> Path:
    """A folder for ``output`` of the commands: a run that finished, and one that was stopped half-way."""
    folder = tmp_path_factory.mktemp("output")
    options = f"SOLVER.MAX_ITER 4 OUTPUT_DIR {folder}/toy/pretrain {TINY}"
    train = "python tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus 1"
    run(f"{train} {options}", toy_root)
    run(f"{train} --dry-run {options}", toy_root)
    longer = shutil.copytree(folder / "toy/pretrain", folder / "toy/longer")
    config = (longer / "config.yaml").read_text()
    assert "MAX_ITER: 4\n" in config
    (longer / "config.yaml").write_text(config.replace("MAX_ITER: 4\n", "MAX_ITER: 8\n"))
    (longer / "model_final.pth").unlink()
    write_checkpoint(longer / "model_0000003.pth", 3)
    draw(longer / "neighbours.png")
    return folder


def test_a_run_leaves_its_commit_and_versions(output):
    (line,) = (output / "toy/pretrain/environment.json").read_text().splitlines()
    assert json.loads(line).keys() >= {"commit", "dirty", "python", "torch", "torchvision", "detectron2"}


def test_the_commands_of_the_document_write_pages_that_open_without_errors(output, tmp_path):
    document = (ROOT / "projects/RunReport/README.md").read_text()
    commands = re.findall(r"^    (python tools/report\.py .*)$", document, flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        told = run(re.sub(r"\boutput/", f"{output}/", command), tmp_path)
        page = output / "report.html"
        assert f"written to {page}: " in told and page.stat().st_size < 10e6

    html, console = browse(page, tmp_path / "profile")
    assert console == []
    for words in (
        "Runs pretrain and longer",
        "finished, 4 iterations",
        "unfinished: 4 of 8 iterations, no model_final.pth",
        "pretrain: views.png",
        "longer: neighbours.png",
        '<th scope="row">SOLVER.MAX_ITER</th>',
        '<th scope="row">commit</th>',
    ):
        assert words in html, words
    plots = html.count('class="plotly-graph-div')
    # Each of Plotly's plots is made of three SVG elements of this class.
    assert plots >= 8 and html.count('class="main-svg"') == 3 * plots


def test_the_browser_would_tell_of_errors_and_of_requests(tmp_path):
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'\">"
    (tmp_path / "bad.html").write_text(f"{policy}<img src='http://127.0.0.1:9/x.png'><script>nothing();</script>")
    _, console = browse(tmp_path / "bad.html", tmp_path / "profile")
    assert any("nothing is not defined" in line for line in console)
    assert any("Content Security Policy" in line for line in console)


def test_mistakes_end_in_one_line(output, tmp_path):
    (tmp_path / "photos").mkdir()
    line = one_line_error(f"python tools/report.py {tmp_path}/photos --output {tmp_path}/r.html", tmp_path)
    assert "photos is not the folder of a run: it holds nothing; expected one of metrics.json" in line
    assert not (tmp_path / "r.html").exists()
    line = one_line_error(f"python tools/report.py {output}/toy --output {tmp_path}", tmp_path)
    assert line.endswith("is a folder: expected a file to write, such as report.html")
