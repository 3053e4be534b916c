"""What of a recipe travels, is kept and is computed, counted on a step without numbers."""

from projects.Planning.step_cost import random_views
from revisit.engine.dry_run import build_meta_model
from revisit.engine.setup import make_config
from revisit.errors import expect
from revisit.keys import Facts, resolve_auto_values
from revisit.modeling.bn_groups import batch_norms, bn_groups
from revisit.modeling.meta_arch.moco import MoCo
from revisit.modeling.meta_arch.pretraining import method_of
from studies.benchmarks.scale_formulas import FLOAT, Sizes

from detectron2.config import CfgNode


def recipe(config_file: str, opts: list[str], processes: int, batch: int, images: int) -> CfgNode:
    """The config with ``batch`` images in each of so many processes, decided for so many ``images``.

    Raises:
        UserError: it is no pretraining with a queue, or its length is not in epochs.
    """
    opts = [*opts, "SOLVER.IMS_PER_BATCH", str(processes * batch)]
    cfg = make_config(config_file, opts, num_processes=processes, for_here=False)
    has_queue = issubclass(method_of(cfg) or object, MoCo)
    trains = f"{config_file} trains {cfg.MODEL.META_ARCHITECTURE}"
    expect(has_queue, f"{trains}: expected a pretraining recipe with a queue")
    in_epochs = cfg.SOLVER.EPOCHS > 0
    expect(in_epochs, f"{config_file} has a length in iterations or minutes: expected one such as SOLVER.EPOCHS 100")
    resolve_auto_values(cfg, Facts(images=images, processes=processes, for_here=False))
    return cfg


def sizes_of(cfg: CfgNode, processes: int) -> Sizes:
    """Of a method with a queue; its network is built without values."""
    batch = cfg.SOLVER.IMS_PER_BATCH // processes
    model = build_meta_model(cfg)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    groups = bn_groups(cfg, batch, model.backbone)
    parts = cfg.SOLVER.ACCUMULATION_STEPS
    positives = parts * (2 if cfg.VIEWS.NUM_SMALL else 1)
    state = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    views = random_views(cfg, 1)
    return Sizes(
        images=batch,
        view_bytes=sum(view.numel() for name, view in views.items() if name != "index"),
        anchor_bytes=views["anchor"].numel(),
        key_bytes=FLOAT * sum(model.queue_widths().values()) * model.keys_of_image(cfg),
        trained=trained,
        channels=sum(layer.num_features for layer in batch_norms(model.backbone)),
        forward_passes=parts + positives,  # the momentum encoder has the anchors alone
        backward_passes=positives,
        pool=groups.processes if groups else 1,
        shuffles=bool(cfg.MOCO.SHUFFLE_BN and groups and groups.count > 1),
        checkpoint_bytes=state + FLOAT * trained,  # SGD keeps one number a parameter
    )
