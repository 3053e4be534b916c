"""Steps as a training takes them, on this process's share of the batches; importable from child processes."""

from types import SimpleNamespace

import torch
from tiny import freeze_batch_norm

from revisit.engine.train_step import TrainStep

from detectron2.config import CfgNode
from detectron2.engine.defaults import create_ddp_model
from detectron2.utils import comm
from detectron2.utils.events import EventStorage


def sgd(model: torch.nn.Module, **options: object) -> torch.optim.SGD:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, **options)


def take_steps(
    model: torch.nn.Module, cfg: CfgNode, batches: list[dict], *, frozen_bn: bool = True, **how: object
) -> dict:
    """SGD on whole batches by a TrainStep, with the method's hooks and one step an epoch; losses and gradients of
    every step, and the model's tensors at the end."""
    rank, processes = comm.get_rank(), comm.get_world_size()
    mine = [{name: value.chunk(processes)[rank] for name, value in batch.items()} for batch in batches]
    step = TrainStep(create_ddp_model(model, broadcast_buffers=False, device_ids=None), mine, sgd(model), **how)
    if frozen_bn:
        freeze_batch_norm(model)  # the step has put all of it into training mode
    losses, gradients, hooks = [], [], model.hooks(cfg, iterations_per_epoch=1)
    for iteration in range(len(batches)):
        for hook in hooks:
            hook.trainer = SimpleNamespace(model=model, iter=iteration, max_iter=len(batches))
            hook.before_step()
        with EventStorage(iteration) as storage:
            step.run_step()
        names = (name for name in ("loss_inst", "total_loss") if name in storage.histories())
        losses += [storage.history(name).latest() for name in names]
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        for hook in hooks:
            hook.after_step()
    return {"losses": losses, "gradients": gradients, "model": model.state_dict()}
