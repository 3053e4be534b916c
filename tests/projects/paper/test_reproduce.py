"""The paper's tables as jobs: which there are, in which order they run, and what the table says of them."""

import csv
import json
import re
import runpy
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from commands import ROOT, documented, one_line_error, run
from trees import refused

from projects.Paper.cells import Cell, JobBuilder, make_cells
from projects.Paper.figures import figure_jobs
from projects.Paper.paper_tables import COLUMNS, ROWS, given_rows, paper_values
from projects.Paper.result_table import as_csv, as_latex, as_markdown, ours, plot_sweep
from projects.Planning import run_cost
from projects.Planning.step_cost import StepCost
from revisit.engine.setup import make_config
from revisit.jobs.commands import Job, cost_of, missing_inputs, with_needs

TOOL = "python tools/reproduce.py"
DEPTH = f"{TOOL} transfer --profile toy --only ,depth_NYUD_rmse"
SHORT = "SOLVER.MAX_ITER 3 SOLVER.IMS_PER_BATCH 4 MODEL.SEM_SEG_HEAD.CONVS_DIM 8 INPUT.CROP.SIZE [65,65] "
SHORT += "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"


def cells_of(table: str, profile: str, root: Path, *only: str, weights=(), seeds=(1,), **options) -> list[Cell]:
    """Cells of a table, of given weights or its own rows; ``options`` are a JobBuilder's."""
    rows = given_rows(list(weights)) if weights else ROWS[table]
    return make_cells(table, rows, JobBuilder(profile, root, **options), seeds=seeds, only=only)


def all_jobs(cells: list[Cell]) -> list[Job]:
    return with_needs(job for cell in cells for job in cell.jobs)


def test_a_name_that_is_no_list_is_answered_as_a_training_answers_it(tmp_path):
    command = f"python tools/reproduce.py ablation --profile toy --dry-run --output {tmp_path}/out"
    line = one_line_error(f"{command} DATASETS.TRAIN folder:/data", tmp_path)
    assert "DATASETS.TRAIN is 'folder:/data'" in line and "did you mean \"('folder:/data',)\"?" in line


def test_the_papers_values_are_as_printed():
    assert paper_values("ablation")["+MC+CC+m+A+NN"]["VOC_SVM_mAP"] == 85.1
    assert paper_values("knn")["lambda 0.8"]["VOC_SVM_mAP"] == 80.7
    assert paper_values("transfer")["BDD100K"]["seg_VOC"] is None
    assert all(set(values) <= set(COLUMNS) for table in ROWS for values in paper_values(table).values())


@pytest.mark.parametrize("profile", ["paper", "toy"])
def test_a_row_of_the_sweep_changes_what_its_label_says(profile):
    centre = {"k": 20 if profile == "paper" else 10, "lambda": 0.4, "mined": "before_head"}
    for label, row in ROWS["knn"].items():
        run = row[profile]
        cfg = make_config(run.config, run.options, for_here=False)
        name, value, *_ = label.split()
        wanted = centre | {name: f"{value}_head" if name == "mined" else float(value)}
        if label != "lambda 0.0":  # made without L_nn
            found = {"k": cfg.NEIGHBORS.NUM_NEIGHBORS, "lambda": cfg.NEIGHBORS.WEIGHT, "mined": cfg.NEIGHBORS.MINING}
            assert found == wanted, label
        assert (cfg.MODEL.META_ARCHITECTURE == "MoCo") == (label == "lambda 0.0") and cfg.VIEWS.POLICY == "standard"


def test_the_study_of_data_has_the_papers_length_on_every_set(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "nothing"))
    jobs = all_jobs([*cells_of("transfer", "paper", tmp_path), *cells_of("scaling", "paper", tmp_path)])
    costs = {job.name.split(", ")[0]: cost_of(job).split()[0] for job in jobs if job.name.endswith("pretraining")}
    sizes = {"118k": "184,000", "236k": "368,400", "472k": "737,200", "944k": "1,474,800"}
    sets = {f"{kind}_{size}": cost for kind in ("imagenet", "openimages") for size, cost in sizes.items()}
    sets |= {"imagenet_118k_lt": "184,400", "bdd100k_90k": "140,400"}
    named = {f"pretrain-data_bias_DATASETS.TRAIN_{name}": cost for name, cost in sets.items()}
    assert costs == {"pretrain-data_bias": "184,800", **named}


@pytest.mark.parametrize("profile", ["paper", "toy"])
def test_every_job_is_there_once_after_what_it_needs_with_files_that_exist(profile, toy_datasets, tmp_path):
    """In each table and in the figures; and no two jobs of all of them share a folder."""
    by_folder = {}
    tables = [all_jobs(cells_of(table, profile, tmp_path, seeds=(1, 2))) for table in ROWS]
    for jobs in (*tables, figure_jobs(JobBuilder(profile, tmp_path), seed=1)):
        assert jobs and len({job.result for job in jobs}) == len({job.name for job in jobs}) == len(jobs)
        seen = set()
        for job in jobs:
            assert all(needed.result in seen for needed in job.needs)
            seen.add(job.result)
            job.claim()
            assert by_folder.setdefault(job.result.parent, job) == job
            for command in job.commands:
                configs = [command[1 + n] for n, word in enumerate(command) if word == "--config-file"]
                assert command[0] == "-c" or all((ROOT / file).is_file() for file in (command[0], *configs))


def test_tables_share_their_runs_and_columns_their_evaluation(toy_datasets, tmp_path):
    ablation, augmentation = (set(all_jobs(cells_of(table, "toy", tmp_path))) for table in ("ablation", "augmentation"))
    assert len(ablation & augmentation) == 4  # two backbones and their SVMs
    j, f = cells_of("davis", "toy", tmp_path, "MoCo (COCO),Jm", "MoCo (COCO),Fm")
    assert j.jobs == f.jobs and j.score != f.score


def test_only_takes_cells_whole_rows_and_whole_columns(tmp_path):
    def chosen(*only: str) -> set[tuple[str, str]]:
        return {(cell.row, cell.column) for cell in cells_of("ablation", "paper", tmp_path, *only)}

    everything = chosen()
    assert chosen("MoCo,seg_VOC", "+MC,VOC_SVM_mAP") == {("MoCo", "seg_VOC"), ("+MC", "VOC_SVM_mAP")}
    of_both = {(row, column) for row, column in everything if row == "MoCo" or column == "seg_VOC"}
    assert chosen("MoCo,", ",seg_VOC") == of_both < everything


def test_each_value_of_chosen_cells_stands_below_its_own_column(tmp_path):
    cells = cells_of("ablation", "paper", tmp_path, "MoCo,seg_VOC", "+MC,VOC_SVM_mAP")
    head, _, first, second = as_markdown(cells, "ablation", []).splitlines()[2:6]
    assert head == "|  | seg_VOC: paper | ours | VOC_SVM_mAP: paper | ours |"
    assert first.startswith("| MoCo | 66.2 | ") and first.endswith(" | – | – |")
    assert second.startswith("| +MC | – | – | 81.3 | ")
    assert "\n+MC & -- / -- & 81.3 / " in as_latex(cells, "ablation")


def test_what_a_job_lacks_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    for table in ROWS:
        jobs = all_jobs(cells_of(table, "paper", tmp_path))
        assert jobs and [job.name for job in jobs if not missing_inputs(job)] == []


def test_a_folder_of_videos_that_is_typed_is_looked_for_in_place_of_the_recipe_s(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    (tmp_path / "videos").mkdir()
    recipe = ("propagation.py", "--config-file", "projects/FrozenEvaluations/configs/propagation/davis2017_R50.yaml")
    for folder, missing in (("videos", ""), ("elsewhere", str(tmp_path / "elsewhere"))):
        job = Job("propagation", ((*recipe, "LABEL_PROPAGATION.DATA", folder),), tmp_path / "results.json")
        assert missing_inputs(job) == missing


def test_given_backbones_are_judged_beside_random_init_one_for_all_seeds_or_one_for_each(toy_datasets, tmp_path):
    for name in ("a", "1", "2"):
        (tmp_path / f"{name}.pth").write_text(name)
    weights = ["random", f"{tmp_path}/a.pth", f"{tmp_path}/{{seed}}.pth"]
    cells = cells_of("transfer", "toy", tmp_path / "out", weights=weights, seeds=(1, 2))
    jobs = all_jobs(cells)
    assert len(jobs) == 3 * 6 * 2 == len({job.result for job in jobs}) and not any(job.needs for job in jobs)
    expected = {"Rand. init.": [[], []], "a": [["a.pth"]] * 2, "{seed}": [["1.pth"], ["2.pth"]]}
    assert list(dict.fromkeys(cell.row for cell in cells)) == list(expected)
    for cell in (cell for cell in cells if cell.column.startswith(("seg", "det", "depth"))):
        starts = [[Path(word).name for word in job.commands[0] if word.endswith(".pth")] for job in cell.jobs]
        assert starts == expected[cell.row]
    old = cells[-1].jobs[0]
    (tmp_path / "1.pth").write_text("another backbone")
    new = cells_of("transfer", "toy", tmp_path / "out", weights=weights[2:])[-1].jobs[0]
    assert new.commands == old.commands and new.facts != old.facts
    assert list(given_rows(["x/backbone.pth", "y/backbone.pth"])) == ["x/backbone.pth", "y/backbone.pth"]
    assert list(given_rows(["random", "x/half_{seed}.pth"])) == ["Rand. init.", "half"]
    refused("3.pth", cells_of, "transfer", "toy", tmp_path, weights=weights, seeds=(3,))


def test_options_win_over_lengths_and_rows_over_options(toy_datasets, tmp_path):
    def recipe(job: Job) -> str:
        return " ".join(job.commands[0])

    extra = ("NEIGHBORS.NUM_NEIGHBORS", "7", "SOLVER.EPOCHS", "2")
    (cell,) = cells_of("knn", "toy", tmp_path, "k 5,kNN", extra=extra)
    words = recipe(cell.jobs[0].needs[0])
    assert words.index("SOLVER.EPOCHS 28") < words.index("SOLVER.EPOCHS 2 ") < words.index("NUM_NEIGHBORS 5")
    (cell,) = cells_of("ablation", "toy", tmp_path, "MoCo,seg_NYUD", full=True)
    assert " SOLVER.EPOCHS" not in recipe(cell.jobs[0]) + recipe(cell.jobs[0].needs[0])


def finish(cell: Cell, *values: float) -> None:
    """Put finished evaluations of the first seeds where the cell's jobs would leave them."""
    for job, value in zip(cell.jobs, values, strict=False):
        for each in (*job.needs, job):
            each.claim()
            each.result.write_text("{}")
        content: object = value
        for name in reversed(cell.score):
            content = {name: content}
        job.result.write_text(json.dumps(content))


def test_a_cell_shows_mean_and_spread_of_finished_seeds_alone(toy_datasets, tmp_path):
    (cell,) = cells_of("ablation", "toy", tmp_path, "MoCo,seg_VOC", seeds=(1, 2, 3))
    assert ours(cell) == "not run"
    pretraining = cell.jobs[0].needs[0]
    pretraining.claim()
    (pretraining.result.parent / "model_0000299.pth").write_bytes(b"")
    assert ours(cell) == "half-finished: iteration 300"
    finish(cell, 10.0)
    assert ours(cell) == "10.0 (1 of 3 seeds)"
    finish(cell, 10.0, 11.0, 12.0)
    assert ours(cell) == "11.0 ± 1.0"
    (changed,) = cells_of("ablation", "toy", tmp_path, "MoCo,seg_VOC", extra=("SOLVER.GAMMA", "0.2"))
    assert changed.jobs[0].result == cell.jobs[0].result and changed.values() == []  # of another recipe


def test_the_table_is_written_for_people_programs_and_papers(toy_datasets, tmp_path):
    cells = cells_of("augmentation", "toy", tmp_path, seeds=(1, 2))
    finish(cells[0], 20.0, 22.0)
    markdown = as_markdown(cells, "augmentation", ["A note."])
    assert "| Standard | 82.8 | 21.0 ± 1.4 |" in markdown and "| AutoAugment | 79.9 | not run |" in markdown
    first, second, *_ = csv.DictReader(as_csv(cells).splitlines())
    assert (first["paper"], first["values"], first["state"]) == ("82.8", "20.0 22.0", "finished")
    assert (second["mean"], second["state"]) == ("", "not run")
    latex = as_latex(cells, "augmentation")
    assert "Standard & 82.8 / 21.0 $\\pm$ 1.4 \\\\" in latex and "VOC\\_SVM\\_mAP" in latex
    named = [replace(cell, row="a#1 $x^2~{y}") for cell in cells]
    assert "\na\\#1 \\$x\\textasciicircum{}2\\textasciitilde{}\\{y\\} & " in as_latex(named, "")
    cells = cells_of("knn", "toy", tmp_path, ",kNN", seeds=(1, 2))
    finish(cells[0], 20.0, 22.0)
    plot_sweep(cells, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").is_file()


@pytest.fixture
def reproduce(monkeypatch, capsys):
    """Runs tools/reproduce.py in this process; what it prints. A step takes as long as any other."""
    monkeypatch.setattr(run_cost, "step_cost", lambda cfg, processes: StepCost({}, {}, 3 * 10**12, 6 * 10**12, 0))
    monkeypatch.setattr(run_cost, "_operations_of", {})

    def call(words: str, datasets: Path, code: int = 0) -> str:
        monkeypatch.setenv("DETECTRON2_DATASETS", str(datasets))
        monkeypatch.setattr("sys.argv", ["reproduce.py", *shlex.split(words)])
        end = None
        try:
            runpy.run_path(f"{ROOT}/tools/reproduce.py", run_name="__main__")
        except SystemExit as stop:
            end = stop.code
        assert (end or 0) == code
        printed = capsys.readouterr()
        return printed.out + printed.err

    return call


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("ablatoin --dry-run", "ablatoin.*linear, .*segment_retrieval.*figures"),
        ("ablation --only MoCO", "'MoCO'.*'Rand. init.'"),
        ("ablation --only ,kNN", "'kNN'"),  # a toy column
        ("ablation --processes 0", "--processes"),
        ("ablation --opts SOLVER.MAX_ITER", "--opts"),
        ("sota --how best", "TEST.EVAL_EPOCHS 1"),
        ("figures --seeds 1 2", "--seeds"),
        ("ablation", "coco_2017_train_images"),
    ],
)
def test_mistakes_are_refused_before_any_job(words, named, reproduce, tmp_path):
    assert re.search(named, reproduce(f"--output {tmp_path}/out {words}", tmp_path, code=2))
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_jobs_cost_and_missing_data(reproduce, tmp_path):
    text = reproduce(f"ablation --dry-run --seeds 1 1 --output {tmp_path}/out", tmp_path)
    assert "92,400 iterations of 256 images; MISSING coco_2017_train_images" in text
    assert "48 jobs, 0 done, 48 without data" in text and not (tmp_path / "out").exists()


def test_a_dry_run_sums_the_gpu_hours_of_what_it_would_do(reproduce, tmp_path):
    """92,400 iterations of 9 TFLOP each, at 31.2 TFLOP/s, for each of two pretrainings."""
    command = f"sota --dry-run --seeds 1 2 --only +CC+A+kNN,seg_VOC +CC+A+kNN,VOC_SVM_mAP --output {tmp_path}"
    text = reproduce(command, tmp_path)
    (line,) = re.findall(r"(.*) GPU-hours for 2 pretrainings at 10% of the 312 TFLOP/s of an A100", text)
    iterations = [int(number.replace(",", "")) for number in re.findall(r"pretraining \(([\d,]+) iterations", text)]
    assert len(iterations) == 2
    assert int(line.replace(",", "")) == pytest.approx(sum(iterations) * 9 / 31.2 / 3600, abs=0.5)
    assert "not counted: 2 other trainings and 2 jobs without training" in text
    assert "GPU-hours" not in reproduce(f"{command} --profile toy", tmp_path)


def test_configs_of_one_step_are_counted_once_for_their_lengths(toy_datasets, monkeypatch):
    counted = []
    monkeypatch.setattr(run_cost, "_operations_of", {})
    monkeypatch.setattr(run_cost, "step_cost", lambda cfg, n: counted.append(cfg) or StepCost({}, {}, 10**12, 0, 0))
    recipes = (["SEED", 2, "SOLVER.MAX_ITER", 3120], ["SOLVER.MAX_ITER", 6240], ["VIEWS.NUM_SMALL", 0])
    hours = [run_cost.gpu_hours(make_config("configs/toy/pretrain.yaml", [*recipe])) for recipe in recipes]
    assert hours == [pytest.approx(100 / 3600), pytest.approx(200 / 3600), None] and len(counted) == 1
    longer = make_config("configs/toy/pretrain.yaml", ["VIEWS.NUM_SMALL", 0, "SOLVER.MAX_ITER", 3120])
    assert run_cost.gpu_hours(longer) == pytest.approx(100 / 3600) and len(counted) == 2
    assert run_cost.gpu_hours(make_config("configs/toy/depth.yaml", ["SOLVER.MAX_ITER", 9])) is None


@pytest.mark.parametrize("command", [c for c in documented("projects/Paper/tables.md") if TOOL in c])
def test_every_command_of_the_readme_can_be_planned(command, reproduce, toy_root, tmp_path):
    (tmp_path / "backbone.pth").touch()
    words = command.removeprefix(TOOL).replace("output/", f"{tmp_path}/").replace("demo/", "")
    assert re.search(r"\d+ jobs, 0 done", reproduce(f"--dry-run --output {tmp_path}/out {words}", toy_root))


def test_a_cell_is_pretrained_converted_evaluated_and_not_run_again(toy_root, tmp_path):
    small = (
        "--opts SOLVER.IMS_PER_BATCH 8 MOCO.QUEUE_SIZE 50 VIEWS.LARGE_SIZE 32 VIEWS.SMALL_SIZE 16 SOLVER.MAX_ITER 2 "
        "SOLVER.WARMUP_ITERS 0 SOLVER.CHECKPOINT_PERIOD 2 MODEL.RESNETS.STEM_OUT_CHANNELS 16"
    )
    command = f"{TOOL} ablation --profile toy --only MoCo,VOC_SVM_mAP --output {tmp_path}/out {small}"
    first = run(command, toy_root)
    row = next(line for line in first.splitlines() if line.startswith("| MoCo |"))
    assert row.startswith("| MoCo | 76.1 | ") and float(row.split("|")[3]) > 0
    assert {path.name for path in (tmp_path / "out/ablation").iterdir()} == {"table.md", "table.csv", "table.tex"}
    second = run(command, toy_root)
    assert "2 jobs, 2 done before" in second and row in second
    table = (tmp_path / "out/ablation/table.md").read_text()
    assert "was made by other commands" in one_line_error(f"{command} SOLVER.GAMMA 0.5", toy_root)
    assert (tmp_path / "out/ablation/table.md").read_text() == table


def test_the_best_network_of_a_given_backbone_is_judged_and_the_table_says_so(pretrained, toy_root, tmp_path):
    command = f"{DEPTH} --weights {pretrained}/backbone.pth --how best --output {tmp_path} "
    command += f"--opts {SHORT} TEST.EVAL_PERIOD 1"
    assert "at their best evaluation" in run(command, toy_root)
    (row,) = csv.DictReader((tmp_path / "transfer_weights_best/table.csv").read_text().splitlines())
    (best,) = tmp_path.glob("evaluate/*/*_best/seed1/training/best.json")
    assert row["network"] == "best" and float(row["values"]) == json.loads(best.read_text())["value"]
    assert "1 jobs, 1 done before" in run(command, toy_root)
