#include "session.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "error.h"

namespace runner {
namespace {

constexpr size_t kAlignment = 64;

// Bytes after a tensor that kernels may read but not write (XNN_EXTRA_BYTES is less).
constexpr size_t kBehind = 128;

// Describes a status of LiteRT; the library does not export its own descriptions.
std::string Words(LiteRtStatus status) {
  switch (status) {
    case 1:
      return "invalid argument";
    case 2:
      return "out of memory";
    case 3:
      return "runtime failure";
    case 5:
      return "not supported";
    case 6:
      return "not found";
    case 501:
      return "invalid file";
    case 502:
      return "a library cannot be loaded";
    default:
      return "status " + std::to_string(status);
  }
}

void Check(LiteRtStatus status, const std::string& what) {
  if (status != 0) throw Error("LiteRT cannot " + what + ": " + Words(status) + " (--verbose lets LiteRT say more)");
}

LiteRtRankedTensorType TypeOf(const plan::Tensor& tensor, int32_t rows) {
  LiteRtRankedTensorType type{};
  type.element_type = kLiteRtElementTypeFloat32;
  type.layout.rank = static_cast<unsigned>(tensor.rank) & 127u;
  for (int i = 0; i < tensor.rank; ++i) type.layout.dimensions[i] = tensor.shape[i];
  if (rows > 0) type.layout.dimensions[1] = rows;
  return type;
}

void CheckShape(const LiteRtLayout& layout, const LiteRtRankedTensorType& wanted, const std::string& what) {
  bool same = layout.rank == wanted.layout.rank;
  for (unsigned i = 0; same && i < layout.rank; ++i) same = layout.dimensions[i] == wanted.layout.dimensions[i];
  if (!same) throw Error("LiteRT gives " + what + " another shape than plan.h");
}

// Returns an option of an environment: a number, or a folder (below).
LiteRtEnvOption Option(int tag, int64_t number) {
  LiteRtEnvOption option{};
  option.tag = tag;
  option.value.type = kLiteRtAnyTypeInt;
  option.value.int_value = number;
  return option;
}

LiteRtEnvOption Option(int tag, const std::string& text) {
  LiteRtEnvOption option{};
  option.tag = tag;
  option.value.type = kLiteRtAnyTypeString;
  option.value.str_value = text.c_str();
  return option;
}

// Options of one compiled model, released at the end of their scope.
struct ModelOptions {
  explicit ModelOptions(int accelerators, int threads) {
    Check(LiteRtCreateOptions(&options), "make options");
    Check(LiteRtSetOptionsHardwareAccelerators(options, accelerators), "choose an accelerator");
    // LiteRT reads the CPU's options as text under this name.
    const std::string text = "num_threads = " + std::to_string(threads) + "\n";
    char* data = static_cast<char*>(std::malloc(text.size() + 1));
    if (data == nullptr) throw std::bad_alloc();
    std::memcpy(data, text.c_str(), text.size() + 1);
    LiteRtOpaqueOptions opaque = nullptr;
    Check(LiteRtCreateOpaqueOptions("xnnpack", data, std::free, &opaque), "make options of the CPU");
    Check(LiteRtAddOpaqueOptions(options, opaque), "take the options of the CPU");
  }
  ~ModelOptions() { LiteRtDestroyOptions(options); }
  ModelOptions(const ModelOptions&) = delete;
  ModelOptions& operator=(const ModelOptions&) = delete;
  LiteRtOptions options = nullptr;
};

bool TakesHostMemory(LiteRtTensorBufferRequirements requirements) {
  int count = 0;
  Check(LiteRtGetNumTensorBufferRequirementsSupportedBufferTypes(requirements, &count), "say which memory it reads");
  for (int i = 0; i < count; ++i) {
    int type = 0;
    Check(LiteRtGetTensorBufferRequirementsSupportedTensorBufferType(requirements, i, &type), "say which memory it reads");
    if (type == kLiteRtTensorBufferTypeHostMemory) return true;
  }
  return false;
}

}  // namespace

Memory::Memory(size_t elements) : elements_(elements) {
  const size_t bytes = (elements * sizeof(float) + kBehind + kAlignment - 1) / kAlignment * kAlignment;
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, bytes) != 0) throw std::bad_alloc();
  std::memset(data, 0, bytes);
  data_.reset(static_cast<float*>(data));
}

void Memory::Free::operator()(float* data) const { std::free(data); }

size_t Elements(const plan::Tensor& tensor) {
  size_t count = 1;
  for (int i = 0; i < tensor.rank; ++i) count *= static_cast<size_t>(tensor.shape[i]);
  return count;
}

CompiledStep::CompiledStep(LiteRtEnvironment environment, const plan::Plan& plan, int step, const Options& options,
                           const std::vector<std::unique_ptr<Memory>>& tensors)
    : environment_(environment), plan_(plan), step_(plan.steps[step]), file_(options.model) {
  file_.Apply(step_.patches, step_.patch_count);
  const std::string processor = step_.processor < 0 ? "" : plan.processors[step_.processor].name;
  const auto accelerator = options.accelerators.find(processor);
  const auto threads = options.threads.find(processor);
  const int wanted = accelerator == options.accelerators.end() ? kLiteRtHwAcceleratorCpu : accelerator->second;
  try {
    Check(LiteRtCreateModelFromBuffer(environment, file_.data(), file_.size(), &model_), "read " + Named());
    LiteRtParamIndex count = 0;
    LiteRtSignature signature = nullptr;
    Check(LiteRtGetNumModelSignatures(model_, &count), "count the signatures beside " + Named());
    if (count != 1) throw Error("LiteRT finds " + std::to_string(count) + " signatures where " + Named() + " is to be alone");
    Check(LiteRtGetModelSignature(model_, 0, &signature), "find " + Named());
    CheckNames(signature);
    const ModelOptions own(wanted, threads == options.threads.end() ? 1 : threads->second);
    Check(LiteRtCreateCompiledModel(environment, model_, own.options, &compiled_), "compile " + Named());
    if (wanted != kLiteRtHwAcceleratorCpu) Check(LiteRtCompiledModelIsNonCpuFullyAccelerated(compiled_, &fully_), "say where " + Named() + " runs");
    Tie(tensors, options.copies);
  } catch (...) {
    Release();
    throw;
  }
}

CompiledStep::~CompiledStep() { Release(); }

void CompiledStep::Release() {
  for (const std::vector<End>* ends : {&inputs_, &outputs_}) {
    for (const End& end : *ends) {
      if (end.buffer != nullptr) LiteRtDestroyTensorBuffer(end.buffer);
    }
  }
  inputs_.clear();
  outputs_.clear();
  if (compiled_ != nullptr) LiteRtDestroyCompiledModel(compiled_);
  if (model_ != nullptr) LiteRtDestroyModel(model_);
}

std::string CompiledStep::Named() const { return std::string("signature `") + step_.name + "`"; }

void CompiledStep::CheckNames(LiteRtSignature signature) {
  const char* found = nullptr;
  LiteRtParamIndex reads = 0, writes = 0;
  Check(LiteRtGetSignatureKey(signature, &found), "name " + Named());
  bool same = std::string(found) == step_.name;
  Check(LiteRtGetNumSignatureInputs(signature, &reads), "count the inputs of " + Named());
  Check(LiteRtGetNumSignatureOutputs(signature, &writes), "count the outputs of " + Named());
  same = same && reads == step_.read_count && writes == step_.write_count;
  for (size_t i = 0; same && i < reads; ++i) {
    Check(LiteRtGetSignatureInputName(signature, i, &found), "name an input of " + Named());
    same = std::string(found) == plan_.tensors[step_.reads[i].tensor].name;
  }
  for (size_t i = 0; same && i < writes; ++i) {
    Check(LiteRtGetSignatureOutputName(signature, i, &found), "name an output of " + Named());
    same = std::string(found) == plan_.tensors[step_.writes[i]].name;
  }
  if (!same) throw Error(Named() + " does not have the tensors that plan.h states");
}

void CompiledStep::Tie(const std::vector<std::unique_ptr<Memory>>& tensors, bool copies) {
  LiteRtTensorBufferRequirements requirements = nullptr;
  inputs_.reserve(step_.read_count);
  for (size_t i = 0; i < step_.read_count; ++i) {
    const plan::Read& read = step_.reads[i];
    const plan::Tensor& tensor = plan_.tensors[read.tensor];
    const int32_t rows = read.last > 0 ? read.last - read.first : 0;
    LiteRtLayout layout{};
    Check(LiteRtGetCompiledModelInputTensorLayout(compiled_, 0, i, &layout), "tell the shape of an input of " + Named());
    CheckShape(layout, TypeOf(tensor, rows), "`" + std::string(tensor.name) + "` of " + Named());
    Check(LiteRtGetCompiledModelInputBufferRequirements(compiled_, 0, i, &requirements), "say which memory " + Named() + " reads");
    float* memory = tensors[static_cast<size_t>(read.tensor)]->data();
    sources_.push_back(memory);
    std::unique_ptr<Memory> gathered;
    if (rows > 0) {
      gathered = std::make_unique<Memory>(Elements(tensor) / static_cast<size_t>(tensor.shape[1]) * static_cast<size_t>(rows));
      memory = gathered->data();
    }
    inputs_.push_back(Made(tensor, rows, memory, requirements, copies));
    inputs_.back().rows = std::move(gathered);
    reads_.push_back(inputs_.back().buffer);
  }
  std::vector<LiteRtLayout> layouts(step_.write_count);
  Check(LiteRtGetCompiledModelOutputTensorLayouts(compiled_, 0, layouts.size(), layouts.data(), false), "tell the shapes that " + Named() + " writes");
  outputs_.reserve(step_.write_count);
  for (size_t i = 0; i < step_.write_count; ++i) {
    const plan::Tensor& tensor = plan_.tensors[step_.writes[i]];
    CheckShape(layouts[i], TypeOf(tensor, 0), "`" + std::string(tensor.name) + "` of " + Named());
    Check(LiteRtGetCompiledModelOutputBufferRequirements(compiled_, 0, i, &requirements), "say which memory " + Named() + " writes");
    outputs_.push_back(Made(tensor, 0, tensors[static_cast<size_t>(step_.writes[i])]->data(), requirements, copies));
    writes_.push_back(outputs_.back().buffer);
  }
}

End CompiledStep::Made(const plan::Tensor& tensor, int32_t rows, float* memory, LiteRtTensorBufferRequirements requirements, bool copies) {
  const LiteRtRankedTensorType type = TypeOf(tensor, rows);
  End end;
  end.memory = memory;
  end.bytes = Elements(tensor) * sizeof(float);
  if (rows > 0) end.bytes = end.bytes / static_cast<size_t>(tensor.shape[1]) * static_cast<size_t>(rows);
  end.copied = copies || !TakesHostMemory(requirements);
  const std::string what = "make a buffer of `" + std::string(tensor.name) + "` for " + Named();
  if (end.copied) {
    Check(LiteRtCreateManagedTensorBufferFromRequirements(environment_, &type, requirements, &end.buffer), what);
  } else {
    // Several steps may read the same memory at once: each has a separate buffer, which LiteRT locks separately.
    Check(LiteRtCreateTensorBufferFromHostMemory(&type, memory, end.bytes, nullptr, &end.buffer), what);
  }
  return end;
}

// Copies the rows that are read of each image into aligned memory, because rows inside a tensor need not be aligned.
void CompiledStep::Gather(size_t input) {
  const plan::Read& read = step_.reads[input];
  const plan::Tensor& tensor = plan_.tensors[read.tensor];
  size_t row = 1;
  for (int i = 2; i < tensor.rank; ++i) row *= static_cast<size_t>(tensor.shape[i]);
  const size_t some = static_cast<size_t>(read.last - read.first) * row, all = static_cast<size_t>(tensor.shape[1]) * row;
  for (int32_t image = 0; image < tensor.shape[0]; ++image) {
    const size_t at = static_cast<size_t>(image);
    std::memcpy(inputs_[input].rows->data() + at * some, sources_[input] + at * all + static_cast<size_t>(read.first) * row, some * sizeof(float));
  }
}

void CompiledStep::Run() {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].rows != nullptr) Gather(i);
    if (!inputs_[i].copied) continue;
    void* memory = nullptr;
    Check(LiteRtLockTensorBuffer(inputs_[i].buffer, &memory, kLiteRtTensorBufferLockModeWrite), "fill an input of " + Named());
    std::memcpy(memory, inputs_[i].memory, inputs_[i].bytes);
    Check(LiteRtUnlockTensorBuffer(inputs_[i].buffer), "fill an input of " + Named());
  }
  Check(LiteRtRunCompiledModel(compiled_, 0, reads_.size(), reads_.data(), writes_.size(), writes_.data()), "run " + Named());
  for (const End& end : outputs_) {
    if (!end.copied) continue;
    void* memory = nullptr;
    // Locking waits until an accelerator has finished.
    Check(LiteRtLockTensorBuffer(end.buffer, &memory, kLiteRtTensorBufferLockModeRead), "read an output of " + Named());
    std::memcpy(end.memory, memory, end.bytes);
    Check(LiteRtUnlockTensorBuffer(end.buffer), "read an output of " + Named());
  }
}

Environment::Environment(const Options& options) {
  int accelerators = kLiteRtHwAcceleratorCpu;
  for (const auto& [name, bits] : options.accelerators) accelerators |= bits;
  std::vector<LiteRtEnvOption> own = {Option(kLiteRtEnvOptionTagAutoRegisterAccelerators, accelerators),
                                      Option(kLiteRtEnvOptionTagMinLoggerSeverity, options.verbose ? kLiteRtLogSeverityInfo : kLiteRtLogSeverityError)};
  if (!options.dispatch_folder.empty()) {
    own.push_back(Option(kLiteRtEnvOptionTagDispatchLibraryDir, options.dispatch_folder));
    own.push_back(Option(kLiteRtEnvOptionTagRuntimeLibraryDir, options.dispatch_folder));
  }
  Check(LiteRtCreateEnvironment(static_cast<int>(own.size()), own.data(), &environment_), "start");
}

Environment::~Environment() { LiteRtDestroyEnvironment(environment_); }

}  // namespace runner
