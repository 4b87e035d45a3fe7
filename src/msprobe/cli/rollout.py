"""`msprobe rollout`: log-probs of a rollout without an engine, and the trainer's side of a comparison by token."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EPILOG = """examples:
  msprobe rollout check samples.jsonl --model ./checkpoint
  msprobe rollout trainer samples.jsonl --model ./checkpoint -o ./trainer_dump
  msprobe compare ./rollout_dump ./trainer_dump
samples: JSON lines with prompt, response and logprobs (token ids), or a .pt file of slime or verl
exit code: 0 the log-probs fit, or done; 1 they do not fit; 2 failed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("what", choices=("check", "trainer"), help="check the log-probs, or dump the trainer's side")
    parser.add_argument("samples", type=Path, metavar="SAMPLES", help="token ids and log-probs of a rollout")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="a Hugging Face checkpoint")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32, bfloat16, …; default: that of the checkpoint")
    parser.add_argument("-o", "--output", type=Path, metavar="DUMP", help="trainer: write the dump there")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N samples")
    parser.add_argument("--json", action="store_true", help="check: print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    from msprobe.dump.errors import DumpError
    from msprobe.rollout.samples import read_samples

    if args.what == "trainer" and args.output is None:
        raise DumpError("give the directory of the dump: -o DUMP.")
    if args.limit is not None and args.limit < 1:
        raise DumpError(f"--limit takes a whole number from 1, not {args.limit}.")
    samples = read_samples(args.samples)[: args.limit]
    from msprobe.pytorch.rollout.trainer_run import collect_trainer, load_model

    model = load_model(args.model, args.dtype)
    if args.what == "trainer":
        forwards = collect_trainer(model, [one.tokens for one in samples], args.output)
        print(f"{len(samples)} sequences in {forwards} forwards, in {args.output}.")
        print(f"Next: msprobe compare ROLLOUT_DUMP {args.output}")
        return 0
    return _check(args, model, samples)


def _check(args: argparse.Namespace, model: Any, samples: Any) -> int:
    from msprobe.pytorch.rollout.trainer_run import sequence_logits
    from msprobe.report.terminal import print_lines
    from msprobe.rollout.check import answer, check_samples

    vocabulary = model.get_input_embeddings().num_embeddings
    found = check_samples(samples, lambda tokens: sequence_logits(model, tokens), vocabulary)
    if args.json:
        from msprobe.report.json_output import print_json

        print_json("rollout", found.summary())
    else:
        print_lines(answer(found))
    return found.exit_code
