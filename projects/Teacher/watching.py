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
REST = 0.1  # of the share that the other classes have among labels
ENOUGH = 50  # boxes, to judge shares by

logger = logging.getLogger(__name__)


class FollowTeacher(HookBase):
    """Moves the teacher after each step, logs ``teacher/...`` every Writers.PERIOD iterations and before an evaluation,
    and warns, once, when for LONG the teacher has found nothing, or one class has taken all.

    Checkpoints hold the counts since the last log and what the photographs are.
    """

    def __init__(self, model: TeacherDetector, cfg: CfgNode):
        self._model = model
        self._names = names_or_numbers(names_of(cfg.DATASETS.TRAIN[0]), len(model.thresholds))
        self._photographs = fingerprint(unlabelled_records(cfg), labels=False)
        self._table, self._count = model.tally.take()
        self._labels = self._table[LABELS].clone()  # of the whole run
        self._wrong_for, self._warned = 0, False  # iterations, and whether it was logged

    def before_train(self) -> None:
        length, burn_in = self.trainer.max_iter, self._model.burn_in
        expect(burn_in < length, f"TEACHER.BURN_IN {burn_in} of a run of {length}: expected less; -1 is a fifth of it")

    def state_dict(self) -> dict:
        return {
            "table": self._table,
            "count": self._count,
            "labels": self._labels,
            "wrong_for": self._wrong_for,
            "warned": self._warned,
            "photographs": self._photographs,
        }

    def load_state_dict(self, state: dict) -> None:
        changed = changes(state["photographs"], self._photographs, times=False)
        others = f"cannot resume: DATASETS.UNLABELLED has other photographs than before, by {', '.join(changed)}"
        expect(not changed, others)
        self._table, self._count, self._labels = state["table"], state["count"], state["labels"]
        self._wrong_for, self._warned = state["wrong_for"], state["warned"]

    def after_step(self) -> None:
        iteration = self.trainer.iter
        self._model.follow(iteration)
        table, count = self._model.tally.take()
        self._table = self._table + table
        self._count += count
        if (iteration + 1) % Writers.PERIOD == 0:
            self._log(iteration)

    def _log(self, iteration: int) -> None:
        """On all processes: the numbers of all of them."""
        tallies = comm.all_gather((self._table, self._count))
        table = sum(table for table, _ in tallies)
        count = sum(count for _, count in tallies)
        self._table, self._count = torch.zeros_like(self._table), 0
        self.trainer.storage.put_scalars(smoothing_hint=False, **scores_of(table, count, self._names))
        self._labels = self._labels + table[LABELS]
        problem = self._problem(table[PSEUDO], count)
        self._wrong_for = self._wrong_for + Writers.PERIOD if problem else 0
        if self._wrong_for >= LONG and not self._warned:
            self._warned = True
            advice = "Look at OUTPUT_DIR/teacher; try another TEACHER.THRESHOLD or a longer TEACHER.BURN_IN"
            logger.warning(f"for {LONG} iterations the teacher {problem}. {advice} (projects/Teacher/README.md)")

    def _problem(self, counts: Tensor, photographs: int) -> str:
        """What is wrong with the boxes' counts by class, (C,), in words; "" for nothing."""
        if counts.sum() < FEW * photographs:
            return "has found next to nothing that scores TEACHER.THRESHOLD"
        taker = class_that_takes_all(counts, self._labels)
        return "" if taker < 0 else f"has found nearly nothing but {self._names[taker]}, unlike the labels"


def class_that_takes_all(boxes: Tensor, labels: Tensor) -> int:
    """Of counts by class, (C,): the class of nearly all boxes, where all other classes together have less than a tenth
    of the share that they have among labels; -1 for none, or for too few boxes."""
    total = boxes.sum()
    if total < ENOUGH:
        return -1
    most = int(boxes.argmax())
    rest = 1 - boxes[most] / total
    rest_of_labels = 1 - labels[most] / labels.sum()
    return most if rest < REST * rest_of_labels else -1


@STEP_HOOK_REGISTRY.register()
def follow_teacher(trainer: DefaultTrainer) -> FollowTeacher | None:
    """Of a TeacherDetector."""
    model = unwrap(trainer.model)
    return FollowTeacher(model, trainer.cfg) if isinstance(model, TeacherDetector) else None
