"""Ray starts what the run graph says, where there is room for it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from rlforge.config.compose import compose
from rlforge.config.schema import HardwareConfig
from rlforge.errors import RunError
from rlforge.preflight.plan import make_plan, to_json
from rlforge.record import scalars
from rlforge.run.actors import cluster
from rlforge.run.actors.session import ray_started
from rlforge.system.hardware import Machine


async def test_scalars_of_an_actor_that_answers_late_count_in_a_later_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "SCALARS_PATIENCE_S", 0.05)
    late: asyncio.Future[scalars.Sums] = asyncio.Future()
    answers = {"learner": [late, answered({"mine": (1.0, 1)})], "pool": [answered({})] * 3}

    def handle(name: str) -> SimpleNamespace:
        asked = iter(answers[name])
        return SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda _: next(asked)))

    actors = cluster.RunActors({name: handle(name) for name in answers})
    assert await actors.custom_scalars() == {}
    late.set_result({"mine": (4.0, 2)})
    assert await actors.custom_scalars() == {"custom/mine": 2.0}
    assert await actors.custom_scalars() == {"custom/mine": 1.0}


def answered(sums: scalars.Sums) -> asyncio.Future[scalars.Sums]:
    future: asyncio.Future[scalars.Sums] = asyncio.Future()
    future.set_result(sums)
    return future


@pytest.mark.parametrize(
    "cpus", [pytest.param(2, marks=pytest.mark.ray), pytest.param(8, marks=pytest.mark.slow)]
)
async def test_ray_runs_exactly_the_actors_of_the_graph(
    own_home: None, small_model: Path, tmp_path: Path, cpus: int
) -> None:
    """With the names and resources that ``rlforge graph --format json`` prints."""
    two = ["engine.num_engines=2", "learner.num_learners=2"]
    model = ["model=hf", f"model.name={small_model}"]
    config = compose(["+experiment=tictactoe_mirror", *model, *two]).config
    graph = make_plan(config, Machine(cpus=cpus, gpus=0))
    graph = dataclasses.replace(
        graph, hardware=dataclasses.replace(graph.hardware, num_cpus=5, threads=1)
    )
    printed = json.loads(to_json(graph))["nodes"]
    with ray_started(graph.hardware, graph.num_cpus):
        actors = await cluster.start_actors(graph, tmp_path)
        assert set(actors.named) == {name for node in printed for name in node["actor_names"]}
        listed = {node["host"] or name for node in printed for name in node["actor_names"]}
        assert set(ray.util.list_named_actors()) == listed
        assert listed == {
            *(("state",) if cpus == 2 else ("tracker", "pool", "buffer")),
            *("learner", "learner-1", "engine-0", "engine-1", "collector-0"),
        }
        asked = sum(node["num_cpus"] * node["replicas"] for node in printed)
        assert ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0) == asked
        assert {path.stem for path in (tmp_path / "logs").glob("*.log")} >= listed
        assert len(actors.engines) == 2
        assert (await actors.buffer.figures.remote())["buffer_size"] == 0


@pytest.mark.ray
async def test_a_graph_without_room_raises_instead_of_waiting_for_ever(
    own_home: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = compose(["+experiment=tictactoe_mirror", "engine.num_engines=2"]).config
    hardware = HardwareConfig(device="cpu", engine_gpus=1.0)
    whole = make_plan(config, Machine(cpus=2, gpus=0))
    engine = dataclasses.replace(whole.node("engine"), num_gpus=1.0)
    nodes = (whole.node("tracker"), engine)
    graph = dataclasses.replace(whole, hardware=hardware, nodes=nodes)
    monkeypatch.setattr(cluster, "PLACEMENT_PATIENCE_S", 0.5)
    with ray_started(hardware, graph.num_cpus):
        with pytest.raises(
            RunError, match=r"no room for 2 engines .* 1 GPUs each .*lower engine.num_engines"
        ):
            await cluster.start_actors(graph, tmp_path)
        assert ray.util.list_named_actors() == []


@pytest.mark.ray
async def test_an_actor_that_ray_does_not_start_raises_instead_of_waiting_for_ever(
    own_home: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where the clock is set back while Ray starts: its timers wait for the old time."""
    config = compose(["+experiment=tictactoe_mirror"]).config
    whole = make_plan(config, Machine(cpus=2, gpus=0))
    graph = dataclasses.replace(whole, nodes=(whole.node("tracker"),))
    monkeypatch.setattr(cluster, "START_PATIENCE_S", 0.01)
    late = pytest.raises(RunError, match=r"Ray has not started tracker within 0\.01 s")
    with ray_started(graph.hardware, graph.num_cpus), late:
        await cluster.start_actors(graph, tmp_path)
