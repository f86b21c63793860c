#!/bin/bash
if [ -f /srv/big ]; then SEQS=64; else SEQS=4; fi
exec vllm serve /models/q --max-num-seqs $SEQS
