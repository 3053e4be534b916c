"""Copies from the host to a device that the host does not wait for."""

import numpy as np
import torch
from torch import Tensor


def to_device(values: Tensor | np.ndarray, device: torch.device | str) -> Tensor:
    """``values`` on ``device``; a tensor that is there already is returned as it is.

    A GPU copies from pinned memory in the order of its own work, while the host continues. From other memory the host
    would wait until the GPU has finished everything it was given before.
    """
    values = torch.as_tensor(values)
    if values.device.type != "cpu":
        return values.to(device)
    if torch.device(device).type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
