#!/usr/bin/env bash
# The pocket lane: a real vLLM without a GPU, for trying lanectl out and for its tests.
# tests/vllm/install.sh installs the engine; tests/vllm/README.md tells about the model.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VLLM_VENV=${LANECTL_VLLM_VENV:-$root/.venv-vllm}
MODEL=${POCKET_MODEL:-$root/tests/vllm/checkpoints/pocket}

export VLLM_CPU_KVCACHE_SPACE=1
export HF_HUB_OFFLINE=1
export VLLM_NO_USAGE_STATS=1
# One thread, on whichever core is free: left to itself, vLLM ties every lane to the same core.
export VLLM_CPU_OMP_THREADS_BIND=nobind
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# The port can be set from outside; everything else is what a profile may change.
exec "$VLLM_VENV/bin/vllm" serve "$MODEL" \
  --served-model-name pocket \
  --host 127.0.0.1 \
  --port "${POCKET_PORT:-8000}" \
  --dtype float32 \
  --max-model-len 8192 \
  --max-num-seqs 4 \
  --speculative-config '{"method":"mtp","num_speculative_tokens":1}' \
  --enforce-eager \
  --enable-auto-tool-choice \
  --tool-call-parser hermes \
  --reasoning-parser qwen3
