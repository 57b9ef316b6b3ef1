// The state machine of Algorithm 1 (NN-Stretch, MobiSys 2023), one inference at a time: what scheduler/runtime/machine.py
// is in Python, event for event. No thread, no clock, no file.
#ifndef NN_STRETCH_RUNNER_MACHINE_H_
#define NN_STRETCH_RUNNER_MACHINE_H_

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "plan_types.h"

namespace runner {

// What the machine answers. `kWait`, `kFinish` and `kFail` are for the calling thread.
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

  // A queue is a processor's; the last one is the calling thread's.
  size_t queue_count() const { return queues_.size(); }
  size_t caller() const { return queues_.size() - 1; }
  const std::string& queue_name(size_t queue) const { return names_[queue]; }
  size_t queue_of(int step) const;

  // The inputs of an inference are there; the one before has ended.
  std::vector<Instruction> InputReady();
  // A step has written its tensors.
  std::vector<Instruction> StepDone(int step);
  // A step has failed; nothing starts any more.
  std::vector<Instruction> StepFailed(int step, const std::string& error);

 private:
  std::vector<Instruction> Advance();
  int Take(size_t queue);
  void Arrived(int tensor);

  const plan::Plan& plan_;
  std::vector<plan::Dispatch> queues_;
  std::vector<std::string> names_;
  std::vector<size_t> queue_of_processor_;
  std::vector<std::vector<int>> readers_;  // steps by tensor, each once
  std::vector<int> waits_for_;             // tensors of each step
  std::vector<int> missing_;
  std::set<int> ready_;
  std::vector<int> running_;  // step by queue, -1 for none
  size_t left_ = 0;
  int failed_ = -1;
  std::string error_;
};

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_MACHINE_H_
