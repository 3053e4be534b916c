"""What a trainer learns by: SOLVER.OPTIMIZER over Detectron2's parameter groups, and the learning rate over the run."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from torch import nn, optim

from revisit.engine.optimizers import OPTIMIZER_REGISTRY
from revisit.engine.schedules import build_schedule
from revisit.errors import expect
from revisit.modeling.meta_arch.pretraining import Pretraining, method_of

from detectron2.config import CfgNode
from detectron2.solver import LRMultiplier
from detectron2.solver.build import get_default_optimizer_params, maybe_add_gradient_clipping
from fvcore.common.param_scheduler import CompositeParamScheduler, ConstantParamScheduler


def build_optimizer(cfg: CfgNode, model: nn.Module) -> optim.Optimizer:
    """SOLVER.OPTIMIZER over Detectron2's parameter groups, SOLVER.WEIGHT_DECAY_NORM and the like included.

    Each group also has the ``names`` of its parameters in the model.

    Raises:
        UserError: the model has nothing to train, or a package is missing.
    """
    solver = cfg.SOLVER
    groups = get_default_optimizer_params(
        model,
        base_lr=solver.BASE_LR,
        weight_decay=solver.WEIGHT_DECAY,
        weight_decay_norm=solver.WEIGHT_DECAY_NORM,
        bias_lr_factor=solver.BIAS_LR_FACTOR,
        weight_decay_bias=solver.WEIGHT_DECAY_BIAS,
    )
    frozen = f"MODEL.BACKBONE.FREEZE_AT {cfg.MODEL.BACKBONE.FREEZE_AT}"
    expect(groups, f"{frozen} leaves {cfg.MODEL.META_ARCHITECTURE} nothing to train: expected a smaller number")
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    for group in groups:
        group["names"] = [name_of[parameter] for parameter in group["params"]]
    factors = model.rate_factors() if isinstance(model, Pretraining) else {}
    groups = list(with_factors(groups, factors))
    optimizer = OPTIMIZER_REGISTRY.get(solver.OPTIMIZER)(cfg, groups)
    return maybe_add_gradient_clipping(cfg, optimizer)


def with_factors(groups: list[dict], factors: Mapping[str, float]) -> Iterator[dict]:
    """Parameter groups, parted by what the rate of a parameter is multiplied by: 1 where ``factors`` lack its name."""
    for group in groups:
        parts = defaultdict(list)
        for name, parameter in zip(group["names"], group["params"], strict=True):
            parts[factors.get(name, 1.0)].append((name, parameter))
        for factor, pairs in parts.items():
            names, parameters = map(list, zip(*pairs, strict=True))
            yield group | {"names": names, "params": parameters, "lr": factor * group["lr"]}


def build_lr_scheduler(cfg: CfgNode, optimizer: optim.Optimizer) -> LRMultiplier:
    """SOLVER.LR_SCHEDULER_NAME over the run.

    A method may let the rate be 0 for some iterations; the whole schedule, its warm-up included, comes after them.
    """
    method = method_of(cfg)
    length = cfg.SOLVER.MAX_ITER
    wait = method.iterations_before_learning(cfg) if method else 0
    schedule = build_schedule(cfg, length - wait)
    if wait:
        parts = [ConstantParamScheduler(0.0), schedule]
        schedule = CompositeParamScheduler(parts, [wait / length, 1 - wait / length], ["fixed", "rescaled"])
    return LRMultiplier(optimizer, schedule, length)
