"""The small examples of docs/extending.md: what plugs into a run from outside the tree, each in a file of its own."""

import csv
import json
import logging
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT
from labels import counted
from runs import assert_resumes, dry_recipe, load, run_config, train
from tiny import tiny_config, tiny_model
from trees import blank_image, one_line_error, refused, write

from projects.Reports.main_score import main_score
from revisit.checkpoint.metrics_file import read_metrics
from revisit.data.sources.catalog import get_records
from revisit.data.sources.inspection import inspect
from revisit.data.views.looks import StandardLook
from revisit.data.views.mapper import ViewMapper
from revisit.engine.config_checks import check_config
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.run_log import OWN
from revisit.engine.setup import make_config
from revisit.engine.solver import build_lr_scheduler, build_optimizer
from revisit.evaluation.features import Features
from revisit.keys import check_values

from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.structures import Boxes, BoxMode, Instances

EXAMPLES = Path(__file__).parent
MOST_LINES = 60
SHOWN = re.compile(r"`tests/extension/(\w+\.py)`[^\n]*:\n\n```python\n(.*?)```", re.DOTALL)


pytestmark = pytest.mark.usefixtures("examples_found")


def register(name: str, records: list[dict], **metadata: object) -> None:
    DatasetCatalog.register(name, lambda: records)
    MetadataCatalog.get(name).set(**metadata)


def test_extending_shows_short_examples_as_they_are():
    shown = dict(SHOWN.findall((ROOT / "docs/extending.md").read_text()))
    assert shown
    for name, text in shown.items():
        assert text == (EXAMPLES / name).read_text()
        assert text.count("\n") <= MOST_LINES


def test_a_look_from_outside_is_the_positives(toy_datasets, tmp_path, make_picture):
    grain = import_module("grain")
    cfg = run_config(tmp_path, "VIEWS.POLICY", "grain", "VIEWS.BLUR_PROBABILITY", 0.0)
    picture = make_picture(120, 160)
    views = ViewMapper.from_config(cfg)(picture, 0, 0)
    anchor, *positives = views["looks"]
    assert isinstance(anchor, StandardLook) and {type(look) for look in positives} == {grain.GrainLook}
    again = ViewMapper.from_config(cfg)(picture, 0, 0)
    assert all(np.array_equal(views[name], again[name]) for name in ("anchor", "positive", "small"))
    train(tmp_path, "SOLVER.MAX_ITER", 2, "VIEWS.POLICY", "grain")
    assert len(read_metrics(tmp_path / "metrics.json")["total_loss"]) > 0


def test_grain_has_its_strength_on_a_grey_view():
    grain = import_module("grain")
    plain = np.full((200, 200, 3), 128, np.uint8)
    below = StandardLook(jitter=(), grey=False, blur_sigma=0.0, flip=False)
    view = grain.GrainLook(below, strength=10.0, seed=3).apply(plain)
    assert view.std() == pytest.approx(10, rel=0.02) and (view == view[..., :1]).all()


def test_a_writer_from_outside_gets_every_metric(toy_datasets, tmp_path):
    import_module("table_writer")
    train(tmp_path, "SOLVER.MAX_ITER", 3, "WRITERS", ("table",))
    text = (tmp_path / "metrics.csv").read_text()
    rows = list(csv.reader(text.splitlines()))
    metrics = read_metrics(tmp_path / "metrics.json")
    assert {name for _, name, _ in rows} == metrics.keys()
    assert [(int(iteration), float(value)) for iteration, name, value in rows if name == "lr"] == metrics["lr"]


def test_an_unknown_writer_is_refused(tmp_path):
    refused(
        "WRITERS is .*'tabel'.*: expected a list, each a name in WRITER_REGISTRY, which has .*; a module of IMPORTS",
        check_values,
        run_config(tmp_path, "WRITERS", ("tabel",)),
    )


@pytest.fixture
def labelme(tmp_path) -> str:
    """Two images of 100 x 50 px with a dog's outline and a cat's box, and one without labels; the data set's name."""
    import_module("labelme")
    outline = {"label": "dog", "shape_type": "polygon", "points": [[10, 5], [30, 5], [20, 45]]}
    box = {"label": "cat", "shape_type": "rectangle", "points": [[60, 40], [50, 10]]}
    for name, shapes in (("a", [outline, box]), ("below/b", [box])):
        content = {"imageHeight": 50, "imageWidth": 100, "shapes": shapes}
        write(tmp_path / f"json/{name}.json", json.dumps(content))
    for name in ("a", "below/b", "c"):
        blank_image(tmp_path / f"images/{name}.png")
    return f"labelme:{tmp_path}/images:{tmp_path}/json"


def test_a_layout_from_outside_gives_boxes_and_outlines(labelme):
    a, b, c = get_records(labelme)
    dog, cat = a["annotations"]
    assert dog["bbox"] == [10, 5, 20, 40] and dog["segmentation"] == [[10, 5, 30, 5, 20, 45]]
    assert cat["bbox"] == [50, 10, 10, 30] and "segmentation" not in cat
    assert [dog["category_id"], cat["category_id"]] == [1, 0]
    assert MetadataCatalog.get(labelme).thing_classes == ["cat", "dog"]
    assert len(b["annotations"]) == 1 and c["annotations"] == []


def test_a_layout_from_outside_is_counted_learned_and_scored(labelme, tmp_path):
    cfg = run_config(tmp_path, "MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.ROI_HEADS.NUM_CLASSES", 2)
    cfg.merge_from_list(["DATASETS.TRAIN", (labelme,), "MODEL.DEVICE", "cpu"])
    assert counted(cfg, labelme, tmp_path) == (3, 3, 3, 100.0)


def test_a_layout_from_outside_names_what_is_wrong(labelme, tmp_path):
    assert "expected labelme:FOLDER_OF_IMAGES:FOLDER_OF_JSON" in one_line_error("labelme:nowhere")
    write(
        tmp_path / "json/a.json", json.dumps({"imageHeight": 50, "imageWidth": 100, "shapes": [{"shape_type": "line"}]})
    )
    assert "a.json: shape_type line, expected one of rectangle, polygon" in one_line_error(labelme)
    write(tmp_path / "json/a.json", "no JSON")
    assert f"reading {tmp_path}/json/a.json" in one_line_error(labelme)


def test_a_layout_from_outside_adds_a_column_that_its_check_reads(tmp_path, caplog):
    import_module("oriented_boxes")
    blank_image(tmp_path / "images/a.png")
    lines = ("imagesource:x", "10 20 20 10 50 40 40 50 ship 0", "0 0 20 0 20 10 0 10 plane 1")
    write(tmp_path / "texts/a.txt", "\n".join(lines))
    name = f"dota:{tmp_path}/images:{tmp_path}/texts"
    (record,) = get_records(name)
    ship, plane = record["annotations"]
    assert (ship["bbox"], plane["bbox"]) == ([10, 10, 40, 40], [0, 0, 20, 10])
    assert record["filled"] == [pytest.approx(600 / 1600), 1]
    cfg = run_config(tmp_path, "MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.ROI_HEADS.NUM_CLASSES", 2)
    inspect(cfg, name, to_learn=True)
    (warning,) = [each for each in caplog.records if f"1 of 2 rectangles of {name} are mostly" in each.getMessage()]
    assert warning.name.startswith(OWN)  # log.txt has no other modules' messages
    write(tmp_path / "texts/a.txt", "1 2 3 4 ship")
    assert f"reading {tmp_path}/texts/a.txt" in one_line_error(name)


def test_an_evaluator_from_outside_scores_its_data_sets(tmp_path):
    recall = import_module("recall_evaluator")
    boxes = [[0, 0, 10, 10], [20, 20, 30, 30], [0, 40, 10, 60]]
    objects = [{"bbox": box, "bbox_mode": BoxMode.XYXY_ABS, "category_id": 0} for box in boxes]
    register("recall_by_hand", [{"image_id": 7, "annotations": objects}], evaluator_type="recall")
    cfg = make_config("configs/toy/detection.yaml", ["DATASETS.TEST", "('recall_by_hand',)"])
    assert main_score(cfg) == "bbox/recall"
    evaluator = FinetuneTrainer.build_evaluator(cfg, "recall_by_hand")
    assert isinstance(evaluator, recall.RecallEvaluator)
    evaluator.reset()
    found = Instances((64, 64), pred_boxes=Boxes([[0, 0, 10, 6], [0, 40, 10, 49], [1, 1, 10, 10]]))
    evaluator.process([{"image_id": 7}], [{"instances": found}])
    assert evaluator.evaluate() == {"bbox": {"recall": pytest.approx(100 / 3)}}  # IoU 0.6 and 0.81; 0; 0.45


def test_a_data_set_without_evaluator_is_refused():
    register("no_evaluator", [{}], evaluator_type="unheard_of")
    cfg = make_config("configs/toy/detection.yaml", [])
    expected = "evaluator_type is unheard_of, expected one of coco, .*depth"
    refused(expected, FinetuneTrainer.build_evaluator, cfg, "no_evaluator")


def test_an_outside_evaluation_is_logged_compared_and_kept(toy_datasets, tmp_path, caplog):
    import_module("spread_evaluation")
    images = ("SPREAD.IMAGES", "toy_objects_heldout", "KNN_EVAL.IMAGE_SIZE", 32)
    with caplog.at_level(logging.INFO):
        train(tmp_path, "SOLVER.MAX_ITER", 4, "TEST.EVAL_PERIOD", 2, "TEST.KEEP_BEST", True, *images)
    scores = read_metrics(tmp_path / "metrics.json")["class_spread"]
    assert [iteration for iteration, _ in scores] == [0, 1, 3]
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["score"] == "class_spread" and best["value"] == min(value for _, value in scores[1:])
    assert "training has taken class_spread from" in caplog.text


def test_an_evaluation_from_outside_equals_its_formula():
    spread = import_module("spread_evaluation")
    rows = torch.tensor([[0.0, 0], [0, 2], [3, 0], [3, 2]])
    features = Features(rows, torch.tensor([5, 5, 8, 8]))
    found = spread.ClassSpread(tiny_config()).evaluate(None, lambda name: features)
    assert found == {"class_spread": pytest.approx(4 / 13)}


def test_an_outside_hooks_state_is_resumed(toy_datasets, tmp_path):
    import_module("average_hook")
    options = ("SOLVER.MAX_ITER", 4, "SOLVER.CHECKPOINT_PERIOD", 2, "HOOKS", ("WeightAverage",))
    train(tmp_path / "whole", *options)
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 1, *options)
    final = load(tmp_path / "whole/model_final.pth")
    state = final["trainer"]["hooks"]["WeightAverage"]
    assert state["steps"] == 4 and state["means"].keys() <= final["model"].keys()


def test_a_temperature_changes_over_time_and_resumes_where_it_was(toy_datasets, tmp_path):
    import_module("cosine_temperature")
    options = ("SOLVER.MAX_ITER", 4, "SOLVER.CHECKPOINT_PERIOD", 2, "HOOKS", ("CosineTemperature",))
    trainer = train(tmp_path / "whole", *options, "MOCO.TEMPERATURE", 0.4)
    assert trainer.model.temperature == pytest.approx(0.3)  # of the last step, after 3 of 4
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 1, *options, "MOCO.TEMPERATURE", 0.4)
    plain = train(tmp_path / "plain", *options[:-2], "MOCO.TEMPERATURE", 0.4)
    first, second = (read_metrics(tmp_path / name / "metrics.json")["loss_inst"] for name in ("whole", "plain"))
    assert first != second and plain.model.temperature == 0.4


def test_an_unknown_hook_is_refused(tmp_path):
    cfg = run_config(tmp_path, "HOOKS", ("WeihgtAverage",))
    refused("HOOKS is .*: expected a list, each a name in HOOK_REGISTRY", check_values, cfg)


@pytest.mark.parametrize("warmup, first", [(0, (0.1, 0.075)), (2, (0.01, 0.0175))])
def test_a_schedule_from_outside_restarts_a_cosine(warmup, first):
    """Its warm-up is from a tenth of the first rate to that of its last iteration."""
    import_module("cosine_restarts")
    cfg = tiny_config("SOLVER.LR_SCHEDULER_NAME", "CosineWithRestarts", "SOLVER.MAX_ITER", 6, "SOLVER.BASE_LR", 0.1)
    cfg.merge_from_list(["SOLVER.CYCLES", 2, "SOLVER.WARMUP_ITERS", warmup, "SOLVER.WARMUP_FACTOR", 0.1])
    optimizer = build_optimizer(cfg, torch.nn.Linear(2, 2))
    scheduler = build_lr_scheduler(cfg, optimizer)
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([*first, 0.025, 0.1, 0.075, 0.025])


def test_an_unknown_schedule_is_refused(tmp_path):
    cfg = tiny_config("SOLVER.LR_SCHEDULER_NAME", "Cosine")
    known = "LR_SCHEDULE_REGISTRY, which has .*WarmupCosineLR.*; a module of IMPORTS may add others"
    refused(f"SOLVER.LR_SCHEDULER_NAME is 'Cosine': expected a name in {known}", check_values, cfg)


def test_an_unknown_method_is_refused_with_the_known_ones(tmp_path):
    cfg = tiny_config("MODEL.META_ARCHITECTURE", "OtherImage")
    known = "META_ARCH_REGISTRY, which has .*KNNMoCo.*; a module of IMPORTS may add others"
    refused(f"MODEL.META_ARCHITECTURE is 'OtherImage': expected a name in {known}", check_config, cfg, 1)


def test_an_optimiser_from_outside_takes_its_steps():
    """Three steps of two weights against a loop in float64."""
    import_module("lion")
    cfg = tiny_config("SOLVER.OPTIMIZER", "Lion", "SOLVER.BASE_LR", 0.1, "SOLVER.WEIGHT_DECAY", 0.5)
    model = torch.nn.Linear(2, 1, bias=False).double()
    model.weight.data = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    optimizer = build_optimizer(cfg, model)
    weights, momenta = [1.0, -2.0], [0.0, 0.0]
    for gradients in ([1.0, -0.1], [-0.2, 0.3], [0.0, 5.0]):
        model.weight.grad = torch.tensor([gradients], dtype=torch.float64)
        optimizer.step()
        for n, g in enumerate(gradients):
            direction = np.sign(0.9 * momenta[n] + 0.1 * g)
            weights[n] -= 0.1 * (direction + 0.5 * weights[n])
            momenta[n] = 0.99 * momenta[n] + 0.01 * g
    assert model.weight[0].tolist() == pytest.approx(weights)


def test_an_optimiser_from_outside_tells_parameters_by_name():
    """Two steps of a backbone's matrix by LARS, and of all else by SGD, against a loop in float64."""
    import_module("backbone_lars")
    solver = ("SOLVER.BASE_LR", 2.0, "SOLVER.WEIGHT_DECAY", 0.01, "SOLVER.MOMENTUM", 0.9)
    cfg = tiny_config("SOLVER.OPTIMIZER", "BackboneLARS", *solver)
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 1) for name in ("backbone", "head")}).double()
    optimizer = build_optimizer(cfg, model)
    names = [name for group in optimizer.param_groups for name in group["names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    weights = {name: p.detach().flatten().tolist() for name, p in model.named_parameters()}
    speeds = {name: [0.0] * len(w) for name, w in weights.items()}
    for gradient in (0.5, -2.0):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.full_like(parameter, gradient)
            w = weights[name]
            size, of_gradient = (np.sqrt(sum(x * x for x in each)) for each in (w, [gradient] * len(w)))
            ratio = 0.001 * size / (of_gradient + 0.01 * size) if name == "backbone.weight" else 1
            speeds[name] = [0.9 * v + ratio * (gradient + 0.01 * x) for v, x in zip(speeds[name], w, strict=True)]
            weights[name] = [x - 2 * v for x, v in zip(w, speeds[name], strict=True)]
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.flatten().tolist() == pytest.approx(weights[name])


def test_an_optimiser_of_several_groups_is_resumed(toy_datasets, tmp_path):
    import_module("backbone_lars")
    options = ("SOLVER.MAX_ITER", 4, "SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.OPTIMIZER", "BackboneLARS")
    train(tmp_path / "whole", *options)
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 1, *options)


def test_a_section_of_a_dry_run_from_outside_is_in_the_plan(toy_datasets, tmp_path, capsys):
    disk_space = import_module("disk_space")
    found = dry_recipe(tmp_path)["disk_gib"]
    tensors = tiny_model().state_dict().values()
    assert found["network"] == sum(tensor.nbytes for tensor in tensors) / disk_space.GIB
    assert found["free"] > 0 and re.search(r"\ndisk +[\d.]+ GiB", capsys.readouterr().out)
