"""What a log file and a terminal see of long work, and nothing of short work."""

import pytest

from revisit import progress as progress_module
from revisit.jobs import processes
from revisit.progress import progress


@pytest.fixture
def clock(monkeypatch):
    """Stands still until a test moves it."""
    time = {"seconds": 0.0}
    monkeypatch.setattr("tqdm.std.time", lambda: time["seconds"])
    return time


def _work(clock, seconds: float, parts: int) -> None:
    with progress("discovering", "part", total=parts) as bar:
        for _ in range(parts):
            clock["seconds"] += seconds
            bar.update()


def test_a_log_has_a_line_a_minute_with_the_time_that_is_left(clock, capsys):
    _work(clock, seconds=30, parts=10)
    lines = [line for line in capsys.readouterr().err.split("\r") if line.strip()]
    assert lines[0].startswith("discovering:  20%") and "2/10 [01:00<04:00" in lines[0]
    assert [line.split("|")[2].split()[0] for line in lines[:5]] == ["2/10", "4/10", "6/10", "8/10", "10/10"]


def test_a_log_has_nothing_of_work_that_takes_seconds(clock, capsys):
    _work(clock, seconds=0.5, parts=10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "shown"), [(0.15, False), (0.5, True)])
def test_a_terminal_has_a_bar_of_what_takes_more_than_two_seconds(clock, capsys, monkeypatch, seconds, shown):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for _ in progress("thumbnails", "image", range(10)):
        clock["seconds"] += seconds
    assert ("thumbnails" in capsys.readouterr().err) is shown


def test_a_terminal_of_several_processes_has_each_bar_once_a_minute(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(progress_module, "IN_A_TERMINAL", {**progress_module.IN_A_TERMINAL})
    _work(clock, seconds=30, parts=10)
    alone = capsys.readouterr().err.count("discovering")
    for name in ("kill_with_parent", "cv2.setNumThreads", "signal.signal", "torch.set_num_threads"):
        monkeypatch.setattr(f"revisit.jobs.processes.{name}", lambda *_: None)
    monkeypatch.setattr(processes, "_parts", [])
    processes._begin_worker(None, 2)
    _work(clock, seconds=30, parts=10)
    assert alone >= 10 and capsys.readouterr().err.count("discovering") <= 6
