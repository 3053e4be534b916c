"""The trainer of every pretraining method."""

import logging
from collections.abc import Sequence

from torch import nn

from revisit.data.loading.loader import ResumableLoader, finish
from revisit.engine.evaluation_hooks import Evaluation
from revisit.engine.hooks import CropFallbacks, ReadErrors
from revisit.engine.same_experiment import may_change
from revisit.engine.trainer import RevisitTrainer
from revisit.evaluation.features import extractor
from revisit.evaluation.registry import PretrainingEvaluation, evaluations_on
from revisit.keys import dotted_keys
from revisit.modeling.distributed import share_state, unwrap
from revisit.modeling.meta_arch.pretraining import metrics_period

from detectron2.config import CfgNode
from detectron2.engine import HookBase, hooks
from detectron2.utils import comm

logger = logging.getLogger(__name__)


class PretrainTrainer(RevisitTrainer):
    """Trains a ``Pretraining`` method, and judges it by the registered evaluations that are on."""

    metrics_period = staticmethod(metrics_period)
    prepare = staticmethod(finish)

    @classmethod
    def build_train_loader(cls, cfg: CfgNode) -> ResumableLoader:
        return ResumableLoader(cfg)

    def build_hooks(self) -> list[HookBase | None]:
        cfg = self.cfg
        loader = self.data_loader
        batch = cfg.SOLVER.IMS_PER_BATCH
        self.evaluators = build_evaluations(cfg)
        constrained = cfg.VIEWS.NUM_SMALL * (cfg.VIEWS.MIN_OVERLAP > 0) + (cfg.VIEWS.MAX_IOU < 1)  # crops of an image
        return [
            hooks.IterationTimer(),  # first: it takes the time of a step alone
            hooks.LRScheduler(),
            # What else a step changes (momentum encoder, queue), so that a checkpoint holds one moment.
            *unwrap(self.model).hooks(cfg, loader.iterations_per_epoch),
            *self.step_hooks(),  # before what is slow, whose time they would count
            ReadErrors(batch, loader.iterations_per_epoch, sum(part["count"] for part in loader.images)),
            CropFallbacks(batch // comm.get_world_size() * constrained) if constrained else None,
            *self.added_hooks(),
            # The evaluation and what follows from it, before the checkpoint, which holds both.
            Evaluation(self.folder),
            *(hook for evaluation in self.evaluators for hook in evaluation.hooks()),
            *self.evaluation_hooks(),
            self.checkpoints(),
        ]

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        images = sum(part["count"] for part in state_dict["images"])
        self._warn_of_epochs(images // state_dict["config"]["SOLVER.IMS_PER_BATCH"])

    def _warn_of_epochs(self, iterations_before: int) -> None:
        """Where an epoch had so many iterations and has others by now, as with another batch that was accepted."""
        done = self.iter + 1
        iterations = self.data_loader.iterations_per_epoch
        before = done // iterations_before
        now = done // iterations
        if before == now:
            return
        values = dotted_keys(self.cfg).items()
        waits = [f"{key} {value}" for key, value in values if "EPOCH" in key and not may_change(self.cfg, key)]
        affected = ", ".join(["the order of images", "their views", *waits])
        change = "; a wait that was over may begin again: change its key too, with --accept" if waits else ""
        logger.warning(
            f"the {done} iterations that are done count as {now} epochs of {iterations}, no longer as {before} of "
            f"{iterations_before}: so do {affected}{change}"
        )

    def inputs_of(self, iteration: int) -> tuple[dict, list[str]]:
        return self.data_loader.batch_of(iteration), self.data_loader.images_of(iteration)

    @classmethod
    def scores(
        cls, cfg: CfgNode, model: nn.Module, evaluators: Sequence[PretrainingEvaluation] | None
    ) -> dict[str, float]:
        model = unwrap(model)
        results = {}
        share_state(model.backbone)
        features_of = extractor(cfg, model)
        for evaluation in build_evaluations(cfg) if evaluators is None else evaluators:
            results.update(evaluation.evaluate(model, features_of))
        return results


def build_evaluations(cfg: CfgNode) -> list[PretrainingEvaluation]:
    """One of each evaluation that is on."""
    return [evaluation(cfg) for evaluation in evaluations_on(cfg)]
