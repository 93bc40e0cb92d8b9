"""The study of attention: distances and probes against hand-made networks, and rows of real runs."""

import pytest
import torch

import posattn
from posattn.experiments.attention_study import LISTS, AttentionStudy, _distance, _probe, _share_read
from posattn.training import RunSpec, train_spec
from posattn.training.recipe import recipe

STUDY = AttentionStudy((1.0, 4.0), samples=60)


@pytest.fixture(scope="module", params=["positional", "standard"])
def rows(request):
    config = posattn.ModelConfig(8, request.param, embed=16, width=16)
    team = tuple(posattn.training.Member("sort", seed, 1e-3) for seed in range(2))
    spec = RunSpec(config, recipe("paper", samples=200, batch=100, epochs=3), team)
    run = train_spec(spec, torch.device("cpu"))
    return request.param, run, STUDY.rows(run)


def test_total_variation_by_hand():
    a = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])[None, None, None]
    b = torch.tensor([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])[None, None, None]
    assert _distance(a, b).tolist() == pytest.approx([(0.5 + 1.0 + 0.0) / 3])


def test_a_probe_reads_a_position_that_is_there_and_only_guesses_one_that_is_not():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(300, 5, 8, generator=generator)
    marked = noise.clone()
    marked[..., :5] += 10 * torch.eye(5)
    fitted, fresh = marked[:200], marked[200:]
    assert _share_read(_probe(fitted), fresh) == 1.0
    assert _share_read(_probe(fitted), 0 * fresh) == pytest.approx(0.2, abs=0.01)  # all alike: one guess for five
    assert _share_read(_probe(noise[:200]), noise[200:]) < 0.35


def test_positional_attention_does_not_move_and_self_attention_does(rows):
    arch, _, table = rows
    moved = table[(table["metric"] == "movement") & (table["scale"] == 4)]["value"]
    spread = table[table["metric"] == "spread"]["value"]
    assert len(moved) == 2 * 4 and (moved == 0).all() == (arch == "positional")
    assert (spread < 1e-6).all() == (arch == "positional") and (moved <= 1).all()
    assert (table[(table["metric"] == "movement") & (table["scale"] == 1)]["value"] == 0).all()


def test_the_maps_are_the_models_attention_on_the_figures_lists(rows):
    _, run, table = rows
    maps = table[table["metric"] == "attention"]
    assert set(maps["seed"]) == {0} and set(maps["list"]) == set(LISTS)
    own = maps[(maps["list"] == "Figure 37") & (maps["scale"] == 4) & (maps["layer"] == 3)]
    expected = run.model(0).attention(4 * torch.tensor(LISTS["Figure 37"]))[2, 0]
    made = torch.zeros(9, 9)
    made[torch.tensor(own["query"].astype(int).values) - 1, torch.tensor(own["key"].astype(int).values) - 1] = (
        torch.tensor(own["value"].values, dtype=torch.float32)
    )
    torch.testing.assert_close(made, expected)


def test_probes_read_the_encoder_of_a_standard_model(rows):
    arch, _, table = rows
    probes = table[table["metric"] == "probe"]
    assert set(probes["layer"]) == {0, 1, 2, 3, 4}  # before the first layer and after each
    first = probes[(probes["layer"] == 0) & (probes["scale"] == 1)]["value"]
    assert (first == 1).all() if arch == "standard" else (first < 0.6).all()
