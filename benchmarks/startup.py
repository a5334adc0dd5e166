"""Time commands from the shell, relative to `simtrain --help`.

Processor seconds of the user, because other processes of a shared machine change the elapsed time.
"""

import os
import resource
import statistics
import subprocess
import sys

ROUNDS = 15
BASELINE = "--help"
COMMANDS = [
    "run --help",
    "search --help",
    "sweep --help",
    "run table5_22b_present --show schedule",
    "show a100_sxm4_80gb",
    "run table5_22b_present --show memory",
    "run llama3_70b",
    "run table5_22b_present",
    "run table5_175b_present",
    "run table5_1t_present",
    "search gpt2_1_5b --gpus 1",
    "search table5_175b_present --gpus 64 --format json",
]


def seconds(command: str) -> float:
    """Time `simtrain COMMAND`. Bytecode is cached, as for an installed package."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    arguments = [sys.executable, "-m", "simtrain", *command.split()]
    subprocess.run(arguments, env=environment, stdout=subprocess.DEVNULL, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> None:
    cases = [BASELINE, *COMMANDS]
    # The first round writes bytecode and compiled code, and is not counted.
    rounds = [{case: seconds(case) for case in cases} for _ in range(ROUNDS + 1)][1:]
    median_s = {case: statistics.median(taken[case] for taken in rounds) for case in cases}
    print("| command | seconds | ratio |\n|---|---|---|")
    for case, taken_s in median_s.items():
        print(f"| `simtrain {case}` | {taken_s:.3f} | {taken_s / median_s[BASELINE]:.1f} |")


if __name__ == "__main__":
    main()
