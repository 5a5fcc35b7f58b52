#!/usr/bin/env bash
# The quick tests of models, analyses, tuning, data, compute and sweeps once more against TransformerLens 4.3.0, the newest one,
# which has only the bridge.
# It is put into its own folder in front of the environment's 3.9; its other requirements are the same.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=4.3.0
python=${PYTHON:-.venv/bin/python}
folder=.venv-tl4/lib
if ! [ -d "$folder/transformer_lens-$version.dist-info" ]; then
    rm -rf .venv-tl4
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "transformer-lens==$version"
fi
PYTHONPATH="$PWD/$folder" "$python" -c "
from importlib.metadata import version
import transformer_lens
assert version('transformer-lens') == '$version', version('transformer-lens')
assert '.venv-tl4' in transformer_lens.__file__, transformer_lens.__file__
"
PYTHONPATH="$PWD/$folder" exec "$python" -m pytest -n logical --maxprocesses 4 --dist loadfile -m "not slow" \
    tests/models tests/analysis tests/tuning tests/data tests/compute tests/sweeps "$@"
