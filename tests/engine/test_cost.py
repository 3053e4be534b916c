"""What a run has cost, as its metrics say it: its processes, its workers, its earlier parts."""

import json
import time
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace

from projects.Reports import cost
from projects.Reports.cost import Cost, cpu_seconds

from detectron2.utils.events import EventStorage


def work(has_worked: Event, may_end: Event) -> None:
    """0.3 s of processor time."""
    while time.process_time() < 0.3:
        sum(range(1000))
    has_worked.set()
    may_end.wait()


def logged(hook: Cost, start: int) -> dict[str, float]:
    with EventStorage(start) as storage:
        hook.trainer = SimpleNamespace(start_iter=start, storage=storage)
        hook.before_train()
        hook.after_step()
        return {name: history.latest() for name, history in storage.histories().items()}


def test_living_and_ended_workers_are_counted():
    context, before = get_context("fork"), cpu_seconds()
    for count in (1, 2):
        has_worked, may_end = context.Event(), context.Event()
        worker = context.Process(target=work, args=(has_worked, may_end))
        worker.start()
        has_worked.wait()
        spent = cpu_seconds() - before
        assert count * 0.28 <= spent < (count + 1) * 0.28  # the clock of the processes ticks every 10 ms
        may_end.set()
        worker.join()


def test_a_resumed_run_continues_from_the_step_it_resumes(tmp_path: Path, monkeypatch):
    metrics = tmp_path / "metrics.json"
    lines = [{"iteration": n, "cpu_seconds": 10.0 * n, "wall_seconds": 5.0 * n} for n in (19, 39, 59)]
    metrics.write_text("\n".join(map(json.dumps, [*lines, {"iteration": 60, "lr": 0.1}])) + '\n{"iter')
    monkeypatch.setattr(cost, "cpu_seconds", lambda: 7.0)
    now = time.time()
    monkeypatch.setattr(cost.time, "time", lambda: now)
    assert logged(Cost(metrics), 40) == {"cpu_seconds": 397.0, "wall_seconds": 195.0}
    assert logged(Cost(metrics), 0) == {"cpu_seconds": 7.0, "wall_seconds": 0.0}
    assert logged(Cost(tmp_path / "none.json"), 40) == {"cpu_seconds": 7.0, "wall_seconds": 0.0}
