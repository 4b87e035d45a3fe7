"""Counts the answers of this set. Each was read beside its expected place and cause; JUDGED has what is not right.

python benchmarks/unseen7/judge.py              the stored results of the first comparison
python benchmarks/unseen7/judge.py RESULTS      later results: exit codes, and what changed
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
POOR, WRONG = "right place, poor sentence", "wrong"

JUDGED = {
    "fused_beta2": (WRONG, "missed: same; the updates of step 1 differ"),
    "bn_running_biased": (WRONG, "missed: same; a buffer differs after the step"),
    "pieces_but_tile": (WRONG, "the harmless rewrite of the rotation is blamed, not repeat"),
    "moe_unsorted_weights": (WRONG, "the harmless rewrite of the dispatch is blamed, not the weights"),
    "trainer_linear": (WRONG, "a clip_grad_norm_ that changes nothing is the headline; lr stands below it"),
    "trainer_wd": (WRONG, "a clip_grad_norm_ that changes nothing is the headline; weight_decay stands below it"),
    "gru_detached": (WRONG, "no origin: 'different models'; golden is nn.GRU, the target a loop"),
    "lion_order": (POOR, "that the momentum is updated earlier is not said"),
    "sgd_nesterov": (POOR, "'SGD.step is called once': the class is blamed, not the update or nesterov"),
    "clip_inf": (POOR, "'clip_grad_norm_ is called once': the golden run clips too, by hand"),
    "accum_not_scaled_vs_full": (POOR, "accumulation itself is blamed; the factor 2 of the gradients is not said"),
    "accum_tokens": (POOR, "accumulation itself is blamed; that the gradients differ by it is not said"),
    "rope_pairing": (POOR, "cat is paired with repeat_interleave, and 'an argument' is blamed"),
    "qk_norm_after": (POOR, "'differs before any recorded call made it': the norm that made it is recorded"),
    "scale_dim_sdpa": (POOR, "the scale, a recorded argument, is not said"),
    "diagonal_sdpa_mask": (POOR, "the replacement is blamed, not the mask"),
    "online_no_rescale": (POOR, "untrue: the factor is 1.0 in one run and a tensor in the other"),
    "sum_all": (POOR, "untrue: the divisor is 44 in one run and a tensor in the other"),
    "mask_weak": (POOR, "untrue: nothing unrecorded changed the mask, torch.full made it differently"),
    "gru_flipped": (POOR, "untrue: nothing unrecorded changed it, a different value is passed"),
    "padding_idx": (POOR, "the argument padding_idx of the forward call is not said"),
    "enc_padding_grad": (POOR, "the argument padding_idx of the forward call is not said"),
    "ckpt_rng": (POOR, "the recomputation is called a forward"),
    "bf16_tile": (POOR, "the call after repeat is named"),
    "cache_overwrites": (POOR, "clone is named, not the write into its result"),
    "bn_unbiased": (POOR, "the mean, a part of the rewrite, is named, not the variance"),
    "moe_unnormalised": (POOR, "the missing division is not said"),
    "vae_draw": (POOR, "that the numbers are drawn is not said"),
    "con_one_way": (POOR, "the missing division is named, not the missing term"),
}


def main():
    pairs = json.loads((HERE / "answers.json").read_text())
    first = json.loads((HERE / "results.json").read_text())
    if len(sys.argv) > 1:
        changes(pairs, first, json.loads(Path(sys.argv[1]).read_text()))
        return
    faults = [pair["name"] for pair in pairs if pair["kind"] == "fault"]
    poor = [name for name in faults if JUDGED.get(name, ("",))[0] == POOR]
    wrong = [name for name in faults if JUDGED.get(name, ("",))[0] == WRONG]
    print(f"{len(faults)} faults: {len(faults) - len(JUDGED)} right, {len(poor)} {POOR}, {len(wrong)} wrong or missed")
    clean(pairs, first)


def clean(pairs, results):
    codes = [results[pair["name"]]["exit"] for pair in pairs if pair["kind"] == "clean"]
    print(f"{len(codes)} clean pairs: {codes.count(0)} same, {codes.count(1)} reported, {codes.count(2)} in part")


def changes(pairs, first, later):
    """What is not as in the first comparison: to be read again."""
    pairs = [pair for pair in pairs if pair["name"] in later]
    for pair in pairs:
        name = pair["name"]
        heads = [(r[name]["exit"], r[name]["text"].split("\n")[0]) for r in (first, later)]
        if heads[0] != heads[1]:
            print(f"{pair['kind']} {name}\n  first {heads[0]}\n  later {heads[1]}")
    missed = [pair["name"] for pair in pairs if pair["kind"] == "fault" and later[pair["name"]]["exit"] != 1]
    print(f"faults not reported: {missed}")
    clean(pairs, later)


if __name__ == "__main__":
    main()
