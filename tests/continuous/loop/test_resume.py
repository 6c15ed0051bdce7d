"""A run killed at any phase resumes at the right window and trains once on each."""

import asyncio
import dataclasses
import itertools
import json
import shutil
import signal
from pathlib import Path

import pytest
from tests.harness.in_process import rlforge_here, use_actors_in_process

from rlforge.config.compose import to_yaml
from rlforge.config.roots import compose_run, read_run
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.store import StoreReader, TrajectoryStore
from rlforge.continuous.loop.journal import Journal
from rlforge.continuous.loop.policy_side import checks_of_run
from rlforge.continuous.loop.trials import market_probes
from rlforge.continuous.market.trading import AgentPrompter
from rlforge.continuous.serving.records import Probe
from rlforge.continuous.serving.service import DeploymentService
from rlforge.continuous.serving.setup import compose_service
from rlforge.engines.registry import make_engine
from rlforge.lab.verify.check import verify
from rlforge.local.policies import find_policy
from rlforge.models.load import load_tokenizer
from rlforge.record.digests import FILE, broken_at
from rlforge.record.files import read_jsonl
from rlforge.system.checkpoint import list_checkpoints, read_manifest
from rlforge.types import SamplingParams

#: Keys that may differ between two runs of one seed: times, and whether the scorer had learned a
#: window already when the run was killed before the window was recorded.
_MAY_DIFFER = (
    *("duration_minutes", "seconds", "tokens_per_s", "tflops", "memory_peak_gb"),
    "scorer/newly_learned",
)


def rows(run_dir, name):
    found = [json.loads(line) for line in (run_dir / name).read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if not key.startswith(_MAY_DIFFER)}
        for row in found
    ]


def decisions(run_dir):
    return StoreReader(run_dir / "store").decisions()


def digests(run_dir):
    lines = read_jsonl(run_dir / FILE)
    assert broken_at(lines) is None
    return lines[1:]


@pytest.fixture(scope="module")
def whole(small_market, tmp_path_factory):
    """A run of two windows without an interruption, in this process."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        use_actors_in_process(patch.setattr)
        assert rlforge_here("continuous", *small_market, f"run_dir={run_dir}") == 0
    return run_dir


@pytest.fixture(scope="module")
def undisturbed(run_continuous, small_market, tmp_path_factory):
    """The same run in a process with the threads of those that are killed: sums depend on them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run_continuous(*small_market, f"run_dir={folder / 'run'}", log=str(folder / "log")) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def killed(run_continuous, small_market, tmp_path_factory):
    """A run that was killed after the first of its two windows; tests go on with copies of it."""
    folder = tmp_path_factory.mktemp("killed")
    arguments = (*small_market, f"run_dir={folder / 'run'}")
    code = run_continuous(*arguments, kill=(1, "done", "after"), log=str(folder / "log"))
    assert code == -signal.SIGKILL, (folder / "log").read_text()
    return folder / "run"


@pytest.mark.slow
def test_a_run_killed_around_every_phase_ends_like_an_undisturbed_one(
    run_continuous, small_market, undisturbed
):
    run_dir = Path("run").absolute()
    arguments = (*small_market, f"run_dir={run_dir}")
    phases = ("collected", "scored", "trained", "deployed", "done")
    for phase, when in itertools.product(phases, ("before", "after")):
        code = run_continuous(*arguments, kill=(1, phase, when))
        assert code == -signal.SIGKILL, Path("log").read_text()
        arguments = ("--resume", run_dir)
    assert run_continuous(*arguments) == 0, Path("log").read_text()

    assert rows(run_dir, "windows.jsonl") == rows(undisturbed, "windows.jsonl")
    assert rows(run_dir, "metrics.jsonl") == rows(undisturbed, "metrics.jsonl")
    assert decisions(run_dir) == decisions(undisturbed)
    assert digests(run_dir) == digests(undisturbed)
    windows = [
        read_manifest(path).meta["window_id"] for path in list_checkpoints(run_dir / "checkpoints")
    ]
    assert windows == [None, "2024-11-13-10:00", "2024-11-13-10:30"]
    for name in ("step-1", "step-2"):
        assert policy_weights(run_dir, name) == policy_weights(undisturbed, name)


def policy_weights(run_dir, name):
    return (run_dir / "checkpoints" / name / "adapter_model.safetensors").read_bytes()


@pytest.mark.ray
def test_a_moved_run_goes_on_as_if_it_were_not(run_continuous, killed, undisturbed):
    kept = killed.rename(killed.with_name("kept"))
    moved = shutil.copytree(kept, Path("moved").absolute())
    try:
        assert run_continuous("--resume", moved) == 0, Path("log").read_text()
        assert not killed.exists()
    finally:
        kept.rename(killed)
    assert rows(moved, "windows.jsonl") == rows(undisturbed, "windows.jsonl")
    assert decisions(moved) == decisions(undisturbed)
    assert policy_weights(moved, "step-2") == policy_weights(undisturbed, "step-2")
    assert digests(moved) == digests(undisturbed)
    assert [line["version"] for line in digests(moved)] == ["step-1", "step-2"]
    assert digests(moved)[0]["policy"] == digests(moved)[1]["policy_before"]
    assert verify(moved).problems == []


@pytest.mark.ray
def test_a_run_killed_after_its_last_window_still_measures_what_it_reached(
    run_continuous, small_market, undisturbed
):
    run_dir = Path("run").absolute()
    killed = run_continuous(*small_market, f"run_dir={run_dir}", kill=(2, "done", "after"))
    assert killed == -signal.SIGKILL
    assert run_continuous("--resume", run_dir) == 0, Path("log").read_text()
    compared = json.loads((run_dir / "comparison.json").read_text())
    assert compared == json.loads((undisturbed / "comparison.json").read_text())
    assert digests(run_dir) == digests(undisturbed)
    assert run_continuous("--resume", run_dir) == 1  # it is complete


@pytest.mark.slow
def test_a_run_that_left_out_its_first_window_repeats_the_ticks_of_it(run_continuous, small_market):
    # A window has ten ticks, and never as many are left of the one that a run begins in.
    wall = ("window.clock=wall", "window.minutes=0.05", "market.tick_minutes=0.005")
    few = ("window.min_trajectories_per_agent=10", "continuous.compare_episodes=0")
    run_dir = Path("run").absolute()
    arguments = (*small_market, *wall, *few, "continuous.windows=2", f"run_dir={run_dir}")
    killed = run_continuous(*arguments, kill=(1, "collected", "before"))
    assert killed == -signal.SIGKILL, Path("log").read_text()
    assert "is left out: an agent needs 10 decisions in it" in Path("log").read_text()
    before = decisions(run_dir)
    assert run_continuous("--resume", run_dir) == 0, Path("log").read_text()
    _, second = rows(run_dir, "windows.jsonl")
    after = decisions(run_dir)
    assert [one.completion for one in after[: len(before)]] == [one.completion for one in before]
    # Ticks that are not repeated would take the numbers of those on record.
    assert len({one.id for one in after}) == len(after)
    assert second["trajectories"] > 0


def test_verify_names_the_window_whose_decisions_or_scores_were_changed(whole):
    shutil.copytree(whole, "copy")
    file = next(Path("copy/scores").glob("2024-11-13-10.30*"))
    content = json.loads(file.read_text())
    next(iter(content["scores"].values()))["score"] += 0.01
    file.write_text(json.dumps(content))
    with TrajectoryStore(Path("copy/store")) as store:
        store.delete(["2024-11-13-10:00"])
    assert verify(Path("copy")).problems == [
        ("windows", "window 2024-11-13-10:00 is missing"),
        (
            "windows",
            "window 2024-11-13-10:30: its scores are not those that were noted "
            "(2024-11-13-10.30.json)",
        ),
    ]
    first, *others = decisions(whole)
    changed = dataclasses.replace(first, reward=(first.reward or 0.0) + 0.01)
    shutil.rmtree("copy/store")
    with TrajectoryStore(Path("copy/store")) as store:
        store.append([changed, *others])
    assert verify(Path("copy")).problems[0] == (
        "windows",
        f"window {first.window_id}: its decisions are not those that were noted",
    )


@pytest.mark.slow
def test_a_moved_run_needs_nothing_of_the_adapter_that_it_began_with(
    run_continuous, small_market, undisturbed
):
    """Neither to answer control agents, nor for the KL penalty to it."""
    begun, start = Path("begun").absolute(), Path("sft").absolute()
    shutil.copytree(undisturbed / "checkpoints" / "step-1", start)
    weights = (start / "adapter_model.safetensors").read_bytes()
    own = [f"learner.initial_adapter={start}", "continuous.control_agents=1"]
    own += ["algorithm.kl.to=base", "algorithm.kl.coef=0.1", f"run_dir={begun}"]
    killed = run_continuous(*small_market, *own, kill=(1, "done", "after"))
    assert killed == -signal.SIGKILL, Path("log").read_text()
    shutil.rmtree(start)
    moved = begun.rename(begun.with_name("moved"))
    assert run_continuous("--resume", moved) == 0, Path("log").read_text()
    assert policy_weights(moved, "step-0") == weights
    assert [row["version"] for row in rows(moved, "windows.jsonl")] == ["step-1", "step-2"]
    control = [d for d in decisions(moved) if d.metadata.provider == "control"]
    assert {d.completion.policy_uid for d in control} == {"control"}
    assert find_policy(moved, "step-0")[0].path_or_name == str(moved / "checkpoints" / "step-0")


async def deploy_elsewhere(run_dir, adapter):
    config = compose_service([str(run_dir)]).config
    engine = make_engine(config, device="cpu", threads=1)
    # What the tiny model answers here is chance.
    settings = dataclasses.replace(config.deployment, min_format=0.0)
    probe = Probe(prompt_token_ids=(5, 6), params=SamplingParams(max_tokens=1), extraction="raw")
    service = await DeploymentService.open(
        run_dir / "deployments", engine, settings, config.model, [probe]
    )
    try:
        return await service.deploy(adapter)
    finally:
        await service.close()
        await engine.close()


@pytest.mark.ray
def test_learning_never_goes_on_from_an_adapter_that_was_deployed_from_elsewhere(
    run_continuous, killed, undisturbed
):
    run_dir = shutil.copytree(killed, Path("run").absolute())
    # Another run's checkpoint of the same name.
    other = shutil.copytree(undisturbed / "checkpoints" / "step-2", Path("other/step-1").absolute())
    deployed = asyncio.run(deploy_elsewhere(run_dir, other))
    assert deployed.phase == "live", deployed.reason
    assert run_continuous("--resume", run_dir) == 0, Path("log").read_text()
    log = Path("log").read_text()
    assert f"deploy-2 is not of this run ({other}): step-1 serves again" in log
    assert policy_weights(run_dir, "step-2") == policy_weights(undisturbed, "step-2")


def test_a_finished_run_has_its_phases_in_the_journal_and_is_not_resumed(in_process, whole, capsys):
    entries = Journal(whole / "journal.sqlite").entries()
    assert [(entry.number, entry.phase) for entry in entries] == [(1, "done"), (2, "done")]
    assert [entry.facts["trained"]["uid"] for entry in entries] == ["step-1", "step-2"]
    assert in_process.rlforge_here("continuous", "--resume", str(whole)) == 1
    assert "already finished its 2 windows; go on with --more N" in capsys.readouterr().err


def test_a_run_names_its_service_but_not_next_to_a_state_folder(in_process, whole, capsys):
    assert in_process.rlforge_here("deployments", str(whole)) == 0
    listed = capsys.readouterr().out
    assert in_process.rlforge_here("deployments", "--state", str(whole)) == 0
    assert capsys.readouterr().out == listed
    assert "deploy-2  live" in listed
    assert in_process.rlforge_here("deployments", str(whole), "--state", "other") == 2
    assert "both name a service; leave one out" in capsys.readouterr().err
    assert in_process.rlforge_here("rollback", str(whole)) == 1
    assert "no service runs here" in capsys.readouterr().err


def test_a_finished_run_goes_on_for_more_windows(in_process, whole):
    longer = shutil.copytree(whole, Path("longer").absolute())
    assert in_process.rlforge_here("continuous", "--resume", str(longer), "--more", "1") == 0
    before, after = ((run / "windows.jsonl").read_text() for run in (whole, longer))
    assert after.startswith(before)
    assert [json.loads(line)["window"] for line in after.splitlines()] == [1, 2, 3]
    measured = [json.loads((run / "comparison.json").read_text()) for run in (whole, longer)]
    assert measured[0]["before"] == measured[1]["before"]
    assert [one["after"]["version"] for one in measured] == ["step-2", "step-3"]


def probes_of(setup):
    """What a service asks new versions, and as text; nothing is answered."""
    assert setup.continuous is not None
    assert setup.source is not None
    tokenizer = load_tokenizer(setup.config.model)
    engine = make_engine(setup.config, device="cpu", threads=1)
    probes = checks_of_run(setup.source, setup.continuous, engine, tokenizer).probes
    asyncio.run(engine.close())
    return probes, [tokenizer.decode(probe.prompt_token_ids) for probe in probes]


def test_a_service_of_the_run_asks_new_versions_about_its_own_market(whole):
    setup = compose_service([str(whole)])
    assert (setup.source, setup.state_dir) == (whole, whole / "deployments")
    own = read_run(whole, ContinuousConfig)
    assert setup.continuous.market == own.market
    probes, texts = probes_of(setup)
    assert len(probes) == 8
    assert all(text.startswith("market ") for text in texts)
    prompter = AgentPrompter(own, own.market, load_tokenizer(own.model))
    params = SamplingParams(max_tokens=4, stop_token_ids=probes[0].params.stop_token_ids)
    asked = market_probes(setup.continuous, prompter, params)
    assert [one.prompt_token_ids for one in probes] == [one.prompt_token_ids for one in asked]


@pytest.mark.parametrize(
    "source",
    [
        ["+experiment=served_answers"],
        ["continuous.source=episodes", "episodes.function=my_episodes:play"],
    ],
)
def test_a_service_of_a_run_without_a_market_asks_nothing_about_one(
    make_config, market_model, source
):
    run_dir = Path("run")
    (run_dir / "checkpoints" / "step-0").mkdir(parents=True)
    (run_dir / "checkpoints" / "step-0" / "manifest.json").write_text("{}")
    given = [*source, "model=hf", f"model.name={market_model}", "window.clock=wall"]
    config = compose_run(given, None, ContinuousConfig).config
    (run_dir / "config.yaml").write_text(to_yaml(config))
    probes, _ = probes_of(compose_service([str(run_dir)]))
    tokenizer = load_tokenizer(config.model)
    words = [tokenizer.encode(f"Count to {n}.", add_special_tokens=False) for n in range(1, 9)]
    assert [list(probe.prompt_token_ids) for probe in probes] == words
    assert {probe.extraction for probe in probes} == {"raw"}
