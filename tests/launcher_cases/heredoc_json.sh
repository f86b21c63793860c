#!/bin/bash
SPEC=$(cat <<'EOF'
{
  "method": "mtp",
  "num_speculative_tokens": 3
}
EOF
)
exec vllm serve /models/q --speculative-config "$SPEC" --max-num-seqs 4
