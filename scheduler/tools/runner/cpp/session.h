// The plan's steps as compiled models of LiteRT, tied to the memory of the tensors.
#ifndef NN_STRETCH_RUNNER_SESSION_H_
#define NN_STRETCH_RUNNER_SESSION_H_

#include <memory>
#include <string>
#include <vector>

#include "files.h"
#include "litert_api.h"
#include "options.h"
#include "plan_types.h"

namespace runner {

// Memory of one tensor, aligned as LiteRT wants it.
class Memory {
 public:
  explicit Memory(size_t elements);
  float* data() const { return data_.get(); }
  size_t elements() const { return elements_; }
  size_t bytes() const { return elements_ * sizeof(float); }

 private:
  struct Free {
    void operator()(float* data) const;
  };
  size_t elements_;
  std::unique_ptr<float, Free> data_;
};

size_t Elements(const plan::Tensor& tensor);

// One end of a compiled step: LiteRT's buffer, and what is copied into or out of it.
struct End {
  LiteRtTensorBuffer buffer = nullptr;
  std::unique_ptr<Memory> rows;   // where rows of a tensor are gathered before they are read
  float* memory = nullptr;        // that the buffer stands for, or is filled from
  bool copied = false;            // whether the buffer has memory of its own
  size_t bytes = 0;
};

// A signature ready to run.
class CompiledStep {
 public:
  // Compiles on the calling thread, so that the threads that LiteRT makes are pinned like it.
  CompiledStep(LiteRtEnvironment environment, const plan::Plan& plan, int step, const Options& options,
               const std::vector<std::unique_ptr<Memory>>& tensors);
  ~CompiledStep();
  CompiledStep(const CompiledStep&) = delete;
  CompiledStep& operator=(const CompiledStep&) = delete;

  // Reads its inputs' memory and writes its outputs'; throws Error if LiteRT fails.
  void Run();

  // Whether no operator stayed on the CPU that was to run elsewhere.
  bool fully_accelerated() const { return fully_; }

 private:
  void Tie(const std::vector<std::unique_ptr<Memory>>& tensors, bool copies);
  void Release();
  void CheckNames(LiteRtSignature signature);
  End Made(const plan::Tensor& tensor, int32_t rows, float* memory, LiteRtTensorBufferRequirements requirements, bool copies);
  void Gather(size_t input);
  std::string Named() const;

  LiteRtEnvironment environment_;
  const plan::Plan& plan_;
  const plan::Step& step_;
  Mapping file_;
  LiteRtModel model_ = nullptr;
  LiteRtCompiledModel compiled_ = nullptr;
  std::vector<End> inputs_, outputs_;
  std::vector<const float*> sources_;  // tensors that inputs are gathered from
  std::vector<LiteRtTensorBuffer> reads_, writes_;
  bool fully_ = true;
};

// LiteRT's environment.
class Environment {
 public:
  explicit Environment(const Options& options);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  LiteRtEnvironment get() const { return environment_; }

 private:
  LiteRtEnvironment environment_ = nullptr;
};

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_SESSION_H_
