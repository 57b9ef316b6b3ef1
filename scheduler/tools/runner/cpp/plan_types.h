// What plan.h is written in: a plan as constant data.
#ifndef NN_STRETCH_RUNNER_PLAN_TYPES_H_
#define NN_STRETCH_RUNNER_PLAN_TYPES_H_

#include <cstddef>
#include <cstdint>

namespace plan {

// Version of this description; plan.h states the one that it was written for.
inline constexpr int kFormat = 1;
inline constexpr int kMaxRank = 8;

// How the work of a processor is started (Algorithm 1 of NN-Stretch): enqueued, handed to its own thread, or run on
// the calling thread.
enum class Dispatch { kAsync, kBlocking, kInline };

struct Tensor {
  const char* name;
  int rank;
  int32_t shape[kMaxRank];  // as in the TFLite file: channels last
  bool channels_last;       // whether it is an image, which .npy files hold with its channels behind the batch
};

struct Processor {
  const char* name;
  Dispatch dispatch;
};

// A tensor that a step reads; rows [first, last) of it, or all of it where last is 0.
struct Read {
  int tensor;
  int32_t first;
  int32_t last;
};

// Bytes of the file that become the little-endian number `value`.
struct Patch {
  uint64_t at;
  uint32_t value;
};

struct Step {
  const char* name;  // of the signature
  const char* segment;
  int processor;  // whose queue it belongs to; -1 for a join
  const Read* reads;
  size_t read_count;
  const int* writes;
  size_t write_count;
  const Patch* patches;  // leave this signature alone in the file
  size_t patch_count;
  int meeting;  // of branches that start together: their number; -1 for others
};

struct Plan {
  int format;
  const char* model;
  const char* device;
  const char* sha256;  // of the TFLite file, in hexadecimal digits
  uint64_t bytes;      // of it
  const char* opening;  // first line of a record of a run
  const Tensor* tensors;
  size_t tensor_count;
  const Processor* processors;  // in the order in which they are set to work, the calling thread's last
  size_t processor_count;
  const Step* steps;  // each behind what it waits for
  size_t step_count;
  const int* inputs;
  size_t input_count;
  const int* outputs;
  size_t output_count;
};

}  // namespace plan

#endif  // NN_STRETCH_RUNNER_PLAN_TYPES_H_
