"""What follows a pretraining, on ToyScenes of four channels by its names: recipes that learn from labels, tables."""

import json

import pytest
import torch
from commands import run
from fields import LEAST

from projects.ToyScenes import make_toy_scenes

NAMES = "red green blue depth"
RECIPES = ["mask_rcnn_fpn", "detection", "retinanet_fpn", "segmentation_nyud", "segmentation_voc", "depth"]
FEW = "TEST.DETECTIONS_PER_IMAGE 3"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder for DETECTRON2_DATASETS, with a pretraining's ``backbone.pth``."""
    folder = tmp_path_factory.mktemp("rgbd")
    make_toy_scenes(folder / "toy_scenes", num_images=12, size=64, workers=1, channels="rgbd")
    short = "VIEWS.LARGE_SIZE 32 SOLVER.WARMUP_ITERS 0 DATASETS.TEST () KNN_EVAL.BANK '' KNN_EVAL.LINEAR False"
    keys = f'INPUT.CHANNELS "{NAMES}" {LEAST} {short} TEST.EVAL_EPOCHS 0 OUTPUT_DIR {folder}/pretrain'
    text = run(f"python tools/train_net.py --config-file configs/toy/demo.yaml {keys}", folder)
    assert f"INPUT.CHANNELS {NAMES}" in text
    run(f"python tools/convert_to_d2.py {folder}/pretrain/model_final.pth {folder}/backbone.pth", folder)
    return folder


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_learns_from_labels_on_four_channels(root, tmp_path, recipe):
    keys = f"MODEL.WEIGHTS {root}/backbone.pth OUTPUT_DIR {tmp_path} {LEAST} {FEW}"
    text = run(f"python tools/train_net.py --config-file configs/toy/{recipe}.yaml {keys}", root)
    assert "100 of 100 backbone tensors loaded" in text and f"INPUT.CHANNELS {NAMES}" in text
    model = torch.load(tmp_path / "model_final.pth", weights_only=True)["model"]
    assert [each.shape[1] for name, each in model.items() if name.endswith("stem.conv1.weight")] == [4]
    assert json.loads((tmp_path / "evaluation.json").read_text())


def test_tables_of_four_channels_are_drawn_curated_and_selected_from(root, tmp_path):
    weights = f"--weights {root}/backbone.pth --data toy_scenes_train --size 64 --readers 0"
    run(f"python tools/embed.py {weights} --output {tmp_path}/rows", root)
    table = f"--embeddings {tmp_path}/rows"
    run(f"python tools/atlas.py {table} --how pca --output {tmp_path}/atlas.html", root)
    assert (tmp_path / "atlas.html").is_file()
    run(f"python tools/curate.py {table} --output {tmp_path}/curated", root)
    assert "5 of 12 images" in run(f"python tools/select_images.py {table} --count 5 --output {tmp_path}/few", root)
    query = f"{root}/toy_scenes/coco/train2017/{1:012d}.tif --weights {root}/backbone.pth"
    assert "0.9" in run(f"python tools/similar.py {table} --data {query} --output {tmp_path}/similar.png", root)


def test_objects_are_found_and_labels_checked_on_four_channels(root, tmp_path):
    weights = f"--weights {root}/backbone.pth --short-side 64"
    run(f"python tools/discover.py {weights} --data toy_scenes_train --output {tmp_path}/found", root)
    assert json.loads((tmp_path / "found/data_set.json").read_text())["annotations"]
    check = f"python tools/check_labels.py {weights} --data toy_coco_train --readers 0 --output {tmp_path}/checked"
    assert "suspects.html" in run(check, root)
