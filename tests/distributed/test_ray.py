"""RayServers: servers as actors that come back after kills, on other nodes too; ray.train with the loader's state.

Each case runs in a process of its own, since Ray leaves threads in the one that starts it.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from example_data import EXAMPLES, write_ring
from parts_on_disk import a_graph, batches, over, seeds, whole, write
from pipelines import sampled, small_graph

import datapipes as dp
from datapipes.base.errors import ServerUnavailable
from datapipes.distributed import DistGraph, RemoteReceivingChannel, RemoteSource, connect
from datapipes.distributed.ray import RayServers

pytestmark = pytest.mark.long

CASE_S, DEADLINE = 240.0, 60.0
FORKSERVER = multiprocessing.get_context("forkserver")
NAMESPACE = "datapipes"


def run(case, folder, num_cpus=8):
    child = FORKSERVER.Process(target=_case, args=(case, folder, num_cpus))
    child.start()
    child.join(CASE_S)
    code = child.exitcode
    child.kill()
    child.join()
    assert code == 0


def _case(case, folder, num_cpus):
    import ray

    if num_cpus is not None:
        ray.init(num_cpus=num_cpus, include_dashboard=False, log_to_driver=False)
    try:
        case(folder)
    finally:
        ray.shutdown()


def kill(part, replica=0, name="servers"):
    """SIGKILL the process of a server, once it runs."""
    import ray

    actor = ray.get_actor(f"{name}/{part}/{replica}", namespace=NAMESPACE)
    os.kill(ray.get(actor.pid.remote(), timeout=DEADLINE), signal.SIGKILL)


def wait_for_both(servers, part):
    """Wait until both replicas of a part serve: one that was killed takes long to come back on a busy machine."""
    end = time.monotonic() + DEADLINE
    while len(servers.addresses(part)) < 2:  # which waits for those that start
        assert time.monotonic() < end


# --- cases


def servers_are_killed(folder):
    graph, kills = a_graph(), 4
    root, expected = write(folder / "root", graph), whole(graph)
    with RayServers(root) as servers:
        for options in ({}, {"num_workers": 2}):
            dist_graph, found = DistGraph.connect(root, servers, deadline=DEADLINE), []
            with contextlib.closing(dist_graph), dp.DataLoader(over(dist_graph), **options) as loader:
                for minibatch in loader:
                    found.append(minibatch.digest())
                    if len(found) % (len(expected) // kills) == 1:
                        kill(len(found) // (len(expected) // kills) % 2)
            assert found == expected


def a_replica_is_killed(folder):
    graph = a_graph()
    root, expected = write(folder / "root", graph), batches(seeds().sample_neighbor(graph, [4, 4]))
    with RayServers(root, replicas=2, chains=True, actor_options={"num_cpus": 0.5}) as servers:
        assert [len(servers.addresses(part)) for part in (0, 1, 2)] == [2, 2, 0]
        dist_graph = DistGraph.connect(root, servers, deadline=DEADLINE)
        with contextlib.closing(dist_graph), connect(servers, deadline=DEADLINE) as client:
            pipe = seeds().sample_neighbor(dist_graph, [4, 4])
            producers = [client.create_producer(rank, pipe) for rank in (0, 1)]
            channel = RemoteReceivingChannel([0, 1], producers, client=client, prefetch_size=1)
            found, longest, began = [], 0.0, time.monotonic()
            for minibatch in RemoteSource(pipe, channel):
                longest = max(longest, time.monotonic() - began)
                found.append(minibatch.digest())
                if len(found) % 25 == 0:
                    wait_for_both(servers, len(found) // 25 % 2)
                    kill(len(found) // 25 % 2, len(found) // 50 % 2)
                began = time.monotonic()
            assert found == expected
            assert longest < DEADLINE / 3


def a_whole_graph_is_served(folder):
    small_graph().save(root := folder / "graph")
    with RayServers(root, chains=True, name="whole") as servers, connect(servers, deadline=DEADLINE) as client:
        producer = client.create_producer(0, sampled())
        source = RemoteSource(sampled(), RemoteReceivingChannel(0, producer, client=client, prefetch_size=1))
        found = []
        for minibatch in source:
            found.append(minibatch.digest())
            if len(found) == 2:
                kill(0, name="whole")
        assert found == batches(sampled())
        with pytest.raises(ValueError, match="whole/0/0"):
            RayServers(root, chains=True, name="whole")
    assert servers.addresses(0) == []
    servers.close()
    servers = RayServers(root, chains=True, name="whole")
    import ray

    ray.shutdown()
    servers.close()
    servers.close()
    assert not ray.is_initialized()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with pytest.raises((ServerUnavailable, TimeoutError)):
        connect(servers, deadline=1.0)


def what_is_wrong_is_told(folder):
    root = write(folder / "root", a_graph())
    with pytest.raises(FileNotFoundError, match="holds no native partition"):
        RayServers(folder / "none")
    with pytest.raises(TypeError, match="limits must be a ServerLimits"):
        RayServers(root, limits=5)
    with pytest.raises(TimeoutError, match=r"2 servers were not placed within 2 s.*'CPU': 8.0.*actor_options"):
        RayServers(root, timeout=2.0, actor_options={"num_cpus": 100})
    for wrong in ({"replicas": 0}, {"timeout": 0}, {"parts": [-1]}, {"parts": []}, {"tls": 1}):
        with pytest.raises((TypeError, ValueError), match=f"RayServers: {next(iter(wrong)).rstrip('s')}"):
            RayServers(root, **wrong)
    with RayServers(root) as servers:  # the names are free again
        pickled = FORKSERVER.Process(target=_asks, args=(servers,))
        pickled.start()
        pickled.join(DEADLINE)
        forked = multiprocessing.get_context("fork").Process(target=_is_refused, args=(servers,))
        forked.start()
        forked.join(DEADLINE)
        assert (pickled.exitcode, forked.exitcode) == (0, 0)


def _asks(servers):
    assert len(servers.addresses(1)) == 1


def _is_refused(servers):
    with pytest.raises(RuntimeError, match="was forked from one in a Ray cluster"):
        servers.addresses(1)


def a_node_is_lost(folder):
    import ray
    from ray.cluster_utils import Cluster

    graph = a_graph()
    root, expected = write(folder / "root", graph), whole(graph)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    others = [cluster.add_node(num_cpus=2) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with pytest.raises(ValueError, match="the cluster has 3 nodes, and there is no TLS"):
            RayServers(root)
        with RayServers(root, insecure=True) as servers:
            dist_graph = DistGraph.connect(root, servers, insecure=True, deadline=DEADLINE)
            with contextlib.closing(dist_graph):
                found = []
                for minibatch in over(dist_graph):
                    found.append(minibatch.digest())
                    if len(found) == 10:
                        cluster.remove_node(others[0], allow_graceful=False)
            assert found == expected
    finally:
        ray.shutdown()
        cluster.shutdown()


# --- tests


@pytest.mark.full
@pytest.mark.parametrize(
    "case", [servers_are_killed, a_replica_is_killed, a_whole_graph_is_served, what_is_wrong_is_told]
)
def test_servers_in_ray(tmp_path, case):
    run(case, tmp_path)


@pytest.mark.full
def test_servers_of_a_node_that_is_lost_start_on_another(tmp_path):
    run(a_node_is_lost, tmp_path, num_cpus=None)


def test_without_ray_or_a_cluster_it_says_so(tmp_path, monkeypatch):
    with pytest.raises((RuntimeError, ModuleNotFoundError), match=r"this process is in no Ray cluster|needs ray"):
        RayServers(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"RayServers needs ray, .*pip install ray \(in the extra \[ray\]"):
        RayServers(tmp_path)


def train(folder, name, disturb=lambda running: None):
    """Run examples/ray_train.py; return the hash of its weights."""
    command = [
        sys.executable,
        EXAMPLES / "ray_train.py",
        "--data",
        folder / "ring.npz",
        "--out",
        folder,
        "--name",
        name,
    ]
    command += ["--num-cpus", "8", "--epochs", "3", "--batch-size", "8", "--checkpoint-every", "3"]
    with open(folder / f"{name}.log", "w+b") as log:
        running = subprocess.Popen([*map(str, command)], stdout=log, stderr=log)
        try:
            disturb(running)
            assert running.wait(CASE_S) == 0, (folder / f"{name}.log").read_text()[-4000:]
        finally:
            running.kill()
    return re.search(r"weights ([0-9a-f]{16})$", (folder / f"{name}.log").read_text(), re.MULTILINE)[1]


def pids_of(name, ancestor):
    """The processes below another one whose title has a text."""
    parents, found = {}, []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if name in (place / "cmdline").read_text():
                found.append(int(place.name))
    return [pid for pid in found if ancestor in list(_ancestors(pid, parents))]


def _ancestors(pid, parents):
    while pid in parents:
        pid = parents[pid]
        yield pid


@pytest.mark.full
def test_a_train_worker_and_a_server_that_are_killed_change_no_weight(tmp_path):
    write_ring(tmp_path / "ring.npz", 800)
    killed = []

    def disturb(running):
        for turn in range(2):
            folders, ends = tmp_path / "runs" / "disturbed", time.monotonic() + CASE_S
            while len([*folders.glob("checkpoint_*/parts.pt")]) < 1 or not pids_of("RayTrainWorker", running.pid):
                assert time.monotonic() < ends
                assert running.poll() is None
                time.sleep(0.05)
            title = "RayTrainWorker" if turn % 2 == 0 else "_Server"
            for pid in pids_of(title, running.pid)[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(title)

    expected = train(tmp_path, "whole")
    assert train(tmp_path, "disturbed", disturb) == expected
    assert {*killed} == {"RayTrainWorker", "_Server"}
