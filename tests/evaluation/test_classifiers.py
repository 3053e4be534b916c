import numpy as np
import pytest
import torch
from tiny import tiny_model
from torch.nn.functional import normalize as unit

from revisit.evaluation.classifiers import knn_classify, knn_top1
from revisit.evaluation.features import Features, center_crop, extract_features


def test_votes_equal_a_direct_evaluation():
    generator = torch.Generator().manual_seed(0)
    bank = Features(unit(torch.randn(40, 6, generator=generator)), torch.randint(0, 4, (40,), generator=generator))
    rows = unit(torch.randn(25, 6, generator=generator))
    for row, prediction in zip(rows.double().numpy(), knn_classify(bank, rows, k=7, temperature=0.1), strict=True):
        similarity = bank.rows.double().numpy() @ row
        votes = np.zeros(4)
        for n in np.argsort(-similarity)[:7]:
            votes[bank.labels[n]] += np.exp(similarity[n] / 0.1)
        assert prediction == votes.argmax()


def test_a_close_neighbour_outvotes_two_far_ones():
    bank = Features(unit(torch.tensor([[1.0, 0.0], [0.2, 1.0], [0.3, 1.0]])), torch.tensor([1, 0, 0]))
    row = torch.tensor([[1.0, 0.0]])
    assert knn_classify(bank, row, k=3, temperature=0.07).tolist() == [1]
    assert knn_classify(bank, row, k=3, temperature=100.0).tolist() == [0]


def test_top1_is_a_percentage():
    bank = Features(torch.eye(3), torch.tensor([0, 1, 2]))
    test = Features(torch.eye(3)[[0, 1, 2, 2]], torch.tensor([0, 1, 2, 0]))
    assert knn_top1(bank, test, k=1, temperature=0.1) == pytest.approx(75.0)


def test_center_crop_takes_the_middle_seven_eighths():
    image = np.zeros((64, 128, 3), np.uint8)
    image[4:60, 36:92] = 255  # the 56 x 56 px in the middle
    assert center_crop(image, 56).min() == 255
    image[4:60, 36] = 0
    assert center_crop(image, 56)[:, 0].max() == 0


def test_features_come_in_the_order_of_the_data_set(toy_datasets):
    model = tiny_model().eval()
    features = extract_features(model, "toy_objects_heldout", 32, num_workers=0)
    assert features.rows.shape == (15, 64) and features.rows.dtype == torch.float32
    assert torch.allclose(features.rows.norm(dim=1), torch.ones(15), atol=1e-5)
    assert features.labels.tolist() == sorted(features.labels.tolist())
    again = extract_features(model, "toy_objects_heldout", 32, num_workers=2)
    assert torch.equal(features.rows, again.rows)
    assert not model.training
