"""A detector and its momentum copy: the student, and the teacher, whose boxes on photographs without labels train it.

The idea is that of Unbiased Teacher (arXiv 2102.09480; docs/method.md: Teacher).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from projects.Teacher.geometry import as_labels
from projects.Teacher.samples import with_unlabelled
from projects.Teacher.tally import Tally
from revisit.compat.private_names import BatchNorm
from revisit.data.sources.inspection import num_classes
from revisit.engine.writers import Writers
from revisit.errors import UserError, expect
from revisit.keys import Architecture, with_values
from revisit.modeling.distributed import gather_rows
from revisit.modeling.momentum import ema_update, momentum_copy
from revisit.modeling.own_numbers import unmoved_numbers

from detectron2.config import CfgNode
from detectron2.evaluation import inference_context
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.structures import Instances
from detectron2.utils.events import EventStorage, get_event_storage

STUDENT = "student."
# From the teacher's boxes: what is an object, and of which class; not where. A cascade has a loss of each stage.
LEARNT = ("loss_rpn_cls", "loss_cls")
_OTHER_HEADS = ("mask_on", "keypoint_on")  # switches of Detectron2's region heads


def detector_of(cfg: CfgNode) -> nn.Module:
    """The network of TEACHER.DETECTOR. Raises UserError where the recipe is one of another network, such as a
    RetinaNet's, whose maps are not those that this one reads."""
    name = cfg.TEACHER.DETECTOR
    try:
        return META_ARCH_REGISTRY.get(name)(with_values(cfg, {"MODEL.META_ARCHITECTURE": name}))
    except KeyError as error:
        roles = (cfg.MODEL.RPN, cfg.MODEL.ROI_HEADS, cfg.MODEL.RETINANET)
        if not any(error.args[0] in role.IN_FEATURES for role in roles):
            raise
        raise UserError(
            f"the recipe has no map {error.args[0]}, which TEACHER.DETECTOR {name} reads: for the recipe of a "
            "RetinaNet add TEACHER.DETECTOR RetinaNet"
        ) from error


@META_ARCH_REGISTRY.register()
class TeacherDetector(nn.Module, Architecture):
    """A student of the meta-architecture TEACHER.DETECTOR, and its average over the iterations, the teacher.

    The teacher's parts have the names that they have in a plain detector: a checkpoint is that detector's, and has the
    student too, under ``student.``. The teacher is evaluated.

    In training ``forward`` takes Detectron2's list of dicts, each with ``unlabelled`` too (``TwoLooks``), and returns
    the student's losses by name: on labels as ever, and after the burn-in ``..._unlabelled``, lambda times those that
    begin as one of LEARNT with the teacher's boxes on ``image`` as labels of ``strong``.
    """

    around = "TEACHER.DETECTOR"
    training_only = (STUDENT,)
    training_samples = staticmethod(with_unlabelled)
    also_reads = (
        "VIEWS.POLICY",
        "VIEWS.GREY_PROBABILITY",
        "VIEWS.BLUR_PROBABILITY",
        "VIEWS.QUARTER_TURNS",
        "VIEWS.CHANNEL_DROPOUT",
    )

    def __init__(self, cfg: CfgNode):
        super().__init__()
        options = cfg.TEACHER
        self.student = detector_of(cfg)
        teacher = momentum_copy(self.student)
        self._teacher = (teacher,)  # its parts belong to this module, under their own names
        for name, part in teacher.named_children():
            self.add_module(name, part)
        self.burn_in, self.momentum, self.weight = options.BURN_IN, options.MOMENTUM, options.WEIGHT
        self.thresholds = thresholds_of(options.THRESHOLD, num_classes(cfg) or 0)
        self.tally = Tally(len(self.thresholds))

    @property
    def teacher(self) -> nn.Module:
        """The average, a plain detector on the student's device."""
        (teacher,) = self._teacher
        return teacher if teacher.device == self.student.device else teacher.to(self.student.device)

    @classmethod
    def evaluated(cls, model: nn.Module) -> nn.Module:
        """The teacher."""
        return model.teacher

    def train(self, mode: bool = True) -> nn.Module:
        """Also of the teacher, whose statistics Detectron2's PreciseBN measures in training mode."""
        super().train(mode)
        (teacher,) = self._teacher
        teacher.train(mode)
        return self

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *args: object, **kwargs: object) -> object:
        """As a module does; of a plain detector's tensors both begin."""
        tensors = dict(state_dict)
        if not any(key.startswith(STUDENT) for key in tensors):
            tensors |= {f"{STUDENT}{key}": value for key, value in state_dict.items()}
        return super().load_state_dict(tensors, *args, **kwargs)

    def forward(self, batch: list[dict]) -> dict[str, Tensor] | list[dict]:
        if not self.training:
            return self.teacher(batch)
        losses = self.student(batch)
        iteration = get_event_storage().iter
        self.tally.add_labels(batch)
        if (iteration + 1) % Writers.PERIOD == 0:
            self.tally.add_agreement(self.confident(batch), batch)
        if iteration < self.burn_in:
            return losses
        photographs = [photograph for sample in batch for photograph in sample["unlabelled"]]
        pseudo_boxes = self.confident(photographs)
        self.tally.add_pseudo_boxes(pseudo_boxes)
        return losses | self.unlabelled_losses(photographs, pseudo_boxes)

    def confident(self, samples: Sequence[dict]) -> list[Instances]:
        """The teacher's boxes of at least tau in the ``image`` of each sample, in its px."""
        with torch.no_grad(), inference_context(self.teacher), boxes_alone(self.teacher):
            outputs = self.teacher([{"image": sample["image"]} for sample in samples])
        return [above(output["instances"], self.thresholds) for output in outputs]

    def unlabelled_losses(self, photographs: Sequence[dict], pseudo_boxes: Sequence[Instances]) -> dict[str, Tensor]:
        """Of the student on ``strong``, where the teacher's boxes in ``image`` are the truth."""
        pairs = zip(photographs, pseudo_boxes, strict=True)
        samples = [{"image": seen["strong"], "instances": as_labels(boxes, seen["moves"])} for seen, boxes in pairs]
        # Detectron2's monitors of a step are those of the labels, and so is what it divides losses by.
        with EventStorage(get_event_storage().iter), unmoved_numbers(self.student), boxes_alone(self.student):
            losses = self.student(samples)
        learnt = {name: loss for name, loss in losses.items() if name.startswith(LEARNT)}
        return {f"{name}_unlabelled": self.weight * loss for name, loss in learnt.items()}

    @torch.no_grad()
    def follow(self, iteration: int) -> None:
        """After an iteration's step the teacher moves towards the student, its statistics of batch norm towards the
        mean of all processes': plain BN takes them on each alone."""
        momentum = self.momentum if iteration >= self.burn_in else 0.0
        ema_update(self.teacher, self.student, momentum)
        if own := _statistics(self.teacher):
            of_students = gather_rows(torch.cat(_statistics(self.student))[None]).mean(dim=0)
            for values, mean in zip(own, of_students.split([len(values) for values in own]), strict=True):
                values.lerp_(mean, 1 - momentum)


def _statistics(network: nn.Module) -> list[Tensor]:
    """The running statistics of each batch norm, (C,) each."""
    layers = [layer for layer in network.modules() if isinstance(layer, BatchNorm) and layer.track_running_stats]
    return [values for layer in layers for values in (layer.running_mean, layer.running_var)]


def thresholds_of(values: Sequence[float], count: int) -> Tensor:
    """tau of each of ``count`` classes, (count,) float32. Raises UserError for neither one value nor one for each."""
    expect(
        len(values) in (1, count),
        f"TEACHER.THRESHOLD has {len(values)} numbers for {count} classes: expected one, or one for each",
    )
    return torch.tensor(values, dtype=torch.float32).expand(count).clone()


def above(boxes: Instances, thresholds: Tensor) -> Instances:
    """The boxes that score at least the threshold of their class, (C,)."""
    limits = thresholds.to(boxes.scores)[boxes.pred_classes]
    return boxes[boxes.scores >= limits]


@contextmanager
def boxes_alone(network: nn.Module) -> Iterator[None]:
    """Within the block a network with region heads has that of boxes only."""
    heads = getattr(network, "roi_heads", None)
    switches = {name: getattr(heads, name) for name in _OTHER_HEADS if hasattr(heads, name)}
    for name in switches:
        setattr(heads, name, False)
    try:
        yield
    finally:
        for name, value in switches.items():
            setattr(heads, name, value)
