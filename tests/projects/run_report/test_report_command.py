"""The commands of the project's README, and their page in a browser."""

import shutil
import subprocess
from pathlib import Path

import pytest
from commands import TINY, documented, one_line_error, run
from folders import draw, write_checkpoint

pytest.importorskip("plotly", reason="the page needs plotly")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --virtual-time-budget=10000 --enable-logging=stderr --v=0 --dump-dom"
)


def browse(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page's HTML after its scripts have run, and what it said on the console."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser on the PATH: expected one of {', '.join(BROWSERS)}")
    command = [browser, *OPTIONS.split(), f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_commands_of_the_readme_write_pages_that_open_without_errors(toy_root, tmp_path):
    """Of a run that finished, and of one beside it that was stopped half-way."""
    whole, half = tmp_path / "toy/pretrain", tmp_path / "toy/longer"
    options = f"SOLVER.MAX_ITER 4 OUTPUT_DIR {whole} {TINY}"
    run(f"python tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus 1 {options}", toy_root)
    shutil.copytree(whole, half)
    config = (half / "config.yaml").read_text()
    (half / "config.yaml").write_text(config.replace("MAX_ITER: 4\n", "MAX_ITER: 8\n"))
    (half / "model_final.pth").unlink()
    write_checkpoint(half / "model_0000003.pth", 3)
    draw(whole / "views.png")
    draw(half / "neighbours.png")

    page = tmp_path / "report.html"
    first, second = documented("projects/RunReport/README.md")
    for command in (first, second):
        assert f"written to {page}: " in run(command.replace("output/", f"{tmp_path}/"), tmp_path)
    assert page.stat().st_size < 10e6
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
    plots = html.count('<div class="curve')
    # Each of Plotly's plots is made of three SVG elements of this class.
    assert plots >= 8 and html.count('class="main-svg"') == 3 * plots


def test_the_browser_would_report_errors_and_requests(tmp_path):
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'\">"
    (tmp_path / "bad.html").write_text(f"{policy}<img src='http://127.0.0.1:9/x.png'><script>nothing();</script>")
    _, console = browse(tmp_path / "bad.html", tmp_path / "profile")
    for words in ("nothing is not defined", "Content Security Policy"):
        assert any(words in line for line in console)


def test_mistakes_end_in_one_line(tmp_path):
    (tmp_path / "photos").mkdir()
    command = f"python tools/report.py {tmp_path}/photos --output {tmp_path}"
    assert "photos is not the folder of a run: it holds nothing" in one_line_error(f"{command}/r.html", tmp_path)
    assert not (tmp_path / "r.html").exists()
    assert one_line_error(command, tmp_path).endswith("is a folder: expected a file to write, such as report.html")
