#!/usr/bin/env bash
# Makes throwaway environments and models for `make bench-cpu`:
#   bench/cpu/setup_peers.sh FOLDER [peer ...]
# Peers: openvino, transformers. Needs several GB and Python with venv; what is there is kept, and
# removing FOLDER removes everything. DUALPACE_PYTHON is an interpreter that has dualpace.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
python=${DUALPACE_PYTHON:-$here/../../.venv/bin/python}
folder=${1:?usage: setup_peers.sh FOLDER [peer ...]}
shift
peers=${*:-openvino transformers}
mkdir -p "$folder/models"
folder=$(cd "$folder" && pwd)

environment() { # environment NAME PACKAGE...
  local name=$1
  shift
  [ -f "$folder/$name/ready" ] && return
  python3 -m venv "$folder/$name"
  "$folder/$name/bin/pip" install --quiet torch==2.13.0
  "$folder/$name/bin/pip" install --quiet "$@"
  touch "$folder/$name/ready"
}

for model in ${MODELS:-demo}; do
  "$python" "$here/prepare_model.py" "$model" "$folder/models/$model"
done

for peer in $peers; do
  case $peer in
    transformers)
      environment transformers transformers==5.24.0 accelerate==1.15.0 safetensors numpy
      ;;
    openvino)
      environment openvino openvino==2026.4.1 openvino-genai==2026.4.1.0 \
        openvino-tokenizers==2026.4.1.0 optimum-intel==2.2.0 nncf
      # Comes along, built for another torch, and breaks imports; nothing here uses it.
      "$folder/openvino/bin/pip" uninstall --quiet --yes torchvision
      for model in ${MODELS:-demo}; do
        for weights in fp32 int8; do
          out=$folder/models/$model-openvino-$weights
          [ -f "$out/openvino_model.xml" ] || HF_HUB_OFFLINE=1 "$folder/openvino/bin/optimum-cli" \
            export openvino --model "$folder/models/$model" --task text-generation-with-past \
            --weight-format "$weights" "$out"
        done
      done
      ;;
    *)
      echo "unknown peer $peer; known are openvino, transformers" >&2
      exit 2
      ;;
  esac
done
