"""A SLURM of one machine: `install(folder)` writes sbatch, srun, scancel, scontrol and sacct into it.

Each job is a script that runs in the background, and starts again if it was requeued. Commands keep their state in
`folder/jobs`: <id> (its state), <id>.task (the process that srun started), <id>.requeue, hold (all stay pending).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "srun", "scancel", "scontrol", "sacct")


def install(folder: Path) -> Path:
    """Write the commands to `folder`; return the folder with the state of the jobs."""
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
    words = [sys.executable, "-I", __file__, str(jobs), "_daemon", number]
    subprocess.Popen(words, env=os.environ | {"SLURM_JOB_ID": number}, start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    print(f"Submitted batch job {number}")


def _daemon(jobs: Path, number: str) -> None:
    again = True
    while again:
        while (jobs / "hold").exists():
            time.sleep(0.02)
        if (jobs / number).read_text() != "PENDING":  # cancelled
            return
        _write(jobs / number, "RUNNING")
        code = subprocess.run(["bash", str(jobs / f"{number}.script")], check=False).returncode
        (jobs / f"{number}.task").unlink(missing_ok=True)
        again = (jobs / f"{number}.requeue").exists()
        (jobs / f"{number}.requeue").unlink(missing_ok=True)
        if (jobs / number).read_text() == "RUNNING":
            _write(jobs / number, "PENDING" if again else "FAILED" if code else "COMPLETED")


def srun(jobs: Path, *arguments: str) -> None:
    words, files = list(arguments), {}
    while words[0].startswith("--"):
        option = words.pop(0)
        if option != "--unbuffered":
            files[option] = words.pop(0).replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0")
    with open(files["--output"], "a") as out, open(files["--error"], "a") as err:
        task = subprocess.Popen(words, stdout=out, stderr=err)
    _write(jobs / f"{os.environ['SLURM_JOB_ID']}.task", str(task.pid))
    sys.exit(task.wait() % 256)


def scancel(jobs: Path, number: str, *signals: str) -> None:
    if not signals:
        _write(jobs / number, "CANCELLED by 0")
    if (jobs / f"{number}.task").exists():
        name = signals[1].removeprefix("SIG") if signals else "TERM"
        os.kill(int((jobs / f"{number}.task").read_text()), signal.Signals[f"SIG{name}"])


def scontrol(jobs: Path, command: str, number: str) -> None:
    assert command == "requeue"
    _write(jobs / f"{number}.requeue", "")
    _write(jobs / f"{number}.requeued", "")


def sacct(jobs: Path, *arguments: str) -> None:
    print("JobID|State|NodeList")
    for number in filter(str.isdigit, arguments):
        print(number, (jobs / number).read_text(), "here", sep="|")


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text)
    temporary.replace(path)


if __name__ == "__main__":
    globals()[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
