"""Commands killed between any two file operations: no half is taken for whole, and the same command succeeds."""

import json
from pathlib import Path

import pytest
import torch
from checkpoints import run_checkpoint
from commands import TINY
from kills import ALL, kill_at_every_change, tool

from projects.LargeData.shards import INDEX, load_shards
from revisit.checkpoint.backbone_file import load_backbone
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import open_record
from revisit.errors import UserError


def of_pair(weights: Path) -> list[bytes]:
    return [weights.read_bytes(), weights.with_suffix(".yaml").read_bytes()]


@pytest.mark.parametrize("suffix", ["pth", pytest.param("pkl", marks=pytest.mark.fuzz)])
def test_a_killed_conversion_leaves_no_pair_of_two_conversions(suffix, tmp_path):
    """Over weights of other statistics: what loads is the one or the other."""
    output, pairs = tmp_path / f"out.{suffix}", []
    for name, mean in (("old", 1.0), ("new", 2.0)):
        checkpoint = run_checkpoint("MODEL.PIXEL_MEAN", [mean] * 3, iteration=9)
        checkpoint["model"] = {key: value + int(mean) for key, value in checkpoint["model"].items()}
        torch.save(checkpoint, tmp_path / f"{name}.pth")
        tool(f"tools/convert_to_d2.py {tmp_path}/{name}.pth {output}")()
        pairs.append(of_pair(output))
    outcomes = set()

    def begin() -> None:
        output.write_bytes(pairs[0][0])
        output.with_suffix(".yaml").write_bytes(pairs[0][1])

    def look() -> None:
        try:
            load_backbone(output)
        except UserError as error:
            assert "is of other weights than" in str(error)
            outcomes.add("refused")
        else:
            outcomes.add(pairs.index(of_pair(output)))

    def whole() -> None:
        assert of_pair(output) == pairs[1]

    call = tool(f"tools/convert_to_d2.py {tmp_path}/new.pth {output}")
    assert kill_at_every_change(call, tmp_path, begin=begin, look=look, whole=whole) >= 4
    assert outcomes == {0, "refused", 1}


def test_a_killed_first_conversion_leaves_no_weights_without_their_flags(tmp_path):
    torch.save(run_checkpoint(iteration=9), tmp_path / "run.pth")
    output = tmp_path / "out.pth"

    def begin() -> None:
        for path in (output, output.with_suffix(".yaml")):
            path.unlink(missing_ok=True)

    def look() -> None:
        assert not output.is_file() or load_backbone(output)

    def whole() -> None:
        assert load_backbone(output).flags["MODEL.RESNETS.DEPTH"] == 18

    call = tool(f"tools/convert_to_d2.py {tmp_path}/run.pth {output}")
    assert kill_at_every_change(call, tmp_path, begin=begin, look=look, whole=whole) >= 4


def test_killed_shards_have_no_index_or_all_images(write_pictures, tmp_path):
    files = write_pictures(tmp_path / "photos", 5)
    output = tmp_path / "out" / "shards"

    def begin() -> None:
        for path in output.glob("*"):
            path.unlink()

    def look() -> None:
        if (output / INDEX).exists():
            whole()

    def whole() -> None:
        images = [open_record(record, PHOTOGRAPHS).data for record in load_shards(str(output)).records]
        assert images == [file.read_bytes() for file in files]

    options = f"--data folder:{tmp_path}/photos --count 3 --processes 1"
    call = tool(f"tools/make_shards.py {options} --output {output}")
    assert kill_at_every_change(call, tmp_path / "out", begin=begin, look=look, whole=whole) >= 6


def test_a_killed_report_is_the_earlier_page_or_the_new_one(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.json").write_text('{"iteration": 1, "total_loss": 2.0}\n')
    page = tmp_path / "out" / "page.html"
    page.parent.mkdir()

    def begin() -> None:
        page.write_text("earlier")

    def look() -> None:
        assert page.read_text() == "earlier" or page.read_text().rstrip().endswith("</html>")

    def whole() -> None:
        assert page.read_text().rstrip().endswith("</html>")

    call = tool(f"tools/report.py {tmp_path}/run --output {page}")
    assert kill_at_every_change(call, page.parent, begin=begin, look=look, whole=whole) >= 2


@pytest.mark.fuzz
def test_a_killed_evaluation_leaves_its_whole_result_or_none(toy_datasets, tmp_path):
    """``make fuzz`` kills it at every change, ``make test`` at every 25th."""
    result, expected = tmp_path / "evaluation.json", []
    options = f"OUTPUT_DIR {tmp_path} DATASETS.TRAIN () SEED 1 KNN_EVAL.LINEAR False {TINY}"
    call = tool(f"tools/train_net.py --config-file configs/toy/pretrain.yaml --eval-only {options}")

    def begin() -> None:
        result.unlink(missing_ok=True)

    def look() -> None:
        assert not result.is_file() or whole() is None

    def whole() -> None:
        expected.append(json.loads(result.read_text()))
        assert expected[-1] == expected[0] and "knn_top1" in expected[0]

    assert kill_at_every_change(call, tmp_path, begin=begin, look=look, whole=whole, step=1 if ALL else 25) >= 1
