"""By what torch simulates a step, with shapes and without numbers: names that it keeps to itself."""

from typing import Any

import torch
import torch.distributed._tools.fake_collectives  # without it torch 2.10 simulates no collective
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["FakeStore", "FakeTensorMode", "TorchDispatchMode", "tree_leaves", "unset_fake_temporarily"]

CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
CPU_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def storage_key(tensor: Tensor | UntypedStorage) -> int:
    """What tensors of the same memory have in common while it lives."""
    storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else tensor
    return storage._cdata


def is_mutable(operation: Any) -> bool:
    """Whether an operation of torch's changes one of its arguments."""
    return operation._schema.is_mutable


def name_of(operation: Any) -> str:
    """Of an operation of torch's: ``aten::empty``."""
    return operation._schema.name
