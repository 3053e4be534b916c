"""Boxes of objects: where they lie in views by pixels that say where they are from; proposals; and what is refused."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import OBJECTS, tiny_config
from trees import refused, touch

from projects.Objectives.object_boxes import ObjectBoxes, proposed_boxes
from projects.Objectives.proposals import with_proposals
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import Picture
from revisit.data.loading.loader import ViewDataset
from revisit.data.sources.records import fingerprint
from revisit.data.views.annotation import DrawnImage
from revisit.data.views.looks import AutoAugmentLook, Look, StandardLook
from revisit.data.views.mapper import ViewMapper
from revisit.data.views.operations import MOVES

KNN = ("MODEL.META_ARCHITECTURE", "KNNMoCo")
SIDE = 120  # px of an image whose red is 2 x, and whose green 2 y
PLACES = np.stack([*np.meshgrid(2 * np.arange(SIDE), 2 * np.arange(SIDE)), np.zeros((SIDE, SIDE))], axis=-1)
PLACES = PLACES.astype(np.uint8)


class Moving(AutoAugmentLook):
    """What moves pixels, without what changes colours."""

    def operations(self, size: int) -> list[tuple[str, float]]:
        return [operation for operation in super().operations(size) if operation[0] in MOVES]


def colourless(look: Look) -> StandardLook | AutoAugmentLook:
    if isinstance(look, StandardLook):
        return dataclasses.replace(look, jitter=(), grey=False, blur_sigma=0.0)
    return Moving(**vars(look))


def shown_at(view: np.ndarray, box: np.ndarray) -> np.ndarray:
    """The place (x, y) in the image that a view shows at the centre of a box, px, by the four pixels around it."""
    x, y = (box[:2] + box[2:]) / 2 - 0.5
    a, b = (int(np.clip(np.floor(value), 0, len(view) - 2)) for value in (y, x))
    weights = np.outer([1 - (y - a), y - a], [1 - (x - b), x - b])[..., None]
    return (weights * view[a : a + 2, b : b + 2, :2]).sum(axis=(0, 1)) / 2 + 0.5


def distances(seed: int, resampling: str, large: int, small: int) -> list[float]:
    """Of one image's objects, in px of the image, or of the coarser view where that is larger."""
    options = ("OBJECTS.JITTER", 0.0, "OBJECTS.NUM_BOXES", 8, "VIEWS.RESAMPLING", resampling, "SEED", seed)
    cfg = tiny_config(*OBJECTS, *options, "VIEWS.LARGE_SIZE", large, "VIEWS.SMALL_SIZE", small)
    mapper = ViewMapper.from_config(cfg)
    anchor, positive = mapper.anchor_look, mapper.positive_look
    changed = {
        "anchor_look": lambda rng: colourless(anchor(rng)),
        "positive_look": lambda rng: colourless(positive(rng)),
    }
    views = dataclasses.replace(mapper, **changed)(PLACES, 0, seed)
    boxes = views["boxes"]
    found = []
    for n, (key, query) in enumerate(zip(*views["annotations"].values(), strict=True)):
        if np.isnan(query).any():
            continue
        positive, crop = (views["positive"], boxes.positive) if n < 8 else (views["small"][(n - 8) // 2], None)
        crop = boxes.small[(n - 8) // 2] if crop is None else crop
        sides = [*(boxes.anchor[2:] - boxes.anchor[:2]) / large, *(crop[2:] - crop[:2]) / len(positive)]
        found.append(np.abs(shown_at(views["anchor"], key) - shown_at(positive, query)).max() / max(1, *sides))
    return found


@pytest.mark.parametrize(("large", "small"), [(160, 96), (64, 32)])
@pytest.mark.parametrize("resampling", ["antialias", "area"])
def test_both_views_show_the_same_place_at_the_centre_of_an_object(resampling, large, small):
    """By all looks, views that are larger than their crops and smaller ones."""

    @settings(max_examples=50)
    @given(st.integers(0, 2**31 - 1))
    def agree(seed):
        assert max(distances(seed, resampling, large, small), default=0) <= 1

    agree()


def test_objects_change_no_view_and_are_the_same_for_an_image_in_an_epoch():
    with_boxes, without = (ViewMapper.from_config(tiny_config(*OBJECTS, *options)) for options in ((), KNN))
    views, plain, again = with_boxes(PLACES, 1, 2), without(PLACES, 1, 2), with_boxes(PLACES, 1, 2)
    assert all(np.array_equal(views[name], plain[name]) for name in ("anchor", "positive", "small"))
    assert plain["annotations"] == {} and list(views["annotations"]) == ["anchor_objects", "positive_objects"]
    for name, boxes in views["annotations"].items():
        assert np.array_equal(boxes, again["annotations"][name], equal_nan=True)
        assert not np.array_equal(boxes, with_boxes(PLACES, 2, 2)["annotations"][name])


def test_objects_are_the_same_wherever_looks_are_applied():
    configs = [tiny_config(*OBJECTS, "DATALOADER.AUGMENT_ON_DEVICE", on_device) for on_device in (False, True)]
    datasets = [ViewDataset([{"image": PLACES}], ViewMapper.from_config(cfg), PHOTOGRAPHS) for cfg in configs]
    one, other = (dataset.__getitems__([(0, 0), (3, 0)])["positive_objects"] for dataset in datasets)
    assert one.shape == (2, 5, 4) and np.array_equal(one, other, equal_nan=True)


def test_boxes_have_the_stated_sizes_and_each_anchor_all_of_them():
    cfg = tiny_config(*OBJECTS, "VIEWS.LARGE_SCALE", (1.0, 1.0), "VIEWS.POLICY", "standard", "OBJECTS.NUM_BOXES", 8)
    mapper = ViewMapper.from_config(cfg)
    plans = [mapper.plan(SIDE, SIDE, 0, n).annotations for n in range(200)]
    anchors, positives = (np.stack([plan[name] for plan in plans]) for name in plans[0])
    assert anchors.shape == positives.shape == (200, 12, 4) and anchors.dtype == np.float32
    assert np.isfinite(anchors).all() and (anchors >= -1e-3).all() and (anchors <= 64 + 1e-3).all()
    large = anchors[:, :8]  # the two large views show the whole image
    sides = large[..., 2:] - large[..., :2]
    root, ratio = np.sqrt(sides.prod(axis=-1)), sides[..., 0] / sides[..., 1]
    assert 0.3 * 64 * 0.9 < root.min() and root.max() < 0.8 * 64 * 1.1 and 1 / 3.4 < ratio.min() and ratio.max() < 3.4
    assert root.std() > 5 and np.isfinite(positives[:, :8]).all()


@pytest.mark.parametrize(("side", "is_shown"), [(16, True), (15, False)])
def test_objects_of_fewer_than_8_px_in_a_view_are_left_out(side, is_shown):
    """The crops are the whole image of 128 px; the anchor has its size, the positive half of it."""
    crops, look = np.array([[0.0, 0, 128, 128]] * 2), StandardLook((), False, 0.0, False)
    record = {"proposal_boxes": np.array([[10.0, 10, 10 + side, 40]])}
    image = DrawnImage(record, 128, 128, crops, [look, look], np.array([128, 64]), np.random.default_rng)
    boxes = ObjectBoxes(num_boxes=1, scale=(0.5, 0.5), jitter=0.0)(image)
    assert boxes["anchor_objects"].tolist() == [[10, 10, 10 + side, 40]]
    assert np.isfinite(boxes["positive_objects"]).all() == is_shown


def test_an_object_too_small_for_the_anchor_has_its_whole_view_beside_every_positive():
    crops, look = np.array([[0.0, 0, 128, 128]] * 3), StandardLook((), False, 0.0, False)
    record = {"proposal_boxes": np.array([[10.0, 10, 15, 40]])}
    image = DrawnImage(record, 128, 128, crops, [look] * 3, np.array([128, 128, 32]), np.random.default_rng)
    boxes = ObjectBoxes(num_boxes=1, scale=(0.5, 0.5), jitter=0.0)(image)
    assert boxes["anchor_objects"].tolist() == [[0, 0, 128, 128]] * 2  # of the large positive, and of the small one
    assert np.isnan(boxes["positive_objects"]).all()


@pytest.mark.parametrize(("share", "of_file"), [(0.0, 8), (0.25, 6), (0.5, 4), (1.0, 0)])
def test_a_share_of_the_boxes_is_drawn_next_to_proposals(share, of_file):
    region = np.array([0.0, 0, 100, 100])
    proposals = np.array([[x, 0.0, x + 2, 3.0] for x in range(20)])  # smaller than any drawn box
    boxes = ObjectBoxes(8, scale=(0.3, 0.8), jitter=0.0, drawn_share=share)
    chosen = boxes._choose(region, 8, np.random.default_rng(0), proposals)
    is_known = (chosen[:, 2:] - chosen[:, :2] == [2, 3]).all(axis=1)
    assert len(chosen) == 8 and is_known.sum() == of_file and len(np.unique(chosen, axis=0)) == 8
    drawn = boxes._choose(region, 8, np.random.default_rng(0), proposals[:0])
    assert np.array_equal(chosen[of_file:], drawn[: 8 - of_file])


def test_proposals_that_are_too_few_for_their_share_leave_the_rest_to_drawn_boxes():
    boxes, region = ObjectBoxes(4, scale=(0.3, 0.8), jitter=0.0, drawn_share=0.5), np.array([0.0, 0, 100, 100])
    chosen = boxes._choose(region, 4, np.random.default_rng(0), np.array([[1.0, 2, 5, 6]]))
    assert len(chosen) == 4 and chosen[0].tolist() == [1, 2, 5, 6]
    assert (chosen[1:, 2:] - chosen[1:, :2] > 10).all()


def proposals_file(path, *entries) -> str:
    path.write_text(json.dumps([{"image_id": image, "bbox": box, "score": 0.5} for image, box in entries]))
    return str(path)


RECORDS = [{"file_name": "/data/000000000042.jpg"}, {"file_name": "/data/b.jpg", "image_id": "b"}]


def test_proposals_come_before_drawn_boxes_where_both_views_show_them(tmp_path, caplog):
    path = proposals_file(tmp_path / "boxes.json", (42, [30, 40, 50, 20]), (42, [0, 0, 20, 20]))
    options = ("OBJECTS.PROPOSALS", path, "OBJECTS.JITTER", 0.0, "VIEWS.NUM_SMALL", 0, "VIEWS.POLICY", "standard")
    cfg = tiny_config(*OBJECTS, *options, "VIEWS.LARGE_SCALE", (1.0, 1.0))
    first, second = ViewMapper.from_config(cfg).annotator.prepare(RECORDS)
    assert (
        "boxes of 1 of 2 images, by their image_id: those of the others are drawn" in caplog.text
        and "proposal_boxes" not in second
    )
    assert first["proposal_boxes"].tolist() == [[30, 40, 80, 60], [0, 0, 20, 20]]
    picture = Picture(PLACES, "42", record=first)
    found = ViewMapper.from_config(cfg).plan(SIDE, SIDE, 0, 0, picture.record).annotations["anchor_objects"]
    widths = {(round(float(x1 - x0), 3), round(float(y1 - y0), 3)) for x0, y0, x1, y1 in found[:2] * SIDE / 64}
    assert widths == {(50.0, 20.0), (20.0, 20.0)} and found.shape == (3, 4)


def test_a_proposal_of_which_half_is_shown_is_cut_and_one_of_which_less_is_shown_left_out():
    """Of 10 x 10 px, 5 columns lie in the first region and 4 in the second."""
    known, rng = np.array([[0.0, 0.0, 10.0, 10.0]]), np.random.default_rng(0)
    choose = ObjectBoxes(num_boxes=1, scale=(0.9, 0.9), jitter=0.0)._choose
    assert choose(np.array([5, 0, 30, 30]), 1, rng, known).tolist() == [[5, 0, 10, 10]]
    (drawn,) = choose(np.array([6, 0, 30, 30]), 1, rng, known).tolist()
    assert drawn != [6, 0, 10, 10] and drawn[2] - drawn[0] > 5


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            [(42, [1, 2, float("nan"), 4])],
            r"\[0\] has the bbox \[1, 2, nan, 4\], expected \[x, y, width, height\] in px",
        ),
        ([(42, [1, 2, 0, 4])], r"\[0\] has the bbox \[1, 2, 0, 4\]"),
        ([("c", [1, 2, 3, 4])], "has boxes of 0 of 2 images, by their image_id: expected some"),
        (None, "No such file"),
    ],
)
def test_proposals_that_are_no_boxes_of_these_images_are_refused(entries, message, tmp_path):
    path = str(tmp_path / "none.json") if entries is None else proposals_file(tmp_path / "boxes.json", *entries)
    refused(message, with_proposals, path, RECORDS)


@pytest.mark.parametrize("more", [0, 1])
def test_proposals_of_an_evaluation_on_other_images_are_warned_of(more, tmp_path, caplog):
    files = [tmp_path / f"{number}.jpg" for number in range(2 + more)]
    touch(*files)
    records = [{"file_name": str(file), "image_id": number} for number, file in enumerate(files)]
    path = proposals_file(tmp_path / "coco_instances_results.json", (0, [1, 2, 3, 4]), (1, [1, 2, 3, 4]))
    about = {"data_set": "yolo:photos", "classes": {"1": "cat"}, "images": fingerprint(records[:2])}
    (tmp_path / "data_set.json").write_text(json.dumps(about))
    with_proposals(path, records)
    assert ("which differed in number when they were evaluated" in caplog.text) == bool(more)


def test_proposals_are_of_the_image_whose_name_they_have(tmp_path):
    left, middle = [1, 2, 3, 4], [2, 2, 3, 4]
    path = proposals_file(tmp_path / "boxes.json", ("1_left", left), ("0042", middle), ("000", middle))
    names = ("a/1_left.jpg", "a/01_left.jpg", "a/042.jpg", "a/0.jpg", "a/c.jpg", "b/c.jpg")
    images = with_proposals(path, [{"file_name": name} for name in names])
    assert [image["file_name"] for image in images if "proposal_boxes" in image] == [*names[:1], *names[2:4]]
    message = "has boxes of 1_left, as several images are called: expected an image_id"
    refused(message, with_proposals, path, [{"file_name": f"{folder}/1_left.jpg"} for folder in "ab"])
    refused("has boxes of 42, as", with_proposals, path, [{"file_name": "a/42.jpg"}, {"image_id": 42}])


def test_images_too_small_and_proposals_outside_are_replaced_with_a_line_each():
    cfg = tiny_config(*OBJECTS, "VIEWS.NUM_SMALL", 0)
    small = {"image": PLACES[:7], "file_name": "small"}
    outside = {"image": PLACES, "proposal_boxes": np.array([[130.0, 10, 150, 20]])}
    batch = ViewDataset([small, outside, {"image": PLACES}], ViewMapper.from_config(cfg), PHOTOGRAPHS).__getitems__(
        [(0, 0)]
    )
    assert [error.partition(": ")[2] for error in batch["read_errors"]] == [
        "120 x 7 px, and objects need 8 px",
        "120 x 120 px, and OBJECTS.PROPOSALS has [130.0, 10.0, 150.0, 20.0] outside it",
    ]
    assert batch["positive_objects"].shape == (1, 3, 4)
    with pytest.raises(UnreadableImageError, match="b: 7 x 9 px, and objects need 8 px"):
        proposed_boxes(DrawnImage({"file_name": "b"}, 9, 7, *[None] * 4))
