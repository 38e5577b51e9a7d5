#!/usr/bin/env bash
# make test-matrix: the wheel in an environment of its own, for every Python from 3.11 to 3.13 with the lowest torch of
# pyproject.toml and with the newest, and the tests that compare every method with its reference and with the contract.
# A Python that this machine has not is SKIPPED, and the last lines say so. A cell downloads a torch, takes some gigabytes
# for a while and a quarter of an hour on two cores: PYTHONS="3.12" and TORCHES="newest" choose some of them,
# TESTS="tests/test_cli.py" other tests.
set -uo pipefail
cd "$(dirname "$0")/.."
read -ra pythons <<<"${PYTHONS:-3.11 3.12 3.13}"
read -ra torches <<<"${TORCHES:-lowest newest}"
read -ra tests <<<"${TESTS:-tests/test_reference.py tests/test_conformance.py tests/test_network.py tests/test_cli.py tests/test_optim.py}"
folder=$(mktemp -d "${TMPDIR:-/tmp}/decentral-matrix.XXXXXX")
trap 'rm -rf "$folder"' EXIT

lowest() { sed -nE "s/^ *\"$1>=([0-9.]+).*/\1/p" pyproject.toml | head -1; }

python_of() { # the interpreter of a version, on the path or among pyenv's
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        "$candidate" -c "import sys; sys.exit(sys.version_info[:2] != tuple(map(int, '$1'.split('.'))))" 2>/dev/null &&
            echo "$candidate" && return
    done
    return 1
}

cell() { # one Python with one torch
    local python=$1 torch=$2 place=$folder/$3-$2 which=(torch torchvision)
    [ "$torch" = lowest ] && which=("torch==$(lowest torch).*" "torchvision==$(lowest torchvision).*")
    "$python" -m venv "$place" &&
        "$place/bin/pip" install --quiet --disable-pip-version-check "${which[@]}" "$folder"/*.whl \
            pytest pytest-timeout pytest-xdist types-PyYAML "submitit>=1.5.4" &&
        "$place/bin/python" -c 'import torch, sys; print("Python", sys.version.split()[0], "torch", torch.__version__)' &&
        OMP_NUM_THREADS=1 "$place/bin/pytest" -p no:cacheprovider -m "not slow" "${tests[@]}"
    local status=$?
    rm -rf "$place"
    return $status
}

"${PYTHON:-python3}" -m pip wheel --quiet --no-deps --wheel-dir "$folder" . || exit 1
summary=() failed=0
for version in "${pythons[@]}"; do
    python=$(python_of "$version") || python=
    for torch in "${torches[@]}"; do
        if [ -z "$python" ]; then
            summary+=("SKIPPED  Python $version, $torch torch: this machine has no python$version")
        elif cell "$python" "$torch" "$version"; then
            summary+=("passed   Python $version, $torch torch")
        else
            summary+=("FAILED   Python $version, $torch torch")
            failed=1
        fi
    done
done
printf '%s\n' "" "${summary[@]}"
exit $failed
