// The state machine of Algorithm 1 (NN-Stretch, MobiSys 2023), one inference at a time; it gives the same answer to each
// event as scheduler/runtime/machine.py. It uses no threads, clock or files.
#ifndef NN_STRETCH_RUNNER_MACHINE_H_
#define NN_STRETCH_RUNNER_MACHINE_H_

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "plan_types.h"

namespace runner {

// One instruction of an answer. `kWait`, `kFinish` and `kFail` are for the calling thread.
struct Instruction {
  enum class Kind { kEnqueue, kSubmit, kRunInline, kJoin, kWait, kFinish, kFail };
  Kind kind;
  int step = -1;
  size_t queue = 0;
  std::vector<std::pair<size_t, int>> running;  // of kWait: queue and step
  std::string error;                            // of kFail
};

class Machine {
 public:
  explicit Machine(const plan::Plan& plan);

  // Each processor has a queue; the last one belongs to the calling thread.
  size_t queue_count() const { return queues_.size(); }
  size_t caller() const { return queues_.size() - 1; }
  const std::string& queue_name(size_t queue) const { return names_[queue]; }
  size_t queue_of(int step) const;

  // The inputs of an inference are ready; the previous inference has ended.
  std::vector<Instruction> InputReady();
  // A step has written its output tensors.
  std::vector<Instruction> StepDone(int step);
  // A step has failed; no further step starts.
  std::vector<Instruction> StepFailed(int step, const std::string& error);

 private:
  std::vector<Instruction> Advance();
  int Take(size_t queue);
  void Arrived(int tensor);

  const plan::Plan& plan_;
  std::vector<plan::Dispatch> queues_;
  std::vector<std::string> names_;
  std::vector<size_t> queue_of_processor_;
  std::vector<std::vector<int>> readers_;  // steps that read each tensor, each once
  std::vector<int> waits_for_;             // number of each step's input tensors
  std::vector<int> missing_;
  std::set<int> ready_;
  std::vector<int> running_;  // step by queue, -1 for none
  size_t left_ = 0;
  int failed_ = -1;
  std::string error_;
};

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_MACHINE_H_
