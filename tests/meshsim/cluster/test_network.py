"""Hosts with addresses of their own, in network namespaces of this machine: cut and slow links."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import Ended, Processes, without_launcher

HOSTS = "abc"

SCENARIOS = '''
import subprocess

import torch
import torch.distributed as dist


def cut_off(ctx):
    """The last host loses its network in the middle of the run."""
    dist.barrier()
    if ctx.rank == 2:
        subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
    dist.all_reduce(torch.ones(4))


def sums(ctx):
    x = torch.full((4,), float(ctx.rank))
    dist.all_reduce(x)
    return x
'''


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def may_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    return (
        subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, check=False).returncode
        == 0
    )


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not may_make_namespaces(), reason="network namespaces need root, ip, tc and unshare"),
]


class Network:
    """Three hosts on one bridge: 10.77.0.1 to 10.77.0.3, each a namespace."""

    def __init__(self) -> None:
        self.tag = f"ms{os.getpid() % 100000}"
        self.bridge = f"{self.tag}br"
        ip("netns", "add", f"{self.tag}-net")
        self._in("net", "link", "add", "br0", "type", "bridge")
        self._in("net", "link", "set", "br0", "up")
        for number, host in enumerate(HOSTS, 1):
            ip("netns", "add", f"{self.tag}-{host}")
            names = (f"{self.tag}{host}0", f"{self.tag}{host}1")
            ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
            ip("link", "set", names[0], "netns", f"{self.tag}-{host}", "name", "eth0")
            ip("link", "set", names[1], "netns", f"{self.tag}-net", "name", f"to-{host}")
            self._in("net", "link", "set", f"to-{host}", "master", "br0", "up")
            self._in(host, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            self._in(host, "link", "set", "eth0", "up")
            self._in(host, "link", "set", "lo", "up")

    def _in(self, host: str, *arguments: str) -> None:
        ip("-n", f"{self.tag}-{host}", *arguments)

    def slow_down(self, host: str, rate: str) -> None:
        """Limit what a host sends."""
        subprocess.run(
            [
                *("tc", "-n", f"{self.tag}-{host}", "qdisc", "add", "dev", "eth0", "root", "tbf"),
                *("rate", rate, "burst", "32kbit", "latency", "400ms"),
            ],
            check=True,
            capture_output=True,
        )

    def block(self, host: str, address: str) -> None:
        """Let a host reach no longer what is at an address."""
        self._in(host, "route", "add", "blackhole", f"{address}/32")

    def command(self, host: str, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", f"{self.tag}-{host}", *command]

    def close(self) -> None:
        for host in (*HOSTS, "net"):
            subprocess.run(["ip", "netns", "del", f"{self.tag}-{host}"], capture_output=True, check=False)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


def ran(network: Network, folder: Path, arguments: list[str], **environ: str) -> list[Ended]:
    import sys

    (folder / "network_scenarios.py").write_text(SCENARIOS)
    started = []
    for rank, host in enumerate(HOSTS):
        environment = {
            **without_launcher(os.environ),
            "OMP_NUM_THREADS": "1",
            "MESHSIM_JOIN_TIMEOUT": "60",
            "MESHSIM_HOST": f"host-{host}",
            "RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "10.77.0.1",
            "MASTER_PORT": "29500",
            **environ,
        }
        command = network.command(host, [sys.executable, "-m", "meshsim", *arguments])
        started.append(
            subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    try:
        return Processes(folder).finish(started)
    finally:
        for process in started:
            process.kill()


def test_ranks_of_hosts_with_their_own_addresses(network: Network, tmp_path: Path) -> None:
    ended = ran(network, tmp_path, ["run", "network_scenarios.py::sums", "-b", "gloo"])
    assert [one.code for one in ended] == [0, 0, 0], ended[0].err
    assert "1 run: 1 passed" in ended[0].out


def test_host_that_is_cut_off_is_named(network: Network, tmp_path: Path) -> None:
    arguments = [
        "run",
        "network_scenarios.py::cut_off",
        "-b",
        "gloo",
        "--timeout",
        "60",
        "--json",
        "out.json",
    ]
    ended = ran(network, tmp_path, arguments, MESHSIM_LOST_AFTER="4")
    assert [one.code for one in ended] == [1, 1, 1]
    verdict = json.loads((tmp_path / "out.json").read_text())["runs"][0]["verdict"]
    assert verdict["ranks"] == [2]
    assert "rank 2: host host-c, cpu; nothing was heard of it for 4 s" in verdict["summary"]


def test_slow_host_is_named(network: Network, tmp_path: Path) -> None:
    network.slow_down("b", "40mbit")
    arguments = ["smoke", "--max-bytes", "1024", "--json", "out.json"]
    ended = ran(network, tmp_path, arguments)
    links = json.loads((tmp_path / "out.json").read_text())["stages"][5]
    assert links["state"] == "slow", ended[0].out
    assert links["summary"].startswith("host host-b (rank 1): its links take")
    assert [one.code for one in ended] == [1, 1, 1]


def test_link_that_was_never_there_names_an_end_of_it(network: Network, tmp_path: Path) -> None:
    network.block("b", "10.77.0.3")
    network.block("c", "10.77.0.2")
    arguments = ["run", "network_scenarios.py::sums", "-b", "gloo", "--json", "out.json"]
    ended = ran(network, tmp_path, arguments)
    assert [one.code for one in ended] == [1, 1, 1]
    verdict = json.loads((tmp_path / "out.json").read_text())["runs"][0]["verdict"]
    # Which end gloo lets fail is its own affair; host a is none of them.
    assert verdict["ranks"] in ([1], [2], [1, 2]), verdict["summary"]
    assert "host host-b" in verdict["summary"] or "host host-c" in verdict["summary"]
    assert "host host-a" not in verdict["summary"]
