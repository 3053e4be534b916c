"""Checkpoint files of any kind: read whole, refused by name, never run."""

import io
import os
import pickle
import random
import sys
import zipfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import backbone_of, random_resnet
from runs import assert_same
from tiny import tiny_config, tiny_model
from trees import refused, spoil_bytes

from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.convert import BackboneWeights, convert
from revisit.checkpoint.reading import UnreadableCheckpointError, read_checkpoint
from revisit.errors import UserError


class Payload:
    """Unpickling it would leave a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return (open, (str(self.path), "w"))


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """A torchvision ResNet-18 of a sixteenth of its width: small enough to be mutated hundreds of times."""
    return backbone_of(random_resnet("resnet18"), 16)


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch")  # of odd files, on the way to refusing them


def save(content: object, path: Path) -> Path:
    torch.save(content, path)
    return path


def test_a_whole_file_is_read(weights, tmp_path):
    content = {"state_dict": weights, "epoch": 3}
    assert_same(read_checkpoint(save(content, tmp_path / "a.pth")), content)


def test_the_arguments_that_some_projects_save_beside_their_weights_are_read(weights, tmp_path):
    content = {"teacher": weights, "args": Namespace(arch="resnet50", lr=0.3)}
    assert read_checkpoint(save(content, tmp_path / "a.pth"))["args"].arch == "resnet50"


def test_one_flipped_bit_in_a_weight_is_found(weights, tmp_path):
    path = save(weights, tmp_path / "a.pth")
    data = bytearray(path.read_bytes())
    place = data.index(weights["layer4.1.conv2.weight"].numpy().tobytes()) + 1000
    data[place] ^= 1
    path.write_bytes(data)
    torch.load(path, weights_only=True)  # torch itself notices nothing
    with pytest.raises(UnreadableCheckpointError, match=r"a.pth .*its record .* is damaged"):
        read_checkpoint(path)


def test_a_file_that_unpacks_to_more_than_it_is_gets_refused(weights, tmp_path):
    save({"x": torch.zeros(1000)}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as source, zipfile.ZipFile(tmp_path / "b.pth", "w", 8) as packed:
        for record in source.namelist():
            packed.writestr(record, source.read(record))
    with pytest.raises(UnreadableCheckpointError, match="is compressed or a folder"):
        read_checkpoint(tmp_path / "b.pth")


def test_a_record_that_torch_would_take_for_a_folder_and_leave_unread_is_refused(tmp_path):
    data = bytearray(save({"x": torch.ones(1000)}, tmp_path / "a.pth").read_bytes())
    entry = data.index(b"PK\x01\x02")
    while b"data/0" not in data[entry + 46 : entry + 60]:
        entry = data.index(b"PK\x01\x02", entry + 1)
    data[entry + 38] |= 0xEF  # read-only, hidden and what else there is but for a folder
    (tmp_path / "a.pth").write_bytes(data)
    assert_same(read_checkpoint(tmp_path / "a.pth"), {"x": torch.ones(1000)})
    data[entry + 38] |= 0x10
    (tmp_path / "a.pth").write_bytes(data)
    with pytest.raises(UnreadableCheckpointError, match="data/0 is compressed or a folder"):
        read_checkpoint(tmp_path / "a.pth")


def test_a_runs_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(UnreadableCheckpointError, match="is a folder: expected a checkpoint, such as"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("content", [[torch.zeros(2)], torch.zeros(2), 3])
def test_what_is_no_dict_is_refused(tmp_path, content):
    with pytest.raises(UnreadableCheckpointError, match="expected a dict of tensors"):
        read_checkpoint(save(content, tmp_path / "a.pth"))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_in_a_pkl_are_read_and_objects_refused(tmp_path, protocol):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    content = {"model": {"stem.conv1.weight": array, "by_columns": array.T, "n": np.int64(3)}, "__author__": "me"}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(content, protocol))
    read = read_checkpoint(tmp_path / "a.pkl")["model"]
    assert all(np.array_equal(read[name], value) for name, value in content["model"].items())
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": {"w": np.array([{}, []], dtype=object)}}, protocol))
    with pytest.raises(UnreadableCheckpointError, match="array of object"):
        read_checkpoint(tmp_path / "a.pkl")


class Claimed:
    """What asks, where it is unpickled, for an array whose numbers the file does not have."""

    def __init__(self, *of_array: object):
        self._of_array = of_array

    def __reduce__(self) -> tuple:
        return np.ndarray, self._of_array


@pytest.mark.parametrize("of_array", [((10**9,),), ((10**6,), np.dtype("f4"), b"1234", 0, (0,))])
def test_arrays_whose_numbers_a_pkl_does_not_have_are_refused(tmp_path, of_array):
    """Of memory as it happens to be, or one number a million times: a file of 100 bytes would take all memory."""
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": {"w": Claimed(*of_array)}}))
    with pytest.raises(UnreadableCheckpointError, match="its arrays claim .* bytes, and it has 1?.."):
        read_checkpoint(tmp_path / "a.pkl")


@pytest.mark.parametrize("suffix", [".pkl", ".pth"])
@pytest.mark.parametrize("place", ["top", "inside", "as a tensor"])
def test_a_planted_payload_does_not_run(tmp_path, suffix, place):
    payload = Payload(tmp_path / "owned")
    content = {"top": payload, "inside": {"model": {"a": [payload]}}, "as a tensor": {"model": {"w": payload}}}
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pickle.dumps(content[place]))
    with pytest.raises(UnreadableCheckpointError, match=f"a{suffix} is not a whole checkpoint of plain tensors"):
        read_checkpoint(path)
    assert not (tmp_path / "owned").exists()


class OwnConfig(dict):
    """What torch.save stores by the name of its class."""


@pytest.mark.parametrize("as_zip", [True, False])
@pytest.mark.parametrize("content", [{"config": OwnConfig()}, torch.nn.Identity(), {"best": np.float64(1)}])
def test_a_class_in_a_file_is_named_in_one_clean_line_without_torchs_advice_to_run_it(tmp_path, content, as_zip):
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=as_zip)
    with pytest.raises(UnreadableCheckpointError) as error:
        read_checkpoint(tmp_path / "a.pth")
    message = str(error.value)
    assert any(name in message for name in ("holds a test_reading.OwnConfig", "linear.Identity", "multiarray.scalar"))
    assert "save its state_dict() alone" in message
    assert not any(part in message for part in ("x1b", "weights_only", "two options", "torch.load"))


def test_a_torchscript_archive_is_called_one(tmp_path):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1, 1)), tmp_path / "a.pth")
    refused("it is a TorchScript archive", read_checkpoint, tmp_path / "a.pth")


@pytest.mark.parametrize("content", [{"model": [1]}, {"model": {"w": 3}}, {"model": {}, "flags": [1]}])
def test_finetuning_refuses_what_holds_no_weights_in_one_line(tmp_path, content):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(UserError) as error:
        RevisitCheckpointer(tiny_model(), tiny_config()).load(str(tmp_path / "a.pth"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damaged", [slice(-1), slice(100), slice(0), b"\xff" * 64])
def test_a_damaged_safetensors_file_is_refused(weights, tmp_path, damaged):
    safetensors = pytest.importorskip("safetensors.torch")
    data = safetensors.save(weights)
    (tmp_path / "whole.safetensors").write_bytes(data)
    assert read_checkpoint(tmp_path / "whole.safetensors").keys() == weights.keys()
    (tmp_path / "a.safetensors").write_bytes(data[damaged] if isinstance(damaged, slice) else damaged)
    with pytest.raises(UnreadableCheckpointError, match=r"a.safetensors is not a whole checkpoint"):
        read_checkpoint(tmp_path / "a.safetensors")


def test_a_safetensors_file_without_the_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    (tmp_path / "a.safetensors").write_bytes(b"")
    refused("pip install safetensors", read_checkpoint, tmp_path / "a.safetensors")


# -- mutations of one checkpoint, each by a seed of its own


def changed(weights: dict, rng: random.Random, tmp_path: Path) -> dict:
    """The content is another, the file is whole."""
    key = rng.choice(list(weights))
    tensor, of_run = weights[key], {f"backbone.{k}": v for k, v in weights.items()}
    values = [3, None, [tensor], Payload(tmp_path / "owned"), torch.zeros(0), torch.zeros(1).expand(10**6, 10**6),
              tensor.flatten(), tensor.unsqueeze(0), tensor.double(), tensor.to(torch.complex64),
              tensor.float().to_sparse(), tensor.float() * float("nan")]  # fmt: skip
    return rng.choice([
        *(weights | {key: value} for value in values),
        *({(k if k != key else other): v for k, v in weights.items()} for other in (f"module.{key}", 7)),
        {k: v for k, v in weights.items() if k != key},
        weights | {"layer9.0.conv1.weight": tensor},
        {"state_dict": weights, "model": 5},
        {"state_dict": list(weights.values())},
        {"model": weights, "flags": {"MODEL.RESNETS.DEPTH": rng.choice([-1, "x", None, 10**9])}},
        *({"model": of_run, "flags": flags} for flags in ({"A.B": 1}, 3)),
        dict.fromkeys(weights, tensor),
        {},
    ])  # fmt: skip


def mutate(number: int, whole: bytes, weights: dict, tmp_path: Path) -> bytes:
    rng = random.Random(number)
    if number % 7 < 5:
        return spoil_bytes(whole, rng)
    buffer = io.BytesIO()
    torch.save(changed(weights, rng, tmp_path), buffer)
    return buffer.getvalue()


def equal(one: BackboneWeights, other: BackboneWeights) -> bool:
    """Of BN's step counters, which older checkpoints lack, only those that both have."""
    differ = {key for key in one.tensors.keys() ^ other.tensors.keys() if not key.endswith("num_batches_tracked")}
    both = one.tensors.keys() & other.tensors.keys()
    return not differ and all(torch.equal(one.tensors[key].double(), other.tensors[key].double()) for key in both)


@pytest.mark.fuzz
def test_mutated_checkpoints_are_refused_in_one_line_or_converted_right(weights, tmp_path):
    path, cases = tmp_path / "a.pth", int(os.environ.get("FUZZ_CASES", "100"))
    whole = save(weights, path).read_bytes()
    right = convert(read_checkpoint(path))
    outcomes = {"refused": 0, "converted": 0}
    for number in range(cases):
        path.write_bytes(mutate(number, whole, weights, tmp_path))
        try:
            converted = convert(read_checkpoint(path))
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000, (number, str(error))
            outcomes["refused"] += 1
        else:
            assert equal(converted, right), number
            outcomes["converted"] += 1
        assert not (tmp_path / "owned").exists(), number
    assert outcomes["refused"] > 0.8 * cases and outcomes["converted"] > 0, outcomes


def test_a_checkpoint_that_is_not_there_is_said_to_be_missing(tmp_path):
    refused("a.pth is not there: expected a checkpoint, such as", read_checkpoint, tmp_path / "a.pth")
