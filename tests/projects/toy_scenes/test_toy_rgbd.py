"""ToyScenes with depth as a fourth channel: the same scenes and labels, in TIFFs that say what their bands are."""

import json

import numpy as np
import pytest
import torch
from commands import run
from trees import refused

from projects.Pixels import write_tiff
from projects.Pixels.sample_files import read_samples
from projects.ToyScenes import Split, draw_scene, make_toy_scenes, plan_image
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import read_record
from revisit.data.sources.catalog import get_records

NAMES = ("red", "green", "blue", "depth")


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Folders for DETECTRON2_DATASETS, by their channels."""
    folder = tmp_path_factory.mktemp("toy")
    for channels in ("rgb", "rgbd"):
        make_toy_scenes(folder / channels / "toy_scenes", num_images=12, size=64, workers=1, channels=channels)
    return {channels: folder / channels for channels in ("rgb", "rgbd")}


@pytest.fixture
def root(roots):
    return roots["rgbd"]


def test_a_tiff_holds_a_scene_with_its_names(root):
    for index in range(3):
        scene = draw_scene(plan_image(0, Split.SCENE_TRAIN, index, 12), 64)
        file = root / f"toy_scenes/coco/train2017/{index + 1:012d}.tif"
        samples = read_samples(file.read_bytes())
        assert samples.names == NAMES and samples.is_colour and samples.alpha is samples.missing is None
        np.testing.assert_array_equal(samples.values[..., :3], scene.image)
        metres = 255 / samples.values[..., 3].astype(float)
        assert np.abs(255 / metres - 255 / scene.depth).max() <= 0.5 + 1e-4
        assert metres[scene.instances > 0].max() < metres[scene.instances == 0].min()  # a background is behind
        chosen = read_record({"file_name": str(file)}, PixelFormat(channels=("depth", "red"), ranges=((0, 255),) * 2))
        np.testing.assert_array_equal(chosen, samples.values[..., [3, 0]])


@pytest.mark.parametrize(
    "name",
    ["toy_objects_train", "toy_classification_test", "toy_scenes_train", "toy_coco_train", "toy_voc_trainval"]
    + ["toy_voc_labels_test", "toy_voc_sem_seg_val", "toy_nyud_segmentation_train", "toy_nyud_depth_val"],
)
def test_the_names_of_toy_scenes_have_the_same_labels(roots, monkeypatch, name):
    found = []
    for folder in (roots["rgbd"], roots["rgb"]):
        monkeypatch.setenv("DETECTRON2_DATASETS", str(folder))
        records = json.loads(json.dumps(get_records(name), default=str).replace(str(folder), ""))
        found.append([{**record, "file_name": record["file_name"].rpartition(".")} for record in records])
    rgbd, rgb = found
    assert rgbd and {record["file_name"][2] for record in rgbd} == {"tif"}
    for record in (*rgbd, *rgb):
        record["file_name"] = record["file_name"][0]
    assert rgbd == rgb


def test_other_channels_are_another_data_set(root):
    refused("holds ToyScenes with channels", make_toy_scenes, root / "toy_scenes", 12, size=64, workers=1)
    assert not make_toy_scenes(root / "toy_scenes", 12, size=64, workers=1, channels="rgbd")
    assert json.loads((root / "toy_scenes/toy_scenes.json").read_text())["channels"] == "rgbd"


def test_without_tifffile_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(write_tiff, "tifffile", None)
    message = r"pip install 'revisit-detectron2\[tiff\]'"
    refused(message, make_toy_scenes, tmp_path / "toy", 10, size=64, workers=1, channels="rgbd")
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_pretrains_on_four_channels(root, tmp_path):
    channels = 'INPUT.CHANNELS "red green blue depth"'
    small = "SOLVER.MAX_ITER 2 SOLVER.IMS_PER_BATCH 4 DATALOADER.NUM_WORKERS 0 DATASETS.TEST () KNN_EVAL.BANK ''"
    text = run(
        f"python tools/train_net.py --config-file configs/toy/demo.yaml {channels} {small} KNN_EVAL.LINEAR False "
        f"TEST.EVAL_EPOCHS 0 OUTPUT_DIR {tmp_path}",
        root,
    )
    assert "INPUT.CHANNELS red green blue depth" in text
    weights = torch.load(tmp_path / "model_final.pth", weights_only=True)["model"]
    assert weights["backbone.stem.conv1.weight"].shape[1] == 4
