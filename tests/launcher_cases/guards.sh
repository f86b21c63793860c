#!/bin/bash
set -euo pipefail
[ -n "${X:-}" ] && echo hi
N="${N:-3}"
[[ "$N" =~ ^[0-9]+$ ]] || { echo bad; exit 1; }
exec vllm serve /models/q --max-num-seqs $((N + 1))
