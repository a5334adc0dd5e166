"""Time commands from the shell, relative to only importing typer and rich."""

import os
import statistics
import subprocess
import sys
import time

ROUNDS = 15
BASELINE = 'python -c "import typer, rich"'
COMMANDS = [
    "--help",
    "run --help",
    "search --help",
    "sweep --help",
    "schedule table5_22b_present",
    "profile show a100_sxm4_80gb",
    "memory table5_22b_present",
    "run table5_22b_present",
    "run table5_175b_present",
    "run table5_1t_present",
    "search gpt2_1_5b --gpus 1",
    "search table5_175b_present --gpus 64 --json",
]


def seconds(arguments: list[str]) -> float:
    """Time `python ARGUMENTS`. Bytecode is cached, as for an installed package."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    start = time.perf_counter()
    command = [sys.executable, *arguments]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    cases = {BASELINE: ["-c", "import typer, rich"]}
    cases |= {f"simtrain {command}": ["-m", "simtrain", *command.split()] for command in COMMANDS}
    # The first round writes bytecode and compiled code, and is not counted.
    rounds = [{name: seconds(case) for name, case in cases.items()} for _ in range(ROUNDS + 1)][1:]
    median_s = {name: statistics.median(taken[name] for taken in rounds) for name in cases}
    print("| command | seconds | ratio |\n|---|---|---|")
    for name, taken_s in median_s.items():
        print(f"| `{name}` | {taken_s:.3f} | {taken_s / median_s[BASELINE]:.1f} |")


if __name__ == "__main__":
    main()
