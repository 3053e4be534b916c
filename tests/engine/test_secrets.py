"""Signatures and passwords of URLs: what is written, logged or sent has the place alone."""

import json
import logging
import sys

import pytest
from tiny import tiny_config

from projects.Reports.trackers import command_without_secrets
from revisit.engine.run_log import Shown
from revisit.engine.same_experiment import check_same_experiment, config_text, plain_config
from revisit.errors import UserError, without_secrets
from revisit.jobs.commands import Job
from revisit.jobs.record import Record

from detectron2.config import CfgNode

SIGNED = "https://me:WORD@host/a/b.pth?X-Sig=SECRET&x=%2F"
PLACE = "https://host/a/b.pth"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (SIGNED, PLACE),
        (f"list:{SIGNED}", f"list:{PLACE}"),
        (f"('{SIGNED}', \"{SIGNED}\") is", f"('{PLACE}', \"{PLACE}\") is"),
        ("https://TOKEN@host/a", "https://host/a"),
        ("simplecache::s3://key:SECRET@bucket/a?versionId=1", "simplecache::s3://bucket/a"),
        ("abfs://box@account.net/a?sig=SECRET", "abfs://box@account.net/a"),
        ("hf://me/net@main/a.pth", "hf://me/net@main/a.pth"),
        ("what? a@b: c://", "what? a@b: c://"),
        (f"reading {SIGNED}\nnext", f"reading {PLACE}\nnext"),
    ],
)
def test_a_url_is_shown_without_query_and_password(text, shown):
    assert without_secrets(text) == shown
    assert json.loads(without_secrets(json.dumps({"a": text}))) == {"a": shown}


def test_configs_keep_secrets_to_themselves_and_another_signature_is_no_difference():
    def config(secret: str) -> CfgNode:
        signed = SIGNED.replace("SECRET", secret)
        return tiny_config("MODEL.WEIGHTS", signed, "DATASETS.TRAIN", (f"list:{signed}",))

    cfg = config("SECRET")
    for text in (config_text(cfg), json.dumps(plain_config(cfg))):
        assert "SECRET" not in text and "WORD" not in text and text.count(PLACE) == 2
    assert cfg.MODEL.WEIGHTS == SIGNED and cfg.DATASETS.TRAIN == (f"list:{SIGNED}",)
    images = [{"count": 1, "names": "a"}]
    for saved in (plain_config(cfg), plain_config(cfg) | {"MODEL.WEIGHTS": SIGNED}):  # of an earlier version
        check_same_experiment(config("NEW"), images, {"config": saved, "images": images})


def test_what_is_logged_refused_and_sent_has_no_secrets_and_no_control_characters(monkeypatch):
    shown = Shown(logging.Formatter("%(message)s"), colored=True)
    text = shown.format(logging.makeLogRecord({"msg": f"\x1b[32m{SIGNED}\x1b[0m\tb\n\x1b]0;title\x07\r\x9b2J"}))
    assert text == f"\x1b[32m{PLACE}\x1b[0m\tb\n\\x1b]0;title\\x07\\r\\x9b2J"
    assert str(UserError(f"{SIGNED} cannot be fetched")) == f"{PLACE} cannot be fetched"
    monkeypatch.setattr(sys, "argv", ["train.py", "MODEL.WEIGHTS", SIGNED])
    with command_without_secrets():
        assert sys.argv == ["train.py", "MODEL.WEIGHTS", PLACE]
    assert sys.argv[2] == SIGNED


def test_records_of_jobs_and_outputs_have_no_secrets_and_continue_with_another_signature(tmp_path):
    for secret in ("SECRET", "NEW"):
        signed = SIGNED.replace("SECRET", secret)
        Job("a", (("tools/train_net.py", signed),), tmp_path / "job/result.json").claim()
        Record(tmp_path, {"weights": signed, "size": (1, 2)}).claim()
    assert PLACE in (text := (tmp_path / "job/job.json").read_text() + (tmp_path / "settings.json").read_text())
    assert "SECRET" not in text and "NEW" not in text
