"""Groups of copies are scored by pairs, and ways of choosing images by a classifier of them."""

import itertools

import numpy as np
from checkpoints import run_checkpoint, write_converted
from commands import one_line_error, run

from projects.Rows.row_table import RowTable, save_table
from studies.curation.score_groups import pair_scores


def test_scores_of_groups_count_pairs():
    groups, truth = list("aabbbc"), list("112223")
    pairs = [*itertools.combinations(range(6), 2)]
    ours = [groups[one] == groups[other] for one, other in pairs]
    true = [truth[one] == truth[other] for one, other in pairs]
    right = sum(a and b for a, b in zip(ours, true, strict=True))
    assert pair_scores(groups, truth) == (right / sum(ours), right / sum(true))
    assert pair_scores(["a", "b"], ["1", "2"]) == (1.0, 1.0)


def test_copies_are_made_embedded_found_and_scored(write_pictures, tmp_path):
    write_pictures(tmp_path / "photos", 3, size=(64, 96))
    make = f"python studies/curation/make_copies.py --data folder:{tmp_path}/photos --output {tmp_path}/copies"
    assert "6 copies of 2 images" in run(f"{make} --copies 3 --first 2", tmp_path)
    weights = write_converted(run_checkpoint(), tmp_path / "backbone.pth")
    embed = f"python tools/embed.py --weights {weights} --data folder:{tmp_path}/copies --size 32 --readers 0"
    run(f"{embed} --output {tmp_path}/rows", tmp_path)
    run(f"python tools/curate.py --embeddings {tmp_path}/rows --rule bits=64 --output {tmp_path}/out", tmp_path)
    score = f"--groups {tmp_path}/out/groups.csv --truth {tmp_path}/copies/truth.csv"
    assert "truly 2: precision " in run(f"python studies/curation/score_groups.py {score}", tmp_path)
    other = score.replace("copies/truth", "out/clusters")
    assert "group is missing" in one_line_error(f"python studies/curation/score_groups.py {other}", tmp_path)


def test_each_way_of_choosing_is_scored(write_pictures, tmp_path):
    rows = np.eye(6)[np.arange(12) // 6] + np.random.default_rng(0).normal(0, 0.1, (12, 6))
    files = np.array(list(map(str, write_pictures(tmp_path / "photos", 12))))
    boxes = np.array([[0, 0, 40, 30]] * 12, np.float32)
    table = RowTable(rows.astype(np.float32), files, boxes, np.array([""] * 12), {"of": "image"})
    classes = np.array([f"class {n // 6}" for n in range(12)])
    (tmp_path / "rows").mkdir()
    save_table(tmp_path / "rows/embeddings.npz", table._replace(classes=classes))
    words = f"--embeddings {tmp_path}/rows --test {tmp_path}/rows --labels 6 12 --seeds 0 1"
    study = f"python studies/curation/selection_study.py {words}"
    lines = run(study, tmp_path).splitlines()
    assert len(lines) == 8 and "| 12 | random | 100.0 ± 0.0 | " in "".join(lines)
    one = run(study.replace("6 12", "1"), tmp_path)  # of one class, which is half of the images
    assert one.count("| 50.0 ± 0.0 | 50.0 ± 0.0 | 1 |") == 3
    assert "--labels 13: expected 12 at most" in one_line_error(study.replace("6 12", "6 13"), tmp_path)
    save_table(tmp_path / "rows/embeddings.npz", table)
    text = one_line_error(f"python studies/curation/selection_study.py {words}", tmp_path)
    assert "a row has no class: expected tables of --data class_folders:DIR" in text
