"""Label propagation against its definition in plain loops, its command on ToyScenes, and bad input."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from commands import one_line_error, run
from PIL import Image
from torch.nn import functional as F

from projects.common.label_maps import enlarge_labels, shrink_labels
from projects.LabelPropagation.davis import find_sequences, read_masks
from projects.LabelPropagation.propagate import LabelPropagation
from revisit.data.labels import VOID
from revisit.errors import UserError

from detectron2.config import CfgNode

COMMAND = (
    "python projects/LabelPropagation/run.py --config-file projects/LabelPropagation/configs/toy.yaml "
    "--weights {weights} --output {output}"
)
NARROW = " MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"  # as the shared tiny backbone


def unit_maps(rng, count, channels, height, width):
    return [F.normalize(torch.from_numpy(rng.normal(size=(channels, height, width))), dim=0) for _ in range(count)]


def propagate_by_definition(features, first, protocol):
    """Every cell looks at every allowed cell of every frame, one by one."""
    labels = [first]
    height, width = first.shape[1:]
    for now in range(1, len(features)):
        before = [0] + [max(0, now - back) for back in range(1, protocol.NUM_CONTEXT + 1)]
        result = torch.empty_like(first)
        for y in range(height):
            for x in range(width):
                candidates = []
                for place, frame in enumerate(before):
                    for v in range(height):
                        for u in range(width):
                            if place == 0 or (y - v) ** 2 + (x - u) ** 2 < protocol.RADIUS**2:
                                cosine = float(features[now][:, y, x] @ features[frame][:, v, u])
                                candidates.append((cosine, labels[frame][:, v, u]))
                best = sorted(candidates, key=lambda pair: -pair[0])[: protocol.TOP_K]
                weights = np.exp(np.array([cosine for cosine, _ in best]) / protocol.TEMPERATURE)
                weights /= weights.sum()
                result[:, y, x] = sum(w * label for w, (_, label) in zip(weights, best, strict=True))
        labels.append(result)
    return labels


@pytest.mark.parametrize(
    "protocol",
    [(3, 2.5, 4, 0.05), (2, 2.0, 50, 1.0), (0, 3.0, 3, 0.1), (5, 100.0, 7, 0.2)],
)
def test_labels_follow_the_definition(protocol, monkeypatch):
    protocol = CfgNode(dict(zip(("NUM_CONTEXT", "RADIUS", "TOP_K", "TEMPERATURE"), protocol, strict=True)))
    monkeypatch.setattr("projects.LabelPropagation.propagate.TILE", 3)  # windows that the image's edges cut
    rng = np.random.default_rng(0)
    features = unit_maps(rng, 6, 8, 5, 7)
    first = torch.from_numpy(rng.dirichlet(np.ones(3), size=(5, 7))).permute(2, 0, 1)
    expected = propagate_by_definition(features, first, protocol)
    propagation = LabelPropagation(features[0], first, protocol)
    for frame, wanted in zip(features[1:], expected[1:], strict=True):
        assert torch.allclose(propagation.step(frame), wanted, atol=1e-12)


def test_labels_are_shares_of_a_cell_and_come_back():
    ids = torch.zeros(16, 24, dtype=torch.uint8)
    ids[:8, :12] = 1
    ids[8:12, 16:] = 2
    shares = shrink_labels(ids, 3, (2, 3))
    assert torch.allclose(shares.sum(dim=0), torch.ones(2, 3))
    assert shares[1].tolist() == [[1, 0.5, 0], [0, 0, 0]] and shares[2].tolist() == [[0, 0, 0], [0, 0, 0.5]]
    blocks = F.one_hot(torch.arange(6).view(2, 3), 6).permute(2, 0, 1).float()
    assert torch.equal(
        enlarge_labels(blocks, (16, 24)),
        torch.arange(6).view(2, 3).byte().repeat_interleave(8, 0).repeat_interleave(8, 1),
    )


def test_a_backbone_follows_the_objects_of_toy_videos(pretrained, toy_root, tmp_path):
    text = run(COMMAND.format(weights=pretrained / "backbone.pth", output=tmp_path) + NARROW, toy_root)
    assert "written to" in text and "backbone tensors loaded" in text
    results = json.loads((tmp_path / "results.json").read_text())
    assert 0 < results["J&F-Mean"] < 100 and results["peak_memory_gb"] > 0
    videos = toy_root / "toy_scenes/DAVIS"
    lines = (tmp_path / "per-sequence_results-val.csv").read_text().splitlines()
    assert lines[0] == "Sequence,J-Mean,F-Mean" and lines[1].startswith("toy-01_1,")
    for name in ("toy-01", "toy-02"):
        with Image.open(tmp_path / f"overlays/{name}.gif") as picture:
            assert picture.n_frames == 20
        with (
            Image.open(tmp_path / f"masks/{name}/00000.png") as given,
            Image.open(videos / f"Annotations/480p/{name}/00000.png") as truth,
        ):
            assert given.mode == "P" and np.array_equal(np.asarray(given), np.asarray(truth))
        assert len(list((tmp_path / "masks" / name).iterdir())) == 20


def test_a_copy_of_the_first_mask_scores_the_same_as_by_hand(run_project, toy_root):
    options = "LABEL_PROPAGATION.METHOD copy LABEL_PROPAGATION.SEQUENCES \"('toy-02',)\""
    output = run_project("LabelPropagation", "toy", options)
    masks = [
        np.asarray(Image.open(toy_root / f"toy_scenes/DAVIS/Annotations/480p/toy-02/{n:05d}.png")) for n in range(20)
    ]
    shares = []
    for number in range(1, masks[0].max() + 1):
        pairs = [(masks[0] == number, mask == number) for mask in masks[1:-1]]
        shares.append(np.mean([(a & b).sum() / (a | b).sum() for a, b in pairs]))
    assert json.loads((output / "results.json").read_text())["J-Mean"] == pytest.approx(100 * np.mean(shares), abs=0.01)


def test_weights_of_another_network_are_refused(pretrained, toy_root, tmp_path):
    line = one_line_error(COMMAND.format(weights=pretrained / "backbone.pth", output=tmp_path), toy_root)
    assert "MODEL.RESNETS.STEM_OUT_CHANNELS is 16 here and 8 there" in line


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("LABEL_PROPAGATION.METHOD guess", "LABEL_PROPAGATION.METHOD is 'guess', expected one of propagate, copy"),
        ("LABEL_PROPAGATION.TOP_K 0", "LABEL_PROPAGATION.TOP_K is 0: expected a positive number"),
        ("LABEL_PROPAGATION.TEMPERATURE 0.0", "expected a positive number"),
        ("LABEL_PROPAGATION.DATA nowhere", "no DAVIS tree at"),
        ("LABEL_PROPAGATION.RADIUS_ 3", "did you mean"),
        ("LABEL_PROPAGATION.SPLIT test", "2017/test.txt not found"),
    ],
)
def test_bad_options_are_refused(options, expected, run_project):
    with pytest.raises(UserError, match=re.escape(expected)):
        run_project("LabelPropagation", "toy", options)


@pytest.fixture
def videos(toy_root, tmp_path):
    return shutil.copytree(toy_root / "toy_scenes/DAVIS", tmp_path / "DAVIS")


def save(path, ids):
    Image.fromarray(ids).save(path)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda masks: (masks / "00007.png").unlink(), "20 frames, .*19 masks, and 00007 is only in one"),
        (lambda masks: save(masks / "00003.png", np.ones((64, 60), np.uint8)), r"00003.png is 60 x 64 pixels, but its"),
        (lambda masks: save(masks / "00000.png", np.zeros((64, 64), np.uint8)), "00000.png has no object"),
        (lambda masks: save(masks / "00000.png", 3 * np.eye(64, dtype=np.uint8)), r"the objects \[3\]: expected 1, 2"),
        (lambda masks: save(masks / "00004.png", np.full((64, 64), 300, np.uint16)), "00004.png has ids 300"),
        (lambda masks: (masks / "00005.png").write_bytes(b"torn"), "00005.png cannot be read"),
    ],
)
def test_a_bad_mask_is_named(spoil, expected, videos):
    spoil(videos / "Annotations/480p/toy-01")
    with pytest.raises(UserError, match=expected):
        for sequence in find_sequences(videos, "480p", "val"):
            read_masks(sequence, (64, 64))


def test_masks_of_one_object_may_be_white(videos):
    for path in (videos / "Annotations/480p/toy-01").iterdir():
        save(path, np.where(np.asarray(Image.open(path)) == 1, np.uint8(255), np.uint8(0)))
    white, coloured = (read_masks(sequence, (64, 64)) for sequence in find_sequences(videos, "480p", "val"))
    assert set(np.unique(white)) == {0, 1} and VOID not in coloured
