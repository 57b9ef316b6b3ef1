// Types of plan.h: a plan as constant data.
#ifndef NN_STRETCH_RUNNER_PLAN_TYPES_H_
#define NN_STRETCH_RUNNER_PLAN_TYPES_H_

#include <cstddef>
#include <cstdint>

namespace plan {

// Version of these types; plan.h states the version that it was written for.
inline constexpr int kFormat = 1;
inline constexpr int kMaxRank = 8;

// Dispatch of a processor's work (Algorithm 1 of NN-Stretch): enqueued, handed to the processor's thread, or run on
// the calling thread.
enum class Dispatch { kAsync, kBlocking, kInline };

struct Tensor {
  const char* name;
  int rank;
  int32_t shape[kMaxRank];  // as in the TFLite file: channels last
  bool channels_last;       // whether it is an image, whose channels follow the batch in .npy files
};

struct Processor {
  const char* name;
  Dispatch dispatch;
};

// A tensor that a step reads: its rows [first, last), or all rows if last is 0.
struct Read {
  int tensor;
  int32_t first;
  int32_t last;
};

// Four bytes of the file to replace with the little-endian number `value`.
struct Patch {
  uint64_t at;
  uint32_t value;
};

struct Step {
  const char* name;  // name of the signature
  const char* segment;
  int processor;  // processor that runs it; -1 for a join
  const Read* reads;
  size_t read_count;
  const int* writes;
  size_t write_count;
  const Patch* patches;  // changes that leave only this signature in the file
  size_t patch_count;
  int meeting;  // number of the group of branches that start together; -1 for none
};

struct Plan {
  int format;
  const char* model;
  const char* device;
  const char* sha256;  // SHA-256 of the TFLite file, in hexadecimal digits
  uint64_t bytes;      // size of the TFLite file
  const char* opening;  // first line of a record of a run
  const Tensor* tensors;
  size_t tensor_count;
  const Processor* processors;  // in the order in which they get work, the calling thread's last
  size_t processor_count;
  const Step* steps;  // in topological order
  size_t step_count;
  const int* inputs;
  size_t input_count;
  const int* outputs;
  size_t output_count;
};

}  // namespace plan

#endif  // NN_STRETCH_RUNNER_PLAN_TYPES_H_
