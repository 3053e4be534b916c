"""Networks of timm's whose tensors other projects name in a way of their own: those names, as tables."""

import re
from collections.abc import Mapping

from revisit.errors import expect
from revisit.modeling.backbone.description import Tensors

# efficientnet_pytorch, whose blocks are numbered through all stages.
_EFFICIENTNET_MARK = "_conv_stem.weight"
_EFFICIENTNET = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
_FIRST_BLOCK = {  # which expands nothing
    **_SQUEEZE,
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}
_BLOCK = {
    **_SQUEEZE,
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
# DINOv2's, of its largest network.
_PARTS = {".mlp.w12.": ".mlp.fc1.", ".mlp.w3.": ".mlp.fc2."}


def in_library_names(tensors: Tensors, network: str, names: Mapping[str, object]) -> Tensors:
    """Tensors under ``names``, timm's of the ``network`` that was stated, "" for none.

    Raises UserError for efficientnet_pytorch's where it is not one that pads as TensorFlow does, and for DINOv2's with
    registers: nothing in the names would show that another network came of them.
    """
    registers = "DINOv2's register_tokens lie elsewhere in timm's network: use timm's weights, vit_*_reg4_dinov2"
    expect(not any(key.endswith("register_tokens") for key in tensors), registers)
    prefix = next((key.removesuffix(_EFFICIENTNET_MARK) for key in tensors if key.endswith(_EFFICIENTNET_MARK)), None)
    if prefix is not None:
        way_out = "expected --timm tf_efficientnet_b0, or the one of its size"
        pads_so = network.startswith("tf_efficientnet")
        expect(pads_so, f"the tensors are efficientnet_pytorch's, which pads as TensorFlow does: {way_out}")
        modules = {f"{prefix}{theirs}": f"{prefix}{ours}" for theirs, ours in _efficientnet_modules(names).items()}
        return {_of_module(key, modules): value for key, value in tensors.items()}
    return {_of_part(key, names): value for key, value in tensors.items()}


def _efficientnet_modules(names: Mapping[str, object]) -> dict[str, str]:
    numbers = {re.match(r"blocks\.(\d+)\.(\d+)\.", name) for name in names} - {None}
    blocks = sorted({(int(number[1]), int(number[2])) for number in numbers})
    modules = dict(_EFFICIENTNET)
    for index, (stage, block) in enumerate(blocks):
        place = f"blocks.{stage}.{block}"
        inner = _BLOCK if f"{place}.conv_pwl.weight" in names else _FIRST_BLOCK
        modules |= {f"_blocks.{index}.{theirs}": f"{place}.{ours}" for theirs, ours in inner.items()}
    return modules


def _of_module(key: str, modules: Mapping[str, str]) -> str:
    module, _, tensor = key.rpartition(".")
    return f"{modules.get(module, module)}.{tensor}"


def _of_part(key: str, names: Mapping[str, object]) -> str:
    for theirs, ours in _PARTS.items():
        renamed = key.replace(theirs, ours)
        if renamed != key and any(renamed.endswith(name) for name in names):
            return renamed
    return key
