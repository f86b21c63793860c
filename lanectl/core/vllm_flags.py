"""The flags of `vllm serve`, as far as reading a command line needs them.

Only what argparse needs to know: which names exist (a beginning of a flag stands for it while no
other name begins like that), which take no value, and which take many. A flag that is missing here
is read by its full name, with a value when the word after it is no flag.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SPECULATIVE: Final = "--speculative-config"
MAX_NUM_SEQS: Final = "--max-num-seqs"
MODEL: Final = "--model"
CONFIG: Final = "--config"

SHORTCUTS: Final = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
    "--speculative-model": "model",
    "--num-speculative-tokens": "num_speculative_tokens",
}
"""Flags that each set one key of the speculative settings, newer ones and older ones."""

FAMILY: Final = frozenset((SPECULATIVE, *SHORTCUTS)) | _words("""
    --speculative-draft-tensor-parallel-size --speculative-max-model-len
    --speculative-disable-mqa-scorer --speculative-disable-by-batch-size
    --speculative-model-quantization --ngram-prompt-lookup-max --ngram-prompt-lookup-min
    --spec-decoding-acceptance-method --disable-logprobs-during-spec-decoding
""")

ALIASES: Final = {
    "-sc": SPECULATIVE,
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpb": "--data-parallel-backend",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dph": "--data-parallel-hybrid-lb",
    "-dcp": "--decode-context-parallel-size",
    "-q": "--quantization",
    "-cc": "--compilation-config",
    "-O": "--compilation-config",
}

SWITCHES: Final = _words("""
    --enable-auto-tool-choice --enforce-eager --trust-remote-code --enable-prefix-caching
    --enable-chunked-prefill --disable-log-requests --disable-log-stats --enable-log-requests
    --enable-lora --enable-expert-parallel --async-scheduling --language-model-only
    --disable-frontend-multiprocessing --disable-fastapi-docs --enable-request-id-headers
    --enable-server-load-tracking --enable-sleep-mode --disable-custom-all-reduce --headless
    --enable-prompt-tokens-details --enable-force-include-usage --enable-ssl-refresh
    --return-tokens-as-token-ids --skip-tokenizer-init --enable-reasoning --calculate-kv-scales
    --enable-dbo --enable-eplb --disable-sliding-window --disable-cascade-attn
    --enable-prompt-embeds --enable-log-outputs --disable-uvicorn-access-log
    --allow-credentials --kv-sharing-fast-prefill --data-parallel-hybrid-lb
    --disable-hybrid-kv-cache-manager --enable-tokenizer-info-endpoint --use-v2-block-manager
    --exclude-tools-when-tool-choice-none --disable-async-output-proc
    --disable-chunked-mm-input --multi-step-stream-outputs --enable-mm-embeds --help --version
""")
"""Flags that take no value: a word after them is not theirs."""

MANY: Final = _words("""
    --served-model-name --lora-modules --prompt-adapters --middleware --api-key
    --cudagraph-capture-sizes --logits-processors --cuda-graph-sizes
""")
"""Flags that take all the values up to the next flag."""

_OTHERS: Final = _words("""
    --model --host --port --uds --uvicorn-log-level --allowed-origins --allowed-methods
    --allowed-headers --chat-template --chat-template-content-format --response-role
    --ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --root-path --tool-call-parser
    --tool-parser-plugin --reasoning-parser --reasoning-parser-plugin --tool-server
    --max-log-len --api-server-count --config --config-format --shutdown-timeout --runner
    --convert --task --tokenizer --tokenizer-mode --tokenizer-revision --dtype --seed
    --hf-config-path --hf-overrides --hf-token --revision --code-revision --max-model-len
    --quantization --max-seq-len-to-capture --max-logprobs --logprobs-mode --load-format
    --allowed-local-media-path --allowed-media-domains --model-loader-extra-config
    --download-dir --model-impl --override-generation-config --generation-config
    --override-pooler-config --pooler-config --override-attention-dtype --io-processor-plugin
    --ignore-patterns --use-tqdm-on-load --pt-load-map-location --guided-decoding-backend
    --structured-outputs-config --distributed-executor-backend --pipeline-parallel-size
    --tensor-parallel-size --data-parallel-size --data-parallel-size-local
    --data-parallel-address --data-parallel-rpc-port --data-parallel-backend
    --data-parallel-rank --data-parallel-start-rank --decode-context-parallel-size
    --max-parallel-loading-workers --ray-workers-use-nsight --worker-cls --worker-extension-cls
    --block-size --gpu-memory-utilization --swap-space --kv-cache-dtype
    --num-gpu-blocks-override --prefix-caching-hash-algo --cpu-offload-gb
    --kv-cache-memory-bytes --mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-block-size
    --limit-mm-per-prompt --media-io-kwargs --mm-processor-kwargs --mm-processor-cache-gb
    --mm-encoder-tp-mode --skip-mm-profiling --interleave-mm-strings --video-pruning-rate
    --max-loras --max-lora-rank --lora-dtype --lora-extra-vocab-size --fully-sharded-loras
    --default-mm-loras --long-lora-scaling-factors --otlp-traces-endpoint
    --collect-detailed-traces --show-hidden-metrics-for-version --log-config-file
    --max-num-batched-tokens --max-num-seqs --max-num-partial-prefills
    --max-long-partial-prefills --long-prefill-token-threshold --num-lookahead-slots
    --scheduler-delay-factor --scheduling-policy --scheduler-cls --stream-interval
    --preemption-mode --num-scheduler-steps --max-cpu-loras --device --kv-transfer-config
    --kv-events-config --compilation-config --optimization-level --additional-config
    --attention-backend --attention-config --rope-scaling --rope-theta --served-model-name
    --numa-bind --expert-placement-strategy --all2all-backend --eplb-config
""")
KNOWN: Final = FAMILY | SWITCHES | MANY | _OTHERS
