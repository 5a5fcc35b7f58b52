#!/usr/bin/env bash
# The tests of what reads models, and every function on ten architectures, once more with what
# `pip install interp_widgets` takes: TransformerLens 4.3.0, which has only the bridge, and transformers 5.24.0.
# Analyses meet TransformerLens through the engine alone: the matrix holds each of them, on the bridge, against plain
# loops. Of many cases of one test the first and the last run. Data sets and widgets do not meet it at all.
# They are put into their own folder in front of the environment's; their other requirements are the same. With the
# argument `install` that is all that is done.
set -euo pipefail
cd "$(dirname "$0")/../.."
lens=4.3.0 transformers=5.24.0
python=${PYTHON:-.venv/bin/python}
folder=.venv-tl4/lib
if ! [ -d "$folder/transformer_lens-$lens.dist-info" ] || ! [ -d "$folder/transformers-$transformers.dist-info" ]; then
    rm -rf .venv-tl4
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" \
        "transformer-lens==$lens" "transformers==$transformers"
fi
if [ "${1-}" = install ]; then
    exit
fi
export PYTHONPATH="$PWD/$folder${PYTHONPATH:+:$PYTHONPATH}"
"$python" -c "
import transformer_lens
import transformers
from importlib.metadata import version
assert (version('transformer-lens'), transformers.__version__) == ('$lens', '$transformers')
assert '.venv-tl4' in transformer_lens.__file__, transformer_lens.__file__
"
"$python" -m pytest -n logical --maxprocesses 4 --dist loadfile \
    -m "not slow and (reads_models or not (seconds or case_between))" \
    tests/models tests/quantised tests/tuning \
    tests/architectures/test_matrix.py::test_cells\[{gpt2,gpt_neox,llama,llama_attention_bias,llama_linear_rope}-bridge] \
    tests/architectures/test_matrix.py::test_cells\[{mistral_window,qwen2_moe,qwen3,gemma2,gemma3}-bridge] "$@"
