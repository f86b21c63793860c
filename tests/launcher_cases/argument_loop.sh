#!/bin/bash
SEQS=4; PORT=8000
while [ $# -gt 0 ]; do
  case "$1" in
    --seqs) SEQS="$2"; shift 2 ;;
    --port) PORT="$2"; shift 2 ;;
    *) shift ;;
  esac
done
exec vllm serve /models/q --max-num-seqs "$SEQS" --port "$PORT"
