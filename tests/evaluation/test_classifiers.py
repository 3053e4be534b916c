import math
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tiny import tiny_config, tiny_model
from torch.nn.functional import normalize as unit

from projects.FrozenEvaluations.while_pretraining import fit_linear
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import require_record
from revisit.data.sources.catalog import get_records
from revisit.evaluation.classifiers import knn_classify, top1
from revisit.evaluation.features import Features, center_crop, extractor


@pytest.mark.parametrize("temperature", [0.1, 0.005])  # exp(1 / 0.005) is beyond float32
def test_votes_equal_a_direct_evaluation(temperature):
    generator = torch.Generator().manual_seed(0)
    bank = Features(unit(torch.randn(40, 6, generator=generator)), torch.randint(0, 4, (40,), generator=generator))
    rows = unit(torch.randn(25, 6, generator=generator))
    predictions = knn_classify(bank, rows, k=7, temperature=temperature)
    for row, prediction in zip(rows.double().numpy(), predictions, strict=True):
        similarity = bank.rows.double().numpy() @ row
        votes = np.zeros(4)
        for n in np.argsort(-similarity)[:7]:
            votes[bank.labels[n]] += np.exp(similarity[n] / temperature)
        assert prediction == votes.argmax()


def test_top1_is_a_percentage():
    bank = Features(torch.eye(3), torch.tensor([0, 1, 2]))
    test = Features(torch.eye(3)[[0, 1, 2, 2]], torch.tensor([0, 1, 2, 0]))
    assert top1(partial(knn_classify, bank, k=1, temperature=0.1), test) == pytest.approx(75.0)


def test_the_linear_classifier_equals_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    centres, labels = torch.randn(3, 8, generator=generator), torch.arange(2600) % 3
    rows = unit(centres[labels] + 2 * torch.randn(2600, 8, generator=generator))
    bank, test = Features(rows[:1500].clone(), labels[:1500]), Features(rows[1500:].clone(), labels[1500:])
    found = top1(fit_linear(bank), test)
    exact = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    exact.fit(rows[:1500].double().numpy(), labels[:1500].numpy())
    expected = 100 * exact.score(rows[1500:].double().numpy(), labels[1500:].numpy())
    assert 40 < expected < 95 and found == pytest.approx(expected, abs=0.1)
    assert torch.equal(test.rows, rows[1500:]) and torch.allclose(bank.rows, rows[:1500], atol=1e-6)


def test_a_bank_of_few_images_is_standardised_by_their_own_deviation():
    """Not by an estimate of another one: with 5 images that would be another classifier."""
    rows = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
    labels = torch.tensor([0, 0, 1, 1, 1])
    exact = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    exact.fit(rows.double().numpy(), labels.numpy())
    angles = torch.linspace(0, 2 * math.pi, 4000)
    around = torch.stack([angles.cos(), angles.sin()], dim=1)
    expected = torch.from_numpy(exact.predict(around.double().numpy()))
    assert 0 < (expected == 0).sum() < 2000
    assert (fit_linear(Features(rows, labels))(around) != expected).sum() < 3  # at the edge of what float32 tells apart


def test_center_crop_takes_the_middle_seven_eighths():
    image = np.zeros((64, 128, 3), np.uint8)
    image[4:60, 36:92] = 255  # the 56 x 56 px in the middle
    assert center_crop(image, 56).min() == 255
    image[4:60, 36] = 0
    assert center_crop(image, 56)[:, 0].max() == 0


def test_features_keep_the_data_sets_order(toy_datasets):
    model = tiny_model().eval()
    features = extractor(tiny_config("KNN_EVAL.IMAGE_SIZE", 32), model)("toy_objects_heldout")
    assert features.rows.shape == (15, 64) and features.rows.dtype == torch.float32
    assert torch.allclose(features.rows.norm(dim=1), torch.ones(15), atol=1e-5)
    assert features.labels.tolist() == sorted(features.labels.tolist())
    with_workers = tiny_config("KNN_EVAL.IMAGE_SIZE", 32, "DATALOADER.NUM_WORKERS", 2)
    again = extractor(with_workers, model)("toy_objects_heldout")
    assert torch.equal(features.rows, again.rows)
    assert not model.training
    pixels = center_crop(require_record(get_records("toy_objects_heldout")[3], PHOTOGRAPHS), 32)
    (alone,) = model([{"image": torch.from_numpy(pixels).permute(2, 0, 1)}])
    assert torch.allclose(features.rows[3], alone["feature"], atol=1e-6)


def test_the_centre_crop_is_224_of_256():
    image = np.random.default_rng(0).integers(0, 256, (256, 300, 3), dtype=np.uint8)
    np.testing.assert_array_equal(center_crop(image, 224), image[16:240, 38:262])
    np.testing.assert_array_equal(center_crop(image[:65, :70], 57), image[4:61, 6:63])  # 56.875 to the nearest px
