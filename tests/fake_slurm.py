"""A SLURM of one machine: `install(folder)` writes sbatch, srun, squeue, scancel, scontrol and sacct into it.

Each job is a script that runs in the background, and starts again if it was requeued. Commands keep their state in
`folder/jobs`: <id> (its state), <id>.task (the process that srun started), <id>.requeue, <id>.hold (stays pending).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sacct")


def install(folder: Path) -> Path:
    """The commands in `folder`; returns the folder with the state of the jobs."""
    jobs = folder / "jobs"
    jobs.mkdir(parents=True)
    for command in COMMANDS:
        script = folder / command
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{__file__}" "{jobs}" {command} "$@"\n')
        script.chmod(0o755)
    return jobs


def sbatch(jobs: Path, script: str) -> None:
    number = str(101 + len(list(jobs.glob("*.script"))))
    (jobs / f"{number}.script").write_text(Path(script).read_text())
    _write(jobs / number, "PENDING")
    environment = os.environ | {"SLURM_JOB_ID": number}
    subprocess.Popen(
        [sys.executable, "-I", __file__, str(jobs), "_daemon", number],
        env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    print(f"Submitted batch job {number}")


def _daemon(jobs: Path, number: str) -> None:
    again = True
    while again:
        while (jobs / "hold").exists() and (jobs / number).exists():
            time.sleep(0.02)
        if not (jobs / number).exists():  # cancelled
            return
        _write(jobs / number, "RUNNING")
        subprocess.run(["bash", str(jobs / f"{number}.script")], check=False)
        again = (jobs / f"{number}.requeue").exists()
        (jobs / f"{number}.requeue").unlink(missing_ok=True)
        (jobs / f"{number}.task").unlink(missing_ok=True)
        if again and (jobs / number).exists():
            _write(jobs / number, "PENDING")
    (jobs / number).unlink(missing_ok=True)


def srun(jobs: Path, *arguments: str) -> None:
    words = list(arguments)
    files = {}
    while words[0].startswith("--"):
        option = words.pop(0)
        if option != "--unbuffered":
            files[option] = words.pop(0).replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0")
    with open(files["--output"], "a") as out, open(files["--error"], "a") as err:
        task = subprocess.Popen(words, stdout=out, stderr=err)
    _write(jobs / f"{os.environ['SLURM_JOB_ID']}.task", str(task.pid))
    sys.exit(task.wait() % 256)


def squeue(jobs: Path, *_: str) -> None:
    for path in sorted(jobs.glob("[0-9]*")):
        if path.name.isdigit():
            print(path.name, path.read_text())


def scancel(jobs: Path, *arguments: str) -> None:
    words = list(arguments)
    numbers = [word for word in words if word.isdigit()]
    name = next((word.removeprefix("--signal=") for word in words if word.startswith("--signal=")), None)
    if "--signal" in words:
        name = words[words.index("--signal") + 1]
    for number in numbers:
        pending = (jobs / number).exists() and (jobs / number).read_text() == "PENDING"
        if "--state=PENDING" in words or name is None:
            if pending or (name is None and "--state=PENDING" not in words):
                _write(jobs / f"{number}.cancelled", "")
                (jobs / number).unlink(missing_ok=True)
            if "--state=PENDING" in words:
                continue
        task = jobs / f"{number}.task"
        if task.exists():
            os.kill(int(task.read_text()), signal.Signals[f"SIG{(name or 'TERM').removeprefix('SIG')}"])


def scontrol(jobs: Path, command: str, number: str) -> None:
    assert command == "requeue"
    _write(jobs / f"{number}.requeue", "")
    _write(jobs / f"{number}.requeued", "")


def sacct(jobs: Path, *arguments: str) -> None:
    cancelled = (jobs / f"{arguments[-1]}.cancelled").exists()
    print("CANCELLED by 0" if cancelled else "FAILED")


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text)
    temporary.replace(path)


if __name__ == "__main__":
    globals()[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
