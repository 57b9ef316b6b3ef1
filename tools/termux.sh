#!/bin/sh
# Installs nn-stretch in Termux, on an Android phone: `sh tools/termux.sh [FOLDER]`, in a checkout of nn-stretch.
#
# PyPI has few wheels for Android. What Termux has comes from there; msgspec, ml_dtypes, onnx and pyopencl are compiled. The
# environment is made in FOLDER, .venv by default. A phone only runs bundles, so torch is not installed.
set -eu

fail() {
  echo "error: $1" >&2
  exit 1
}

if [ -z "${PREFIX:-}" ] || ! command -v pkg > /dev/null; then
  fail "this is not Termux, there is no \`pkg\`: docs/guides/installation.md says how to install elsewhere"
fi
grep -qs '^name = "nn-stretch"' pyproject.toml || fail "this is no checkout of nn-stretch: go to one first"

pkg update -y
# ocl-icd is linked with and not used: at run time the driver's own library takes its place
pkg install -y python python-pip python-numpy python-onnxruntime python-pydantic-core \
  clang cmake ninja protobuf opencl-headers ocl-icd
folder=${1:-.venv}
python -m venv --system-site-packages "$folder"
install() { "$folder/bin/python" -m pip install --disable-pip-version-check "$@"; }

# the compilers of scikit-build are Termux's cmake and ninja, which it finds on the PATH
export CMAKE_ARGS="-DONNX_USE_PROTOBUF_SHARED_LIBS=ON"
install msgspec ml_dtypes onnx
# a driver may be older than pyopencl: functions that OpenCL 1.2 lacks are left out
CL_INC_DIR="$PREFIX/include" CL_LIB_DIR="$PREFIX/lib" CL_LIBNAME=OpenCL PYOPENCL_PRETEND_CL_VERSION="${CL_VERSION:-1.2}" \
  install pyopencl
# pydantic is taken in the version that fits Termux's pydantic-core, which is Rust
core=$(python -c 'from importlib.metadata import version; print(version("pydantic-core"))')
install "pydantic-core==$core" .

"$folder/bin/stretch" list env
for file in /vendor/lib64/libOpenCL.so /system/vendor/lib64/libOpenCL.so /vendor/lib64/egl/libGLES_mali.so; do
  if [ -r "$file" ]; then
    printf '\nFor the GPU:\n  export NN_STRETCH_OPENCL_LIBRARY=%s LD_LIBRARY_PATH=%s\n' "$file" "${file%/*}"
    exit
  fi
done
printf '\nThis phone shows no OpenCL library to apps: its CPU runs everything.\n'
