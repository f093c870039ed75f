"""The command line: ``python -m benchmarks models --impls eager,torch,braze --models bert,vit``."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from benchmarks import (
    cliffs,
    clipping,
    cudagraphs,
    gpu,
    gpu_zoo,
    kernels,
    operators,
    optimizer,
    overhead,
    report,
    run,
    serving,
    soak,
)
from braze.options import near

IMPLS = ("eager", "torch", "braze")
#: in mode max-autotune-no-cudagraphs
TUNED = ("torch-tuned", "braze-tuned")
#: named rather than imported from zoo, which would import torch into the parent
MODELS = (
    "minilm", "bert", "distilbert", "gpt2", "opt", "llama", "qwen3", "mistral", "gemma", "t5_encoder",
    "vit", "resnet", "convnext", "swin", "timm_resnet18", "timm_deit_tiny", "timm_mobilenetv3",
    "t5_small", "nanogpt", "dlrm",
)  # fmt: skip
#: without parameters: in inference only
NUMERIC = ("mixing",)
#: for memory only
LARGE = ("gpt2_50k",)
SWEPT = ("gpt2", "bert", "resnet", "vit")


def main() -> int:
    """Measure, print a table, keep the numbers."""
    if sys.argv[1:2] == ["machine_code"]:  # it measures nothing, and has words of its own
        from benchmarks import machine_code

        return machine_code.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "suite",
        choices=(
            "models",
            "overhead",
            "compile_time",
            "memory",
            "optimizer",
            "clipping",
            "kernels",
            "cliffs",
            "operators",
            "cudagraphs",
            "serving",
        ),
    )
    parser.add_argument(
        "--impls",
        default=",".join(IMPLS),
        help="of eager, torch, braze; for kernels, and models on a GPU, also torch-tuned, braze-tuned (mode max-autotune-no-cudagraphs); for optimizer of loop, foreach, fused, torch, braze; for clipping of foreach, braze; for cudagraphs also torch-ro, braze-ro (mode reduce-overhead); for memory also whole, "
        "which is braze with chunk_losses=False (default: all but that)",
    )
    parser.add_argument(
        "--models",
        default="",
        help=f"of {', '.join(MODELS)}; in inference also {', '.join(NUMERIC)}, for memory {', '.join(LARGE)} (default: all; of a sweep {', '.join(SWEPT)})",
    )
    parser.add_argument(
        "--rounds", type=int, default=0, help="interleaved rounds (default: 7; compile_time: 1)"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="about how long each model runs per implementation"
    )
    parser.add_argument(
        "--phase", choices=("inference", "training", "autocast"), default="inference",
        help="models, compile_time: a call under no_grad, or forward and backward (default: inference)",
    )  # fmt: skip
    parser.add_argument(
        "--batch",
        default="",
        help="models: so many rows of the inputs, as a list (1,2); 0: the model's own (default: 0)",
    )
    parser.add_argument(
        "--dynamic", action="store_true", help="compile_time: with dynamic=True, each size a symbol"
    )
    parser.add_argument(
        "--capture-only", action="store_true", help="compile_time: capture alone, first and again"
    )
    parser.add_argument(
        "--sweep", action="store_true", help="memory: budgets from 1.0 to 0.1, simulated and measured"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="kernels: cuda alone; cliffs; cudagraphs: cpu simulates the recordings; models: cuda has models of its own; clipping, overhead, serving (default: cpu)",
    )
    parser.add_argument(
        "--kernels",
        default="",
        help="kernels, cliffs, operators, cudagraphs, serving (models): words of names, by commas (default: all)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=0.0,
        help="models on a GPU, cliffs, operators, cudagraphs, serving: begin nothing after so many seconds (default: no limit)",
    )
    parser.add_argument(
        "--random",
        type=int,
        metavar="SEED",
        help="cliffs: programs drawn of this seed and those that follow, for --limit seconds (0: of this one alone) in place of the list",
    )
    parser.add_argument(
        "--shapes",
        action="store_true",
        help="cliffs: with --random, single functions over drawn dims of drawn shapes",
    )
    parser.add_argument(
        "--dtypes",
        default=operators.DTYPES[0],
        help=f"operators: of {', '.join(operators.DTYPES)}, by commas (default: {operators.DTYPES[0]})",
    )
    parser.add_argument(
        "--elements",
        default=",".join(map(str, operators.SIZES)),
        help="operators: about how many elements their arguments have in all, by commas (default: %(default)s)",
    )
    parser.add_argument(
        "--soak",
        type=float,
        default=0.0,
        help="serving: instead, so many minutes of 64 streams whose clients come, go and are killed",
    )
    parser.add_argument("--out", help="JSON file (default: one in benchmarks/results, named by date)")
    arguments = parser.parse_args()
    memory = arguments.suite == "memory"
    others = {
        "optimizer": optimizer.IMPLS,
        "clipping": clipping.IMPLS,
        "memory": (*IMPLS, "whole"),
        "cudagraphs": cudagraphs.IMPLS,
        "serving": serving.IMPLS,
    }
    known = others.get(arguments.suite, IMPLS)
    on_gpu = arguments.suite == "models" and arguments.device == "cuda"
    tuned = TUNED if on_gpu or arguments.suite == "kernels" else ()
    words = tuple(filter(None, arguments.kernels.split(",")))
    if arguments.suite == "kernels" and arguments.device != "cuda":
        parser.error(f"{arguments.suite} are measured with --device cuda")
    if arguments.impls == ",".join(IMPLS) and not memory:
        impls = known
    else:
        impls = _chosen(parser, arguments.impls, (*known, *tuned))
    every = (*MODELS, *LARGE) if memory else (*MODELS, *(NUMERIC if arguments.phase == "inference" else ()))
    every = tuple(gpu_zoo.MODELS) if on_gpu else every
    models = _chosen(parser, arguments.models, every) or (SWEPT if arguments.sweep else every)
    # a file or a log takes a wide table
    console = Console(width=None if sys.stdout.isatty() else 170)
    progress = Console(stderr=True)

    def say(what: str) -> None:
        progress.print(f"[dim]{what}", highlight=False)

    path = report.place(arguments.suite, arguments.out)

    def keep(rows: list[report.Row]) -> None:
        report.write(arguments.suite, rows, sys.argv[1:], path)

    if on_gpu:
        chosen = models if arguments.models else ()
        training = arguments.phase != "inference"
        rows = gpu.run_gpu_models(impls, chosen, training, arguments.limit, say, keep)
        table = report.gpu_models_table(rows, impls)
    elif arguments.suite == "models":
        batches = [int(batch) for batch in arguments.batch.split(",") if batch]
        if batches:
            models = tuple(f"{m}:b{n}" if n else m for m in models if m not in NUMERIC for n in batches)
        rows = run.run_models(impls, models, arguments.rounds or 7, arguments.seconds, say, arguments.phase)
        table = report.models_table(rows, impls)
    elif arguments.suite == "optimizer":
        rows = optimizer.run_optimizer(impls, arguments.rounds or 15, say)
        table = optimizer.optimizer_table(rows, impls)
    elif arguments.suite == "clipping":
        rows = clipping.run_clipping(arguments.device, impls, arguments.rounds or 15, say)
        table = clipping.clipping_table(rows, impls)
    elif arguments.suite == "kernels":
        rows = kernels.run_kernels(impls, words, say)
        table = report.kernels_table(rows, impls)
    elif arguments.suite == "cliffs":
        rows = cliffs.run_cliffs(
            arguments.device, words, impls, arguments.limit, say, arguments.random, keep, arguments.shapes
        )
        table = cliffs.cliffs_table(rows)
    elif arguments.suite == "operators":
        sizes = [int(size) for size in arguments.elements.split(",")]
        dtypes = _chosen(parser, arguments.dtypes, operators.DTYPES)
        rows = operators.run_operators(sizes, dtypes, words, arguments.rounds or 7, arguments.limit, say)
        table = operators.operators_table(rows)
    elif arguments.suite == "serving" and arguments.soak:
        rows = soak.run_soak(arguments.soak, arguments.device, say)
        table = soak.soak_table(rows)
    elif arguments.suite == "serving":
        rows = serving.run_serving(arguments.device, impls, words, arguments.limit, say)
        table = serving.serving_table(rows)
    elif arguments.suite == "cudagraphs":
        rounds = arguments.rounds or cudagraphs.ROUNDS
        rows = cudagraphs.run_cudagraphs(impls, words, say, arguments.device, arguments.limit, rounds)
        table = report.cudagraphs_table(rows, impls)
    elif arguments.suite == "overhead":
        cases = overhead.CUDA_CASES if arguments.device == "cuda" else overhead.CASES
        rows = run.run_overhead(impls, tuple(cases), arguments.rounds or 15, say)
        table = report.overhead_table(rows, impls, cases, overhead.BARE)
    elif memory and arguments.sweep:
        rows = run.run_sweep(models, say)
        table = report.sweep_table(rows)
    elif memory:
        rows = run.run_memory(impls, models, say)
        table = report.memory_table(rows, impls)
    else:
        rows = run.run_compile_time(
            impls,
            models,
            arguments.rounds or 1,
            say,
            arguments.dynamic,
            arguments.capture_only,
            arguments.phase,
        )
        table = report.compile_time_table(rows, impls)
    keep(rows)
    console.print(table)
    for line in report.failures(rows):
        console.print(f"failed: {line}", style="red", highlight=False)
    console.print(f"kept in {path}", highlight=False)
    return 0


def _chosen(parser: argparse.ArgumentParser, given: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    for name in names:
        if name not in known:
            parser.error(f"unknown {name!r}: {near(name, known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
