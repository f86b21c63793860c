#!/bin/bash
source ./lane.env
exec vllm serve /models/q --port 8000 ${SPEC_ARGS} --max-num-seqs ${SEQS:-4}
