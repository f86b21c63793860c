#!/bin/bash
exec vllm serve /models/q --speculative-conf '{"method":"mtp","num_speculative_tokens":3}' --max-num-s 4
