"""How long a policy takes to the engines of other nodes, which share no file system.

    python benchmarks/publication.py [--megabytes M] [--nodes 1 2] [--engines 1 8] [--repeats N]

A folder of M megabytes, as the learner writes an adapter, is fetched by engines that load nothing:
they wait for its place on their node. Each repeat is a policy with other content, and all numbers
of nodes and engines take turns. The nodes are Ray's on this machine: its memory and cores are the
network, so that the ratio to one engine is what counts. ``ratio``: to one engine of one node.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from common import record, shown, spread
from ray.cluster_utils import Cluster

from rlforge.record.files import create_run
from rlforge.run.actors.folder import RunFolder, on_node, start_server
from rlforge.types import PolicyRef


class Engine:
    """An engine without a model."""

    def __init__(self, folder: RunFolder) -> None:
        folder.open()
        self._folder = folder

    async def load(self, policy: PolicyRef) -> None:
        await self._folder.policy(policy)


def publish(engines: list[Any], path: Path, megabytes: int) -> float:
    """Seconds until every engine has a new policy."""
    path.mkdir(parents=True)
    (path / "adapter_model.safetensors").write_bytes(os.urandom(megabytes << 20))
    policy = PolicyRef(uid=path.name, kind="checkpoint", path_or_name=str(path))
    started = time.perf_counter()
    ray.get([engine.load.remote(policy) for engine in engines])
    return time.perf_counter() - started


def measure(megabytes: int, nodes: int, engines: list[int], repeats: int) -> dict[int, list[float]]:
    """Seconds of each repeat, by the number of engines, which are spread over ``nodes``."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        ids = [cluster.add_node(num_cpus=1).node_id for _ in range(nodes)]
        ray.init(address=cluster.address, log_to_driver=False)
        with tempfile.TemporaryDirectory() as root:
            run = Path(root)
            create_run(run)
            server, folder = start_server(run)
            made: Any = ray.remote(Engine)
            all_engines = [
                made.options(num_cpus=0, scheduling_strategy=on_node(ids[index % nodes])).remote(
                    folder
                )
                for index in range(max(engines))
            ]
            ray.get([engine.__ray_ready__.remote() for engine in all_engines])
            publish(all_engines, run / "warm-up", megabytes)
            found: dict[int, list[float]] = {number: [] for number in engines}
            for repeat in range(repeats):
                for number in engines:
                    path = run / "checkpoints" / f"step-{repeat}-{number}"
                    found[number].append(publish(all_engines[:number], path, megabytes))
            ray.kill(server)
        return found
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    rows = []
    for nodes in given.nodes:
        measured = measure(given.megabytes, nodes, given.engines, given.repeats)
        for engines, seconds in measured.items():
            rows.append({"nodes": nodes, "engines": engines, **spread(seconds)})
    for row in rows:
        row["ratio"] = row["median_s"] / rows[0]["median_s"]
        print(f"{row['nodes']} nodes, {row['engines']} engines: {shown(row, scale=1e3)} ms")
    record("publication", {"megabytes": given.megabytes, "rows": rows})


if __name__ == "__main__":
    main()
