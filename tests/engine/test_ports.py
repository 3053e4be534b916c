"""At which addresses a run of one machine listens."""

import os

import psutil
from commands import launch_forks

from detectron2.utils import comm


def listening() -> set[str]:
    comm.synchronize()
    comm.all_gather(0)  # by gloo's pairs
    places = psutil.Process(os.getpid()).net_connections("tcp")
    comm.synchronize()
    return {place.laddr.ip.removeprefix("::ffff:") for place in places if place.status == psutil.CONN_LISTEN}


def test_processes_of_one_machine_listen_for_this_machine_alone():
    first, second = launch_forks(listening, 2)
    assert first == {"127.0.0.1"} and second <= first
