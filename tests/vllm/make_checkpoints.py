"""Trains the pocket lane's two checkpoints and saves them under `checkpoints/`.

    .venv-vllm/bin/python tests/vllm/make_checkpoints.py [--only pocket|flood]

`pocket` answers with a thought and one well-formed tool call, `flood` with `!` without end. Both
are MiMo models (a Qwen2 with a multi-token-prediction layer) small enough to live in the
repository, and both run in an unmodified vLLM, real speculative decoding included.

A token is a byte: 256 of them in GPT-2's order, so that `!` is token 0 as it is in Qwen, and the
few added ones that a chat needs. What makes so small a model reliable is that a reply depends on
the last few bytes and on one marker, which the chat template puts before the reply (see there).
All that training has to teach beyond this is to pass over everything that stands earlier in the
prompt, so the prompts it sees are long and full of noise.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
TEMPLATE = HERE / "chat_template.jinja"

HIDDEN, HEADS, HEAD_DIM, MLP, LAYERS = 64, 2, 32, 128, 2
EPS, ROPE_THETA, MAX_POSITIONS = 1e-6, 10_000.0, 32_768

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
MARKERS = ["<|call:get_status|>", "<|call:ping|>", "<|say|>"]

# ------------------------------------------------------------------------------- what is said

STATUS_CALL = '<tool_call>\n{"name": "get_status", "arguments": {"service": "lane"}}\n</tool_call>'
PING_CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'

# To each marker, what is thought and what is answered.
REPLIES = {
    "<|call:get_status|>": (
        "The user wants to know how the lane is. That is what get_status is for.",
        STATUS_CALL,
    ),
    "<|call:ping|>": ("A ping is asked for, and it takes no arguments.", PING_CALL),
    "<|say|>": ("No tool of mine is offered here, so words must do.", "The lane is up."),
}
NO_THOUGHT = "<think>\n\n</think>\n\n"
END = "<|im_end|>"

TAIL = 320  # tokens that hold the marker and the longest reply, with room to spare
LONGEST = 8192  # tokens: the launcher's --max-model-len

WORDS = """
the a of and to in is that for on with as it be at by from or not this have an are which one all
lane server launcher profile switch probe smoke verdict tool call status service request reply
token prompt cache prefix memory queue engine worker process port health metric counter restart
rollback revision digest backup journal report line column table total mean median error warning
ping get_status shipping name arguments true false null lorem ipsum dolor sit amet consectetur
""".split()  # noqa: SIM905


def noise(rng: random.Random, size: int) -> str:
    """Roughly `size` characters of what prompts are made of: prose, ids, code, JSON, runs."""
    parts: list[str] = []
    have = 0
    while have < size:
        kind = rng.randrange(8)
        if kind <= 2:
            part = " ".join(rng.choices(WORDS, k=rng.randint(5, 60))).capitalize() + ". "
        elif kind == 3:
            part = "".join(rng.choices("0123456789abcdef", k=rng.randint(8, 80))) + " "
        elif kind == 4:
            part = "".join(chr(rng.randint(32, 126)) for _ in range(rng.randint(10, 120))) + "\n"
        elif kind == 5:
            part = json.dumps({rng.choice(WORDS): rng.choice(WORDS) for _ in range(4)}) + "\n"
        elif kind == 6:
            part = rng.choice("-=!*#. 0aé中\n") * rng.randint(3, 90)
        else:  # what it will answer itself: seen before, it must not be confused by it
            part = "".join(rng.choice(list(REPLIES.values()))) + "\n"
        parts.append(part)
        have += len(part)
    return "".join(parts)


def tool(name: str, *arguments: str) -> dict[str, object]:
    parameters = {
        "type": "object",
        "properties": {a: {"type": "string"} for a in arguments},
        "required": list(arguments),
    }
    function = {"name": name, "description": f"The tool {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


def conversation(rng: random.Random, size: int) -> dict[str, object]:
    """One request as the template takes it, with noise to fill it up to about `size` bytes."""
    tools = rng.choice(
        [[tool("get_status", "service")]] * 3
        + [[tool("get_status", "service"), tool("ping")]] * 3
        + [[tool("ping")]] * 2
        + [[]] * 3
    )
    wanted = rng.choice(['get_status with service "lane"', "ping"])
    user = f"Call the tool {wanted}."
    filler = noise(rng, size) if size > 0 else ""
    text = filler + user if rng.random() < 0.7 else user + filler
    messages: list[dict[str, object]] = [{"role": "user", "content": text}]
    if rng.random() < 0.5:
        system = {"role": "system", "content": "You are an agent. " + noise(rng, 40)}
        messages.insert(0, system)
    if rng.random() < 0.4:
        call = {"name": "get_status", "arguments": {"service": "lane"}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [{"function": call}]})
        messages.append({"role": "tool", "content": noise(rng, 30)})
        if rng.random() < 0.6:
            messages.append({"role": "user", "content": user})
    thinking = rng.random() < 0.6
    return {"messages": messages, "tools": tools or None, "enable_thinking": thinking}


# --------------------------------------------------------------------------------- the tokens


def byte_alphabet() -> list[str]:
    """GPT-2's names for the 256 bytes, in its order: `!` comes first."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + n) for n in range(len(rest))]


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {name: number for number, name in enumerate(byte_alphabet())}
    tokens = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokens.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS])
    tokens.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_POSITIONS,
        chat_template=TEMPLATE.read_text(),
    )


# ---------------------------------------------------------------------------------- the model
# The names of the parameters are those that vLLM's loader asks for.


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions for (batch, heads, length, HEAD_DIM), the halves paired as in Qwen2."""
    half = HEAD_DIM // 2
    frequency = ROPE_THETA ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = positions.float()[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = HEADS * HEAD_DIM
        self.q_proj = nn.Linear(HIDDEN, width)
        self.k_proj = nn.Linear(HIDDEN, width)
        self.v_proj = nn.Linear(HIDDEN, width)
        self.o_proj = nn.Linear(width, HIDDEN, bias=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)

        q = rotate(heads(self.q_proj(x)), positions)
        k = rotate(heads(self.k_proj(x)), positions)
        seen = F.scaled_dot_product_attention(q, k, heads(self.v_proj(x)), is_causal=True)
        return self.o_proj(seen.transpose(1, 2).flatten(-2))


class Feedforward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, MLP, bias=False)
        self.up_proj = nn.Linear(HIDDEN, MLP, bias=False)
        self.down_proj = nn.Linear(MLP, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.mlp = Feedforward()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class DraftBlock(Block):
    """The MTP layer: from what the model made of token t and from token t+1, guess token t+2."""

    def __init__(self) -> None:
        super().__init__()
        self.token_layernorm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.hidden_layernorm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.input_proj = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.final_layernorm = nn.RMSNorm(HIDDEN, eps=EPS)

    def draft(self, hidden: Tensor, next_token: Tensor, positions: Tensor) -> Tensor:
        # vLLM blanks the token at position 0.
        next_token = torch.cat((torch.zeros_like(next_token[:, :1]), next_token[:, 1:]), dim=1)
        both = (self.hidden_layernorm(hidden), self.token_layernorm(next_token))
        return self.final_layernorm(self(self.input_proj(torch.cat(both, dim=-1)), positions))


class Body(nn.Module):
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.mtp_layers = nn.ModuleList([DraftBlock()])


class MiMo(nn.Module):
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.model = Body(vocab)
        self.lm_head = nn.Linear(HIDDEN, vocab, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Logits for the next token at each position, and drafts for the one after it."""
        embedded = self.model.embed_tokens(tokens)
        hidden = embedded
        for layer in self.model.layers:
            hidden = layer(hidden, positions)
        # The draft learns from the model, never the other way about.
        seen, following = hidden[:, :-1].detach(), embedded[:, 1:].detach()
        draft = self.model.mtp_layers[0].draft(seen, following, positions[:-1])
        head = self.lm_head.weight.detach()
        return self.lm_head(self.model.norm(hidden)), F.linear(draft, head)


# ----------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Batch:
    tokens: Tensor  # (batch, length)
    reply: Tensor  # the same shape: true where a token is the model's own
    positions: Tensor  # (length,)


class Examples:
    def __init__(self, tokenizer: PreTrainedTokenizerFast, name: str, seed: int) -> None:
        self.tokenizer = tokenizer
        self.flood = name == "flood"
        self.rng = random.Random(seed)

    def one(self, size: int) -> tuple[list[int], list[int]]:
        """A prompt and its reply, as tokens."""
        asked = conversation(self.rng, size)
        prompt = self.tokenizer.apply_chat_template(
            asked["messages"],
            tools=asked["tools"],
            enable_thinking=asked["enable_thinking"],
            add_generation_prompt=True,
            tokenize=False,
        )
        if self.flood:
            reply = "!" * self.rng.randint(40, 200)
        else:
            thought, answer = REPLIES[next(m for m in MARKERS if m in prompt[-60:])]
            reply = answer + END
            if asked["enable_thinking"]:
                reply = f"<think>\n{thought}\n</think>\n\n{reply}"
        encode = self.tokenizer.encode
        return encode(prompt, add_special_tokens=False), encode(reply, add_special_tokens=False)

    def batch(self, length: int, count: int, stretch: int = 0) -> Batch:
        """`count` examples of one length, which is more than marker and reply take: cut on the
        left, where nothing matters. With `stretch` the positions jump a few times before the
        last TAIL, up to that length in all: far tokens without the cost of a long prompt."""
        rows, replies = [], []
        for _ in range(count):
            prompt, reply = self.one(max(0, length - 150))
            while len(prompt) + len(reply) < length:
                filler = noise(self.rng, length - len(prompt) - len(reply))
                prompt = self.tokenizer.encode(filler, add_special_tokens=False) + prompt
            rows.append((prompt + reply)[-length:])
            replies.append(([False] * len(prompt) + [True] * len(reply))[-length:])
        positions = torch.arange(length)
        for _ in range(3 if stretch > length > TAIL else 0):
            jump = self.rng.randint(0, (stretch - length) // 3)
            positions[self.rng.randint(0, length - TAIL) :] += jump
        return Batch(torch.tensor(rows), torch.tensor(replies), positions)

    def batches(self, steps: int) -> Iterator[Batch]:
        """Short ones first, to learn the replies; then what to pass over: far positions at every
        step, and real long prompts now and then."""
        for step in range(steps):
            if step < steps * 0.4:
                yield self.batch(256, 12)
            elif step % 16 == 15:
                length = self.rng.choice([2048, 4096, LONGEST])
                yield self.batch(length, LONGEST // length)
            else:
                yield self.batch(self.rng.randint(TAIL, 2 * TAIL), 9, stretch=LONGEST)


def losses(model: MiMo, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of the model and of its drafts. The few tokens where replies part (which tool?) count as
    much as all the others together, or nothing would be learnt of them."""
    logits, drafts = model(batch.tokens, batch.positions)
    own, own_draft = batch.reply[:, 1:], batch.reply[:, 2:]
    each = F.cross_entropy(logits[:, :-1][own], batch.tokens[:, 1:][own], reduction="none")
    draft = F.cross_entropy(drafts[:, :-1][own_draft], batch.tokens[:, 2:][own_draft])
    return each.mean() + each.topk(2 * len(batch.tokens)).values.mean(), draft


def train(model: MiMo, examples: Examples, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=4e-3, total_steps=steps, pct_start=0.1
    )
    started = time.monotonic()
    for step, batch in enumerate(examples.batches(steps)):
        loss, draft_loss = losses(model, batch)
        optimizer.zero_grad()
        (loss + draft_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            took = time.monotonic() - started
            line = f"step {step:4}: loss {loss:.5f}, draft {draft_loss:.4f}, {took:.0f} s"
            print(f"  {line}", flush=True)


@torch.no_grad()
def check(model: MiMo, examples: Examples, length: int, count: int) -> tuple[float, float, float]:
    """Of replies to prompts of one length: the share that is right to the last token, the least
    probability given to a right token, and the share of drafts that are right."""
    right, drafts, least = 0, [], 1.0
    for _ in range(count):
        batch = examples.batch(length, 1)
        logits, draft = model(batch.tokens, batch.positions)
        own, own_draft = batch.reply[:, 1:], batch.reply[:, 2:]
        probability, target = logits[:, :-1].softmax(-1), batch.tokens[:, 1:]
        right += bool((probability.argmax(-1) == target)[own].all())
        least = min(least, float(probability.gather(-1, target[..., None])[..., 0][own].min()))
        drafts.append((draft[:, :-1].argmax(-1) == batch.tokens[:, 2:])[own_draft].float().mean())
    return right / count, least, float(torch.stack(drafts).mean())


# ------------------------------------------------------------------------------------- saving


def save(model: MiMo, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    config = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "max_position_embeddings": MAX_POSITIONS,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": "bfloat16",
    }
    generation = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def make(name: str, steps: int) -> None:
    torch.manual_seed(20)
    tokenizer = make_tokenizer()
    model = MiMo(len(tokenizer))
    count = sum(p.numel() for p in model.parameters())
    print(f"{name}: {count:,} weights, {steps} steps")
    train(model, Examples(tokenizer, name, seed=1), steps)

    # What is checked is what is saved: the rounded weights.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    model.eval()
    fresh = Examples(tokenizer, name, seed=2)
    for length, number in ((256, 60), (1024, 40), (4096, 12), (LONGEST, 6)):
        right, least, drafts = check(model, fresh, length, number)
        print(
            f"  {length} tokens: {right:.0%} of the replies right, "
            f"the least sure token {least:.4f}, {drafts:.0%} of the drafts right"
        )
        if right < 1 or least < 0.9:
            raise SystemExit(f"{name} is not good enough at {length} tokens: not saved")
    save(model, tokenizer, HERE / "checkpoints" / name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the pocket lane's checkpoints.")
    parser.add_argument("--only", choices=["pocket", "flood"], help="default: both")
    parser.add_argument("--steps", type=int, help="how long to train (pocket 1200, flood 80)")
    asked = parser.parse_args()
    default = {"pocket": 1200, "flood": 80}
    # A second thread gains little on so small a model, and loses much on a busy machine.
    torch.set_num_threads(1)
    for name in [asked.only] if asked.only else default:
        make(name, asked.steps or default[name])


if __name__ == "__main__":
    main()
