"""The trainer of every pretraining method."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from revisit.data.loading.loader import ResumableLoader, finish
from revisit.data.sources.records import fingerprint
from revisit.engine.evaluation_hooks import Evaluation, LabelFreeHistory, LabelFreeResults, StartScores
from revisit.engine.hooks import CollapseAlarm, CropFallbacks, ReadErrors, Throughput
from revisit.engine.trainer import RevisitTrainer
from revisit.evaluation.classifiers import fit_linear, knn_classify, top1
from revisit.evaluation.features import Features, extractor
from revisit.evaluation.label_free import LABEL_FREE, label_free_scores, watched_records
from revisit.modeling.distributed import share_state, unwrap
from revisit.modeling.meta_arch.pretraining import metrics_period
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
    prepare = staticmethod(finish)

    @classmethod
    def build_train_loader(cls, cfg: CfgNode) -> ResumableLoader:
        return ResumableLoader(cfg)

    def build_hooks(self) -> list[HookBase | None]:
        cfg, loader = self.cfg, self.data_loader
        batch, workers, period = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_WORKERS, metrics_period(cfg)
        seen = {"size": cfg.KNN_EVAL.IMAGE_SIZE, "neighbors": cfg.KNN_EVAL.NUM_NEIGHBORS}
        how = {"test": list(cfg.DATASETS.TEST), **cfg.KNN_EVAL, **cfg.MONITOR}
        constrained = cfg.VIEWS.NUM_SMALL * (cfg.VIEWS.MIN_OVERLAP > 0) + (cfg.VIEWS.MAX_IOU < 1)  # crops of an image
        return [
            hooks.IterationTimer(),  # first: it takes the time of a step alone
            hooks.LRScheduler(),
            # What a step changes beside parameters (momentum encoder, queue), so that a checkpoint holds one moment.
            *unwrap(self.model).hooks(cfg, loader.iterations_per_epoch),
            CollapseAlarm(period),
            Throughput(batch, workers, period),  # before what is slow, whose time it would count
            ReadErrors(batch, loader.iterations_per_epoch),
            CropFallbacks(batch // comm.get_world_size() * constrained) if constrained else None,
            # The evaluation, and what it leads to, before the checkpoint, which holds all of it.
            Evaluation(self.folder),
            LabelFreeHistory(fingerprint(watched_records(cfg), labels=False), seen) if cfg.MONITOR.IMAGES else None,
            self.best_checkpoint(),  # which has the line above, and may be the last
            StartScores(how, cfg.TEST.EVAL_PERIOD) if cfg.MONITOR.IMAGES or cfg.KNN_EVAL.BANK else None,  # sums up
            self.checkpoints(),
        ]

    def inputs_of(self, iteration: int) -> tuple[dict, list[str]]:
        return self.data_loader.batch_of(iteration), self.data_loader.images_of(iteration)

    @classmethod
    def test(cls, cfg: CfgNode, model: nn.Module, evaluators: None = None) -> LabelFreeResults:
        """With KNN_EVAL.BANK ``knn_top1`` and, with KNN_EVAL.LINEAR, ``linear_top1`` of DATASETS.TEST, percent; with
        MONITOR.IMAGES ``rankme``, ``alignment`` and ``uniformity``.

        Empty on all but the main process. Of the first test set some images' nearest ones are drawn in
        OUTPUT_DIR/neighbours_ITERATION.png; a method may write pictures of its own.
        """
        model, results = unwrap(model), LabelFreeResults()
        if comm.is_main_process():
            model.save_pictures(cfg, get_event_storage().iter)
        if not (cfg.KNN_EVAL.BANK or cfg.MONITOR.IMAGES):
            return results
        share_state(model.backbone)
        extract = extractor(cfg, model)
        if cfg.KNN_EVAL.BANK:
            results.update(_classify(cfg, extract))
        if cfg.MONITOR.IMAGES and (scores := label_free_scores(cfg, model)):
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
    voters = Features(*(each.to(cfg.MODEL.DEVICE) for each in bank))
    suffixes = {name: f"/{name}" if len(tests) > 1 else "" for name in tests}
    for name, test in tests.items():
        if name == cfg.DATASETS.TEST[0]:
            picture = Path(cfg.OUTPUT_DIR) / f"neighbours_{get_event_storage().iter:07d}.png"
            neighbor_gallery(cfg, bank, test, picture)
        vote = partial(knn_classify, voters, k=options.NUM_NEIGHBORS, temperature=options.TEMPERATURE)
        results[f"knn_top1{suffixes[name]}"] = right = top1(vote, test)
        logger.info(f"kNN top-1 of {name}: {right:.2f} % (bank {options.BANK}, {len(bank.rows)} images)")
    if options.LINEAR:
        classifier = fit_linear(voters)
        for name, test in tests.items():
            results[f"linear_top1{suffixes[name]}"] = right = top1(classifier, test)
            logger.info(f"linear top-1 of {name}: {right:.2f} %")
    return results
