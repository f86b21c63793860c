#!/usr/bin/env bash
# Serves Qwen with its multi-token-prediction head (MTP) on one GPU, under supervisord.
# Copy it and change the model, the paths and the sizes. The program's section in supervisord's
# configuration, so that a stop takes the whole tree down and waits for it:
#
#   command=/srv/lanes/serve-qwen-mtp.sh
#   stopasgroup=true
#   killasgroup=true
#   stopwaitsecs=60
#   autorestart=true
#
set -euo pipefail

# With more than one GPU give its UUID (nvidia-smi -L): the numbers change between boots.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export HF_HUB_OFFLINE=1
export VLLM_NO_USAGE_STATS=1

VENV=${VENV:-/srv/lanes/venv}
PORT=${PORT:-8000}

# exec, so that the pid that supervisord knows is the server's.
exec "$VENV/bin/vllm" serve Qwen/Qwen3.8-27B-FP8 \
  --served-model-name qwen38 \
  --host 127.0.0.1 \
  --port "$PORT" \
  --max-model-len 131072 \
  --max-num-seqs 8 \
  --gpu-memory-utilization 0.92 \
  --kv-cache-dtype fp8 \
  --enable-prefix-caching \
  --speculative-config '{"method":"mtp","num_speculative_tokens":3}' \
  --enable-auto-tool-choice \
  --tool-call-parser qwen3_coder \
  --reasoning-parser qwen3
