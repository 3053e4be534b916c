"""Each number against numpy in float64, as its paper's formula is written."""

import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import tiny_config, tiny_model
from torch.nn.functional import normalize as unit

from projects.FrozenEvaluations import label_free
from projects.FrozenEvaluations.label_free import alignment, neighbor_stability, rankme, uniformity
from projects.FrozenEvaluations.monitor import (
    LabelFreeHistory,
    LabelFreeMonitor,
    LabelFreeScores,
    SingleViewDataset,
    label_free_scores,
)
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import read_record
from revisit.data.sources.catalog import get_records
from revisit.data.views.mapper import ViewMapper
from revisit.errors import UserError
from revisit.evaluation import nearest as nearest_rows
from revisit.evaluation.features import CenterCropDataset
from revisit.evaluation.nearest import nearest_others

from detectron2.utils.events import EventStorage

GENERATOR = torch.Generator().manual_seed(0)
ROWS, OTHERS = (unit(torch.randn(30, 12, generator=GENERATOR)) for _ in range(2))


@pytest.fixture(params=[1024, 7])
def chunk(request, monkeypatch):
    monkeypatch.setattr(label_free, "CHUNK", request.param)
    monkeypatch.setattr(nearest_rows, "QUERIES", request.param)


def test_rankme_equals_the_entropy_of_singular_values():
    values = np.sqrt(np.linalg.eigvalsh(ROWS.double().numpy().T @ ROWS.double().numpy()))
    p = values / values.sum() + 1e-7
    assert rankme(ROWS) == pytest.approx(math.prod(share**-share for share in p), rel=1e-9)
    assert rankme(torch.eye(12).repeat(3, 1)) == pytest.approx(12, rel=1e-4)
    assert rankme(ROWS[:1].repeat(30, 1)) == pytest.approx(1, abs=1e-4)
    assert math.isnan(rankme(ROWS * math.nan))


def test_alignment_equals_the_mean_of_squared_distances():
    pairs = zip(ROWS.double().numpy(), OTHERS.double().numpy(), strict=True)
    assert alignment(ROWS, OTHERS) == pytest.approx(np.mean([((x - y) ** 2).sum() for x, y in pairs]), rel=1e-12)
    assert alignment(ROWS, ROWS) == 0 and alignment(ROWS, -ROWS) == pytest.approx(4, rel=1e-6)


def test_uniformity_equals_the_mean_over_pairs(chunk):
    x = ROWS.double().numpy()
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    kernel = [math.exp(-2 * ((x[i] - x[j]) ** 2).sum()) for i in range(30) for j in range(i)]
    assert uniformity(ROWS) == pytest.approx(math.log(np.mean(kernel)), rel=1e-6)
    assert uniformity(ROWS[:1].repeat(30, 1)) == pytest.approx(0, abs=1e-6)


def test_neighbours_and_stability_equal_a_direct_evaluation(chunk):
    x, y = ROWS.double().numpy(), (ROWS + 0.3 * OTHERS).double().numpy()
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    expected = []
    for rows in (x, y):
        order = [sorted(set(range(30)) - {i}, key=lambda j: -rows[i] @ rows[j])[:5] for i in range(30)]
        assert nearest_others(rows, 5).places.tolist() == order
        expected.append(order)
    share = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(*expected, strict=True)])
    assert 0 < share < 1
    before, now = (nearest_others(rows, 5).places for rows in (x, y))
    assert neighbor_stability(before, now) == pytest.approx(100 * share)
    assert neighbor_stability(before, before.flip(1)) == 100


def config(*options):
    return tiny_config("MONITOR.IMAGES", "toy_scenes_train", "KNN_EVAL.IMAGE_SIZE", 32, *options)


def features(model, images):
    return torch.stack([output["feature"] for output in model([{"image": image} for image in images])])


def test_scores_are_of_crops_and_own_views(toy_datasets):
    """Spread over the data set, and the same for every seed of a run."""
    cfg = config("MONITOR.MAX_IMAGES", 40, "SEED", 3)
    model = tiny_model().eval()
    scores = label_free_scores(cfg, model)
    records = get_records("toy_scenes_train")
    chosen = [records[int(n)] for n in np.linspace(0, 59, 40)]
    crops = CenterCropDataset(chosen, 32, PHOTOGRAPHS)
    rows = features(model, [crops[n]["image"] for n in range(40)])
    mapper = ViewMapper.from_config(tiny_config("SEED", 0, "VIEWS.NUM_SMALL", 0))
    views = [mapper(read_record(record, PHOTOGRAPHS), 0, n) for n, record in enumerate(chosen)]
    anchors, positives = (
        features(model, [torch.from_numpy(each[name]).movedim(-1, 0) for each in views])
        for name in ("anchor", "positive")
    )
    assert scores.rankme == pytest.approx(rankme(rows), rel=1e-5)
    assert scores.uniformity == pytest.approx(uniformity(rows), rel=1e-4)
    assert scores.alignment == pytest.approx(alignment(anchors, positives), rel=1e-4)
    assert scores.neighbors.shape == (40, 20)


def test_an_unreadable_image_is_replaced(tmp_path, write_pictures):
    paths = write_pictures(tmp_path, 6)
    paths[2].write_bytes(b"no image")
    records = [{"file_name": str(path)} for path in paths]
    crops = CenterCropDataset(records, 16, PHOTOGRAPHS, replaced=True)
    assert torch.equal(crops[2]["image"], crops[3]["image"]) and not torch.equal(crops[1]["image"], crops[2]["image"])
    with pytest.raises(UserError, match="unreadable image .*002.png"):
        CenterCropDataset(records, 16, PHOTOGRAPHS)[2]
    views = SingleViewDataset(records, ViewMapper.from_config(tiny_config()), PHOTOGRAPHS)
    assert len(views) == 12 and views[4]["image"].shape == (3, 32, 32)
    for path in paths:
        path.write_bytes(b"no image")
    for dataset in (crops, views):
        with pytest.raises(UserError, match="6 images in a row cannot be read"):
            dataset[0]


FLAT = [(30, 0.2, -1.0), (31, 0.2, -1.0), (30.5, 0.205, -1.02), (30, 0.2, -1.05)]


@pytest.mark.parametrize(
    ("values", "advised_after"),
    [
        ([(10, 0.5, -0.3), (20, 0.3, -0.5), *FLAT, *FLAT], [6]),  # once
        (FLAT[:3], []),  # too few
        ([(31.6, 0.2, -1.0), *FLAT[1:]], []),  # RankMe by 5.3 %
        ([(30, 0.216, -1.0), *FLAT[1:]], []),  # alignment by 8 %
        ([(30, 0.2, -1.08), (30, 0.2, -1.0), *FLAT[2:]], []),  # uniformity by 8 %
        ([(math.nan, 0.2, -1.0), *FLAT[1:]], []),
    ],
)
def test_flat_curves_give_advice_once(caplog, values, advised_after):
    """Of a run that stops after each evaluation."""
    how = (LabelFreeMonitor(tiny_config()), [{"count": 60}])
    hook, advised = LabelFreeHistory(*how), []
    for number, scores in enumerate(values, start=1):
        resumed = LabelFreeHistory(*how)
        resumed.load_state_dict(hook.state_dict())
        hook = resumed
        how[0].last = LabelFreeScores(*scores, torch.zeros(60, 5))
        hook.trainer = SimpleNamespace(storage=EventStorage(), is_evaluated=True)
        with caplog.at_level(logging.INFO):
            hook.after_step()
        advised += [number] * ("the curves without labels have flattened" in caplog.text)
        caplog.clear()
    assert advised == advised_after
