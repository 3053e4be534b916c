"""The trainer of every pretraining method."""

import logging
from collections.abc import Callable, Collection
from pathlib import Path

from torch import nn

from revisit.data.loader import ResumableLoader
from revisit.engine.hooks import CollapseAlarm, CropFallbacks, EvaluationAfterSuccess, ReadErrors, Throughput
from revisit.engine.label_free_history import LabelFreeHistory, LabelFreeResults
from revisit.engine.start_scores import StartScores
from revisit.engine.trainer import RevisitTrainer
from revisit.evaluation.classifiers import fit_linear, knn_top1, linear_top1
from revisit.evaluation.features import Features, extractor
from revisit.evaluation.label_free import LABEL_FREE, label_free_scores
from revisit.modeling.distributed import share_state, unwrap
from revisit.modeling.meta_arch.pretraining import method_of, metrics_period
from revisit.viz.pretraining_sheets import neighbor_gallery

from detectron2.config import CfgNode
from detectron2.engine import HookBase, hooks
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage

logger = logging.getLogger(__name__)


class PretrainTrainer(RevisitTrainer):
    """Trains a ``Pretraining`` method; its evaluation classifies DATASETS.TEST with KNN_EVAL.BANK, and judges the
    features of MONITOR.IMAGES without labels."""

    metrics_period = staticmethod(metrics_period)
    other_world_size = "the order of the data continues; BN that sees whole passes sees other shares of a batch"

    @classmethod
    def build_train_loader(cls, cfg: CfgNode) -> ResumableLoader:
        loader = ResumableLoader(cfg)
        if advice := method_of(cfg).advice(cfg, loader.num_images):
            logger.warning(advice)
        return loader

    def build_hooks(self) -> list[HookBase]:
        """The method's hooks directly after LRScheduler, then those that watch the run; one watches its evaluations."""
        cfg, built = self.cfg, super().build_hooks()
        solver, loader, period = cfg.SOLVER, self.data_loader, metrics_period(cfg)
        ours = [
            *unwrap(self.model).hooks(cfg, loader.iterations_per_epoch),
            CollapseAlarm(period),
            Throughput(solver.IMS_PER_BATCH, cfg.DATALOADER.NUM_WORKERS, period),
            ReadErrors(solver.IMS_PER_BATCH, loader.iterations_per_epoch),
        ]
        constrained = cfg.VIEWS.NUM_SMALL * (cfg.VIEWS.MIN_OVERLAP > 0) + (cfg.VIEWS.MAX_IOU < 1)
        if constrained:
            ours.append(CropFallbacks(solver.IMS_PER_BATCH // comm.get_world_size() * constrained))
        after_evaluation = 1 + next(i for i, hook in enumerate(built) if isinstance(hook, EvaluationAfterSuccess))
        if cfg.MONITOR.IMAGES:
            built.insert(after_evaluation, LabelFreeHistory(cfg))
        if cfg.MONITOR.IMAGES or cfg.KNN_EVAL.BANK:
            built.insert(after_evaluation, StartScores(cfg))
        after_lr = 1 + next(i for i, hook in enumerate(built) if isinstance(hook, hooks.LRScheduler))
        return [*built[:after_lr], *ours, *built[after_lr:]]

    def resume_or_load(self, resume: bool = True, accepted: Collection[str] = ()) -> None:
        super().resume_or_load(resume, accepted)
        if self.start_iter:
            epoch, step = divmod(self.start_iter, self.data_loader.iterations_per_epoch)
            logger.info(f"resuming at iteration {self.start_iter}: epoch {epoch}, batch {step}")

    def inputs_of(self, iteration: int) -> tuple[dict, list[str]]:
        return self.data_loader.batch_of(iteration), self.data_loader.images_of(iteration)

    @classmethod
    def test(cls, cfg: CfgNode, model: nn.Module, evaluators: None = None) -> LabelFreeResults:
        """With KNN_EVAL.BANK ``knn_top1`` and, with KNN_EVAL.LINEAR, ``linear_top1`` of DATASETS.TEST, percent; with
        MONITOR.IMAGES ``rankme``, ``alignment`` and ``uniformity``.

        Empty on all but the main process. Of the first test set some images' nearest ones are drawn in
        OUTPUT_DIR/neighbours_ITERATION.png.
        """
        model, results = unwrap(model), LabelFreeResults()
        if not (cfg.KNN_EVAL.BANK or cfg.MONITOR.IMAGES):
            return results
        share_state(model.backbone)
        extract = extractor(cfg, model)
        if cfg.KNN_EVAL.BANK:
            results.update(_classify(cfg, extract))
        if cfg.MONITOR.IMAGES and (scores := label_free_scores(cfg, model, extract)):
            results.label_free = scores
            results.update({name: getattr(scores, name) for name in LABEL_FREE})
            logger.info(
                f"{len(scores.neighbors)} images of {cfg.MONITOR.IMAGES}: RankMe {scores.rankme:.1f} of "
                f"{model.feature_dim}, alignment {scores.alignment:.3f}, uniformity {scores.uniformity:.3f}"
            )
        return results


def _classify(cfg: CfgNode, extract: Callable[[str], Features | None]) -> dict[str, float]:
    """Scores of DATASETS.TEST, by KNN_EVAL.BANK; none but on the main process."""
    options, results = cfg.KNN_EVAL, {}
    bank = extract(options.BANK)
    tests = {name: extract(name) for name in cfg.DATASETS.TEST}
    if not bank:
        return results
    suffixes = {name: f"/{name}" if len(tests) > 1 else "" for name in tests}
    for name, test in tests.items():
        if name == cfg.DATASETS.TEST[0]:
            picture = Path(cfg.OUTPUT_DIR) / f"neighbours_{get_event_storage().iter:07d}.png"
            neighbor_gallery(cfg, bank, test, picture)
        top1 = knn_top1(bank, test, k=options.NUM_NEIGHBORS, temperature=options.TEMPERATURE)
        results[f"knn_top1{suffixes[name]}"] = top1
        logger.info(f"kNN top-1 of {name}: {top1:.2f} % (bank {options.BANK}, {len(bank.rows)} images)")
    if options.LINEAR:
        classifier = fit_linear(bank)
        for name, test in tests.items():
            results[f"linear_top1{suffixes[name]}"] = top1 = linear_top1(classifier, test)
            logger.info(f"linear top-1 of {name}: {top1:.2f} %")
    return results
