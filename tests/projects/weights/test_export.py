"""Weights for other libraries, every command of docs/weights.md, and the mistakes a user makes with them."""

import hashlib
import pickle
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import timm
import torch
import yaml
from checkpoints import RESNET18_FLAGS, backbone_of, moco, noise, random_resnet, run_checkpoint, under, write_converted
from commands import ROOT, one_line_error, run
from PIL import Image
from runs import assert_same
from trees import refused

from projects.Weights.card_flags import flags_on_card
from projects.Weights.export import as_card_says, check_place_of_card, library_tensors, model_card
from revisit.checkpoint.backbone_file import load_backbone, write_tensors
from revisit.checkpoint.convert import BackboneWeights, convert, stated_flags
from revisit.checkpoint.flags import flags_path, flags_to_config
from revisit.checkpoint.reading import read_checkpoint
from revisit.checkpoint.sources import source_layouts
from revisit.modeling.backbone.resnet import ResNetDescription

# A ready environment (PYTHON=...) may do without it.
NEEDS_SAFETENSORS = pytest.mark.skipif(find_spec("safetensors") is None, reason="safetensors is not installed")


LIBRARIES = ("torchvision", "timm")


def weights_under(flags: dict, tensors: dict | None = None, origin: str = "") -> BackboneWeights:
    return BackboneWeights(tensors or {}, {**RESNET18_FLAGS, **flags}, ResNetDescription(), origin)


def snippets(card: str) -> dict[str, str]:
    """The card's code by the library that it is for."""
    found = re.findall(r"In (torchvision|timm).*?```python\n(.*?)```", card, re.DOTALL)
    assert len(found) == 2
    return dict(found)


@pytest.mark.parametrize("suffix", [".pth", pytest.param(".safetensors", marks=NEEDS_SAFETENSORS)])
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnext50_32x4d"])
@torch.no_grad()
def test_export_then_conversion_is_the_identity_and_the_snippets_run(name, suffix, tmp_path, monkeypatch):
    resnet, weights = random_resnet(name), tmp_path / f"exported{suffix}"
    backbone = load_backbone(write_converted(resnet.state_dict(), tmp_path / "backbone.pth"))
    write_tensors(library_tensors(backbone, "torchvision"), weights)

    exported = read_checkpoint(weights)
    assert_same(exported, backbone_of(resnet))
    assert_same(convert(exported)[:2], backbone[:2])

    monkeypatch.chdir(tmp_path)
    resnet.fc = torch.nn.Identity()
    x = torch.randn(1, 3, 64, 64)
    expected = resnet(x)
    for code in snippets(model_card(backbone, weights, "torchvision")).values():
        names: dict[str, object] = {}
        exec(code, names)
        assert (names["model"](x) - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("origin", "licence"),
    [
        ("moco: moco_v2.pth.tar", "CC BY-NC 4.0, non-commercial"),
        ("revisit: a.pth, MoCo, seed 1", "unknown: as no"),
        ("", ""),
    ]
    + [("revisit: a.pth", "")],
)
def test_origin_and_licence_come_back_by_the_card_of_the_very_weights(origin, licence, tmp_path):
    file = tmp_path / "a.pth"
    file.write_bytes(b"weights")
    backbone = weights_under({}, {"res2.0.conv1.weight": torch.zeros(1)}, origin)._replace(licence=licence)
    file.with_suffix(".md").write_text(model_card(backbone, file, "timm"))
    found = as_card_says(weights_under({}, origin="torchvision: a.pth"), file)
    assert (found.origin, found.licence) == (origin or "torchvision: a.pth", licence)
    file.write_bytes(b"others")
    assert as_card_says(weights_under({}, origin="torchvision: a.pth"), file).origin == "torchvision: a.pth"


PIXELS = {"MODEL.PIXEL_MEAN": [90.0, 80.0, 70.0], "MODEL.PIXEL_STD": [50.0, 40.0, 30.5]}


@pytest.mark.parametrize(
    "pixels",
    [
        PIXELS,
        {**PIXELS, "INPUT.BIT_DEPTH": 12},
        {**PIXELS, "INPUT.RANGE": [[0.0, 3000.0], [0.0, 4000.125], [-5.0, 5.0]]},
        {**PIXELS, "INPUT.CHANNELS": ["nir", "a --> b", "red"], "INPUT.RANGE": [[0.0, 3000.0]] * 3},
    ],
)
@pytest.mark.parametrize("is_folded", [False, True])
def test_flags_come_back_by_the_card_of_the_very_weights(pixels, is_folded, tmp_path):
    flags = {**RESNET18_FLAGS, **pixels}
    tensors = backbone_of_flags(flags, is_folded)
    backbone = BackboneWeights(tensors, flags, ResNetDescription(), "revisit: a.pth")
    file = tmp_path / "a.pth"
    write_tensors(library_tensors(backbone, "timm"), file)
    card = file.with_suffix(".md")
    card.write_text(model_card(backbone, file, "timm"))
    checkpoint = read_checkpoint(file)
    back = convert(checkpoint, stated=stated_flags(file, checkpoint))
    assert back.flags == flags | (ResNetDescription.FOLDED if is_folded else {})
    assert_same(back.tensors, tensors)
    assert load_backbone(file).flags == flags
    card.write_text(card.read_text().replace(hashlib.sha256(file.read_bytes()).hexdigest(), 64 * "0"))
    assert load_backbone(file).flags == RESNET18_FLAGS


def backbone_of_flags(flags: dict, is_folded: bool) -> dict:
    tensors = ResNetDescription().build(flags_to_config(flags)).state_dict()
    return {key: value if is_folded or "running_mean" not in key else value + 0.5 for key, value in tensors.items()}


def test_a_card_of_photographs_says_which_values_become_0_and_1(tmp_path):
    (tmp_path / "a.pth").write_bytes(b"weights")
    for ranges, shown in (([[12.0, 3000.0]], 3 * [(12, 3000)]), ([[0.0, 9.0], [1.0, 8.0], [2.0, 7.0]],) * 2):
        card = model_card(weights_under({"INPUT.RANGE": ranges}), tmp_path / "a.pth", "timm")
        names = zip(("red", "green", "blue"), shown, strict=True)
        assert ", ".join(f"{name} ({low:g} to {high:g})" for name, (low, high) in names) + " in this order" in card


@pytest.mark.parametrize("line", ['{"IMPORTS": ["os"]}', '{"MODEL.PIXEL_MEAN": }', '{"MODEL.WEIGHTS": "http://a.b/c"}'])
def test_a_card_that_says_more_than_flags_is_refused(line, tmp_path):
    (tmp_path / "a.pth").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    (tmp_path / "a.md").write_text(f"{digest}\n<!-- flags {line} -->\n")
    refused(r"a\.md", flags_on_card, tmp_path / "a.pth")


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_card_says_what_the_weights_are(library, tmp_path):
    flags = {"MODEL.PIXEL_MEAN": [127.5, 51, 0.0]}
    tensors = {"res2.0.conv1.weight": torch.zeros(1_200_000)}
    backbone = weights_under(flags, tensors, "revisit: model_final.pth, MoCo, seed 1")
    (tmp_path / "r18.safetensors").write_bytes(b"weights")
    card = model_card(backbone, tmp_path / "r18.safetensors", library)
    assert card.startswith("# r18.safetensors\n") and str(tmp_path) not in card
    for part in (
        f"backbone of a ResNet-18 for {library} and ",
        "1 tensors, 1.2 million parameters",
        "512 numbers",
        "| Trained | revisit: model_final.pth, MoCo, seed 1;",
        "| Input | RGB in this order",
        "0.5, 0.2, 0.0 (127.5, 51, 0.0 of 0..255)",
        "0.229, 0.224, 0.225",
        hashlib.sha256(b"weights").hexdigest(),
        "whoever trained the weights says it",
    ):
        assert part in card, part
    assert next(iter(snippets(card))) == library
    other = model_card(backbone._replace(origin="swav: swav.pth.tar"), tmp_path / "r18.safetensors", library)
    assert "Licence: that under which the weights were published" in other


BOTTLENECK = {"MODEL.RESNETS.DEPTH": 50, "MODEL.RESNETS.RES2_OUT_CHANNELS": 256}
STRIDE_IN_1X1 = {"MODEL.RESNETS.STRIDE_IN_1X1": True}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"MODEL.RESNETS.STEM_OUT_CHANNELS": 8}, "STEM_OUT_CHANNELS"),
        ({"MODEL.RESNETS.STEM_TYPE": "cifar"}, "STEM_TYPE"),
        ({"MODEL.RESNETS.RES2_OUT_CHANNELS": 8}, "RES2_OUT_CHANNELS"),
        ({"INPUT.FORMAT": "BGR"}, "INPUT.FORMAT"),
        ({"MODEL.RESNETS.DEPTH": 50}, "RES2_OUT_CHANNELS"),
        ({**BOTTLENECK, **STRIDE_IN_1X1}, "STRIDE_IN_1X1"),
    ],
)
def test_what_the_libraries_network_cannot_hold_or_would_compute_otherwise_is_refused_by_name(flags, message):
    for library in LIBRARIES:
        refused(message, library_tensors, weights_under(flags), library)
    assert library_tensors(weights_under(STRIDE_IN_1X1), "timm") == {}  # basic blocks have no 1x1


def test_safetensors_say_their_format_which_hugging_faces_readers_demand(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    write_tensors({"weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_run_is_exported_without_its_momentum_encoder_heads_and_queue(tmp_path):
    options = ("MODEL.RESNETS.STEM_OUT_CHANNELS", 64, "MODEL.RESNETS.RES2_OUT_CHANNELS", 64)
    torch.save(
        run_checkpoint(*options, iteration=9, trainer={"seed": 7}, method="MoCo"),
        tmp_path / "model_final.pth",
    )
    backbone = load_backbone(tmp_path / "model_final.pth")
    assert backbone.origin == "revisit: model_final.pth, MoCo, 10 iterations, seed 7"
    keys = random_resnet("resnet18").load_state_dict(library_tensors(backbone, "torchvision"), strict=False)
    assert keys.missing_keys == ["fc.weight", "fc.bias"] and not keys.unexpected_keys


def test_half_precision_and_absent_step_counters_stay_as_they_are(tmp_path):
    tensors = {key: value.half() for key, value in random_resnet("resnet18").state_dict().items() if "num_b" not in key}
    exported = library_tensors(load_backbone(write_converted(tensors, tmp_path / "backbone.pth")), "timm")
    assert {value.dtype for value in exported.values()} == {torch.float16}
    keys = random_resnet("resnet18").load_state_dict(exported, strict=False)
    assert keys.missing_keys == ["fc.weight", "fc.bias"]


def test_weights_without_whole_flags_are_refused(tmp_path):
    path = write_converted(backbone_of(random_resnet("resnet18"), 16), tmp_path / "backbone.pth")
    written = yaml.safe_load(flags_path(path).read_text())
    for config, message in (
        ([1], "flags"),
        ({key: value for key, value in written["config"].items() if key != "INPUT.FORMAT"}, "lack INPUT.FORMAT"),
        ({**written["config"], "MODEL.PIXEL_STD": ["a", 1, 2]}, "MODEL.PIXEL_STD"),
        ({**written["config"], "MODEL.RESNETS.DEPTH": 34}, "no value for res2.2.conv1.weight of a ResNet-34"),
    ):
        flags_path(path).write_text(yaml.safe_dump({"source": "test", "config": config}))
        refused(message, load_backbone, path)
    flags_path(path).unlink()
    refused(r"backbone.pth has no backbone.yaml next to it", load_backbone, path)


DOCUMENT, _ = (ROOT / "docs/weights.md").read_text().split("## Another ResNet\n")


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
    write_detectors(converted, folder)
    vit = timm.create_model("vit_small_patch16_224", num_classes=0)
    for name in ("dino_vits16", "moco_v3_vits"):
        torch.save(vit.state_dict(), folder / f"{name}.pth")
    return folder


def write_detectors(converted: BackboneWeights, folder: Path) -> None:
    """A detector of Detectron2's model zoo, whose batch norm is folded, and one of one's own beside its config."""
    own = {f"backbone.bottom_up.{key}": value for key, value in converted.tensors.items()}
    (folder / "my_detector").mkdir()
    torch.save({"model": own, "iteration": 99}, folder / "my_detector/model_final.pth")
    cfg = flags_to_config({**converted.flags, "MODEL.PIXEL_STD": [2.0, 2.0, 2.0]})
    (folder / "my_detector/config.yaml").write_text(cfg.dump())
    still = {"running_mean": torch.zeros_like, "running_var": torch.ones_like}
    arrays = {key: still.get(key.rpartition(".")[2], torch.clone)(value).numpy() for key, value in own.items()}
    content = {"model": arrays, "__author__": "Detectron2 Model Zoo"}
    (folder / "model_final_b275ba.pkl").write_bytes(pickle.dumps(content))


def test_docs_commands_in_their_order(output, tmp_path):
    pytest.importorskip("safetensors")
    commands = re.findall(r"^    (python tools/.*)$", DOCUMENT, re.MULTILINE)
    assert len(commands) == 14
    resnet = backbone_of(random_resnet("resnet18"))
    networks = under("student.", resnet) | under("teacher.", resnet) | noise("rotation_head.weight", "memory.rows")
    torch.save({"state_dict": networks}, output / "last.ckpt")
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (300, 200), (10, 200, 30)).save(tmp_path / "photos/a.jpg")
    names = {" output/": f" {output}/", "/data": str(tmp_path), "hf://USER/NAME": f"file://{tmp_path}/place"}
    for documented, ours in names.items():
        commands = [command.replace(documented, ours) for command in commands]
    printed = [run(command, tmp_path) for command in commands]
    assert "--only student.: 120 tensors begin with it; left out: memory.rows" in printed.pop(1)
    dropped = printed.pop(1)
    assert "--drop memory.*: 1 tensors dropped: memory.rows" in dropped and "lies under teacher.; left out" in dropped
    assert "timm layout (others whose networks are timm's" in printed[1] and "vit_small_patch16_224" in printed.pop(1)
    assert "12 heads" in printed.pop(1)
    zoo = [printed.pop(1) for _ in range(3)]
    assert "licence of the published weights: CC BY-SA 3.0" in zoo[0] and "finetune with MODEL.RESNETS.NORM" in zoo[0]
    assert yaml.safe_load((output / "mine.yaml").read_text())["config"]["MODEL.PIXEL_STD"] == [2.0, 2.0, 2.0]
    assert "finetune with" not in zoo[2]  # it has statistics now
    written = yaml.safe_load((output / "zoo.yaml").read_text())
    assert "MODEL.RESNETS.NORM" not in written["config"] and written["config"]["INPUT.FORMAT"] == "RGB"
    assert f"recalibrated on 1 images of folder:{tmp_path}/photos" in written["source"]
    assert "moco layout (MoCo v1 and v2, and the reference code" in printed[0]
    assert "ResNet-18, 120 tensors" in printed[0]
    assert "WARNING: licence of the published weights: CC BY-NC 4.0, non-commercial" in printed[0]
    origin = "moco: moco_v2_800ep_pretrain.pth.tar, epoch 200"
    assert yaml.safe_load((output / "moco.yaml").read_text())["source"] == origin
    assert f"from {origin}" in printed[1]
    assert f"| Trained | {origin};" in (output / "moco_timm.md").read_text()
    assert yaml.safe_load((output / "timm.yaml").read_text())["licence"] == "CC BY-NC 4.0, non-commercial"
    assert "timm layout, ResNet-18" in printed[2]  # a source that was named is not explained
    assert "from revisit: model_final.pth, 10 iterations, seed 7" in printed[3]
    assert "torchvision layout (torchvision, timm, VirTex's hub, and the released" in printed[4]
    assert_same(*(read_checkpoint(output / name)["model"] for name in ("moco.pth", "timm.pth")))
    bare = torch.load(output / "knn_moco/resnet50.pth", weights_only=True)
    third = read_checkpoint(output / "knn_moco/backbone.pth")["model"]
    for name in ("moco_timm.safetensors", "moco_timm.md"):
        assert (output / "theirs" / name).read_bytes() == (output / name).read_bytes()
    assert {type(value) for value in bare.values()} == {torch.Tensor}
    assert convert(bare).tensors.keys() == third.keys()


def test_docs_name_every_source():
    rows = re.findall(r"^\| `(\w+)`", DOCUMENT, re.MULTILINE)
    assert sorted(rows) == sorted(source_layouts())


def test_mistakes_are_reported_in_one_line(output, tmp_path):
    command = f"python tools/export_weights.py {output}/knn_moco/model_final.pth {tmp_path}/a.bin --format timm"
    assert "expected a name that ends in .pth or .safetensors" in one_line_error(command, tmp_path)
    torch.save({"decoder.weight": torch.zeros(2)}, tmp_path / "in.pth")
    command = f"python tools/export_weights.py {tmp_path}/in.pth {tmp_path}/out.pth --format torchvision"
    line = one_line_error(command, tmp_path)
    assert "no backbone recognised in the checkpoint (it holds decoder.weight)" in line
    assert not (tmp_path / "out.pth").exists() and not (tmp_path / "out.md").exists()


def test_a_card_takes_the_place_of_an_earlier_one_of_the_same_file_alone(tmp_path):
    check_place_of_card(tmp_path / "a.pth")
    backbone = weights_under({}, {"res2.0.conv1.weight": torch.zeros(1)})
    (tmp_path / "a.pth").touch()
    (tmp_path / "a.md").write_text(model_card(backbone, tmp_path / "a.pth", "timm"))
    check_place_of_card(tmp_path / "a.pth")
    refused("a.md says what a.pth is: expected another name", check_place_of_card, tmp_path / "a.safetensors")
    (tmp_path / "notes.md").write_text("# Notes\n")
    refused("notes.md would be replaced", check_place_of_card, tmp_path / "notes.pth")


def test_weights_of_channels_are_exported_to_timm_alone_with_their_names_and_ranges(tmp_path, monkeypatch):
    names, ranges = ["green", "nir", "swir", "red"], [[0.0, 3000.0], [0.0, 4000.0], [-5.0, 5.0], [0.0, 255.0]]
    pixels = {"MODEL.PIXEL_MEAN": [90.0, 80.0, 70.0, 60.0], "MODEL.PIXEL_STD": [50.0, 40.0, 30.0, 20.0]}
    flags = {**RESNET18_FLAGS, **pixels, "INPUT.CHANNELS": names, "INPUT.RANGE": ranges}
    torch.manual_seed(0)
    network = ResNetDescription().build(flags_to_config(flags)).eval()
    backbone = BackboneWeights(network.state_dict(), flags, ResNetDescription(), "revisit: a.pth")
    refused(
        r"torchvision is not known to have a ResNet-18 for green \(0 to 3000\) nir",
        library_tensors,
        backbone,
        LIBRARIES[0],
    )
    weights = tmp_path / "exported.pth"
    write_tensors(library_tensors(backbone, "timm"), weights)
    card = model_card(backbone, weights, "timm")
    assert "green (0 to 3000), nir (0 to 4000), swir (-5 to 5), red (0 to 255) in this order" in card
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    found: dict[str, object] = {}
    exec(code, found)
    x = torch.randn(1, 4, 64, 64)
    expected = network(x)["res5"].mean((2, 3))
    assert (found["model"](x) - expected).abs().max() <= 1e-4 * expected.abs().max()
