"""The files of deploy/ by the published schemas of who reads them, and their commands by this project's own.

The schemas below are the parts that these files use; the packages take 500 MB. By the whole ones, once: skypilot.yaml
is valid by the schemas of a task and of its resources in skypilot 0.14.1, whose Task reads it, and every field of
pytorchjob.yaml is one of the models of kubeflow-training 1.9.4 and kubernetes 35.0.0, of its type. No cluster has run
them.
"""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from commands import ROOT
from jsonschema import Draft202012Validator

from revisit import __version__
from revisit.engine.merging import merged_config, read_stated
from tools.train_net import parse_args

TEXT, WHOLE, SWITCH = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}


def one(required: str = "", **properties: dict) -> dict:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def many(items: dict) -> dict:
    return {"type": "array", "items": items, "minItems": 1}


def mapping(values: dict, names: str = ".") -> dict:
    return {"type": "object", "additionalProperties": False, "patternProperties": {names: values}}


# What these files use of the schema of SkyPilot 0.14.1 (sky/utils/schemas.py: a task, its resources).
RECOVERY = one(strategy=TEXT, max_restarts_on_errors=WHOLE, recover_on_exit_codes=many({**WHOLE, "maximum": 255}))
RESOURCES = one(accelerators=TEXT, use_spot=SWITCH, job_recovery=RECOVERY, infra=TEXT, cpus=TEXT, memory=TEXT)
SKYPILOT = one(
    name=TEXT,
    resources=RESOURCES,
    num_nodes=WHOLE,
    workdir=TEXT,
    envs=mapping({"type": ["string", "null"]}, "^[a-zA-Z_][a-zA-Z0-9_]*$"),
    setup=TEXT,
    run=TEXT,
)
# And of the training operator's v1 PyTorchJob (manifests/base/crds/kubeflow.org_pytorchjobs.yaml), whose
# enumerations stand in its descriptions.
QUANTITY = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d+(\.\d+)?([KMGTPE]i|[numkMGTPE])?$"}]}
CONTAINER = one(
    "name image",
    name={"const": "pytorch"},  # by which the operator finds the one that it gives its variables
    image=TEXT,
    command=many(TEXT),
    resources=one(limits=mapping(QUANTITY), requests=mapping(QUANTITY)),
    volumeMounts=many(one("name mountPath", name=TEXT, mountPath=TEXT)),
    securityContext=one(allowPrivilegeEscalation=SWITCH, capabilities=one(add=many(TEXT), drop=many(TEXT))),
)
SECURITY = one(runAsNonRoot=SWITCH, runAsUser=WHOLE, fsGroup=WHOLE, seccompProfile=one("type", type=TEXT))
MEMORY = one(medium=TEXT, sizeLimit=QUANTITY)
VOLUME = one("name", name=TEXT, persistentVolumeClaim=one("claimName", claimName=TEXT), emptyDir=MEMORY)
POD = one(
    "containers",
    containers=many(CONTAINER),
    volumes=many(VOLUME),
    terminationGracePeriodSeconds=WHOLE,
    automountServiceAccountToken=SWITCH,
    securityContext=SECURITY,
)
REPLICA = one(
    "template",
    replicas=WHOLE,
    restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
    template=one("spec", spec=POD),
)
RUN_POLICY = one(backoffLimit=WHOLE, cleanPodPolicy={"enum": ["All", "Running", "None"]}, ttlSecondsAfterFinished=WHOLE)
PYTORCH_JOB = one(
    "apiVersion kind metadata spec",
    apiVersion={"const": "kubeflow.org/v1"},
    kind={"const": "PyTorchJob"},
    metadata=one("name", name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}),
    spec=one("pytorchReplicaSpecs", runPolicy=RUN_POLICY, pytorchReplicaSpecs=mapping(REPLICA, "^(Master|Worker)$")),
)


def read(name: str) -> dict:
    return yaml.safe_load((ROOT / "deploy" / name).read_text())


def job() -> dict:
    return read("pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"]


@pytest.mark.parametrize(("name", "schema"), [("skypilot.yaml", SKYPILOT), ("pytorchjob.yaml", PYTORCH_JOB)])
def test_a_file_fits_the_schema_of_who_reads_it(name, schema):
    validator = Draft202012Validator(schema)
    content = read(name)
    assert [error.message for error in validator.iter_errors(content)] == []
    assert not validator.is_valid({**content, "replicas": 2})
    assert {path.name for path in (ROOT / "deploy").iterdir()} == {"skypilot.yaml", "pytorchjob.yaml"}


def test_a_wrong_field_deep_inside_is_refused():
    content = read("pytorchjob.yaml")
    content["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["name"] = "revisit"
    assert not Draft202012Validator(PYTORCH_JOB).is_valid(content)
    content = read("skypilot.yaml")
    content["resources"]["job_recovery"]["max_restarts_on_errors"] = -1
    assert not Draft202012Validator(SKYPILOT).is_valid(content)


def test_volumes_are_mounted_and_machines_counted():
    machines = sum(replica["replicas"] for replica in job().values())
    for replica in job().values():
        pod = replica["template"]["spec"]
        (container,) = pod["containers"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert f"--nnodes={machines}" in container["command"]
        assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']}" in container["command"]


def test_a_pod_has_no_more_rights_than_a_training_needs_and_one_version_of_the_image():
    user = re.search(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for replica in job().values():
        pod = replica["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == int(user[1]) > 0
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["image"].endswith(f"revisit:{__version__}")
            own = container["securityContext"]
            assert not own["allowPrivilegeEscalation"] and own["capabilities"] == {"drop": ["ALL"]}


def of_skypilot() -> list[str]:
    task = read("skypilot.yaml")
    values = {
        **task["envs"],
        "DATA": "shards:s3://b/photos",
        "OUTPUT_SYNC": "s3://b/1",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    }
    return shlex.split(re.sub(r"\$(\w+)", lambda name: values[name[1]], task["run"].replace("\\\n", " ")))


def of_kubernetes() -> list[str]:
    return job()["Master"]["template"]["spec"]["containers"][0]["command"]


@pytest.mark.parametrize("command", [of_skypilot, of_kubernetes])
def test_a_command_resumes_by_itself_in_a_place_in_a_store(command, monkeypatch):
    words = command()
    assert Path(words[0]).name == "torchrun" and any(word.startswith("--max-restarts") for word in words)
    script = words.index("tools/train_net.py")
    monkeypatch.setattr(sys, "argv", words[script:])
    args = parse_args()
    cfg = merged_config(read_stated(args.config_file, args.opts))
    assert args.resume and cfg.OUTPUT_SYNC.startswith("s3://") and cfg.DATASETS.TRAIN[0].startswith("shards:s3://")
    assert os.path.exists(args.config_file)
