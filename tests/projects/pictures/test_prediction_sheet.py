"""Sheets show what they are given: colours at their places, one scale of depth, nothing outside its panel."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import pytest
from matplotlib.font_manager import findfont

from projects.Pictures import fonts
from projects.Pictures import prediction_sheet as sheet
from projects.Pictures.prediction_sheet import RANKS, STRONG, THIN, class_colors, depth_row, draw_objects, draw_ranked
from projects.Pictures.tiles import PANEL
from revisit.boxes.boxes import Boxes

NAMES = ["background", "cat", "dog", "a bird with a long name"]
GREY = np.full((PANEL, PANEL, 3), 128, np.uint8)  # of a panel's size, so that nothing is resized


def objects(*boxes, classes=None, scores=None, masks=None):
    scores = None if scores is None else np.array(scores)
    return Boxes(np.array(boxes, float).reshape(-1, 4), np.array(classes or [1] * len(boxes), int), scores, masks)


def num_label_pixels(panel):
    """Pixels of the dark plates behind names, on grey."""
    return int((panel.max(axis=-1) < 60).sum())


def test_classes_are_painted_over_the_image_and_void_is_left_alone():
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 10
    labels = np.array([[0, 1, 255], [2, 255, 1]], np.uint8)
    colors = np.array([[0, 0, 0], [250, 0, 100], [0, 200, 0]], np.uint8)
    painted = sheet.paint_classes(image, labels, colors)
    assert np.array_equal(painted[0, 2], image[0, 2]) and np.array_equal(painted[1, 1], image[1, 1])
    assert painted[0, 0].tolist() == [0, 4, 8]  # 0.4 of 0, 10, 20
    assert painted[0, 1].tolist() == [162, 16, 80]  # 0.4 of 30, 40, 50 and 0.6 of the colour
    assert painted[1, 2].tolist() == [210, 64, 128]  # 0.4 of 150, 160, 170


@pytest.mark.parametrize("num_classes", [11, 21, 40])
def test_every_class_has_a_colour_of_its_own_and_the_background_none(num_classes):
    colors = class_colors(["background", *map(str, range(1, num_classes))])
    assert len({tuple(color) for color in colors.tolist()}) == num_classes
    assert colors[0].tolist() == [0, 0, 0]


def test_letters_that_one_font_lacks_are_drawn_by_another(monkeypatch):
    serif = findfont("DejaVu Serif")
    monkeypatch.setattr(fonts, "_fonts", lambda: (serif,))
    assert fonts.font_of("a\u02ef") == serif and fonts.font_of("a") == fonts.own_font()
    one, other = (draw_objects(GREY, objects([50, 50, 200, 200]), ["", f"a{letter}"]) for letter in "\u02ef\u02f0")
    assert (one != other).any()  # as squares they are alike


def test_fonts_with_damaged_letters_are_left_out(tmp_path, monkeypatch):
    serif = Path(findfont("DejaVu Serif"))
    content = bytearray(serif.read_bytes())
    tables = {bytes(content[place : place + 4]): content[place + 8 : place + 16] for place in range(12, 300, 16)}
    damaged = tmp_path / "damaged.ttf"
    begin, length = (int.from_bytes(part) for part in (tables[b"glyf"][:4], tables[b"glyf"][4:]))
    content[begin : begin + length] = bytes([0, 1, 0xFF, 0xFF]) * (length // 4) + bytes(length % 4)
    damaged.write_bytes(content)
    monkeypatch.setattr(fonts, "_fonts", lambda: (str(damaged), str(serif)))
    fonts.font_of.cache_clear()
    assert fonts.font_of("b\u02ef") == str(serif)


def test_letters_that_no_font_has_are_named_once(monkeypatch, caplog):
    monkeypatch.setattr("detectron2.utils.logger._LOG_COUNTER", Counter())
    monkeypatch.setattr(fonts, "_fonts", tuple)
    assert {fonts.font_of(text) for text in ("\u88c2", "\u7f1d")} == {fonts.own_font()}
    (message,) = caplog.messages
    assert "no font of this machine has all letters of \u88c2" in message


def test_both_panels_of_depth_share_the_scale_of_the_truth():
    truth = np.zeros((PANEL, PANEL), np.float32)
    truth[100:200], truth[200:300], truth[300:] = 1, 2, 5
    prediction = np.full((PANEL, PANEL), 2, np.float32)
    prediction[:100], prediction[100:200] = -3, 90
    row = depth_row("a", GREY, truth, prediction)
    _, seen, estimated = row.tiles
    assert row.depth_range == (1, 5)
    assert seen[50, 5].tolist() == [0, 0, 0]  # missing
    assert np.array_equal(estimated[250, 5], seen[250, 5])
    assert np.array_equal(estimated[50, 5], seen[150, 5])  # nearer than the scale begins
    assert np.array_equal(estimated[150, 5], seen[350, 5])  # farther than it ends
    assert len({tuple(seen[y, 5].tolist()) for y in (50, 150, 250, 350)}) == 4


def test_a_box_is_drawn_at_its_place_in_the_colour_of_its_class():
    small = GREY[: PANEL // 2, : PANEL // 2]  # so places double
    panel = draw_objects(small, objects((50, 40, 150, 120), classes=[2]), NAMES)
    color = class_colors(NAMES)[2].astype(int)
    assert panel.shape == GREY.shape
    for y, x in ((240, 200), (160, 100), (160, 300)):  # bottom, left, right; the name covers the top
        assert np.abs(panel[y, x] - color).max() < 30
    for y, x in ((160, 200), (300, 200), (160, 50)):
        assert panel[y, x].tolist() == [128, 128, 128]


def test_a_mask_tints_its_pixels():
    mask = np.zeros((1, PANEL, PANEL), bool)
    mask[0, 100:200, 100:200] = True
    panel = draw_objects(GREY, objects((90, 60, 220, 220), masks=mask), NAMES)
    tinted = 0.6 * 128 + 0.4 * class_colors(NAMES)[1]
    assert np.abs(panel[150, 150] - tinted).max() < 3
    assert panel[210, 150].tolist() == [128, 128, 128]


@pytest.mark.parametrize("corner", [(0, 0), (PANEL - 40, PANEL - 5), (-30, -30)])
def test_a_name_is_not_cut_by_the_border(corner):
    x, y = corner
    middle = draw_objects(GREY, objects((100, 100, 140, 105), classes=[3]), NAMES)
    panel = draw_objects(GREY, objects((x, y, x + 40, y + 5), classes=[3]), NAMES)
    assert num_label_pixels(panel) == pytest.approx(num_label_pixels(middle), rel=0.05)


def test_names_of_boxes_at_one_place_do_not_cover_each_other():
    box = (100, 100, 300, 300)
    one = num_label_pixels(draw_objects(GREY, objects(box), NAMES))
    panel = draw_objects(GREY, objects(box, box, box), NAMES)
    assert num_label_pixels(panel) == pytest.approx(3 * one, rel=0.05)
    assert draw_objects(GREY, objects(*[box] * 60), NAMES).shape == GREY.shape  # more than there is room for


def test_a_name_is_no_formula_and_has_one_line():
    """As wide as the same name of other signs; what is no text at all ends nothing."""

    def drawn(name):
        return draw_objects(GREY, objects((100, 100, 140, 105), classes=[0]), [name])

    for name, alike in (("a$b$", "a€b€"), ("coin_$1_$2", "coin_€1_€2"), ("a\nb", "a\\nb")):
        assert num_label_pixels(drawn(name)) == pytest.approx(num_label_pixels(drawn(alike)), rel=0.02)
    assert num_label_pixels(drawn("\ud800"))


def test_labels_fit_into_a_narrow_image():
    assert sheet.shortened("cat 0.50", 100) == "cat 0.50"
    for text, width in (("a bird with a long name 0.50", 100), ("abcdefghijklmnopqrstuvwxyz", 60), ("a b", 1)):
        assert len(sheet.shortened(text, width)) <= max(2, (width - 4) / sheet.LETTER)
    assert sheet.shortened("a bird with a long name 0.50", 100) == "a bird wi… 0.50"


def test_scores_stand_after_names_and_the_surest_keeps_the_top():
    box = (100, 100, 300, 300)
    plain = draw_objects(GREY, objects(box), NAMES)
    sure, unsure = (draw_objects(GREY, objects(box, scores=[s]), NAMES) for s in (0.9, 0.1))
    assert num_label_pixels(sure) > 1.3 * num_label_pixels(plain)
    both = draw_objects(GREY, objects(box, box, scores=[0.1, 0.9]), NAMES)
    top = np.s_[105:113, 120:150]  # of the label, inside the frames
    assert np.array_equal(both[top], sure[top]) and not np.array_equal(both[top], unsure[top])


def width_of_line(panel, color, row):
    """Most px of one colour next to each other in a row."""
    is_line = (panel[row] == color).all(axis=-1)
    changes = np.flatnonzero(np.diff(np.concatenate([[0], is_line, [0]])))
    return max(np.diff(changes)[::2], default=0)


def test_ranked_boxes_are_outlines_the_best_three_strong_and_on_top():
    boxes = np.array([(20 + 20 * n, 20 + 5 * n, 400, 400 - 30 * n) for n in range(8)], float)
    boxes[5] = boxes[0]
    panel = draw_ranked(GREY, np.concatenate([boxes, boxes[:1] + 3]))  # a ninth has no colour
    widths = [width_of_line(panel, color, 100) for color, _ in RANKS]
    assert {*widths[:3]} == {STRONG + 1} and {*widths[3:]} == {THIN + 1, 0} and widths.index(0) == 5
    inside = panel[60:130, 190:380]
    assert (inside == 128).all()
    assert np.array_equal(draw_ranked(GREY, np.zeros((0, 4))), GREY)
    whole = draw_ranked(GREY[:300, :400], np.array([[-9.0, 0, 400, 300]]))  # all four lines are seen
    for line in (whole[:, 200], whole[::-1, 200], whole[150], whole[150, ::-1]):
        assert (line[:8] == RANKS[0][0]).all(axis=-1).sum() >= STRONG


# Machado, Oliveira and Fernandes 2009: what is left of linear RGB without one kind of cone.
WITHOUT = {
    "long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "medium": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("cones", WITHOUT)
def test_colour_blind_people_tell_ranks_apart(cones):
    srgb = np.array([color for color, _ in RANKS]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = (linear @ np.transpose(WITHOUT[cones])).clip(0, 1)
    seen = np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055)
    (lab,) = cv2.cvtColor(seen[None].astype(np.float32), cv2.COLOR_RGB2LAB)
    apart = {pair: np.linalg.norm(lab[pair[0]] - lab[pair[1]]) for pair in combinations(range(len(RANKS)), 2)}
    assert min(apart.values()) > 15  # 2.3 can just be seen next to each other
    assert min(apart[pair] for pair in combinations(range(3), 2)) > 30
