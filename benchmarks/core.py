"""Speed and memory of the analytic core, as ratios measured in one run.

    python benchmarks/core.py            all three, about a minute on two cores
    python benchmarks/core.py --quick    smaller sizes, to see that it runs

1. The server's work on K clients' uploads: the sum and one solve, against the paper's recursion.
2. One client's exact leave-one-out at 13 values of α and the model it chooses, against one matrix inverse for each α
   without leave-one-out.
3. Peak memory of a server that sums many small clients.

Each ratio is the median over repetitions that alternate between the two sides, so that a noisy machine slows both.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from fedhip import PersonalizationPath, Statistics, aggregate, solve_global
from fedhip.core import paper
from fedhip.core.rows import one_hot

PAPER_ALPHAS = tuple(5.0 * i for i in range(13))


def main() -> None:
    """Run the benchmarks and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    parser.add_argument("--peak-memory-of", type=int, metavar="CLIENTS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_memory_of:
        print(sum_many_clients(arguments.peak_memory_of, m=768, d=100))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.processor() or platform.machine()}")
    m, d, repeats = (256, 20, 3) if arguments.quick else (768, 100, 5)
    server(num_clients=50, m=m, d=d, repeats=repeats)
    alpha_path(rows=400 if not arguments.quick else 130, m=m, d=d, repeats=repeats)
    memory((100, 1_000) if arguments.quick else (100, 10_000))


def server(num_clients: int, m: int, d: int, repeats: int) -> None:
    """Phase 2 from the clients' uploads to the global model."""
    clients = [synthetic_rows(400, m, d, seed) for seed in range(num_clients)]
    statistics = [Statistics.from_data(F, y, d) for F, y in clients]
    uploads = [paper.local_training(F, one_hot(y, d), 1.0) for F, y in clients]

    summed, recursion, final_only = alternate(
        repeats,
        lambda: solve_global(aggregate(statistics), beta=1.0),
        lambda: paper.aggregate(uploads, beta=1.0)[2],
        lambda: recursion_without_intermediate_models(uploads, beta=1.0),
    )
    print(f"server, K = {num_clients}, m = {m}, d = {d}")
    report("sum and one solve", summed)
    report("the paper's Algorithm 1 (a global model after each client)", recursion, over=summed)
    report("the same recursion, one global model at the end", final_only, over=summed)


def recursion_without_intermediate_models(
    uploads: list[tuple[torch.Tensor, torch.Tensor]], beta: float
) -> torch.Tensor:
    """Equations 9-11 for each client and equation 12 once: the recursion at its cheapest."""
    S, M = uploads[0][0].clone(), uploads[0][1].clone()
    for C, L in uploads[1:]:
        before, S = S, S + C
        R = torch.linalg.cholesky(S)
        mu, nu = torch.cholesky_solve(before, R), torch.cholesky_solve(C, R)
        M = mu @ M + nu @ L
    H = S - (len(uploads) - 1) * beta * torch.eye(len(S), dtype=S.dtype)
    return torch.cholesky_solve(S @ M, torch.linalg.cholesky(H))


def alpha_path(rows: int, m: int, d: int, repeats: int) -> None:
    """Phase 3 over the paper's 13 values of α."""
    F, y = synthetic_rows(rows, m, d, seed=0)
    others = Statistics.from_data(*synthetic_rows(20 * rows, m, d, seed=1), d)
    total = others + Statistics.from_data(F, y, d)
    Y = one_hot(y, d)

    def chosen_model(total: Statistics) -> torch.Tensor:
        path = PersonalizationPath(total, F, y, beta=1.0)
        return path.weights(path.select(PAPER_ALPHAS))

    def chosen_model_alone() -> torch.Tensor:
        return chosen_model(Statistics(total.gram, total.cross, total.counts))  # a fresh value remembers no factor

    def inverses() -> list[torch.Tensor]:
        A_k, B_k, identity = F.mT @ F, F.mT @ Y, torch.eye(m, dtype=torch.float64)
        return [
            torch.linalg.inv(total.gram + alpha * A_k + identity) @ (total.cross + alpha * B_k)
            for alpha in PAPER_ALPHAS
        ]

    alone, within, inverse = alternate(repeats, chosen_model_alone, lambda: chosen_model(total), inverses)
    print(f"one client, N_k = {rows}, m = {m}, d = {d}, {len(PAPER_ALPHAS)} values of α")
    report("leave-one-out at every α and the model chosen by it", within)
    report("the same, the federation's own factorisation included", alone)
    report("one inverse for each α, no leave-one-out", inverse, over=within)
    report("  (against the second line)", inverse, over=alone)


def memory(numbers_of_clients: tuple[int, ...]) -> None:
    """Peak memory of a process that sums clients of 5 rows, each number in a process of its own."""
    print("server memory, clients of 5 rows, m = 768, d = 100")
    for number in numbers_of_clients:
        command = [sys.executable, __file__, "--peak-memory-of", str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        print(f"  {number:6d} clients: {done.stdout.strip()}")


def sum_many_clients(number: int, m: int, d: int) -> str:
    """Sum the clients' statistics as they arrive; the peak memory, and the size of the state at the end."""
    start = time.perf_counter()
    total = aggregate(Statistics.from_data(*synthetic_rows(5, m, d, seed), d) for seed in range(number))
    solve_global(total, beta=1.0)
    seconds = time.perf_counter() - start
    state = sum(tensor.nbytes for tensor in (total.gram, total.cross, total.counts))
    return f"peak {peak_memory() / 2**20:.0f} MiB with Python and torch, state {state / 2**20:.2f} MiB, {seconds:.1f} s"


def peak_memory() -> int:
    """Bytes this process held at its peak; not `ru_maxrss`, which starts from its parent's."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def synthetic_rows(rows: int, m: int, d: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of full rank and labels that depend on them."""
    generator = torch.Generator().manual_seed(seed)
    F = torch.randn((rows, m), generator=generator, dtype=torch.float64)
    y = torch.randint(d, (rows,), generator=generator)
    return F + 0.5 * one_hot(y % m, m), y


def alternate(repeats: int, *sides: Callable[[], object]) -> list[list[float]]:
    """Seconds of each side in each repetition, after one unmeasured one."""
    seconds: list[list[float]] = [[] for _ in sides]
    for repetition in range(repeats + 1):
        for times, side in zip(seconds, sides, strict=True):
            start = time.perf_counter()
            side()
            if repetition:
                times.append(time.perf_counter() - start)
    return seconds


def report(name: str, seconds: list[float], over: list[float] | None = None) -> None:
    """One line: the median time, and how many times that of `over`."""
    ratio = f"{median(a / b for a, b in zip(seconds, over, strict=True)):7.1f} x" if over else ""
    print(f"  {name:58s} {1e3 * median(seconds):8.1f} ms {ratio}")


if __name__ == "__main__":
    main()
