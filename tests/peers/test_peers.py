"""Losses, Sinkhorn, kNN, metrics and readers against lightly, pytorch-metric-learning, torchmetrics and supervision.

In float64. `make check-peers` installs them beside the project's packages and runs this file.
"""

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import loss_inputs, tiny_model
from torch import nn
from torch.nn.functional import normalize
from trees import write

from projects.Objectives.byol import CosineMomentum, distances
from projects.Objectives.densecl import dense_loss
from projects.Objectives.simclr import nt_xent
from projects.Objectives.swav import sinkhorn
from revisit.config import add_revisit_config
from revisit.data.sources.catalog import get_records
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.evaluation.classifiers import knn_classify
from revisit.evaluation.features import Features
from revisit.evaluation.pixel_evaluators import confusion_matrix, score, sums_of_errors
from revisit.modeling.losses.contrastive import contrastive_losses
from revisit.modeling.momentum import ema_update

from detectron2.config import get_cfg
from detectron2.structures import Boxes, BoxMode, Instances

pytestmark = pytest.mark.peers
TAU, K = 0.2, 5


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1)


def rows_of_leaf(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit rows and what they are made of: some libraries normalise them again, which changes gradients in the rows."""
    leaf = (2 * rows(*shape, seed=seed)).requires_grad_()
    return normalize(leaf, dim=-1), leaf


def lightly_with_memory(queue: torch.Tensor) -> nn.Module:
    """lightly's NT-Xent whose negatives are the rows of a queue, which it leaves alone."""
    from lightly.loss import NTXentLoss

    loss = NTXentLoss(TAU, memory_bank_size=tuple(queue.shape))
    loss.memory_bank.forward = lambda output, update: (output, queue.T)
    return loss


@pytest.mark.parametrize("max_scores", [0, 100])
def test_instance_and_neighbor_loss(agree, max_scores):
    from pytorch_metric_learning.losses import NTXentLoss, SupConLoss

    x = loss_inputs(3)
    x["positives"], leaf = rows_of_leaf(*x["positives"].shape)
    flat, anchors, queue = x["positives"].flatten(0, 1), x["anchors"].repeat_interleave(3, dim=0), x["queue"]
    ours = contrastive_losses(**x, temperature=TAU, num_neighbors=K, max_scores=max_scores)
    parts = " in parts" if max_scores else ""
    agree(f"L_inst{parts}", "lightly", ours["loss_inst"], lightly_with_memory(queue)(flat, anchors), leaf)

    # Pairs by place: of each row its own anchor is positive and the queue negative, and of L_nn its neighbours are
    # positive and the other rows of the queue negative.
    references, here = torch.cat([anchors, queue]), torch.arange(len(flat))
    first, second = (each.flatten() for each in torch.meshgrid(here, torch.arange(len(queue)), indexing="ij"))
    pairs = (here, here, first, second + len(anchors))
    labels = torch.zeros(len(flat), dtype=torch.int64), torch.zeros(len(references), dtype=torch.int64)
    theirs = NTXentLoss(TAU)(flat, labels[0], pairs, references, labels[1])
    agree(f"L_inst{parts}", "pytorch-metric-learning", ours["loss_inst"], theirs, leaf)

    cosines = x["positives_g"].flatten(0, 1) @ x["queue_g"].T
    is_near = torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, cosines.topk(K, dim=1).indices, True)
    pairs = (*is_near.nonzero(as_tuple=True), *(~is_near).nonzero(as_tuple=True))
    theirs = SupConLoss(TAU)(flat, labels[0], pairs, queue, labels[1][: len(queue)])
    agree(f"L_nn{parts}", "pytorch-metric-learning", ours["loss_nn"], theirs, leaf)


def test_nt_xent(agree):
    from lightly.loss import NTXentLoss
    from pytorch_metric_learning import losses

    (own, leaf), others = rows_of_leaf(8, 16), rows(8, 16, seed=1)
    theirs = {"lightly": NTXentLoss(0.5), "pytorch-metric-learning": losses.SelfSupervisedLoss(losses.NTXentLoss(0.5))}
    for library, loss in theirs.items():
        agree("SimCLR's NT-Xent", library, nt_xent(own, others, 0.5)[0], loss(own, others), leaf)


def test_dense_loss(agree):
    from lightly.models.utils import select_most_similar

    cells, key_cells, key_dense = rows(3, 9, 24), rows(3, 9, 24, seed=1), rows(3, 9, 16, seed=2)
    (own, leaf), queue = rows_of_leaf(3, 9, 16, seed=3), rows(37, 16, seed=4)
    ours = dense_loss(cells, own, key_cells, key_dense, queue, temperature=TAU)
    matched = select_most_similar(cells, key_cells, key_dense)
    theirs = lightly_with_memory(queue)(own.flatten(0, 1), matched.flatten(0, 1))
    agree("DenseCL's L_dense", "lightly", ours, theirs, leaf)


def test_byol(agree):
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.utils import update_momentum
    from lightly.utils.scheduler import cosine_schedule

    (own, leaf), targets = rows_of_leaf(8, 16), rows(8, 16, seed=1)
    theirs = 2 + 2 * NegativeCosineSimilarity()(own, targets)
    agree("BYOL's distance", "lightly", distances(own, targets).mean(), theirs, leaf)

    source, averages = nn.Linear(4, 4).double(), [nn.Linear(4, 4).double()]
    averages.append(copy.deepcopy(averages[0]))
    ema_update(averages[0], source, 0.99)
    update_momentum(source, averages[1], 0.99)
    agree("momentum encoder", "lightly", *(average.weight.detach() for average in averages))

    # lightly arrives at 1 in the last step, where we, as the paper, would in the one after it.
    trainer = SimpleNamespace(model=SimpleNamespace(), max_iter=99)
    hook, momenta = CosineMomentum(0.99), []
    hook.trainer = trainer
    for trainer.iter in range(99):
        hook.before_step()
        momenta.append(trainer.model.momentum)
    theirs = [cosine_schedule(n, 100, 0.99, 1.0) for n in range(99)]
    agree("BYOL's momentum, lightly's of one step more", "lightly", momenta, theirs)


@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_sinkhorn(agree, iterations):
    from lightly.loss.swav_loss import sinkhorn as theirs

    scores = rows(24, 16) @ rows(12, 16, seed=1).T
    agree(f"Sinkhorn, {iterations}", "lightly", sinkhorn(scores, 0.05, iterations), theirs(scores, iterations, 0.05))


@pytest.mark.parametrize("has_queue", [False, True])
def test_swav(agree, has_queue):
    from lightly.loss import SwaVLoss

    options = ("SWAV.EMBEDDING_DIM", 16, "SWAV.PROTOTYPES", 12, "SWAV.QUEUE_SIZE", 16, "SWAV.HIDDEN_DIM", 8)
    model = tiny_model("MODEL.META_ARCHITECTURE", "SwAV", "NEIGHBORS.WEIGHT", 0.0, *options).double()
    model.queue_counts = has_queue
    leaf, anchors = rows(8, 3, 16).requires_grad_(), rows(8, 16, seed=1)  # a large positive and two small ones
    ours = model.objective({"anchors": anchors, "positives": leaf, "anchors_g": anchors}).loss

    def scores(views: torch.Tensor) -> torch.Tensor:
        return views @ model.prototypes.T

    large, small = [scores(anchors), scores(leaf[:, 0])], [scores(leaf[:, 1]), scores(leaf[:, 2])]
    earlier = [scores(model.views.anchors.double()), scores(model.views.positives.double())] if has_queue else None
    theirs = SwaVLoss()(large, small, earlier)
    agree("SwAV's loss" + (" with its queue" if has_queue else ""), "lightly", ours, theirs, leaf)


def test_knn(agree):
    from lightly.utils.benchmarking.knn import knn_predict

    bank = Features(rows(200, 16), torch.arange(200) % 7)
    test = rows(100, 16, seed=1)
    theirs = knn_predict(test, bank.rows.T, bank.labels, num_classes=7, knn_k=20, knn_t=0.07)[:, 0]
    agree("kNN, classes", "lightly", knn_classify(bank, test, k=20, temperature=0.07), theirs)


def test_scores_of_classes_per_pixel(agree, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # torchmetrics divides counts in float32
    from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

    rng = np.random.default_rng(0)
    truth, predicted = rng.choice([0, 1, 2, 3, 255], (40, 50)), rng.integers(0, 4, (40, 50))
    ours = score(confusion_matrix(predicted.astype(np.uint8), truth.astype(np.uint8), 4), list("abcd"))
    options = {"num_classes": 4, "ignore_index": 255}
    metrics = {
        "mIoU": MulticlassJaccardIndex(**options, average="macro"),
        "fwIoU": MulticlassJaccardIndex(**options, average="weighted"),
        "mACC": MulticlassAccuracy(**options, average="macro"),
        "pACC": MulticlassAccuracy(**options, average="micro"),
    }
    for name, metric in metrics.items():
        agree(name, "torchmetrics", ours[name], 100 * metric(torch.tensor(predicted), torch.tensor(truth)))


def test_errors_of_depth(agree):
    from torchmetrics import MeanSquaredError

    rng = np.random.default_rng(0)
    truth, depth = rng.uniform(0.5, 9, (40, 50)).astype(np.float32), rng.uniform(0.5, 9, (40, 50))
    truth[:5] = 0
    count, squares, *_ = sums_of_errors(depth, truth)
    metric = MeanSquaredError(squared=False).set_dtype(torch.float64)
    known = [torch.from_numpy(each[truth != 0].astype(np.float64)) for each in (depth, truth)]
    agree("rmse of depth", "torchmetrics", np.sqrt(squares / count), metric(*known))


def annotated(folder: Path) -> dict:
    """Ten images with boxes of three classes, in COCO's format and beside it in YOLO's and Pascal VOC's; the first."""
    rng, names = np.random.default_rng(0), ["ant", "bee", "cow"]
    images = [{"id": n, "file_name": f"{n}.png", "height": 64, "width": 128} for n in range(1, 11)]
    annotations = []
    for image in images:
        file = folder / "images" / image["file_name"]
        write(file)
        Image.fromarray(rng.integers(0, 256, (64, 128, 3), dtype=np.uint8)).save(file)
        objects = [(rng.integers(3), *rng.integers(0, 30, 2) * 2, *rng.integers(2, 17, 2) * 2) for _ in range(8)]
        # Shares of sides that are powers of two are exact in float32, in which supervision has them.
        shares = [(k, (x + w / 2) / 128, (y + h / 2) / 64, w / 128, h / 64) for k, x, y, w, h in objects]
        write(folder / "labels" / f"{image['id']}.txt", [" ".join(map(str, each)) for each in shares])
        text = "".join(
            f"<object><name>{names[k]}</name><bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + w}</xmax>"
            f"<ymax>{y + h}</ymax></bndbox></object>"
            for k, x, y, w, h in objects
        )
        size = "<size><width>128</width><height>64</height><depth>3</depth></size>"
        write(folder / "xml" / f"{image['id']}.xml", f"<annotation>{size}{text}</annotation>")
        for k, *box in np.array(objects).tolist():
            place = {"id": len(annotations) + 1, "image_id": image["id"], "category_id": k + 1, "bbox": box}
            annotations.append(place | {"area": box[2] * box[3], "iscrowd": 0})
    categories = [{"id": n, "name": name, "supercategory": "animal"} for n, name in enumerate(names, start=1)]
    content = {"categories": categories, "images": images, "annotations": annotations}
    write(folder / "coco.json", json.dumps(content))
    write(folder / "labels/data.yaml", "names: [ant, bee, cow]\n")
    return content


def corners(record: dict) -> np.ndarray:
    """(n, 5): x0, y0, x1, y1 in px and the class of each object of a record."""
    boxes = [BoxMode.convert(a["bbox"], a["bbox_mode"], BoxMode.XYXY_ABS) for a in record["annotations"]]
    return np.column_stack([np.array(boxes, dtype=float), [a["category_id"] for a in record["annotations"]]])


@pytest.mark.parametrize("layout", ["coco", "yolo", "voc_xml"])
def test_readers_of_boxes(agree, tmp_path, layout):
    from supervision import DetectionDataset

    annotated(tmp_path)
    name, images = f"{layout}:{tmp_path}/images", str(tmp_path / "images")
    if layout == "coco":
        ours, theirs = f"{name}:{tmp_path}/coco.json", DetectionDataset.from_coco(images, str(tmp_path / "coco.json"))
    elif layout == "yolo":
        labels = str(tmp_path / "labels")
        ours, theirs = f"{name}:{labels}", DetectionDataset.from_yolo(images, labels, f"{labels}/data.yaml")
    else:
        ours, theirs = f"{name}:{tmp_path}/xml", DetectionDataset.from_pascal_voc(images, str(tmp_path / "xml"))
    by_file = {file: (found.xyxy, found.class_id) for file, found in theirs.annotations.items()}
    records = get_records(ours)
    assert len(records) == len(by_file) == 10
    order = [sorted(["ant", "bee", "cow"]).index(name) for name in theirs.classes]  # supervision's are as they occur
    found = [
        np.column_stack([by_file[r["file_name"]][0], np.array(order)[by_file[r["file_name"]][1]]]) for r in records
    ]
    agree(f"boxes of {layout}", "supervision", np.concatenate([corners(r) for r in records]), np.concatenate(found))


def test_average_precision_of_boxes(agree, tmp_path):
    from supervision import Detections
    from supervision.metrics import MeanAveragePrecision as OfSupervision
    from torchmetrics.detection import MeanAveragePrecision

    annotated(tmp_path)
    records = get_records(name := f"coco:{tmp_path}/images:{tmp_path}/coco.json")
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.OUTPUT_DIR = str(tmp_path)
    evaluator = FinetuneTrainer.build_evaluator(cfg, name)
    evaluator.reset()
    # Its own thresholds are rounded to float32, which moves AP by up to 0.1 points here.
    thresholds = {
        "iou_thresholds": np.linspace(0.5, 0.95, 10).tolist(),
        "rec_thresholds": np.linspace(0, 1, 101).tolist(),
    }
    torchs, supervisions = MeanAveragePrecision(extended_summary=True, **thresholds), OfSupervision()
    rng = np.random.default_rng(1)
    for number, record in enumerate(records):
        truth = corners(record)
        boxes = (truth[:, :4] + rng.integers(-1, 2, (len(truth), 4))).astype(np.float32)
        classes = np.where(rng.random(len(truth)) < 0.8, truth[:, 4], rng.integers(0, 3, len(truth))).astype(int)
        scores = (rng.permutation(len(truth)) / 16 + number / 1024).astype(np.float32)  # all different
        found = Instances((64, 128), pred_boxes=Boxes(torch.tensor(boxes)), scores=torch.tensor(scores))
        found.pred_classes = torch.tensor(classes)
        evaluator.process([record], [{"instances": found}])
        torchs.update(
            [{"boxes": torch.tensor(boxes), "scores": torch.tensor(scores), "labels": torch.tensor(classes)}],
            [{"boxes": torch.tensor(truth[:, :4]).float(), "labels": torch.tensor(truth[:, 4]).long()}],
        )
        supervisions.update(
            Detections(xyxy=boxes, confidence=scores, class_id=classes),
            Detections(xyxy=truth[:, :4].astype(np.float32), class_id=truth[:, 4].astype(int)),
        )
    ours, other = evaluator.evaluate()["bbox"], supervisions.compute()
    by_threshold = torchs.compute()["precision"][..., 0, -1].double().mean(dim=(1, 2))  # its means are float32
    assert 10 < ours["AP"] < 90
    theirs = {"AP": (by_threshold.mean(), other.map50_95), "AP50": (by_threshold[0], other.map50)}
    for key, (of_torchmetrics, of_supervision) in (theirs | {"AP75": (by_threshold[5], other.map75)}).items():
        agree(key, "torchmetrics", ours[key], 100 * of_torchmetrics)
        agree(key, "supervision", ours[key], 100 * of_supervision, bar=1e-7)  # of precisions in float32
