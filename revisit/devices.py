"""What the host gives a device, without waiting for it."""

import numpy as np
import torch
from torch import Tensor


def send(values: Tensor | np.ndarray, device: torch.device | str) -> Tensor:
    """``values`` on ``device``: themselves where they are there already.

    A GPU copies them when it comes to it. From memory that is not pinned it would not: the host would wait until the
    GPU has done all that it was given before.
    """
    values = torch.as_tensor(values)
    if values.device.type != "cpu":
        return values.to(device)
    return (values.pin_memory() if torch.device(device).type == "cuda" else values).to(device, non_blocking=True)
