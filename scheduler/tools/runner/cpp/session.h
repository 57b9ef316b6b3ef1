// The plan's steps as compiled models of LiteRT, bound to the memory of the tensors.
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

// Memory of one tensor, aligned as LiteRT requires.
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

// An input or output of a compiled step: LiteRT's buffer, and the memory that is copied to or from it.
struct End {
  LiteRtTensorBuffer buffer = nullptr;
  std::unique_ptr<Memory> rows;   // copy of the tensor's rows that the step reads
  float* memory = nullptr;        // memory that the buffer wraps or is copied to or from
  bool copied = false;            // whether the buffer has separate memory
  size_t bytes = 0;
};

// A signature ready to run.
class CompiledStep {
 public:
  // Compiles on the calling thread, so that the threads that LiteRT starts are pinned to the same cores.
  CompiledStep(LiteRtEnvironment environment, const plan::Plan& plan, int step, const Options& options,
               const std::vector<std::unique_ptr<Memory>>& tensors);
  ~CompiledStep();
  CompiledStep(const CompiledStep&) = delete;
  CompiledStep& operator=(const CompiledStep&) = delete;

  // Reads the memory of the inputs and writes that of the outputs; throws Error if LiteRT fails.
  void Run();

  // Whether no operator of a step for an accelerator stays on the CPU.
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
  std::vector<const float*> sources_;  // tensors whose rows are copied for each input
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
