"""What a library raises while a run is set up becomes one line, and its traceback is kept."""

import logging
import math
import sys
from logging.handlers import MemoryHandler

import pytest
import torch
import torch.distributed as dist

from revisit.engine.command import run_command
from revisit.errors import DEBUG, LostContactError, UserError, enough_memory, translated
from revisit.files import strict_json

from detectron2.modeling import META_ARCH_REGISTRY


def fail(error: Exception) -> None:
    raise error


CASES = {  # what happens in the block, and what the line says of it
    "words": (lambda: fail(ValueError("3 channels\nexpected 4")), "ValueError: 3 channels ("),
    "registry": (lambda: META_ARCH_REGISTRY.get("Nothing"), "KeyError: No object named 'Nothing' found in 'META_ARCH'"),
    "no words": (lambda: fail(AssertionError()), "AssertionError: raise error ("),
    "a number": (lambda: [][2], "IndexError: list index out of range ("),
}


@pytest.mark.parametrize("case", CASES)
def test_a_librarys_error_becomes_one_line_with_its_words_and_its_traceback_is_logged(case, caplog):
    block, words = CASES[case]
    with caplog.at_level(logging.DEBUG), pytest.raises(UserError) as caught, translated("building the model"):
        block()
    assert str(caught.value).startswith(f"building the model: {words}") and "--debug" in str(caught.value)
    assert caught.value.__cause__ is caplog.records[-1].exc_info[1]


def test_what_is_wrong_with_a_files_content_is_said_without_pythons_words():
    words = {"could not convert string to float: 'x'": lambda: float("x"), "bbox is missing": lambda: {}["bbox"]}
    for expected, call in words.items():
        with pytest.raises(UserError) as caught, translated("a.txt, line 3", content=True):
            call()
        assert str(caught.value) == f"a.txt, line 3: {expected}"


def test_debug_prints_the_traceback(monkeypatch, capsys):
    monkeypatch.setenv(DEBUG, "")
    monkeypatch.delenv(DEBUG)  # and what the command sets ends with the test
    monkeypatch.setattr(sys, "argv", ["any.py", "--debug", "--first", "N"])

    def build() -> None:
        assert sys.argv == ["any.py", "--first", "N"]
        with translated("building the model"):
            fail(AssertionError())

    with pytest.raises(SystemExit):
        run_command(build)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [
    UserError("a line"), LostContactError("gone"), KeyboardInterrupt(), dist.DistNetworkError("Connection reset"),
    RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"),
])  # fmt: skip
def test_users_errors_and_other_processes_failures_pass_unchanged(error):
    with pytest.raises(type(error)) as caught, translated("building the model"):
        raise error
    assert caught.value is error


def test_a_gpu_whose_memory_runs_out_is_one_line_with_the_keys_that_help():
    with pytest.raises(UserError) as info, enough_memory(), translated("taking the first step"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nAnd so on")
    keys = ("SOLVER.AMP.ENABLED", "SOLVER.ACCUMULATION_STEPS", "SOLVER.IMS_PER_BATCH")
    assert str(info.value).startswith("CUDA out of memory. Tried") and all(key in str(info.value) for key in keys)


def test_json_has_null_for_what_is_no_number():
    assert strict_json({"AP": math.nan, "all": [1.5, math.inf], "n": (1,)}).split() == (
        ["{", '"AP":', "null,", '"all":', "[", "1.5,", "null", "],", '"n":', "[", "1", "]", "}"]
    )


def test_a_log_is_named_where_there_is_one(monkeypatch):
    """One that keeps messages until there is a file is none: a dry run ends without."""
    for handler, named in ((MemoryHandler(9), False), (logging.StreamHandler(), True)):
        monkeypatch.setattr(logging.getLogger("revisit"), "handlers", [handler])
        with pytest.raises(UserError) as caught, translated("reading"):
            raise TypeError("odd")
        assert ("log.txt" in str(caught.value)) == named
    with pytest.raises(UserError, match="^reading: No such file nowhere$"), translated("reading", content=True):
        open("nowhere")  # noqa: SIM115
