"""Parts made by the tasks of a Ray cluster, or of one that is started on this machine for the length of the job.

Every machine sees the same folders by the same names and has the same packages; results are files, as everywhere.
"""

import os
import secrets
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

from revisit.compat.private_names import ray_on_this_machine_alone
from revisit.errors import UserError, expect, first_line
from revisit.jobs.options import RAY
from revisit.jobs.runner import CONTINUES, Parts, Runner, in_batches, make_batch, missing, progress_of
from revisit.plugins import PACKAGES, require_package

RETRIES = 5  # of a task whose worker or machine is lost
LOCAL = "local"  # a cluster of this machine
_ANSWER = 5.0  # seconds that a cluster's head has
_parts: dict[str, Parts] = {}  # of a worker, by their keys: a network is read once


@dataclass(frozen=True)
class OnRay(Runner):
    """A cluster, and what of it a part takes."""

    address: str  # ``ray`` finds the cluster of this machine or of RAY_ADDRESS, or starts one
    workers: int | None  # parts at a time; None: all that fit
    cpus: int
    gpus: float

    def run(self, parts: Parts) -> None:
        todo = missing(parts)
        if not todo:
            return
        ray = require_package("ray", '--on ray needs the package ray: expected pip install "revisit-detectron2[ray]"')
        with _cluster(ray, self.address), progress_of(parts, len(todo)) as bar:
            for count in self._made(ray, parts, todo):
                bar.update(count)
        left = missing(parts)
        expect(
            not left,
            f"{len(left)} parts were made that this machine does not see in {parts.place}: expected a folder that "
            "all machines of the cluster share",
        )

    def _made(self, ray: ModuleType, parts: Parts, todo: list[int]) -> Iterator[int]:
        """Numbers of parts, as they are made."""
        workers = self._workers(ray)
        batches = in_batches(todo, workers)
        task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES)(_make_batch)
        fixed = (uuid.uuid4().hex, [ray.put(parts)], os.getcwd())
        queue = (task.remote(*fixed, batch) for batch in batches)
        running = list(islice(queue, workers))
        while running:
            done, running = ray.wait(running)
            running += islice(queue, len(done))
            yield sum(_result(ray, each, parts) for each in done)

    def _workers(self, ray: ModuleType) -> int:
        """How many parts are made at a time: no more than fit. Raises UserError where none fits on any machine."""
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fitting = sum(
            min(int(machine.get(name, 0) / amount) for name, amount in asked.items() if amount) for machine in machines
        )
        offered = "; ".join(", ".join(f"{machine.get(name, 0):g} {name}" for name in asked) for machine in machines)
        expect(
            fitting > 0, f"no part fits on a machine of the cluster ({offered}): expected fewer by --cpus, --num-gpus"
        )
        if self.workers and self.workers > fitting:
            print(f"--processes {self.workers}: {fitting} parts fit on the cluster at a time ({offered})", flush=True)
        return min(self.workers or fitting, fitting)


def _make_batch(key: str, boxed: list, folder: str, numbers: list[int]) -> int:
    """A task: make a batch of the job in a box, which Ray would unpack for every task."""
    if key not in _parts:
        import ray

        os.chdir(folder)  # names of files may be relative
        _parts[key] = ray.get(boxed[0])
    return make_batch(_parts[key], numbers)


def _result(ray: ModuleType, task: Any, parts: Parts) -> int:
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error.cause, ray.exceptions.RayError):
            raise error.cause from error
        raise UserError(
            f"{parts.title}: a worker cannot begin ({first_line(error.cause)}): expected the same packages and "
            "folders on all machines"
        ) from error
    except ray.exceptions.RayError as error:
        raise UserError(
            f"{parts.title}: a part's worker was lost {RETRIES + 1} times ({first_line(error)}): {CONTINUES}"
        ) from error


@contextmanager
def _cluster(ray: ModuleType, address: str) -> Iterator[None]:
    """Connect, and let go. Raises UserError where no cluster answers."""
    if address != RAY:
        _check_answer(address)
    # Ray's tasks look for modules first where it is called: in the working directory only if this process does so too.
    place = os.getcwd() if os.getcwd() in sys.path else PACKAGES
    try:
        with chdir(place):
            _connect(ray, os.environ.get("RAY_ADDRESS", LOCAL) if address == RAY else address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster at {address} ({first_line(error)}): expected one, as of ray start; where it wants a "
            "token, RAY_AUTH_MODE=token"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _connect(ray: ModuleType, address: str) -> None:
    """To this cluster; of LOCAL to that of this machine, or to one that is started where there is none."""
    options = {"logging_level": "ERROR", "log_to_driver": False}
    if address != LOCAL:
        ray.init(address, **options)
        return
    try:
        ray.init("auto", **options)
    except ConnectionError:
        # Whoever reaches a port of Ray's can run code.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        with ray_on_this_machine_alone():
            ray.init(LOCAL, include_dashboard=False, **options)


def _check_answer(address: str) -> None:
    """Ray itself would try for half a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _ANSWER).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster at {address} ({first_line(error)}): expected the head of a cluster, whose port for "
            "clients is 10001"
        ) from error
