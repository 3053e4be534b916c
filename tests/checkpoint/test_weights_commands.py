"""Every command of docs/weights.md, and the mistakes a user makes with them."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from checkpoints import backbone_of, moco, random_resnet
from commands import ROOT, one_line_error, run
from runs import assert_same

from revisit.checkpoint.convert import convert
from revisit.checkpoint.foreign_layouts import SOURCES
from revisit.checkpoint.reading import read_checkpoint

DOCUMENT = (ROOT / "docs/weights.md").read_text()


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    """The files that the document's commands start from, all of one ResNet-18."""
    folder = tmp_path_factory.mktemp("output")
    tensors = backbone_of(random_resnet("resnet18"))
    torch.save(moco(tensors), folder / "moco_v2_800ep_pretrain.pth.tar")
    (folder / "knn_moco").mkdir()
    converted = convert(tensors)
    run_of_ours = {f"backbone.{key}": value for key, value in converted.tensors.items()}
    content = {"model": run_of_ours, "flags": converted.flags, "iteration": 9, "trainer": {"seed": 7}}
    torch.save(content, folder / "knn_moco/model_final.pth")
    return folder


def test_docs_commands_in_their_order(output, tmp_path):
    pytest.importorskip("safetensors")
    commands = re.findall(r"^    (python tools/.*)$", DOCUMENT, re.MULTILINE)
    assert len(commands) == 5
    printed = [run(command.replace("output/", f"{output}/"), tmp_path) for command in commands]
    assert "moco layout (MoCo v1 and v2, and the reference code" in printed[0]
    assert "ResNet-18, 120 tensors" in printed[0]
    origin = "moco: moco_v2_800ep_pretrain.pth.tar, epoch 200"
    assert yaml.safe_load((output / "moco.yaml").read_text())["source"] == origin
    assert f"from {origin}" in printed[1]
    assert f"| Trained | {origin};" in (output / "moco_timm.md").read_text()
    assert "timm layout, ResNet-18" in printed[2]  # a source that was named is not explained
    assert "from revisit: model_final.pth, 10 iterations, seed 7" in printed[3]
    assert "torchvision layout (torchvision, timm, VirTex's hub and DenseCL's" in printed[4]
    assert_same(*(read_checkpoint(output / name)["model"] for name in ("moco.pth", "timm.pth")))
    bare = torch.load(output / "knn_moco/resnet50.pth", weights_only=True)
    third = read_checkpoint(output / "knn_moco/backbone.pth")["model"]
    assert {type(value) for value in bare.values()} == {torch.Tensor}
    assert convert(bare).tensors.keys() == third.keys()


def test_docs_name_every_source():
    rows = re.findall(r"^\| `(\w+)`", DOCUMENT, re.MULTILINE)
    assert sorted(rows) == sorted(SOURCES)


def test_help_teaches_and_mistakes_are_told_in_one_line(output, tmp_path):
    assert "python tools/" in run("python tools/export_weights.py --help", tmp_path)
    command = f"python tools/export_weights.py {output}/knn_moco/model_final.pth {tmp_path}/a.bin --to timm"
    assert "expected a name that ends in .pth or .safetensors" in one_line_error(command, tmp_path)
    torch.save({"decoder.weight": torch.zeros(2)}, tmp_path / "in.pth")
    command = f"python tools/export_weights.py {tmp_path}/in.pth {tmp_path}/out.pth --to torchvision"
    line = one_line_error(command, tmp_path)
    assert "no backbone recognised in the checkpoint (it holds decoder.weight)" in line
    assert not (tmp_path / "out.pth").exists() and not (tmp_path / "out.md").exists()
