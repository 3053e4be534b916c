"""The trainer of detection, semantic segmentation and depth."""

from torch import nn
from torch.utils.data import DataLoader

from revisit.checkpoint.checkpointer import WholeModelCheckpointer
from revisit.data.finetuning.detection_mapper import DetectionMapper
from revisit.data.finetuning.pixel_mapper import PixelMapper, pixel_mapper_of
from revisit.data.loading.finetune_loader import FinetuneLoader
from revisit.data.loading.workers import SignalSafeLoader
from revisit.engine.evaluation_hooks import Evaluation
from revisit.engine.hooks import FreshPreciseBN, LossNormalizers, TrainedStatistics
from revisit.engine.trainer import RevisitTrainer
from revisit.errors import UserError
from revisit.evaluation.registry import EVALUATOR_REGISTRY, evaluator_for
from revisit.keys import PIXELWISE, network_of, with_values
from revisit.modeling.detectors import keep_layouts
from revisit.modeling.distributed import share_state, unwrap
from revisit.modeling.ignoring import ignore_marked

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog, build_detection_test_loader
from detectron2.engine import HookBase, hooks
from detectron2.evaluation import DatasetEvaluator
from fvcore.nn.precise_bn import get_bn_modules


def build_mapper(cfg: CfgNode, is_train: bool) -> PixelMapper | DetectionMapper:
    """Records to inputs of MODEL.META_ARCHITECTURE."""
    mapper_class = pixel_mapper_of(cfg) if cfg.MODEL.META_ARCHITECTURE in PIXELWISE else DetectionMapper
    return mapper_class(cfg, is_train)


class FinetuneTrainer(RevisitTrainer):
    """Finetunes Detectron2's detectors, SemanticSegmentor and DepthEstimator."""

    evaluation_checkpointer = WholeModelCheckpointer

    @classmethod
    def build_model(cls, cfg: CfgNode) -> nn.Module:
        model = super().build_model(cfg)
        ignore_marked(model)
        keep_layouts(model)
        return model

    def build_hooks(self) -> list[HookBase | None]:
        taken = self.statistics_of(self.cfg, self.model)
        return [
            hooks.IterationTimer(),  # first: it takes the time of a step alone
            hooks.LRScheduler(),
            *self.added_hooks(),
            *self.step_hooks(),
            TrainedStatistics(unwrap(self.model)),
            # After all that changes parameters, and before evaluation and checkpoint.
            FreshPreciseBN(*taken, self.cfg.TEST.PRECISE_BN.NUM_ITER) if taken else None,
            LossNormalizers(unwrap(self.model)),
            # The evaluation and what follows from it, before the checkpoint, which holds both.
            Evaluation(self.folder),
            *self.evaluation_hooks(),
            self.checkpoints(),
        ]

    @classmethod
    def statistics_of(cls, cfg: CfgNode, model: nn.Module) -> tuple[nn.Module, FinetuneLoader] | None:
        """For TEST.PRECISE_BN the network that is evaluated, and batches from a loader of its own, whose workers would
        only take memory; None where there is nothing to take."""
        cfg = with_values(cfg, {"DATALOADER.NUM_WORKERS": 0})
        network = network_of(cfg).evaluated(unwrap(model))
        if not cfg.TEST.PRECISE_BN.ENABLED or not get_bn_modules(network):
            return None
        return network, cls.build_train_loader(cfg)

    @classmethod
    def build_train_loader(cls, cfg: CfgNode) -> FinetuneLoader:
        return FinetuneLoader(cfg, build_mapper(cfg, is_train=True))

    @classmethod
    def build_test_loader(cls, cfg: CfgNode, dataset_name: str) -> DataLoader:
        mapper = build_mapper(cfg, is_train=False)
        records_of = getattr(evaluator_for(dataset_name), "records", None)
        if records_of:
            plain = build_detection_test_loader(
                records_of(dataset_name),
                mapper=mapper,
                num_workers=cfg.DATALOADER.NUM_WORKERS,
            )
        else:
            plain = build_detection_test_loader(cfg, dataset_name, mapper=mapper)
        return SignalSafeLoader(
            plain.dataset,
            batch_sampler=plain.batch_sampler,
            collate_fn=plain.collate_fn,
            num_workers=plain.num_workers,
        )

    @classmethod
    def build_evaluator(cls, cfg: CfgNode, dataset_name: str) -> DatasetEvaluator:
        """The one that is registered for the data set's ``evaluator_type``."""
        if evaluator := evaluator_for(dataset_name):
            return evaluator(dataset_name, cfg)
        kind = MetadataCatalog.get(dataset_name).get("evaluator_type")
        types = ", ".join(kind for _, evaluator in EVALUATOR_REGISTRY for kind in evaluator.TYPES)
        raise UserError(f"no evaluator for {dataset_name}: its evaluator_type is {kind}, expected one of {types}")

    @classmethod
    def scores(cls, cfg: CfgNode, model: nn.Module, evaluators: list[DatasetEvaluator] | None) -> dict:
        share_state(model)
        return super(RevisitTrainer, cls).test(cfg, model, evaluators)
