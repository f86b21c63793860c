#!/bin/bash
case "${1:-chat}" in
 chat) exec vllm serve /models/a --port 8000 --max-num-seqs 4 ;;
 code) exec vllm serve /models/b --port 8001 --max-num-seqs 8 ;;
esac
