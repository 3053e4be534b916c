"""``timm:NAME``, with timm's own functions and random weights in place of the hub's."""

from pathlib import Path

import pytest
import timm
import torch
from trees import refusal

import revisit
from revisit.checkpoint.flags import IMAGENET, read_flags
from revisit.checkpoint.named_weights import weights_file

create_model = timm.create_model


@pytest.fixture
def fetched(tmp_path, monkeypatch) -> list[str]:
    """Names of the weights that are asked of the hub."""
    names = []

    def create(name: str, pretrained: bool = False, **options: object) -> torch.nn.Module:
        if pretrained:
            names.append(name)
            torch.manual_seed(0)
        return create_model(name, **options)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timm, "create_model", create)
    return names


def test_a_name_gives_timms_features_and_is_fetched_once(fetched):
    name = "tf_efficientnet_lite0"
    flags, source, licence = read_flags(weights_file(f"timm:{name}"))
    assert flags["MODEL.TIMM.NAME"] == name and flags["MODEL.PIXEL_MEAN"] == [127.5] * 3
    assert source == f"timm: {name}.in1k of timm {timm.__version__}" and licence == "apache-2.0"
    backbone = revisit.load_backbone(f"timm:{name}.in1k")
    assert fetched == [f"{name}.in1k"]
    torch.manual_seed(0)
    network = create_model(name).eval().to(memory_format=torch.channels_last)  # as revisit's lies: equal to the bit
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        expected = network.forward_intermediates((images - 127.5) / 127.5, intermediates_only=True)[-1]
        assert torch.equal(list(backbone(images).values())[-1], expected)


def test_a_plain_resnet_becomes_detectron2s(fetched):
    flags = read_flags(weights_file("timm:resnet18"))[0]
    assert flags["MODEL.RESNETS.DEPTH"] == 18 and "MODEL.TIMM.NAME" not in flags
    assert flags["MODEL.PIXEL_MEAN"] == IMAGENET["MODEL.PIXEL_MEAN"] and fetched == ["resnet18.a1_in1k"]


def test_names_without_weights_are_refused_with_those_that_have(fetched):
    assert "did you mean" in refusal(weights_file, "timm:resnet18x")
    assert "expected resnet18.a1_in1k, resnet18.a2_in1k" in refusal(weights_file, "timm:resnet18.none")
    assert "timm.list_pretrained()" in refusal(weights_file, "timm:../x") and not fetched


def test_a_hub_out_of_reach_is_one_line(tmp_path, monkeypatch):
    def out_of_reach(name: str, pretrained: bool) -> None:
        raise OSError("no network\nfor several reasons")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timm, "create_model", out_of_reach)
    message = refusal(weights_file, "timm:resnet18")
    assert "timm:resnet18.a1_in1k cannot be fetched (no network" in message
    assert not list(Path(tmp_path).rglob("*.pth"))
