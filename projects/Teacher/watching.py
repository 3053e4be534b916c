"""What follows each step of a TeacherDetector: the teacher's move, its numbers, and a warning when it goes bad."""

import logging

import torch
from torch import Tensor

from projects.Teacher.samples import unlabelled_records
from projects.Teacher.tally import LABELS, PSEUDO, scores_of
from projects.Teacher.teacher_detector import TeacherDetector
from revisit.data.sources.class_names import names_of, names_or_numbers
from revisit.data.sources.records import changes, fingerprint
from revisit.engine.hooks import STEP_HOOK_REGISTRY
from revisit.engine.writers import Writers
from revisit.errors import expect
from revisit.modeling.distributed import unwrap

from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, HookBase
from detectron2.utils import comm

LONG = 200  # iterations for which something has to be wrong before it is logged
FEW = 0.02  # boxes a photograph: next to none
LOST = 0.2  # of the boxes that a class should have by its share among labels
ENOUGH = 10  # boxes that it should have, to be judged
STEP = 0.05  # by which a threshold moves at a time

logger = logging.getLogger(__name__)


class FollowTeacher(HookBase):
    """Moves the teacher after each step, logs ``teacher/...`` every Writers.PERIOD iterations, and warns, once, when
    for LONG the teacher has found nothing, or has lost a class.

    Checkpoints hold the counts since the last log and what the photographs are.
    """

    def __init__(self, model: TeacherDetector, cfg: CfgNode):
        self._model = model
        self._names = names_or_numbers(names_of(cfg.DATASETS.TRAIN[0]), len(model.thresholds))
        self._photographs = fingerprint(unlabelled_records(cfg), labels=False)
        self._table, self._count = model.tally.take()
        self._labels = self._table[LABELS].clone()  # of the whole run
        self._images, self._batch = 0, cfg.SOLVER.IMS_PER_BATCH  # that had them; of an iteration
        self._highest, self._lowest = model.thresholds.clone(), cfg.TEACHER.LOWEST_THRESHOLD
        self._wrong_for, self._warned = 0, False  # iterations, and whether it was logged

    def before_train(self) -> None:
        length, burn_in = self.trainer.max_iter, self._model.burn_in
        expect(0 <= burn_in < length, f"TEACHER.BURN_IN {burn_in} of a run of {length}: expected less; -1 is a fifth")

    def state_dict(self) -> dict:
        return {
            "table": self._table,
            "count": self._count,
            "labels": self._labels,
            "images": self._images,
            "thresholds": self._model.thresholds,
            "highest": self._highest,
            "wrong_for": self._wrong_for,
            "warned": self._warned,
            "photographs": self._photographs,
        }

    def load_state_dict(self, state: dict) -> None:
        changed = changes(state["photographs"], self._photographs, times=False)
        expect(
            not changed,
            f"cannot resume: DATASETS.UNLABELLED has other photographs than before, by {', '.join(changed)}",
        )
        self._table, self._count, self._labels = state["table"], state["count"], state["labels"]
        self._images = state["images"]
        is_as_before = self._highest == state.get("highest", self._highest)  # earlier versions saved none
        self._model.thresholds = torch.where(is_as_before, state["thresholds"], self._highest)
        self._wrong_for, self._warned = state["wrong_for"], state["warned"]

    def after_step(self) -> None:
        iteration = self.trainer.iter
        self._model.follow(iteration)
        for table, count in comm.all_gather(self._model.tally.take()):  # a checkpoint has those of all processes
            self._table = self._table + table
            self._count += count
        if (iteration + 1) % Writers.PERIOD == 0:
            self._log(iteration)

    def _log(self, iteration: int) -> None:
        table, count = self._table, self._count
        self._table, self._count = torch.zeros_like(self._table), 0
        of_classes = zip(self._names, self._model.thresholds.tolist(), strict=True)
        thresholds = {f"teacher/threshold-{name}": value for name, value in of_classes}
        self.trainer.storage.put_scalars(smoothing_hint=False, **scores_of(table, count, self._names), **thresholds)
        self._labels = self._labels + table[LABELS]
        self._images += self._batch * Writers.PERIOD
        wanted = self._labels / self._images * count
        self._model.thresholds = moved(self._model.thresholds, table[PSEUDO], wanted, self._lowest, self._highest)
        problem = self._problem(table[PSEUDO], count)
        self._wrong_for = self._wrong_for + Writers.PERIOD if problem else 0
        if self._wrong_for >= LONG and not self._warned:
            self._warned = True
            logger.warning(
                f"for {LONG} iterations the teacher {problem}. Look at OUTPUT_DIR/teacher; try another "
                "TEACHER.THRESHOLD or a longer TEACHER.BURN_IN (projects/Teacher/README.md)"
            )

    def _problem(self, counts: Tensor, photographs: int) -> str:
        """What is wrong with the boxes' counts by class, (C,), in words; "" for nothing."""
        if counts.sum() < FEW * photographs:
            return "has found next to nothing that scores TEACHER.THRESHOLD"
        lost = lost_class(counts, self._labels)
        if lost < 0:
            return ""
        share, of_labels = (float(table[lost] / table.sum()) for table in (counts, self._labels))
        return f"has found nearly no {self._names[lost]}: {share:.1%} of its boxes, {of_labels:.1%} of the labels"


def moved(thresholds: Tensor, boxes: Tensor, wanted: Tensor, lowest: float, highest: Tensor) -> Tensor:
    """tau of each class, (C,), a STEP lower where a teacher has found fewer boxes than are ``wanted``, else one higher,
    between ``lowest`` and ``highest``, (C,). A class of which fewer than ENOUGH are wanted keeps its own.

    So the boxes of a photograph come to be of the classes that labels are of (LabelMatch, arXiv 2206.06608).
    """
    step = torch.where(boxes < wanted, -STEP, STEP)
    step = torch.where(wanted >= ENOUGH, step, 0.0).to(thresholds)
    return torch.minimum((thresholds + step).clamp(min=lowest), highest)


def lost_class(boxes: Tensor, labels: Tensor) -> int:
    """Of counts by class, (C,): the class that has least of what its share among labels lets expect, if that is less
    than LOST times that; -1 for none, and where fewer than ENOUGH are expected."""
    expected = boxes.sum() * labels / labels.sum().clamp(min=1)
    share = torch.where(expected >= ENOUGH, boxes / expected.clamp(min=1), torch.inf)
    least = int(share.argmin())
    return least if share[least] < LOST else -1


@STEP_HOOK_REGISTRY.register()
def follow_teacher(trainer: DefaultTrainer) -> FollowTeacher | None:
    """Of a TeacherDetector."""
    model = unwrap(trainer.model)
    return FollowTeacher(model, trainer.cfg) if isinstance(model, TeacherDetector) else None
