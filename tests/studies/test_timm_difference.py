"""What a converted network computes, against timm."""

import timm
import torch
from commands import run

from studies.verify.timm_difference import difference


def test_features_of_a_converted_network_are_timms(tmp_path, toy_root):
    torch.manual_seed(0)
    tensors = timm.create_model("tf_efficientnet_lite0").state_dict()
    torch.save(tensors, tmp_path / "lite0.pth")
    words = "--source timm --timm tf_efficientnet_lite0"
    run(f"python tools/convert_to_d2.py {tmp_path}/lite0.pth {tmp_path}/backbone.pth {words}", toy_root)
    assert difference(str(tmp_path / "backbone.pth"), str(tmp_path / "lite0.pth")) == 0.0
    tensors["conv_stem.weight"] *= 2
    torch.save(tensors, tmp_path / "other.pth")
    assert difference(str(tmp_path / "backbone.pth"), str(tmp_path / "other.pth")) > 0
