"""benchmarks/logits.py measures ways to the same gradient."""

import importlib
import json
import subprocess
import sys

import pytest
import torch


@pytest.mark.slow
def test_the_learner_takes_a_fraction_of_full_logits_for_the_same_gradient(on_path, tmp_path):
    taken, gradients = {}, {}
    for way in ("rlforge", "full_logits"):
        file = tmp_path / f"{way}.pt"
        sizes = ["--tokens", "1024", "--vocabulary", "100000"]
        command = [sys.executable, str(on_path / "logits.py"), *sizes, "--measure", way, str(file)]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        taken[way] = json.loads(run.stdout.splitlines()[-1])
        gradients[way] = torch.load(file, weights_only=True)
    assert taken["full_logits"] > 2 * 1024 * 100_000 * 4
    assert taken["rlforge"] < taken["full_logits"] / 2
    torch.testing.assert_close(gradients["rlforge"], gradients["full_logits"], rtol=1e-3, atol=1e-7)


def test_the_ways_that_a_gpu_would_time_have_the_same_gradient():
    heads = importlib.import_module("heads")
    rows = heads.compare("cpu", tokens=40, vocabulary=300, width=16, repeats=2)
    assert list(rows)[:2] == ["rlforge", "full_logits"]
    for row in (rows["rlforge"], rows["full_logits"]):
        assert row["gradient_relative_error"] < 1e-5
        assert row["forward_and_backward"]["repeats"] == 2


def test_a_way_with_another_gradient_shows_as_wrong(monkeypatch, capsys):
    """Liger before its 2026 mend: one weight for all tokens."""
    heads = importlib.import_module("heads")

    class FirstWeightForAll(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logprobs):
            return logprobs.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient[:1].expand_as(gradient)

    def liger(*arguments):
        return FirstWeightForAll.apply(heads.full_logits(*arguments))

    monkeypatch.setattr(heads, "ways", lambda: {"rlforge": heads.own, "liger": liger})
    heads.show(heads.compare("cpu", tokens=40, vocabulary=300, width=16, repeats=2))

    first, second, absent = capsys.readouterr().out.splitlines()
    assert "wrong" not in first
    assert second.startswith("liger")
    assert second.endswith("wrong gradient")
    assert absent.startswith("absent: full_logits; ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("logits", ["--device", "cuda"]),
        ("quick_start", []),
        ("learner", ["--shape", "qwen3-0.6b", "--device", "cuda"]),
    ],
)
def test_without_a_gpu_cuda_is_refused_in_one_line(script, options, monkeypatch):
    monkeypatch.setattr(sys, "argv", [script, *options])
    with pytest.raises(SystemExit, match=r"this needs a GPU$"):
        importlib.import_module(script).main()
