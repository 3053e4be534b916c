"""How many of the boxes nearest to a box are of its class."""

import numpy as np
from commands import one_line_error, run

from projects.Rows.row_table import TABLE, RowTable, save_table

SCRIPT = "python studies/groups/purity_study.py"


def test_a_boxs_nearest_ones_are_of_other_images_and_classes_count_alike(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    files = np.array([f"{n // 6}.jpg" for n in range(60)])
    classes = np.array(["cat" if n % 5 else "dog" for n in range(60)])
    save_table(tmp_path / TABLE, RowTable(rows, files, np.zeros((60, 4), np.float32), classes, {"of": "box"}))
    percents = []
    for n in range(60):
        others = [m for m in range(60) if files[m] != files[n]]
        nearest = sorted(others, key=lambda m: -float(rows[n].astype(float) @ rows[m].astype(float)))[:3]
        percents.append(100 * np.mean([classes[m] == classes[n] for m in nearest]))
    dogs = [n for n in range(60) if classes[n] == "dog"]
    cats = [n for n in range(60) if classes[n] == "cat"]
    of_classes = np.mean([np.mean([percents[n] for n in kind]) for kind in (dogs, cats)])
    text = run(f"{SCRIPT} --embeddings {tmp_path} --nearest 3", tmp_path)
    assert text.endswith(f"| 60 | {np.mean(percents):.1f} | {of_classes:.1f} |\n")
    text = one_line_error(f"{SCRIPT} --embeddings {tmp_path} --nearest 55", tmp_path)
    assert "have 54 of other images to compare with; expected at least the 55" in text


def test_boxes_without_a_class_are_refused(tmp_path):
    rows, files = np.eye(3, dtype=np.float32), np.array(["a", "b", "c"])
    classes = np.array(["cat", "", "cat"])
    save_table(tmp_path / TABLE, RowTable(rows, files, np.zeros((3, 4), np.float32), classes, {"of": "box"}))
    assert "a row has no class" in one_line_error(f"{SCRIPT} --embeddings {tmp_path}", tmp_path)
