"""Which of Detectron2's messages a run's log keeps."""

import logging

import pytest

from revisit.engine.run_log import News, log_before_the_log


def kept(name: str, *messages: str, level: int = logging.INFO) -> list[str]:
    news = News()
    records = [logging.LogRecord(name, level, __file__, 1, message, None, None) for message in messages]
    return [record.getMessage() for record in records if news.filter(record)]


@pytest.mark.parametrize(
    "message",
    [
        "\x1b[36mDistribution of instances among all 3 categories:\n| cell | 5 |\x1b[0m",
        "Loaded 150 images in COCO format from tmp/tmphs4z7ndz/coco.json",
        "copypaste: AP,AP50,AP75",
    ],
)
def test_what_own_lines_say_is_left_out(message):
    assert kept("detectron2.data.build", message) == []
    assert kept("revisit.engine.trainer", message) == [message]


def test_what_each_loader_says_about_data_comes_once():
    augmentations = "[DatasetMapper] Augmentations used in training: [RandomFlip()]"
    assert kept("detectron2.data.dataset_mapper", augmentations, augmentations) == [augmentations]
    assert kept("detectron2.evaluation.evaluator", "Start inference", "Start inference") == ["Start inference"] * 2


def test_warnings_pass():
    assert kept("detectron2.data", "Loaded nothing", "Loaded nothing", level=logging.WARNING) == ["Loaded nothing"] * 2


@pytest.mark.parametrize("package", ["revisit", "projects"])
def test_lines_before_the_log_are_kept_for_it(package):
    logger = logging.getLogger(package)
    before = (logger.level, list(logger.handlers))
    with log_before_the_log() as log:
        logging.getLogger(f"{package}.some.module").info("found %d", 3)
    assert [record.getMessage() for record in log] == ["found 3"]
    assert (logger.level, list(logger.handlers)) == before
