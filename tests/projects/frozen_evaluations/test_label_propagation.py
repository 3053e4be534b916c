"""Label propagation, J and F against their definitions in plain loops; the command on ToyScenes; masks, CSVs."""

import itertools
import math
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from torch.nn import functional as F

from projects.FrozenEvaluations import davis
from projects.FrozenEvaluations.propagation import LabelPropagation
from projects.Pictures.label_maps import enlarge_labels, shrink_labels
from revisit.data.sources.labels import VOID

from detectron2.config import CfgNode


def propagate_by_definition(features, first, protocol):
    """Every cell looks at every allowed cell of every frame, one by one."""
    labels = [first]
    cells = list(np.ndindex(*first.shape[1:]))
    for now in range(1, len(features)):
        before = [0] + [max(0, now - back) for back in range(1, protocol.NUM_CONTEXT + 1)]
        result = torch.empty_like(first)
        for y, x in cells:
            candidates = []
            for (place, frame), (v, u) in itertools.product(enumerate(before), cells):
                if place == 0 or (y - v) ** 2 + (x - u) ** 2 < protocol.RADIUS**2:
                    cosine = float(features[now][:, y, x] @ features[frame][:, v, u])
                    candidates.append((cosine, labels[frame][:, v, u]))
            best = sorted(candidates, key=lambda pair: -pair[0])[: protocol.TOP_K]
            weights = np.exp(np.array([cosine for cosine, _ in best]) / protocol.TEMPERATURE)
            weights /= weights.sum()
            result[:, y, x] = sum(w * label for w, (_, label) in zip(weights, best, strict=True))
        labels.append(result)
    return labels


@pytest.mark.parametrize("protocol", [(3, 2.5, 4, 0.05), (2, 2.0, 50, 1.0), (0, 3.0, 3, 0.1), (5, 100.0, 7, 0.2)])
def test_labels_follow_the_definition(protocol, monkeypatch):
    protocol = CfgNode(dict(zip(("NUM_CONTEXT", "RADIUS", "TOP_K", "TEMPERATURE"), protocol, strict=True)))
    monkeypatch.setattr("projects.FrozenEvaluations.propagation.TILE", 3)  # windows that the image's edges cut
    rng = np.random.default_rng(0)
    features = F.normalize(torch.from_numpy(rng.normal(size=(6, 8, 5, 7))), dim=1)
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
    assert shares[1].tolist() == [[1, 0.5, 0], [0, 0, 0]] and shares[2].tolist() == [[0, 0, 0], [0, 0, 0.5]]
    cells = torch.arange(6).view(2, 3)
    blocks = enlarge_labels(F.one_hot(cells, 6).permute(2, 0, 1).float(), (16, 24))
    assert torch.equal(blocks, cells.byte().repeat_interleave(8, 0).repeat_interleave(8, 1))


def sampled_by_definition(ids, num_labels, size):
    """In float64: the four pixels around each cell's centre, weighted by how near they are; the border repeats."""
    labels = np.zeros((num_labels, *size))
    for row, column in np.ndindex(*size):
        y, x = (max((n + 0.5) * ids.shape[d] / size[d] - 0.5, 0.0) for d, n in enumerate((row, column)))
        for v, u in itertools.product((math.floor(y), math.floor(y) + 1), (math.floor(x), math.floor(x) + 1)):
            pixel = ids[min(v, ids.shape[0] - 1), min(u, ids.shape[1] - 1)]
            labels[pixel, row, column] += (1 - abs(y - v)) * (1 - abs(x - u))
    return labels


@pytest.mark.parametrize("size", [(6, 11), (7, 10), (60, 80)])
def test_first_labels_may_be_sampled_bilinearly_at_the_centres_of_cells(size):
    ids = np.random.default_rng(0).integers(0, 3, (48, 85))
    sampled = shrink_labels(torch.from_numpy(ids), 3, size, sampled=True)
    assert np.allclose(sampled.double(), sampled_by_definition(ids, 3, size), atol=1e-5)
    assert not torch.allclose(sampled, shrink_labels(torch.from_numpy(ids), 3, size), atol=0.05)


def test_a_backbone_follows_the_objects_of_toy_videos(run_project, pretrained, toy_root):
    output, results = run_project("FrozenEvaluations/propagation", "", pretrained / "backbone.pth")
    assert 0 < results["J&F-Mean"] < 100 and results["peak_memory_gb"] > 0
    lines = (output / "per-sequence_results-val.csv").read_text().splitlines()
    assert lines[0] == "Sequence,J-Mean,F-Mean" and lines[1].startswith("toy-01_1,")
    for name in ("toy-01", "toy-02"):
        with Image.open(output / f"overlays/{name}.gif") as picture:
            assert picture.n_frames == 20
        given = Image.open(output / f"masks/{name}/00000.png")
        truth = Image.open(toy_root / f"toy_scenes/DAVIS/Annotations/480p/{name}/00000.png")
        assert given.mode == "P" and np.array_equal(np.asarray(given), np.asarray(truth))
        assert len(list((output / "masks" / name).iterdir())) == 20


def test_a_copy_of_the_first_mask_scores_the_same_as_by_hand(run_project, toy_root):
    options = "LABEL_PROPAGATION.METHOD copy LABEL_PROPAGATION.SEQUENCES \"('toy-02',)\""
    _, results = run_project("FrozenEvaluations/propagation", options)
    files = sorted((toy_root / "toy_scenes/DAVIS/Annotations/480p/toy-02").iterdir())
    masks = [np.asarray(Image.open(file)) for file in files]
    shares = []
    for number in range(1, masks[0].max() + 1):
        pairs = [(masks[0] == number, mask == number) for mask in masks[1:-1]]
        shares.append(np.mean([(a & b).sum() / (a | b).sum() for a, b in pairs]))
    assert results["J-Mean"] == pytest.approx(100 * np.mean(shares), abs=0.01)


def test_masks_of_one_object_may_be_white(videos):
    for path in (videos / "Annotations/480p/toy-01").iterdir():
        Image.fromarray(np.where(np.asarray(Image.open(path)) == 1, np.uint8(255), np.uint8(0))).save(path)
    white, coloured = (davis.read_masks(sequence, (64, 64)) for sequence in davis.find_sequences(videos, "480p", "val"))
    assert set(np.unique(white)) == {0, 1} and VOID not in coloured


def test_frames_are_in_the_order_of_their_numbers_with_their_masks(tmp_path):
    stems = ["1", "2", "02", "3b", "3b1", "10"]
    for folder, suffix in (("JPEGImages", ".jpg"), ("Annotations", ".png")):
        place = tmp_path / folder / "480p/own"
        place.mkdir(parents=True)
        for stem in sorted(stems):
            (place / f"{stem}{suffix}").touch()
    (sequence,) = davis.find_sequences(tmp_path, "480p", "val", ("own",))
    expected = ["1", "02", "2", "3b", "3b1", "10"]
    assert [path.stem for path in sequence.frames] == [path.stem for path in sequence.masks] == expected


def boundary_by_definition(mask):
    """A set of pixels, each compared with its neighbours inside the image, one by one."""
    found = set()
    for (y, x), (dy, dx) in itertools.product(np.ndindex(mask.shape), ((0, 1), (1, 0), (1, 1))):
        inside = y + dy < mask.shape[0] and x + dx < mask.shape[1]
        if inside and mask[y + dy, x + dx] != mask[y, x]:
            found.add((y, x))
    return found  # DAVIS's tool looks along the border in the last row and column, which lack a diagonal neighbour


def f_by_definition(mask, truth):
    found, wanted = boundary_by_definition(mask), boundary_by_definition(truth)
    if not found or not wanted:
        return float(found == wanted)
    reach = math.ceil(0.008 * math.sqrt(mask.shape[0] ** 2 + mask.shape[1] ** 2))

    def share(pixels, others):
        hits = [any((y - v) ** 2 + (x - u) ** 2 <= reach**2 for v, u in others) for y, x in pixels]
        return sum(hits) / len(hits)

    precision, recall = share(found, wanted), share(wanted, found)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@given(st.tuples(st.integers(1, 14), st.integers(1, 14)).flatmap(lambda size: st.tuples(*[arrays(bool, size)] * 2)))
@settings(max_examples=60)
def test_j_and_f_equal_their_definitions(pair):
    mask, truth = pair
    union = sum(a or b for a, b in zip(mask.flat, truth.flat, strict=True))
    both = sum(a and b for a, b in zip(mask.flat, truth.flat, strict=True))
    assert davis.region_similarity(mask, truth) == pytest.approx(both / union if union else 1, abs=1e-9)
    assert davis.boundary_accuracy(mask, truth) == pytest.approx(f_by_definition(mask, truth), abs=1e-9)


def test_f_equals_its_definition_on_blobs():
    rng, size = np.random.default_rng(0), (60, 260)  # a reach of 3 px
    y, x = np.mgrid[: size[0], : size[1]]
    for _ in range(3):
        cy, cx, r = rng.uniform(0, size[0]), rng.uniform(0, size[1]), rng.uniform(8, 25)
        truth = (y - cy) ** 2 + (x - cx) ** 2 <= r**2
        mask = (y - cy - rng.integers(0, 6)) ** 2 + (x - cx) ** 2 <= (r + rng.integers(0, 5)) ** 2
        value = davis.boundary_accuracy(mask, truth)
        assert value == pytest.approx(f_by_definition(mask, truth), abs=1e-9)
        assert 0 < value < 1 or np.array_equal(mask, truth)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=400))
def test_statistics_equal_their_definitions(values):
    count = len(values)
    ends = [math.floor(1 + place * (count - 1) / 4 + 0.5 + 1e-9) - 1 for place in range(5)]
    decay = fmean(values[ends[0] : ends[1] + 1]) - fmean(values[ends[3] : ends[4] + 1])
    expected = fmean(values), sum(value > 0.5 for value in values) / count, decay
    assert davis.statistics(np.array(values)) == pytest.approx(expected, abs=1e-9)


def test_first_and_last_frame_and_void_pixels_do_not_count():
    truth = np.zeros((4, 8, 8), np.uint8)
    truth[:, 2:5, 2:5] = 1
    truth[:, 6:, 6:] = 2
    masks = truth.copy()
    masks[0] = masks[3] = 0  # neither counts
    truth[1, 0, :4] = VOID
    masks[1, 0, :4] = 1  # void: right or wrong, nobody knows
    masks[2, 6:, 6:] = 0  # object 2 is lost in one of two frames
    one, two = davis.score_sequence("toy", masks, truth)
    assert (one.number, two.number) == (1, 2)
    assert one.region.tolist() == one.boundary.tolist() == [1, 1]
    assert two.region.tolist() == two.boundary.tolist() == [1, 0]
    assert davis.summarize([one, two])["J&F-Mean"] == 0.75


def test_means_are_over_objects_not_sequences():
    truth = np.ones((3, 4, 4), np.uint8)
    truth[:, 0], truth[:, 1] = 2, 3
    three = davis.score_sequence("three", truth, truth)
    (lost,) = davis.score_sequence("lost", np.zeros((3, 4, 4), np.uint8), np.ones((3, 4, 4), np.uint8))
    totals = davis.summarize([*three, lost])
    assert totals["J-Mean"] == totals["J-Recall"] == 0.75
    # The lost object fills the image, so that neither mask has a boundary.
    assert totals["F-Mean"] == 1


def test_csvs_have_the_official_form(tmp_path):
    truth = np.zeros((5, 6, 6), np.uint8)
    truth[:, :3, :3] = 1
    scores = davis.score_sequence("bike", truth, truth) + davis.score_sequence("judo", np.zeros_like(truth), truth)
    davis.write_csvs(tmp_path, scores)
    expected = f"{','.join(davis.GLOBAL_COLUMNS)}\n0.500,0.500,0.500,0.000,0.500,0.500,0.000\n"
    assert (tmp_path / "global_results-val.csv").read_text() == expected
    expected = "Sequence,J-Mean,F-Mean\nbike_1,1.000,1.000\njudo_1,0.000,0.000\n"
    assert (tmp_path / "per-sequence_results-val.csv").read_text() == expected
