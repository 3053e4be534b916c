"""Steps as a training takes them, on this process's share of the batches; importable from child processes."""

from collections.abc import Callable
from pathlib import Path

import torch

from revisit.modeling.distributed import gather_rows

from detectron2.engine.defaults import create_ddp_model
from detectron2.utils import comm
from detectron2.utils.events import EventStorage


def take_steps(model: torch.nn.Module, batch_of: Callable[[int], dict], steps: int, output: Path) -> None:
    """SGD on whole batches; writes ``output``/RANK.pth with losses and gradients of every step, and the queue."""
    rank, processes = comm.get_rank(), comm.get_world_size()
    wrapped = create_ddp_model(model, broadcast_buffers=False, device_ids=None)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    history = []
    for iteration in range(steps):
        with EventStorage(iteration):
            losses = wrapped({name: views.chunk(processes)[rank] for name, views in batch_of(iteration).items()})
        optimizer.zero_grad()
        sum(losses.values()).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        optimizer.step()
        model.update_momentum_encoder()
        model.enqueue_pending_keys()
        everywhere = gather_rows(torch.stack(list(losses.values())).detach()[None])
        history.append({"losses": everywhere.mean(0), "gradient": gradient.clone()})
    torch.save({"history": history, "queue": model.queue.state_dict()}, output / f"{rank}.pth")
