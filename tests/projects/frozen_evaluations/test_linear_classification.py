"""Linear classification: scores by hand, the path of lambdas, SGD that resumes, and the command for every method."""

from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from tiny import tiny_config
from trees import pack, refused

from projects.FrozenEvaluations import linear as linear
from projects.FrozenEvaluations.labelled_sets import LabelledSet, check_classes, transform_of
from projects.FrozenEvaluations.sgd import LinearTraining, random_view
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import read_record
from revisit.data.sources.catalog import get_records
from revisit.engine.setup import make_config
from revisit.evaluation.features import center_crop
from revisit.network.network import Network

from detectron2.config import CfgNode

SMALL = "LINEAR.IMAGE_SIZE 32 LINEAR.LAMBDAS '(1e-3,1e3,5)' LINEAR.MAX_ITER 50"
SEVERAL = "DATASETS.TRAIN \"('toy_voc_labels_trainval',)\" DATASETS.TEST \"('toy_voc_labels_test',)\""


def linear_options(**changed):
    return CfgNode(tiny_config().LINEAR | changed)


def ap_by_definition(scores, present, levels=None):
    """AP over ranks, one by one: at given recalls, or as the area under the best precision from each recall on."""
    order = sorted(range(len(scores)), key=lambda n: (-scores[n], n))
    total, found, points = sum(present), 0, []
    for rank, index in enumerate(order, start=1):
        found += present[index]
        points.append((found / total, found / rank))
    best = [max(p for r, p in points if r >= recall - 1e-12) for recall, _ in points]
    if levels is None:
        recalls = [0.0] + [recall for recall, _ in points]
        return 100 * sum((b - a) * p for a, b, p in zip(recalls, recalls[1:], best, strict=False))
    return 100 * sum(max((p for r, p in points if r >= level - 1e-12), default=0) for level in levels) / len(levels)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=30))
def test_ap_equals_its_definitions(images):
    scores, present = np.array([s for s, _ in images], float), np.array([p for _, p in images])
    assume(present.any())
    assert linear.envelope_ap(scores, present) == pytest.approx(ap_by_definition(scores, present))
    levels = [n / 10 for n in range(11)]
    assert linear.eleven_point_ap(scores, present) == pytest.approx(ap_by_definition(scores, present, levels))


def test_difficult_classes_are_absent_or_left_out():
    rows, targets = np.arange(4)[:, None], np.array([[1, 0, -1, 1]]).T
    ((counted, present),) = linear.columns(rows, targets, difficult_is_absent=True)
    assert counted[:, 0].tolist() == [0, 1, 2, 3] and present.tolist() == [True, False, False, True]
    ((counted, present),) = linear.columns(rows, targets, difficult_is_absent=False)
    assert counted[:, 0].tolist() == [0, 2, 3] and present.tolist() == [True, False, True]


@pytest.fixture
def clouds():
    """Three overlapping classes in 8 dimensions: (features, classes) to train on and to test on."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 8))

    def draw(count):
        labels = rng.integers(0, 3, count)
        return (centres[labels] + rng.normal(size=(count, 8))).astype(np.float32), labels

    return draw(300), draw(2000)


def test_the_warm_path_ends_where_a_cold_fit_does(clouds):
    train, test = clouds
    path = linear.fit_path(train, test, linear_options())
    assert [point.strength for point in path] == pytest.approx(np.logspace(5, -5, 45))
    assert all(point.converged for point in path)
    best = max(path, key=lambda point: point.score)
    assert best.score > 60
    for point in (best, *path[::6]):
        cold = LogisticRegression(C=1 / point.strength, max_iter=5000).fit(*train)
        assert point.score == pytest.approx(100 * cold.score(*test), abs=0.1)


def test_the_svm_is_that_of_the_protocol():
    rng = np.random.default_rng(1)
    labels = rng.choice([1, 0, -1], size=(300, 2), p=[0.2, 0.1, 0.7])
    rows = 3 * (labels @ rng.normal(size=(2, 6)) + 2 * rng.normal(size=(300, 6)))
    unit = rows / (np.sqrt((rows**2).sum(axis=1, keepdims=True)) + 1e-5)
    for absent in (True, False):
        options = linear_options(DIFFICULT_IS_ABSENT=absent)
        scores, weight, bias = linear.svm_ap((rows[:200], labels[:200]), (rows[200:], labels[200:]), options)
        for column in range(2):
            learnt, judged = ((labels[part, column] != 0) | absent for part in (slice(200), slice(200, None)))
            exact = {"loss": "squared_hinge", "dual": False, "tol": 1e-8, "max_iter": 20000}
            machine = LinearSVC(C=0.5, class_weight={1: 2, -1: 1}, **exact)
            machine.fit(unit[:200][learnt], np.where(labels[:200, column][learnt] == 1, 1, -1))
            assert np.allclose(weight[column], machine.coef_[0], atol=2e-3)
            present = (labels[200:, column][judged] == 1).tolist()
            expected = ap_by_definition((unit[200:][judged] @ weight[column] + bias[column]).tolist(), present)
            assert scores[column] == pytest.approx(expected) and 20 < scores[column] < 100


@pytest.mark.parametrize(("train", "test"), [([0, 1], [0, 2]), ([[1, 1]], [[1, -1]]), ([0, 1], [[1, 1]])])
def test_classes_that_cannot_be_scored_are_refused(train, test):
    refused("train_set|test_set", check_classes, np.array(train), np.array(test), ("train_set", "test_set"))


def test_a_class_that_every_training_image_shows_is_refused():
    train, test = np.array([[1, -1], [1, 1]]), np.array([[1, 1], [-1, 1]])
    refused("every image of train_set shows class 0", check_classes, train, test, ("train_set", "test_set"))
    with_difficult = (np.array([[1, -1], [0, 1]]), test, ("train_set", "test_set"))
    check_classes(*with_difficult)
    refused("every image of train_set shows class 0", check_classes, *with_difficult, difficult_is_absent=False)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_logistic_regression_reports_its_path_and_features_are_computed_once(pretrained, run_project):
    output, results = run_project("FrozenEvaluations/linear", SMALL, pretrained / "backbone.pth")
    assert [point["strength"] for point in results["path"]] == pytest.approx([1e3, 10**1.5, 1, 10**-1.5, 1e-3])
    best = max(results["path"], key=lambda point: point["score"])
    assert results["lambda"] == best["strength"] and results["validation"] == round(best["score"], 2)
    assert cv2.imread(str(output / "path.png")).std() > 5
    classifier = torch.load(output / "classifier.pth", weights_only=True)
    assert classifier["weight"].shape == (10, 64) and classifier["bias"].shape == (10,)
    assert (classifier["transform"], classifier["image_size"]) == ("square", 32)
    # The last fit has seen the training and the validation images.
    rows, targets = {}, {}
    for split in ("train", "val", "test"):
        (file,) = (output / "features").glob(f"toy_classification_{split}-*.npy")
        rows[split] = np.load(file)
        targets[split] = [record["label"] for record in get_records(f"toy_classification_{split}")]
    expected = LogisticRegression(C=1 / results["lambda"], max_iter=50)
    expected.fit(np.concatenate([rows["train"], rows["val"]]), targets["train"] + targets["val"])
    assert np.allclose(classifier["weight"].numpy(), expected.coef_, atol=1e-4)
    assert results["top1"] == round(100 * expected.score(rows["test"], targets["test"]), 2)
    options = f"{SMALL} LINEAR.METHOD knn LINEAR.CACHE {output}/features"
    assert run_project("FrozenEvaluations/linear", options, pretrained / "backbone.pth")[1]["top1"] >= 0
    assert len([*output.glob("features/*.npy")]) == 3  # as before


def test_two_classes_have_two_rows():
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    classifier = linear.Classifier(linear_options())
    classifier.fit(rows, targets, 1.0)
    weight, bias = (part.numpy() for part in classifier.weights())
    logits = rows @ weight.T + bias
    assert 100 * np.mean(logits.argmax(axis=1) == targets) == classifier.score(rows, targets)
    model = LogisticRegression(C=1.0, max_iter=1000).fit(rows, targets)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)  # a softmax of them gives its probabilities
    np.testing.assert_allclose(shares, model.predict_proba(rows), atol=1e-4)


def test_a_class_without_an_image_has_a_row_that_nothing_is_taken_for(tmp_path):
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(60, 3)), rng.choice([0, 2, 5], 60)
    classifier = linear.Classifier(linear_options())
    classifier.fit(rows, targets, 1.0)
    cfg = tiny_config("DATASETS.TRAIN", ("toy_classification_train",), "OUTPUT_DIR", str(tmp_path))
    linear.save_classifier(cfg, *classifier.weights(), classifier.labels())
    saved = torch.load(tmp_path / "classifier.pth", weights_only=True)
    logits = rows @ saved["weight"].numpy().T + saved["bias"].numpy()
    assert logits.shape == (60, 10) and len(saved["classes"]) == 10
    assert 100 * np.mean(logits.argmax(axis=1) == targets) == classifier.score(rows, targets)


@pytest.mark.parametrize("several", [1, 3])
def test_several_labels_have_a_row_for_each(several):
    rng = np.random.default_rng(0)
    classifier = linear.Classifier(linear_options())
    classifier.fit(rng.normal(size=(40, 3)), rng.choice([-1, 1], (40, several)), 1.0)
    assert classifier.weights()[0].shape == (several, 3) and classifier.labels() == list(range(several))


def test_a_backbone_that_changes_under_its_layer_ends_the_training(train_layer, tmp_path):
    training = train_layer()
    next(training._backbone.network.parameters()).data.mul_(2)
    with pytest.raises(RuntimeError, match="frozen backbone has changed"):
        training.run(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "share", "held_out"),
    [((50, 20, 5), 0.2, [10, 4, 1]), ((2, 3, 1), 0.1, [1, 1, 0]), ((2, 3, 1), 0.9, [1, 2, 0])],
)
def test_a_share_of_every_class_is_split_off_and_leaves_some(sizes, share, held_out):
    targets = np.repeat([0, 1, 2], sizes)
    kept, held = linear.split_off(targets, share, seed=0)
    assert sorted([*kept, *held]) == list(range(len(targets)))
    assert np.bincount(targets[held], minlength=3).tolist() == held_out
    assert np.array_equal(held, linear.split_off(targets, share, seed=0)[1])
    if len(targets) > 6:
        assert not np.array_equal(held, linear.split_off(targets, share, seed=1)[1])
    refused("one image of each class.*or LINEAR.VALIDATION", linear.split_off, np.arange(3), share, seed=0)


@pytest.mark.parametrize("method", ["logistic", "svm"])
def test_images_of_several_classes_are_scored_by_map(method, pretrained, run_project):
    options = f"{SMALL} {SEVERAL} LINEAR.VALIDATION '' LINEAR.METHOD {method}"
    assert 0 < run_project("FrozenEvaluations/linear", options, pretrained / "backbone.pth")[1]["mAP"] < 100


@pytest.fixture
def train_layer():
    """Three epochs of SGD on noise; the training, not yet run."""
    rng = np.random.default_rng(0)
    targets = np.arange(20) % 4
    records = [{"image": rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)} for _ in targets]
    cfg = tiny_config("SOLVER.EPOCHS", 3, "SOLVER.STEP_EPOCHS", (2,), "SOLVER.IMS_PER_BATCH", 8)
    cfg.LINEAR.IMAGE_SIZE = 32

    def make(epochs=3, *options, targets=targets):
        cfg.SOLVER.EPOCHS = epochs
        cfg.merge_from_list(list(options))
        data = LabelledSet("noise", records, targets)
        return LinearTraining(cfg, Network.of_config(cfg), data, data)

    return make


@pytest.mark.parametrize("count", [3, 200])
def test_random_views_have_every_channel_as_if_it_were_alone(count):
    image = np.random.default_rng(0).integers(0, 256, (20, 30, count), np.uint8)
    for seed in range(4):  # some of which flip
        view, *alone = (
            random_view(np.ascontiguousarray(part), 16, np.random.default_rng(seed))
            for part in (image, *np.split(image, count, axis=2))
        )
        assert view.flags["C_CONTIGUOUS"] and np.array_equal(view, np.concatenate(alone, axis=2))


def test_sgd_resumes_where_it_was_stopped(train_layer, tmp_path):
    whole, stopped, folder = train_layer(), train_layer(), tmp_path / "stopped"
    folder.mkdir()
    expected = whole.run(tmp_path)
    scores = {name: expected[0][name] for name in ("top1", "top5")}
    stopped.evaluate = Mock(side_effect=[scores, KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        stopped.run(folder)
    again = train_layer()
    assert again.run(folder) == expected and len(expected) == 3
    assert torch.equal(again.layer.weight, whole.layer.weight) and torch.equal(again.layer.bias, whole.layer.bias)


def test_corrected_labels_of_the_same_images_are_learned_and_a_state_without_labels_is_resumed(train_layer, tmp_path):
    before = train_layer().run(tmp_path)
    assert train_layer(targets=np.arange(20) // 5).run(tmp_path) != before
    of_earlier_version = torch.load(tmp_path / "sgd.pth")
    del of_earlier_version["labels"]
    torch.save(of_earlier_version, tmp_path / "sgd.pth")
    assert train_layer().run(tmp_path) == of_earlier_version["history"]


def test_the_loss_of_an_epoch_is_the_mean_over_images_whatever_the_batches(train_layer, tmp_path):
    """At a rate of 0, so that all batches see the same layer; 20 images are two batches of 8 and one of 4."""
    losses = []
    for batch in (8, 20, 1):
        training = train_layer(1, "SOLVER.BASE_LR", 0.0, "SOLVER.IMS_PER_BATCH", batch)
        (tmp_path / str(batch)).mkdir()
        losses.append(training.run(tmp_path / str(batch))[0]["loss"])
    assert losses == pytest.approx([losses[1]] * 3, abs=1e-4)


@pytest.mark.parametrize("method", ["knn", "logistic"])
def test_test_images_that_are_learned_from_are_warned_of(method, pretrained, run_project, caplog):
    same = f"DATASETS.TEST \"('toy_classification_train',)\" LINEAR.METHOD {method}"
    run_project("FrozenEvaluations/linear", f"{SMALL} {same}", pretrained / "backbone.pth")
    count = len(get_records("toy_classification_train"))
    assert f"{count} of {count} images of toy_classification_train are in toy_classification_train, too" in caplog.text


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_validation_images_that_are_learned_from_are_warned_of(pretrained, run_project, caplog):
    same = f"{SMALL} LINEAR.VALIDATION toy_classification_train"
    run_project("FrozenEvaluations/linear", same, pretrained / "backbone.pth")
    assert "toy_classification_train, too: lambda is chosen on what is learned from" in caplog.text


def test_a_layer_is_trained_by_the_command(pretrained, run_project):
    options = f"{SMALL} LINEAR.METHOD sgd SOLVER.EPOCHS 2 SOLVER.STEP_EPOCHS '(1,)' SOLVER.IMS_PER_BATCH 16"
    output, results = run_project("FrozenEvaluations/linear", options, pretrained / "backbone.pth")
    assert len(results["history"]) == 2 and (output / "curves.png").is_file()
    layer = torch.load(output / "classifier.pth", weights_only=True)
    backbone = Network.of_config(tiny_config("MODEL.WEIGHTS", str(pretrained / "backbone.pth")))
    records = get_records("toy_classification_test")
    crops = torch.stack(
        [torch.from_numpy(center_crop(read_record(r, PHOTOGRAPHS), 32)).permute(2, 0, 1) for r in records]
    )
    logits = backbone.last_map(crops).mean(dim=(2, 3)) @ layer["weight"].T + layer["bias"]
    right = logits.topk(5, dim=1).indices == torch.tensor([record["label"] for record in records])[:, None]
    expected = [round(100 * hits.sum().item() / len(records), 2) for hits in (right[:, 0], right.any(dim=1))]
    assert [results["top1"], results["top5"]] == expected


def test_images_in_shards_are_classified_as_those_in_folders(pretrained, run_project, toy_datasets, tmp_path):
    scores = []
    for kind in ("class_folders", "shards"):
        names = []
        for part in ("train", "heldout"):
            folder = toy_datasets / "toy_scenes/object_centric" / part
            pack(f"--data class_folders:{folder} --output {tmp_path / part} --count 2")
            names.append(f"('{kind}:{tmp_path / part if kind == 'shards' else folder}',)")
        data = f'DATASETS.TRAIN "{names[0]}" DATASETS.TEST "{names[1]}"'
        options = f"{SMALL} {data} LINEAR.METHOD knn"
        _, results = run_project("FrozenEvaluations/linear", options, pretrained / "backbone.pth")
        scores.append(results["top1"])
    assert scores[0] == scores[1]


def test_own_images_are_classified_as_the_evaluation_of_their_pretraining_sees_them():
    ours = make_config("projects/FrozenEvaluations/configs/linear/own_images.yaml", ())
    pretraining = make_config("configs/own_images/pretrain.yaml", ())
    assert transform_of(ours) == "center_crop" and ours.LINEAR.IMAGE_SIZE == pretraining.KNN_EVAL.IMAGE_SIZE
    same = ("NUM_NEIGHBORS", "TEMPERATURE")
    assert [ours.KNN_EVAL[key] for key in same] == [pretraining.KNN_EVAL[key] for key in same]
