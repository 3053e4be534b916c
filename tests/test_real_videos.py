"""Label propagation and segment retrieval on real videos and masks: `make check-real`, by hand, not in `make test`.

They lie in $REVISIT_REAL_DATA (default ../shared/data): davis/DAVIS, davis/cutie_multiobject and voc/VOC2012_mini.
"""

import json
import shutil

import numpy as np
import pytest
from commands import one_line_error, run
from PIL import Image
from real import DATA, needs_real_data

from projects.LabelPropagation.davis import find_sequences, read_masks

VIDEOS = DATA / "davis"
SAMPLES = VIDEOS / "cutie_multiobject/examples"
VOC = f"voc_segmentation:{DATA}/voc/VOC2012_mini:all"
NARROW = "MODEL.RESNETS.DEPTH 18 MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"

pytestmark = needs_real_data


def propagation(name, output, options=""):
    return (
        "python projects/LabelPropagation/run.py --config-file projects/LabelPropagation/configs/davis2017_R50.yaml "
        f"--weights random --output {output} LABEL_PROPAGATION.SEQUENCES \"('{name}',)\" {NARROW} {options}"
    )


def davis_tree(root, name, frames, mask_of):
    """A video of the samples in DAVIS's layout; ``mask_of`` names the mask of each of its ``frames``."""
    for folder in ("JPEGImages", "Annotations"):
        (root / "DAVIS" / folder / "480p" / name).mkdir(parents=True)
    for frame in frames:
        shutil.copy(SAMPLES / f"images/{name}/{frame}.jpg", root / f"DAVIS/JPEGImages/480p/{name}")
        mask = root / f"DAVIS/Annotations/480p/{name}/{frame}.png"
        shutil.copy(SAMPLES / f"masks/{name}/{mask_of(frame)}.png", mask)


def test_the_ids_of_a_video_are_those_of_its_masks():
    (sequence,) = find_sequences(VIDEOS / "DAVIS", "480p", "val", ("car-shadow",))
    masks = read_masks(sequence, (480, 854))
    assert masks.shape == (40, 480, 854) and np.unique(masks).tolist() == [0, 1]
    for path, mask in zip(sequence.masks, masks, strict=True):
        assert np.array_equal(mask > 0, np.asarray(Image.open(path)) > 0)


def test_copying_the_first_mask_scores_its_overlap(tmp_path):
    run(propagation("libby", tmp_path, "LABEL_PROPAGATION.METHOD copy"), VIDEOS)
    files = sorted((VIDEOS / "DAVIS/Annotations/480p/libby").glob("*.png"))
    first, *others = (np.asarray(Image.open(path)) > 0 for path in files)
    overlaps = [np.sum(first & mask) / np.sum(first | mask) for mask in others[:-1]]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["J-Mean"] == pytest.approx(100 * np.mean(overlaps), abs=0.01)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "masks/libby/00048.png")) > 0, first)


def test_two_objects_are_followed_and_written_with_their_palette(tmp_path):
    davis_tree(tmp_path, "bike", [f"{n:05d}" for n in range(4)], lambda frame: "00000")
    run(propagation("bike", tmp_path / "out"), tmp_path)
    lines = (tmp_path / "out/per-sequence_results-val.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["bike_1", "bike_2"]
    given = Image.open(SAMPLES / "masks/bike/00000.png")
    for frame in range(4):
        written = Image.open(tmp_path / f"out/masks/bike/{frame:05d}.png")
        assert written.mode == "P" and written.size == given.size
        assert written.getpalette()[:9] == given.getpalette()[:9]
        assert np.unique(np.asarray(written)).tolist() == [0, 1, 2]
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out/masks/bike/00000.png")), np.asarray(given))


def test_a_mask_one_pixel_narrower_than_its_frame_is_refused(tmp_path):
    frames = ["00000", "00005", "00008"]
    davis_tree(tmp_path, "judo", frames, lambda frame: frame if frame == "00005" else "00000")
    line = one_line_error(propagation("judo", tmp_path / "out"), tmp_path)
    assert "Annotations/480p/judo/00005.png" in line and "853 x 480" in line and "854 x 480" in line


def test_an_oracle_retrieves_every_pixel_of_voc(tmp_path):
    run(
        "python projects/SegmentRetrieval/run.py --config-file projects/SegmentRetrieval/configs/voc_R50.yaml "
        f"--weights random --output {tmp_path} DATASETS.TRAIN \"('{VOC}',)\" DATASETS.TEST \"('{VOC}',)\" {NARROW} "
        "SEGMENT_RETRIEVAL.REGIONS truth SEGMENT_RETRIEVAL.FEATURES oracle",
        DATA,
    )
    assert set(json.loads((tmp_path / "results.json").read_text())["IoU_21"].values()) == {100}
