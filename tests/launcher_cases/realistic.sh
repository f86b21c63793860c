#!/bin/bash
set -e
log() { echo "[$(date)] $*"; }
log "starting vllm serve now"
trap 'kill 0' TERM
ulimit -n 65535 || true
export HF_HOME=${HF_HOME:-$HOME/.cache}
MODEL="${1:-/models/q}"
exec vllm serve "$MODEL" --max-num-seqs 4
