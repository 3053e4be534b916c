"""SOLVER.MINUTES: a run's length from what a step takes, decided once; the length that is typed counts."""

import pytest
from commands import run
from runs import load
from trees import refusal

from projects.Planning import measuring
from revisit.engine.merging import read_stated
from revisit.engine.same_experiment import plain_config
from revisit.engine.setup import make_config
from revisit.keys import Facts, resolve_auto_values
from revisit.plugins import find_config

RECIPE = "configs/toy/pretrain.yaml"
TINY = ["SOLVER.IMS_PER_BATCH", 8, "VIEWS.LARGE_SIZE", 32, "VIEWS.SMALL_SIZE", 24, "MODEL.DEVICE", "cpu"]
TINY += ["KNN_EVAL.IMAGE_SIZE", 32]
NOW = 1000.0  # s


@pytest.fixture
def measured(monkeypatch):
    """100 s after the start: 0.25 s a step, 4 s an evaluation."""
    monkeypatch.setattr(measuring, "_BEGAN", NOW - 100)
    monkeypatch.setattr(measuring, "perf_counter", lambda: NOW)
    monkeypatch.setattr(measuring, "_step_and_evaluation", lambda cfg: (0.25, 4.0))


@pytest.mark.parametrize(
    ("evaluates", "iterations", "period", "warm_up", "epochs"),
    [(True, (60 * 5 * 0.98 - 100 - 5 * 4) / 0.25, 174, 69, 19), (False, (60 * 5 * 0.98 - 100) / 0.25, 0, 77, 22)],
)
def test_iterations_fill_what_is_left_of_the_time_and_the_schedule_follows(
    toy_datasets, measured, evaluates, iterations, period, warm_up, epochs
):
    """Of 696 or 776 iterations a tenth; of their 99 or 110 epochs of 60 // 8 iterations a fifth."""
    options = [*TINY, "SOLVER.MINUTES", 5.0, "SOLVER.WARMUP_ITERS", 10**6, "NEIGHBORS.WARMUP_EPOCHS", 99]
    options += [] if evaluates else ["KNN_EVAL.BANK", "", "DATASETS.TEST", ()]
    cfg = make_config(RECIPE, options)
    chosen = measuring.choose_length(cfg, 60, began=NOW - 100)
    assert chosen["SOLVER.MAX_ITER"] == int(iterations)
    assert chosen["SOLVER.WARMUP_ITERS"] == warm_up and chosen["NEIGHBORS.WARMUP_EPOCHS"] == epochs
    assert chosen["TEST.EVAL_PERIOD"] == pytest.approx(period, abs=1)


def test_a_folder_that_an_evaluation_has_written_to_says_no_length(toy_datasets, measured):
    cfg = make_config(RECIPE, [*TINY, "SOLVER.MINUTES", 5.0])
    before = {"SOLVER.MINUTES": 0.0, "SOLVER.MAX_ITER": 0}
    resolve_auto_values(cfg, Facts(images=60, stated=[{"SOLVER.MINUTES"}], launched=True, before=before))
    assert cfg.SOLVER.MAX_ITER > 0


@pytest.mark.parametrize(
    ("done", "epochs", "length", "line"),
    [
        (3, 0, 70, "as the run began; SOLVER.MAX_ITER changes it"),
        (3, 10, 70, "SOLVER.MINUTES 5 has no effect, as the run began by SOLVER.EPOCHS 10"),
        (0, 0, 70, "as the run began; SOLVER.MAX_ITER changes it"),  # killed before its first checkpoint
    ],
)
def test_minutes_of_a_run_that_resumes_come_too_late_and_a_line_says_so(
    done, epochs, length, line, toy_datasets, measured, caplog
):
    cfg = make_config(RECIPE, [*TINY, "SOLVER.MINUTES", 5.0])
    before = {"SOLVER.MINUTES": 0.0, "SOLVER.MAX_ITER": 70, "SOLVER.EPOCHS": epochs}
    facts = Facts(images=60, stated=[{"SOLVER.MINUTES"}], launched=True, before=before, done=done)
    with caplog.at_level("INFO"):
        resolve_auto_values(cfg, facts)
    assert (cfg.SOLVER.MAX_ITER, cfg.SOLVER.MINUTES) == (length, 0) and line in caplog.text


def test_a_length_of_0_next_to_minutes_leaves_it_to_them_and_no_period_is_0(toy_datasets, measured):
    none = ("SOLVER.MAX_ITER", 0, "SOLVER.EPOCHS", 0, "SOLVER.CHECKPOINT_PERIOD", 0, "SOLVER.CHECKPOINT_EPOCHS", 0)
    options = [*TINY, "SOLVER.MINUTES", 5.0, *none]
    cfg = make_config(RECIPE, options)
    resolve_auto_values(cfg, Facts(images=60, stated=read_stated(RECIPE, options).keys, launched=True))
    assert cfg.SOLVER.MAX_ITER > 100 and cfg.SOLVER.CHECKPOINT_PERIOD == cfg.SOLVER.MAX_ITER


def test_periods_and_warm_ups_that_are_stated_are_kept(toy_datasets, measured):
    """An evaluation of 4 s after every 50 iterations of 0.25 s, and two more: (294 - 100 - 8) / (0.25 + 0.08)."""
    stated = {"TEST.EVAL_PERIOD": 50, "SOLVER.CHECKPOINT_EPOCHS": 2, "SOLVER.WARMUP_ITERS": 400}
    cfg = make_config(RECIPE, [*TINY, "SOLVER.MINUTES", 5.0, *(item for pair in stated.items() for item in pair)])
    before = plain_config(cfg)
    resolve_auto_values(cfg, Facts(images=60, stated=[set(stated)], launched=True))
    changed = {key for key, value in plain_config(cfg).items() if before[key] != value}
    assert changed == {"SOLVER.MINUTES", "SOLVER.MAX_ITER", "SOLVER.CHECKPOINT_PERIOD"}
    assert cfg.SOLVER.CHECKPOINT_PERIOD == 2 * 7  # of 60 // 8 iterations
    assert cfg.SOLVER.MAX_ITER == int(186 / 0.33)


@pytest.mark.parametrize(("key", "value", "period"), [("EVAL_EPOCHS", 2, 2 * 7), ("EVAL_PERIOD", 0, 7 * 7)])
def test_evaluations_after_epochs_take_their_time(toy_datasets, measured, key, value, period):
    """Of 60 // 8 iterations each, 7 epochs by the recipe; two more evaluations of 4 s, before and at the end."""
    options = [*TINY, "SOLVER.MINUTES", 5.0, f"TEST.{key}", value]
    cfg = make_config(RECIPE, options)
    resolve_auto_values(cfg, Facts(images=60, stated=read_stated(RECIPE, options).keys, launched=True))
    assert cfg.SOLVER.MAX_ITER == int((294 - 100 - 8) / (0.25 + 4 / period))
    assert cfg.TEST.EVAL_PERIOD == period


def test_only_what_stands_nearer_than_the_minutes_is_kept(tmp_path):
    (tmp_path / "a.yaml").write_text("_BASE_: own_images/pretrain.yaml\nSOLVER: {WARMUP_ITERS: 7}\n")

    def stated(config_file: str, *opts: object) -> set[str]:
        return Facts(stated=read_stated(find_config(config_file), opts).keys).stated_nearer("SOLVER.MINUTES")

    assert stated(str(tmp_path / "a.yaml"), "SEED", 1) == {"SOLVER.WARMUP_ITERS", "SEED"}
    assert stated("own_images/pretrain.yaml") == set()
    assert stated(str(tmp_path / "a.yaml"), "SOLVER.MINUTES", 3) == set()


def test_less_time_than_the_start_takes_is_warned_of(toy_datasets, measured, monkeypatch, caplog):
    monkeypatch.setattr(measuring, "_step_and_evaluation", lambda cfg: (0.5, 1.0))
    cfg = make_config(RECIPE, [*TINY, "SOLVER.MINUTES", 1.0, "KNN_EVAL.BANK", "", "DATASETS.TEST", ()])
    chosen = measuring.choose_length(cfg, 60, began=NOW - 58.5)  # of 58.8 s, after what is not measured
    assert chosen["SOLVER.MAX_ITER"] == 1 and "SOLVER.MINUTES 1 leaves no time for training" in caplog.text


def test_the_length_that_is_typed_counts():
    assert make_config(RECIPE, ["SOLVER.MINUTES", 5]).SOLVER.MAX_ITER == 0
    text = refusal(make_config, RECIPE, ["SOLVER.MINUTES", 5, "SOLVER.EPOCHS", 3])
    assert "SOLVER.EPOCHS and SOLVER.MINUTES" in text
    assert make_config("configs/own_images/pretrain.yaml", ["SOLVER.EPOCHS", 3]).SOLVER.MINUTES == 0


def test_what_stands_nearer_to_the_user_decides_by_whatever_key(tmp_path):
    files = {
        "iterations": "_BASE_: configs/own_images/objects.yaml\nSOLVER: {MAX_ITER: 2, CHECKPOINT_PERIOD: 7}\n",
        "time": f"_BASE_: {tmp_path}/iterations.yaml\nSOLVER: {{MINUTES: 3}}\nTEST: {{EVAL_PERIOD: 5}}\n",
        "epochs": "_BASE_: time.yaml\nSOLVER: {EPOCHS: 4, CHECKPOINT_EPOCHS: 6, STEP_EPOCHS: [3]}\n",
        "run": "SOLVER: {EPOCHS: 4, MAX_ITER: 28, STEPS: [21], STEP_EPOCHS: [3]}\n_BASE_: epochs.yaml\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)

    def lengths(name: str, *typed: object) -> list:
        cfg = make_config(str(tmp_path / f"{name}.yaml"), typed)
        return [cfg.SOLVER[key] for key in ("MINUTES", "EPOCHS", "MAX_ITER", "CHECKPOINT_PERIOD", "CHECKPOINT_EPOCHS")]

    assert lengths("iterations") == [0, 0, 2, 7, 0]
    assert lengths("time") == [3, 0, 0, 7, 0]
    assert lengths("epochs") == [0, 4, 0, 0, 6]
    assert lengths("run") == [0, 4, 28, 0, 6]  # as a run's config.yaml states it
    assert lengths("run", "SOLVER.EPOCHS", "9") == [0, 9, 0, 0, 6]
    assert lengths("epochs", "SOLVER.MINUTES", "2", "SOLVER.CHECKPOINT_PERIOD", "8") == [2, 0, 0, 8, 0]
    cfg = make_config(
        str(tmp_path / "epochs.yaml"), ["TEST.EVAL_EPOCHS", "3", "SOLVER.STEPS", "()", "MONITOR.IMAGES", "train"]
    )
    assert (cfg.TEST.EVAL_PERIOD, cfg.TEST.EVAL_EPOCHS, cfg.SOLVER.STEP_EPOCHS) == (0, 3, ())
    assert make_config(str(tmp_path / "epochs.yaml"), []).MODEL.CHANNELS_LAST  # by PRECISION auto of objects.yaml
    (tmp_path / "exact.yaml").write_text("_BASE_: epochs.yaml\nSOLVER: {AMP: {ENABLED: False}}\n")
    assert not make_config(str(tmp_path / "exact.yaml"), []).MODEL.CHANNELS_LAST


def test_steps_and_warmup_follow_the_length_as_shares():
    def lengths(*options: object) -> tuple:
        solver = make_config("configs/own_images/detection.yaml", ["SOLVER.MAX_ITER", *options]).SOLVER
        return solver.STEPS, solver.WARMUP_ITERS

    assert lengths(1000, "SOLVER.WARMUP_ITERS", -1) == ((700, 900), 100)
    assert lengths(50, "SOLVER.WARMUP_ITERS", 7) == ((35, 45), 7)
    assert lengths(100, "SOLVER.STEPS", "(0.57, 0.99)")[0] == (57, 99)  # 0.57 * 100 is less than 57
    assert lengths(17)[0] == (12, 15)  # 11.9 and 15.3, to the nearest iteration
    assert lengths(12, "SOLVER.STEPS", "(0.03, 0.9)")[0] == (1, 11)  # a step at 0 would lower the whole run
    assert lengths(50, "SOLVER.STEPS", "(20, 30)")[0] == (20, 30)
    for steps in ("(0, 20)", "(0.5, 20)", "(0.9, 0.7)", "(1.0,)", "('x',)"):
        assert "between 0 and 1" in refusal(make_config, RECIPE, ["SOLVER.STEPS", steps])


BOXES = [
    "DATASETS.TRAIN",
    ("toy_voc_trainval",),
    "DATASETS.TEST",
    ("toy_voc_test",),
]


def test_a_finetuning_fills_its_minutes_and_all_of_its_schedule_follows(toy_datasets, measured, monkeypatch):
    """(60 * 5 * 0.98 - 100 - 4 * 4) / 0.25 iterations: the network is not scored before it learns."""
    recipe, options = "configs/own_images/detection.yaml", [*BOXES, "SOLVER.MINUTES", 5.0]
    cfg = make_config(recipe, options)
    resolve_auto_values(cfg, Facts(images=60, stated=read_stated(recipe, options).keys, launched=True))
    length = cfg.SOLVER.MAX_ITER
    assert length == 712
    assert cfg.SOLVER.STEPS == (498, 641) and cfg.SOLVER.WARMUP_ITERS == 71
    assert cfg.TEST.EVAL_PERIOD == 178 and cfg.TEST.KEEP_BEST
    monkeypatch.setattr(measuring, "_step_and_evaluation", lambda cfg: (0.25, 30.0))  # four would take two minutes
    cfg = make_config(recipe, options)
    chosen = measuring.choose_length(cfg, 60, began=NOW)
    assert chosen["TEST.EVAL_PERIOD"] == chosen["SOLVER.MAX_ITER"] == (294 - 30) / 0.25


def test_steps_and_evaluations_of_a_detector_are_measured(toy_datasets, monkeypatch):
    monkeypatch.setattr(measuring, "STARTING", 1)
    monkeypatch.setattr(measuring, "TIMED", 2)
    small = ["SOLVER.IMS_PER_BATCH", 2, "DATALOADER.NUM_WORKERS", 0, "MODEL.DEVICE", "cpu"]
    cfg = make_config("configs/toy/detection.yaml", [*BOXES, *small, "SOLVER.MINUTES", 1.0])
    cfg.TEST.PRECISE_BN.ENABLED = True
    step, evaluation = measuring._step_and_evaluation(cfg)
    assert 0 < step < 60 and 0 < evaluation < 600


def test_a_run_of_minutes_is_measured_once_and_resumes_to_its_own_length(toy_root, tmp_path):
    command = f"python tools/train_net.py --config-file {RECIPE} OUTPUT_DIR {tmp_path} SOLVER.MINUTES 0.2"
    command += f" DATASETS.TEST () KNN_EVAL.BANK '' {' '.join(map(str, TINY))}"
    command += " MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 SOLVER.CHECKPOINT_PERIOD 3"
    text = run(command, toy_root)
    last = load(tmp_path / "model_final.pth")["iteration"]
    assert "measuring training steps" in text and f"{last + 1:,} iterations, " in text
    assert "CHECKPOINT_PERIOD: 3\n" in (tmp_path / "config.yaml").read_text()
    for path in sorted(tmp_path.glob("model_*.pth"))[-2:]:
        path.unlink()
    text = run(command.replace(f"{RECIPE} ", f"{RECIPE} --resume "), toy_root)
    assert "measuring training steps" not in text and load(tmp_path / "model_final.pth")["iteration"] == last
