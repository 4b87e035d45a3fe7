"""`msprobe weights`: what differs between two sets of weights, in every form that checkpoints and engines have."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from msprobe.cli import main
from msprobe.dump.errors import DumpError
from msprobe.rollout.checkpoints import open_weights
from msprobe.rollout.weights import compare_weights

pytestmark = pytest.mark.fast


def _weights(seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    made = {"model.embed_tokens.weight": draw(16, 8), "lm_head.weight": draw(16, 8), "model.norm.weight": draw(8)}
    for layer in range(3):
        head = f"model.layers.{layer}"
        made[f"{head}.self_attn.q_proj.weight"] = draw(8, 8)
        made[f"{head}.self_attn.k_proj.weight"] = draw(4, 8)
        made[f"{head}.self_attn.v_proj.weight"] = draw(4, 8)
        made[f"{head}.self_attn.o_proj.weight"] = draw(8, 8)
        for expert in range(2):
            made[f"{head}.mlp.experts.{expert}.gate_proj.weight"] = draw(6, 8)
            made[f"{head}.mlp.experts.{expert}.up_proj.weight"] = draw(6, 8)
            made[f"{head}.mlp.experts.{expert}.down_proj.weight"] = draw(8, 6)
    return made


def _fused(weights, ranks=1):
    """As an engine has them: one dict for each rank."""
    made = []
    for rank in range(ranks):

        def rows(name, rank=rank):
            value = weights[name]
            size = value.shape[0] // ranks
            return value[rank * size : (rank + 1) * size]

        def columns(name, rank=rank):
            value = weights[name]
            size = value.shape[1] // ranks
            return value[:, rank * size : (rank + 1) * size]

        one = {"model.embed_tokens.weight": rows("model.embed_tokens.weight"), "lm_head.weight": rows("lm_head.weight")}
        one["model.norm.weight"] = weights["model.norm.weight"]
        for layer in range(3):
            head = f"model.layers.{layer}"
            parts = [rows(f"{head}.self_attn.{x}_proj.weight") for x in "qkv"]
            one[f"{head}.self_attn.qkv_proj.weight"] = torch.cat(parts)
            one[f"{head}.self_attn.o_proj.weight"] = columns(f"{head}.self_attn.o_proj.weight")
            experts = [f"{head}.mlp.experts.{e}" for e in range(2)]
            wide = [torch.cat([rows(f"{e}.gate_proj.weight"), rows(f"{e}.up_proj.weight")]) for e in experts]
            one[f"{head}.mlp.experts.w13_weight"] = torch.stack(wide)
            one[f"{head}.mlp.experts.w2_weight"] = torch.stack([columns(f"{e}.down_proj.weight") for e in experts])
        made.append(one)
    return made


def _save(weights, path, metadata=None):
    path.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in weights.items()}, path / "model.safetensors", metadata)
    return path


def _save_ranks(ranks, path):
    path.mkdir()
    for number, one in enumerate(ranks):
        plain = {name: value.contiguous() for name, value in one.items()}
        save_file(plain, path / f"rank{number}.safetensors", {"engine": "vllm", "tied": "{}"})
    return path


def _wrong(found):
    return {one.name: (one.kind, one.detail) for one in found.wrong}


@pytest.mark.parametrize("ranks", [1, 2])
def test_fused_and_sharded_weights_are_the_same(tmp_path, ranks):
    weights = _weights()
    good = _save(weights, tmp_path / "a")
    engine = _save_ranks(_fused(weights, ranks), tmp_path / "b")
    for found in (compare_weights(good, engine), compare_weights(engine, good)):
        assert found.counts == {"same": len(weights)}
        assert found.exit_code == 0


PARTS = ("self_attn.k_proj", "mlp.experts.1.up_proj", "mlp.experts.0.down_proj", "self_attn.o_proj")


@pytest.mark.parametrize("name", PARTS)
def test_one_stale_tensor_in_a_fused_one_is_named(tmp_path, name):
    weights, changed = _weights(), _weights()
    full = f"model.layers.1.{name}.weight"
    changed[full] = changed[full] * 1.5
    found = compare_weights(_save(weights, tmp_path / "a"), _save_ranks(_fused(changed), tmp_path / "b"))
    assert list(_wrong(found)) == [full]
    assert "nearly all elements" in _wrong(found)[full][1]
    assert "relative 0.5" in _wrong(found)[full][1]


def test_a_stale_shard_names_its_rank(tmp_path):
    weights = _weights()
    ranks = _fused(weights, 2)
    ranks[1]["model.layers.2.self_attn.qkv_proj.weight"] = ranks[1]["model.layers.2.self_attn.qkv_proj.weight"] + 1
    found = compare_weights(_save(weights, tmp_path / "a"), _save_ranks(ranks, tmp_path / "b"))
    assert sorted(one.name.split(".")[4] for one in found.wrong) == ["k_proj", "q_proj", "v_proj"]
    assert all("in rank 1 only" in one.detail for one in found.wrong)


def test_one_element_a_slice_and_all_are_told_apart(tmp_path):
    weights, changed = _weights(), _weights()
    changed["model.norm.weight"][3] += 1
    changed["lm_head.weight"][4:6] *= 2
    changed["model.embed_tokens.weight"] *= 2
    found = _wrong(compare_weights(_save(weights, tmp_path / "a"), _save(changed, tmp_path / "b")))
    assert found["model.norm.weight"][1].startswith("one element of 8, in row 3; largest difference 1")
    assert found["lm_head.weight"][1].startswith("16 of 128 elements, in rows 4 to 5 of 16")
    assert found["model.embed_tokens.weight"][1].startswith("nearly all elements")


def test_weights_of_the_step_before_are_stale(tmp_path):
    new, old = _weights(), _weights(1)
    mixed = {**new, "model.norm.weight": old["model.norm.weight"]}
    paths = [_save(one, tmp_path / str(number)) for number, one in enumerate((new, mixed, old))]
    found = compare_weights(*paths)
    assert [(one.name, one.kind) for one in found.wrong] == [("model.norm.weight", "stale")]


def test_cast_missing_extra_transposed_and_tied(tmp_path):
    weights = _weights()
    other = {name: value.bfloat16() for name, value in weights.items()}
    del other["model.norm.weight"]
    other["new.weight"] = torch.ones(2)
    name = "model.layers.0.mlp.experts.0.up_proj.weight"
    other[name] = other[name].T
    found = compare_weights(_save(weights, tmp_path / "a"), _save(other, tmp_path / "b"))
    assert found.counts == {"cast": len(weights) - 1, "missing": 1, "extra": 1}
    assert next(one for one in found.results if one.name == name).place == "transposed"
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    tied = {name: value for name, value in weights.items() if name != "lm_head.weight"}
    facts = {"tied": json.dumps({"lm_head.weight": "model.embed_tokens.weight"})}
    assert not compare_weights(_save(weights, tmp_path / "c"), _save(tied, tmp_path / "d", facts)).wrong


@pytest.mark.parametrize("per", ["tensor", "row"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_quantised_weights_are_within_rounding_or_differ(tmp_path, per, dtype):
    weights = {"a.weight": _weights()["lm_head.weight"]}
    largest = 448.0 if dtype != torch.int8 else 127.0
    top = weights["a.weight"].abs().amax(1, keepdim=True) if per == "row" else weights["a.weight"].abs().max()
    scale = top / largest
    scaled = weights["a.weight"] / scale
    small = {
        "a.weight": (scaled.round() if dtype == torch.int8 else scaled).to(dtype),
        "a.weight_scale": scale.reshape(-1),
    }
    good = _save(weights, tmp_path / "a")
    found = compare_weights(good, _save(small, tmp_path / "b"))
    assert found.counts == {"quantised": 1}
    small["a.weight_scale"] = small["a.weight_scale"] * 1.5
    assert compare_weights(good, _save(small, tmp_path / "c")).counts == {"differs": 1}


def test_pt_files_sharded_files_and_distributed_checkpoints_are_read(tmp_path):
    import torch.distributed.checkpoint as dcp

    weights = _weights()
    good = _save(weights, tmp_path / "a")
    torch.save({"model": weights, "step": 3}, tmp_path / "b.pt")
    names = list(weights)
    for number, part in enumerate((names[:7], names[7:])):
        (tmp_path / "c").mkdir(exist_ok=True)
        save_file({name: weights[name] for name in part}, tmp_path / "c" / f"model-{number}.safetensors")
    dcp.save(dict(weights), checkpoint_id=tmp_path / "d", no_dist=True)
    for other in ("b.pt", "c", "d"):
        assert compare_weights(good, tmp_path / other).counts == {"same": len(weights)}


def test_nothing_is_unpickled(tmp_path):
    import torch.distributed.checkpoint as dcp

    class Harm:
        def __reduce__(self):
            return (print, ("harm",))

    torch.save({"a": Harm()}, tmp_path / "a.pt")
    with pytest.raises(DumpError, match="weights only"):
        open_weights(tmp_path / "a.pt")
    dcp.save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "d", no_dist=True)
    damaged = (tmp_path / "d/.metadata").read_bytes().replace(b"torch.distributed", b"torch.distribvted")
    (tmp_path / "d/.metadata").write_bytes(damaged)
    assert open_weights(tmp_path / "d").tensors["a"].read().tolist() == [1, 1]  # no class is looked up


@pytest.mark.parametrize("cut", [4, 20, -5])
def test_a_damaged_file_is_named(tmp_path, cut):
    file = _save({"a": torch.ones(50)}, tmp_path / "a") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(DumpError, match=r"model\.safetensors"):
        open_weights(file)


def test_the_command_prints_the_answer(tmp_path, capsys):
    weights, changed = _weights(), _weights()
    changed["model.norm.weight"][3] += 1
    good, bad = _save(weights, tmp_path / "a"), _save(changed, tmp_path / "b")
    assert main(["weights", str(good), str(good)]) == 0
    assert capsys.readouterr().out == f"All {len(weights)} tensors are the same.\n"
    assert main(["weights", str(good), str(bad)]) == 1
    first, _, titles, row = capsys.readouterr().out.splitlines()
    assert first == f"1 of {len(weights)} tensors are not the same."
    assert titles.split() == ["how", "tensor", "in", "what", "differs"]
    assert row.startswith("differs  model.norm.weight ")
    assert "one element of " in row
    assert main(["weights", str(good), str(bad), "--json"]) == 1
    (tensor,) = json.loads(capsys.readouterr().out)["tensors"]
    assert (tensor["name"], tensor["message"]["id"]) == ("model.norm.weight", "weights.differs")
    assert tensor["message"]["arguments"]["what"]["arguments"]["row"] == 3
    assert main(["weights", str(good), str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
